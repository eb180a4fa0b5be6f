"""Reading a known range of one partition as raw batches: fast, in bounded memory, through whatever happens meanwhile.

    for batch in fetch_range(client, TopicPartition("orders", 0), 1000, 2000, read_committed=True):
        print(batch.base_offset, batch.codec, bytes(batch.records))

While the caller works on one answer the request for the next is under way, so the broker and the network do not wait
for us nor we for them. Two answers are the most that exists at a time; a batch is a view of the answer it came in and
nothing is copied.

A leader that moves, a connection that breaks and a broker that restarts are waited for, up to ``timeout_ms`` without
progress, and reading goes on at the exact offset. What waiting cannot fix is raised: the offset is gone
(``OffsetOutOfRange``), or the topic is another one than it was (a topic made again under the old name has other
records at the same offsets).
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import google_crc32c

from headrace.batch import (
    HEADER_BYTES,
    LENGTH_FIELD_END,
    PREFIX_BYTES,
    Batch,
    BatchAttributes,
    BatchHeader,
    CorruptBatch,
    control_type,
    parse_header,
)
from headrace.client.client import Client, TopicPartition, check
from headrace.client.connection import Connection, Pending
from headrace.client.fetch import FETCH_VERSION_BY_NAME_MAX
from headrace.client.offsets import end_offsets, start_offsets
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace.wire.kafka.schema import NO_ID

__all__ = ["OffsetOutOfRange", "RangeOptions", "RawBatch", "TopicReplaced", "fetch_range", "raw_batches"]

FETCH_WAIT_MS = 500
SOON_OR_NEVER_MS = 10_000
"""How long errors are waited for that pass within moments or not at all: a missing topic, a broken batch."""

_crc32c = google_crc32c.value
_LENGTH = struct.Struct(">i")
_SOON_OR_NEVER = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.CORRUPT_MESSAGE,
    }
)


class OffsetOutOfRange(KafkaError):
    """The log does not have the offset: retention removed it, or the log was cut."""

    def __init__(self, partition: TopicPartition, offset: int, earliest: int, latest: int) -> None:
        why = "retention removed it" if offset < earliest else "it was never written, or the log was cut"
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {partition} is outside the log, which holds {earliest} to {latest}: {why}",
        )
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class TopicReplaced(KafkaError):
    """The topic was deleted and made again while it was read: its offsets mean other records now."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {partition.topic!r} was deleted and made again since reading began; start again from its beginning",
        )
        self.partition = partition


