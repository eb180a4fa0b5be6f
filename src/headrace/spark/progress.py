"""How pipelines are doing: from Spark's progress reports to one line each.

Spark reports after every micro-batch: rows read, positions, the watermark, how long it took. A ``Tracker`` keeps what a
line needs of them; a ``Board`` shows the lines, drawn over one another on a terminal, now and then in a pipe.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from headrace.terminal import is_live

__all__ = ["Board", "Snapshot", "Tracker", "lag_of", "line_of", "screen_cleared", "watermark_of"]

RATE_WINDOW_S = 10.0
PIPE_INTERVAL_S = 10.0
EPOCH = "1970-01-01T00:00:00.000Z"
"""What Spark reports for a watermark that has not been reached."""

SET_ASIDE = ("bad_patterns", "refused_patterns", "bad_searches")
"""What operators of ours count of what they were given and do not use: how many there are now."""
GIVEN_UP = ("dropped_partials", "failed_patterns")
"""What they gave up in a micro-batch."""

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One pipeline at one moment."""

    name: str
    state: str = "starting"
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    watermark: datetime | None = None
    batch_id: int | None = None
    batch_ms: int | None = None
    note: str = ""


class Tracker:
    """Takes the progress reports of one pipeline, each once however often it is seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches = 0
        self.present: Callable[[Report], Report] = lambda report: report
        """A report with the ends that topics have now; by default they are those of the report."""
        self._rows = 0
        self._recent: deque[_Batch] = deque()
        self._began_s: float | None = None
        self._last: Report = {}
        self._seen: tuple[str, int, str] = ("", -1, "")
        self._watermark: datetime | None = None
        self._moved_s: float | None = None
        """When the watermark last moved."""
        self._losses: dict[tuple[str, str], int] = {}
        """What operators set aside or gave up, by operator and counter."""

    def take(self, reports: Sequence[Report], now_s: float) -> list[Report]:
        """The reports that are new; ``reports`` are in the order in which Spark made them."""
        marks = [_mark(each) for each in reports]
        start = marks.index(self._seen) + 1 if self._seen in marks else 0
        fresh = list(reports[start:])
        for report in fresh:
            batch = _Batch(now_s - (_batch_ms(report) or 0) / 1000, now_s, int(report.get("numInputRows") or 0))
            self._rows += batch.rows
            self._recent.append(batch)
            if self._began_s is None:
                self._began_s = batch.began_s
            self.batches += 1
            self._count_losses(report)
        if fresh:
            self._last, self._seen = fresh[-1], marks[-1]
            if watermark_of(self._last) != self._watermark:
                self._watermark, self._moved_s = watermark_of(self._last), now_s
        return fresh

    def still_s(self, now_s: float) -> float:
        """For how long the watermark has not moved; 0 when there is none."""
        return 0.0 if self._moved_s is None else now_s - self._moved_s

    def is_new(self, report: Report) -> bool:
        return _mark(report) != self._seen

    def now(self) -> Report:
        """The last report, and the ends of now; ``{}``, or sources alone, before the first one."""
        return self.present(self._last)

    def snapshot(self, now_s: float, state: str, note: str = "") -> Snapshot:
        while self._recent and self._recent[0].ended_s < now_s - RATE_WINDOW_S:
            self._recent.popleft()
        return Snapshot(
            name=self.name,
            state=state,
            rows=self._rows,
            rows_per_s=self._rate(now_s),
            lag=lag_of(self.now()),
            watermark=watermark_of(self._last),
            batch_id=self._last.get("batchId"),
            batch_ms=_batch_ms(self._last),
            note="; ".join(each for each in (note, *self._lost()) if each),
        )

    def _count_losses(self, report: Report) -> None:
        for operator, metrics in (report.get("observedMetrics") or {}).items():
            values = metrics.asDict() if hasattr(metrics, "asDict") else metrics
            for name in (*SET_ASIDE, *GIVEN_UP):
                if values.get(name) is not None:
                    before = self._losses.get((operator, name), 0) if name in GIVEN_UP else 0
                    self._losses[operator, name] = before + int(values[name])

    def _lost(self) -> Iterator[str]:
        for name in (*SET_ASIDE, *GIVEN_UP):
            count = sum(found for (_, each), found in self._losses.items() if each == name)
            if count:
                yield f"{count:,} {name.replace('_', ' ')}"

    def _rate(self, now_s: float) -> float:
        if self._began_s is None or not self._recent:
            return 0.0
        seconds = min(RATE_WINDOW_S, max(now_s - self._began_s, 1.0))
        return sum(each.rows_since(now_s - RATE_WINDOW_S) for each in self._recent) / seconds


@dataclass(frozen=True, slots=True)
class _Batch:
    """When it ran, by our clock, and how many rows it had."""

    began_s: float
    ended_s: float
    rows: int

    def rows_since(self, since_s: float) -> float:
        """As if its rows had come evenly: a batch may take longer than the time that a rate is of."""
        if self.began_s >= since_s:
            return self.rows
        return self.rows * (self.ended_s - since_s) / (self.ended_s - self.began_s)


def _batch_ms(report: Report) -> int | None:
    found = (report.get("durationMs") or {}).get("triggerExecution")
    return None if found is None else int(found)


def _mark(report: Report) -> tuple[str, int, str]:
    """Spark repeats a batch's number while it is idle, with another time."""
    return str(report["runId"]), int(report["batchId"]), str(report["timestamp"])


