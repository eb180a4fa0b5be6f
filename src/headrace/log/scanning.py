"""Reading batches from bytes that nobody vouches for: what a crash or decay has left in a log's file."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.batch import HEADER_BYTES, MAGIC, PREFIX_BYTES, Batch, parse_header
from headrace.ports import File
from headrace.vocabulary import Offset, Position

__all__ = ["count_batches", "find_batch", "scan_batches"]

_READ_BYTES = 1 << 20
_MAGIC_POSITION = 16


def scan_batches(
    file: File,
    position: Position,
    end: int,
    next_offset: Offset,
    *,
    limit: int | None = None,
    gaps_allowed: bool = False,
) -> Iterator[tuple[Position, Batch]]:
    """(position, batch) of every valid batch from ``position`` on; ends at the first bytes that are not the next one.

    Offsets must follow each other without a gap, unless gaps are allowed, and stay below ``limit``.
    """
    chunk = b""
    chunk_start = position
    while True:
        relative = position - chunk_start
        header = parse_header(chunk, relative)
        size = HEADER_BYTES if header is None else header.size
        if relative + size > len(chunk):
            if header is not None and position + size > end:
                return
            chunk = file.pread(min(max(_READ_BYTES, size), end - position), position)
            chunk_start, relative = position, 0
            header = parse_header(chunk)
            size = 0 if header is None else header.size
            if header is not None and len(chunk) < size <= end - position:
                chunk = file.pread(size, position)
        if header is None or relative + size > len(chunk):
            return
        if header.base_offset < next_offset or (header.base_offset > next_offset and not gaps_allowed):
            return
        if limit is not None and header.next_offset > limit:
            return
        batch = Batch(header, chunk[relative + PREFIX_BYTES : relative + size])
        if not batch.checksum_holds():
            return
        yield position, batch
        position = Position(position + size)
        next_offset = batch.next_offset


def find_batch(data: bytes, position: int, offset_min: int, offset_max: int) -> tuple[int, Batch] | None:
    """(position, batch) of the first batch at or after ``position`` that is whole, has the right checksum and an offset
    in this range. The range leaves few candidates to check."""
    while (place := data.find(MAGIC, position + _MAGIC_POSITION)) >= 0:
        position = place - _MAGIC_POSITION
        header = parse_header(data, position)
        if (
            header is not None
            and header.size <= len(data) - position
            and offset_min <= header.base_offset <= offset_max
        ):
            batch = Batch(header, data[position + PREFIX_BYTES : position + header.size])
            if batch.checksum_holds():
                return position, batch
        position += 1
    return None


def count_batches(tail: bytes, next_offset: int) -> tuple[int, int]:
    """(batches, records) that stand whole in these bytes: at their start with any checksum, or anywhere with the right
    one."""
    batches = records = position = 0
    first = parse_header(tail)
    if first is not None and first.base_offset >= next_offset and first.size <= len(tail):
        batches, records, position = 1, first.record_count, first.size
    while (found := find_batch(tail, position, next_offset, next_offset + len(tail))) is not None:
        position, batch = found
        batches, records, position = batches + 1, records + batch.record_count, position + batch.size
    return batches, records
