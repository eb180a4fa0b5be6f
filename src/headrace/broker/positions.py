"""Offsets of a partition: its start, its end, at a timestamp, and at the end of a leader epoch."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice

from headrace.batch import Batch
from headrace.broker.access import Access, Operation
from headrace.broker.errors import code_of
from headrace.broker.partition import Partition
from headrace.broker.record_checks import RECORDS_PER_STEP, UNITS_PER_STEP, decoded
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.log import PartitionLog
from headrace.record import iter_timestamps
from headrace.vocabulary import Epoch, Offset
from headrace.wire.kafka.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

__all__ = ["OffsetLookup"]

LOG = logging.getLogger("headrace.broker")

UNITS_PER_LOOK = 20
"""A look for a time reads up to 1,000 batch headers, and as a rule a few."""

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
READ_COMMITTED = 1
LEAST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


class OffsetLookup:
    """Answers ListOffsets and OffsetForLeaderEpoch."""

    def list_offsets(self, request: Request[ListOffsetsRequest]) -> Steps[ListOffsetsResponse]:
        """A partition that is named twice is refused; a topic that is named twice is answered once."""
        committed = request.body.isolation_level == READ_COMMITTED
        asked = Counter(
            (topic.name, each.partition_index) for topic in request.body.topics for each in topic.partitions
        )
        answers: dict[str, list[ListOffsetsPartitionResponse]] = {}
        for topic in request.body.topics:
            for each in topic.partitions:
                times = asked.pop((topic.name, each.partition_index), 0)
                if times:
                    found = answers.setdefault(topic.name, [])
                if times == 1:
                    found.append((yield from self._list(request, topic.name, each, committed)))
                elif times > 1:
                    found.append(_failed(each.partition_index, ErrorCode.INVALID_REQUEST))
                yield 1
        topics = [ListOffsetsTopicResponse(name=name, partitions=found) for name, found in answers.items()]
        return ListOffsetsResponse(topics=topics)

    def _list(
        self, request: Request[ListOffsetsRequest], name: str, asked: ListOffsetsPartition, committed: bool
    ) -> Steps[ListOffsetsPartitionResponse]:
        index = asked.partition_index
        try:
            partition = request.access.partition(name, index, Operation.DESCRIBE)
            check_epoch(partition, asked.current_leader_epoch)
            if asked.timestamp < 0 and request.version < LEAST_VERSION.get(asked.timestamp, 0):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            timestamp, offset = yield from self._find(partition, asked.timestamp, committed)
        except HeadraceError as error:
            return _failed(index, code_of(error))
        except OSError as error:
            if not partition.removed:
                raise
            LOG.info("%s-%d was deleted while it was searched: %s", name, index, error)
            return _failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        epoch = partition.epoch_at(Offset(offset))
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )

    def _find(self, partition: Partition, asked: int, committed: bool) -> Steps[tuple[int, int]]:
        """(timestamp, offset); (-1, -1) where nothing fits."""
        end = partition.last_stable_offset if committed else partition.high_watermark
        if asked == LATEST:
            return -1, end
        if asked in (EARLIEST, EARLIEST_LOCAL):
            return -1, partition.log.start_offset
        if asked in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return -1, -1
        if asked < 0 and asked != MAX_TIMESTAMP:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if asked == MAX_TIMESTAMP:
            asked = yield from _latest_timestamp(partition.log)
            if asked < 0:
                return -1, -1
        found = yield from _first_at_or_after(partition.log, asked)
        return (-1, -1) if found is None or found[1] >= end else found

    def offset_for_leader_epoch(
        self, request: Request[OffsetForLeaderEpochRequest]
    ) -> Steps[OffsetForLeaderEpochResponse]:
        response = OffsetForLeaderEpochResponse()
        for topic in request.body.topics:
            answers = []
            for each in topic.partitions:
                answers.append(self._epoch_end(request.access, topic.topic, each))
                yield 1
            response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        return response

    def _epoch_end(self, access: Access, name: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = access.partition(
                name, asked.partition, Operation.DESCRIBE, or_on_cluster=Operation.CLUSTER_ACTION
            )
            check_epoch(partition, asked.current_leader_epoch)
            epoch, end = self._end_of(partition, Epoch(asked.leader_epoch))
        except HeadraceError as error:
            return EpochEndOffset(error_code=code_of(error), partition=asked.partition)
        return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end)

    @staticmethod
    def _end_of(partition: Partition, epoch: Epoch) -> tuple[int, int]:
        """(epoch, where it ended); (-1, -1) for an epoch that is not known."""
        log = partition.log
        if epoch > partition.leader_epoch:
            return -1, -1
        if epoch == partition.leader_epoch:
            return epoch, partition.high_watermark
        return log.epoch_end_offset(epoch) or (-1, -1)


def _first_at_or_after(log: PartitionLog, timestamp: int) -> Steps[tuple[int, int] | None]:
    """(timestamp, offset) of the first record at or after ``timestamp``; exact, decoding one batch as a rule."""
    offset: Offset | None = log.start_offset
    while offset is not None:
        batch, offset = log.reader.batch_at_or_after(timestamp, offset)
        yield UNITS_PER_LOOK
        if batch is not None:
            found = yield from _first_in(batch, log, timestamp)
            if found is not None:
                return found
            offset = Offset(batch.next_offset)
    return None


def _latest_timestamp(log: PartitionLog) -> Steps[int]:
    """The latest time of a record that is served, -1 if there is none."""
    start = offset = log.start_offset
    latest = -1
    look_on: Offset | None = offset
    while look_on is not None:
        found, look_on = log.reader.latest_timestamp(look_on)
        latest = max(latest, found)
        yield UNITS_PER_LOOK
    cut = log.reader.batch_holding(start)
    if cut is not None and cut.base_offset < start:
        data = yield from decoded(cut, log.config.decompressed_bytes_max)
        walk = iter_timestamps(cut, data)
        while taken := list(islice(walk, RECORDS_PER_STEP)):
            latest = max([latest, *(time for time, at in taken if at >= start)])
            yield UNITS_PER_STEP
    return latest


def _first_in(batch: Batch, log: PartitionLog, timestamp: int) -> Steps[tuple[int, int] | None]:
    data = yield from decoded(batch, log.config.decompressed_bytes_max)
    walk = iter_timestamps(batch, data)
    start = log.start_offset
    while taken := list(islice(walk, RECORDS_PER_STEP)):
        for time, at in taken:
            if time >= timestamp and at >= start:
                return time, at
        yield 1 + len(taken) * UNITS_PER_STEP // RECORDS_PER_STEP
    return None


def check_epoch(partition: Partition, current: int) -> None:
    """Refuse a client that knows an older leader epoch than this one, or a newer one."""
    if 0 <= current < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if current > partition.leader_epoch:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)


def _failed(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
