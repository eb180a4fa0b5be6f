"""How long the log of a queue keeps messages that are gone, so that they can be restored.

The time runs from when a message and all before it were gone: a message that has waited for days and was then
acknowledged by mistake is kept for as long as any other. A lane remembers, for at most ``MARKS_MAX`` moments, how much
was gone by then. What is removed is what was gone at the newest moment that is old enough. After a restart the time
begins again, so messages may be kept longer and never shorter.

Bytes are counted in whole segments: up to one segment more than asked is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

__all__ = ["Retention"]

FOREVER = -1
MARKS_MAX = 32


class Segment(Protocol):
    """A file of a log, as far as it matters here."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class Retention:
    """Of one lane. ``ms`` 0 keeps nothing; -1 has no limit, and neither has ``bytes_max`` -1."""

    def __init__(self, ms: int, bytes_max: int) -> None:
        self.ms = ms
        self.bytes_max = bytes_max
        self._marks: deque[tuple[int, int]] = deque()

    @property
    def keeps_something(self) -> bool:
        return self.ms != 0 and self.bytes_max != 0

    def start_for(self, floor: int, start: int, segments: Sequence[Segment], now_ms: int) -> int:
        """The first offset to keep, of a log that begins at ``start`` and in which all below ``floor`` is gone."""
        if not self.keeps_something:
            return floor
        return max(start, self._by_time(floor, start, now_ms), self._by_bytes(floor, start, segments))

    def _by_time(self, floor: int, start: int, now_ms: int) -> int:
        if self.ms == FOREVER:
            return start
        marks = self._marks
        while marks and marks[-1][1] > floor:  # messages were restored
            marks.pop()
        if floor > start and (not marks or (marks[-1][1] < floor and now_ms - marks[-1][0] >= self.ms // MARKS_MAX)):
            marks.append((now_ms, floor))
        found = start
        while marks and now_ms - marks[0][0] >= self.ms:
            found = marks.popleft()[1]
        return found

    def _by_bytes(self, floor: int, start: int, segments: Sequence[Segment]) -> int:
        """Whole segments of what is gone are given up from the oldest on, until few enough bytes are kept."""
        if self.bytes_max == FOREVER:
            return start
        ends = [segment.base_offset for segment in segments[1:]]
        gone = [(end, segment.size) for end, segment in zip(ends, segments, strict=False) if end <= floor]
        kept = sum(size for end, size in gone if end > start)
        for end, size in gone:
            if end > start and kept > self.bytes_max:
                kept -= size
                start = end
        return start
