"""Making a damaged log usable again, at the price of what is damaged: for ``headrace log repair``.

``survey`` reads the whole log and decides, batch by batch, what can stay: what has the right checksum and an offset
that can stand there. Everything else is a *hole*. A batch whose offset alone was changed is not lost: the batches
around it tell what the offset was.

A hole may have held the marker of a transaction whose records stand before it. Then nobody knows how it ended, and the
next marker of that producer would decide it too. Such a transaction is taken for aborted, so that records of an aborted
one are never shown: an abort marker is put in the place of one of the lost offsets.

``apply`` makes it so. Bytes that go are kept beside the segment as ``<segment>.log.cut-<position>``. Offsets are never
given out again: the log goes on where it was flushed to, and the lost offsets stay missing, like those that compaction
removes. Indexes, aborted transactions and producers are derived from what is left.

The caller owns the data directory, and puts the mark that ``apply`` returns into the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from headrace.batch import HEADER_BYTES, PREFIX_BYTES, Batch, BatchHeader, control_batch, parse_header, stamp
from headrace.log.checkpoint import LogMark
from headrace.log.config import LogConfig
from headrace.log.disk import FileCache, replace_file
from headrace.log.dump import StoredBatch
from headrace.log.epochs import EpochHistory
from headrace.log.index import Index
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.log.producer_snapshots import snapshot_offsets, snapshot_path
from headrace.log.producers import ProducerStates
from headrace.log.recovery import unused_path
from headrace.log.scanning import count_batches, find_batch
from headrace.log.segment import OFFSET_DELTA_MAX, orphans, segment_bases, segment_name
from headrace.log.start import marked_start, write_start
from headrace.ports import Disk, File
from headrace.vocabulary import Epoch, Offset

__all__ = ["Hole", "Repair", "apply", "survey"]

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Hole:
    """What is lost at one place: bytes that will be cut, or bytes that are gone already."""

    path: str
    position: int
    size: int
    first_offset: Offset
    next_offset: Offset
    """Offsets from ``first_offset`` to before this are missing after the repair."""
    batches: int = 0
    records: int = 0
    """Of the bytes that will be cut, as far as they can be read."""

    def lost(self, start_offset: Offset) -> int:
        """How many offsets are missing. Those before the log's start offset were not served anyway."""
        return max(0, self.next_offset - max(self.first_offset, start_offset))

    def describe(self, start_offset: Offset) -> str:
        place = f"{self.path} at byte {self.position}"
        lost = self._lost_text(start_offset)
        if not self.size:
            return f"{place}: {lost}"
        what = f"{self.size} bytes in which {self.batches} batches and {self.records} records can be recognised"
        return f"{place}: cut {what}; {lost}"

    def _lost_text(self, start_offset: Offset) -> str:
        if self.lost(start_offset):
            return f"offsets {max(self.first_offset, start_offset)} to {self.next_offset - 1} are lost"
        if self.next_offset > self.first_offset:
            return f"all of it is before the log's first offset, {start_offset}"
        return "no offset is known to be lost"


@dataclass(slots=True)
class _Kept:
    """What stays of one segment."""

    base_offset: Offset
    path: str
    size: int
    parts: list[tuple[int, int] | bytes] = field(default_factory=list)
    """What the segment will be: (start, end) of bytes that stay, and batches that are put in."""
    prefixes: dict[int, bytes] = field(default_factory=dict)
    """The first 21 bytes of batches whose offset or leader epoch is put right, by position."""
    holes: list[Hole] = field(default_factory=list)
    next_offset: Offset = Offset(0)  # noqa: RUF009 a number with a name

    @property
    def is_changed(self) -> bool:
        is_cut = any(hole.size for hole in self.holes)
        return is_cut or bool(self.prefixes) or any(isinstance(part, bytes) for part in self.parts)

    def keep(self, position: int, batch: Batch) -> None:
        last = self.parts[-1] if self.parts else b""
        if isinstance(last, tuple) and last[1] == position:
            self.parts[-1] = (last[0], position + batch.size)
        else:
            self.parts.append((position, position + batch.size))
        self.next_offset = batch.next_offset


