"""Small things that the log's tests build again and again."""

from __future__ import annotations

from uuid import UUID

from headrace.batch import Batch, build_batch, control_batch, read_batches
from headrace.log.compaction.cleaner import CleaningResult
from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog
from headrace.log.producers import ProducerStates, ProducerSummary
from headrace.log.retention import advance_by_retention
from headrace.log.store import CheckpointJob, LogStore, exhaust
from headrace.record import Record
from headrace.testing.disk import SimulatedDisk

DIRECTORY = "/log"
SMALL = LogConfig(segment_bytes_max=1000, index_interval_bytes=200, retention_ms=-1)


def plain(*values: bytes, timestamp: int = 1000, key: bytes | None = b"k") -> Batch:
    return build_batch([Record(key, value, timestamp=timestamp) for value in values])


def produced(
    producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1, transactional: bool = False, key: bytes = b"k"
) -> Batch:
    return build_batch(
        [Record(key, b"v%d" % (sequence + n), timestamp=1000) for n in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def marker(producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> Batch:
    return control_batch(
        commit=commit,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=1000,
    )


def append(log: PartitionLog, *batches: Batch) -> int:
    """The offset of the first of them."""
    base_offset = log.end_offset
    for batch in batches:
        log.append(batch, leader_epoch=0, now_ms=1000)
    return base_offset


def new_log(disk: SimulatedDisk | None = None, config: LogConfig = SMALL) -> PartitionLog:
    return PartitionLog.open(disk or SimulatedDisk(), DIRECTORY, config)


def fill(log: PartitionLog, count: int, *, size: int = 100) -> None:
    """``count`` batches of one record each, whose value tells its offset."""
    for _ in range(count):
        value = b"%d " % log.end_offset
        append(log, plain(value.ljust(size, b"."), timestamp=1000 + log.end_offset))


def batches_in(log: PartitionLog, offset: int | None = None, *, bytes_max: int = 1 << 20) -> list[Batch]:
    """Everything from ``offset`` on, read the way a consumer would."""
    found: list[Batch] = []
    offset = log.start_offset if offset is None else offset
    while offset < log.end_offset:
        data = b"".join(
            piece.read() for piece in log.reader.read(offset, bytes_max=bytes_max, offset_max=log.end_offset)
        )
        if not data:
            break
        found += read_batches(data, batch_bytes_max=1 << 30, from_client=False)
        offset = found[-1].next_offset
    return found


def offsets_in(log: PartitionLog, **options: int) -> list[int]:
    return [batch.base_offset for batch in batches_in(log, **options)]


def apply_retention(store: LogStore, now_ms: int) -> int:
    """Decide, make the new start offsets durable, then unlink, as the broker does. Returns the bytes freed."""
    doomed = [log for log in store.logs.values() if advance_by_retention(log, now_ms)]
    full = False
    try:
        store.checkpoint()
    except OSError:
        full = True
    return sum(remove_dead_segments(log, regardless=full) for log in doomed)


def remove_dead_segments(log: PartitionLog, *, regardless: bool = False) -> int:
    """As maintenance does, on this thread; returns the bytes freed. Raises OSError."""
    removal = log.begin_removal(regardless=regardless)
    if removal is None:
        return 0
    try:
        removal.run()
    finally:
        freed = log.finish_removal(removal)
    if removal.error is not None:
        raise removal.error
    return freed


def begun_checkpoint(store: LogStore, *, everything: bool = False) -> CheckpointJob:
    job = store.new_checkpoint()
    exhaust(store.collect(job, everything=everything))
    return job


def finish_checkpoint(store: LogStore, job: CheckpointJob) -> None:
    job.sync()
    job.write()
    exhaust(store.synced(job))
    exhaust(store.written(job))


def swap_in(log: PartitionLog, result: CleaningResult) -> int:
    """Put cleaned segments in their places, as maintenance does; returns the bytes saved."""
    swap = log.begin_swap(result)
    try:
        swap.run()
    finally:
        saved_bytes = log.finish_swap(swap)
    return saved_bytes


def group(topic: str, topic_id: UUID) -> str:
    return f"{topic}~{topic_id.hex}"


def open_log(
    store: LogStore, topic: str, topic_id: UUID, partition: int, config: LogConfig, *, sync: bool = True
) -> PartitionLog:
    """A partition of a topic."""
    return store.space("topics").open_log(group(topic, topic_id), partition, config, sync=sync)


def summaries(states: ProducerStates) -> list[ProducerSummary]:
    """What is known of every producer."""
    found = [states.summary(each) for each in states.ids()]
    return [each for each in found if each is not None]
