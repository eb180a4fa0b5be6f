"""A fetch under way: it reads its partitions, and waits for them to advance while they have too little.

``PendingFetch`` reads all partitions at once. ``LargeFetch`` is for very many of them, in slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from headrace.broker.access import Operation
from headrace.broker.errors import code_of
from headrace.broker.fetch_sessions import INITIAL_EPOCH, FetchSession, Key, WantedPartition
from headrace.broker.partition import Partition
from headrace.broker.replies import PendingReply
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.errors import ErrorCode, HeadraceError
from headrace.ports import TimerHandle
from headrace.wire.kafka.codec import EncodedElements, write_chunks
from headrace.wire.kafka.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

if TYPE_CHECKING:
    from headrace.broker.fetch import FetchHandler

__all__ = ["LargeFetch", "PendingFetch", "failed", "log_failed_read"]

LOG = logging.getLogger("headrace.broker")

TOPIC_IDS_SINCE = 13
READ_COMMITTED = 1

PARTITIONS_PER_STEP = 20
WATCHED_PER_UNIT = 5
READ_UNITS = 4
"""What it costs to find records, in units of ``slices``: a file may have to be opened."""

FILES_PER_ANSWER_MAX = 500
"""Partitions whose records are in one answer: each is an open file until the answer was sent. The reader gets the
others with its next fetches."""

ABORTED_PER_ANSWER_MAX = 10_000
"""Aborted transactions listed in one answer. The reader fetches the rest with the records they belong to."""


class PendingFetch:
    """A fetch that may have to wait for a partition to advance, for its time to run out, or for its connection to end.

    What was read of a partition stays true until that partition advances (``_idle``). So when one of a thousand
    partitions advances, only that one is read again.
    """

    def __init__(
        self,
        handler: FetchHandler,
        request: Request[FetchRequest],
        wanted: OrderedDict[Key, WantedPartition],
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
        reading = _Reading(self)
        answers = [(key, wanted, reading.answer(key, wanted)) for key, wanted in self._wanted.items()]
        if not self._is_enough(reading, final):
            return None
        response = self._response()
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for key, wanted, answer in answers:
            if self._incremental and not wanted.is_news(answer):
                continue
            self._topic(response, topics, key).partitions.append(answer)
            self._sent(key, wanted, answer)
        return response

    def _is_enough(self, reading: _Reading, final: bool) -> bool:
        body = self._request.body
        return final or reading.urgent or reading.total >= body.min_bytes or body.max_wait_ms <= 0 or not self._wanted

    def _response(self) -> FetchResponse:
        return FetchResponse(session_id=self._session.id if self._session is not None else 0)

    @staticmethod
    def _topic(
        response: FetchResponse, topics: dict[tuple[str, bytes], FetchableTopicResponse], key: Key
    ) -> FetchableTopicResponse:
        topic = topics.get(key[:2])
        if topic is None:
            topic = topics[key[:2]] = FetchableTopicResponse(topic=key[0], topic_id=key[1])
            response.responses.append(topic)
        return topic

    def _sent(self, key: Key, wanted: WantedPartition, answer: PartitionData) -> None:
        wanted.sent = (answer.high_watermark, answer.log_start_offset)
        if self._session is not None and answer.records and key in self._session.wanted:
            self._session.wanted.move_to_end(key)  # next time the others come first

    def wait(self) -> PendingReply[FetchResponse]:
        reply = self._reply = PendingReply(prompt=True)
        for key in self._wanted:
            self._watch(key)
        self._set_timer()
        reply.abandoned = self._cleanup
        return reply

    def _watch(self, key: Key) -> None:
        partition = self._handler.partition_of(self._request.access, key, self._by_id)
        if isinstance(partition, Partition):
            partition.watchers[self] = None
            self._watched.append(partition)

    def _set_timer(self) -> None:
        self._timer = self._handler._clock.call_later(self._request.body.max_wait_ms / 1000, self._timed_out)

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
        self._reply = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._watched:
            partition.watchers.pop(self, None)
        self._watched.clear()


class LargeFetch(PendingFetch):
    """A fetch of many partitions. Between its slices partitions advance, so they are watched before they are read."""

    def __init__(
        self,
        handler: FetchHandler,
        request: Request[FetchRequest],
        wanted: OrderedDict[Key, WantedPartition],
        session: FetchSession | None,
    ) -> None:
        super().__init__(handler, request, wanted, session)
        self._asked = list(wanted.items())
        """The session may change meanwhile, by a second connection that uses it."""
        self._advanced = False
        self._expired = request.body.max_wait_ms <= 0
        self._wake: PendingReply[None] | None = None

    def steps(self) -> Steps[FetchResponse]:
        try:
            if not self._expired:
                yield from self._watch_all()
            while True:
                self._advanced = False
                final = self._expired
                reading, answers = yield from self._read_all()
                if self._is_enough(reading, final):
                    return (yield from self._encoded(answers))
                if not self._advanced and not self._expired:
                    self._wake = PendingReply()
                    yield self._wake
        finally:
            self._cleanup()

    def _watch_all(self) -> Steps[None]:
        self._set_timer()
        for some in in_steps(self._asked, PARTITIONS_PER_STEP):
            for key, _ in some:
                self._watch(key)
            yield PARTITIONS_PER_STEP // WATCHED_PER_UNIT

    def _read_all(self) -> Steps[tuple[_Reading, list[tuple[Key, WantedPartition, PartitionData]]]]:
        reading = _Reading(self)
        answers = []
        for some in in_steps(self._asked, PARTITIONS_PER_STEP):
            read_before = reading.files_read
            answers += [(key, wanted, reading.answer(key, wanted)) for key, wanted in some]
            yield len(some) // 2 + READ_UNITS * (reading.files_read - read_before)
        return reading, answers

    def _encoded(self, answers: list[tuple[Key, WantedPartition, PartitionData]]) -> Steps[FetchResponse]:
        response = self._response()
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for some in in_steps(answers, PARTITIONS_PER_STEP):
            for key, wanted, answer in some:
                if not self._incremental or wanted.is_news(answer):
                    self._add(self._topic(response, topics, key), answer)
                    self._sent(key, wanted, answer)
            yield len(some)
        return response

    def _add(self, topic: FetchableTopicResponse, answer: PartitionData) -> None:
        if not topic.partitions:
            topic.partitions = EncodedElements()
        partitions: Any = topic.partitions
        partitions.append(write_chunks(answer, FetchResponse, self._request.version))
        if answer.error_code:
            errors = partitions.errors
            errors[answer.error_code] = errors.get(answer.error_code, 0) + 1

    def partition_advanced(self, partition: Partition) -> None:
        self._idle.pop(partition, None)
        self._advanced = True
        self._look_again()

    def _timed_out(self) -> None:
        self._expired = True
        self._look_again()

    def _look_again(self) -> None:
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake.deliver(None)


class _Reading:
    """One pass over the partitions of a fetch: what it has found so far, and how much more it may take."""

    __slots__ = ("_aborted_left", "_committed", "_fetch", "_left", "_refused", "files_read", "total", "urgent")

    def __init__(self, fetch: PendingFetch) -> None:
        body = fetch._request.body
        is_follower = body.replica_id >= 0 or body.replica_state.replica_id >= 0
        self._refused = ErrorCode.NONE
        if is_follower:
            may_follow = fetch._request.access.may_cluster(Operation.CLUSTER_ACTION)
            self._refused = ErrorCode.NOT_LEADER_OR_FOLLOWER if may_follow else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        self._fetch = fetch
        self._committed = body.isolation_level == READ_COMMITTED
        self._left = min(body.max_bytes, fetch._handler._settings.integer("fetch.max.bytes"))
        self._aborted_left = ABORTED_PER_ANSWER_MAX
        self.total = 0
        self.files_read = 0
        self.urgent = False
        """Whether something was found that the reader must hear of at once."""

    def answer(self, key: Key, wanted: WantedPartition) -> PartitionData:
        fetch = self._fetch
        partition = self._find(key)
        if isinstance(partition, PartitionData):
            answer = partition
        elif (idle := fetch._idle.get(partition)) is not None:
            return idle
        else:
            bytes_max = min(self._left, wanted.ask.partition_max_bytes) if self.files_read < FILES_PER_ANSWER_MAX else 0
            answer = self._read(partition, wanted, bytes_max)
            self._aborted_left -= len(answer.aborted_transactions or ())
            if answer.records:
                size = _length(answer.records)
                self.total += size
                self._left -= size
                self.files_read += 1
            elif not answer.error_code and bytes_max > 0 and self._aborted_left > 0:
                fetch._idle[partition] = answer
        self.urgent = self.urgent or answer.error_code != 0 or answer.diverging_epoch.epoch >= 0
        return answer

    def _find(self, key: Key) -> Partition | PartitionData:
        """The partition, or the answer that says why it is not read."""
        fetch = self._fetch
        if self._refused is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return missing(key[2], self._refused)
        partition = fetch._handler.partition_of(fetch._request.access, key, fetch._by_id)
        if isinstance(partition, ErrorCode):
            return missing(key[2], partition)
        if partition.fault is not None:
            return failed(key[2], code_of(partition.fault))
        if self._refused is not ErrorCode.NONE:
            return failed(key[2], self._refused)
        return partition

    def _read(self, partition: Partition, wanted: WantedPartition, bytes_max: int) -> PartitionData:
        try:
            return self._fetch._handler.read(
                partition, wanted.ask, self._committed, bytes_max, self._aborted_left, first=self.total == 0
            )
        except HeadraceError as error:
            log_failed_read(partition, wanted.ask.fetch_offset, error)
            return failed(partition.index, code_of(error))


def log_failed_read(partition: Partition, offset: int, error: HeadraceError) -> None:
    LOG.error("%s-%d: a read at offset %d failed: %s", partition.topic, partition.index, offset, error)


def _length(records: Any) -> int:
    return sum(map(len, records)) if isinstance(records, list) else len(records or b"")


def missing(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=index, error_code=code, high_watermark=-1, records=b"")


def failed(index: int, code: ErrorCode) -> PartitionData:
    """In Kafka's answers the list of aborted transactions is empty for a partition that is not there, and null for one
    that failed."""
    answer = missing(index, code)
    answer.aborted_transactions = None
    return answer
