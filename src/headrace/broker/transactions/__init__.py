"""Transactions: who may write in whose name, and how a transaction ends everywhere or nowhere.

coordinator.py    the requests, and the order of writes that survives a crash
states.py         what may follow what, as a table
markers.py        the control batches that end a transaction in its partitions
owed_markers.py   the markers that damaged partitions lack
listing.py        DescribeTransactions and ListTransactions
producer_ids.py   ids handed out in durable blocks
"""

from __future__ import annotations

from headrace.broker.transactions.coordinator import TransactionCoordinator

__all__ = ["TransactionCoordinator"]
