"""Two peers that misbehave on purpose: a broker that answers by script, and a proxy that loses answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from headrace.wire.kafka.codec import write_message
from headrace.wire.kafka.messages.metadata import ApiVersion, ApiVersionsResponse
from headrace.wire.kafka.schema import spec_of
from tests.waiting import PATIENCE_S

Answer = Callable[[int, int, int], bytes | None]
"""(api key, version, correlation id) → the whole frame to send back; None closes the connection."""

EVERYTHING = [ApiVersion(api_key=key, min_version=0, max_version=99) for key in range(80)]


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def answer_frame(message: Any, version: int, correlation_id: int) -> bytes:
    """A well-formed answer."""
    spec = spec_of(type(message))
    tags = b"\x00" if version >= spec.flexible and spec.api_key != 18 else b""
    return frame(struct.pack(">i", correlation_id) + tags + b"".join(write_message(message, version)))


def versions(correlation_id: int, version: int, *, error: int = 0, offered: list[ApiVersion] | None = None) -> bytes:
    message = ApiVersionsResponse(error_code=error, api_keys=EVERYTHING if offered is None else offered)
    return answer_frame(message, version, correlation_id)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def read_frame(sock: socket.socket) -> bytes:
    head = read_exactly(sock, 4)
    return read_exactly(sock, struct.unpack(">i", head)[0]) if head else b""


class Listening:
    """A listener that serves every connection on its own thread.

    The thread that waits in a socket closes it, once ``hang_up`` has woken it: a descriptor that another thread closes
    could be another file's by the time it looks again.
    """

    def __init__(self, serve: Callable[[socket.socket], None], port: int = 0) -> None:
        listener = socket.create_server(("127.0.0.1", port))
        self.port: int = listener.getsockname()[1]
        self._serve = serve
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._ended = False
        self._run(self._accept, listener)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hang_up(self) -> None:
        """Nobody gets in any more, and who is in is put out."""
        with self._lock:
            self._ended = True
            for each in self._open:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the peer was faster

    def close(self) -> None:
        """Hang up, and return when every thread has ended. Not for a thread that serves."""
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            peer, _ = listener.accept()
            self._run(self._serve, peer)

    def _run(self, work: Callable[[socket.socket], None], sock: socket.socket) -> None:
        def run() -> None:
            try:
                work(sock)
            except OSError:
                pass
            finally:
                with self._lock:
                    self._open.discard(sock)
                    sock.close()

        with self._lock:
            if self._ended:
                sock.close()
                return
            self._open.add(sock)
            thread = threading.Thread(target=run, daemon=True)
            self._threads.append(thread)
            thread.start()


@contextmanager
def scripted_broker(answer: Answer) -> Iterator[str]:
    """A listener whose every answer is the script's; gives its address."""

    def serve(peer: socket.socket) -> None:
        while request := read_frame(peer):
            reply = answer(*struct.unpack_from(">hhi", request))
            if reply is None:
                return
            peer.sendall(reply)

    with closing(Listening(serve)) as listening:
        yield listening.address


class LossyProxy:
    """Passes requests on to a broker; for answers that ``loses`` picks, the connection ends instead."""

    def __init__(self, loses: Callable[[int], bool]) -> None:
        """``loses`` is asked with the API key of each request, after the broker has answered it."""
        self.loses = loses
        self.upstream: tuple[str, int] = ("", 0)
        self.lost = 0
        self._listening = Listening(self._serve)

    @property
    def address(self) -> str:
        return self._listening.address

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self, peer: socket.socket) -> None:
        with socket.create_connection(self.upstream) as broker:
            while request := read_frame(peer):
                broker.sendall(frame(request))
                reply = read_frame(broker)
                if not reply or self.loses(struct.unpack_from(">h", request)[0]):
                    self.lost += 1
                    return
                peer.sendall(frame(reply))
