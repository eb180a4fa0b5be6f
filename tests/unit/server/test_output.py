"""Answers with file slices: right bytes, in order, read only as the peer takes them."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.request import Request
from headrace.log.disk import OsDisk, OsFile
from headrace.server.output import LOCAL_BUFFER_BYTES, PIECE_BYTES, DirectSocket, Output
from headrace.wire.kafka.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.wire.kafka.messages.groups import HeartbeatResponse
from tests.unit.server.harness import FETCH, KAFKA_LIMITS, LIMITS, Client, serving
from tests.waiting import eventually

MIB = 1 << 20


class CountingFile(OsFile):
    """A real file that counts the reads a thread did."""

    reads_in_threads = 0

    def pread(self, size: int, position: int) -> bytes:
        self.reads_in_threads += 1
        return super().pread(size, position)


@dataclass
class Slice:
    file: Any
    position: int
    size: int

    def __len__(self) -> int:
        return self.size


def a_file(path: Path, content: bytes) -> CountingFile:
    path.write_bytes(content)
    opened = CountingFile(str(path), os.open(path, os.O_RDONLY))
    return opened


def forget_pages(file: OsFile) -> None:
    """Let the page cache drop the file, so that reading it means asking the disk."""
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetched(*records: Any) -> FetchResponse:
    partitions = [PartitionData(partition_index=index, records=each) for index, each in enumerate(records)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


def records_of(client: Client) -> list[bytes]:
    response = client.answer(FetchResponse, 11)
    return [bytes(partition.records) for partition in response.responses[0].partitions]


def test_slices_arrive_whole_and_in_their_places(tmp_path: Path) -> None:
    content = os.urandom(3 * MIB)
    file = a_file(tmp_path / "log", content)
    slices = [[Slice(file, 5, MIB), Slice(file, 2 * MIB, 100)], b"plain", [Slice(file, MIB, 0)], Slice(file, 7, 1)]
    with serving(lambda request: fetched(*slices)) as server, Client(server.address) as client:
        client.fetch(1)
        expected = [content[5 : 5 + MIB] + content[2 * MIB : 2 * MIB + 100], b"plain", b"", content[7:8]]
        assert records_of(client) == expected


def test_answers_that_are_ready_together_do_not_mix_their_pieces(tmp_path: Path) -> None:
    content = os.urandom(2 * MIB)
    file = a_file(tmp_path / "log", content)

    def handle(request: Request[Any]) -> Any:
        if request.api_key != FETCH:
            return HeartbeatResponse(error_code=request.correlation_id)
        return fetched([Slice(file, request.correlation_id, MIB)])

    with serving(handle) as server, Client(server.address) as client:
        for number in range(0, 20, 2):
            client.fetch(number)
            client.heartbeat(number + 1)
        for number in range(0, 20, 2):
            assert records_of(client) == [content[number : number + MIB]]
            assert client.answered() == number + 1


def test_what_the_page_cache_lacks_is_read_by_a_thread_and_arrives_the_same(on_disk: Path) -> None:
    content = os.urandom(2 * MIB)
    file = a_file(on_disk / "log", content)
    forget_pages(file)
    with serving(lambda request: fetched([Slice(file, 0, len(content))])) as server, Client(server.address) as client:
        client.fetch(1)
        assert records_of(client) == [content]
        if file.reads_in_threads == 0:
            pytest.skip("this filesystem keeps its pages: nothing was cold")

        def reads_in_threads() -> int:
            before = file.reads_in_threads
            client.fetch(2)
            assert records_of(client) == [content]
            return file.reads_in_threads - before

        # What is in the page cache is read at once; a machine short of memory may have to read it a second time.
        eventually(reads_in_threads, lambda count: count == 0)


def test_a_file_that_ends_too_early_breaks_the_connection_off_and_says_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = a_file(tmp_path / "log", bytes(1000))
    with serving(lambda request: fetched([Slice(file, 0, 5000)])) as server, Client(server.address) as client:
        client.fetch(1)
        with pytest.raises((EOFError, ConnectionResetError)):
            client.frame()
    assert f"{tmp_path / 'log'} ends before 5000" in caplog.text


def test_a_peer_that_does_not_read_has_little_of_the_file_read_for_it_and_is_not_read_itself(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 30)
    file = OsDisk().open(str(path))
    seen: list[int] = []

    def handle(request: Request[Any]) -> Any:
        seen.append(request.correlation_id)
        return fetched([Slice(file, 0, 1 << 30)])

    with serving(handle, LIMITS) as server, Client(server.address) as client:
        client.fetch(1)
        server.until(lambda: sent_of(server) > 0)
        before = -1
        while before != (now := server.on_loop(lambda: sent_of(server))):
            before = now
            server.loop.call_soon_threadsafe(lambda: None)
            server.on_loop(lambda: None)
        for number in range(2, 10):
            client.fetch(number)
        server.on_loop(lambda: None)
        held = server.on_loop(lambda: the_session(server)._transport.get_write_buffer_size())
        assert held <= KAFKA_LIMITS.write_buffer_bytes_max + PIECE_BYTES
        assert now < 32 * MIB, "the kernel's buffers, one piece and the transport's buffer"
        assert seen == [1]


def the_session(server: Any) -> Any:
    (session,) = server.listener._sessions
    return session


def sent_of(server: Any) -> int:
    """0 also before the connection is accepted."""
    return sum(session._output._slice_sent for session in server.listener._sessions)


class Transport:
    """Takes what is written, and can be told to be full."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None


