"""The least that a broker with headrace's promise can do for a Produce: the bound that the promise itself sets.

It takes frames from one connection, writes what has arrived as it is, syncs once for all of it, and answers each frame.
It looks at nothing: no topic, no checksum, no offset, no second connection. ``python -m benchmarks.bare_server HOW
FOLDER`` prints its port and ends when its peer does. There are two of them:

- ``blocking`` has one thread and syncs on it. A broker may not: a disk that takes a second would hold up everybody.
- ``threaded`` has an event loop and syncs on another thread, as headrace does: the loop never waits for the disk, and
  each sync costs two hops between threads.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import cast

import uvloop

from headrace.wire.kafka.codec import write_message
from headrace.wire.kafka.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.servers.process import RunningServer

__all__ = ["bare_server"]

PRODUCE_VERSION = 9
RECEIVE_BYTES = 1 << 20


@contextmanager
def bare_server(how: str) -> Iterator[RunningServer]:
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.bare_server", how, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                bootstrap = f"127.0.0.1:{int(child.stdout.readline())}"
                path = Path(folder)
                yield RunningServer(name="bare", bootstrap=bootstrap, pid=child.pid, data=path, log=path / "none")
            finally:
                child.kill()


def answer() -> bytes:
    """One partition was written."""
    partitions = [PartitionProduceResponse(index=0, base_offset=0)]
    response = ProduceResponse(responses=[TopicProduceResponse(name="bare", partition_responses=partitions)])
    body = struct.pack(">i", 0) + b"\x00" + b"".join(write_message(response, PRODUCE_VERSION))
    return struct.pack(">i", len(body)) + body


def whole_frames(data: bytearray) -> tuple[int, int]:
    """How many whole frames ``data`` begins with, and where the last of them ends."""
    count = position = 0
    while position + 4 <= len(data):
        end = position + 4 + struct.unpack_from(">i", data, position)[0]
        if end > len(data):
            break
        count, position = count + 1, end
    return count, position


class Held:
    """What has arrived, and the file that whole frames of it go to."""

    def __init__(self, folder: str) -> None:
        self.file = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT, 0o600)
        self._data = bytearray()
        self._written = 0

    def write(self, received: bytes) -> int:
        """How many frames have become whole, and are in the file."""
        self._data += received
        count, end = whole_frames(self._data)
        if count:
            with memoryview(self._data) as view:
                self._written += os.pwrite(self.file, view[:end], self._written)
            del self._data[:end]
        return count


def serve_blocking(folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    acknowledgement = answer()
    held = Held(folder)
    with connection:
        while received := connection.recv(RECEIVE_BYTES):
            if count := held.write(received):
                os.fdatasync(held.file)
                connection.sendall(acknowledgement * count)


class SyncedElsewhere(asyncio.Protocol):
    """Frames that arrive within two turns of the loop are handed to the thread together, as in ``log/flush.py``."""

    def __init__(self, folder: str, ended: asyncio.Event) -> None:
        self._held = Held(folder)
        self._ended = ended
        self._acknowledgement = answer()
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._handed_over: SimpleQueue[int] = SimpleQueue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        threading.Thread(target=self._sync, daemon=True).start()

    def data_received(self, data: bytes) -> None:
        count = self._held.write(data)
        if count and not self._waiting:
            self._loop.call_soon(lambda: self._loop.call_soon(self._hand_over))
        self._waiting += count

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()

    def _hand_over(self) -> None:
        self._handed_over.put(self._waiting)
        self._waiting = 0

    def _sync(self) -> None:
        while True:
            count = self._handed_over.get()
            while not self._handed_over.empty():
                count += self._handed_over.get()
            os.fdatasync(self._held.file)
            self._loop.call_soon_threadsafe(self._transport.write, self._acknowledgement * count)


async def serve_threaded(folder: str) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    server = await loop.create_server(lambda: SyncedElsewhere(folder, ended), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


def main() -> None:
    how, folder = sys.argv[1:]
    if how == "blocking":
        serve_blocking(folder)
    else:
        uvloop.run(serve_threaded(folder))


if __name__ == "__main__":
    main()
