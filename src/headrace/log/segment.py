"""One segment of a partition's log: ``<base offset, 20 digits>.log`` with its ``.index``.

The log file is nothing but record batches (see ``headrace.batch``), one after the other, as they are on the wire. Base
offsets rise; they leave gaps only where compaction removed something. Nothing is preallocated, so the size of the file
is where the next batch goes.

The newest segment is *active*: its size, next offset and latest timestamp are kept in memory as batches arrive. The
others are *sealed* and cost almost nothing until somebody reads them; what must be known about them comes from the last
block of their index, which says how long the file is and where the next segment begins.

A batch's checksum does not cover its offset and its leader epoch, and nobody reads all headers of a large log at every
start. So bytes that an earlier process wrote are *believed* until somebody reads them: then the headers of that stretch
are compared, once, with the checksum in the index (``check``).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import TypeVar

import google_crc32c

from headrace.batch import HEADER_BYTES, LENGTH_FIELD_END, PREFIX_BYTES, Batch, BatchHeader, parse_header
from headrace.log.aborted import AbortedIndex
from headrace.log.disk import FileCache
from headrace.log.errors import CorruptLog
from headrace.log.index import NOT_COUNTED, NOT_SEALED, BlockSummary, Index, IndexDamaged
from headrace.ports import Disk, File
from headrace.vocabulary import Offset, Position

__all__ = ["FileSlice", "Segment", "number_of_segment", "orphans", "segment_bases", "segment_name"]

NO_TIMESTAMP = -1
OFFSET_DELTA_MAX = 2**31 - 1
_SCAN_BYTES = 1 << 20

_T = TypeVar("_T")
_BASE_OFFSET = attrgetter("base_offset")
_START = itemgetter(0)
_extend = google_crc32c.extend
_LOG = re.compile(r"([0-9]{20})\.log")
_COMPANION = re.compile(r"([0-9]{20})\.(index|txn)")


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


def segment_bases(names: Iterable[str]) -> list[Offset]:
    """The base offsets of the segments among these names of files, in order."""
    return sorted(Offset(int(match[1])) for match in map(_LOG.fullmatch, names) if match)


def orphans(names: Collection[str]) -> dict[str, Offset]:
    """The indexes and aborted transactions among these names whose log is not there, with their base offsets."""
    found = [match for match in map(_COMPANION.fullmatch, names) if match and f"{match[1]}.log" not in names]
    return {match[0]: Offset(int(match[1])) for match in found}


def number_of_segment(segments: Sequence[Segment], offset: Offset) -> int:
    """The place in ``segments`` of the one that holds ``offset``; the first when all of them come after it."""
    return max(bisect_right(segments, offset, key=_BASE_OFFSET) - 1, 0)


class FileSlice:
    """A range of whole batches in an open file. Holding it keeps the file readable, even after it was unlinked."""

    __slots__ = ("end_offset", "file", "position", "size")

    def __init__(self, file: File, position: Position, size: int, end_offset: Offset) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.end_offset = end_offset
        """Every record in the range has a smaller offset."""

    def __len__(self) -> int:
        return self.size

    def fileno(self) -> int:
        return self.file.fileno()

    def read(self) -> bytes:
        """The bytes themselves; fewer than ``size`` would mean that the file lost its end under us."""
        data = self.file.pread(self.size, self.position)
        if len(data) != self.size:
            raise CorruptLog(self.file.path, self.position + len(data), f"expected {self.size - len(data)} more bytes")
        return data

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path!r}, position={self.position}, size={self.size})"


class Segment:
    """A log file and its index. ``next_offset`` and ``max_timestamp`` are exact once ``summarise`` has run."""

    __slots__ = (
        "_believed_bytes",
        "_cache",
        "_checked",
        "_index_interval_bytes",
        "_indexed_position",
        "_prefixes",
        "aborted",
        "aborted_count",
        "base_offset",
        "corruption",
        "end_offset",
        "first_timestamp",
        "following_offset",
        "gaps_allowed",
        "index",
        "max_timestamp",
        "next_offset",
        "path",
        "size",
        "stem",
        "summarised",
    )

    def __init__(
        self,
        cache: FileCache,
        stem: str,
        base_offset: Offset,
        size: int,
        index_interval_bytes: int,
        *,
        gaps_allowed: bool = False,
        suffix: str = "",
    ) -> None:
        self._cache = cache
        self.stem = stem
        self.path = f"{stem}.log{suffix}"
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = size
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp: int | None = None
        self.index = Index(cache, f"{stem}.index{suffix}", base_offset)
        self.aborted = AbortedIndex(cache, f"{stem}.txn{suffix}")
        self.aborted_count = NOT_COUNTED
        """Of a sealed segment: how many entries its .txn file must have."""
        self.end_offset = NOT_SEALED
        """Of a sealed segment: where the next one begins."""
        self.following_offset = NOT_SEALED
        """Where the next segment begins in the directory."""
        self.gaps_allowed = gaps_allowed
        """Whether offsets may be missing between batches without anything being lost."""
        self.summarised = False
        self.corruption: CorruptLog | None = None
        """Set when bytes are missing, or the headers could not be walked to the end; what lies before that place is
        still served."""
        self._believed_bytes = size
        self._checked: list[tuple[int, int]] = []
        """Ranges of the believed bytes that have been checked, in order and apart from each other."""
        self._prefixes = 0
        self._index_interval_bytes = index_interval_bytes
        self._indexed_position = 0

    def __repr__(self) -> str:
        return f"Segment({self.path!r}, next_offset={self.next_offset}, size={self.size})"

    def file(self) -> File:
        return self._cache.open(self.path)

    # Writing.

    def write(self, chunks: Sequence[bytes]) -> int:
        """Append bytes at the end without counting them in; ``admit`` does that batch by batch."""
        return self.file().write(chunks, self.size)

    def cut_back(self) -> None:
        """Remove what a failed ``write`` may have left after the end."""
        self.file().truncate(self.size)

    def begin(self) -> None:
        """The segment is new and empty."""
        self.summarised = True
        self.aborted.begin()

    def admit(self, prefix: bytes, base_offset: Offset, size: int, next_offset: Offset, max_timestamp: int) -> None:
        """Count in a batch that stands at the end of what was counted so far; ``prefix`` are its first 21 bytes."""
        if self.size - self._indexed_position >= self._index_interval_bytes:
            self.index.add(base_offset, Position(self.size), self.max_timestamp, self._prefixes)
            self._indexed_position = self.size
        self._prefixes = _extend(self._prefixes, prefix)
        if self.size == 0:
            self.first_timestamp = max_timestamp if max_timestamp >= 0 else None
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        self.size += size
        self.next_offset = next_offset

    def summary(self) -> BlockSummary:
        return BlockSummary(
            self.size, self.next_offset, self.max_timestamp, self._prefixes, self.end_offset, self.aborted_count
        )

    def seal(self, end_offset: Offset) -> None:
        """No more batches will come, and the next segment begins at ``end_offset``: put the index where it costs no
        memory. On a full disk it is rebuilt when somebody asks."""
        self.end_offset = end_offset
        self.aborted_count = len(self.aborted.entries) if self.aborted.is_loaded else NOT_COUNTED
        self.save_index()

    def recount_aborted(self) -> None:
        """The aborted transactions of a sealed segment were derived again. There may be fewer: of a transaction whose
        records compaction has removed, nothing is left to skip."""
        self.aborted_count = len(self.aborted.entries)
        self.index.recount(self.aborted_count)

    def save_index(self) -> None:
        with suppress(OSError):
            self.index.save(self.summary())
            self.index.unload()

    def pin(self) -> None:
        """Keep to the files that are there now while another thread replaces them."""
        self.summarise()  # which makes an index where there is none
        for path in (self.path, self.index.path, self.aborted.path):
            with suppress(FileNotFoundError):
                self._cache.pin(path)

    def forget(self) -> None:
        """The files are being removed or replaced; a reader that holds one keeps it open."""
        for path in (self.path, self.index.path, self.aborted.path):
            self._cache.forget(path)

    def remove(self, disk: Disk) -> None:
        self.forget()
        self.unlink(disk)

    def unlink(self, disk: Disk) -> None:
        """Unlink the segment's files, the log first. What a crash leaves without a log goes at the next opening."""
        for path in (self.path, self.index.path, self.aborted.path):
            with suppress(FileNotFoundError):
                disk.unlink(path)

    def smallest_file(self, disk: Disk) -> str:
        """A file of this segment that exists: the index or the aborted transactions rather than the log."""
        return next((path for path in (self.index.path, self.aborted.path) if disk.exists(path)), self.path)

    # Knowing.

    def summarise(self) -> None:
        """Learn ``next_offset`` and ``max_timestamp`` of a sealed segment: one read if its index is good.

        The log's file may be shorter or longer than it was when it was sealed. If it is shorter, what is left is
        served and then the loss is reported; if it is longer, the rest is not ours.
        """
        if self.summarised:
            return
        known = self.index.load_summary()
        if known is None or not known.is_sealed:
            self.rebuild_index()
            return
        self.next_offset = known.next_offset
        self.max_timestamp = known.max_timestamp
        self._prefixes = known.prefixes
        self.end_offset = known.end_offset
        self.aborted_count = known.aborted_count
        self.summarised = True
        if known.covered_bytes > self.size:
            missing = known.covered_bytes - self.size
            self.corruption = CorruptLog(self.path, self.size, f"{missing} bytes are missing at its end")
            self.size = self._end_of_last_whole_batch()
        else:
            self.size = known.covered_bytes
        self._believed_bytes = min(self._believed_bytes, self.size)

    def _end_of_last_whole_batch(self) -> int:
        _, end = self.with_index(lambda index: index.floor_position(Position(self.size)))
        with suppress(CorruptLog):
            for position, header in self.headers(end, self.size, self._index_interval_bytes + HEADER_BYTES):
                end = Position(position + header.size)
        return end

    def rebuild_index(self) -> None:
        """Walk the headers of the whole segment and write the index again. Raises CorruptLog once: then the index
        reaches as far as the headers do, and nobody tries again."""
        size, next_offset, first_timestamp = self.size, self.next_offset, self.first_timestamp
        self.index.reset()
        try:
            self.load_from(BlockSummary(0, self.base_offset, NO_TIMESTAMP), size)
        except CorruptLog as error:
            self.size, self.next_offset, self.first_timestamp = size, next_offset, first_timestamp
            self.corruption = error
            self.summarised = True
            raise
        except OSError:
            self.size, self.next_offset, self.first_timestamp = size, next_offset, first_timestamp
            raise
        if self.end_offset == NOT_SEALED:
            self.end_offset = self.following_offset if self.gaps_allowed else self.next_offset
        self.save_index()

    def load_from(self, known: BlockSummary, end: int) -> None:
        """Count in the batches between what is known and ``end``, by their headers. What is known stays believed."""
        self.size = known.covered_bytes
        self.next_offset = known.next_offset
        self.max_timestamp = known.max_timestamp
        self._prefixes = known.prefixes
        self._indexed_position = known.covered_bytes
        self._believed_bytes = known.covered_bytes
        for position, header in self.headers(Position(known.covered_bytes), end):
            if header.base_offset != self.next_offset and not self.gaps_allowed:
                reason = f"offset {header.base_offset} stands where {self.next_offset} must"
                raise CorruptLog(self.path, position, reason)
            self.admit_header(header)
        self.summarised = True

    def admit_header(self, header: BatchHeader) -> None:
        self.admit(header.prefix(), header.base_offset, header.size, header.next_offset, header.max_timestamp)

    def with_index(self, ask: Callable[[Index], _T]) -> _T:
        """Ask the index, rebuilding it once if it turns out to be damaged."""
        self.summarise()
        try:
            return ask(self.index)
        except IndexDamaged:
            self.rebuild_index()
            return ask(self.index)

    # Checking what an earlier process wrote.

    def check(self, position: int, end: int) -> None:
        """The headers in [position, end) must be those that were written. Each stretch is compared once."""
        if position < self._believed_bytes:
            self.summarise()
        while position < min(end, self._believed_bytes):
            number = bisect_right(self._checked, position, key=_START) - 1
            if number >= 0 and self._checked[number][1] > position:
                position = self._checked[number][1]
                continue
            try:
                before, after = self.index.stretch(position)
            except IndexDamaged:
                self.rebuild_index()
                return
            assert after.covered_bytes > position, "what is believed is what the index covers"
            if after.covered_bytes > self.size:
                self._check_cut_stretch(before)
                return
            self._compare(before, after)
            self._note_checked(before.covered_bytes, after.covered_bytes)
            position = after.covered_bytes

    def check_whole(self) -> None:
        """The same for a whole sealed segment, without changing anything: for a process that does not own the log. An
        index that is damaged is its owner's business."""
        known = self.index.load_summary()
        if known is not None and known.is_sealed and known.covered_bytes == self.size:
            self._compare(BlockSummary(0, self.base_offset, NO_TIMESTAMP), known)

    def _compare(self, before: BlockSummary, after: BlockSummary) -> None:
        prefixes, next_offset = before.prefixes, before.next_offset
        interval = self._index_interval_bytes + HEADER_BYTES
        for _, header in self.headers(Position(before.covered_bytes), after.covered_bytes, interval):
            prefixes, next_offset = _extend(prefixes, header.prefix()), header.next_offset
        if (prefixes, next_offset) != (after.prefixes, after.next_offset):
            reason = f"an offset, length or epoch before byte {after.covered_bytes} is not what was written"
            self.corruption = CorruptLog(self.path, before.covered_bytes, reason)
            raise self.corruption

    def _check_cut_stretch(self, before: BlockSummary) -> None:
        """The end of this stretch is gone, and its checksum with it. What is left must at least go on from what was
        before."""
        next_offset = before.next_offset
        for position, header in self.headers(Position(before.covered_bytes), self.size):
            is_next = header.base_offset == next_offset or (self.gaps_allowed and header.base_offset > next_offset)
            if not is_next or header.next_offset > self.end_offset:
                raise CorruptLog(self.path, position, f"offset {header.base_offset} stands where {next_offset} must")
            next_offset = header.next_offset

    def _note_checked(self, start: int, end: int) -> None:
        """Ranges that touch become one, so that a sequential reader leaves a single one."""
        touching = [each for each in self._checked if each[0] <= end and start <= each[1]]
        merged = (min([start, *(each[0] for each in touching)]), max([end, *(each[1] for each in touching)]))
        self._checked = sorted([each for each in self._checked if each not in touching] + [merged])
        if self._checked == [(0, self._believed_bytes)]:
            self._believed_bytes = 0

    # Reading.

    def headers(
        self, position: Position, end: int, read_bytes: int = _SCAN_BYTES
    ) -> Iterator[tuple[Position, BatchHeader]]:
        """(position, header) of each batch in [position, end); CorruptLog where a header makes no sense."""
        file = self.file()
        chunk = b""
        chunk_start = position
        offset_min: int = self.base_offset
        offset_max = self.base_offset + OFFSET_DELTA_MAX
        while position < end:
            relative = position - chunk_start
            if relative + HEADER_BYTES > len(chunk):
                chunk = file.pread(min(read_bytes, end - position), position)
                chunk_start = position
                relative = 0
            header = parse_header(chunk, relative)
            if header is None or position + header.length + LENGTH_FIELD_END > end:
                raise CorruptLog(self.path, position, "no batch begins here")
            if not offset_min <= header.base_offset <= offset_max:
                raise CorruptLog(self.path, position, f"offset {header.base_offset} cannot stand here")
            offset_min = header.base_offset + header.last_offset_delta + 1
            yield position, header
            position = Position(position + header.length + LENGTH_FIELD_END)

    def search(self, ask: Callable[[], _T]) -> _T:
        """Ask something that follows the index into the log. If that leads nowhere, the index may be of another log
        (restored from a copy, say): it is rebuilt, and if the log is at fault that says so."""
        try:
            return ask()
        except CorruptLog:
            if self.corruption is not None:
                raise
            self.rebuild_index()
            return ask()

    def position_of(self, offset: Offset) -> Position:
        """Where the batch that holds ``offset``, or the first one after it, begins; ``size`` when there is none."""
        return self.search(lambda: self._position_of(offset))

    def _position_of(self, offset: Offset) -> Position:
        _, start = self.with_index(lambda index: index.floor_offset(offset))
        self.check(start, start + 1)
        for position, header in self.headers(start, self.size, self._index_interval_bytes + HEADER_BYTES):
            if header.last_offset >= offset:
                return position
        return Position(self.size)

    def end_within(self, start: Position, limit: Position, offset_max: Offset) -> tuple[Position, Offset]:
        """(position, offset) where a read from ``start`` must end: a batch boundary at most at ``limit``, with every
        batch before it wholly below ``offset_max``. Headers are read over about one index interval only."""
        return self.search(lambda: self._end_within(start, limit, offset_max))

    def _end_within(self, start: Position, limit: Position, offset_max: Offset) -> tuple[Position, Offset]:
        boundary_offset, by_position = self.with_index(lambda index: index.floor_position(limit))
        if limit < self.size and by_position > start and boundary_offset <= offset_max:
            # The index knows a boundary: a little less than asked for, and the log's own pages, which may be cold, are
            # not read. The rest of the last interval comes with the next read.
            return by_position, boundary_offset
        if offset_max < self.next_offset:
            _, by_offset = self.with_index(lambda index: index.floor_offset(offset_max))
            by_position = min(by_position, by_offset)
        end = max(start, by_position)
        end_offset = Offset(-1)
        for position, header in self.headers(end, self.size, self._index_interval_bytes + HEADER_BYTES):
            if end_offset < 0:
                end_offset = header.base_offset
            if position + header.size > limit or header.last_offset >= offset_max:
                break
            end = Position(position + header.size)
            end_offset = header.next_offset
        return end, end_offset

    def read_batch(self, position: Position) -> Batch:
        """One whole batch, with its checksum checked."""
        self.check(position, position + 1)
        file = self.file()
        header = parse_header(file.pread(HEADER_BYTES, position))
        if header is None or header.size > self.size - position:
            raise CorruptLog(self.path, position, "no batch begins here")
        body = file.pread(header.size - PREFIX_BYTES, position + PREFIX_BYTES)
        batch = Batch(header, body)
        if not batch.checksum_holds():
            raise CorruptLog(self.path, position, f"the checksum of the batch at offset {batch.base_offset} is wrong")
        return batch

    def first_at_or_after(
        self, timestamp: int, from_offset: Offset, headers_max: int
    ) -> tuple[Position | None, Offset | None]:
        """Where the first batch stands that reaches beyond ``from_offset`` and has a time at or after ``timestamp``.

        (None, offset): not among ``headers_max`` headers, look on from that offset; (None, None): there is none here.
        """
        return self.search(lambda: self._first_at_or_after(timestamp, from_offset, headers_max))

    def _first_at_or_after(
        self, timestamp: int, from_offset: Offset, headers_max: int
    ) -> tuple[Position | None, Offset | None]:
        self.summarise()
        if self.max_timestamp < timestamp:
            return None, None
        _, by_time = self.with_index(lambda index: index.floor_timestamp(timestamp))
        _, by_offset = self.with_index(lambda index: index.floor_offset(max(from_offset, self.base_offset)))
        for position, header in self.headers(max(by_time, by_offset), Position(self.size)):
            if header.max_timestamp >= timestamp and header.next_offset > from_offset:
                return position, None
            headers_max -= 1
            if headers_max <= 0:
                return None, header.next_offset
        return None, None
