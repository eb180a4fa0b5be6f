"""A request as the broker sees it: who asks, in which version, and what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from headrace.broker.access import Access

__all__ = ["AcknowledgedReply", "Peer", "PromptReply", "Reply", "Request", "after"]

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class Peer:
    """The connection a request came over. ``closed`` turns true when it is gone: what it had queued is not executed."""

    id: int
    host: str = "127.0.0.1"
    listener: str = "kafka"
    closed: bool = False
    principal: str = "User:ANONYMOUS"
    software: str = ""
    on_hold: Callable[[bool], None] | None = None
    on_hang_up: Callable[[str], None] | None = None

    def hold(self, held: bool) -> None:
        """Stop reading this connection, or go on: how a producer that outruns its consumers is held back."""
        if self.on_hold is not None:
            self.on_hold(held)

    def hang_up(self, reason: str) -> None:
        """Close the connection: what Kafka does where a request has no answer to put an error into."""
        if self.on_hang_up is not None:
            self.on_hang_up(reason)


@dataclass(slots=True, kw_only=True)
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


Reply = Any | asyncio.Future[Any]
"""A response message, a future or an ``AcknowledgedReply`` that gives it; ``None`` is an answer that is not sent
(Produce with acks=0)."""


class AcknowledgedReply:
    """A response that waits for ``left`` acknowledgements, each of which calls ``one_acknowledged``.

    This is what every Produce waits with. A future would do, at three times the cost and a turn of the loop later.
    """

    __slots__ = ("left", "response", "taker")

    def __init__(self, response: Any, left: int) -> None:
        self.response = response
        self.left = left
        self.taker: Callable[[], None] | None = None
        """Called when the last acknowledgement comes, if it was set by then."""

    def one_acknowledged(self) -> None:
        self.left -= 1
        if self.left == 0 and self.taker is not None:
            self.taker()


class PromptReply(asyncio.Future[Any]):
    """A reply that its taker gets in the same turn of the loop: between two turns the loop may run whatever else has
    come in, and somebody at the other end of a fetch is waiting for a record that is there."""

    taker: Callable[[asyncio.Future[Any]], None] | None = None

    def deliver(self, response: Any) -> None:
        self.set_result(response)
        if self.taker is not None:
            self.taker(self)


def after(flushed: asyncio.Future[None], response: T) -> asyncio.Future[T]:
    """A future that gives ``response`` once ``flushed`` is done, or fails as it fails."""
    answer: asyncio.Future[T] = flushed.get_loop().create_future()

    def done(flush: asyncio.Future[None]) -> None:
        if answer.cancelled():
            return
        if flush.cancelled():
            answer.cancel()
        elif (error := flush.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(response)

    flushed.add_done_callback(done)
    return answer