class RawBatch(BatchAttributes):
    """One batch as it came: the fields of its header, and its bytes as a view of the fetched answer."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_timestamp",
        "crc",
        "data",
        "last_offset",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    def __init__(self, header: BatchHeader, data: memoryview) -> None:
        """``data`` is the whole batch, its header included."""
        self.base_offset = header.base_offset
        self.crc = header.crc
        self.attributes = header.attributes
        self.last_offset = header.last_offset
        self.base_timestamp = header.base_timestamp
        self.max_timestamp = header.max_timestamp
        self.producer_id = header.producer_id
        self.producer_epoch = header.producer_epoch
        self.record_count = header.record_count
        self.data = data

    def __repr__(self) -> str:
        return f"RawBatch(base_offset={self.base_offset}, last_offset={self.last_offset}, bytes={len(self.data)})"

    @property
    def records(self) -> memoryview:
        """The records' bytes, compressed as ``codec`` says."""
        return self.data[HEADER_BYTES:]

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    def parsed(self) -> Batch:
        """A copy that ``headrace.record`` decodes."""
        header = parse_header(self.data)
        assert header is not None, "the header was parsed before"
        return Batch(header, bytes(self.data[PREFIX_BYTES:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """``timeout_ms`` is the longest time without progress. ``check`` is called with the next offset after each
    answer in which nothing is wanted, such as aborted transactions, and may raise to end the range."""

    read_committed: bool = False
    bytes_per_fetch: int = 4 * 1024 * 1024  # larger answers leave the processor's cache before they are used
    timeout_ms: int = 60_000
    check_crc: bool = True
    check: Callable[[int], None] | None = None


def fetch_range(
    client: Client,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    read_committed: bool | None = None,
    bytes_per_fetch: int | None = None,
    timeout_ms: int | None = None,
    topic_id: bytes | None = None,
    options: RangeOptions | None = None,
) -> Iterator[RawBatch]:
    """Every whole batch that has a record in ``[start, end)``, in order; the first and last may reach beyond.

    With ``read_committed`` the batches of aborted transactions are left out. Control batches are always given: see
    ``RawBatch.is_control``. With a ``topic_id`` the topic must be that one.
    """
    given = {"read_committed": read_committed, "bytes_per_fetch": bytes_per_fetch, "timeout_ms": timeout_ms}
    changes = {name: value for name, value in given.items() if value is not None}
    chosen = replace(options or RangeOptions(), **changes)  # type: ignore[arg-type]
    return _Reader(client, partition, start, end, topic_id, chosen).batches()


class _Reader:
    """The state of one range: where it stands, which answer is due, since when it fails."""

    def __init__(
        self,
        client: Client,
        partition: TopicPartition,
        start: int,
        end: int,
        topic_id: bytes | None,
        options: RangeOptions,
    ) -> None:
        self._client = client
        self._partition = partition
        self._position = start
        self._end = end
        self._topic_id = topic_id
        self._options = options
        self._due: tuple[Connection, Pending[FetchResponse]] | None = None
        self._failing_since: float | None = None
        self._pause_ms = float(client.options.retry_pause_ms)

    def batches(self) -> Iterator[RawBatch]:
        while self._position < self._end:
            began = time.monotonic()
            try:
                found = self._next()
            except KafkaError as error:
                self._recover(error, began)
                continue
            self._failing_since = None
            self._pause_ms = float(self._client.options.retry_pause_ms)
            if self._options.check is not None and not found:
                self._options.check(self._position)
            self._ask_ahead()
            found.reverse()
            while found:  # a batch that was given must not be kept alive by us: the next answer is about to be read
                yield found.pop()

    # ---- one answer -------------------------------------------------------------------------------------------------

    def _next(self) -> list[RawBatch]:
        """The wanted batches of the next answer; the position is then after all of it."""
        if self._due is None:
            self._due = self._ask()
        connection, pending = self._due
        self._due = None
        answer = connection.wait(pending, timeout_s=(FETCH_WAIT_MS + self._client.options.request_timeout_ms) / 1000)
        check(answer.error_code, None, f"fetching from {connection.address}")
        data = answer.responses[0].partitions[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._out_of_range()
        check(data.error_code, None, f"fetching {self._partition}")
        received = raw_batches(data.records or b"", check_crc=self._options.check_crc)
        if not received:
            raise self._nothing_there(data)
        kept = _committed(received, data) if self._options.read_committed else received
        wanted = [each for each in kept if each.last_offset >= self._position and each.base_offset < self._end]
        self._position = max(self._position, received[-1].next_offset)
        return wanted

    def _ask(self) -> tuple[Connection, Pending[FetchResponse]]:
        """Send a fetch at the position to the leader of the moment."""
        topic_id = self._client.topic_id(self._partition.topic)
        if self._topic_id is None:
            self._topic_id = topic_id
        if topic_id != self._topic_id:
            topic_id = self._fresh_topic_id()
        if topic_id != self._topic_id:
            raise TopicReplaced(self._partition)
        asked = FetchPartition(
            partition=self._partition.partition,
            fetch_offset=self._position,
            partition_max_bytes=self._options.bytes_per_fetch,
        )
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=self._options.bytes_per_fetch,
            isolation_level=1 if self._options.read_committed else 0,
            topics=[FetchTopic(topic=self._partition.topic, topic_id=topic_id, partitions=[asked])],
        )
        version_max = FETCH_VERSION_BY_NAME_MAX if topic_id == NO_ID else None
        node = self._client.leader(self._partition)
        return self._client.send(node, request, FetchResponse, version_max=version_max)

    def _fresh_topic_id(self) -> bytes:
        """As the broker says now: the cached id may be of a topic that was deleted before this range was planned."""
        self._client.forget_topic(self._partition.topic)
        return self._client.topic_id(self._partition.topic)

    def _ask_ahead(self) -> None:
        """Let the broker work on the next answer; if that fails, it is asked again when the answer is needed."""
        if self._position >= self._end:
            return
        try:
            self._due = self._ask()
        except KafkaError:
            self._due = None

    # ---- what goes wrong --------------------------------------------------------------------------------------------

    def _recover(self, error: KafkaError, began: float) -> None:
        """Pause before the next attempt, or raise when waiting is no use. The failed attempt's own time counts."""
        self._due = None
        self._client.learn_from(error.code)
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = began
        limit_ms = self._options.timeout_ms
        if error.code in _SOON_OR_NEVER:
            limit_ms = min(limit_ms, SOON_OR_NEVER_MS)
        if not error.retriable or (now - self._failing_since) * 1000 + self._pause_ms > limit_ms:
            raise error
        time.sleep(self._pause_ms * random.uniform(0.8, 1.2) / 1000)
        self._pause_ms = min(self._pause_ms * 2, self._client.options.retry_pause_ms_max)

    def _out_of_range(self) -> KafkaError:
        """With both ends asked for; a follower that became leader may not know its own end yet, and is asked again."""
        partition = self._partition
        earliest = start_offsets(self._client, [partition])[partition]
        latest = end_offsets(self._client, [partition])[partition]
        if earliest <= self._position <= latest:
            return KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"offset {self._position} of {partition} is not there yet"
            )
        return OffsetOutOfRange(partition, self._position, earliest, latest)

    def _nothing_there(self, data: PartitionData) -> KafkaError:
        end = data.last_stable_offset if self._options.read_committed else data.high_watermark
        return KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"{self._partition} gives nothing from offset {self._position} on, up to {self._end} was asked for; "
            f"readers may go to {end}",
        )


def raw_batches(data: bytes | bytearray | memoryview, *, check_crc: bool = True) -> list[RawBatch]:
    """The whole batches at the front of ``data``, as views of it; a last one that is cut short is left out."""
    view = memoryview(data)
    position = 0
    batches = []
    while len(view) - position >= LENGTH_FIELD_END:
        end = position + LENGTH_FIELD_END + _LENGTH.unpack_from(view, position + 8)[0]
        if end > len(view):
            break
        header = parse_header(view, position)
        if header is None:
            raise CorruptBatch(f"the bytes at {position} of a fetch are not a record batch of format 2")
        batch = RawBatch(header, view[position:end])
        # The library needs a copy of the bytes. It is gone at once, and costs as much as the checksum: 0.1 ms a MB.
        if check_crc and _crc32c(bytes(batch.data[PREFIX_BYTES:])) != batch.crc:
            raise CorruptBatch(f"the batch at offset {batch.base_offset} arrived with a wrong checksum")
        batches.append(batch)
        position = end
    return batches


def _committed(batches: list[RawBatch], data: PartitionData) -> list[RawBatch]:
    """Without those of aborted transactions.

    The broker lists the producer and first offset of every aborted transaction that reaches into the answer. From there
    on that producer's batches are dropped, until its abort marker has passed.
    """
    if not data.aborted_transactions:
        return batches
    upcoming = sorted(((each.first_offset, each.producer_id) for each in data.aborted_transactions), reverse=True)
    aborting: set[int] = set()
    kept = []
    for batch in batches:
        while upcoming and upcoming[-1][0] <= batch.last_offset:
            aborting.add(upcoming.pop()[1])
        if batch.is_control:
            if batch.producer_id in aborting and _aborts(batch):
                aborting.discard(batch.producer_id)
            kept.append(batch)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            kept.append(batch)
    return kept


def _aborts(batch: RawBatch) -> bool:
    marker = control_type(batch.parsed())
    return marker is not None and not marker[0]
