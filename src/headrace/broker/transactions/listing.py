"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation, ResourceType
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.patterns import MATCHED_CHARS_PER_UNIT, compile_pattern
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.broker.transactions.states import State, Transaction
from headrace.config import Settings
from headrace.errors import ErrorCode, KafkaError
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

TRANSACTIONS_PER_STEP = 50
PARTITIONS_PER_UNIT = 20
MATCH_UNITS_PER_STEP = 100

_STATE_NAMES = frozenset(state.value for state in State)


def describe(request: Request[DescribeTransactionsRequest], settings: Settings) -> Steps[DescribeTransactionsResponse]:
    """Every id as often as it is asked for, as in Kafka; the bytes are shared."""
    states = Elements(DescribeTransactionsResponse, request.version, settings)
    for name in request.body.transactional_ids:
        if states.full is not None:
            states.refuse(_failed(name, states.full))
        elif not states.repeat(name):
            described = _described(request.access, name)
            states.add(described, partial(_failed, name), name)
            yield 1 + sum(len(each.partitions) for each in described.topics) // PARTITIONS_PER_UNIT
        yield 1
    return DescribeTransactionsResponse(transaction_states=states.encoded)


def _failed(name: str, error: KafkaError) -> TransactionState:
    return TransactionState(transactional_id=name, error_code=error.code)


def _described(access: Access, name: str) -> TransactionState:
    try:
        transaction = access.transaction(name, Operation.DESCRIBE)
    except AccessDenied as denied:
        return _failed(name, denied)
    if not name:
        return TransactionState(transactional_id=name, error_code=ErrorCode.INVALID_REQUEST)
    if transaction is None:
        return TransactionState(transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=name,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=sorted(indexes))
            for topic, indexes in sorted(topics.items())
            if access.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    )


def list_matching(
    request: Request[ListTransactionsRequest], settings: Settings, *, now_ms: int
) -> Steps[ListTransactionsResponse]:
    """The transactions that pass every filter. RE2 matches the pattern in bounded time: it comes from a client."""
    body = request.body
    pattern: Any = None
    if body.transactional_id_pattern:
        try:
            pattern = compile_pattern(body.transactional_id_pattern, "TransactionalIdPattern")
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code)
    states, producer_ids = set(body.state_filters), set(body.producer_id_filters)
    found = Elements(ListTransactionsResponse, request.version, settings)
    units = 0
    for some in in_steps(request.access.visible_transactions(), TRANSACTIONS_PER_STEP):
        for each in some:
            if pattern is not None:
                units += len(each.transactional_id) // MATCHED_CHARS_PER_UNIT
                if units >= MATCH_UNITS_PER_STEP:
                    yield units
                    units = 0
            passes = (
                (not states or each.state.value in states)
                and (not producer_ids or each.producer_id in producer_ids)
                and (body.duration_filter < 0 or now_ms - each.started_ms > body.duration_filter)
                and (pattern is None or pattern.fullmatch(each.transactional_id))
            )
            try:
                if passes:
                    found.require(_listed(each))
            except AnswerTooLarge as error:
                return ListTransactionsResponse(error_code=error.code)
        yield len(some)
    unknown = [each for each in dict.fromkeys(body.state_filters) if each not in _STATE_NAMES]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found.encoded)


def _listed(transaction: Transaction) -> ListTransactionsResponseTransactionState:
    return ListTransactionsResponseTransactionState(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        transaction_state=transaction.state.value,
    )