@dataclass(slots=True)
class Repair:
    """What a repair of one log will do."""

    directory: str
    first_offset: Offset
    """Where the log began before the repair."""
    start_offset: Offset
    """Where it begins after it."""
    end_offset: Offset
    """Where the log goes on."""
    holes: list[Hole]
    restored: int
    """Batches whose offset or leader epoch is put right."""
    undecided: int
    """Transactions whose end is lost: they are taken for aborted."""
    segments: list[_Kept]

    def batches(self, disk: Disk) -> Iterator[StoredBatch]:
        """The batches that stay, in order."""
        for segment in self.segments:
            file = disk.open(segment.path, writable=False)
            for part in segment.parts:
                position, end = part if isinstance(part, tuple) else (0, 0)
                while position < end:
                    prefix = segment.prefixes.get(position, b"")
                    header = parse_header(prefix + file.pread(HEADER_BYTES - len(prefix), position + len(prefix)))
                    assert header is not None, f"{segment.path} has no batch at byte {position}, where one was found"
                    batch = Batch(header, file.pread(header.size - PREFIX_BYTES, position + PREFIX_BYTES))
                    yield StoredBatch(segment.path, position, batch, checksum_holds=True)
                    position += batch.size

    @property
    def offsets_lost(self) -> int:
        return sum(hole.lost(self.first_offset) for hole in self.holes)

    @property
    def cut_bytes(self) -> int:
        return sum(hole.size for hole in self.holes)


def survey(disk: Disk, directory: str, known: Known) -> Repair:
    """Read the log and decide what can stay. Changes nothing."""
    return _Survey(disk, directory, known).run()


