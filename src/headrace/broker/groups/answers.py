"""Answers that wait: for other members, or for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from headrace.broker.request import after
from headrace.errors import ErrorCode

__all__ = ["answer", "once_flushed", "release_after"]

T = TypeVar("T")

Waiting = tuple[asyncio.Future[Any], Any]


def answer(future: asyncio.Future[T] | None, response: T) -> None:
    """Give a waiting request its answer, if somebody still waits."""
    if future is not None and not future.done():
        future.set_result(response)


def release_after(flushed: asyncio.Future[None], waiting: Sequence[Waiting]) -> None:
    """Give the answers when ``flushed`` is done. If that fails nothing was promised: look for a coordinator."""

    def release(flush: asyncio.Future[None]) -> None:
        failed = flush.cancelled() or flush.exception() is not None
        for future, response in waiting:
            if failed:
                response = type(response)(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            answer(future, response)

    flushed.add_done_callback(release)


def once_flushed(flushed: asyncio.Future[None] | None, response: T) -> T | asyncio.Future[T]:
    """The answer itself when all it rests on is durable, else a future of it."""
    if flushed is None or (flushed.done() and not flushed.cancelled() and flushed.exception() is None):
        return response
    return after(flushed, response)
