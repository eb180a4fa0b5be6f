"""The connection without sockets: frames, refusals, answers."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.errors import ErrorCode
from headrace.wire.kafka.apis import APIS, support_matrix
from headrace.wire.kafka.codec import (
    ELEMENTS_PER_STEP,
    MalformedMessage,
    UnwritableMessage,
    read_message,
    uvarint,
    write_element,
    write_message,
)
from headrace.wire.kafka.connection import (
    DECODED_AT_ONCE_MAX,
    Connection,
    Event,
    Limits,
    LongRequestReceived,
    PeerErred,
    ReplyTo,
    RequestReceived,
    UnsupportedVersion,
)
from headrace.wire.kafka.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.wire.kafka.messages.groups import HeartbeatRequest, HeartbeatResponse, ListedGroup, ListGroupsResponse
from headrace.wire.kafka.messages.metadata import ApiVersionsResponse
from headrace.wire.kafka.messages.produce import (
    NodeEndpoint,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

LIMITS = Limits(produce_bytes_max=1 << 20, other_bytes_max=4096)


def request_bytes(message: object, api_key: int, version: int, *, tags: bytes = b"", correlation_id: int = 7) -> bytes:
    header = struct.pack(">hhih", api_key, version, correlation_id, 2) + b"me" + tags
    raw = header + b"".join(write_message(message, version))
    return struct.pack(">i", len(raw)) + raw


def heartbeat(version: int = 3) -> bytes:
    message = HeartbeatRequest(group_id="g", generation_id=4, member_id="m")
    return request_bytes(message, 12, version, tags=b"\x00" if version >= 4 else b"")


def the_only(events: list[Event]) -> Event:
    assert len(events) == 1, events
    return events[0]


def refusal(raw: bytes) -> str:
    event = the_only(Connection(LIMITS).receive_data(raw))
    assert isinstance(event, PeerErred), event
    return event.reason


def test_a_whole_frame_becomes_a_request_with_its_header() -> None:
    event = the_only(Connection(LIMITS).receive_data(heartbeat()))
    assert event == RequestReceived(
        reply_to=ReplyTo(api_key=12, version=3, correlation_id=7),
        client_id="me",
        body=HeartbeatRequest(group_id="g", generation_id=4, member_id="m"),
        size=len(heartbeat()) - 4,
    )


def test_a_flexible_request_has_tagged_fields_in_its_header_and_unknown_ones_are_skipped() -> None:
    message = HeartbeatRequest(group_id="g", generation_id=4, member_id="m")
    raw = request_bytes(message, 12, 4, tags=b"\x02\x05\x03abc\x07\x00")
    event = the_only(Connection(LIMITS).receive_data(raw))
    assert isinstance(event, RequestReceived)
    assert event.body == message


def test_several_frames_in_one_read_become_several_requests_and_a_rest_is_kept() -> None:
    connection = Connection(LIMITS)
    raw = heartbeat() * 3 + heartbeat()[:9]
    assert len(connection.receive_data(raw)) == 3
    assert connection.held_bytes == 5
    assert len(connection.receive_data(heartbeat()[9:])) == 1
    assert connection.held_bytes == 0


def test_bytes_behind_a_body_are_let_pass_as_kafka_does() -> None:
    raw = bytearray(heartbeat() + b"\x01\x00\x00")
    raw[:4] = struct.pack(">i", len(raw) - 4)
    assert isinstance(the_only(Connection(LIMITS).receive_data(raw)), RequestReceived)


def test_the_records_of_a_frame_outlive_the_read() -> None:
    partition = PartitionProduceData(index=0, records=b"r" * 61)
    produce = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])
    raw = request_bytes(produce, 0, 8)
    read = bytearray(raw * 2)
    first, second = Connection(LIMITS).receive_data(read)
    read[:] = bytes(len(read))
    assert isinstance(first, RequestReceived)
    assert isinstance(second, RequestReceived)
    assert bytes(first.body.topic_data[0].partition_data[0].records) == b"r" * 61
    assert bytes(second.body.topic_data[0].partition_data[0].records) == b"r" * 61


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, (1 << 20) + 1, 2**31 - 1])
def test_a_frame_size_that_cannot_be_is_refused_when_its_four_bytes_are_here(size: int) -> None:
    assert refusal(struct.pack(">i", size)) == f"a frame of {size} bytes"


def test_only_produce_may_be_as_large_as_the_largest_frame() -> None:
    assert "the limit is 4096" in refusal(struct.pack(">ihhi", 5000, 3, 1, 1))
    assert Connection(LIMITS).receive_data(struct.pack(">ihhi", 5000, 0, 9, 1)) == []


@pytest.mark.parametrize("api_key", [4, 27, 93, 999, -1])
def test_an_api_that_is_not_offered_is_refused_when_its_first_bytes_are_here(api_key: int) -> None:
    assert refusal(struct.pack(">ihhi", 4000, api_key, 0, 1)).startswith(f"unknown API {api_key}")


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 14), (3, 14), (3, -1), (12, 5), (24, 6)])
def test_a_version_that_is_not_spoken_is_refused(api_key: int, version: int) -> None:
    assert f"version {version} is outside" in refusal(struct.pack(">ihhi", 100, api_key, version, 1))


@pytest.mark.parametrize("version", [5, 99, 2**15 - 1, -1])
def test_api_versions_in_an_unknown_version_is_answered_as_version_0_with_the_code(version: int) -> None:
    connection = Connection(LIMITS)
    event = the_only(connection.receive_data(struct.pack(">ihhi", 30, 18, version, 11) + b"whatever its body is.."))
    assert event == UnsupportedVersion(version=version, correlation_id=11, size=30)
    assert isinstance(event, UnsupportedVersion)
    raw = b"".join(connection.send_unsupported(event))
    assert struct.unpack_from(">ii", raw) == (len(raw) - 4, 11)
    answer, _ = read_message(ApiVersionsResponse, 0, raw, 8)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [(18, 0, 4)]


MALFORMED = {
    "a client id beyond the frame": struct.pack(">hhih", 12, 3, 1, 500) + b"me",
    "a client id of negative length": struct.pack(">hhih", 12, 3, 1, -2) + b"me",
    "a client id that is not UTF-8": struct.pack(">hhih", 12, 3, 1, 2) + b"\xff\xfe",
    "no client id at all": struct.pack(">hhi", 12, 3, 1),
    "header tags without end": struct.pack(">hhih", 12, 4, 1, -1) + b"\xff\xff\xff\xff\x0f",
    "a header tag beyond the frame": struct.pack(">hhih", 12, 4, 1, -1) + b"\x01\x00\xff\x7f",
    "a header varint without end": struct.pack(">hhih", 12, 4, 1, -1) + b"\xff" * 9,
    "a body cut short": heartbeat()[4:-3],
    "a string of negative length": struct.pack(">hhihh", 12, 0, 1, -1, -5),
    "an array that does not fit": struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1),
    "a null array where none may be": struct.pack(">hhihi", 15, 0, 1, -1, -1),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused(raw: bytes) -> None:
    assert " version " in refusal(struct.pack(">i", len(raw)) + raw)


def test_a_request_with_too_many_array_elements_is_refused_however_they_are_nested() -> None:
    partition = PartitionProduceData()
    topics = [TopicProduceData(name="t", partition_data=[partition] * 9) for _ in range(10)]
    raw = request_bytes(ProduceRequest(topic_data=topics), 0, 8)
    assert isinstance(the_only(Connection(Limits(elements_max=100)).receive_data(raw)), RequestReceived)
    event = the_only(Connection(Limits(elements_max=99)).receive_data(raw))
    assert isinstance(event, PeerErred)
    assert "array elements" in event.reason


def api_versions(tags: bytes) -> bytes:
    raw = struct.pack(">hhih", 18, 3, 7, -1) + b"\x00" + b"\x02a\x02b" + tags
    return struct.pack(">i", len(raw)) + raw


def test_tagged_fields_of_a_body_count_as_elements() -> None:
    raw = api_versions(uvarint(100) + b"\x7f\x00" * 100)
    assert isinstance(the_only(Connection(Limits(elements_max=100)).receive_data(raw)), RequestReceived)
    event = the_only(Connection(Limits(elements_max=99)).receive_data(raw))
    assert isinstance(event, PeerErred)
    assert "more than 99 array elements and tagged fields" in event.reason


def test_a_count_of_tagged_fields_is_refused_before_the_first_is_read() -> None:
    """Half a million of them fit into 1 MB and would take 0.14 s to step over."""
    raw = api_versions(uvarint(500_000) + b"\xff" * 20)
    event = the_only(Connection(Limits(elements_max=20_000)).receive_data(raw))
    assert isinstance(event, PeerErred)
    assert "more than 20000" in event.reason


def test_what_a_tagged_field_holds_counts_with_the_rest_of_its_message() -> None:
    endpoint = NodeEndpoint(node_id=1, host="h", port=1)
    raw = b"".join(write_message(ProduceResponse(node_endpoints=[endpoint] * 50), 10))
    assert read_message(ProduceResponse, 10, raw, elements_max=51)[0].node_endpoints == [endpoint] * 50
    with pytest.raises(MalformedMessage, match="more than 50 array elements"):
        read_message(ProduceResponse, 10, raw, elements_max=50)


def test_a_string_too_long_for_its_version_is_an_unwritable_message() -> None:
    answer = ListGroupsResponse(groups=[ListedGroup(group_id="g" * 32_768)])
    assert sum(map(len, write_message(answer, 3))) > 32_768
    with pytest.raises(UnwritableMessage, match="a string of 32768 bytes"):
        write_message(answer, 2)


def test_after_a_refusal_nothing_is_read_any_more() -> None:
    connection = Connection(LIMITS)
    events = connection.receive_data(heartbeat() + struct.pack(">i", -5) + heartbeat())
    assert [type(event) for event in events] == [RequestReceived, PeerErred]
    assert connection.receive_data(heartbeat()) == []


def test_a_claimed_size_allocates_nothing_until_the_bytes_arrive() -> None:
    connection = Connection(Limits())
    tracemalloc.start()
    try:
        connection.receive_data(struct.pack(">ihhi", 100 << 20, 0, 9, 1) + bytes(1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10


def test_a_large_frame_in_pieces_is_copied_once_and_not_once_per_piece() -> None:
    """Were each piece to copy what came before it, this would move 25 GB and not 64 MB."""
    size = 64 << 20
    connection = Connection(Limits())
    connection.receive_data(struct.pack(">ihhi", size, 0, 9, 1))
    piece = bytes(64 << 10)
    tracemalloc.start()
    try:
        for _ in range(800):
            connection.receive_data(piece)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert connection.held_bytes == 8 + 800 * len(piece)
    assert peak < connection.held_bytes * 1.2 + (1 << 20), (held, peak)


# ---- answers --------------------------------------------------------------------------------------------------------


def test_an_answer_has_its_size_the_correlation_id_and_tags_only_where_the_version_is_flexible() -> None:
    connection = Connection()
    answer = HeartbeatResponse(error_code=27)
    assert b"".join(connection.send(answer, ReplyTo(12, 3, 5))) == struct.pack(">iiih", 10, 5, 0, 27)
    assert b"".join(connection.send(answer, ReplyTo(12, 4, 5))) == struct.pack(">iiBihB", 12, 5, 0, 0, 27, 0)


def test_api_versions_answers_with_the_oldest_header_in_every_version() -> None:
    raw = b"".join(Connection().send(ApiVersionsResponse(), ReplyTo(18, 3, 5)))
    answer, position = read_message(ApiVersionsResponse, 3, raw, 8)
    assert answer == ApiVersionsResponse()
    assert position == len(raw)


@dataclass
class SliceOfAFile:
    size: int

    def __len__(self) -> int:
        return self.size


def test_a_file_slice_passes_through_between_two_pieces_of_bytes_and_counts_in_the_size() -> None:
    first, second = SliceOfAFile(1000), SliceOfAFile(500)
    partitions = [
        PartitionData(partition_index=0, records=[first, second]),
        PartitionData(partition_index=1, records=b"xy"),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    chunks = Connection().send(response, ReplyTo(1, 11, 5))
    assert [type(chunk) for chunk in chunks] == [bytes, SliceOfAFile, SliceOfAFile, bytes]
    assert struct.unpack_from(">i", chunks[0])[0] == sum(map(len, chunks)) - 4
    filled = b"".join(chunk if isinstance(chunk, bytes) else bytes(len(chunk)) for chunk in chunks)
    read, _ = read_message(FetchResponse, 11, filled, 8)
    assert [len(each.records) for each in read.responses[0].partitions] == [1500, 2]


def listed(ids: list[str]) -> ListGroupsResponse:
    return ListGroupsResponse(groups=[ListedGroup(group_id=each) for each in ids])


def test_an_answer_larger_than_answers_may_be_is_unwritable_however_it_came_about() -> None:
    connection = Connection(Limits(answer_bytes_max=1000))
    assert connection.send(listed(["g" * 900]), ReplyTo(16, 4, 5))
    with pytest.raises(UnwritableMessage, match=r"response\.bytes\.max is 1000"):
        connection.send(listed(["g" * 900, "h" * 900]), ReplyTo(16, 4, 5))


def test_records_do_not_count_against_the_size_of_answers_until_the_frame_cannot_hold_them() -> None:
    connection = Connection(Limits(answer_bytes_max=1000))

    def fetched(size: int) -> FetchResponse:
        partitions = [PartitionData(partition_index=0, records=SliceOfAFile(size))]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])

    assert connection.send(fetched(1 << 30), ReplyTo(1, 11, 5))
    with pytest.raises(UnwritableMessage):
        connection.send(fetched(1 << 31), ReplyTo(1, 11, 5))


def test_an_answer_of_ordinary_size_is_one_piece() -> None:
    groups = [ListedGroup(group_id="g" * 100) for _ in range(3000)]
    chunks = Connection().send(ListGroupsResponse(groups=groups), ReplyTo(16, 4, 5))
    assert [type(chunk) for chunk in chunks] == [bytes]
    assert len(chunks[0]) > 300_000


def test_a_piece_that_is_repeated_in_a_large_answer_is_not_copied() -> None:
    piece = write_element(ListedGroup(group_id="g" * 500), ListGroupsResponse, 4)
    chunks = Connection().send(ListGroupsResponse(groups=[piece] * 10_000), ReplyTo(16, 4, 5))
    assert sum(chunk is piece for chunk in chunks) == 10_000
    assert struct.unpack_from(">i", chunks[0])[0] == sum(map(len, chunks)) - 4


def test_an_answer_of_the_wrong_kind_is_our_mistake_and_not_sent() -> None:
    with pytest.raises(AssertionError, match="does not answer Heartbeat"):
        Connection().send(ApiVersionsResponse(), ReplyTo(12, 3, 5))


# ---- the table ------------------------------------------------------------------------------------------------------


def test_produce_is_advertised_from_0_and_accepted_from_3() -> None:
    assert APIS[0].version_min_advertised == 0
    assert not APIS[0].accepts(2)
    assert APIS[0].accepts(3)
    assert {api.version_min - api.version_min_advertised for key, api in APIS.items() if key != 0} == {0}


def test_requests_that_only_brokers_send_are_not_offered() -> None:
    between_brokers = {4, 5, 6, 7, 27, 56, 58, 67}
    assert between_brokers & set(APIS) == set()


def test_the_support_matrix_in_the_documentation_is_what_the_code_prints() -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "support-matrix.md"
    assert document.read_text() == support_matrix(), "run: python -m headrace.wire.kafka.apis > docs/support-matrix.md"


# ---- long requests --------------------------------------------------------------------------------------------------


def long_request(events: list[Event]) -> LongRequestReceived:
    event = the_only(events)
    assert isinstance(event, LongRequestReceived)
    return event


def test_a_request_of_many_elements_is_decoded_in_short_steps_however_they_are_nested() -> None:
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=n) for n in range(9)])] * 500
    message = ProduceRequest(topic_data=topics)
    event = long_request(Connection(LIMITS).receive_data(request_bytes(message, 0, 8)))
    steps = []
    while True:
        try:
            steps.append(next(event.decoding))
        except StopIteration as done:
            body = done.value
            break
    assert body == message
    assert max(steps) == ELEMENTS_PER_STEP
    assert sum(steps) > 5_000 - ELEMENTS_PER_STEP


def test_a_request_of_few_elements_is_decoded_at_once() -> None:
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData()])] * (DECODED_AT_ONCE_MAX // 2)
    raw = request_bytes(ProduceRequest(topic_data=topics), 0, 8)
    assert isinstance(the_only(Connection(LIMITS).receive_data(raw)), RequestReceived)
    raw = request_bytes(ProduceRequest(topic_data=[*topics, TopicProduceData(name="t")]), 0, 8)
    long_request(Connection(LIMITS).receive_data(raw))


def test_a_long_request_is_refused_in_its_steps_where_it_is_malformed_or_has_too_many_elements() -> None:
    topics = [TopicProduceData(name="t", partition_data=[PartitionProduceData()] * 9)] * 200
    raw = request_bytes(ProduceRequest(topic_data=topics), 0, 8)
    for damaged, limit, reason in ((raw, 1_999, "more than 1999 array elements"), (raw[:-1], 20_000, "at byte")):
        sized = struct.pack(">i", len(damaged) - 4) + damaged[4:]
        event = long_request(Connection(Limits(elements_max=limit)).receive_data(sized))
        with pytest.raises(MalformedMessage, match=reason):
            for _ in event.decoding:
                pass
