"""All transactional ids. The coordinator changes it; requests see it through the access gate."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.transactions.states import Transaction

__all__ = ["Transactions"]


class Transactions(dict[str, Transaction]):
    """The present state of each transactional id."""

    def find(self, transactional_id: str) -> Transaction | None:
        return self.get(transactional_id)

    def all(self) -> Iterable[Transaction]:
        return self.values()
