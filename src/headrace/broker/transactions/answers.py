"""Answers about transactions, with each error code as the version of the request knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.broker.access import Access, Operation
from headrace.broker.errors import code_of
from headrace.broker.slices import Steps, in_steps
from headrace.broker.transactions.states import NO_EPOCH, NO_ID
from headrace.errors import ErrorCode, HeadraceError
from headrace.wire.kafka.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    InitProducerIdResponse,
)

__all__ = ["fenced_as_known", "for_produce", "init_failed", "partition_results", "refused_partitions"]

TopicPartition = tuple[str, int]

PARTITIONS_PER_STEP = 50
LOOKED_UP_PER_UNIT = 3
ANSWERED_PER_UNIT = 10

FENCED_SINCE_INIT = 4
"""The version of InitProducerId from which clients know PRODUCER_FENCED."""


def init_failed(code: ErrorCode, version: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=fenced_as_known(code, version, FENCED_SINCE_INIT), producer_id=NO_ID, producer_epoch=NO_EPOCH
    )


def fenced_as_known(code: ErrorCode, version: int, since: int) -> ErrorCode:
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and version < since else code


def for_produce(code: ErrorCode, joins: bool) -> ErrorCode:
    """The code for Produce: older producers retry a batch only for errors of the partition."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.COORDINATOR_NOT_AVAILABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not joins):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


def refused_partitions(
    access: Access, wanted: Iterable[TopicPartition], or_on_cluster: Operation | None
) -> Steps[dict[TopicPartition, ErrorCode]]:
    """The partitions that may not be added, with the reason."""
    refused = {}
    for some in in_steps(wanted, PARTITIONS_PER_STEP):
        for name, index in some:
            try:
                access.partition(name, index, Operation.WRITE, or_on_cluster=or_on_cluster)
            except HeadraceError as error:
                refused[name, index] = code_of(error)
        yield len(some) // LOOKED_UP_PER_UNIT
    return refused


def partition_results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    results = []
    for topic in topics:
        answer = AddPartitionsToTxnTopicResult(name=topic.name)
        results.append(answer)
        for some in in_steps(topic.partitions, PARTITIONS_PER_STEP):
            answer.results_by_partition += [
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=codes[topic.name, index])
                for index in some
            ]
            yield len(some) // ANSWERED_PER_UNIT
    return results
