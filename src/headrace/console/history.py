"""What was sampled, for charts: the last ten minutes by the second and the last day by the half minute.

Every series has the same times. A value is a rate or a level in 32 bits, so a series costs 14 KB, and their number has
a limit. A value that was not sampled is NaN.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.console.limits import CHART_POINTS_MAX, COARSE_POINTS, COARSE_S, FINE_POINTS, SERIES_MAX

__all__ = ["History"]

NAN = float("nan")


class Ring:
    """The last ``length`` samples of all series."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._times = array("d", [NAN]) * length
        self._columns: dict[str, array[float]] = {}
        self._count = 0

    def add(self, time_s: float, values: Mapping[str, float], series_max: int) -> None:
        place = self._count % self._length
        self._times[place] = time_s
        for name, column in self._columns.items():
            column[place] = values.get(name, NAN)
        for name in values.keys() - self._columns.keys():
            if len(self._columns) >= series_max:
                break
            column = self._columns[name] = array("f", [NAN]) * self._length
            column[place] = values[name]
        self._count += 1

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._columns.pop(name, None)

    def names(self) -> list[str]:
        return list(self._columns)

    def read(self, names: Iterable[str], since_s: float) -> tuple[list[float], dict[str, list[float]]]:
        first = max(0, self._count - self._length)
        places = [each % self._length for each in range(first, self._count)]
        kept = [place for place in places if self._times[place] >= since_s]
        times = [self._times[place] for place in kept]
        columns = {name: self._columns.get(name) for name in names}
        return times, {
            name: [NAN] * len(kept) if column is None else [column[place] for place in kept]
            for name, column in columns.items()
        }


class History:
    """Both rings; written by the sampler's thread and read by those that answer."""

    def __init__(self) -> None:
        self._fine = Ring(FINE_POINTS)
        self._coarse = Ring(COARSE_POINTS)
        self._sums: dict[str, list[float]] = {}
        self._coarse_due_s = 0.0
        self._lock = threading.Lock()

    def add(self, now_s: float, values: Mapping[str, float]) -> None:
        """One sample. The coarse ring gets the mean of the samples since its last one."""
        with self._lock:
            self._fine.add(now_s, values, SERIES_MAX)
            for name, value in values.items():
                self._sums.setdefault(name, []).append(value)
            if self._coarse_due_s == 0.0:
                self._coarse_due_s = now_s + COARSE_S
            if now_s >= self._coarse_due_s:
                means = {name: sum(each) / len(each) for name, each in self._sums.items()}
                self._coarse.add(now_s, means, SERIES_MAX)
                self._sums = {}
                self._coarse_due_s = now_s + COARSE_S

    def keep_only(self, names: set[str]) -> None:
        """Forget the series of topics and groups that are gone."""
        with self._lock:
            for ring in (self._fine, self._coarse):
                ring.forget(name for name in ring.names() if name not in names)

    def chart(self, names: Mapping[str, str], now_s: float, range_s: float) -> dict[str, Any]:
        """Points of the last ``range_s`` for a chart: ``names`` maps what the chart calls a series to its name here."""
        with self._lock:
            ring = self._fine if range_s <= FINE_POINTS else self._coarse
            times, found = ring.read(set(names.values()), now_s - range_s)
            if ring is self._coarse and not times:  # a console that has just started has no half minutes yet
                times, found = self._fine.read(set(names.values()), now_s - range_s)
        width = max(1, math.ceil(len(times) / CHART_POINTS_MAX))
        return {
            "from": round((now_s - range_s) * 1000),
            "to": round(now_s * 1000),
            "times": [round(times[place] * 1000) for place in range(width - 1, len(times), width)],
            "series": [{"name": shown, "values": _thinned(found[name], width)} for shown, name in names.items()],
        }

    def recent(self, name: str, now_s: float, range_s: float) -> list[tuple[float, float]]:
        """``(time, value)`` of one series, without what was not sampled."""
        with self._lock:
            ring = self._fine if range_s <= FINE_POINTS else self._coarse
            times, found = ring.read([name], now_s - range_s)
        return [(time, value) for time, value in zip(times, found[name], strict=True) if not math.isnan(value)]

    def mean(self, name: str, now_s: float, range_s: float) -> float:
        values = [value for _, value in self.recent(name, now_s, range_s)]
        return sum(values) / len(values) if values else 0.0


def _thinned(values: list[float], width: int) -> list[float | None]:
    """The mean of each ``width`` values; None where nothing was sampled."""
    thinned: list[float | None] = []
    for end in range(width, len(values) + 1, width):
        known = [value for value in values[end - width : end] if not math.isnan(value)]
        thinned.append(round(sum(known) / len(known), 3) if known else None)
    return thinned
