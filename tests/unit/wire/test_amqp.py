"""AMQP's frames, methods, tables and properties, compared with pamqp."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pamqp.base
import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header
import pamqp.heartbeat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.wire.amqp.connection import (
    AckReceived,
    AmqpConnection,
    Event,
    HeartbeatReceived,
    MethodReceived,
    PeerErred,
    ProtocolHeaderReceived,
    PublishReceived,
)
from headrace.wire.amqp.errors import ReplyCode
from headrace.wire.amqp.methods import IDS, decode_method, encode_method
from headrace.wire.amqp.properties import decode_properties, encode_properties, summary_of
from headrace.wire.amqp.tables import DEPTH_MAX, BadTable, Timestamp, decode_table, encode_table

HEADER = b"AMQP\x00\x00\x09\x01"


def commands() -> dict[str, type[pamqp.base.Frame]]:
    """pamqp's methods by our names."""
    found = {}
    for names in vars(pamqp.commands).values():
        for command in vars(names).values() if isinstance(names, type) else ():
            if isinstance(command, type) and hasattr(command, "index"):
                found[(command.index >> 16, command.index & 0xFFFF)] = command
    return {name: found[number] for name, number in IDS.items() if number in found}


VALUES = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
    "shortstr": st.text("abcxyz019-_.:", max_size=40),  # pamqp checks names
    "bit": st.booleans(),
    "table": st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=5) | st.booleans(), max_size=3).map(
        lambda table: dict(sorted(table.items()))  # as pamqp writes them
    ),
}


def test_pamqp_knows_nearly_every_method() -> None:
    assert len(commands()) >= len(IDS) - 4


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@pytest.mark.parametrize("name", sorted(commands()))
@settings(max_examples=10)
@given(data=st.data())
def test_a_method_is_the_bytes_that_pamqp_writes(name: str, data: st.DataObject) -> None:
    from headrace.wire.amqp.methods import _METHODS

    ours: dict[str, Any] = {}
    command = commands()[name]()
    theirs = command.attributes()
    for (kind, argument), attribute in zip(_METHODS[name][1], theirs, strict=True):
        if argument.startswith("_"):
            ours[argument] = getattr(command, attribute)  # reserved: pamqp knows what is written there
            continue
        value = data.draw(VALUES[kind]) if kind != "longstr" else data.draw(st.text(max_size=40))
        ours[argument] = value
        setattr(command, attribute, value)
    encoded = encode_method(name, ours)
    assert encoded[4:] == command.marshal()
    decoded_name, arguments = decode_method(encoded)
    assert decoded_name == name
    texts = {key: value.decode() if isinstance(value, bytes) else value for key, value in arguments.items()}
    given = {key: value for key, value in ours.items() if not key.startswith("_")}
    assert {key: texts[key] for key in given} == given


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.integers(0, 2**40).map(Timestamp)
    | st.decimals(-1000, 1000, places=2)
)
TABLES = st.dictionaries(
    st.text(max_size=20),
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
        max_leaves=20,
    ),
    max_size=6,
)


@given(table=TABLES)
def test_a_table_is_read_as_it_was_written(table: dict[str, Any]) -> None:
    encoded = encode_table(table)
    assert decode_table(encoded, 0, len(encoded)) == (table, len(encoded))


@given(table=TABLES, cut=st.integers(0, 300), noise=st.binary(max_size=4))
def test_a_damaged_table_is_an_error_and_nothing_else(table: dict[str, Any], cut: int, noise: bytes) -> None:
    encoded = encode_table(table)
    damaged = encoded[: min(cut, len(encoded))] + noise
    try:
        decode_table(damaged, 0, len(damaged))
    except (BadTable, IndexError):
        pass


def test_tables_are_not_nested_without_end() -> None:
    table: dict[str, Any] = {}
    for _ in range(DEPTH_MAX + 1):
        table = {"": table}
    encoded = encode_table(table)
    with pytest.raises(BadTable, match="nested"):
        decode_table(encoded, 0, len(encoded))


def test_pamqp_reads_our_tables() -> None:
    import pamqp.decode

    table = {"n": 1, "big": 2**40, "s": "ä", "t": True, "none": None, "l": [1, "a"], "d": Decimal("1.5"), "b": b"\xff"}
    _, read = pamqp.decode.field_table(encode_table(table))
    assert read == {**table, "b": bytearray(b"\xff")} or read == table


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.text(max_size=20),
            "headers": st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 100), max_size=3),
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(0, 9),
            "expiration": st.just("100"),
            "message_id": st.text(max_size=20),
            "app_id": st.text(max_size=20),
        },
    )
)
def test_properties_are_the_bytes_that_pamqp_writes(fields: dict[str, Any]) -> None:
    theirs = pamqp.commands.Basic.Properties(**fields).marshal()
    ours = encode_properties(fields)
    written = {name: value for name, value in fields.items() if value}  # pamqp leaves out what is empty or zero
    assert {name: value for name, value in decode_properties(theirs).items() if value} == written
    assert decode_properties(ours) == fields
    assert summary_of(ours).is_persistent == (fields.get("delivery_mode") == 2)


