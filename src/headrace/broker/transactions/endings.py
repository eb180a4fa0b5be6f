"""How a transaction ends in all of its partitions or in none: the decision, the markers, ``Complete``.

``coordinator`` explains the order of these writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from headrace.broker.access import Operation
from headrace.broker.errors import code_of
from headrace.broker.replies import PendingReply, Reply
from headrace.broker.request import Request
from headrace.broker.state import Change
from headrace.broker.transactions.answers import fenced_as_known
from headrace.broker.transactions.connections import Connections
from headrace.broker.transactions.markers import RETRY_S, MarkerWriter, pause
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.registry import Transactions, require
from headrace.broker.transactions.states import (
    END_WITH_BUMP,
    END_WITHOUT_BUMP,
    EPOCH_EXHAUSTED,
    NO_ID,
    EndAnswer,
    Transaction,
)
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock
from headrace.wire.kafka.messages.transactions import EndTxnRequest, EndTxnResponse

__all__ = ["CompletedOffsets", "EndTxnHandler"]

FENCED_SINCE_END = 2
"""The version of EndTxn from which clients know PRODUCER_FENCED; before, they get INVALID_PRODUCER_EPOCH."""

BUMPS_EPOCH_SINCE = 5

_log = logging.getLogger(__name__)


class CompletedOffsets(Protocol):
    """Commits or drops the pending offsets of groups when their transaction ends."""

    def complete_transaction(self, producer_id: int, commit: bool) -> list[Change]:
        """The changes that commit or drop the producer's pending offsets; nothing is changed yet."""

    def apply_transaction(self, producer_id: int, commit: bool) -> None:
        """Those changes were made."""


class EndTxnHandler:
    """Answers EndTxn, and carries out what was decided."""

    def __init__(
        self,
        *,
        clock: Clock,
        ids: ProducerIds,
        transactions: Transactions,
        connections: Connections,
        markers: MarkerWriter,
        offsets: CompletedOffsets,
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._transactions = transactions
        self._connections = connections
        self._markers = markers
        self._offsets = offsets
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered: set[PendingReply[EndTxnResponse]] = set()

    def close(self) -> None:
        """Stop. What is decided goes on after the next start."""
        for task in list(self._tasks):
            task.cancel()
        for reply in list(self._unanswered):
            self._answer_end(reply, EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def end_txn(self, request: Request[EndTxnRequest]) -> Reply:
        body = request.body
        bump = request.version >= BUMPS_EPOCH_SINCE
        try:
            known = request.access.transaction(body.transactional_id, Operation.WRITE)
            current = require(known, body.transactional_id)
            answer = _end_with_bump(current, body) if bump else self._end_without_bump(current, request)
            if answer is EndAnswer.REFUSE:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE)
            if answer is EndAnswer.WAIT:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            if answer is EndAnswer.DECIDE:
                return self.decide(current, commit=body.committed, bump=bump)
        except HeadraceError as error:
            return EndTxnResponse(error_code=fenced_as_known(code_of(error), request.version, FENCED_SINCE_END))
        return EndTxnResponse(producer_id=current.producer_id, producer_epoch=current.producer_epoch)

    def _end_without_bump(self, current: Transaction, request: Request[EndTxnRequest]) -> EndAnswer:
        body = request.body
        if body.producer_id != current.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if body.producer_epoch != current.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        self._connections.check(current, request.peer)
        return END_WITHOUT_BUMP[current.state, body.committed]

    def decide(self, current: Transaction, *, commit: bool, bump: bool) -> PendingReply[EndTxnResponse]:
        """Write the decision and the pending group offsets as one change. The reply comes when it is carried out."""
        next_producer_id = self._ids.take() if bump and current.epoch_exhausted else NO_ID
        now_ms = self._clock.wall_ms()
        decided = current.prepared(commit=commit, bump=bump, next_producer_id=next_producer_id, now_ms=now_ms)
        offsets = self._offsets.complete_transaction(current.producer_id, commit)
        self._transactions.store(decided, offsets)
        self._offsets.apply_transaction(current.producer_id, commit)
        reply: PendingReply[EndTxnResponse] = PendingReply()
        self._unanswered.add(reply)
        self.run(self._carry_out(decided, reply))
        return reply

    async def _carry_out(self, decided: Transaction, reply: PendingReply[EndTxnResponse]) -> None:
        rotated = decided.next_producer_id != NO_ID
        response = EndTxnResponse(
            producer_id=decided.next_producer_id if rotated else decided.producer_id,
            producer_epoch=0 if rotated else decided.producer_epoch,
        )
        await self._transactions.durable(decided.transactional_id)
        await self.finish(decided, lambda: self._answer_end(reply, response), after_restart=False)
        self._answer_end(reply, response)

    async def finish(self, decided: Transaction, on_trouble: Callable[[], None], *, after_restart: bool) -> None:
        """Write the markers, then ``Complete``. The decision is durable, so a failure is retried until it succeeds."""
        owed = await self._markers.write(decided, only_where_open=after_restart, on_trouble=on_trouble)
        while True:
            try:
                self._transactions.store(decided.completed(self._clock.wall_ms()), [each.row for each in owed])
                return
            except HeadraceError as error:
                _log.warning("transaction %r cannot be recorded as complete yet: %s", decided.transactional_id, error)
                on_trouble()
                await pause(self._clock, RETRY_S)

    def _answer_end(self, reply: PendingReply[EndTxnResponse], response: EndTxnResponse) -> None:
        self._unanswered.discard(reply)
        reply.deliver(response)

    # ---- tasks ----

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("ending a transaction failed; please file a bug", exc_info=error)


def _end_with_bump(current: Transaction, body: EndTxnRequest) -> EndAnswer:
    rotated = (
        current.producer_epoch == 0
        and body.producer_epoch == EPOCH_EXHAUSTED
        and body.producer_id == current.previous_producer_id
    )
    if body.producer_id != current.producer_id and not rotated:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = rotated or body.producer_epoch + 1 == current.producer_epoch
    is_current = body.producer_id == current.producer_id and body.producer_epoch == current.producer_epoch
    answer = END_WITH_BUMP.get((current.state, body.committed, is_retry))
    if answer is None or not (is_retry or is_current):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return answer
