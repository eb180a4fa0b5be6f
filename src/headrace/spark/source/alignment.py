"""Partitions that are read in step: a micro-batch that ends everywhere at one time, by the timestamps of the records.

``admit`` (``positions``) gives each partition a share of what waits in it. Where two partitions lag by the same hour,
equal shares are equal times. But where one lags by an hour and the other by a day, the newest record of the first batch
is hours ahead of what the other partition gives next; a watermark follows the newest, and so the rest comes late.

Here a batch is all records before one time *t*, in all partitions, for the latest *t* that does not make it too large.
Nothing that is left unread is then older than anything that was read. To find *t* the broker is asked where the first
record at or after a time is, in all partitions at once, first near the end of the last batch and then in ever larger
steps, and between the last two answers by halves. A batch that is at least half full is good enough, so a few questions
do. Records of one millisecond that are too many for a batch are shared out as ``admit`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.client import OffsetAt, TopicPartition
from headrace.spark.source.positions import Positions, admit

__all__ = ["Aligner", "Lookup"]

Lookup = Callable[[int], Mapping[TopicPartition, OffsetAt]]
"""For a time in ms the first record at or after it, in every partition; offset -1 where there is none."""

STEP_MS_FIRST = 1000
TIME_MS_MAX = 1 << 62
QUESTIONS_MAX = 130
"""More than doublings and halvings can need between the first millisecond and the last."""


@dataclass(slots=True)
class Aligner:
    """Where in time the last batch ended. This only saves questions: a new ``Aligner`` finds the place again."""

    time_ms: int | None = None
    step_ms: int = STEP_MS_FIRST
    places: frozenset[TopicPartition] = frozenset()
    """What was read then; a partition that joins may be older."""

    def admit(self, start: Positions, end: Positions, offsets_max: int, ask: Lookup) -> Positions:
        """An end with at most ``offsets_max`` offsets after ``start``, at one time in all partitions."""
        if _size(start, end) <= offsets_max:
            return dict(end)
        if self.places != frozenset(start):
            self.places, self.time_ms, self.step_ms = frozenset(start), None, STEP_MS_FIRST
        search = _Search(start, end, offsets_max, ask)
        first_ms = self.time_ms if self.time_ms is not None else search.earliest_ms()
        search.run(first_ms, self.step_ms)
        if search.low_size:
            self.step_ms = max(1, search.low_ms - first_ms)
            self.time_ms = search.low_ms
            return search.low
        self.time_ms = first_ms
        return admit(start, search.high, offsets_max)


class _Search:
    """For the latest time before which there is not too much. ``low`` is not too much, and ``high`` is."""

    def __init__(self, start: Positions, end: Positions, offsets_max: int, ask: Lookup) -> None:
        self._start, self._end, self._ask = start, end, ask
        self._most = offsets_max
        self._questions = 0
        self.low, self.low_ms, self.low_size = dict(end), 0, 0
        self.high, self.high_ms = dict(end), TIME_MS_MAX

    def earliest_ms(self) -> int:
        """The oldest record there is; what is before it need not be searched."""
        times = [found.timestamp for found in self._ask(0).values() if found.offset >= 0]
        return max(0, min(times, default=0))

    def run(self, first_ms: int, step_ms: int) -> None:
        """Upwards in growing steps until it is too much, then by halves; done when the batch is at least half full."""
        self.low_ms = first_ms
        while self.high_ms - self.low_ms > 1 and self._questions < QUESTIONS_MAX:
            grown_ms = first_ms + step_ms
            if self.high_ms == TIME_MS_MAX and grown_ms < TIME_MS_MAX:
                time_ms, step_ms = grown_ms, step_ms * 2
            else:
                time_ms = (self.low_ms + self.high_ms) // 2
            if self._try(time_ms):
                return

    def _try(self, time_ms: int) -> bool:
        self._questions += 1
        found = self._ask(time_ms)
        reached = {place: self._reached(place, found.get(place)) for place in self._end}
        size = _size(self._start, reached)
        if size > self._most:
            self.high, self.high_ms = reached, time_ms
            return False
        self.low, self.low_ms, self.low_size = reached, time_ms, size
        return 2 * size >= self._most

    def _reached(self, place: TopicPartition, found: OffsetAt | None) -> int:
        end = self._end[place]
        start = self._start.get(place, end)
        if found is None or found.offset < 0 or start >= end:
            return end
        return min(max(found.offset, start), end)


def _size(start: Positions, end: Positions) -> int:
    return sum(max(0, at - start.get(place, at)) for place, at in end.items())
