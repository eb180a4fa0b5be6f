"""Fetch: from offsets to file ranges.

An answer is made of slices of segment files; no record is read here. It is bounded by the request's ``max_bytes`` over
all partitions, by ``partition_max_bytes`` for each, and by the last offset that this reader may see (the high
watermark, or the last stable offset for read_committed). The first partition that has records gives at least one whole
batch, so that a batch larger than every bound can be read.

A request that finds fewer than ``min_bytes`` waits up to ``max_wait_ms``. While it waits it holds no data; it is a
watcher of its partitions, and is answered from the beginning when one of them advances. A request for very many
partitions is read in slices (``slices``).

A read_committed answer lists the aborted transactions that have records in it, and no others. Sessions (KIP-227) are in
``fetch_sessions``, fetches under way in ``fetch_pending``.
"""

from __future__ import annotations

import logging

from headrace.broker.access import Access, AccessDenied, Operation
from headrace.broker.errors import code_of
from headrace.broker.fetch_pending import LargeFetch, PendingFetch, failed, log_failed_read
from headrace.broker.fetch_sessions import FetchSessions, Key
from headrace.broker.partition import Partition
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError
from headrace.log.reader import LogReader
from headrace.log.segment import FileSlice
from headrace.ports import Clock
from headrace.vocabulary import Epoch, Offset
from headrace.wire.kafka.codec import blank
from headrace.wire.kafka.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)

__all__ = ["FetchHandler"]

LOG = logging.getLogger("headrace.broker")

READ = Operation.READ

NO_EPOCH = blank(EpochEndOffset)
NO_LEADER = blank(LeaderIdAndEpoch)
NO_SNAPSHOT = blank(SnapshotId)

PARTITIONS_AT_ONCE = 200

REPEATED_READS = 3
"""After so many reads of one offset in a row its batch is checked."""
ABORTED_READ_BYTES = 1 << 20
"""A read that meets more aborted transactions than that is repeated with this many bytes. An aborted transaction takes
at least 140 bytes, so fewer than 10,000 can lie inside; those that only overlap are as many as were open at once."""


