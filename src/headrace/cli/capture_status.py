"""``headrace capture status``: what each capture is and does, from its state in the log and from its database."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.shared import say, show
from headrace.terminal import is_live

if TYPE_CHECKING:
    from headrace.capture.options import CaptureOptions
    from headrace.capture.source import Progress, SourceStatus
    from headrace.client import Client, StateRecord

__all__ = ["is_well", "lag_of", "shown", "status_rows", "watched"]

COLUMNS = [
    "name",
    "state",
    "since",
    "process",
    "health",
    "lag",
    "lag_bytes",
    "retained_bytes",
    "snapshot",
    "rows",
    "dead_letters",
]
RUNNING = ("running", "trying again")
NOT_RUNNING = "not running"
WATCHED_EVERY_S = 2.0
CLEAR_SCREEN = "\x1b[H\x1b[2J"


def status_rows(client: Client, name: str | None) -> list[dict[str, Any]]:
    """A row per capture, or of the one that is named."""
    from headrace.capture.report import KIND
    from headrace.capture.state import Registry
    from headrace.client import read_state_records

    registry = Registry(client)
    captures = [registry.get(name)] if name else list(registry.all().values())
    reports = read_state_records(client, KIND)
    return [_row(client, each, reports.get(each.name)) for each in captures]


def _row(client: Client, options: CaptureOptions, report: StateRecord | None) -> dict[str, Any]:
    from headrace.capture.source import Progress, SourceStatus
    from headrace.capture.state import read_state

    state = read_state(client, options.name)
    found = _asked(options)
    if not state.get("position") and found.health in ("no slot", "no change table"):
        found = SourceStatus()  # it has never run, and makes them when it does
    progress = {table: Progress.from_json(each) for table, each in state.get("snapshots", {}).items()}
    now_ms = time.time_ns() // 1_000_000
    lag_ms = lag_of(found, report, now_ms)
    life = _life(report, now_ms)
    rates = _rates(report) if life["state"] == "running" else {}
    is_away = life["state"] not in RUNNING
    return {
        "name": options.name,
        **life,
        "health": NOT_RUNNING if is_away and found.health == "ok" else found.health,
        "advice": found.advice or (f"start it: headrace capture run {options.name}" if is_away else ""),
        "database": found.health,
        "position": found.position or None,
        "lag": None if lag_ms is None else f"{lag_ms / 1000:.1f} s",
        "lag_ms": lag_ms,
        "lag_bytes": found.lag_bytes,
        "retained_bytes": found.retained_bytes,
        "snapshot": _snapshot_text(progress, rates),
        "rows": sum(each.rows for each in progress.values()),
        "dead_letters": sum(state.get("dead_letters", {}).values()),
        "tables": {table: each.as_json() | _pace(each, rates.get(table)) for table, each in progress.items()},
    }


def _asked(options: CaptureOptions) -> SourceStatus:
    from headrace.capture.passwords import with_password
    from headrace.capture.source import SourceStatus, hiding_passwords, open_source
    from headrace.errors import HeadraceError

    whole = with_password(options)
    try:
        with hiding_passwords(whole), contextlib.closing(open_source(whole, None)) as source:
            return source.status()
    except HeadraceError as error:
        return SourceStatus(health=f"unreachable: {error}")


def _rates(report: StateRecord | None) -> dict[str, int]:
    """Rows per second of tables that were being read when the capture reported last."""
    tables = {} if report is None else report.details.get("tables", {})
    return {name: each["rows_per_s"] for name, each in tables.items() if "rows_per_s" in each}


def lag_of(found: SourceStatus, report: StateRecord | None, now_ms: int) -> int | None:
    """What the database says now, or what a capture that runs has said last; of one that does not run it is not known.

    All that a capture said before it was killed was right at that time.
    """
    if found.lag_ms is not None or report is None or not report.is_alive(now_ms) or report.state != "running":
        return found.lag_ms
    return report.details.get("lag_ms")


def _life(report: StateRecord | None, now_ms: int) -> dict[str, Any]:
    """Whether it runs, since when, and which process it is or was."""
    if report is None:
        return {"state": "never run", "since": None, "process": None, "error": ""}
    state, since_ms, error = report.state, report.since_ms, report.error
    if report.ended:
        since_ms = report.at_ms
    elif report.is_lost(now_ms):
        state, since_ms = NOT_RUNNING, report.at_ms
        error = error or f"no sign of life for {(now_ms - since_ms) // 1000} s: it was killed, or its machine is away"
    return {"state": state, "since": _moment(since_ms), "process": f"{report.host}:{report.pid}", "error": error}


def is_well(row: Mapping[str, Any]) -> bool:
    return bool(row["state"] == "running" and row["health"] == "ok")


def shown(rows: list[dict[str, Any]], output: str) -> None:
    """A table with short words, and what is wrong in a separate line."""
    short = rows
    if output == "table":
        short = [row | {"health": row["health"] if row["health"] in ("ok", NOT_RUNNING) else "alarm"} for row in rows]
    show(short, output, columns=COLUMNS)
    if output == "table":
        for row in rows:
            for line in _complaints(row):
                say(f"{row['name']}: {line}")


def _complaints(row: Mapping[str, Any]) -> list[str]:
    """What is wrong, and in the last line what to do about it."""
    lines = [f"{row['state']}: {row['error']}"] if row["error"] else []
    if row["health"] not in ("ok", NOT_RUNNING):
        lines.append(row["health"])
    elif row["health"] == NOT_RUNNING and not lines:
        lines.append(row["state"])
    if lines and row["advice"]:
        lines[-1] = f"{lines[-1]}; {row['advice']}"
    return lines


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _pace(progress: Progress, rate: int | None) -> dict[str, Any]:
    if progress.done or not rate:
        return {}
    return {"rows_per_s": rate, "left_s": max(0, progress.rows_expected - progress.rows) // rate}


def _snapshot_text(progress: Mapping[str, Progress], rates: Mapping[str, int]) -> str:
    if not progress:
        return "not begun"
    done = sum(each.done for each in progress.values())
    if done == len(progress):
        return "done"
    reading = [_reading(name, each, rates[name]) for name, each in progress.items() if not each.done and name in rates]
    return "; ".join([f"{done} of {len(progress)} tables", *reading])


def _reading(name: str, progress: Progress, rate: int) -> str:
    left_s = _pace(progress, rate)["left_s"]
    return f"{name}: {progress.rows} of about {progress.rows_expected}, {rate}/s, {left_s} s left"


def watched(client: Client, name: str | None, output: str) -> None:
    """Until Ctrl-C: a screen for people, lines for everything else."""
    is_screen = output == "table" and is_live(sys.stdout)
    before: dict[str, str] = {}
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            rows = status_rows(client, name)
            if is_screen:
                click.echo(CLEAR_SCREEN, nl=False)
                shown(rows, output)
            elif output == "json":
                click.echo(json.dumps(rows))
            else:
                _changed_lines(rows, before)
            time.sleep(WATCHED_EVERY_S)


def _changed_lines(rows: list[dict[str, Any]], before: dict[str, str]) -> None:
    for row in rows:
        told = [f"{each} {row[each]}" for each in COLUMNS[1:] if row[each] not in (None, "")]
        line = "; ".join([f"{row['name']}: {', '.join(told)}", *_complaints(row)])
        if before.get(row["name"]) != line:
            before[row["name"]] = line
            click.echo(f"{_moment(time.time_ns() // 1_000_000)} {line}")