def test_a_time_in_properties_is_seconds() -> None:
    moment = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)
    raw = pamqp.commands.Basic.Properties(timestamp=moment).marshal()
    assert decode_properties(raw) == {"timestamp": Timestamp(int(moment.timestamp()))}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1_769_853_600, "2026-01-31T10:00:00Z"),
        (2**63 - 1, "9223372036854775807 s"),
        (-(2**60), "-1152921504606846976 s"),
    ],
)
def test_a_timestamp_is_shown_as_a_time_whatever_a_client_has_written(seconds: int, text: str) -> None:
    assert str(Timestamp(seconds)) == text


# ---- frames ---------------------------------------------------------------------------------------------------------


def published(channel: int, body: bytes, frame_max: int = 131_072, **publish: Any) -> bytes:
    """What a client sends to publish a message."""
    properties = pamqp.commands.Basic.Properties(delivery_mode=2)
    data = pamqp.frame.marshal(pamqp.commands.Basic.Publish(**publish), channel)
    data += pamqp.frame.marshal(pamqp.header.ContentHeader(0, len(body), properties), channel)
    for first in range(0, len(body), frame_max - 8):
        part = body[first : first + frame_max - 8]
        data += bytes(pamqp.frame.marshal(pamqp.body.ContentBody(part), channel))
    return bytes(data)


def opened() -> AmqpConnection:
    connection = AmqpConnection()
    assert connection.receive_data(HEADER) == [ProtocolHeaderReceived()]
    return connection


STREAM = b"".join(
    [
        HEADER,
        published(1, b"one", exchange="e", routing_key="k", mandatory=True),
        bytes(pamqp.frame.marshal(pamqp.heartbeat.Heartbeat(), 0)),
        bytes(pamqp.frame.marshal(pamqp.commands.Basic.Ack(7, True), 2)),
        published(2, b"", routing_key="q"),
        published(1, bytes(range(256)) * 2, frame_max=108, routing_key="q"),
        bytes(pamqp.frame.marshal(pamqp.commands.Queue.Declare(queue="q", durable=True), 1)),
    ]
)


