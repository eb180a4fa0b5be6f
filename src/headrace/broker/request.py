"""A request as the broker sees it: its connection, its version, its body, and what its caller may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from headrace.broker.access import Access

__all__ = ["Peer", "Request"]

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class Peer:
    """The connection of a request. Requests of a ``closed`` connection that are still queued are not executed."""

    id: int
    host: str = "127.0.0.1"
    listener: str = "kafka"
    closed: bool = False
    principal: str = "User:ANONYMOUS"
    software: str = ""
    on_hold: Callable[[bool], None] | None = None
    on_hang_up: Callable[[str], None] | None = None

    def hold(self, held: bool) -> None:
        """Stop reading the connection, or continue: backpressure on a producer that outruns its consumers."""
        if self.on_hold is not None:
            self.on_hold(held)

    def hang_up(self, reason: str) -> None:
        """Close the connection, as Kafka does when a request without an answer fails."""
        if self.on_hang_up is not None:
            self.on_hang_up(reason)


@dataclass(slots=True)
class Request(Generic[T]):
    """One decoded request."""

    api_key: int
    version: int
    body: T
    peer: Peer
    client_id: str | None = None
    correlation_id: int = 0
    access: Access = field(init=False, repr=False)
    """What the caller may see; set by ``Broker.handle``."""
