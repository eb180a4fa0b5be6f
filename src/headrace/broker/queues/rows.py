"""The rows of exchanges, queues and bindings in the broker's state tables, also while the disk refuses them.

A declaration or a deletion takes effect for everybody at once, and its row is written then. If the disk refuses it, the
client gets an error and the row is *owed*: it is written with the next change, and tried again every ``RETRY_S``. So
a later answer that the exchange exists, or that the queue is gone, holds after a restart too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from headrace.broker.queues.turn import RETRY_S, Turn
from headrace.broker.state import Change, StateStore
from headrace.log.errors import LogError
from headrace.vocabulary import Offset
from headrace.wire.amqp.errors import AmqpError, ReplyCode

__all__ = ["Rows"]


class Rows:
    """See the module."""

    def __init__(self, state: StateStore, turn: Turn) -> None:
        self._state = state
        self._turn = turn
        self._owed: list[Change] = []
        self._then: list[Callable[[], None]] = []
        self._is_set = False

    def keys(self, table: str) -> Iterator[str]:
        """Of the rows that there are, and of those that are owed."""
        owed = (key for owed_to, key, _ in self._owed if owed_to == table)
        return iter(dict.fromkeys(chain(self._state.table(table), owed)))

    async def change(self, changes: Sequence[Change] = ()) -> None:
        """Make changes. They and all owed rows are durable when this returns. If it raises AmqpError, these changes are
        not made."""
        await self._flushed(self._write(changes))

    async def follow(self, changes: Sequence[Change], then: Callable[[], None] = lambda: None) -> None:
        """Write rows of changes that have taken effect. If it raises AmqpError, they are owed. ``then`` is called when
        they are durable, before this returns or later."""
        self._owed += changes
        self._then.append(then)
        await self._flushed(self._write(()))

    def _write(self, changes: Sequence[Change]) -> Offset | None:
        rows = {(table, key): row for table, key, row in (*self._owed, *changes)}
        wanted = [
            (table, key, row)
            for (table, key), row in rows.items()
            if row is not None or key in self._state.table(table)
        ]
        offset = None
        if wanted:
            try:
                offset = self._state.put_many(wanted)
            except LogError as error:
                self._try_again()
                raise AmqpError(ReplyCode.RESOURCE_ERROR, f"the disk refuses the change: {error}") from error
        self._owed.clear()
        then, self._then = self._then, []
        for each in then:
            self._when_flushed(offset, each)
        return offset

    def _try_again(self) -> None:
        if self._owed and not self._is_set:
            self._is_set = True
            self._turn.later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._is_set = False
        with suppress(AmqpError):
            self._write(())

    def _when_flushed(self, offset: Offset | None, then: Callable[[], None]) -> None:
        if offset is None:
            then()
        else:
            self._state.when_flushed(offset, then)

    async def _flushed(self, offset: Offset | None) -> None:
        if offset is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._state.when_flushed(offset, lambda: None if future.done() else future.set_result(None))
        await future
