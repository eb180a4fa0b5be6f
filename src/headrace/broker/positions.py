"""Offsets of a partition: its start, its end, at a timestamp, and at the end of a leader epoch."""

from __future__ import annotations

from headrace.broker.access import Access, Operation
from headrace.broker.errors import code_of
from headrace.broker.partition import Partition
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.errors import ErrorCode, HeadraceError, KafkaError
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

    def list_offsets(self, request: Request[ListOffsetsRequest]) -> Reply:
        committed = request.body.isolation_level == READ_COMMITTED
        asked: dict[tuple[str, int], int] = {}
        for topic in request.body.topics:
            for each in topic.partitions:
                key = (topic.name, each.partition_index)
                asked[key] = asked.get(key, 0) + 1
        response = ListOffsetsResponse()
        for topic in request.body.topics:
            answers = []
            for each in topic.partitions:
                times = asked.pop((topic.name, each.partition_index), 0)
                if times == 0:
                    continue
                if times > 1:
                    answers.append(_failed(each.partition_index, ErrorCode.INVALID_REQUEST))
                else:
                    answers.append(self._list(request, topic.name, each, committed))
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return response

    def _list(
        self, request: Request[ListOffsetsRequest], name: str, asked: ListOffsetsPartition, committed: bool
    ) -> ListOffsetsPartitionResponse:
        index = asked.partition_index
        try:
            partition = request.access.partition(name, index, Operation.DESCRIBE)
            check_epoch(partition, asked.current_leader_epoch)
            if asked.timestamp < 0 and request.version < LEAST_VERSION.get(asked.timestamp, 0):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            timestamp, offset = self._find(partition, asked.timestamp, committed)
        except HeadraceError as error:
            return _failed(index, code_of(error))
        epoch = partition.epoch_at(Offset(offset))
        return ListOffsetsPartitionResponse(
            partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )

    @staticmethod
    def _find(partition: Partition, asked: int, committed: bool) -> tuple[int, int]:
        """(timestamp, offset); (-1, -1) where nothing fits."""
        end = partition.last_stable_offset if committed else partition.high_watermark
        if asked == LATEST:
            return -1, end
        if asked in (EARLIEST, EARLIEST_LOCAL):
            return -1, partition.log.start_offset
        if asked in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return -1, -1
        if asked == MAX_TIMESTAMP:
            found = partition.log.reader.max_timestamp()
        elif asked < 0:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        else:
            found = partition.log.reader.offset_for_timestamp(asked)
        if found is None or found[1] >= end:
            return -1, -1
        return found

    def offset_for_leader_epoch(self, request: Request[OffsetForLeaderEpochRequest]) -> Reply:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[self._epoch_end(request.access, topic.topic, each) for each in topic.partitions],
                )
                for topic in request.body.topics
            ]
        )

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


def check_epoch(partition: Partition, current: int) -> None:
    """Refuse a client that knows an older leader epoch than this one, or a newer one."""
    if 0 <= current < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if current > partition.leader_epoch:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)


def _failed(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
