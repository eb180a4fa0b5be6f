"""All transactional ids: their rows in the state table ``transactions``, and when each ongoing transaction times out.

Requests see them through the access gate. A change is kept in memory only if the state store took it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from headrace.broker.limits import GROUPS_PER_TRANSACTION_MAX
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.state import Change, StateStore
from headrace.broker.transactions.states import NO_ID, State, Transaction
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock

__all__ = ["TRANSACTIONS_TABLE", "TopicPartition", "Transactions", "require", "require_producer"]

TRANSACTIONS_TABLE = "transactions"

TopicPartition = tuple[str, int]


class Transactions:
    """The present state of each transactional id."""

    def __init__(self, *, state: StateStore, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._by_id: dict[str, Transaction] = {}
        self._stored_at: dict[str, int] = {}
        """The journal offset of each row's last change in this run."""
        self._deadlines: dict[str, float] = {}
        """When each ongoing transaction times out, by the monotonic clock."""

    def __len__(self) -> int:
        return len(self._by_id)

    def load(self) -> None:
        for transactional_id, row in self._state.table(TRANSACTIONS_TABLE).items():
            self.remember(Transaction.from_row(transactional_id, row))

    # ---- looking ----

    def find(self, transactional_id: str) -> Transaction | None:
        return self._by_id.get(transactional_id)

    def all(self) -> list[Transaction]:
        return list(self._by_id.values())

    def overdue(self) -> list[Transaction]:
        """Ongoing transactions that have taken longer than their producer said."""
        now = self._clock.monotonic()
        return [self._by_id[name] for name, deadline in self._deadlines.items() if deadline <= now]

    # ---- changing ----

    def store(self, transaction: Transaction, others: Iterable[Change] = ()) -> None:
        """Write the row with ``others`` as one change. On a full disk the client gets a reason to ask again."""
        name = transaction.transactional_id
        try:
            offset = self._state.put_many([(TRANSACTIONS_TABLE, name, transaction.to_row()), *others])
        except HeadraceError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        self._stored_at[name] = offset
        self.remember(transaction)

    def add(
        self,
        current: Transaction,
        *,
        partitions: frozenset[TopicPartition] = frozenset(),
        groups: frozenset[str] = frozenset(),
    ) -> None:
        """Store the transaction with what is added to it, unless it has all of that."""
        known = current.state is State.ONGOING and partitions <= current.partitions and groups <= current.groups
        if len(current.groups | groups) > GROUPS_PER_TRANSACTION_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"a transaction commits offsets of at most {GROUPS_PER_TRANSACTION_MAX} groups",
            )
        if not known:
            self.store(current.with_members(self._clock.wall_ms(), partitions=partitions, groups=groups))

    def remember(self, transaction: Transaction) -> None:
        """Keep it in memory only. An ongoing one has a deadline: after a restart, what is left of its time."""
        name = transaction.transactional_id
        self._by_id[name] = transaction
        if transaction.state is not State.ONGOING:
            self._deadlines.pop(name, None)
        elif name not in self._deadlines:
            elapsed_ms = self._clock.wall_ms() - transaction.started_ms
            left_ms = min(max(transaction.timeout_ms - elapsed_ms, 0), transaction.timeout_ms)
            self._deadlines[name] = self._clock.monotonic() + left_ms / 1000

    def remove(self, names: Sequence[str]) -> None:
        self._state.put_many([(TRANSACTIONS_TABLE, name, None) for name in names])
        for name in names:
            del self._by_id[name]
            self._stored_at.pop(name, None)

    # ---- durability ----

    def stored_at(self, transactional_id: str) -> int:
        """The journal offset of the row's last change in this run; -1 if it has not changed."""
        return self._stored_at.get(transactional_id, -1)

    def once_durable(self, transactional_id: str, response: object) -> Reply:
        """The response, when the row's last change is flushed."""
        return once_flushed(self._state, self.stored_at(transactional_id), response)

    def durable(self, transactional_id: str) -> asyncio.Future[None]:
        """Done when the row's last change is flushed."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        offset = self.stored_at(transactional_id)
        self._state.when_flushed(offset, lambda: None if durable.done() else durable.set_result(None))
        return durable


def require(current: Transaction | None, transactional_id: str) -> Transaction:
    """The transaction, or the error of a transactional id that is not known."""
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if current is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    return current


def require_producer(
    current: Transaction | None, transactional_id: str, producer_id: int, producer_epoch: int
) -> Transaction:
    """The transaction, if this producer may add to it."""
    current = require(current, transactional_id)
    if producer_id == current.next_producer_id != NO_ID:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if producer_id != current.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer_epoch != current.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if current.state.decided:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return current
