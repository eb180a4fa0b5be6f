"""Reading batches from bytes that nobody vouches for: what a crash or decay has left in a log's file."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.batch import HEADER_BYTES, MAGIC, PREFIX_BYTES, Batch, BatchHeader, parse_header
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


def count_batches(file: File, position: int, end: int, next_offset: int) -> tuple[int, int]:
    """(batches, records) that stand whole in [position, end): at its start with any checksum, elsewhere with the right
    one. Never more than a piece of the file or one batch is in memory."""
    batches = records = 0
    offset_max = next_offset + end - position
    first = parse_header(file.pread(min(HEADER_BYTES, end - position), position))
    if first is not None and first.base_offset >= next_offset and first.size <= end - position:
        batches, records, position = 1, first.record_count, position + first.size
    for batch in _whole_batches(file, position, end, next_offset, offset_max):
        batches, records = batches + 1, records + batch.record_count
    return batches, records


def _whole_batches(file: File, position: int, end: int, offset_min: int, offset_max: int) -> Iterator[Batch]:
    while end - position >= HEADER_BYTES:
        chunk = file.pread(min(_READ_BYTES, end - position), position)
        last = len(chunk) - HEADER_BYTES
        relative = 0
        while relative <= last:
            place = chunk.find(MAGIC, relative + _MAGIC_POSITION)
            relative = last + 1 if place < 0 else place - _MAGIC_POSITION
            header = parse_header(chunk, relative) if relative <= last else None
            if header is None or not offset_min <= header.base_offset <= offset_max:
                relative += relative <= last
                continue
            batch = _batch_at(file, position + relative, end, header)
            if batch is not None:
                yield batch
            relative += 1 if batch is None else header.size
        if last < 0:
            return
        position += relative


def _batch_at(file: File, position: int, end: int, header: BatchHeader) -> Batch | None:
    if header.size > end - position:
        return None
    batch = Batch(header, file.pread(header.size - PREFIX_BYTES, position + PREFIX_BYTES))
    return batch if batch.checksum_holds() else None
