"""The decoder of PostgreSQL's replication messages: it reads what the server writes, and nothing else hurts it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.envelope import UNCHANGED
from headrace.capture.postgres import pgoutput
from headrace.capture.postgres.streams import StreamedTransactions
from tests.capture.messages import ENCODERS, encode

lsns = st.integers(0, 2**64 - 1)
xids = st.integers(1, 2**32 - 1)
oids = st.integers(0, 2**32 - 1)
times = st.integers(-(2**61), 2**61).map(lambda each: each + pgoutput.POSTGRES_EPOCH_US)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20)
values = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=40))
rows = st.lists(values, max_size=12)
columns = st.builds(pgoutput.RelationColumn, names, oids, st.integers(-1, 2**31 - 1), st.booleans())

in_transactions = st.one_of(
    st.builds(
        pgoutput.Relation, xids, oids, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=8).map(tuple)
    ),
    st.builds(pgoutput.TypeName, xids, oids, names, names),
    st.builds(pgoutput.Insert, xids, oids, rows),
    st.builds(pgoutput.Update, xids, oids, st.booleans(), rows, rows),
    st.builds(pgoutput.Update, xids, oids, st.just(False), st.none(), rows),
    st.builds(pgoutput.Delete, xids, oids, st.booleans(), rows),
    st.builds(pgoutput.Truncate, xids, st.lists(oids, max_size=5).map(tuple), st.booleans(), st.booleans()),
    st.builds(pgoutput.LogicalMessage, xids, st.booleans(), lsns, names, st.binary(max_size=50)),
)
around_transactions = st.one_of(
    st.builds(pgoutput.Begin, lsns, times, xids),
    st.builds(pgoutput.Commit, lsns, lsns, times),
    st.builds(pgoutput.Origin, lsns, names),
    st.builds(pgoutput.StreamStart, xids, st.booleans()),
    st.builds(pgoutput.StreamStop),
    st.builds(pgoutput.StreamCommit, xids, lsns, lsns, times),
    st.builds(pgoutput.StreamAbort, xids, xids),
)


def without_xid(message: pgoutput.Message) -> pgoutput.Message:
    return message._replace(xid=0)  # type: ignore[call-arg]


@given(in_transactions)
def test_a_message_of_version_1_comes_out_as_it_was_put_in(message: pgoutput.Message) -> None:
    assert pgoutput.decode(encode(message)) == without_xid(message)


@given(in_transactions)
def test_a_message_inside_a_stream_keeps_its_transaction_id(message: pgoutput.Message) -> None:
    assert pgoutput.decode(encode(message, streaming=True), streaming=True) == message


@given(around_transactions)
def test_begins_and_ends_come_out_as_they_were_put_in(message: pgoutput.Message) -> None:
    assert pgoutput.decode(encode(message)) == message


def test_every_kind_of_message_has_its_bytes_here() -> None:
    assert set(ENCODERS) == set(pgoutput.Message.__args__)


@given(st.one_of(in_transactions, around_transactions), st.data())
def test_a_message_that_is_cut_or_continued_is_refused_and_nothing_else_happens(
    message: pgoutput.Message, data: st.DataObject
) -> None:
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(pgoutput.MalformedReplication):
        pgoutput.decode(whole[:cut])
    with pytest.raises(pgoutput.MalformedReplication):
        pgoutput.decode(whole + b"\0")


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_message_or_are_refused(data: bytes, streaming: bool) -> None:
    try:
        pgoutput.decode(data, streaming=streaming)
    except pgoutput.MalformedReplication:
        pass


def test_the_prefix_of_a_message_need_not_be_utf_8() -> None:
    """In a database without a character set an application may write any; it must not stop capture for good."""
    found = pgoutput.decode(b"M" + struct.pack(">BQ", 1, 7) + b"a\xff\0" + struct.pack(">I", 1) + b"x")
    assert found == pgoutput.LogicalMessage(0, True, 7, "a\\xff", b"x")


def test_a_length_of_four_gigabytes_allocates_nothing() -> None:
    with pytest.raises(pgoutput.MalformedReplication, match="4294967295 bytes where 2 remain"):
        pgoutput.decode(b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xffab")


# ---- streamed transactions ------------------------------------------------------------------------------------------


def insert(xid: int, value: bytes) -> pgoutput.Insert:
    return pgoutput.Insert(xid, 1, [value])


def feed(streams: StreamedTransactions, *messages: pgoutput.Message) -> None:
    inside = False
    for message in messages:
        assert streams.take(encode(message, streaming=inside), 7)
        if isinstance(message, pgoutput.StreamStart):
            inside = True
        elif isinstance(message, pgoutput.StreamStop):
            inside = False


def ended(streams: StreamedTransactions) -> list[bytes]:
    _, messages = streams.take_ended()
    return [each.new[0] for each, _, _ in messages if isinstance(each, pgoutput.Insert)]


def test_interleaved_pieces_of_two_transactions_come_back_whole_at_their_commits() -> None:
    streams = StreamedTransactions()
    start, stop = pgoutput.StreamStart, pgoutput.StreamStop()
    feed(streams, start(5, True), insert(5, b"a"), stop, start(6, True), insert(6, b"x"), stop)
    feed(streams, start(5, False), insert(5, b"b"), stop)
    feed(streams, pgoutput.StreamCommit(6, 10, 11, 0))
    assert ended(streams) == [b"x"]
    feed(streams, pgoutput.StreamCommit(5, 20, 21, 0))
    assert ended(streams) == [b"a", b"b"]
    streams.close()


def test_what_a_savepoint_took_back_is_left_out_but_its_description_of_a_table_is_kept() -> None:
    streams = StreamedTransactions()
    relation = pgoutput.Relation(9, 1, "public", "t", "d", ())
    feed(streams, pgoutput.StreamStart(5, True), insert(5, b"a"), relation, insert(9, b"b"), pgoutput.StreamStop())
    feed(streams, pgoutput.StreamAbort(5, 9), pgoutput.StreamCommit(5, 20, 21, 0))
    _, messages = streams.take_ended()
    assert [each for each, _, _ in messages] == [insert(5, b"a"), relation]


def test_an_aborted_transaction_is_forgotten() -> None:
    streams = StreamedTransactions()
    feed(streams, pgoutput.StreamStart(5, True), insert(5, b"a"), pgoutput.StreamStop(), pgoutput.StreamAbort(5, 5))
    feed(streams, pgoutput.StreamCommit(5, 20, 21, 0))
    assert ended(streams) == []


def test_messages_outside_of_streams_are_left_to_the_caller() -> None:
    streams = StreamedTransactions()
    assert not streams.take(encode(pgoutput.Begin(1, pgoutput.POSTGRES_EPOCH_US, 3)), 7)
