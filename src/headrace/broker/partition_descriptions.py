"""DescribeProducers and DescribeLogDirs: what partitions hold. Both run in steps, because they may hold much."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.broker.access import AccessDenied, Operation
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.errors import code_of
from headrace.broker.partition import Partition
from headrace.broker.request import Request
from headrace.broker.slices import InThread, Steps, in_steps
from headrace.broker.topics import check_name
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.log.producers import ProducerStates, ProducerSummary
from headrace.log.store import LogStore
from headrace.wire.kafka.messages.configs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.wire.kafka.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

__all__ = ["PartitionDescriber"]

PRODUCERS_PER_STEP = 50
PARTITIONS_PER_STEP = 50


class PartitionDescriber:
    """Answers DescribeProducers and DescribeLogDirs."""

    def __init__(self, *, store: LogStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    # ---- producers ----

    def describe_producers(self, request: Request[DescribeProducersRequest]) -> Steps[DescribeProducersResponse]:
        """A partition that is named again is described again, as in Kafka, with the same bytes."""
        topics = Elements(DescribeProducersResponse, request.version, self._settings)
        for asked in request.body.topics:
            partitions = topics.inner()
            for index in asked.partition_indexes:
                if partitions.full is not None:
                    partitions.refuse(_failed(index, partitions.full))
                elif not partitions.repeat(index):
                    described = yield from self._producers(request, asked.name, index, partitions)
                    partitions.add(described, partial(_failed, index), index)
                yield 1
            topics.add_outer(TopicResponse(name=asked.name, partitions=partitions.encoded))
        return DescribeProducersResponse(topics=topics.encoded)

    def _producers(
        self, request: Request[DescribeProducersRequest], name: str, index: int, elements: Elements
    ) -> Steps[PartitionResponse]:
        access = request.access
        try:
            access.topic(name, Operation.READ)
            check_name(name)
            producers = access.partition(name, index, Operation.READ).log.producers
        except HeadraceError as error:
            return _failed(index, error)
        states: list[Any] = []
        for some in in_steps(producers.ids(), PRODUCERS_PER_STEP):
            states += [elements.encode(_state(each)) for each in _summaries(producers, some)]
            yield len(some)
        return PartitionResponse(partition_index=index, active_producers=states)

    # ---- log directories ----

    def describe_log_dirs(self, request: Request[DescribeLogDirsRequest]) -> Steps[DescribeLogDirsResponse]:
        try:
            request.access.check_cluster(Operation.DESCRIBE)
        except AccessDenied as denied:
            return DescribeLogDirsResponse(error_code=denied.code)
        disk, directory = self._store.disk, self._store.directory
        total_bytes = yield InThread(disk.total_bytes, (directory,))
        usable_bytes = yield InThread(disk.free_bytes, (directory,))
        topics = Elements(DescribeLogDirsResponse, request.version, self._settings)
        result = DescribeLogDirsResult(log_dir=directory, total_bytes=total_bytes, usable_bytes=usable_bytes)
        for name, indexes in _asked(request).items():
            sizes = yield from self._sizes(request, name, indexes, topics)
            if sizes is not None:
                try:
                    topics.require(DescribeLogDirsTopic(name=name, partitions=sizes))
                except AnswerTooLarge as error:
                    return DescribeLogDirsResponse(error_code=error.code)
        result.topics = topics.encoded
        return DescribeLogDirsResponse(results=[result])

    @staticmethod
    def _sizes(
        request: Request[DescribeLogDirsRequest], name: str, indexes: dict[int, None] | None, elements: Elements
    ) -> Steps[list[Any] | None]:
        """The partitions of a topic that are served, each with its size; None if there is no such topic."""
        topic = request.access.topic(name, Operation.DESCRIBE, or_on_cluster=Operation.DESCRIBE)
        if topic is None:
            return None
        found = topic.served if indexes is None else [topic.partition(index) for index in indexes]
        sizes: list[Any] = []
        for some in in_steps(found, PARTITIONS_PER_STEP):
            sizes += [elements.encode(_size(each)) for each in some if each is not None and each.fault is None]
            yield len(some)
        return sizes


def _asked(request: Request[DescribeLogDirsRequest]) -> dict[str, dict[int, None] | None]:
    """The partitions by topic, each once, as in Kafka; None for all partitions of a topic."""
    if request.body.topics is None:
        visible = request.access.visible_topics(or_on_cluster=Operation.DESCRIBE)
        return {topic.name: None for topic in visible}
    asked: dict[str, dict[int, None] | None] = {}
    for topic in request.body.topics:
        indexes = asked.setdefault(topic.topic, {})
        assert indexes is not None
        indexes.update(dict.fromkeys(topic.partitions))
    return asked


def _size(partition: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)


def _summaries(producers: ProducerStates, ids: list[int]) -> list[ProducerSummary]:
    found = [producers.summary(each) for each in ids]
    return [each for each in found if each is not None]


def _state(summary: ProducerSummary) -> ProducerState:
    return ProducerState(
        producer_id=summary.producer_id,
        producer_epoch=summary.producer_epoch,
        last_sequence=summary.last_sequence,
        last_timestamp=summary.last_timestamp,
        coordinator_epoch=summary.coordinator_epoch,
        current_txn_start_offset=summary.transaction_start_offset,
    )


def _failed(index: int, error: HeadraceError) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=code_of(error), error_message=error.message)
