"""The least that a broker with headrace's promise can do for a Produce: the bound that the promise itself sets.

It takes frames from one connection, writes what has arrived as it is, syncs once for all of it, and answers each frame.
It looks at nothing: no topic, no checksum, no offset, no second connection. ``python -m benchmarks.bare_server FOLDER``
prints its port and ends when its peer does.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.wire.kafka.codec import write_message
from headrace.wire.kafka.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.servers.process import RunningServer

__all__ = ["bare_server"]

PRODUCE_VERSION = 9
RECEIVE_BYTES = 1 << 20


@contextmanager
def bare_server() -> Iterator[RunningServer]:
    with TemporaryDirectory(prefix="headrace-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.bare_server", folder]
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


def serve(connection: socket.socket, folder: str) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    acknowledgement = answer()
    held = bytearray()
    file = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT, 0o600)
    written = 0
    while received := connection.recv(RECEIVE_BYTES):
        held += received
        count, end = whole_frames(held)
        if count:
            with memoryview(held) as view:
                written += os.pwrite(file, view[:end], written)
            del held[:end]
            os.fdatasync(file)
            connection.sendall(acknowledgement * count)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        with connection:
            serve(connection, sys.argv[1])


if __name__ == "__main__":
    main()