class FetchHandler:
    """Answers Fetch."""

    def __init__(self, *, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._settings = settings
        self.sessions = FetchSessions(clock=clock, settings=settings)

    def fetch(self, request: Request[FetchRequest]) -> Reply:
        try:
            session, wanted = self.sessions.wanted(request.body)
        except HeadraceError as error:
            return FetchResponse(error_code=code_of(error))
        if len(wanted) > PARTITIONS_AT_ONCE:
            return LargeFetch(self, request, wanted, session).steps()
        pending = PendingFetch(self, request, wanted, session)
        response = pending.attempt()
        return response if response is not None else pending.wait()

    # ---- one attempt ----

    @staticmethod
    def partition_of(access: Access, key: Key, by_id: bool) -> Partition | ErrorCode:
        try:
            topic = access.topic_by_id(key[1], READ) if by_id else access.topic(key[0], READ)
        except AccessDenied as denied:
            return denied.code
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return topic.partition(key[2]) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def read(
        self, partition: Partition, ask: FetchPartition, committed: bool, bytes_max: int, aborted_max: int, first: bool
    ) -> PartitionData:
        """What one partition has for this reader within ``bytes_max`` and, about, ``aborted_max`` aborted transactions;
        at least a batch if it is the ``first``."""
        log = partition.log
        high_watermark = partition.high_watermark
        stable = log.last_stable_offset
        if ask.fetch_offset == high_watermark and _is_up_to_date(partition, ask):
            return self._nothing_new(partition, high_watermark, stable, committed)
        answer = PartitionData(
            partition_index=partition.index,
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=log.start_offset,
            records=b"",
            diverging_epoch=NO_EPOCH,
            current_leader=NO_LEADER,
            snapshot_id=NO_SNAPSHOT,
        )
        if (code := _epoch_error(partition, ask.current_leader_epoch)) != ErrorCode.NONE:
            return failed(partition.index, code)
        offset = Offset(ask.fetch_offset)
        if not log.start_offset <= offset <= log.end_offset:
            return failed(partition.index, ErrorCode.OFFSET_OUT_OF_RANGE)
        if ask.last_fetched_epoch >= 0 and self._diverges(partition, ask, answer):
            return answer
        upto = stable if committed else high_watermark
        answer.aborted_transactions = [] if committed else None
        if offset < upto and ((bytes_max > 0 and aborted_max > 0) or first):
            try:
                records = log.reader.read(offset, bytes_max=max(0, bytes_max), offset_max=upto, min_one_batch=first)
                if committed and records:
                    records, answer.aborted_transactions = self._committed(
                        log.reader, offset, upto, records, aborted_max
                    )
                answer.records = records or b""
                if offset == partition.read_offset:
                    self._check_repeated(partition, offset)
                else:
                    partition.read_offset, partition.read_count = offset, 1
            except HeadraceError as error:
                answer.error_code = code_of(error)
                log_failed_read(partition, offset, error)
        return answer

    @staticmethod
    def _check_repeated(partition: Partition, offset: Offset) -> None:
        """Somebody reads the same offset again. If a batch is damaged in its records, only clients notice: they read
        it, find a wrong checksum, and try again. So at the third time its checksum is checked here, for the log."""
        partition.read_count += 1
        if partition.read_count == REPEATED_READS:
            try:
                next(partition.log.reader.batches(offset), None)
            except HeadraceError as error:
                log_failed_read(partition, offset, error)
                partition.read_count = 0

    @staticmethod
    def _committed(
        reader: LogReader, offset: Offset, upto: Offset, records: list[FileSlice], aborted_max: int
    ) -> tuple[list[FileSlice], list[AbortedTransaction]]:
        """The records, and the aborted transactions that have some of them; fewer records if those were too many."""
        aborted = reader.aborted_transactions(offset, records[-1].end_offset)
        if len(aborted) > aborted_max and sum(map(len, records)) > ABORTED_READ_BYTES:
            records = reader.read(offset, bytes_max=ABORTED_READ_BYTES, offset_max=upto, min_one_batch=True)
            aborted = reader.aborted_transactions(offset, records[-1].end_offset)
        return records, [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted
        ]

    def _nothing_new(self, partition: Partition, high_watermark: int, stable: int, committed: bool) -> PartitionData:
        """The answer to a reader at the end. Most partitions of most fetches get it, so it is made once and kept."""
        known = partition.nothing_new.get(committed)
        start = partition.log.start_offset
        if known is None or (known.high_watermark, known.last_stable_offset, known.log_start_offset) != (
            high_watermark,
            stable,
            start,
        ):
            known = partition.nothing_new[committed] = PartitionData(
                partition_index=partition.index,
                high_watermark=high_watermark,
                last_stable_offset=stable,
                log_start_offset=start,
                records=b"",
                aborted_transactions=[] if committed else None,
                diverging_epoch=NO_EPOCH,
                current_leader=NO_LEADER,
                snapshot_id=NO_SNAPSHOT,
            )
        return known

    def _diverges(self, partition: Partition, ask: FetchPartition, answer: PartitionData) -> bool:
        """Whether the reader has records that a crash took from this log. It cannot happen with headrace.flush=ack."""
        epoch, end = partition.log.epoch_end_offset(Epoch(ask.last_fetched_epoch)) or (-1, -1)
        if epoch < ask.last_fetched_epoch or end < ask.fetch_offset:
            answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
            return True
        return False


def _is_up_to_date(partition: Partition, ask: FetchPartition) -> bool:
    """Whether the reader last read from this leader epoch, so that it has no records of an earlier one to lose."""
    epoch = partition.leader_epoch
    return ask.current_leader_epoch in (-1, epoch) and ask.last_fetched_epoch in (-1, epoch)


def _epoch_error(partition: Partition, current: int) -> ErrorCode:
    if current < 0 or current == partition.leader_epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if current < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
