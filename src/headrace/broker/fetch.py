"""Fetch: from offsets to file ranges.

An answer is made of slices of segment files; no record is read here. It is bounded by the request's ``max_bytes`` over
all partitions, by ``partition_max_bytes`` for each, and by the last offset that this reader may see (the high
watermark, or the last stable offset for read_committed). The first partition that has records gives at least one whole
batch, so that a batch larger than every bound can be read.

A request that finds fewer than ``min_bytes`` waits up to ``max_wait_ms``. While it waits it holds no data; it is a
watcher of its partitions, and is answered from the beginning when one of them advances.

A read_committed answer lists the aborted transactions that have records in it, and no others. Sessions (KIP-227) are in
``fetch_sessions``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation
from headrace.broker.errors import code_of
from headrace.broker.fetch_sessions import INITIAL_EPOCH, FetchSession, FetchSessions, Key, Wanted
from headrace.broker.partition import Partition
from headrace.broker.replies import PendingReply, Reply
from headrace.broker.request import Request
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError
from headrace.log.reader import LogReader
from headrace.log.segment import FileSlice
from headrace.ports import Clock, TimerHandle
from headrace.vocabulary import Epoch, Offset
from headrace.wire.kafka.codec import blank
from headrace.wire.kafka.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)

__all__ = ["FetchHandler"]

LOG = logging.getLogger("headrace.broker")

TOPIC_IDS_SINCE = 13
READ_COMMITTED = 1
READ = Operation.READ

NO_EPOCH = blank(EpochEndOffset)
NO_LEADER = blank(LeaderIdAndEpoch)
NO_SNAPSHOT = blank(SnapshotId)

ABORTED_PER_ANSWER_MAX = 10_000
"""Aborted transactions listed in one answer. The reader fetches the rest with the records they belong to."""

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
            return _failed(partition.index, code)
        offset = Offset(ask.fetch_offset)
        if not log.start_offset <= offset <= log.end_offset:
            return _failed(partition.index, ErrorCode.OFFSET_OUT_OF_RANGE)
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
            except HeadraceError as error:
                answer.error_code = code_of(error)
                LOG.error("%s", error)
        return answer

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


class PendingFetch:
    """A fetch that may have to wait for a partition to advance, for its time to run out, or for its connection to end.

    What was read of a partition stays true until that partition advances (``_idle``). So when one of a thousand
    partitions advances, only that one is read again.
    """

    def __init__(
        self,
        handler: FetchHandler,
        request: Request[FetchRequest],
        wanted: OrderedDict[Key, Wanted],
        session: FetchSession | None,
    ) -> None:
        self._handler = handler
        self._request = request
        self._wanted = wanted
        self._session = session
        self._incremental = session is not None and request.body.session_epoch > INITIAL_EPOCH
        self._by_id = request.version >= TOPIC_IDS_SINCE
        self._reply: PendingReply[FetchResponse] | None = None
        self._timer: TimerHandle | None = None
        self._watched: list[Partition] = []
        self._idle: dict[Partition, PartitionData] = {}
        self._woken = False

    def attempt(self, *, final: bool = False) -> FetchResponse | None:
        """The answer, if there is enough data, an error, or no time left to wait."""
        body = self._request.body
        answers, total, urgent = self._read_all()
        if not (final or urgent or total >= body.min_bytes or body.max_wait_ms <= 0 or not self._wanted):
            return None
        response = FetchResponse(session_id=self._session.id if self._session is not None else 0)
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for key, wanted, answer in answers:
            if self._incremental and not wanted.is_news(answer):
                continue
            wanted.told = (answer.high_watermark, answer.log_start_offset)
            topic = topics.get(key[:2])
            if topic is None:
                topic = topics[key[:2]] = FetchableTopicResponse(topic=key[0], topic_id=key[1])
                response.responses.append(topic)
            topic.partitions.append(answer)
            if self._session is not None and answer.records:
                self._session.wanted.move_to_end(key)  # next time the others come first
        return response

    def _read_all(self) -> tuple[list[tuple[Key, Wanted, PartitionData]], int, bool]:
        body = self._request.body
        follower = body.replica_id >= 0 or body.replica_state.replica_id >= 0
        refused = ErrorCode.NONE
        if follower and not self._request.access.may_cluster(Operation.CLUSTER_ACTION):
            refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        left = min(body.max_bytes, self._handler._settings.integer("fetch.max.bytes"))
        committed = body.isolation_level == READ_COMMITTED
        total = 0
        aborted_left = ABORTED_PER_ANSWER_MAX
        urgent = False
        answers = []
        for key, wanted in self._wanted.items():
            partition = refused or self._handler.partition_of(self._request.access, key, self._by_id)
            if isinstance(partition, ErrorCode):
                answer = _missing(key[2], partition)
            elif partition.fault is not None:
                answer = _failed(key[2], code_of(partition.fault))
            elif follower:
                answer = _failed(key[2], ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif (idle := self._idle.get(partition)) is not None:
                answers.append((key, wanted, idle))
                continue
            else:
                bytes_max = min(left, wanted.ask.partition_max_bytes)
                answer = self._read(partition, wanted, committed, bytes_max, aborted_left, first=total == 0)
                aborted_left -= len(answer.aborted_transactions or ())
                if not answer.records and not answer.error_code and bytes_max > 0 and aborted_left > 0:
                    self._idle[partition] = answer
            size = _length(answer.records)
            total += size
            left -= size
            urgent = urgent or answer.error_code != 0 or answer.diverging_epoch.epoch >= 0
            answers.append((key, wanted, answer))
        return answers, total, urgent

    def _read(
        self, partition: Partition, wanted: Wanted, committed: bool, bytes_max: int, aborted_max: int, *, first: bool
    ) -> PartitionData:
        try:
            return self._handler.read(partition, wanted.ask, committed, bytes_max, aborted_max, first=first)
        except HeadraceError as error:
            LOG.error("%s", error)
            return _failed(partition.index, code_of(error))

    def wait(self) -> PendingReply[FetchResponse]:
        reply = self._reply = PendingReply(prompt=True)
        for key in self._wanted:
            partition = self._handler.partition_of(self._request.access, key, self._by_id)
            if isinstance(partition, Partition):
                partition.watchers[self] = None
                self._watched.append(partition)
        self._timer = self._handler._clock.call_later(self._request.body.max_wait_ms / 1000, self._timed_out)
        reply.abandoned = self._cleanup
        return reply

    def partition_advanced(self, partition: Partition) -> None:
        """One flush may advance several partitions: read once, after all of them."""
        self._idle.pop(partition, None)
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._woken = False
        self._try_to_finish(final=False)

    def _timed_out(self) -> None:
        self._try_to_finish(final=True)

    def _try_to_finish(self, *, final: bool) -> None:
        reply = self._reply
        if reply is None or reply.ready:
            return
        try:
            response = self.attempt(final=final)
        except Exception as error:  # a bug of ours: without an answer the client would wait for ever
            self._cleanup()
            reply.fail(error)
            return
        if response is not None:
            self._cleanup()
            reply.deliver(response)

    def _cleanup(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.watchers.pop(self, None)
        self._watched.clear()


def _length(records: Any) -> int:
    return sum(map(len, records)) if isinstance(records, list) else len(records or b"")


def _missing(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=index, error_code=code, high_watermark=-1, records=b"")


def _failed(index: int, code: ErrorCode) -> PartitionData:
    """In Kafka's answers the list of aborted transactions is empty for a partition that is not there, and null for one
    that failed."""
    answer = _missing(index, code)
    answer.aborted_transactions = None
    return answer


def _is_up_to_date(partition: Partition, ask: FetchPartition) -> bool:
    """Whether the reader last read from this leader epoch, so that it has no records of an earlier one to lose."""
    epoch = partition.leader_epoch
    return ask.current_leader_epoch in (-1, epoch) and ask.last_fetched_epoch in (-1, epoch)


def _epoch_error(partition: Partition, current: int) -> ErrorCode:
    if current < 0 or current == partition.leader_epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if current < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
