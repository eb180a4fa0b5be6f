"""Reading messages for people: from a place, newest or oldest first, all of them or those that match.

A partition is read in chunks of offsets, whose size grows: the first is enough for a page, later ones are large enough
that a search reads at the speed of ``fetch_range``. Newest first means that chunks are read from the end. Several
partitions take turns, and what their first chunks have is put in the order of time. What was read is counted from the
headers of batches, so progress costs nothing.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.batch import Batch
from headrace.client import (
    Client,
    OffsetOutOfRange,
    RangeOptions,
    RawBatch,
    TopicPartition,
    end_offsets,
    fetch_range,
    list_offsets,
    start_offsets,
)
from headrace.console.limits import BATCH_BYTES_MAX, CHUNK_OFFSETS_MAX, HELD_BYTES_MAX, PAGE_S
from headrace.console.matching import Matcher
from headrace.console.problems import BadRequest
from headrace.record import CorruptRecords, DecompressedTooLarge, Record, iter_records, records_of

__all__ = ["Found", "MessagePage", "Progress", "Selection", "newest", "oldest", "scan", "select"]

GROWTH = 4
CHUNK_OFFSETS_FIRST = 200
MERGED_OFFSETS_MAX = CHUNK_OFFSETS_FIRST * GROWTH
"""Chunks up to this size of all partitions are put in one order; larger ones are given as they come."""
SMALL_FETCH_BYTES = 512 * 1024
LARGE_FETCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """A record and where it is. ``by_broker``: the broker's clock has stamped it."""

    partition: TopicPartition
    record: Record
    by_broker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Ranges of offsets, one per partition."""

    ranges: Mapping[TopicPartition, tuple[int, int]]
    committed: bool = True

    @property
    def offsets(self) -> int:
        return sum(high - low for low, high in self.ranges.values())


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a scan is; ``left`` has the ranges that were not read, for going on later."""

    offsets: int = 0
    records: int = 0
    size: int = 0
    unreadable: int = 0
    left: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)


def select(
    client: Client,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: str = "beginning",
    until: str = "end",
    committed: bool = True,
) -> Selection:
    """The ranges between two places: ``beginning``, ``end``, an offset, or ``@`` and a time in ms."""
    count = len(client.topic(topic).partitions)
    chosen = range(count) if partitions is None else partitions
    wrong = [index for index in chosen if not 0 <= index < count]
    if wrong:
        raise BadRequest(f"topic {topic!r} has partitions 0 to {count - 1}, not {wrong[0]}")
    asked = [TopicPartition(topic, index) for index in chosen]
    starts = start_offsets(client, asked)
    ends = end_offsets(client, asked, read_committed=committed)
    lows = _places(client, start, starts, ends)
    highs = _places(client, until, starts, ends)
    ranges = {each: (lows[each], max(lows[each], highs[each])) for each in asked}
    return Selection(ranges=ranges, committed=committed)


