"""Captures, as they report on themselves: snapshots, position, lag, what their slot holds back, the last error."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.client import StateRecord
from headrace.console.page import Ask, Page, View, listing
from headrace.console.subjects import forget, life, rows_by_name, subject
from headrace.console.watch import Watched, figure

__all__ = ["PAGE"]

KIND = "capture"
SQLITE_SCHEMA = "main"
"""In the names of topics; SQLite's tables are reported without it."""
RANGE_S = 600
RANGE_S_MAX = 86_400


def captures(ask: Ask) -> dict[str, Any]:
    seen = ask.console.watch.look()
    found = listing(
        ask, [_row(each, seen) for each in seen.of(KIND)], search=("name", "database", "state"), sort="name"
    )
    return {**found, "problem": seen.problem}


def _row(record: StateRecord, watched: Watched) -> dict[str, Any]:
    details = record.details
    tables = rows_by_name(details.get("tables"))
    done = sum(bool(each.get("done")) for each in tables.values())
    return {
        **life(record, watched),
        "database": str(details.get("database", "")),
        "kind": str(details.get("database_kind", "")),
        "health": str(details.get("health", "")),
        "lag_ms": figure(details.get("lag_ms")),
        "lag_bytes": figure(details.get("lag_bytes")),
        "retained_bytes": figure(details.get("retained_bytes")),
        "tables": len(tables),
        "tables_done": done,
        "rows": sum(figure(each.get("rows")) or 0 for each in tables.values()),
        "events": figure(details.get("events")),
        "dead_letters": sum(_dead_letters(details).values()),
    }


def _dead_letters(details: Mapping[str, Any]) -> dict[str, int | float]:
    """By table."""
    given = details.get("dead_letters")
    return {name: figure(count) or 0 for name, count in given.items()} if isinstance(given, dict) else {}


def capture(ask: Ask) -> dict[str, Any]:
    record = subject(ask, KIND)
    details = record.details
    dead_letters = _dead_letters(details)
    shown = _row(record, ask.console.watch.newest)
    tables = [
        {
            "table": name,
            "topic": f"{details.get('topic_prefix', '')}.{name if '.' in name else f'{SQLITE_SCHEMA}.{name}'}",
            "done": bool(each.get("done")),
            "rows": figure(each.get("rows")) or 0,
            "expected": figure(each.get("expected")) or 0,
            "rows_per_s": figure(each.get("rows_per_s")) if shown["alive"] else None,
            "dead_letters": dead_letters.get(name, 0),
        }
        for name, each in sorted(rows_by_name(details.get("tables")).items())
    ]
    return {
        **shown,
        "problem": ask.console.watch.newest.problem,
        "position": str(details.get("position", "")),
        "advice": str(details.get("advice", "")),
        "topic_prefix": str(details.get("topic_prefix", "")),
        "transactions": figure(details.get("transactions")),
        "sessions": figure(details.get("sessions")),
        "table_rows": tables,
        "charts": _charts(ask, record.key),
    }


def _charts(ask: Ask, key: str) -> dict[str, Any]:
    range_s = ask.integer("range", RANGE_S, least=60, most=RANGE_S_MAX)
    history, now_s = ask.console.watch.history, time.time()
    return {
        "lag": history.chart({"lag": f"lag_ms/{key}"}, now_s, range_s),
        "bytes": history.chart({"behind": f"lag_bytes/{key}", "retained": f"retained_bytes/{key}"}, now_s, range_s),
        "events": history.chart({"events": f"events_per_s/{key}"}, now_s, range_s),
    }


PAGE = Page(
    name="captures",
    views=(
        View(name="captures", answer=captures),
        View(name="capture", answer=capture),
    ),
    actions=(forget(KIND),),
)
