"""A listener with a handler of the test's own on a thread, and a client that speaks frames."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.broker.replies import PendingReply
from headrace.broker.request import Request
from headrace.node import new_event_loop
from headrace.server import KafkaLimits, KafkaService, Listener, ListenerLimits, bind
from headrace.server.kafka_service import Authentication
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.fetch import FetchRequest
from headrace.wire.kafka.messages.groups import HeartbeatRequest, HeartbeatResponse
from headrace.wire.kafka.messages.produce import ProduceRequest, ProduceResponse
from tests.waiting import PATIENCE_S, eventually

T = TypeVar("T")

PRODUCE, FETCH, HEARTBEAT = 0, 1, 12

LIMITS = ListenerLimits(drain_s=0.2)
"""The defaults, but a test that leaves answers waiting does not wait for them at its end."""

KAFKA_LIMITS = KafkaLimits()


class Serving:
    """A running listener, seen from the test's thread."""

    def __init__(self, listener: Listener, kafka: KafkaService, loop: asyncio.AbstractEventLoop) -> None:
        self.listener = listener
        self.kafka = kafka
        self.loop = loop

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.host, self.listener.port

    def on_loop(self, fn: Callable[[], T]) -> T:
        """Call ``fn`` on the loop's thread and give what it gives."""

        async def call() -> T:
            return fn()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def drain(self) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(self.listener.drain(), self.loop)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds on the loop's thread."""
        eventually(lambda: self.on_loop(condition), pause_s=0.005)


@contextmanager
def serving(
    handle: Callable[[Request[Any]], Any],
    limits: ListenerLimits = LIMITS,
    *,
    kafka_limits: KafkaLimits = KAFKA_LIMITS,
    authentication: Authentication | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Serving]:
    started: Future[Serving] = Future()

    async def main() -> None:
        kafka = KafkaService(handle, kafka_limits, authentication)
        listener = Listener(kafka.session, limits)
        await listener.start(bind("127.0.0.1", 0), tls=tls)
        stop = asyncio.Event()
        running = Serving(listener, kafka, asyncio.get_running_loop())
        running.stop = stop  # type: ignore[attr-defined]
        started.set_result(running)
        await stop.wait()
        await listener.drain()
        kafka.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    running = started.result(PATIENCE_S)
    try:
        yield running
    finally:
        running.loop.call_soon_threadsafe(running.stop.set)  # type: ignore[attr-defined]
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


class Client:
    """A socket that sends requests and receives answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: object, api_key: int, version: int, correlation_id: int) -> None:
        self.socket.sendall(request_bytes(message, api_key, version, correlation_id))

    def produce(self, correlation_id: int) -> None:
        self.send(ProduceRequest(acks=1), PRODUCE, 8, correlation_id)

    def heartbeat(self, correlation_id: int) -> None:
        self.send(HeartbeatRequest(), HEARTBEAT, 3, correlation_id)

    def fetch(self, correlation_id: int) -> None:
        self.send(FetchRequest(), FETCH, 11, correlation_id)

    def exactly(self, size: int) -> bytes:
        raw = bytearray()
        while len(raw) < size:
            piece = self.socket.recv(min(size - len(raw), 1 << 20))
            if not piece:
                raise EOFError(f"closed after {len(raw)} of {size} bytes")
            raw += piece
        return bytes(raw)

    def frame(self) -> bytes:
        return self.exactly(struct.unpack(">i", self.exactly(4))[0])

    def answered(self) -> int:
        """The correlation id of the next answer."""
        correlation_id: int = struct.unpack_from(">i", self.frame())[0]
        return correlation_id

    def answer(self, cls: type[T], version: int, *, flexible: bool = False) -> T:
        return read_message(cls, version, self.frame(), 5 if flexible else 4)[0]

    def is_closed(self) -> bool:
        """Wait for the server to close; False when it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def request_bytes(message: object, api_key: int, version: int, correlation_id: int = 0) -> bytes:
    raw = struct.pack(">hhih", api_key, version, correlation_id, -1) + b"".join(write_message(message, version))
    return struct.pack(">i", len(raw)) + raw


def at_once(request: Request[Any]) -> Any:
    """A handler that answers everything the tests send."""
    return ProduceResponse() if request.api_key == PRODUCE else HeartbeatResponse()


class Held:
    """A handler whose answers wait until the test lets them go: those of Produce for an acknowledgement."""

    def __init__(self) -> None:
        self.requests: list[Request[Any]] = []
        self.replies: dict[int, PendingReply[Any]] = {}

    def __call__(self, request: Request[Any]) -> PendingReply[Any]:
        self.requests.append(request)
        reply: PendingReply[Any] = PendingReply()
        self.replies[request.correlation_id] = reply
        return reply

    @property
    def executed(self) -> list[int]:
        return [request.correlation_id for request in self.requests]

    def let_go(self, correlation_id: int) -> None:
        api_key = next(each.api_key for each in self.requests if each.correlation_id == correlation_id)
        self.replies[correlation_id].deliver(ProduceResponse() if api_key == PRODUCE else HeartbeatResponse())
