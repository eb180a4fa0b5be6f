"""The transaction coordinator: how transactions survive a crash, and its parts put together.

A transactional id is one row of the state table ``transactions``; ``states`` has the table of transitions. The rules
and error codes are Apache Kafka 4's. This page describes what is different on one machine.

**Ending.** EndTxn writes the decision and the pending group offsets as one atomic change, waits until that is flushed,
appends a marker to every partition, waits until those are flushed, records ``Complete`` and answers. After a crash

- before the decision was flushed, the transaction is still open, and the client has had no answer;
- after that, ``load`` finds ``Prepare…`` and continues: it writes a marker where the producer's records have none;
- after the markers and before ``Complete`` was flushed, ``load`` does the same and finds nothing left to write.

Markers never come before a flushed decision, because half of them could survive without it. ``Complete`` never comes
before flushed markers, because readers would wait for a missing marker for ever. Nothing waits for ``Complete`` itself.
Kafka answers the client once the decision is flushed. Here its next transaction would then meet CONCURRENT_TRANSACTIONS
and pause for 20 ms or more, while waiting for the markers costs one shared sync. Only if a marker cannot be written,
because the disk is full, is the client answered before.

**Joining by producing.** From Produce 12 on, the first batch adds its partition. The row and the records are in
different files that are flushed together, so a crash may keep the records and lose the row. Therefore ``load`` also
looks for open transactions in the logs that no row knows. Those of a current epoch are added to the row of their owner.
They must not be aborted: the client would repeat its batch, learn that it is a duplicate, and commit a transaction
whose records are marked aborted. Those of another epoch have no owner and are aborted. This also releases readers where
a power failure took a marker from a topic whose ``headrace.flush`` is not ``ack``; the records before that marker are
then lost to them, as that setting accepts. Where the journal was repaired and rows are lost, all logs are looked
through, not only those whose end was recovered.

**The delayed EndTxn.** A client sends EndTxn, times out, reconnects, repeats it and begins its next transaction. Then
the first EndTxn arrives and ends that next transaction. From EndTxn 5 on every end bumps the epoch, so the late one is
fenced. Older clients (librdkafka, aiokafka, kafka-python) keep their epoch. For them:

- requests of one connection are executed in order, and a connection known to be closed executes nothing more;
- across connections, ``connections`` keeps the newest connection on which a producer epoch has sent a request. EndTxn,
  AddPartitionsToTxn and AddOffsetsToTxn from a connection that was accepted earlier are fenced. A client gives up a
  connection before it opens the next, and a listener accepts in that order, so a late request comes from the older one;
- a restart of the broker ends every connection and the requests on them.

Not covered for those clients: two listeners accept independently, so a client that changes listeners within a
transaction is not protected. TxnOffsetCommit uses the group's connection, and one that is delayed into the next
transaction adds older offsets to it. A proxy that spreads one client over several lasting connections may be fenced
without reason. A process that ends the transaction of another must do so over a newer connection or with EndTxn 5.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.broker.state import StateStore
from headrace.broker.topics import Topics
from headrace.broker.transactions.additions import AdditionHandler, PendingOffsets
from headrace.broker.transactions.connections import Connections
from headrace.broker.transactions.endings import CompletedOffsets, EndTxnHandler
from headrace.broker.transactions.listing import describe, list_matching
from headrace.broker.transactions.markers import MarkerWriter
from headrace.broker.transactions.owed_markers import OwedMarkers
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.producers import ProducerIdHandler
from headrace.broker.transactions.recovery import TransactionRecovery
from headrace.broker.transactions.registry import Transactions
from headrace.broker.transactions.states import NEXT_STATES, State, Transaction
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.ports import Clock, TimerHandle
from headrace.wire.kafka.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest

__all__ = ["GroupOffsets", "TransactionCoordinator"]

EXPIRY_INTERVAL_S = 3600.0
ABORTED_PER_TURN = 50
EXPIRED_PER_TURN = 500
"""Transactional ids that are looked at before others get their turn of the loop. All that there may be can time out at
once, and to abort one takes some 50 µs."""

_log = logging.getLogger(__name__)


class GroupOffsets(PendingOffsets, CompletedOffsets, Protocol):
    """What the handler of group offsets does for transactions."""


class TransactionCoordinator:
    """Holds the handlers of transactions, aborts overdue transactions and removes idle transactional ids."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        settings: Settings,
        topics: Topics,
        offsets: GroupOffsets,
        transactions: Transactions,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._transactions = transactions
        self._ids = ProducerIds(state, clock)
        self._connections = Connections()
        self._owed = OwedMarkers(state, topics)
        self._timers: dict[str, TimerHandle] = {}
        markers = MarkerWriter(clock, topics)
        self.endings = EndTxnHandler(
            clock=clock,
            ids=self._ids,
            transactions=transactions,
            connections=self._connections,
            markers=markers,
            offsets=offsets,
        )
        self.producers = ProducerIdHandler(
            state=state,
            clock=clock,
            settings=settings,
            ids=self._ids,
            transactions=transactions,
            connections=self._connections,
            endings=self.endings,
        )
        self.additions = AdditionHandler(
            state=state, transactions=transactions, connections=self._connections, offsets=offsets
        )
        self._recovery = TransactionRecovery(
            state=state,
            clock=clock,
            topics=topics,
            transactions=transactions,
            markers=markers,
            owed=self._owed,
            endings=self.endings,
        )

    def load(self) -> None:
        """Load the rows, compare them with the logs, and finish what was decided before the start."""
        self._ids.load()
        self._transactions.load()
        self._owed.write_where_restored()
        later = self._recovery.compare_with_logs()
        decided = [each for each in self._transactions.all() if each.state.decided]
        self._timers["start"] = self._clock.call_later(0.0, lambda: self._recovery.roll_forward(decided, later))
        self._sweep_later()
        self._expire_later()

    def close(self) -> None:
        """Stop. What is decided goes on after the next start."""
        for timer in self._timers.values():
            timer.cancel()
        self.endings.close()

    # ---- looking ----

    def describe_transactions(self, request: Request[DescribeTransactionsRequest]) -> Steps[Reply]:
        return describe(request, self._settings)

    def list_transactions(self, request: Request[ListTransactionsRequest]) -> Steps[Reply]:
        return list_matching(request, self._settings, now_ms=self._clock.wall_ms())

    # ---- time ----

    def _sweep_later(self) -> None:
        interval_ms = self._settings.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        self._timers["sweep"] = self._clock.call_later(interval_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        """Abort transactions that are past their timeout, and fence their producers."""
        self._abort_some(iter(self._transactions.overdue()))

    def _abort_some(self, overdue: Iterator[Transaction]) -> None:
        some = list(islice(overdue, ABORTED_PER_TURN))
        for each in filter(self._is_unchanged, some):
            try:
                self.endings.decide(each, commit=False, bump=True)
                _log.info("transaction %r timed out and is aborted", each.transactional_id)
            except HeadraceError as error:
                _log.warning("transaction %r timed out and cannot be aborted yet: %s", each.transactional_id, error)
        if len(some) == ABORTED_PER_TURN:
            self._timers["sweep"] = self._clock.call_later(0.0, lambda: self._abort_some(overdue))
        else:
            self._sweep_later()

    def _is_unchanged(self, transaction: Transaction) -> bool:
        """Whether nothing has happened to it since it was looked up, in an earlier turn of the loop."""
        return self._transactions.find(transaction.transactional_id) is transaction

    def _expire_later(self) -> None:
        self._timers["expire"] = self._clock.call_later(EXPIRY_INTERVAL_S, self._expire)

    def _expire(self) -> None:
        """Remove transactional ids that have been idle for ``transactional.id.expiration.ms``."""
        before_ms = self._clock.wall_ms() - self._settings.integer("transactional.id.expiration.ms")
        self._expire_some(iter(self._transactions.all()), before_ms)

    def _expire_some(self, left: Iterator[Transaction], before_ms: int) -> None:
        some = list(islice(left, EXPIRED_PER_TURN))
        idle = [
            each.transactional_id
            for each in filter(self._is_unchanged, some)
            if State.DEAD in NEXT_STATES[each.state] and each.updated_ms <= before_ms
        ]
        try:
            if idle:
                self._transactions.remove(idle)
                self._connections.forget(idle)
        except HeadraceError as error:
            _log.warning("idle transactional ids cannot be removed yet: %s", error)
        if len(some) == EXPIRED_PER_TURN:
            self._timers["expire"] = self._clock.call_later(0.0, lambda: self._expire_some(left, before_ms))
        else:
            self._expire_later()
