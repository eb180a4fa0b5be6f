"""The transaction coordinator: who may write in whose name, and how a transaction ends everywhere or nowhere.

A transactional id is one row of the state table ``transactions``; ``transaction_states`` holds what may follow what.
The rules and error codes are Apache Kafka 4's; what follows is what one machine makes different.

**Ending.** EndTxn writes the decision and the group offsets that hang on it as one atomic change, waits until that is
flushed, appends a marker to every partition, waits until those are flushed, records ``Complete`` and answers. A crash

- before the decision is flushed: it never was; the client has heard nothing, the transaction is still open;
- after that: ``load`` finds ``Prepare…`` and goes on, writing a marker only where the producer's records have none;
- after the markers, before ``Complete`` is flushed: the same, and there is nothing left to write.

Markers never come before a flushed decision (half of them could survive without it), and ``Complete`` never before
flushed markers (readers would wait for the missing one for ever). ``Complete`` itself is not waited for. The client
could be told once the decision is flushed, as Kafka does; then its next transaction would run into
CONCURRENT_TRANSACTIONS and a pause of 20 ms and more, where waiting for the markers costs one shared sync. Only if a
marker cannot be written (the disk is full) is the client told before.

**Joining by producing.** From Produce 12 on a partition joins with the first batch. Its row and its records lie in
different files and are flushed together, so a crash may keep the records and lose the row. Therefore the partitions'
logs are evidence too: ``load`` looks for open transactions that no row knows, and gives them back to their owner if
they carry its current epoch. (They must not be aborted: the client would repeat its batch, hear "duplicate", and
commit a transaction whose records are marked aborted.) What carries no current epoch has no owner any more and is
aborted. That also ends the wait of readers where a power failure took a marker from a topic whose ``headrace.flush``
is not ``ack``; the records in front of it are then lost to them, as that setting accepts.

**The delayed EndTxn.** A client sends EndTxn, loses patience, reconnects, repeats it and goes on; then the first one
arrives and ends the *next* transaction in the middle. From EndTxn 5 on every end bumps the epoch, so the late one is
fenced: closed. Older clients (librdkafka, aiokafka, kafka-python) keep their epoch, and for them:

- requests of one connection are executed in order, and a connection known to be closed executes nothing more;
- across connections, the newest connection on which a producer epoch has spoken is remembered, and EndTxn,
  AddPartitionsToTxn and AddOffsetsToTxn from one that was accepted earlier are fenced. A client gives up a connection
  before it opens the next, and one listener accepts in that order, so its late request is always the older one;
- a restart of the broker ends every connection, and with them what was under way.

What remains open for those clients: two listeners accept independently, so a client that changes from one to the
other in mid-transaction is not covered; TxnOffsetCommit travels on the group's connection, and one that is delayed
into the next transaction puts older offsets there; a proxy that spreads one client over several lasting connections
may be fenced without reason. A producer whose transaction is ended by another process must end it over a newer
connection or with EndTxn 5.
"""

from __future__ import annotations

import logging
from typing import Protocol

from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.state import StateStore
from headrace.broker.topics import Topics
from headrace.broker.transactions.additions import AdditionHandler, PendingOffsets
from headrace.broker.transactions.connections import Connections
from headrace.broker.transactions.endings import CompletedOffsets, Endings
from headrace.broker.transactions.listing import describe, list_matching
from headrace.broker.transactions.markers import MarkerWriter
from headrace.broker.transactions.owed_markers import OwedMarkers
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.producers import ProducerIdHandler
from headrace.broker.transactions.recovery import TransactionRecovery
from headrace.broker.transactions.registry import Transactions
from headrace.broker.transactions.states import NEXT_STATES, State
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.ports import Clock, TimerHandle
from headrace.wire.kafka.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest

__all__ = ["GroupOffsets", "TransactionCoordinator"]

EXPIRY_INTERVAL_S = 3600.0
EXPIRED_PER_CHANGE = 500

_log = logging.getLogger(__name__)


class GroupOffsets(PendingOffsets, CompletedOffsets, Protocol):
    """What the handler of group offsets does for transactions."""


class TransactionCoordinator:
    """The parts that answer requests about producer ids and transactions, and what time does to transactions."""

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
        self._ids = ProducerIds(state)
        self._connections = Connections()
        self._owed = OwedMarkers(state, topics)
        self._timers: dict[str, TimerHandle] = {}
        markers = MarkerWriter(clock, topics)
        self.endings = Endings(
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
            clock=clock,
            topics=topics,
            transactions=transactions,
            markers=markers,
            owed=self._owed,
            endings=self.endings,
        )

    def load(self) -> None:
        """Take up what the state and the logs say: finish what was decided, watch what is open."""
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

    def describe_transactions(self, request: Request[DescribeTransactionsRequest]) -> Reply:
        return describe(request.access, request.body)

    def list_transactions(self, request: Request[ListTransactionsRequest]) -> Reply:
        return list_matching(request.access.visible_transactions(), request.body, now_ms=self._clock.wall_ms())

    # ---- time ----

    def _sweep_later(self) -> None:
        interval_ms = self._settings.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        self._timers["sweep"] = self._clock.call_later(interval_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        """Abort what has taken longer than its producer said, and fence the producer."""
        for overdue in self._transactions.overdue():
            try:
                self.endings.decide(overdue, commit=False, bump=True)
                _log.info("transaction %r timed out and is aborted", overdue.transactional_id)
            except HeadraceError as error:
                _log.warning("transaction %r timed out and cannot be aborted yet: %s", overdue.transactional_id, error)
        self._sweep_later()

    def _expire_later(self) -> None:
        self._timers["expire"] = self._clock.call_later(EXPIRY_INTERVAL_S, self._expire)

    def _expire(self) -> None:
        """Forget transactional ids that nobody has used for long."""
        before_ms = self._clock.wall_ms() - self._settings.integer("transactional.id.expiration.ms")
        idle = [
            each.transactional_id
            for each in self._transactions.all()
            if State.DEAD in NEXT_STATES[each.state] and each.updated_ms <= before_ms
        ]
        try:
            for start in range(0, len(idle), EXPIRED_PER_CHANGE):
                names = idle[start : start + EXPIRED_PER_CHANGE]
                self._transactions.remove(names)
                self._connections.forget(names)
        except HeadraceError as error:
            _log.warning("idle transactional ids cannot be removed yet: %s", error)
        self._expire_later()
