"""Transactions after a restart: decided ones are finished, and those that only the logs know are added to the rows.

``coordinator`` explains why the logs may know more than the rows ("Joining by producing").
"""

from __future__ import annotations

import logging

from headrace.broker.state import StateStore
from headrace.broker.topics import Topics
from headrace.broker.transactions.endings import EndTxnHandler
from headrace.broker.transactions.markers import MarkerWriter, OpenTransaction, open_transactions
from headrace.broker.transactions.owed_markers import OwedMarkers
from headrace.broker.transactions.registry import Transactions, require
from headrace.broker.transactions.states import Transaction
from headrace.errors import HeadraceError
from headrace.ports import Clock

__all__ = ["TransactionRecovery"]

_log = logging.getLogger(__name__)


class TransactionRecovery:
    """Compares the rows with the logs at a start, and rolls forward."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        topics: Topics,
        transactions: Transactions,
        markers: MarkerWriter,
        owed: OwedMarkers,
        endings: EndTxnHandler,
    ) -> None:
        self._state = state
        self._clock = clock
        self._topics = topics
        self._transactions = transactions
        self._markers = markers
        self._owed = owed
        self._endings = endings

    def compare_with_logs(self) -> dict[str | None, list[OpenTransaction]]:
        """Add transactions that are open in the logs to the rows of their owners; those that must wait, by owner.

        What belongs to a decided transaction gets its marker when that is carried out. After such a marker the owner's
        next transaction may have begun, if ``Complete`` was not flushed: it must wait until the first one is complete.
        """
        known = self._transactions.all()
        owners = {each.producer_id: each.transactional_id for each in known}
        owners.update({each.next_producer_id: each.transactional_id for each in known})
        decided = {each.transactional_id for each in known if each.state.decided}
        later: dict[str | None, list[OpenTransaction]] = {}
        for found in open_transactions(self._topics, rows_are_lost=self._state.has_lost_changes):
            if self._owed.covers(found.partition, found.producer_id):
                continue
            name = owners.get(found.producer_id)
            if name is None or name in decided:
                later.setdefault(name, []).append(found)
            elif not self._give_back(found, name):
                later.setdefault(None, []).append(found)
        return later

    def _give_back(self, found: OpenTransaction, owner: str) -> bool:
        """Add a transaction that is open in a log to its owner's row; False if it has another epoch."""
        current = require(self._transactions.find(owner), owner)
        if (found.producer_id, found.producer_epoch) != (current.producer_id, current.producer_epoch):
            return False
        where = frozenset([(found.partition.topic, found.partition.index)])
        try:
            self._transactions.add(current, partitions=where)
        except HeadraceError:
            # The disk is full. The log keeps the transaction open, and the row's next change includes the partition.
            self._transactions.remember(current.with_members(self._clock.wall_ms(), partitions=where))
        return True

    def roll_forward(self, decided: list[Transaction], later: dict[str | None, list[OpenTransaction]]) -> None:
        """Finish transactions that were decided before the start. Later decisions have their own tasks."""
        for transaction in decided:
            self._endings.run(self._roll_forward_one(transaction, later.get(transaction.transactional_id, [])))
        for stray in later.get(None, []):
            self._endings.run(self._abort_stray(stray))

    async def _roll_forward_one(self, decided: Transaction, after: list[OpenTransaction]) -> None:
        _log.info("transaction %r was decided before the restart: %s", decided.transactional_id, decided.state)
        await self._endings.finish(decided, lambda: None, after_restart=True)
        for found in after:
            of_decided = found.producer_id == decided.producer_id and found.producer_epoch <= decided.data_epoch
            if not of_decided and not self._give_back(found, decided.transactional_id):
                self._endings.run(self._abort_stray(found))

    async def _abort_stray(self, stray: OpenTransaction) -> None:
        _log.warning(
            "%s-%d holds a transaction of producer %d, epoch %d, that no transactional id stands for: aborting it",
            stray.partition.topic,
            stray.partition.index,
            stray.producer_id,
            stray.producer_epoch,
        )
        await self._markers.abort(stray)
