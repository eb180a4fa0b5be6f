"""What becomes part of a transaction: partitions and the offsets of groups.

Older clients add them with separate requests. Newer ones add a partition with the first batch (Produce 12) and a
group with its first offsets (TxnOffsetCommit 5).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from headrace.broker.access import Operation
from headrace.broker.errors import code_of
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.broker.state import StateStore
from headrace.broker.transactions.answers import (
    fenced_as_known,
    for_produce,
    partition_results,
    refused_partitions,
)
from headrace.broker.transactions.connections import Connections
from headrace.broker.transactions.registry import TopicPartition, Transactions, require_producer
from headrace.broker.transactions.states import State, Transaction
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    TxnOffsetCommitRequest,
)

__all__ = ["AdditionHandler", "PendingOffsets"]

# The version of each API from which its clients know PRODUCER_FENCED; before, they get INVALID_PRODUCER_EPOCH.
FENCED_SINCE_ADD_PARTITIONS = 2
FENCED_SINCE_ADD_OFFSETS = 2

ADD_PARTITIONS_BATCHED_SINCE = 4
UNITS_PER_TRANSACTION = 10
ADDED_PER_UNIT = 20
"""Partitions in the row of a transaction, which is written in one piece."""
PRODUCE_ABORTABLE_SINCE = 11
PRODUCE_JOINS_SINCE = 12
OFFSETS_ABORTABLE_SINCE = 4
OFFSETS_JOIN_SINCE = 5


class PendingOffsets(Protocol):
    """Keeps offsets of groups until the producer's transaction ends."""

    def txn_offset_commit(
        self,
        request: Request[TxnOffsetCommitRequest],
        check_producer: Callable[[Request[TxnOffsetCommitRequest]], ErrorCode],
    ) -> Steps[Reply]: ...