class _Survey:
    def __init__(self, disk: Disk, directory: str, known: Known) -> None:
        self.disk = disk
        self.directory = directory
        self.mark = known.mark or LogMark()
        self.flushed_end = max(self.mark.recovery_offset, known.flushed_end)
        self.epochs = EpochHistory(self.mark.epochs)
        self.files = disk.list_files(directory) if disk.exists(directory) else {}
        self.start = max(self.mark.start_offset, marked_start(self.files))
        self.holes: list[Hole] = []
        self.states = ProducerStates()
        self.undecided = 0

    def run(self) -> Repair:
        bases = segment_bases(self.files)
        next_offset = first_offset = self.start
        if bases and bases[0] > self.start:
            path = f"{self.directory}/{segment_name(bases[0])}.log"
            self.holes.append(Hole(path, 0, 0, self.start, bases[0]))
            self.start = next_offset = bases[0]
        kept = []
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            segment = self._segment(base, following)
            kept.append(segment)
            next_offset = max(next_offset, segment.next_offset)
        if next_offset < self.flushed_end:
            if kept:
                self._note_end(kept[-1], next_offset, self.flushed_end)
            else:
                self.holes.append(Hole(self.directory, 0, 0, next_offset, self.flushed_end))
                self.start = self.flushed_end
            next_offset = self.flushed_end
        self.holes += [hole for segment in kept for hole in segment.holes]
        restored = sum(len(segment.prefixes) for segment in kept)
        return Repair(
            directory=self.directory,
            first_offset=first_offset,
            start_offset=self.start,
            end_offset=next_offset,
            holes=self.holes,
            restored=restored,
            undecided=self.undecided,
            segments=kept,
        )

    def _segment(self, base: Offset, following: Offset | None) -> _Kept:
        path = f"{self.directory}/{segment_name(base)}.log"
        file = self.disk.open(path, writable=False)
        data = file.pread(file.size(), 0)
        kept = _Kept(base, path, len(data), next_offset=base)
        limit = Offset(base + OFFSET_DELTA_MAX) if following is None else following
        for position, size, batch in self._batches(data, base, limit, kept):
            if batch is None:
                self._note_bad(kept, file, position, size)
            else:
                self._note_hole_before(kept, batch, data)
                kept.keep(position, batch)
                self.states.apply(batch)
        self._note_missing_end(kept, following)
        return kept

    def _batches(
        self, data: bytes, base: Offset, limit: Offset, kept: _Kept
    ) -> Iterator[tuple[int, int, Batch | None]]:
        """(position, size, batch or None for bytes that are none)."""
        position = 0
        next_offset = base
        while position < len(data):
            batch = self._batch_at(data, position, next_offset, limit, kept)
            if batch is None:
                found = find_batch(data, position + 1, next_offset, limit - 1)
                end = len(data) if found is None else found[0]
                yield position, end - position, None
                position = end
            else:
                yield position, batch.size, batch
                next_offset = batch.next_offset
                position += batch.size

    def _batch_at(self, data: bytes, position: int, next_offset: Offset, limit: Offset, kept: _Kept) -> Batch | None:
        header = parse_header(data, position)
        if header is None:
            header = self._header_without_offset(data, position)
        if header is None or header.size > len(data) - position:
            return None
        batch = Batch(header, data[position + PREFIX_BYTES : position + header.size])
        if not batch.checksum_holds():
            return None
        offset = self._offset_of(batch, next_offset, limit, parse_header(data, position + header.size))
        if offset is None:
            return None
        epoch = self.epochs.at(offset) if offset < self.mark.recovery_offset else None
        if offset != batch.base_offset or (epoch is not None and epoch != batch.leader_epoch):
            stamp(batch, offset, batch.leader_epoch if epoch is None else epoch)
            kept.prefixes[position] = batch.prefix()
        return batch

    @staticmethod
    def _header_without_offset(data: bytes, position: int) -> BatchHeader | None:
        """A batch's offset may have become negative, and then no batch begins there."""
        return parse_header(bytes(8) + data[position + 8 : position + 100])

    @staticmethod
    def _offset_of(batch: Batch, next_offset: Offset, limit: Offset, following: BatchHeader | None) -> Offset | None:
        """The offset that the batch has, or had before it was damaged, or None."""
        follows = following is None or batch.next_offset <= following.base_offset
        if next_offset <= batch.base_offset and batch.next_offset <= limit and follows:
            return batch.base_offset
        end = Offset(next_offset + batch.last_offset_delta + 1)
        if end <= limit and following is not None and following.base_offset == end:
            return next_offset
        if end == limit and following is None:
            return next_offset
        is_in_order = next_offset <= batch.base_offset and batch.next_offset <= limit
        return batch.base_offset if is_in_order else None

    def _note_bad(self, kept: _Kept, file: File, position: int, size: int) -> None:
        batches, records = count_batches(file, position, position + size, kept.next_offset)
        kept.holes.append(Hole(kept.path, position, size, kept.next_offset, kept.next_offset, batches, records))

    def _note_hole_before(self, kept: _Kept, batch: Batch, data: bytes) -> None:
        """After bytes that were cut, the next batch tells which offsets were in them."""
        if kept.holes and kept.holes[-1].next_offset == kept.next_offset < batch.base_offset:
            hole = kept.holes[-1]
            kept.holes[-1] = replace(hole, next_offset=batch.base_offset)
            self._abort_undecided(kept, batch.base_offset, self._undecided_by(hole, data))

    def _undecided_by(self, hole: Hole, data: bytes) -> Iterable[int]:
        """The producers whose markers may have been in the hole. If it was a single batch, its header tells."""
        undecided = self.states.open_transactions()
        header = parse_header(data, hole.position)
        if header is None or header.size != hole.size or header.base_offset != hole.first_offset:
            return undecided
        lost = Batch(header, b"")
        return [lost.producer_id] if lost.is_control and lost.producer_id in undecided else []

    def _abort_undecided(self, kept: _Kept, limit: Offset, producer_ids: Iterable[int]) -> None:
        """Put abort markers where offsets are missing. There cannot have been more markers than offsets."""
        for producer_id in list(producer_ids)[: limit - kept.next_offset]:
            producer = self.states.summary(producer_id)
            assert producer is not None, "it has an open transaction, so it is known"
            marker = control_batch(
                commit=False,
                producer_id=producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=max(producer.coordinator_epoch, 0),
                timestamp=max(producer.last_timestamp, 0),
            )
            stamp(marker, kept.next_offset, self.epochs.at(kept.next_offset) or Epoch(0))
            kept.parts.append(marker.data)
            kept.next_offset = marker.next_offset
            self.states.apply(marker)
            self.undecided += 1

    def _note_missing_end(self, kept: _Kept, following: Offset | None) -> None:
        if following is None or kept.next_offset >= following:
            return
        index_path = f"{kept.path.removesuffix('.log')}.index"
        sealed = None
        if self.disk.exists(index_path):
            sealed = Index(FileCache(self.disk, 2), index_path, kept.base_offset).load_summary()
        is_whole = sealed is not None and sealed.is_sealed and sealed.next_offset <= kept.next_offset
        if is_whole and sealed is not None and sealed.end_offset == following:
            return  # compaction removed what is missing
        self._note_end(kept, kept.next_offset, following)

    def _note_end(self, kept: _Kept, next_offset: Offset, limit: Offset) -> None:
        """The segment ends before ``limit``. If its end is cut, the missing offsets were in what is cut."""
        last = kept.holes[-1] if kept.holes else None
        is_cut = last is not None and last.position + last.size == kept.size and last.first_offset == last.next_offset
        if last is not None and is_cut:
            kept.holes[-1] = replace(last, first_offset=next_offset, next_offset=limit)
        else:
            kept.holes.append(Hole(kept.path, kept.size, 0, next_offset, limit))
        self._abort_undecided(kept, limit, self.states.open_transactions())


