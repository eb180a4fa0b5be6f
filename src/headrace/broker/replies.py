"""Replies that are not ready when their handler returns.

A handler returns its response, or a ``PendingReply`` that will have it: when what the response says is flushed, when
other members have joined, when there are records to fetch. There is no asyncio here. What delivers is a callback: of a
flush (``once_flushed``), of a timer, or of another request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["PendingReply", "Reply", "once_flushed"]

T = TypeVar("T")

Reply = Any
"""A response message, or a ``PendingReply`` that will have it. None is an answer that is not sent (Produce, acks=0)."""


class PendingReply(Generic[T]):
    """A response that waits for something ``waits`` times. Most wait once; a Produce waits once per partition."""

    __slots__ = ("abandoned", "error", "executing", "prompt", "response", "taker", "waits")

    def __init__(self, response: T | None = None, *, waits: int = 1, prompt: bool = False) -> None:
        self.response = response
        self.waits = waits
        self.prompt = prompt
        """Whether the taker may send it, and execute the next request, before ``deliver`` returns. A fetch is prompt:
        its records are sent before the loop runs other work. Code that delivers such a reply must do nothing more."""
        self.executing = False
        """Whether the request itself is still being executed, in slices. The response may then be another reply that
        waits: for records to fetch, or for acknowledgements."""
        self.error: BaseException | None = None
        """An error that a handler raised after it had returned this reply."""
        self.taker: Callable[[], None] | None = None
        """Called when the reply is ready, if it was set by then."""
        self.abandoned: Callable[[], None] | None = None
        """Called when the connection is gone and nobody will take the reply."""

    @property
    def ready(self) -> bool:
        return self.waits == 0

    def one_done(self) -> None:
        """One of the things that it waits for has happened."""
        self.waits -= 1
        if self.waits == 0:
            self._ready()

    def _ready(self) -> None:
        """The callbacks go before the taker is called: they refer to what refers to this reply."""
        taker, self.taker, self.abandoned = self.taker, None, None
        if taker is not None:
            taker()

    def deliver(self, response: T) -> None:
        """This is the response. A reply that is ready keeps the one it has."""
        if self.waits:
            self.response = response
            self.waits = 1
            self.one_done()

    def fail(self, error: BaseException) -> None:
        """There is no response."""
        if self.waits:
            self.error = error
            self.waits = 1
            self.one_done()

    def abandon(self) -> None:
        abandoned, self.abandoned, self.taker = self.abandoned, None, None
        if abandoned is not None:
            abandoned()


class Journal(Protocol):
    def when_flushed(self, offset: int, callback: Callable[[], None]) -> None: ...


def once_flushed(journal: Journal, offset: int, response: T) -> T | PendingReply[T]:
    """The response, when the journal is flushed up to and including ``offset``. Nothing waits for one below 0."""
    if offset < 0:
        return response
    reply = PendingReply(response)
    journal.when_flushed(offset, reply.one_done)
    return response if reply.ready else reply