def test_nothing_is_written_while_the_transport_is_full(on_disk: Path) -> None:
    content = os.urandom(PIECE_BYTES * 3)
    file = a_file(on_disk / "log", content)

    async def scenario() -> None:
        transport = Transport()
        drained: list[int] = []
        with ThreadPoolExecutor(1) as readers:
            output = an_output(transport, readers, drained)
            output.pause()
            output.add([b"head", Slice(file, 0, len(content)), b"tail"])
            assert transport.written == []
            assert output.blocked
            output.resume()
            assert b"".join(transport.written) == b"head" + content + b"tail"
            assert [len(each) for each in transport.written] == [4, PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 4]
            assert drained == [5]
            assert not output.blocked

    asyncio.run(scenario())


def an_output(transport: Transport, readers: ThreadPoolExecutor, drained: list[int] | None = None) -> Output:
    """Notes in ``drained`` how many writes there were by then."""
    seen = [] if drained is None else drained
    return Output(
        transport,  # type: ignore[arg-type]
        readers,
        drained=lambda: seen.append(len(transport.written)),
        failed=pytest.fail,
        taken=lambda: None,
    )


async def written_in_turns(output: Output, transport: Transport) -> list[int]:
    """The bytes that leave in each turn of the loop, until none are left."""
    turns = [sum(map(len, transport.written))]
    while output.blocked:
        await asyncio.sleep(0)
        turns.append(sum(map(len, transport.written)) - sum(turns))
    return turns


def test_an_answer_in_memory_leaves_a_turns_worth_at_a_time_also_while_the_peer_keeps_up() -> None:
    """Copying and sending 60 MB in one go kept the loop from all others for 60 ms."""
    elements = [bytes([n % 251]) * 3000 for n in range(20_000)]

    async def scenario() -> None:
        transport = Transport()
        drained: list[int] = []
        with ThreadPoolExecutor(1) as readers:
            output = an_output(transport, readers, drained)
            output.add([b"head", *elements])
            assert drained == []
            turns = await written_in_turns(output, transport)
        assert max(turns) < 3 * MIB
        assert len(turns) < 60
        assert len(transport.written) < 700, "small pieces leave together"
        assert b"".join(transport.written) == b"head" + b"".join(elements)
        assert drained == [len(transport.written)]

    asyncio.run(scenario())


def test_a_large_piece_leaves_in_parts_and_what_is_added_meanwhile_after_it() -> None:
    large = os.urandom(7 * MIB)

    async def scenario() -> None:
        transport = Transport()
        with ThreadPoolExecutor(1) as readers:
            output = an_output(transport, readers)
            output.add([large])
            for number in range(10):
                output.add([bytes([number])])
            assert len(b"".join(transport.written)) < 3 * MIB, "adding gives no further turn"
            turns = await written_in_turns(output, transport)
        assert max(turns) < 3 * MIB
        assert len(transport.written) < 70
        assert b"".join(transport.written) == large + bytes(range(10))

    asyncio.run(scenario())


