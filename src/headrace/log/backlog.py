"""How many bytes follow an offset: what overflow policies and lag in bytes are measured by."""

from __future__ import annotations

from functools import partial

from headrace.log.errors import storage_error
from headrace.log.index import Index
from headrace.log.log import PartitionLog
from headrace.vocabulary import Offset, Position

__all__ = ["bytes_from", "offset_keeping_bytes"]


def bytes_from(log: PartitionLog, offset: Offset) -> int:
    """The bytes a reader at ``offset`` still has before it, to the precision of a batch."""
    if offset >= log.end_offset:
        return 0
    try:
        return _bytes_from(log, offset)
    except OSError as error:
        raise storage_error(error, log.directory) from error


def _bytes_from(log: PartitionLog, offset: Offset) -> int:
    total = 0
    for segment in reversed(log.segments):
        if segment.base_offset <= offset:
            return total + segment.size - segment.position_of(max(offset, segment.base_offset))
        total += segment.size
    return total


def offset_keeping_bytes(log: PartitionLog, keep_bytes: int) -> Offset:
    """The lowest offset at which a batch begins and from which at most ``keep_bytes`` remain."""
    try:
        return _offset_keeping_bytes(log, keep_bytes)
    except OSError as error:
        raise storage_error(error, log.directory) from error


def _offset_keeping_bytes(log: PartitionLog, keep_bytes: int) -> Offset:
    left = keep_bytes
    for segment in reversed(log.segments):
        if segment.size > left:
            boundary = Position(segment.size - left)
            _, position = segment.with_index(partial(Index.floor_position, position=boundary))
            for at, header in segment.headers(position, segment.size):
                if at >= boundary:
                    return max(header.base_offset, log.start_offset)
            return segment.next_offset if segment is log.segments[-1] else _following_base(log, segment.base_offset)
        left -= segment.size
    return log.start_offset


def _following_base(log: PartitionLog, base_offset: Offset) -> Offset:
    return min(each.base_offset for each in log.segments if each.base_offset > base_offset)