def lag_of(report: Report) -> int | None:
    """Records that are in the log and not yet read, over all sources that tell; None when none does."""
    total: int | None = None
    for source in report.get("sources") or ():
        latest, end = _positions(source.get("latestOffset")), _positions(source.get("endOffset"))
        if latest is None or end is None:
            continue
        behind = sum(max(0, at - end.get(place, at)) for place, at in latest.items())
        total = behind if total is None else total + behind
    return total


def _positions(offset: Any) -> dict[tuple[str, str], int] | None:
    """``{"orders": {"0": 17}}``, as text or already read; what looks otherwise is another source's and says nothing."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
        return {(topic, part): int(at) for topic, parts in found.items() for part, at in parts.items()}
    except (ValueError, TypeError, AttributeError):
        return None


def watermark_of(report: Report) -> datetime | None:
    text = (report.get("eventTime") or {}).get("watermark")
    if not text or text == EPOCH:
        return None
    return datetime.fromisoformat(text)


def line_of(snapshot: Snapshot, *, now: datetime | None = None, name_width: int = 0) -> str:
    """``revenue  running  1,204 rows/s  lag 0  watermark 10:02:00 (12 s behind)  batch 118 ms``"""
    parts = [snapshot.name.ljust(name_width), snapshot.state]
    lag = [f"lag {snapshot.lag:,}"] if snapshot.lag is not None else []
    if snapshot.batch_id is None:
        parts += lag
    else:
        parts += [f"{snapshot.rows_per_s:,.0f} rows/s", *lag]
        parts += [f"watermark {_watermark(snapshot.watermark, now)}"] if snapshot.watermark else []
        parts += [f"batch {duration(snapshot.batch_ms)}"] if snapshot.batch_ms is not None else []
    if snapshot.note:
        parts.append(snapshot.note)
    return "  ".join(parts)


def _watermark(watermark: datetime, now: datetime | None) -> str:
    moment = now or datetime.now(UTC)
    behind_s = (moment - watermark).total_seconds()
    if 0 <= behind_s < 24 * 3600:
        return f"{watermark:%H:%M:%S} ({duration(behind_s * 1000)} behind)"
    return f"{watermark:%Y-%m-%d %H:%M:%S}"


def duration(milliseconds: float) -> str:
    """As a person would say it: 118 ms, 4.2 s, 12 min, 3.5 h."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def as_json(snapshot: Snapshot) -> str:
    return json.dumps(
        {
            "pipeline": snapshot.name,
            "state": snapshot.state,
            "batch": snapshot.batch_id,
            "rows": snapshot.rows,
            "rows_per_s": round(snapshot.rows_per_s, 1),
            "lag": snapshot.lag,
            "watermark": snapshot.watermark.isoformat() if snapshot.watermark else None,
            "batch_ms": snapshot.batch_ms,
            "note": snapshot.note,
        }
    )


class Board:
    """Shows pipelines on ``stream``: live on a terminal, every ten seconds elsewhere; events as lines that stay."""

    def __init__(self, stream: TextIO, *, width: int = 100, tables: TextIO | None = None) -> None:
        """``tables``: where sinks print rows; stdout unless that is for programs."""
        self._stream = stream
        self.tables = tables
        self._live = is_live(stream)
        self._width = width
        self._drawn = 0
        self._shown_s = float("-inf")
        self._before = ""
        self._lock = threading.RLock()

    def show(self, snapshots: Sequence[Snapshot], now_s: float) -> None:
        name_width = max((len(each.name) for each in snapshots), default=0)
        lines = [line_of(each, name_width=name_width) for each in snapshots]
        with self._lock:
            if self._live:
                self._erase()
                self._stream.write("".join(line[: self._width - 1] + "\n" for line in lines))
                self._drawn = len(lines)
                self._stream.flush()
            elif now_s - self._shown_s >= PIPE_INTERVAL_S and "\n".join(lines) != self._before:
                self._write(lines, now_s)

    def final(self, snapshots: Sequence[Snapshot], now_s: float) -> None:
        """The last state, which stays. A pipe that has it already does not get it again."""
        self._shown_s = float("-inf")
        self.show(snapshots, now_s)
        self._drawn = 0

    def say(self, line: str) -> None:
        with self.cleared():
            self._stream.write(line + "\n")
            self._stream.flush()

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Others may write meanwhile; the lines come back with the next ``show``."""
        with self._lock:
            self._erase()
            self._stream.flush()
            yield

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _write(self, lines: Sequence[str], now_s: float) -> None:
        self._stream.write("".join(line + "\n" for line in lines))
        self._stream.flush()
        self._shown_s, self._before = now_s, "\n".join(lines)


_boards: list[Board] = []


@contextlib.contextmanager
def board_on(stream: TextIO, *, width: int, tables: TextIO | None = None) -> Iterator[Board]:
    """A board on ``stream``. Code that prints in this process makes room with ``screen_cleared``."""
    board = Board(stream, width=width, tables=tables)
    _boards.append(board)
    try:
        yield board
    finally:
        _boards.remove(board)


@contextlib.contextmanager
def screen_cleared() -> Iterator[TextIO]:
    """Room for rows between the live lines, and where to print them."""
    if not _boards:
        yield sys.stdout
        return
    board = _boards[-1]
    with board.cleared():
        tables = board.tables or sys.stdout
        yield tables
        tables.flush()