def apply(disk: Disk, repair: Repair) -> LogMark:
    """Make the log as the survey says, and return what the checkpoint must say of it. Everything is synced."""
    directory = repair.directory
    disk.mkdir(directory)
    for segment in repair.segments:
        if segment.is_changed:
            _rewrite(disk, segment)
    if repair.end_offset not in [segment.base_offset for segment in repair.segments]:
        # The last segment of a log has no gaps. What is left of the damaged one is sealed by this.
        disk.open(f"{directory}/{segment_name(repair.end_offset)}.log", create=True).close()
    files = disk.list_files(directory)
    if repair.undecided:
        for offset in snapshot_offsets(files):
            if offset > min(hole.first_offset for hole in repair.holes):
                disk.unlink(snapshot_path(directory, offset))  # it knows another end of these transactions
    for name in orphans(files):
        disk.unlink(f"{directory}/{name}")  # of a segment that is gone
    marked = marked_start(files)
    if repair.start_offset > marked:
        write_start(disk, directory, marked, repair.start_offset)
    disk.sync_dir(directory)
    log = PartitionLog.open(disk, directory, LogConfig(), known=Known(mark_lost=True))
    assert log.end_offset == repair.end_offset, f"{directory} reaches {log.end_offset} after its repair"
    return log.close()


def _rewrite(disk: Disk, segment: _Kept) -> None:
    """Keep the bytes that go, then replace the file."""
    source = disk.open(segment.path, writable=False)
    for hole in segment.holes:
        if hole.size:
            path = unused_path(disk, f"{segment.path}.cut-{hole.position}")
            replace_file(disk, path, source.pread(hole.size, hole.position))
    temporary = f"{segment.path}.tmp"
    with suppress(FileNotFoundError):
        disk.unlink(temporary)
    target = disk.open(temporary, create=True)
    written = 0
    for part in segment.parts:
        if isinstance(part, bytes):
            written += target.write([part], written)
            continue
        start, end = part
        for position in range(start, end, _COPY_BYTES):
            target.write([source.pread(min(_COPY_BYTES, end - position), position)], written + position - start)
        for position, prefix in segment.prefixes.items():
            if start <= position < end:
                target.write([prefix], written + position - start)
        written += end - start
    target.datasync()
    disk.rename(temporary, segment.path)
