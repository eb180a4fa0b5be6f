"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import re2

from headrace.broker.access import Access, AccessDenied, Operation, ResourceType
from headrace.broker.transactions.states import State, Transaction
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
    TopicData,
    TransactionState,
)

__all__ = ["describe", "list_matching"]

_STATE_NAMES = frozenset(state.value for state in State)


def describe(access: Access, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    states = [_described(access, name) for name in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


def _described(access: Access, name: str) -> TransactionState:
    try:
        transaction = access.transaction(name, Operation.DESCRIBE)
    except AccessDenied as denied:
        return TransactionState(transactional_id=name, error_code=denied.code)
    if not name:
        return TransactionState(transactional_id=name, error_code=ErrorCode.INVALID_REQUEST)
    if transaction is None:
        return TransactionState(transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=name,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
            if access.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    )


def list_matching(
    transactions: Iterable[Transaction], request: ListTransactionsRequest, *, now_ms: int
) -> ListTransactionsResponse:
    """The transactions that pass every filter. RE2 matches the pattern in bounded time: it comes from a client."""
    pattern: Any = None
    if request.transactional_id_pattern:
        try:
            pattern = re2.compile(request.transactional_id_pattern)
        except re2.error:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    found = [
        ListTransactionsResponseTransactionState(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state.value
        )
        for each in transactions
        if (not states or each.state.value in states)
        and (not producer_ids or each.producer_id in producer_ids)
        and (request.duration_filter < 0 or now_ms - each.started_ms > request.duration_filter)
        and (pattern is None or pattern.fullmatch(each.transactional_id))
    ]
    unknown = [each for each in request.state_filters if each not in _STATE_NAMES]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)
