"""Transactions: who may write in whose name, and how a transaction ends everywhere or nowhere.

coordinator.py    how all of it survives a crash; its parts put together, timeouts, expiry
registry.py       the present state of each transactional id
states.py         what may follow what, as a table
producers.py      InitProducerId; producer_ids.py hands out ids in durable blocks
additions.py      partitions and offsets that become part of a transaction
endings.py        EndTxn, and carrying out the decision
markers.py        the control batches that end a transaction in its partitions; owed_markers.py those of damaged ones
recovery.py       what a start finds
connections.py    which connection may still speak for a producer
listing.py        DescribeTransactions and ListTransactions
answers.py        each error code as the version of the request knows it
"""

from __future__ import annotations

from headrace.broker.transactions.coordinator import TransactionCoordinator

__all__ = ["TransactionCoordinator"]
