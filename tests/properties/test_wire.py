"""Properties of the wire: what is written is read again, and how the network cut the bytes does not matter."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.wire.kafka.apis import APIS, Api
from headrace.wire.kafka.codec import MalformedMessage, read_in_steps, read_message, write_message
from headrace.wire.kafka.connection import Connection, Event, Limits, PeerErred, RequestReceived
from tests.unit.wire.strategies import MESSAGES, instances, versioned_messages

RELAXED = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def encoded(message: object, version: int) -> bytes:
    return b"".join(bytes(chunk) for chunk in write_message(message, version))


def read_with_steps(cls: type, version: int, raw: bytes | bytearray) -> tuple[Any, int]:
    steps = read_in_steps(cls, version, raw)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            read: tuple[Any, int] = done.value
            return read


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_what_is_written_in_a_version_is_read_again_in_it(cls: type) -> None:
    @RELAXED
    @given(versioned_messages(cls))
    def check(case: tuple[Any, int]) -> None:
        message, version = case
        raw = encoded(message, version)
        again, position = read_message(cls, version, raw)
        assert again == message
        assert position == len(raw)
        assert read_with_steps(cls, version, raw) == (message, len(raw))

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_message_cut_short_anywhere_is_malformed_and_never_something_else(cls: type) -> None:
    @settings(RELAXED, max_examples=8)
    @given(versioned_messages(cls), st.data())
    def check(case: tuple[Any, int], data: st.DataObject) -> None:
        message, version = case
        raw = encoded(message, version)
        if not raw:
            return
        cut = data.draw(st.integers(0, len(raw) - 1))
        with pytest.raises(MalformedMessage):
            read_message(cls, version, raw[:cut])
        with pytest.raises(MalformedMessage):
            read_with_steps(cls, version, raw[:cut])

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_message_with_bytes_changed_is_read_or_malformed_and_nothing_else(cls: type) -> None:
    @settings(RELAXED, max_examples=15)
    @given(
        versioned_messages(cls), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)
    )
    def check(case: tuple[Any, int], changes: list[tuple[float, int]]) -> None:
        message, version = case
        raw = bytearray(encoded(message, version))
        for where, byte in changes:
            if raw:
                raw[int(where * len(raw))] = byte
        assert outcome(read_message, cls, version, raw) == outcome(read_with_steps, cls, version, raw)

    def outcome(read: Any, cls: type, version: int, raw: bytearray) -> object:
        try:
            return encoded(read(cls, version, raw)[0], version)
        except MalformedMessage as error:
            return error.message

    check()


# ---- connections ----------------------------------------------------------------------------------------------------

SMALL = Limits(produce_bytes_max=4096, other_bytes_max=2048)


def frame(api: Api, version: int, body: bytes, correlation_id: int, client_id: str | None) -> bytes:
    raw_id = None if client_id is None else client_id.encode()
    header = struct.pack(">hhih", api.key, version, correlation_id, -1 if raw_id is None else len(raw_id)) + (
        raw_id or b""
    )
    if api.request_header_version(version) == 2:
        header += b"\x00"
    return struct.pack(">i", len(header) + len(body)) + header + body


@st.composite
def request_frames(draw: st.DrawFn) -> bytes:
    api = draw(st.sampled_from(sorted(APIS.values(), key=lambda api: api.key)))
    version = draw(st.integers(api.version_min, api.version_max))
    body = encoded(draw(instances(api.request, version)), version)
    client_id = draw(st.none() | st.text(max_size=8))
    return frame(api, version, body, draw(st.integers(-(2**31), 2**31 - 1)), client_id)


def odd_frames() -> st.SearchStrategy[bytes]:
    """Frames that a connection has to refuse, or to answer in its own way."""
    sized = st.binary(max_size=40).map(lambda raw: struct.pack(">i", len(raw)) + raw)
    lying = st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=20)).map(
        lambda pair: struct.pack(">i", pair[0]) + pair[1]
    )
    future_versions = st.integers(5, 2**15 - 1).map(lambda version: struct.pack(">ihhih", 10, 18, version, 7, -1))
    return sized | lying | future_versions


def comparable(events: list[Event]) -> list[object]:
    """A record field is a view into its frame: compare what it shows."""
    return [repr_of(event) for event in events]


def repr_of(event: Event) -> object:
    if isinstance(event, RequestReceived):
        return (event.reply_to, event.client_id, encoded(event.body, event.reply_to.version), event.size)
    return event


@settings(RELAXED, max_examples=200)
@given(st.lists(request_frames() | odd_frames(), min_size=1, max_size=6), st.data())
def test_the_events_do_not_depend_on_how_the_network_cut_the_bytes(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    whole = Connection(SMALL).receive_data(stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    connection = Connection(SMALL)
    cut = [event for piece in pieces for event in connection.receive_data(piece)]
    assert comparable(cut) == comparable(whole)


@settings(RELAXED, max_examples=50)
@given(st.lists(request_frames() | odd_frames(), min_size=1, max_size=3))
def test_the_events_are_the_same_byte_by_byte(frames: list[bytes]) -> None:
    stream = b"".join(frames)
    whole = Connection(SMALL).receive_data(stream)
    connection = Connection(SMALL)
    single = [
        event for position in range(len(stream)) for event in connection.receive_data(stream[position : position + 1])
    ]
    assert comparable(single) == comparable(whole)


@settings(RELAXED, max_examples=300)
@given(st.binary(max_size=400))
def test_no_bytes_make_a_connection_raise_or_hold_more_than_it_was_sent(raw: bytes) -> None:
    connection = Connection(SMALL)
    events = connection.receive_data(raw)
    assert connection.held_bytes <= len(raw)
    if any(isinstance(event, PeerErred) for event in events):
        assert isinstance(events[-1], PeerErred)
        assert connection.receive_data(raw) == []