class AdditionHandler:
    """Answers AddPartitionsToTxn, AddOffsetsToTxn and TxnOffsetCommit, and checks transactional batches."""

    def __init__(
        self, *, state: StateStore, transactions: Transactions, connections: Connections, offsets: PendingOffsets
    ) -> None:
        self._state = state
        self._transactions = transactions
        self._connections = connections
        self._offsets = offsets

    def add_partitions_to_txn(self, request: Request[AddPartitionsToTxnRequest]) -> Steps[Reply]:
        body = request.body
        if request.version >= ADD_PARTITIONS_BATCHED_SINCE:
            # Only brokers send these versions; Kafka checks CLUSTER_ACTION and nothing else.
            if not request.access.may_cluster(Operation.CLUSTER_ACTION):
                return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            results = []
            offset = -1
            for each in body.transactions:
                topics, stored_at = yield from self._add_partitions(request, each)
                results.append(AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=topics))
                offset = max(offset, stored_at)
                yield UNITS_PER_TRANSACTION
            response = AddPartitionsToTxnResponse(results_by_transaction=results)
        else:
            single = AddPartitionsToTxnTransaction(
                transactional_id=body.v3_and_below_transactional_id,
                producer_id=body.v3_and_below_producer_id,
                producer_epoch=body.v3_and_below_producer_epoch,
                topics=body.v3_and_below_topics,
            )
            topics, offset = yield from self._add_partitions(request, single)
            response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
        return once_flushed(self._state, offset, response)

    def _add_partitions(
        self, request: Request[AddPartitionsToTxnRequest], asked: AddPartitionsToTxnTransaction
    ) -> Steps[tuple[list[AddPartitionsToTxnTopicResult], int]]:
        """The results, and the journal offset that must be flushed before they are sent (-1: none)."""
        wanted = frozenset((topic.name, index) for topic in asked.topics for index in topic.partitions)
        batched = request.version >= ADD_PARTITIONS_BATCHED_SINCE
        or_on_cluster = Operation.CLUSTER_ACTION if batched else None
        find = partial(request.access.transaction, asked.transactional_id, Operation.WRITE, or_on_cluster=or_on_cluster)
        stored_at = -1
        try:
            find()  # who may not see the transaction hears nothing of topics
            refused = yield from refused_partitions(request.access, wanted, or_on_cluster)
            if refused:
                codes = {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in wanted}
            else:
                codes, stored_at = self._add(request, asked, find(), wanted)
        except HeadraceError as error:
            code = fenced_as_known(code_of(error), request.version, FENCED_SINCE_ADD_PARTITIONS)
            codes = dict.fromkeys(wanted, code)
        yield len(wanted) // ADDED_PER_UNIT
        return (yield from partition_results(asked.topics, codes)), stored_at

    def _add(
        self,
        request: Request[AddPartitionsToTxnRequest],
        asked: AddPartitionsToTxnTransaction,
        known: Transaction | None,
        wanted: frozenset[TopicPartition],
    ) -> tuple[dict[TopicPartition, ErrorCode], int]:
        current = require_producer(known, asked.transactional_id, asked.producer_id, asked.producer_epoch)
        if asked.verify_only:
            missing = wanted - current.partitions
            codes = dict.fromkeys(wanted, ErrorCode.NONE) | dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE)
            return codes, -1
        self._connections.check(current, request.peer)
        self._transactions.add(current, partitions=wanted)
        return dict.fromkeys(wanted, ErrorCode.NONE), self._transactions.stored_at(asked.transactional_id)

    def add_offsets_to_txn(self, request: Request[AddOffsetsToTxnRequest]) -> Reply:
        body = request.body
        try:
            known = request.access.transaction(body.transactional_id, Operation.WRITE)
            request.access.group(body.group_id, Operation.READ)
            current = require_producer(known, body.transactional_id, body.producer_id, body.producer_epoch)
            self._connections.check(current, request.peer)
            self._transactions.add(current, groups=frozenset([body.group_id]))
        except HeadraceError as error:
            return AddOffsetsToTxnResponse(
                error_code=fenced_as_known(code_of(error), request.version, FENCED_SINCE_ADD_OFFSETS)
            )
        return self._transactions.once_durable(body.transactional_id, AddOffsetsToTxnResponse())

    def check_produce(
        self,
        current: Transaction | None,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        where: TopicPartition,
        joining: Callable[[], frozenset[TopicPartition]],
        version: int,
    ) -> ErrorCode:
        """Why a transactional batch may not be appended, or NONE. From Produce 12 on, it adds the partitions of its
        request."""
        if (
            current is not None
            and current.state is State.ONGOING
            and current.producer_id == producer_id
            and current.producer_epoch == epoch
            and where in current.partitions
        ):
            return ErrorCode.NONE
        joins = version >= PRODUCE_JOINS_SINCE
        try:
            if not transactional_id:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE)
            current = require_producer(current, transactional_id, producer_id, epoch)
            if not joins:
                abortable = version >= PRODUCE_ABORTABLE_SINCE
                return ErrorCode.TRANSACTION_ABORTABLE if abortable else ErrorCode.INVALID_TXN_STATE
            self._transactions.add(current, partitions=joining() | {where})
        except HeadraceError as error:
            return for_produce(code_of(error), joins)
        return ErrorCode.NONE

    def txn_offset_commit(self, request: Request[TxnOffsetCommitRequest]) -> Steps[Reply]:
        """The producer is checked here; the member and the topics by ``OffsetHandler``."""
        return self._offsets.txn_offset_commit(request, self._offsets_refusal)

    def _offsets_refusal(self, request: Request[TxnOffsetCommitRequest]) -> ErrorCode:
        """Why a group's offsets may not be part of a transaction, or NONE. From TxnOffsetCommit 5 on, they add their
        group."""
        body = request.body
        try:
            known = request.access.transaction(body.transactional_id, Operation.WRITE)
            current = require_producer(known, body.transactional_id, body.producer_id, body.producer_epoch)
            if request.version >= OFFSETS_JOIN_SINCE:
                self._transactions.add(current, groups=frozenset([body.group_id]))
            elif body.group_id not in current.groups:
                abortable = request.version >= OFFSETS_ABORTABLE_SINCE
                return ErrorCode.TRANSACTION_ABORTABLE if abortable else ErrorCode.INVALID_TXN_STATE
        except HeadraceError as error:
            fenced = code_of(error) is ErrorCode.PRODUCER_FENCED
            return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else code_of(error)
        return ErrorCode.NONE
