"""When to compact a log.

Only sealed segments below the recovery point, below the last stable offset and older than ``min.compaction.lag.ms``
are touched: what is flushed, decided and settled. A log is due when its dirty share reaches
``min.cleanable.dirty.ratio`` or its oldest dirty record is older than ``max.compaction.lag.ms``.
"""

from __future__ import annotations

from headrace.log.compaction.cleaner import CleaningJob
from headrace.log.log import PartitionLog
from headrace.log.segment import Segment
from headrace.vocabulary import FILE_START, Offset

__all__ = ["MAP_BYTES_MAX", "plan"]

MAP_BYTES_MAX = 64 << 20


def plan(log: PartitionLog, now_ms: int, *, token: str, map_bytes_max: int = MAP_BYTES_MAX) -> CleaningJob | None:
    """The job that is due for this log, or None. ``token`` names its files: it must be new."""
    config = log.config
    if not config.cleanup_compact:
        return None
    segments, end_offset = _settled(log, now_ms)
    dirty = [segment for number, segment in enumerate(segments) if _end(segments, number, end_offset) > _clean_to(log)]
    if not dirty or not _is_due(log, segments, dirty, now_ms):
        return None
    for segment in segments:
        log.load_aborted(segment)
    return CleaningJob(
        directory=log.directory,
        token=token,
        segments=[(segment.base_offset, segment.size, len(segment.aborted.entries)) for segment in segments],
        end_offset=end_offset,
        first_dirty_offset=_clean_to(log),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes_max=config.segment_bytes_max,
        index_interval_bytes=config.index_interval_bytes,
        map_bytes_max=map_bytes_max,
        decompressed_bytes_max=config.decompressed_bytes_max,
        aborted=[
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for entry in log.reader.aborted_transactions(segments[0].base_offset, end_offset)
        ],
        last_batches=sorted(log.producers.last_batch_offsets().items()),
    )


def _clean_to(log: PartitionLog) -> Offset:
    return max(log.mark.cleaned_offset, log.start_offset)


def _settled(log: PartitionLog, now_ms: int) -> tuple[list[Segment], Offset]:
    """The sealed segments that may be rewritten, and the offset where the last of them ends."""
    limit = min(log.mark.recovery_offset, log.last_stable_offset)
    found: list[Segment] = []
    end_offset = log.start_offset
    segments = log.segments
    for number, segment in enumerate(segments[:-1]):
        end = segments[number + 1].base_offset
        segment.summarise()
        if segment.corruption is not None:
            raise segment.corruption
        if end > limit or segment.max_timestamp > now_ms - log.config.min_compaction_lag_ms:
            break
        if end > log.start_offset:
            found.append(segment)
            end_offset = end
    return found, end_offset


def _end(segments: list[Segment], number: int, end_offset: Offset) -> Offset:
    return segments[number + 1].base_offset if number + 1 < len(segments) else end_offset


def _is_due(log: PartitionLog, segments: list[Segment], dirty: list[Segment], now_ms: int) -> bool:
    dirty_bytes = sum(segment.size for segment in dirty)
    total_bytes = sum(segment.size for segment in segments)
    if dirty_bytes and dirty_bytes >= total_bytes * log.config.min_cleanable_dirty_ratio:
        return True
    oldest = next((header.base_timestamp for _, header in dirty[0].headers(FILE_START, dirty[0].size)), now_ms)
    return now_ms - oldest > log.config.max_compaction_lag_ms
