"""How much of a log to keep: by age, by size, always whole segments from the oldest on.

A segment is old when its latest record is; records without a timestamp never grow old. Nothing that readers cannot see
yet is removed. When even the active segment is old it is rolled first, so that an idle topic empties.

Deciding and removing are two steps. A checkpoint between them makes the new start offset durable.
"""

from __future__ import annotations

from headrace.log.log import PartitionLog
from headrace.vocabulary import Offset

__all__ = ["advance_by_retention", "expired_start"]


def expired_start(log: PartitionLog, now_ms: int) -> Offset:
    """The start offset that the log's retention settings ask for at ``now_ms``."""
    config = log.config
    start = log.start_offset
    if not config.cleanup_delete:
        return start
    segments = list(log.segments)
    remaining_bytes = log.size_bytes
    for number, segment in enumerate(segments):
        end = segments[number + 1].base_offset if number + 1 < len(segments) else log.end_offset
        segment.summarise()
        is_old = 0 <= config.retention_ms < now_ms - segment.max_timestamp and segment.max_timestamp >= 0
        is_active = number + 1 == len(segments)
        is_excess = not is_active and 0 <= config.retention_bytes <= remaining_bytes - segment.size
        if segment.size == 0 or end > log.high_watermark or not (is_old or is_excess):
            break
        remaining_bytes -= segment.size
        start = max(start, end)
    return start


def advance_by_retention(log: PartitionLog, now_ms: int) -> bool:
    """Move the start offset as retention asks. True when segments can go after the next checkpoint."""
    log.advance_start(expired_start(log, now_ms))
    segments = log.segments
    following = segments[1].base_offset if len(segments) > 1 else log.end_offset
    return segments[0].size > 0 and following <= log.start_offset
