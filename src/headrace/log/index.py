"""The sparse index of one segment: which batch stands where, how late the records before it are, and a seal.

The file is a row of 4,096-byte blocks. All numbers are little-endian::

    byte  field
       0  checksum         uint32   CRC-32C of bytes 4 to 4095
       4  magic            uint16   0x4849
       6  version          uint16   2
       8  block number     uint32   0, 1, 2 … : a block in the wrong place is not believed
      12  entry count      uint32   252 in every block but the last
      16  base offset      int64    of the segment
      24  covered bytes    uint64   the log's bytes that this block and those before it summarise
      32  next offset      int64    where the log goes on after the covered bytes
      40  max timestamp    int64    the latest in the covered bytes
      48  end offset       int64    of a sealed segment: where the next one begins; -1 until it is sealed
      56  aborted count    uint32   of a sealed segment: entries in its .txn file; 2^32-1 when nobody counted
      60  prefixes         uint32   CRC-32C of the first 21 bytes of every batch in the covered bytes
      64  offsets          252 × uint32, relative to the base offset, of the batch at …
    1072  positions        252 × uint32, in the log file
    2080  timestamps       252 × int64, the latest in the bytes *before* that position

About every ``index_interval_bytes`` of log one entry is made. All three columns rise, so each can be bisected: by
offset to begin a read, by position to end one, by timestamp to find the first record at or after a time.

A block is valid when its checksum, magic, number and base offset are right. The index is never the only place of a
fact: a missing or invalid block is rebuilt from the log's headers. That is why it is written without a sync, why a full
disk here is no failure of an append, and why only the newest entries are kept in memory.

What the log itself cannot tell, the last block of a sealed segment does: how long the file was (a log cut exactly
between two batches looks whole), where the next segment begins, how many transactions aborted in it, and by
``prefixes`` whether offsets and leader epochs are those that were written, which no batch's own checksum covers.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import google_crc32c

from headrace.log.disk import FileCache
from headrace.vocabulary import Offset, Position

__all__ = ["BLOCK_BYTES", "BLOCK_ENTRIES", "NOT_COUNTED", "NOT_SEALED", "BlockSummary", "Index", "IndexDamaged"]

BLOCK_BYTES: Final = 4096
BLOCK_ENTRIES: Final = 252
MAGIC: Final = 0x4849
VERSION: Final = 2
NOT_SEALED: Final = -1
NOT_COUNTED: Final = 2**32 - 1
_HEADER = struct.Struct("<IHHIIqQqqqII")
assert _HEADER.size == 64
assert _HEADER.size + 16 * BLOCK_ENTRIES == BLOCK_BYTES
assert sys.byteorder == "little", "index columns are used in place and need a little-endian machine"

_ABORTED_COUNT_AT: Final = 56
_NO_LIMIT: Final = 1 << 62
_NO_TIMESTAMP: Final = -1
_OFFSETS: Final = 0
_POSITIONS: Final = 1
_TIMESTAMPS: Final = 2
_COLUMN_START: Final = (64, 64 + 4 * BLOCK_ENTRIES, 64 + 8 * BLOCK_ENTRIES)
_COLUMN_TYPE: Final = ("I", "I", "q")


class IndexDamaged(Exception):
    """A block is missing or invalid. Never leaves the log: the segment rebuilds its index and asks again."""


@dataclass(slots=True)
class BlockSummary:
    """What is known of the log up to ``covered_bytes`` without reading it."""

    covered_bytes: int
    next_offset: Offset
    max_timestamp: int
    prefixes: int = 0
    end_offset: int = NOT_SEALED
    aborted_count: int = NOT_COUNTED

    @property
    def is_sealed(self) -> bool:
        return self.end_offset != NOT_SEALED


class Index:
    """Entries of one segment; the newest block in memory, the others in the file."""

    __slots__ = ("_base_offset", "_block_number", "_cache", "_columns", "_loaded", "_prefixes", "_recent", "path")

    def __init__(self, cache: FileCache, path: str, base_offset: Offset) -> None:
        self._cache = cache
        self.path = path
        self._base_offset = base_offset
        self._block_number = 0
        self._columns = (array("I"), array("I"), array("q"))
        self._prefixes = array("I")
        """The checksum of the prefixes before each entry in memory; 0 for entries that were loaded."""
        self._loaded: tuple[int, BlockSummary] | None = None
        """(number, summary) of the last block that was found in the file."""
        self._recent: tuple[int, int, bytes] | None = None
        """(number, entry count, bytes) of the block that was read last."""

    def add(self, offset: Offset, position: Position, max_timestamp_before: int, prefixes_before: int) -> None:
        """Note that the batch with base ``offset`` starts at ``position``."""
        offsets, positions, timestamps = self._columns
        relative = offset - self._base_offset
        assert not positions or (positions[-1] < position and offsets[-1] < relative), "index entries must rise"
        offsets.append(relative)
        positions.append(position)
        timestamps.append(max_timestamp_before)
        self._prefixes.append(prefixes_before)
        if len(offsets) > BLOCK_ENTRIES:
            self._write_full_block()

    def _write_full_block(self) -> None:
        """The entry after a full block tells all that the block's summary needs.

        When the disk is full the block stays in memory and is tried again with the next entry.
        """
        offsets, positions, timestamps = self._columns
        last = BLOCK_ENTRIES
        next_offset = Offset(self._base_offset + offsets[last])
        summary = BlockSummary(positions[last], next_offset, timestamps[last], self._prefixes[last])
        try:
            self._write_block(summary, BLOCK_ENTRIES)
        except OSError:
            return
        self._columns = (offsets[last:], positions[last:], timestamps[last:])
        self._prefixes = self._prefixes[last:]
        self._block_number += 1

    def _write_block(self, summary: BlockSummary, count: int) -> None:
        block = bytearray(BLOCK_BYTES)
        _HEADER.pack_into(
            block,
            0,
            0,
            MAGIC,
            VERSION,
            self._block_number,
            count,
            self._base_offset,
            summary.covered_bytes,
            summary.next_offset,
            summary.max_timestamp,
            summary.end_offset,
            summary.aborted_count,
            summary.prefixes,
        )
        for column, start in zip(self._columns, _COLUMN_START, strict=True):
            data = column[:count].tobytes()
            block[start : start + len(data)] = data
        struct.pack_into("<I", block, 0, google_crc32c.value(bytes(block[4:])))
        self._recent = None
        self._cache.open(self.path, create=True).write([bytes(block)], self._block_number * BLOCK_BYTES)

    def save(self, summary: BlockSummary) -> None:
        """Write what memory holds: the segment is sealed, or the log closes. Raises OSError."""
        while len(self._columns[0]) > BLOCK_ENTRIES:
            before = self._block_number
            self._write_full_block()
            if self._block_number == before:
                raise OSError(28, "No space left on device", self.path)
        self._write_block(summary, len(self._columns[0]))

    def recount(self, aborted_count: int) -> None:
        """Write the number of aborted transactions into the last block of a sealed segment's index. Losing that is no
        loss: they are counted again."""
        found = self._newest_block(_NO_LIMIT)
        if found is None:
            return
        number, _, _, block = found
        changed = bytearray(block)
        struct.pack_into("<I", changed, _ABORTED_COUNT_AT, aborted_count)
        struct.pack_into("<I", changed, 0, google_crc32c.value(bytes(changed[4:])))
        self._recent = None
        with suppress(OSError):
            self._cache.open(self.path).write([bytes(changed)], number * BLOCK_BYTES)

    def unload(self) -> None:
        """Forget the newest block after ``save``: a sealed segment's index costs no memory."""
        if len(self._columns[0]):
            self._clear()
            self._block_number += 1

    def _clear(self) -> None:
        self._columns = (array("I"), array("I"), array("q"))
        self._prefixes = array("I")

    def reset(self) -> None:
        """Start over, to be rebuilt from the log."""
        self._block_number = 0
        self._clear()
        self._recent = None
        self._loaded = None
        self._cache.open(self.path, create=True).truncate(0)

    def load_summary(self) -> BlockSummary | None:
        """The newest valid block, without keeping it: for sealed segments."""
        found = self._newest_block(_NO_LIMIT)
        if found is None:
            self._block_number = 0
            return None
        number, _, summary, _ = found
        self._block_number = number + 1
        self._loaded = (number, summary)
        return summary

    def load_tail(self, covered_bytes_max: int) -> BlockSummary | None:
        """Prepare for appending: keep the last partial block in memory and drop whatever covers more."""
        found = self._newest_block(covered_bytes_max)
        if found is None:
            self.reset()
            return None
        number, count, summary, block = found
        self._block_number = number
        self._loaded = (number, summary)
        if count == BLOCK_ENTRIES:
            self._block_number += 1
        else:
            self._columns = (
                array("I", _column(block, _OFFSETS, count)),
                array("I", _column(block, _POSITIONS, count)),
                array("q", _column(block, _TIMESTAMPS, count)),
            )
            self._prefixes = array("I", bytes(4 * count))
        self._cache.open(self.path).truncate((number + 1) * BLOCK_BYTES)
        return summary

    def stretch(self, position: int) -> tuple[BlockSummary, BlockSummary]:
        """What was known before and after the stretch of log that holds ``position``, among the blocks that were found
        in the file. Raises IndexDamaged."""
        assert self._loaded is not None
        last, summary = self._loaded
        low, high = 0, last
        while low < high:
            middle = (low + high) // 2
            if self._summary(middle).covered_bytes <= position:
                low = middle + 1
            else:
                high = middle
        before = BlockSummary(0, self._base_offset, _NO_TIMESTAMP) if low == 0 else self._summary(low - 1)
        return before, summary if low == last else self._summary(low)

    def _summary(self, number: int) -> BlockSummary:
        return self._read_block(number)[1]

    def _newest_block(self, covered_bytes_max: int) -> tuple[int, int, BlockSummary, bytes] | None:
        try:
            number = self._cache.open(self.path).size() // BLOCK_BYTES - 1
        except FileNotFoundError:
            return None
        while number >= 0:
            try:
                count, summary, block = self._read_block(number)
            except IndexDamaged:
                pass
            else:
                if summary.covered_bytes <= covered_bytes_max:
                    return number, count, summary, block
            number -= 1
        return None

    def _read_block(self, number: int) -> tuple[int, BlockSummary, bytes]:
        try:
            block = self._cache.open(self.path).pread(BLOCK_BYTES, number * BLOCK_BYTES)
        except FileNotFoundError:
            raise IndexDamaged(f"{self.path} is missing") from None
        if len(block) < BLOCK_BYTES:
            raise IndexDamaged(f"{self.path} ends inside block {number}")
        checksum, magic, version, own_number, count, base, covered, *known = _HEADER.unpack_from(block)
        next_offset, latest, end_offset, aborted_count, prefixes = known
        fits = (magic, version, own_number, base) == (MAGIC, VERSION, number, self._base_offset)
        if not fits or count > BLOCK_ENTRIES or google_crc32c.value(block[4:]) != checksum:
            raise IndexDamaged(f"block {number} of {self.path} is not valid")
        return count, BlockSummary(covered, Offset(next_offset), latest, prefixes, end_offset, aborted_count), block

    def floor_offset(self, offset: Offset) -> tuple[Offset, Position]:
        """(offset, position) of the last entry at or before ``offset``; the segment's start when there is none."""
        return self._floor(_OFFSETS, offset - self._base_offset, inclusive=True)

    def floor_position(self, position: Position) -> tuple[Offset, Position]:
        """(offset, position) of the last entry at or before ``position``."""
        return self._floor(_POSITIONS, position, inclusive=True)

    def floor_timestamp(self, timestamp: int) -> tuple[Offset, Position]:
        """(offset, position) of the last entry with only earlier records before it: the first record at or after
        ``timestamp`` is not in front of it."""
        return self._floor(_TIMESTAMPS, timestamp, inclusive=False)

    def _floor(self, column: int, value: int, *, inclusive: bool) -> tuple[Offset, Position]:
        bisect = bisect_right if inclusive else bisect_left
        offsets, positions, _ = self._columns
        place = bisect(self._columns[column], value)
        if place:
            return Offset(self._base_offset + offsets[place - 1]), Position(positions[place - 1])
        low, high = 0, self._block_number
        best = (self._base_offset, Position(0))
        # A sequential reader asks for the block of last time or the one after it, so those are tried before bisecting.
        guesses = [] if self._recent is None else [self._recent[0] + 1, self._recent[0]]
        while low < high:
            guess = guesses.pop() if guesses else -1
            middle = guess if low <= guess < high else (low + high) // 2
            count, block = self._block(middle)
            place = bisect(_column(block, column, count), value)
            if place == 0:
                high = middle
                continue
            best = self._entry(block, place - 1, count)
            if place < count:
                break
            low = middle + 1
        return best

    def _block(self, number: int) -> tuple[int, bytes]:
        if self._recent is None or self._recent[0] != number:
            count, _, block = self._read_block(number)
            self._recent = (number, count, block)
        return self._recent[1:]

    def _entry(self, block: bytes, number: int, count: int) -> tuple[Offset, Position]:
        relative = _column(block, _OFFSETS, count)[number]
        return Offset(self._base_offset + relative), Position(_column(block, _POSITIONS, count)[number])

    def entries(self) -> list[tuple[Offset, Position, int]]:
        """Every entry as (offset, position, latest timestamp before it): for ``verify``."""
        found = []
        for number in range(self._block_number):
            count, _, block = self._read_block(number)
            columns = [_column(block, column, count) for column in (_OFFSETS, _POSITIONS, _TIMESTAMPS)]
            found += list(zip(*columns, strict=True))
        found += list(zip(*self._columns, strict=True))
        return [(Offset(self._base_offset + relative), position, latest) for relative, position, latest in found]


def _column(block: bytes, column: int, count: int) -> memoryview:
    start = _COLUMN_START[column]
    width = 8 if column == _TIMESTAMPS else 4
    return memoryview(block)[start : start + width * count].cast(_COLUMN_TYPE[column])
