"""The newest connection over which an epoch of a transactional id has spoken.

It fences a request that a client sent over a connection which it has replaced since: see "The delayed EndTxn" in
``coordinator``.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.request import Peer
from headrace.broker.transactions.states import Transaction
from headrace.errors import ErrorCode, KafkaError

__all__ = ["Connections"]


class Connections:
    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, Peer]] = {}
        """(epoch, connection) by transactional id."""

    def begin(self, transaction: Transaction, peer: Peer) -> None:
        """A new epoch was given out over this connection."""
        self._newest[transaction.transactional_id] = (transaction.producer_epoch, peer)

    def check(self, transaction: Transaction, peer: Peer) -> None:
        known = self._newest.get(transaction.transactional_id)
        replaced = (
            known is not None
            and known[0] == transaction.producer_epoch
            and known[1].listener == peer.listener
            and known[1].id > peer.id
        )
        if replaced or peer.closed:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, "this request was sent over a connection replaced since")
        self.begin(transaction, peer)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._newest.pop(name, None)