def _places(
    client: Client, place: str, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if place == "beginning":
        return dict(starts)
    if place == "end":
        return dict(ends)
    is_time = place.startswith("@")
    try:
        number = int(place.removeprefix("@"))
    except ValueError:
        raise BadRequest(f"{place!r} is not a place", "use beginning, end, an offset, or @ and a time in ms") from None
    if is_time:
        found = list_offsets(client, dict.fromkeys(starts, max(0, number)))
        at = {each: found[each].offset if found[each].offset >= 0 else ends[each] for each in starts}
    else:
        at = dict.fromkeys(starts, number)
    return {each: min(max(at[each], starts[each]), ends[each]) for each in starts}


# ---- pages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessagePage:
    """``left``: what is still to be looked at, for going on. ``is_late``: the page ended because its time was over."""

    found: list[Found]
    left: Mapping[TopicPartition, tuple[int, int]]
    is_late: bool


def newest(client: Client, selection: Selection, count: int, *, seconds: float = PAGE_S) -> MessagePage:
    """The newest messages of all partitions together, newest first."""
    return _page(client, selection, count, seconds, newest_first=True)


def oldest(client: Client, selection: Selection, count: int, *, seconds: float = PAGE_S) -> MessagePage:
    """The oldest messages of all partitions together, oldest first."""
    return _page(client, selection, count, seconds, newest_first=False)


def _page(client: Client, selection: Selection, count: int, seconds: float, *, newest_first: bool) -> MessagePage:
    """Each partition has its share of the time: one whose messages were compacted away, or aborted, almost whole would
    take all of it. Of large messages a page has fewer: what is held has a limit."""
    until_s = time.monotonic() + seconds
    found: list[Found] = []
    offsets: dict[TopicPartition, list[int]] = {}
    left: dict[TopicPartition, tuple[int, int]] = {}
    is_late = False
    for number, (partition, bounds) in enumerate(selection.ranges.items()):
        now_s = time.monotonic()
        if number and now_s > until_s:
            left[partition] = bounds
            is_late = True
            continue
        share_s = max(0.0, until_s - now_s) / (len(selection.ranges) - number)
        one = Selection(ranges={partition: bounds}, committed=selection.committed)
        progress = Progress()
        parts = scan(client, one, Matcher(), newest_first=newest_first, progress=progress, until_s=now_s + share_s)
        of_one, is_full = _first(parts, count)
        is_late |= not is_full and bool(progress.left)
        left |= progress.left
        offsets[partition] = [each.record.offset for each in of_one]
        found = merge([found, of_one[:count]], newest_first)[:count]
        found = found[: _fitting(found, HELD_BYTES_MAX)]
    kept = Counter(each.partition for each in found)
    for partition, of_one_offsets in offsets.items():
        low, high = selection.ranges[partition]
        dropped = of_one_offsets[kept[partition] :]
        if dropped:
            left[partition] = (low, dropped[0] + 1) if newest_first else (dropped[0], high)
        elif of_one_offsets and not newest_first and partition in left:  # its chunk may have been left in the middle
            left[partition] = max(left[partition][0], of_one_offsets[-1] + 1), high
    left = {each: (low, high) for each, (low, high) in left.items() if low < high}
    return MessagePage(found, left, is_late)


def _first(parts: Iterator[list[Found]], count: int) -> tuple[list[Found], bool]:
    """At least ``count``, or as many as may be held, if there are so many; and whether there are."""
    found: list[Found] = []
    held = 0
    for part in parts:
        found += part
        held += sum(map(_size, part))
        if len(found) >= count or held > HELD_BYTES_MAX:
            return found, True
    return found, False


# ---- scans ----------------------------------------------------------------------------------------------------------


def scan(
    client: Client,
    selection: Selection,
    matcher: Matcher,
    *,
    newest_first: bool,
    progress: Progress | None = None,
    until_s: float = float("inf"),
    check: Callable[[], None] = lambda: None,
) -> Iterator[list[Found]]:
    """Matches, a few at a time, and an empty list at least once per chunk, so that the caller can look at ``progress``.

    ``check`` is called for every batch and may raise to end the scan. At ``until_s`` (monotonic) the scan ends, but not
    before its first chunk, so that going on leads somewhere; ``progress.left`` then says what was not read.
    """
    progress = progress or Progress()
    first = True

    def check_time(offset: int) -> None:
        check()
        if not first and time.monotonic() > until_s:
            raise _OutOfTime(offset)

    progress.left = {each: (low, high) for each, (low, high) in selection.ranges.items() if low < high}
    size = CHUNK_OFFSETS_FIRST
    while progress.left:
        merged: list[list[Found]] = []
        held_max = HELD_BYTES_MAX // len(progress.left)
        widest = size
        for partition in list(progress.left):
            low, high = progress.left[partition]
            chunk = (max(low, high - size), high) if newest_first else (low, min(high, low + size))
            found: list[Found] = []
            held = 0
            try:
                for part in _read(client, partition, chunk, selection.committed, matcher, progress, check_time):
                    if not newest_first and size > MERGED_OFFSETS_MAX:
                        yield part
                        continue
                    found += part
                    held += sum(map(_size, part))
                    if held > held_max and len(found) > 1:
                        found, chunk, is_full = _narrowed(found, chunk, held_max, newest_first)
                        held, widest = sum(map(_size, found)), min(widest, chunk[1] - chunk[0])
                        if is_full:
                            break
            except _OutOfTime as over:
                if newest_first:  # the newest of the chunk were not read: it is for the next time
                    yield merge(merged, newest_first)
                    return
                chunk = low, min(max(over.offset, low), chunk[1])
            first = False
            progress.offsets += chunk[1] - chunk[0]
            _take(progress.left, partition, (low, chunk[0]) if newest_first else (chunk[1], high))
            ordered = found[::-1] if newest_first else found
            if size <= MERGED_OFFSETS_MAX:
                merged.append(ordered)
            else:
                yield ordered
            if time.monotonic() > until_s:
                yield merge(merged, newest_first)
                return
        yield merge(merged, newest_first)
        size = min(size * GROWTH, CHUNK_OFFSETS_MAX) if widest == size else max(widest, 1)


class _OutOfTime(Exception):
    """``offset``: the first that was not read."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


def _size(found: Found) -> int:
    record = found.record
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _fitting(found: Iterable[Found], bytes_max: int) -> int:
    """How many, from the first on, are not larger than that together; one is always kept."""
    kept, held = 0, 0
    for each in found:
        held += _size(each)
        if held > bytes_max and kept:
            break
        kept += 1
    return kept


def _narrowed(
    found: list[Found], chunk: tuple[int, int], bytes_max: int, newest_first: bool
) -> tuple[list[Found], tuple[int, int], bool]:
    """As many as may be held, the chunk that has them and no others, and whether no more of it need be read.

    Oldest first, that is the beginning of the chunk. Newest first it is the end, which is still to come.
    """
    kept = _fitting(reversed(found) if newest_first else found, bytes_max)
    if newest_first:
        rest = found[-kept:]
        return rest, (rest[0].record.offset, chunk[1]), False
    return found[:kept], (chunk[0], found[kept - 1].record.offset + 1), True


def _take(left: dict[TopicPartition, tuple[int, int]], partition: TopicPartition, rest: tuple[int, int]) -> None:
    if rest[0] < rest[1]:
        left[partition] = rest
    else:
        del left[partition]


def merge(parts: Sequence[list[Found]], newest_first: bool) -> list[Found]:
    """By time over the partitions; what is of one partition keeps its order, whatever its clocks said.

    Equal times go by offset: a burst within one millisecond shows all its partitions, not the first one alone.
    """
    sign = -1 if newest_first else 1
    return list(heapq.merge(*parts, key=lambda each: (sign * each.record.timestamp, sign * each.record.offset)))


def _read(
    client: Client,
    partition: TopicPartition,
    chunk: tuple[int, int],
    committed: bool,
    matcher: Matcher,
    progress: Progress,
    check: Callable[[int], None],
) -> Iterator[list[Found]]:
    """Matches of one chunk in the order of the log, batch by batch. What retention removes meanwhile is passed over."""
    low, high = chunk
    small = high - low <= MERGED_OFFSETS_MAX
    options = RangeOptions(
        read_committed=committed,
        timeout_ms=10_000,
        bytes_per_fetch=SMALL_FETCH_BYTES if small else LARGE_FETCH_BYTES,
        check=check,
    )
    while low < high:
        try:
            for batch in fetch_range(client, partition, low, high, options=options):
                check(low)
                low = batch.next_offset
                if not batch.is_control:
                    progress.records += _inside(batch, chunk)
                    progress.size += len(batch.data)
                    yield _matches(batch, partition, chunk, matcher, progress)
            return
        except OffsetOutOfRange as error:
            if error.earliest <= low:
                return
            low = error.earliest  # the batch there may begin with records that are gone
            chunk = low, high


def _inside(batch: RawBatch, chunk: tuple[int, int]) -> int:
    """How many records of a batch are in the chunk: a batch at an edge is read with both chunks."""
    span = batch.next_offset - batch.base_offset
    inside = min(batch.next_offset, chunk[1]) - max(batch.base_offset, chunk[0])
    return batch.record_count if inside == span else round(batch.record_count * max(0, inside) / span)


def _matches(
    raw: RawBatch, partition: TopicPartition, chunk: tuple[int, int], matcher: Matcher, progress: Progress
) -> list[Found]:
    batch: Batch = raw.parsed()
    try:
        data = records_of(batch, BATCH_BYTES_MAX)
        whole = data if isinstance(data, bytes) else bytes(data)
        if not matcher.may_be_in(whole):
            return []
        records = list(iter_records(batch, whole))
    except (CorruptRecords, DecompressedTooLarge):
        progress.unreadable += batch.record_count
        return []
    low, high = chunk
    return [
        Found(partition, each, batch.is_log_append_time)
        for each in records
        if low <= each.offset < high and matcher.matches(each)
    ]
