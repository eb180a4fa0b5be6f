"""Rows as record batches: the same bytes and the same partitions as record by record."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client import TopicPartition, partition_for_key
from headrace.client.partitioner import murmur2
from headrace.errors import HeadraceError
from headrace.record import Record, encode_records
from headrace.spark.topic_sink.encode import Encoder, Rows, Tally, buffered, encode_rows, murmur2_of_all

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

some_bytes = st.binary(max_size=20) | st.binary(min_size=60, max_size=70) | st.binary(min_size=8190, max_size=8195)
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
records = st.lists(st.tuples(st.none() | some_bytes, st.none() | some_bytes, headers), min_size=1, max_size=20)


def rows_of(found: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]]) -> Rows:
    keys, values, headings = zip(*found, strict=True)
    structs = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in headings]
    return Rows(
        values=pa.array(values, pa.binary()), keys=pa.array(keys, pa.binary()), headers=pa.array(structs, HEADERS)
    )


@settings(max_examples=50, deadline=None)
@given(records)
def test_the_bytes_are_those_of_the_encoder_that_goes_record_by_record(
    found: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]],
) -> None:
    plain = [Record(key, value, 7, index, tuple(head or ())) for index, (key, value, head) in enumerate(found)]
    prepared = encode_rows(rows_of(found), 7)
    assert bytes(prepared.data) == bytes(encode_records(plain, base_timestamp=7))
    assert (prepared.count, prepared.base_timestamp, prepared.max_timestamp) == (len(found), 7, 7)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=20))
def test_every_key_has_the_hash_it_has_alone(keys: list[bytes]) -> None:
    assert murmur2_of_all(pa.array(keys, pa.binary())).tolist() == [murmur2(key) for key in keys]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=50), st.integers(1, 7))
def test_rows_with_a_key_go_where_the_java_client_sends_them_in_their_order(
    keys: list[bytes | None], count: int
) -> None:
    values = [b"%d" % index for index in range(len(keys))]
    rows = Rows(values=pa.array(values, pa.binary()), keys=pa.array(keys, pa.binary()))
    sent: dict[TopicPartition, int] = {}
    for place, prepared in Encoder("out", lambda topic: count, 10_000).encode(rows):
        sent[place] = sent.get(place, 0) + prepared.count
    wanted: dict[TopicPartition, int] = {}
    for key in keys:
        if key is not None:
            place = TopicPartition("out", partition_for_key(key, count))
            wanted[place] = wanted.get(place, 0) + 1
    nowhere = sum(key is None for key in keys)
    extra = {place: total - wanted.get(place, 0) for place, total in sent.items() if total != wanted.get(place, 0)}
    assert sum(extra.values()) == nowhere
    assert len(extra) <= 1


def test_a_row_goes_to_the_topic_and_partition_that_its_columns_name() -> None:
    table = pa.table(
        {
            "value": pa.array(["a", "b", "c", "d"]),
            "topic": ["x", "y", "x", "y"],
            "partition": pa.array([1, 0, None, 2], pa.int32()),
            "key": pa.array([None, None, b"k", None], pa.binary()),
        }
    )
    found = [
        (str(place), prepared.count) for place, prepared in Encoder(None, lambda topic: 3, 1000).encode(Rows.of(table))
    ]
    assert sorted(found) == sorted([("x[1]", 1), ("y[0]", 1), (f"x[{partition_for_key(b'k', 3)}]", 1), ("y[2]", 1)])
    with pytest.raises(HeadraceError, match="partition is 2; topic 'y' has 0 to 1"):
        list(Encoder(None, lambda topic: 2, 1000).encode(Rows.of(table)))


def test_batches_stay_below_their_size_and_a_larger_row_is_alone() -> None:
    values = [b"v" * 10, b"v" * 10, b"v" * 500, b"v" * 10]
    found = [each.count for _, each in Encoder("t", lambda topic: 1, 100).encode(Rows(pa.array(values, pa.binary())))]
    assert found == [2, 1, 1]


def test_a_tally_knows_the_same_rows_again_however_they_are_cut() -> None:
    table = pa.table({"key": [b"a", None, b"c"], "value": ["1", "22", None]})

    def tally_of(*tables: pa.Table) -> tuple[int, int, int]:
        tally = Tally()
        for each in tables:
            tally.add(Rows.of(each))
        return tally.rows, tally.size, tally.crc

    whole = tally_of(table)
    assert whole[:2] == (3, 5)
    assert tally_of(table.slice(0, 1), table.slice(1)) == whole
    assert tally_of(table.slice(1), table.slice(0, 1)) != whole
    assert tally_of(pa.table({"key": [b"a", b"", b"c"], "value": ["1", "22", None]})) != whole


def test_small_batches_are_joined_until_they_are_worth_encoding() -> None:
    batch = pa.record_batch({"value": [b"x" * 100] * 10})
    sizes = [table.num_rows for table in buffered([batch] * 7, bytes_max=2 * batch.nbytes)]
    assert sizes == [20, 20, 20, 10]


def test_a_null_topic_and_a_nameless_header_are_told() -> None:
    nameless = pa.array([[{"key": None, "value": b"x"}]], HEADERS)
    with pytest.raises(HeadraceError, match="header has no name"):
        encode_rows(Rows(pa.array([b"v"]), headers=nameless), 0)
    with pytest.raises(HeadraceError, match="column topic is null"):
        list(Encoder(None, lambda topic: 1, 10).encode(Rows(pa.array([b"v"]), topics=pa.array([None], pa.string()))))


@settings(max_examples=50, deadline=None)
@given(records, st.integers(1, 200))
def test_cutting_into_batches_changes_no_record(
    found: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]], batch_bytes: int
) -> None:
    at = 0
    for _, prepared in Encoder("t", lambda topic: 1, batch_bytes).encode(rows_of(found)):
        part = found[at : at + prepared.count]
        plain = [Record(key, value, 0, index, tuple(head or ())) for index, (key, value, head) in enumerate(part)]
        assert bytes(prepared.data) == bytes(encode_records(plain, base_timestamp=0))
        at += prepared.count
    assert at == len(found)
