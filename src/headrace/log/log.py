"""A partition's log: segments in a directory, appended at the end, read from anywhere.

How a produced byte becomes an offset: ``append`` stamps the batch with the next offset, writes it with one system call
at the end of the active segment, and only then counts it in. When the write fails the file is cut back and nothing has
happened.

How an offset becomes bytes: see ``reader.py``.

Three offsets matter. ``end_offset``: everything below is *written*. ``flushed_offset``: everything below is *flushed*,
it survives power loss. ``high_watermark``: everything below is *acknowledged* to producers and visible to readers. It
follows one of the other two, as the flush policy says, and never goes back.

All of this runs on one thread. The flusher's thread only syncs files that were handed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.batch import NO_PRODUCER_ID, Batch
from headrace.log.aborted import AbortedDamaged
from headrace.log.checkpoint import LogMark
from headrace.log.compaction.swap import SwapGroup, SwapJob
from headrace.log.config import FlushPolicy, LogConfig
from headrace.log.disk import FileCache
from headrace.log.epochs import EpochHistory
from headrace.log.errors import CorruptLog, OffsetOutOfRange, RecordListTooLarge, storage_error
from headrace.log.findings import Finding, OnFinding, Severity
from headrace.log.flushed import FlushedEnd
from headrace.log.index import NOT_COUNTED
from headrace.log.opening import NOTHING_KNOWN, Known, OpenedLog, new_log, open_segments, segment_in
from headrace.log.producer_snapshots import Snapshot, derive_aborted, producers_at
from headrace.log.producers import ProducerStates
from headrace.log.reader import LogReader
from headrace.log.recovery import RecoveryReport
from headrace.log.removal import REMOVED_IN_ORDER_MAX, Removal
from headrace.log.segment import OFFSET_DELTA_MAX, Segment, number_of_segment
from headrace.log.unsynced import FlushMark, Unsynced
from headrace.log.waiters import Waiters
from headrace.ports import Disk
from headrace.vocabulary import Epoch, Offset, Position

if TYPE_CHECKING:
    from headrace.log.compaction.cleaner import CleaningResult

__all__ = ["PartitionLog", "PreparedMark"]

_CHECKPOINT_BYTES_MIN = 1 << 20
_DERIVE_BYTES_MAX = 64 << 20
"""How much of a log is walked to derive aborted transactions while it is being served."""


@dataclass(frozen=True, slots=True)
class PreparedMark:
    """What a checkpoint will say of a log, once its producers are saved too."""

    mark: LogMark
    snapshot: Snapshot | None

    def written(self) -> LogMark:
        """Save the producers, and give the mark. Raises OSError."""
        if self.snapshot is not None:
            self.snapshot.write()
        return self.mark


class PartitionLog:
    """Open one with ``PartitionLog.open``; it must have one owner."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, cache: FileCache, opened: OpenedLog) -> None:
        self.directory = directory
        self._config = config
        self.flush_policy = FlushPolicy.of(config)
        self.recovery = opened.report
        self.on_advanced: Callable[[], None] | None = None
        """Called when the high watermark has advanced, before those who wait for an acknowledgement."""
        self.before_change: Callable[[PartitionLog], None] | None = None
        """Called before the next append, new segment or new start: a snapshot notes how the log was (snapshot.py)."""
        self._disk = disk
        self._cache = cache
        self._mark = opened.mark
        self._segments = opened.segments
        self._epochs = opened.epochs
        self._producers = opened.producers
        self._unsynced = Unsynced()
        if not self._segments:
            self._add_segment(opened.end_offset)
        self._start = self._planned_start = opened.start_offset
        self._marked_start = opened.marked_start
        """What the start marker says."""
        self._end = opened.end_offset
        if not self.flush_policy.is_synced_by_us:
            self._unsynced.end_offset = self._end
        self._flushed = min(self._mark.recovery_offset, self._end)
        self.flushed_end: FlushedEnd | None = None
        """Where the flusher notes how far this log is flushed."""
        self.high_watermark = Offset(0)
        self._waiters: Waiters[Offset] = Waiters()
        self.reader = LogReader(self)
        self._closed = False
        self._swapping = False
        self._removing = False
        self.is_retired = False
        """Removed, or no longer served: maintenance keeps away from it."""
        self._advance()

    # Opening and closing.

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        cache: FileCache | None = None,
        known: Known = NOTHING_KNOWN,
        sync: bool = True,
        on_finding: OnFinding = lambda _: None,
    ) -> PartitionLog:
        """Open the log in ``directory``, creating it if there is none. Raises CorruptLog if records are missing that
        were acknowledged.

        What recovery accepted is synced before it counts as flushed: a process that was killed leaves bytes, files and
        even the directory itself in the page cache only. With ``sync=False`` the caller does that (one syncfs for many
        logs) and then calls ``flushed_to_end``.
        """
        cache = FileCache(disk) if cache is None else cache
        opened = open_segments(disk, directory, config, cache, known, RecoveryReport(on_finding=on_finding))
        if not opened.segments:
            disk.mkdir(directory)
        log = cls(disk, directory, config, cache, opened)
        if sync and opened.unsynced:
            disk.syncfs(directory)
            log.take_unsynced()
        if sync:
            log.flushed_to_end()
        return log

    @classmethod
    def of_new(cls, disk: Disk, directory: str, config: LogConfig, cache: FileCache) -> PartitionLog:
        """A log whose directory holds an empty first segment, synced, and nothing else. It touches no disk."""
        return cls(disk, directory, config, cache, new_log(directory, config, cache))

    def _segment(self, base: Offset, size: int, *, gaps_allowed: bool = False) -> Segment:
        return segment_in(self.directory, self._cache, self._config, base, size, gaps_allowed=gaps_allowed)

    def sync_all(self) -> None:
        """Flush everything written, here and now."""
        mark = self.take_unsynced()
        if not self.flush_policy.is_synced_by_us:
            self._disk.syncfs(self.directory)
        elif mark is not None:
            mark.sync(self._disk)
        self.flushed_to_end()

    def flushed_to_end(self) -> None:
        self.on_flushed(self._end)

    def close(self, *, sync: bool = True) -> LogMark:
        """Make everything durable and return the mark that lets the next ``open`` believe it all.

        With ``sync=False`` the caller syncs, and must not use the mark before that.
        """
        if not self._closed:
            prepared = self.prepare_checkpoint().written()
            with suppress(OSError):
                self._active.index.save(self._active.summary())
            if sync:
                self._disk.syncfs(self.directory)
                self.flushed_to_end()
            self._closed = True
            self.checkpointed(prepared)
        return self.mark

    # Knowing.

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """New settings hold from the next append on. What was left to the operating system so far is ours to sync; what
        will be left to it is not covered by syncs that are still to come."""
        policy = FlushPolicy.of(config)
        if policy.is_synced_by_us and not self.flush_policy.is_synced_by_us:
            self._unsynced.end_offset = None
            for segment in self._segments[number_of_segment(self._segments, self._flushed) :]:
                self._unsynced.add_new(segment.file())
                with suppress(FileNotFoundError):
                    self._unsynced.add_new(self._cache.open(segment.aborted.path))
        elif self.flush_policy.is_synced_by_us and not policy.is_synced_by_us:
            self._unsynced.end_offset = self._end
        self._config = config
        self.flush_policy = policy
        self._advance()

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def start_offset(self) -> Offset:
        """The first offset that is served."""
        return self._start

    @property
    def end_offset(self) -> Offset:
        """The next offset to be written: everything below is written."""
        return self._end

    @property
    def flushed_offset(self) -> Offset:
        """Everything below survives power loss."""
        return self._flushed

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    @property
    def mark(self) -> LogMark:
        """What a checkpoint written now may say of this log."""
        return self.mark_from(self._start)

    def mark_from(self, start: Offset) -> LogMark:
        """The same for a copy of this log that begins at ``start``."""
        return replace(self._mark, start_offset=start, epochs=self._epochs.since(start))

    @property
    def producers(self) -> ProducerStates:
        """Read when they are first asked for. Raises StorageError if they cannot be read, as without descriptors."""
        if self._producers is None:
            try:
                self._producers = producers_at(
                    self._disk, self.directory, self._segments, self._end, self._mark, self.recovery.add
                )
            except OSError as error:
                raise storage_error(error, self.directory) from error
        return self._producers

    def load_aborted(self, segment: Segment) -> None:
        """Make sure that a segment's aborted transactions are known, all of them. Raises CorruptLog."""
        if segment.aborted.is_loaded:
            return
        segment.summarise()
        try:
            end = segment.following_offset if segment.following_offset >= 0 else self._end
            segment.aborted.load(segment.aborted_count, first=segment.base_offset, end=end)
        except AbortedDamaged as damage:
            self._derive_aborted(segment, damage)

    def _derive_aborted(self, segment: Segment, damage: AbortedDamaged) -> None:
        before = [other for other in self._segments if other.base_offset <= segment.base_offset]
        if sum(other.size for other in before) > _DERIVE_BYTES_MAX:
            # It would take too long while everybody waits.
            raise CorruptLog(damage.path, damage.position, f"{damage.reason}; 'headrace log repair' derives them again")
        counted = segment.aborted_count
        segment.aborted.replace(derive_aborted(self._disk, self.directory, before, segment))
        with suppress(OSError):
            segment.aborted.write()
        segment.recount_aborted()
        if counted != NOT_COUNTED:
            message = f"{damage.reason}; derived again from the log"
            self.recovery.add(Finding(Severity.WARNING, damage.path, message, damage.position))

    def expire_producers(self, now_ms: int) -> None:
        """Forget idle producers. Those that nobody has loaded are forgotten when they are."""
        if self._producers is not None:
            self._producers.expire(now_ms, self._config.producer_expiration_ms)

    @property
    def last_stable_offset(self) -> Offset:
        """How far readers of committed data may see."""
        high_watermark = self.high_watermark
        unstable = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if unstable is None else min(max(Offset(unstable), self._start), high_watermark)

    def epoch_end_offset(self, epoch: Epoch) -> tuple[Epoch, Offset] | None:
        """(largest epoch not above ``epoch``, where it ended), for OffsetForLeaderEpoch; None when none is known."""
        return self._epochs.end_offset(epoch, self._end)

    # Appending.

    def append(self, batch: Batch, *, leader_epoch: Epoch, now_ms: int) -> Offset:
        """Write a batch at the end and stamp it with its offset, which is returned. Raises DiskFull or StorageError
        with nothing changed.

        Producer checks are the caller's (``producers.check``) and come first.
        """
        assert not self._closed
        if self.before_change is not None:
            self.before_change(self)
        size = batch.size
        try:
            segment = self._segment_for(batch, now_ms)
        except OSError as error:
            raise storage_error(error, self.directory, size) from error
        if self._producers is None:
            _ = self.producers  # before the log grows: later, more of it would have to be read
        base_offset = self._end
        batch.base_offset = base_offset
        batch.leader_epoch = leader_epoch
        prefix = batch.prefix()
        self._write(segment, [prefix, batch.body], size)
        end_offset = batch.next_offset
        segment.admit(prefix, base_offset, size, end_offset, batch.max_timestamp)
        if batch.producer_id != NO_PRODUCER_ID:
            self._apply_producer(segment, batch)
        self._end = end_offset
        if leader_epoch > self._epochs.latest:
            self._epochs.note(leader_epoch, base_offset)
        if self.flush_policy.acknowledges_flushed:
            self.reader.appended(end_offset, segment)
        else:
            self._advance()
        return base_offset

    def _write(self, segment: Segment, chunks: list[bytes], total: int) -> None:
        try:
            file = segment.file()
            file.write(chunks, segment.size)
        except OSError as error:
            # If even this fails, the next append overwrites the rest, and recovery cuts it.
            with suppress(OSError):
                segment.cut_back()
            raise storage_error(error, segment.path, total) from error
        if self.flush_policy.is_synced_by_us:
            self._unsynced.files[file.path] = file

    def _apply_producer(self, segment: Segment, batch: Batch) -> None:
        aborted = self.producers.apply(batch)
        if aborted is not None:
            segment.aborted.add(aborted)
            self._write_aborted(segment)

    def _write_aborted(self, segment: Segment) -> None:
        """A full disk here fails no append: the entries wait in memory, and the recovery point waits for them."""
        with suppress(OSError):
            if segment.aborted.unwritten:
                segment.aborted.write()
                if self.flush_policy.is_synced_by_us:
                    self._unsynced.add_new(self._cache.open(segment.aborted.path))

    def _segment_for(self, batch: Batch, now_ms: int) -> Segment:
        segment_bytes_max = self._config.segment_bytes_max
        if batch.size > segment_bytes_max:
            raise RecordListTooLarge(batch.size, segment_bytes_max)
        active = self._segments[-1]
        if active.size == 0:
            return active
        too_long = active.size + batch.size > segment_bytes_max
        too_wide = self._end + batch.last_offset_delta + 1 - active.base_offset > OFFSET_DELTA_MAX
        if too_long or too_wide or self._is_old(active, batch.max_timestamp, now_ms):
            return self.roll()
        return active

    def _is_old(self, segment: Segment, timestamp: int, now_ms: int) -> bool:
        """By the records' own time, like Kafka: what is replayed fast rolls as it did when it was written. A record
        without a timestamp counts with the time of the append."""
        if segment.first_timestamp is None:
            first = next((header.max_timestamp for _, header in segment.headers(Position(0), segment.size)), -1)
            segment.first_timestamp = first if first >= 0 else now_ms
        reached = timestamp if timestamp >= 0 else now_ms
        return reached - segment.first_timestamp > self._config.segment_ms_max

    def roll(self) -> Segment:
        """Seal the active segment and begin the next at the end offset."""
        if self.before_change is not None:
            self.before_change(self)
        sealed = self._active
        if sealed.size == 0:
            return sealed
        active = self._add_segment(self._end)
        self._write_aborted(sealed)
        sealed.seal(self._end)
        return active

    def _add_segment(self, base_offset: Offset) -> Segment:
        """Begin an empty segment. Files of that name can only be left over from a crash: they are not taken over."""
        segment = self._segment(base_offset, 0)
        segment.begin()
        try:
            segment.remove(self._disk)
            file = self._cache.open(segment.path, create=True)
        except OSError as error:
            raise storage_error(error, segment.path) from error
        self._segments.append(segment)
        if self.flush_policy.is_synced_by_us:
            self._unsynced.add_new(file)
        return segment

    # Flushing.

    def take_unsynced(self) -> FlushMark | None:
        """Hand over what must be synced so that everything up to ``end_offset`` is flushed."""
        return self._unsynced.take(self)

    def on_flushed(self, end_offset: Offset) -> None:
        """A sync that began when ``end_offset`` was written has returned."""
        if end_offset > self._flushed:
            assert end_offset <= self._end
            self._flushed = end_offset
            self.reader.flushed(end_offset)
            self._advance()

    def _advance(self) -> None:
        reached = self._flushed if self.flush_policy.acknowledges_flushed else self._end
        if reached > self.high_watermark:
            self.high_watermark = reached
            try:
                if self.on_advanced is not None:
                    self.on_advanced()
            finally:
                self._waiters.release_below(reached)

    def when_acknowledged(self, offset: Offset, callback: Callable[[], None]) -> None:
        """Call once ``offset`` is below the high watermark, which may be now."""
        if offset < self.high_watermark:
            callback()
        else:
            self._waiters.add(offset, callback)

    def release_waiters(self) -> None:
        """The log is being removed."""
        self._waiters.release_all()

    def forget_files(self) -> None:
        """The log is being removed: hold none of its files open."""
        for segment in self._segments:
            segment.forget()

    def prepare_checkpoint(self) -> PreparedMark:
        """Collect what must be durable beside the log, and say from where recovery may then begin. Raises OSError.

        The caller writes it, on whichever thread, syncs the whole filesystem and calls ``checkpointed`` with the mark.
        """
        for segment in self._segments:
            if segment.aborted.unwritten:
                segment.aborted.write()
                self._unsynced.directory_changed = True
        producers = self._producers
        mark = replace(
            self.mark,
            recovery_offset=self._end,
            recovery_position=Position(self._active.size),
            producerless=self._mark.producerless if producers is None else not len(producers),
            aborted_count=len(self._active.aborted.entries),
        )
        if producers is None:  # nobody has loaded them, so an older snapshot still serves
            return PreparedMark(mark, None)
        frozen = producers.freeze()
        return PreparedMark(mark, Snapshot(self._disk, self.directory, frozen, self._end, self._mark.recovery_offset))

    def checkpointed(self, prepared: LogMark) -> None:
        """Everything ``prepare_checkpoint`` wrote has been synced: recovery may begin there."""
        if prepared.recovery_offset >= self._mark.recovery_offset:
            self._mark = replace(
                self._mark,
                recovery_offset=prepared.recovery_offset,
                recovery_position=prepared.recovery_position,
                producerless=prepared.producerless,
                aborted_count=prepared.aborted_count,
            )

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the recovery point should move: there is much to scan, or removal waits for it."""
        recovery_offset = self._mark.recovery_offset
        removal_waits = self._wanted_start > recovery_offset
        compaction_waits = self._config.cleanup_compact and self._active.base_offset > recovery_offset
        return removal_waits or compaction_waits or self.bytes_since_checkpoint >= _CHECKPOINT_BYTES_MIN

    @property
    def bytes_since_checkpoint(self) -> int:
        """How much recovery would have to scan."""
        total = 0
        for segment in reversed(self._segments):
            if segment.base_offset <= self._mark.recovery_offset:
                return total + max(0, segment.size - self._mark.recovery_position)
            total += segment.size
        return total

    # Removing.

    def delete_records(self, offset: Offset) -> Offset:
        """Serve nothing below ``offset`` any more (-1: below the high watermark); returns the new start offset.

        The start is durable with the next checkpoint; files go with a removal after that.
        """
        end = self.high_watermark
        offset = end if offset == -1 else offset
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(offset, self._start, end)
        self.advance_start(offset)
        return self._start

    def plan_start(self, offset: Offset) -> Offset:
        """The same, but the records are served until a checkpoint has made the new start durable: what a client has
        seen deleted does not come back after a crash. Returns the start offset that there will be."""
        assert offset <= self.high_watermark
        self._planned_start = max(self._planned_start, offset)
        return self._wanted_start

    @property
    def _wanted_start(self) -> Offset:
        return max(self._start, self._planned_start)

    def advance_start(self, offset: Offset) -> None:
        assert offset <= self._end
        if offset > self._start:
            if self.before_change is not None:
                self.before_change(self)
            self._start = offset
            self.reader.forget_places()

    @property
    def has_dead_segments(self) -> bool:
        """Whether a removal would free anything."""
        if self._swapping or self._removing:
            return False
        if len(self._segments) > 1:
            return self._segments[1].base_offset <= self._wanted_start
        return self._wanted_start == self._end and self._active.size > 0

    def begin_removal(self, *, regardless: bool = False) -> Removal | None:
        """Take segments that lie wholly below the start offset out of service. ``Removal.run`` unlinks them; then the
        owner calls ``finish_removal``. ``regardless`` is for a disk too full for a checkpoint; see removal.py."""
        if self._swapping or self._removing:
            return None
        if regardless:
            self.advance_start(self._planned_start)
        if self._start == self._end and self._active.size:
            self.roll()
        # The start is marked as far as the log is flushed and no further.
        target = min(self._start, self._flushed) if regardless else None
        # Not the start itself: it may have moved on while the checkpoint was being written.
        limit = min(self._marked_start, self._mark.recovery_offset) if target is None else target
        doomed: list[tuple[Segment, Offset]] = []
        for segment, following in pairwise(self._segments):
            in_order = following.base_offset > self._mark.recovery_offset
            if following.base_offset > limit or (in_order and len(doomed) == REMOVED_IN_ORDER_MAX):
                break
            doomed.append((segment, following.base_offset))
        if not doomed:
            return None
        del self._segments[: len(doomed)]
        for segment, _ in doomed:
            segment.forget()
            self._unsynced.drop(segment)
        self.reader.forget_places()
        self._removing = True
        return Removal(self._disk, self.directory, doomed, self._mark.recovery_offset, target)

    def finish_removal(self, removal: Removal) -> int:
        """Take back what could not be removed; returns the bytes freed."""
        self._removing = False
        self._segments[:0] = removal.left
        if removal.marked_start is not None:
            self._marked_start = removal.marked_start
        self._unsynced.directory_changed = True
        self._epochs = EpochHistory(self._epochs.since(self._start))
        return sum(segment.size for segment in removal.gone)

    def start_to_mark(self) -> tuple[Offset, Offset] | None:
        """(what the start marker says, what it must say), if it must move."""
        return (self._marked_start, self._wanted_start) if self._marked_start != self._wanted_start else None

    def start_marked(self, offset: Offset) -> None:
        self._marked_start = offset
        self.advance_start(offset)

    @property
    def durable_start_offset(self) -> Offset:
        """What the start marker says: nothing below is served after a crash either."""
        return self._marked_start

    # Compaction.

    def begin_swap(self, result: CleaningResult) -> SwapJob:
        """Prepare to put cleaned segments in the place of those they were made from; see swap.py.

        Until ``finish_swap`` readers are served from the old files and no segment is removed. A group whose segments
        retention has removed meanwhile is thrown away.
        """
        sealed = {segment.base_offset: segment for segment in self._segments[:-1]}
        usable = [group for group in result.groups if sealed.keys() >= set(group.replaces)]
        for group in usable:
            for base in group.replaces:
                sealed[base].pin()
        self._swapping = True
        whole = len(usable) == len(result.groups)
        return SwapJob(self._disk, self.directory, result.token, usable, result.cleaned_offset, whole)

    def finish_swap(self, job: SwapJob) -> int:
        """Serve what ``job`` has put in place, also when it failed; returns the bytes saved."""
        before = self.size_bytes
        for group in job.groups:
            for segment in self._segments:
                if segment.base_offset in group.replaces:
                    segment.forget()
        for group in job.swapped:
            self._replace_segments(group)
        self._swapping = False
        self.reader.forget_places()
        if job.whole and len(job.swapped) == len(job.groups):
            self._mark = replace(self._mark, cleaned_offset=max(job.cleaned_offset, self._mark.cleaned_offset))
        self._mark = replace(self._mark, gaps=self._mark.gaps or bool(job.swapped))
        return before - self.size_bytes

    def _replace_segments(self, group: SwapGroup) -> None:
        first = next(n for n, segment in enumerate(self._segments) if segment.base_offset == group.base)
        for segment in self._segments[first : first + len(group.replaces)]:
            self._unsynced.drop(segment)
        cleaned = self._segment(group.base, group.size, gaps_allowed=True)
        cleaned.following_offset = group.end_offset
        self._segments[first : first + len(group.replaces)] = [cleaned]