def one_by_one(events: list[Event]) -> list[Event]:
    """Messages and acknowledgements that came together, as if each had come alone."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, PublishReceived):
            found += [replace(event, bodies=[body]) for body in event.bodies]
        elif isinstance(event, AckReceived):
            found += [replace(event, delivery_tags=[tag]) for tag in event.delivery_tags]
        else:
            found.append(event)
    return found


def events_of(cuts: list[int], stream: bytes = STREAM) -> list[Event]:
    connection = AmqpConnection()
    events: list[Event] = []
    places = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    for first, end in pairwise(places):
        events += connection.receive_data(stream[first:end])
    return events


@given(cuts=st.lists(st.integers(0, 2000), max_size=20))
def test_events_do_not_depend_on_how_the_network_cut_the_bytes(cuts: list[int]) -> None:
    assert events_of(cuts) == events_of([])


BODIES = st.sampled_from([b"", b"a", b"12 bytes are", b"12 bytes too", b"x" * 200])
PUBLICATIONS = st.builds(
    lambda channel, body, key: published(channel, body, routing_key=key),
    st.sampled_from([1, 1, 1, 2]),
    BODIES,
    st.sampled_from(["q", "q", "q", "other"]),
)
ACKS = st.builds(
    lambda channel, tag, is_multiple: bytes(pamqp.frame.marshal(pamqp.commands.Basic.Ack(tag, is_multiple), channel)),
    st.sampled_from([1, 1, 2]),
    st.integers(1, 2**63 - 1),
    st.sampled_from([False, False, True]),
)
HEARTBEATS = st.just(bytes(pamqp.frame.marshal(pamqp.heartbeat.Heartbeat(), 0)))


@given(parts=st.lists(PUBLICATIONS | ACKS | HEARTBEATS, max_size=30), cuts=st.lists(st.integers(0, 9000), max_size=9))
def test_what_comes_together_is_what_comes_byte_by_byte(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join([HEADER, *parts])
    byte_by_byte = events_of(list(range(len(stream))), stream)
    assert one_by_one(events_of(cuts, stream)) == one_by_one(byte_by_byte)
    assert len(one_by_one(byte_by_byte)) == 1 + len(parts)


def test_messages_that_differ_in_their_bodies_alone_are_one_event() -> None:
    connection = opened()
    sent = [published(1, b"%d" % number, routing_key="q") for number in range(20)]
    (event,) = connection.receive_data(b"".join(sent))
    assert isinstance(event, PublishReceived)
    assert event.bodies == [b"%d" % number for number in range(20)]
    (again,) = connection.receive_data(sent[5])
    assert isinstance(again, PublishReceived)
    assert (again.bodies, len(event.bodies)) == ([b"5"], 20)


def test_a_message_that_begins_inside_another_is_refused_also_when_it_looks_like_the_last_one() -> None:
    connection = opened()
    whole = published(1, b"body", routing_key="q")
    method = bytes(pamqp.frame.marshal(pamqp.commands.Basic.Publish(routing_key="q"), 1))
    assert len(connection.receive_data(whole)) == 1
    (erred,) = connection.receive_data(method + whole)
    assert isinstance(erred, PeerErred)
    assert erred.error.code is ReplyCode.UNEXPECTED_FRAME


def test_a_message_like_the_last_one_whose_frame_does_not_end_is_refused() -> None:
    connection = opened()
    whole = published(1, b"body", routing_key="q")
    assert len(connection.receive_data(whole)) == 1
    events = connection.receive_data(whole + whole[:-1] + b"\x00")
    assert [type(event) for event in events] == [PublishReceived, PeerErred]


@given(
    bodies=st.lists(BODIES, min_size=1, max_size=8),
    keys=st.lists(st.sampled_from([b"q", b"other"]), min_size=8, max_size=8),
    is_redelivered=st.booleans(),
)
def test_deliveries_together_are_the_bytes_of_deliveries_one_by_one(
    bodies: list[bytes], keys: list[bytes], is_redelivered: bool
) -> None:
    properties = encode_properties({"message_id": "m"})
    together, alone = AmqpConnection(frame_max=108), AmqpConnection(frame_max=108)
    messages = [(b"e", key, properties, body, 0) for key, body in zip(keys, bodies, strict=False)]
    together.send_deliveries(3, b"\x01c", 7, messages, is_redelivered=is_redelivered)
    for tag, (exchange, key, _, body, _) in enumerate(messages, 7):
        method = encode_method(
            "basic.deliver",
            {
                "consumer_tag": "c",
                "delivery_tag": tag,
                "redelivered": is_redelivered,
                "exchange": exchange.decode(),
                "routing_key": key.decode(),
            },
        )
        alone.send_content(3, method, properties, body)
    assert together.data_to_send() == alone.data_to_send()


def test_events_are_what_was_sent() -> None:
    header, one, heartbeat, ack, empty, parts, declare = events_of([])
    properties = encode_properties({"delivery_mode": 2})
    assert header == ProtocolHeaderReceived()
    assert one == PublishReceived(1, b"e", b"k", True, False, properties, [b"one"])
    assert heartbeat == HeartbeatReceived()
    assert ack == AckReceived(2, [7], True)
    assert isinstance(empty, PublishReceived)
    assert empty.bodies == [b""]
    assert isinstance(parts, PublishReceived)
    assert parts.bodies == [bytes(range(256)) * 2]
    assert isinstance(declare, MethodReceived)
    assert (declare.name, declare.arguments["queue"], declare.arguments["durable"]) == ("queue.declare", "q", True)


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return kind.to_bytes(1, "big") + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + end


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(1, 1, b"\x00\x0a\x00\x0b", end=b"\x00"), ReplyCode.FRAME_ERROR),
        (frame(9, 0, b""), ReplyCode.FRAME_ERROR),
        (b"\x01\x00\x01\xff\xff\xff\xff", ReplyCode.FRAME_ERROR),
        (frame(1, 3000, b"\x00\x14\x00\x0a\x00"), ReplyCode.CHANNEL_ERROR),
        (frame(1, 1, b"\x00\x01"), ReplyCode.FRAME_ERROR),
        (frame(1, 1, b"\x00\x63\x00\x63"), ReplyCode.COMMAND_INVALID),
        (frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\xff"), ReplyCode.FRAME_ERROR),
        (frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\x02\xb4q\x02\x00\x00\x00\x00"), ReplyCode.FRAME_ERROR),
        (frame(3, 1, b"body"), ReplyCode.UNEXPECTED_FRAME),
        (frame(2, 1, b"\x00" * 14), ReplyCode.UNEXPECTED_FRAME),
        (frame(8, 1, b""), ReplyCode.COMMAND_INVALID),
        (frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00") + frame(1, 1, b"\x00\x14\x00\x0a\x00"), 505),
        (
            frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00")
            + frame(2, 1, b"\x00\x3c\x00\x00" + (2).to_bytes(8, "big") + b"\x00\x00")
            + frame(3, 1, b"three"),
            ReplyCode.FRAME_ERROR,
        ),
    ],
)
def test_a_peer_that_breaks_the_rules_gets_the_code_for_it_and_nothing_more_is_read(data: bytes, code: int) -> None:
    connection = opened()
    # A frame that is too large is refused by its head: the rest of it is never waited for.
    (erred,) = connection.receive_data(data + b"\x00" * (8 if len(data) < 8 else 0))
    assert isinstance(erred, PeerErred)
    assert (erred.channel, erred.error.code) == (0, code)
    assert connection.receive_data(STREAM[8:]) == []


def test_another_protocol_is_refused_by_its_first_bytes() -> None:
    for data in (b"GET / HTTP/1.1\r\n", b"AMQP\x01\x01\x00\x0a", b"\x16\x03\x01"):
        (erred,) = AmqpConnection().receive_data(data)
        assert isinstance(erred, PeerErred)


def test_a_message_that_is_too_large_closes_its_channel_and_the_rest_of_it_is_dropped() -> None:
    connection = AmqpConnection(message_bytes_max=100)
    connection.receive_data(HEADER)
    (erred,) = connection.receive_data(published(1, b"x" * 101, routing_key="q"))
    assert isinstance(erred, PeerErred)
    assert (erred.channel, erred.error.code) == (1, ReplyCode.PRECONDITION_FAILED)
    closing, _ = decode_method(connection.data_to_send()[7:-1])
    assert closing == "channel.close"
    assert connection.receive_data(published(1, b"late", routing_key="q")) == []
    assert len(connection.receive_data(published(2, b"other", routing_key="q"))) == 1
    assert len(connection.receive_data(frame(1, 1, b"\x00\x14\x00\x29"))) == 1
    assert len(connection.receive_data(published(1, b"again", routing_key="q"))) == 1


def test_messages_that_have_begun_and_not_ended_have_a_limit_together() -> None:
    connection = AmqpConnection(content_bytes_max=1_000, message_bytes_max=600)
    connection.receive_data(HEADER)
    whole = [published(channel, b"x" * 600, routing_key="q") for channel in (1, 2)]
    begun = [each[: -(600 + 8)] for each in whole]
    assert [type(each) for each in connection.receive_data(whole[0] + whole[1])] == [PublishReceived] * 2
    assert connection.receive_data(begun[0]) == []
    (erred,) = connection.receive_data(begun[1])
    assert isinstance(erred, PeerErred)
    assert erred.error.code is ReplyCode.RESOURCE_ERROR


@given(body=st.binary(max_size=5000), frame_max=st.integers(4096, 9000))
def test_a_delivery_is_read_by_pamqp(body: bytes, frame_max: int) -> None:
    connection = AmqpConnection(frame_max=frame_max)
    method = encode_method(
        "basic.deliver", {"consumer_tag": "c", "delivery_tag": 5, "exchange": "e", "routing_key": "k"}
    )
    connection.send_content(3, method, encode_properties({"message_id": "m"}), body)
    data = connection.data_to_send()
    frames = []
    while data:
        size, channel, read = pamqp.frame.unmarshal(data)
        assert (channel, size <= frame_max) == (3, True)
        frames.append(read)
        data = data[size:]
    assert frames[0].delivery_tag == 5
    assert frames[1].properties.message_id == "m"
    assert b"".join(each.value for each in frames[2:]) == body


def test_messages_that_differ_in_their_properties_alone_keep_them() -> None:
    connection = opened()
    frames = b""
    for name in ("one", "two", "two"):
        properties = pamqp.commands.Basic.Properties(message_id=name)
        header = pamqp.header.ContentHeader(body_size=1, properties=properties)
        parts = [pamqp.commands.Basic.Publish(routing_key="q"), header, pamqp.body.ContentBody(b"x")]
        frames += b"".join(bytes(pamqp.frame.marshal(part, 1)) for part in parts)
    events = [event for event in connection.receive_data(frames) if isinstance(event, PublishReceived)]
    found = [(decode_properties(event.properties)["message_id"], len(event.bodies)) for event in events]
    assert found == [("one", 1), ("two", 2)]


def test_a_body_that_looks_like_the_end_of_a_shorter_one_is_read_as_a_whole() -> None:
    connection = opened()
    bodies = [b"x", b"yyy", b"a\xceb", b"a\xceb"]
    events = connection.receive_data(b"".join(published(1, body, routing_key="q") for body in bodies))
    assert [body for event in events if isinstance(event, PublishReceived) for body in event.bodies] == bodies
