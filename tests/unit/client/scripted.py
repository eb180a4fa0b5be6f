"""Two peers that misbehave on purpose: a broker that answers by script, and a proxy that loses answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.wire.kafka.codec import write_message
from headrace.wire.kafka.messages.metadata import ApiVersion, ApiVersionsResponse
from headrace.wire.kafka.schema import spec_of

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


@contextmanager
def scripted_broker(answer: Answer) -> Iterator[str]:
    """A listener whose every answer is the script's; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    sockets = [listener]

    def serve(peer: socket.socket) -> None:
        try:
            while request := read_frame(peer):
                reply = answer(*struct.unpack_from(">hhi", request))
                if reply is None:
                    break
                peer.sendall(reply)
        except OSError:
            pass
        peer.close()

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            sockets.append(peer)
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for each in sockets:
            shut(each)


def shut(sock: socket.socket) -> None:
    """Wake whoever blocks in it, then close."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()


class LossyProxy:
    """Passes requests on to a broker; for answers that ``loses`` picks, the connection ends instead."""

    def __init__(self, loses: Callable[[int], bool]) -> None:
        """``loses`` is asked with the API key of each request, after the broker has answered it."""
        self._loses = loses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.upstream: tuple[str, int] = ("", 0)
        self.lost = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            shut(each)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with socket.create_connection(self.upstream) as broker:
                while request := read_frame(peer):
                    broker.sendall(frame(request))
                    reply = read_frame(broker)
                    if not reply or self._loses(struct.unpack_from(">h", request)[0]):
                        self.lost += 1
                        break
                    peer.sendall(frame(reply))
        except OSError:
            pass
        shut(peer)
