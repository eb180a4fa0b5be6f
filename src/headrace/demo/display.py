"""What a person sees while the demo runs: a picture that is drawn over itself, or some lines now and then in a pipe."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from headrace.client import TopicPartition, end_offsets
from headrace.demo.audit import clock_errors
from headrace.demo.stage import CAPTURE, TABLES, Stage
from headrace.demo.visitors import CLICKS
from headrace.terminal import is_live

__all__ = ["Display"]

REFRESH_S = 1.0
PIPE_EVERY_S = 5.0
RATE_WINDOW_S = 10.0
TOP = 5
BAR = "▏▎▍▌▋▊▉█"
BAR_CELLS = 20
CLEAR_LINE = "\x1b[K"


@dataclass(slots=True)
class Rate:
    """How fast a number grows, over the last seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def at(self, now_s: float, value: int) -> float:
        self.seen.append((now_s, value))
        while now_s - self.seen[0][0] > RATE_WINDOW_S:
            self.seen.popleft()
        (first_s, first) = self.seen[0]
        return (value - first) / (now_s - first_s) if now_s > first_s else 0.0


class Display:
    """Draws once a second; asks the database, the broker and the pipelines' reports."""

    def __init__(self, stage: Stage, out: TextIO | None = None) -> None:
        import psycopg

        self._stage = stage
        self._out = out or sys.stdout
        self._live = is_live(self._out)
        self._drawn = 0
        self._began_s = time.monotonic()
        self._rates = {name: Rate() for name in ("orders", "changes", "clicks")}
        self._told_s = float("-inf")
        self._errors = psycopg.Error
        self._connection: Any = psycopg.connect(stage.database, autocommit=True)
        self.first_result_s: float | None = None

    def close(self) -> None:
        self._connection.close()

    def draw(self, title: str) -> None:
        now_s = time.monotonic()
        lines = [*title.splitlines(), *self._flows(now_s), "", *self._pipelines(), "", *self._results()]
        if self._live:
            width, height = shutil.get_terminal_size()
            lines = lines[: max(1, height - 1)]  # what has left the screen cannot be drawn over
            up = f"\x1b[{self._drawn}A" if self._drawn else ""
            body = "".join(f"{line[: width - 1]}{CLEAR_LINE}\n" for line in lines)
            self._out.write(up + body + "\x1b[J")
            self._drawn = len(lines)
            self._out.flush()
        elif now_s - self._told_s >= PIPE_EVERY_S:
            self._told_s = now_s
            self._out.write("\n".join(line for line in lines if line) + "\n\n")
            self._out.flush()

    # ---- what flows -------------------------------------------------------------------------------------------------

    def _flows(self, now_s: float) -> list[str]:
        stage = self._stage
        topics = [TopicPartition(f"{CAPTURE}.public.{table}", 0) for table in TABLES]
        ends = end_offsets(stage.client, [*topics, TopicPartition(CLICKS, 0)], read_committed=True)
        changes = sum(ends[topic] for topic in topics)
        counts = {"orders": stage.shop.orders, "changes": changes, "clicks": ends[TopicPartition(CLICKS, 0)]}
        places = {"orders": "orders in PostgreSQL", "changes": "changes captured", "clicks": "clicks received"}
        return [
            f"  {place:<22}{counts[name]:>9,}   {self._rates[name].at(now_s, counts[name]):>7,.0f}/s"
            for name, place in places.items()
        ]

    def _pipelines(self) -> list[str]:
        steps = self._stage.steps()
        if not self._stage.progress and not steps:
            return [f"  Spark is starting … {time.monotonic() - self._began_s:.0f} s"]
        lines = [f"  {'pipeline':<22}{'rows':>9}   {'rows/s':>7}   {'lag':>6}   {'batch':>8}   state"]
        for name, report in sorted(self._stage.progress.items()):
            batch = f"{report['batch_ms']:,} ms" if report["batch_ms"] is not None else "–"
            lag = "–" if report["lag"] is None else f"{report['lag']:,}"
            state = " ".join(filter(None, (report["state"], report["note"])))
            lines.append(
                f"  {name:<22}{report['rows']:>9,}   {report['rows_per_s']:>7,.0f}   {lag:>6}   {batch:>8}   {state}"
            )
        lines += [
            f"  {name:<22}{'–':>9}   {'–':>7}   {'–':>6}   {'–':>8}   {step}" for name, step in sorted(steps.items())
        ]
        return lines

    # ---- what came of it --------------------------------------------------------------------------------------------

    def _results(self) -> list[str]:
        revenue = self._rows("select window_start, revenue, revision from revenue_per_minute order by 1 desc limit 3")
        sellers = self._rows(
            f"select p.name, b.sold from best_sellers b join products p on p.id = b.product_id "
            f"order by b.sold desc, p.name limit {TOP}"
        )
        if (revenue or sellers) and self.first_result_s is None:
            self.first_result_s = time.monotonic() - self._began_s
        lines = [] if not revenue else ["  revenue per minute"]
        for minute, amount, revision in revenue:
            lines.append(f"    {minute:%H:%M}  {amount:>12,.2f}   revision {revision}")
        lines += [] if not sellers else ["  best sellers"]
        largest = max((sold for _, sold in sellers), default=1)
        lines += [f"    {name:<18} {int(sold):>6,}  {bar(float(sold / largest))}" for name, sold in sellers]
        alerts = self._rows(
            "select a.at, c.name, c.id, a.first_order, a.last_order, count(*) over () "
            "from fraud_alerts a join customers c on c.id = a.customer_id order by a.at desc limit 2"
        )
        lines += [] if not alerts else [f"  fraud alerts, {alerts[0][5]:,}: four orders of a customer within a second"]
        for at, name, customer, first, last, _ in alerts:
            lines.append(f"    {at:%H:%M:%S}  {name} ({customer}), orders {first} to {last}")
        clocks = clock_errors(self._stage.client) if self._stage.progress else None
        if clocks is not None:
            lines.append(
                f"  devices' clocks are off by {clocks[0]:,.1f} s, after correction by {clocks[1]:,.3f} s (medians)"
            )
        return lines

    def _rows(self, statement: str) -> Sequence[tuple[Any, ...]]:
        """Nothing, while a pipeline has not yet made its table."""
        with suppress(self._errors):
            found: Sequence[tuple[Any, ...]] = self._connection.execute(statement).fetchall()
            return found
        return []


def bar(share: float) -> str:
    eighths = round(share * BAR_CELLS * len(BAR))
    whole, rest = divmod(eighths, len(BAR))
    return BAR[-1] * whole + (BAR[rest - 1] if rest else "")
