"""What all Kafka connections share: the handler of requests, the limits, the buffers and the authentication."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.broker.replies import Reply
from headrace.broker.request import Peer, Request
from headrace.broker.slices import Slices
from headrace.config import Settings
from headrace.server.budget import RequestBudget
from headrace.server.kafka import READ_BYTES, KafkaSession
from headrace.server.kafka_measures import ApiMeasures
from headrace.server.listener import Listener
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.connection import Limits

__all__ = ["Authentication", "Handler", "KafkaLimits", "KafkaService", "LoopHold", "NoAuthentication"]

Handler = Callable[[Request[Any]], Reply]

READER_THREADS = 4

FAVOUR_S = 0.5
"""When the budget is spent, one connection at a time may finish its large frame, and has so long if others wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaLimits:
    """The bounds of Kafka connections."""

    frames: Limits = field(default_factory=Limits)
    requests_in_flight_max: int = 64
    request_bytes_held_max: int = 64 << 20
    write_buffer_bytes_max: int = 128 << 10

    @classmethod
    def of(cls, settings: Settings) -> KafkaLimits:
        held = settings.integer("queued.max.request.bytes")
        return cls(
            frames=Limits(
                produce_bytes_max=settings.integer("socket.request.max.bytes"),
                other_bytes_max=settings.integer("request.other.bytes.max"),
                elements_max=settings.integer("request.elements.max"),
                answer_bytes_max=settings.integer("response.bytes.max"),
            ),
            requests_in_flight_max=settings.integer("connection.requests.max"),
            request_bytes_held_max=held if held >= 0 else 2**63 - 1,
            write_buffer_bytes_max=settings.integer("connection.write.buffer.bytes"),
        )


@dataclass(frozen=True, slots=True)
class LoopHold:
    """A request that was executed in one piece and took long."""

    api: str
    address: str
    seconds: float


class Authentication(Protocol):
    """Decides who a peer is. While it does not know a peer, it answers all of its requests."""

    @property
    def required(self) -> bool:
        """False: every peer is taken as it comes, and nothing else here is asked."""

    def knows(self, peer: Peer) -> bool:
        """Whether the peer may go on to ordinary requests; ``peer.principal`` is set then."""

    def handle(self, request: Request[Any]) -> Reply:
        """Answer a request of a peer that is not known yet, or hang up."""


class NoAuthentication:
    """Every peer is anonymous, and its first request is served."""

    required = False

    def knows(self, peer: Peer) -> bool:
        return True

    def handle(self, request: Request[Any]) -> Reply:
        raise AssertionError("a peer is known from the start")


class KafkaService:
    """Made on the event loop; ``session`` is the protocol factory of its listeners."""

    def __init__(
        self,
        handle: Handler,
        limits: KafkaLimits | None = None,
        authentication: Authentication | None = None,
        slices: Slices | None = None,
    ) -> None:
        self.handle = handle
        self.slices = slices or Slices()
        """Where long requests are decoded: the broker's, so that both share the time of a turn."""
        self.limits = limits or KafkaLimits()
        self.authentication = authentication or NoAuthentication()
        self.scratch = memoryview(bytearray(READ_BYTES))
        self.readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="headrace-read")
        self.budget = RequestBudget(
            self.limits.request_bytes_held_max,
            favour_s=FAVOUR_S,
            call_later=asyncio.get_running_loop().call_later,
        )
        self.measures = {api_key: ApiMeasures(api_key) for api_key in APIS}
        self.longest_hold: LoopHold | None = None
        """The request that held the loop longest since ``LoopWatch`` looked."""
        self._peer_ids = itertools.count(1)

    def session(self, listener: Listener) -> KafkaSession:
        return KafkaSession(self, listener)

    def note_hold(self, api_key: int, address: str, seconds: float) -> None:
        """A request kept the loop from all others for a while."""
        if self.longest_hold is None or self.longest_hold.seconds < seconds:
            self.longest_hold = LoopHold(APIS[api_key].name, address, seconds)

    def next_peer_id(self) -> int:
        return next(self._peer_ids)

    def close(self) -> None:
        """After the last listener was drained."""
        self.readers.shutdown(wait=False, cancel_futures=True)
