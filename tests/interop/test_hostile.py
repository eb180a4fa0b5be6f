"""Strangers on the wire, against a real broker in a separate process.

Whatever they send, three things hold: they get the right error or a closed connection, the broker's memory stays inside
a bound, and a well-behaved client beside them is served. A socket that gets neither an answer nor an end within
``PATIENCE_S`` fails the test.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import testing
from headrace.batch import build_batch
from headrace.errors import ErrorCode
from headrace.record import Record
from headrace.testing import ChildBroker
from headrace.wire.kafka.apis import APIS, Api
from headrace.wire.kafka.codec import read_message, uvarint, write_message
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.kafka.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.kafka.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.unit.wire.strategies import instances
from tests.waiting import PATIENCE_S

MIB = 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[ChildBroker]:
    with testing.broker(in_process=False, settings={"connection.handshake.ms": 60_000}) as started:
        yield started
        assert "Traceback" not in started.errors(), started.errors()


def rss_bytes(broker: ChildBroker) -> int:
    rss: int = psutil.Process(broker.pid).memory_info().rss
    return rss


@contextmanager
def memory_within(broker: ChildBroker, growth_bytes: int) -> Iterator[None]:
    """The broker may not grow by more while the block runs, looked at all the time and not only at its end."""
    before = peak = rss_bytes(broker)
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, rss_bytes(broker))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    assert peak - before <= growth_bytes, f"grew from {before >> 20} to {peak >> 20} MiB"


# ---- a client that speaks frames ------------------------------------------------------------------------------------


class BrokerClosed(AssertionError):
    """It hung up where an answer was due."""


class Wire:
    def __init__(self, broker: ChildBroker) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, raw: bytes) -> None:
        """All of it, or as much as the broker takes before it closes."""
        try:
            self.socket.sendall(raw)
        except (ConnectionResetError, BrokenPipeError):
            pass

    def exactly(self, size: int) -> bytes | None:
        raw = bytearray()
        while len(raw) < size:
            try:
                piece = self.socket.recv(size - len(raw))
            except ConnectionResetError:
                return None
            if not piece:
                return None
            raw += piece
        return bytes(raw)

    def answer(self) -> bytes | None:
        """The next answer without its size, or None if the broker closed instead."""
        size = self.exactly(4)
        return None if size is None else self.exactly(struct.unpack(">i", size)[0])

    def is_closed(self) -> bool:
        return self.exactly(1) is None

    def call(self, message: object, response: type[Any], version: int) -> Any:
        self.send(request(message, version))
        raw = self.answer()
        if raw is None:
            raise BrokerClosed("the broker closed the connection")
        api = api_of(type(message))
        return read_message(response, version, raw, 4 + api.response_header_version(version))[0]


def api_of(cls: type) -> Api:
    return next(api for api in APIS.values() if api.request is cls)


def framed(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


def header(api_key: int, version: int, *, tags: bytes = b"") -> bytes:
    return struct.pack(">hhih", api_key, version, 77, -1) + tags


def request(message: object, version: int) -> bytes:
    api = api_of(type(message))
    tags = b"\x00" if api.request_header_version(version) == 2 else b""
    return framed(
        header(api.key, version, tags=tags) + b"".join(bytes(each) for each in write_message(message, version))
    )


class Neighbour:
    """A well-behaved client with one connection: it writes a record and reads it back."""

    def __init__(self, broker: ChildBroker) -> None:
        self.wire = Wire(broker)
        self.offset = 0
        self.topic = f"neighbour-{random.getrandbits(40)}"
        topic = CreatableTopic(name=self.topic, num_partitions=1, replication_factor=1)
        try:
            created = self.wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), CreateTopicsResponse, 4)
            assert created.topics[0].error_code == 0
        except BaseException:
            self.wire.socket.close()
            raise

    def is_served(self) -> None:
        value = b"value-%d" % self.offset
        produced = self.wire.call(produce(self.topic, a_batch(value)), ProduceResponse, 8)
        partition = produced.responses[0].partition_responses[0]
        assert (partition.error_code, partition.base_offset) == (0, self.offset)
        fetched = self.wire.call(fetch(self.topic, self.offset), FetchResponse, 11)
        assert value in bytes(fetched.responses[0].partitions[0].records)
        self.offset += 1


@pytest.fixture
def neighbour(broker: ChildBroker) -> Iterator[Neighbour]:
    made = Neighbour(broker)
    with made.wire:
        made.is_served()
        yield made
        made.is_served()


def a_batch(value: bytes, count: int = 1) -> bytes:
    records = [Record(offset=n, timestamp=0, key=None, value=value, headers=()) for n in range(count)]
    return bytes(build_batch(records).data)


def produce(topic: str, records: bytes) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=records)
    return ProduceRequest(
        acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
    )


def fetch(topic: str, offset: int, bytes_max: int = MIB) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    topics = [FetchTopic(topic=topic, partitions=[partition])]
    return FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=bytes_max, topics=topics)


# ---- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2**31 - 1, 100 * MIB + 1, -1, -(2**31), 0, 7])
def test_a_frame_of_an_impossible_size_closes_the_connection(
    broker: ChildBroker, neighbour: Neighbour, size: int
) -> None:
    with memory_within(broker, 8 * MIB), Wire(broker) as wire:
        wire.send(struct.pack(">i", size))
        assert wire.is_closed()


def test_claims_of_large_requests_cost_nothing_until_the_bytes_come(broker: ChildBroker, neighbour: Neighbour) -> None:
    with memory_within(broker, 16 * MIB), ExitStack() as stack:
        for _ in range(100):
            wire = stack.enter_context(Wire(broker))
            wire.send(struct.pack(">i", 100 * MIB) + header(0, 9) + bytes(100))
        neighbour.is_served()


def test_large_requests_that_stop_half_way_hold_a_bounded_amount_of_memory(
    broker: ChildBroker, neighbour: Neighbour
) -> None:
    """Twelve times 20 MiB are offered; queued.max.request.bytes (64 MiB) and a frame more are taken."""
    with memory_within(broker, 130 * MIB), ExitStack() as stack:
        for _ in range(12):
            wire = stack.enter_context(Wire(broker))
            wire.socket.settimeout(0.3)
            try:
                wire.send(struct.pack(">i", 100 * MIB) + header(0, 9) + bytes(20 * MIB))
            except TimeoutError:
                pass  # the broker has stopped reading it
        neighbour.is_served()


def test_a_request_that_is_not_produce_may_not_be_as_large(broker: ChildBroker, neighbour: Neighbour) -> None:
    with memory_within(broker, 8 * MIB), Wire(broker) as wire:
        wire.send(struct.pack(">i", 17 * MIB) + header(3, 1))
        assert wire.is_closed()


# ---- what is in the frames ------------------------------------------------------------------------------------------


def test_unknown_apis_and_versions_close_the_connection(broker: ChildBroker, neighbour: Neighbour) -> None:
    unknown = [(key, 0) for key in (-1, 4, 5, 6, 7, 27, 58, 99, 32767) if key not in APIS]
    versions = [
        (api.key, version) for api in APIS.values() for version in (-1, api.version_max + 1, 32767) if api.key != 18
    ]
    for api_key, version in unknown + versions:
        with Wire(broker) as wire:
            wire.send(framed(header(api_key, version) + bytes(40)))
            assert wire.is_closed(), (api_key, version)


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_an_unknown_version_of_api_versions_is_told_what_is_spoken(broker: ChildBroker, version: int) -> None:
    with Wire(broker) as wire:
        wire.send(framed(header(18, version) + b"\x07whatever"))
        raw = wire.answer()
        assert raw is not None
        answer, _ = read_message(ApiVersionsResponse, 0, raw, 4)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, 4)]
        assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 2).error_code == 0, "and the connection lives on"


COUNTS = {
    "metadata topics": framed(header(3, 1) + struct.pack(">i", 2**31 - 1)),
    "metadata topics, compact": framed(header(3, 12, tags=b"\x00") + uvarint(2**31)),
    "a varint of ten bytes": framed(header(3, 12, tags=b"\x00") + b"\xff" * 10),
    "groups to describe": framed(header(15, 0) + struct.pack(">i", 10**9)),
    "a negative count": framed(header(15, 0) + struct.pack(">i", -7)),
    "fetch topics": framed(header(1, 4) + struct.pack(">iiiibi", -1, 1, 1, 1, 0, 2**30)),
    "elements of one byte each": framed(header(15, 5, tags=b"\x00") + uvarint(4 * MIB) + b"\x01" * (4 * MIB)),
    "a string longer than the frame": framed(header(12, 0) + struct.pack(">h", 32767) + b"x"),
    "a header with too many tags": framed(header(18, 3, tags=uvarint(2**31 - 1))),
    "a header tag longer than the frame": framed(header(18, 3, tags=b"\x01\x00" + uvarint(2**31 - 1))),
    "a body tag longer than the frame": framed(
        header(18, 3, tags=b"\x00") + b"\x02a\x02b\x01\x00" + uvarint(2**31 - 1)
    ),
}


@pytest.mark.parametrize("raw", COUNTS.values(), ids=COUNTS)
def test_a_count_or_length_that_does_not_fit_closes_the_connection(
    broker: ChildBroker, neighbour: Neighbour, raw: bytes
) -> None:
    with memory_within(broker, 32 * MIB), Wire(broker) as wire:
        wire.send(raw)
        assert wire.is_closed()


def test_a_body_with_ever_so_many_unknown_tags_is_answered_or_refused(
    broker: ChildBroker, neighbour: Neighbour
) -> None:
    count = 100_000
    tags = uvarint(count) + b"".join(uvarint(tag + 100) + b"\x00" for tag in range(count))
    with memory_within(broker, 16 * MIB), Wire(broker) as wire:
        wire.send(framed(header(18, 3, tags=b"\x00") + b"\x02a\x02b" + tags))
        wire.answer()


def test_a_batch_with_a_wrong_checksum_is_refused_with_the_code_for_it(neighbour: Neighbour) -> None:
    raw = bytearray(a_batch(b"x" * 50))
    raw[-1] ^= 1
    answer = neighbour.wire.call(produce(neighbour.topic, bytes(raw)), ProduceResponse, 8)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE


def chosen_seed() -> int:
    """The same in every run; HEADRACE_EXPLORE=1 looks where nobody has looked yet."""
    return random.randrange(2**32) if os.environ.get("HEADRACE_EXPLORE") == "1" else 20_260_101


def valid_requests() -> list[bytes]:
    """The plainest request of every API in its oldest and newest version."""
    return [request(api.request(), version) for api in APIS.values() for version in {api.version_min, api.version_max}]


def answered_or_closed(wire: Wire, raw: bytes) -> None:
    """Half a frame has no answer, so the sending side is closed behind it."""
    wire.send(raw)
    try:
        wire.socket.shutdown(socket.SHUT_WR)
    except OSError:
        return  # closed already
    while wire.answer() is not None:
        pass


def test_frames_with_some_bytes_changed_are_answered_or_refused(broker: ChildBroker, neighbour: Neighbour) -> None:
    seed = chosen_seed()
    dice = random.Random(seed)
    corpus = [
        *valid_requests(),
        request(produce("mutated", a_batch(b"value", 10)), 8),
        request(fetch("mutated", 0), 11),
    ]
    print(f"seed {seed}")
    with memory_within(broker, 64 * MIB):
        for number in range(600):
            raw = bytearray(dice.choice(corpus))
            for _ in range(dice.randint(1, 4)):
                raw[dice.randrange(4, len(raw))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
            with Wire(broker) as wire:
                answered_or_closed(wire, bytes(raw))
            if number % 100 == 0:
                neighbour.is_served()


def test_requests_that_are_well_formed_and_senseless_are_answered_or_refused(
    broker: ChildBroker, neighbour: Neighbour
) -> None:
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(APIS.values(), key=lambda api: api.key)).flatmap(requests_of))
    def check(raw: bytes) -> None:
        with Wire(broker) as wire:
            answered_or_closed(wire, raw)

    with memory_within(broker, 64 * MIB):
        check()


def requests_of(api: Api) -> st.SearchStrategy[bytes]:
    versions = st.integers(api.version_min, api.version_max)
    return versions.flatmap(
        lambda version: instances(api.request, version).map(lambda message: request(message, version))
    )


def test_frames_cut_short_leave_nothing_behind(broker: ChildBroker, neighbour: Neighbour) -> None:
    with memory_within(broker, 16 * MIB):
        for raw in valid_requests():
            for cut in {1, 4, 9, len(raw) // 2, len(raw) - 1}:
                with Wire(broker) as wire:
                    answered_or_closed(wire, raw[:cut])


def test_random_bytes_close_the_connection(broker: ChildBroker, neighbour: Neighbour) -> None:
    seed = chosen_seed()
    dice = random.Random(seed)
    print(f"seed {seed}")
    with memory_within(broker, 16 * MIB):
        for _ in range(200):
            with Wire(broker) as wire:
                answered_or_closed(wire, dice.randbytes(dice.choice([1, 4, 5, 40, 4000, 70_000])))


# ---- time -----------------------------------------------------------------------------------------------------------


def test_connections_that_send_no_whole_request_are_dropped() -> None:
    with testing.broker(in_process=False, settings={"connection.handshake.ms": 2_000}) as hasty:
        neighbour = patient_neighbour(hasty)
        with neighbour.wire, ExitStack() as stack:
            wires = [stack.enter_context(Wire(hasty)) for _ in range(50)]
            for wire in wires[::2]:
                wire.send(b"\x00\x00")
            assert all(wire.is_closed() for wire in wires)
            neighbour.is_served()


def patient_neighbour(hasty: ChildBroker) -> Neighbour:
    """One that made its first request in time; on a busy machine that may take more than one attempt."""
    while True:
        try:
            return Neighbour(hasty)
        except BrokerClosed:
            continue


def test_a_request_that_comes_byte_by_byte_is_answered(broker: ChildBroker) -> None:
    with Wire(broker) as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw = request(ApiVersionsRequest(client_software_name="slow", client_software_version="1"), 3)
        for position in range(len(raw)):
            wire.send(raw[position : position + 1])
        assert wire.answer() is not None


def test_five_hundred_idle_connections_cost_little_and_are_served_when_they_wake(
    broker: ChildBroker, neighbour: Neighbour
) -> None:
    with memory_within(broker, 40 * MIB), ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker)) for _ in range(500)]
        for wire in wires:
            assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
        neighbour.is_served()
        for wire in wires:
            assert wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0


# ---- readers that do not read ---------------------------------------------------------------------------------------


def test_consumers_that_never_read_their_answers_do_not_grow_the_broker(
    broker: ChildBroker, neighbour: Neighbour
) -> None:
    """Thirty of them ask for 50 MB each, again and again: 1.5 GB and more if it were held for them."""
    batch = a_batch(bytes(1000), 900)
    for _ in range(60):
        neighbour.wire.call(produce(neighbour.topic, batch), ProduceResponse, 8)
    base = neighbour.offset
    neighbour.offset += 60 * 900
    with memory_within(broker, 60 * MIB), ExitStack() as stack:
        for _ in range(30):
            wire = stack.enter_context(Wire(broker))
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(20):
                wire.send(request(fetch(neighbour.topic, base, 50 * MIB), 11))
        for _ in range(5):
            neighbour.is_served()


def test_a_peer_that_asks_for_ever_and_never_reads_is_not_read_any_more(
    broker: ChildBroker, neighbour: Neighbour
) -> None:
    raw = request(ApiVersionsRequest(), 0) * 1000
    with memory_within(broker, 24 * MIB), Wire(broker) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            while True:
                wire.socket.sendall(raw)
        neighbour.is_served()


# ---- descriptors ----------------------------------------------------------------------------------------------------


def test_running_out_of_descriptors_refuses_newcomers_and_spares_those_who_are_here() -> None:
    with testing.broker(in_process=False, settings={"connection.handshake.ms": 60_000}) as small:
        neighbour = Neighbour(small)
        with neighbour.wire, ExitStack() as stack:
            neighbour.is_served()
            in_use = psutil.Process(small.pid).num_fds()
            before = resource.prlimit(small.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(small.pid, resource.RLIMIT_NOFILE, (in_use + 10, before[1]))
            for _ in range(60):
                try:
                    stack.enter_context(Wire(small))
                except ConnectionError:
                    continue
            neighbour.is_served()
            stack.close()
            resource.prlimit(small.pid, resource.RLIMIT_NOFILE, before)
            with Wire(small) as late:
                assert late.call(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
            neighbour.is_served()