def test_a_slice_that_goes_through_the_transport_leaves_a_turns_worth_at_a_time(on_disk: Path) -> None:
    content = os.urandom(9 * MIB)
    file = a_file(on_disk / "log", content)

    async def scenario() -> None:
        transport = Transport()
        with ThreadPoolExecutor(1) as readers:
            output = an_output(transport, readers)
            output.add([b"head", Slice(file, 0, len(content)), b"tail"])
            turns = await written_in_turns(output, transport)
        assert max(turns) < 3 * MIB
        assert len(transport.written) < 90
        assert b"".join(transport.written) == b"head" + content + b"tail"

    asyncio.run(scenario())


def test_an_output_that_is_given_up_between_two_turns_writes_nothing_more() -> None:
    async def scenario() -> None:
        transport = Transport()
        drained: list[int] = []
        with ThreadPoolExecutor(1) as readers:
            output = an_output(transport, readers, drained)
            output.add([bytes(7 * MIB)])
            written = len(transport.written)
            output.abandon()
            for _ in range(5):
                await asyncio.sleep(0)
        assert len(transport.written) == written
        assert drained == []

    asyncio.run(scenario())


def test_a_large_answer_arrives_whole_and_the_next_request_is_executed_after_it() -> None:
    names = [f"{number:0>3000}" for number in range(10_000)]

    def handle(request: Request[Any]) -> Any:
        if request.api_key != FETCH:
            return HeartbeatResponse(error_code=request.correlation_id)
        return FetchResponse(responses=[FetchableTopicResponse(topic=name, partitions=[]) for name in names])

    with serving(handle) as server, Client(server.address) as client:
        client.fetch(1)
        client.heartbeat(2)
        assert [each.topic for each in client.answer(FetchResponse, 11).responses] == names
        assert client.answered() == 2


def test_small_pieces_around_slices_leave_in_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slices with their headers in between, and a large answer without slices after them."""
    content = os.urandom(2 * MIB)
    file = a_file(tmp_path / "log", content)
    sizes: list[int] = []
    send = DirectSocket.send

    def counted(self: DirectSocket, data: Any, *, more: bool) -> int:
        sizes.append(len(data))
        return send(self, data, more=more)

    monkeypatch.setattr(DirectSocket, "send", counted)
    expected = [content[:MIB], content[MIB:]]
    with serving(lambda request: fetched(*[Slice(file, n * MIB, MIB) for n in (0, 1)])) as server:
        with Client(server.address) as client:
            client.fetch(1)
            assert records_of(client) == expected
        assert len(sizes) < 20, "one call each; a kernel that is full takes another"
        sizes.clear()
        with Client(server.address) as client:
            server.until(lambda: len(server.listener._sessions) == 1)

            def answer_both() -> None:
                output = the_session(server)._output
                output.add([b"head", Slice(file, 0, MIB), *[b"x" * 1000] * 3000])

            server.on_loop(answer_both)
            assert client.exactly(4 + MIB + 3_000_000) == b"head" + content[:MIB] + b"x" * 3_000_000
        assert len(sizes) < 300, sizes


@pytest.mark.parametrize(("peer", "bounded"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_the_kernel_holds_little_for_a_peer_of_this_machine_and_what_it_likes_for_others(
    peer: str, bounded: bool
) -> None:
    """A peer whose address is not the broker's stands for one on another machine."""

    async def buffer_bytes(listener: socket.socket) -> int:
        connected = socket.create_connection(listener.getsockname(), source_address=(peer, 0))
        accepted, _ = listener.accept()
        _, writer = await asyncio.open_connection(sock=accepted)
        direct = DirectSocket.of(writer.transport, lambda: None)
        assert direct is not None
        size = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        direct.close()
        writer.close()
        connected.close()
        return size

    with socket.create_server(("127.0.0.1", 0)) as listener:
        size = asyncio.run(buffer_bytes(listener))
    assert (LOCAL_BUFFER_BYTES <= size <= 2 * LOCAL_BUFFER_BYTES) is bounded  # Linux counts its own books too
