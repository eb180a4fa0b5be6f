"""Dashboards: live charts and tables of results, as ``hr.dashboard`` defined them next to a pipeline.

The definition is a state record, which anybody who may write to its topic can write: what it says is checked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.client import StateRecord
from headrace.console.page import Ask, Page, View
from headrace.console.problems import BadRequest
from headrace.console.results import Row, columns_of, field_of, read_rows, time_ms
from headrace.console.subjects import forget, subject

__all__ = ["PAGE"]

KIND = "dashboard"
CHARTS_MAX = 200
LAST_MAX = 10_000
COLUMNS_MAX = 30
SERIES_MAX = 20
POINTS_MAX = 2_000
BARS_MAX = 60
REFRESH_S_MAX = 3_600
KINDS = ("line", "bar", "table", "number")


def dashboards(ask: Ask) -> dict[str, Any]:
    """Every dashboard that was published, by the file that defines it."""
    seen = ask.console.watch.look()
    found = [_definition(each) for each in seen.of(KIND)[:CHARTS_MAX]]
    ordered = sorted(found, key=lambda each: (each["file"], each["line"], each["name"]))
    return {"dashboards": ordered, "problem": seen.problem}


def _definition(record: StateRecord) -> dict[str, Any]:
    details = record.details
    line = str(details.get("origin", "")).rpartition(":")[2]
    return {
        "name": record.name,
        "kind": details.get("kind") if details.get("kind") in KINDS else "table",
        "topic": str(details.get("topic", "")),
        "by_key": bool(details.get("by_key")),
        "x": str(details.get("x", "")),
        "y": [str(each) for each in _list(details.get("y"))],
        "series": str(details.get("series", "")),
        "columns": [str(each) for each in _list(details.get("columns"))],
        "unit": str(details.get("unit", "")),
        "last": _bounded(details.get("last"), 500, LAST_MAX),
        "refresh_s": _bounded(details.get("refresh_s"), 2, REFRESH_S_MAX),
        "file": str(details.get("file", "")),
        "line": int(line) if line.isdecimal() and len(line) < 8 else 0,
    }


def _list(value: Any) -> list[Any]:
    return value[:COLUMNS_MAX] if isinstance(value, list) else []


def _bounded(value: Any, default: int, most: int) -> int:
    return min(max(1, value), most) if isinstance(value, int) and not isinstance(value, bool) else default


def dashboard(ask: Ask) -> dict[str, Any]:
    """What one dashboard shows now."""
    chart = _definition(subject(ask, KIND))
    if not chart["topic"]:
        raise BadRequest(f"dashboard {chart['name']!r} names no topic")
    rows, unreadable = read_rows(ask.client, chart["topic"], chart["last"], by_key=chart["by_key"])
    shown = {"table": _table, "number": _number, "line": _series, "bar": _series}[chart["kind"]]
    return {**chart, "records": len(rows), "unreadable": unreadable, **shown(chart, rows)}


def _table(chart: Mapping[str, Any], rows: list[Row]) -> dict[str, Any]:
    columns = chart["columns"] or columns_of(rows, COLUMNS_MAX)
    newest_first = [[field_of(each.values, name) for name in columns] for each in reversed(rows)]
    return {"columns": columns, "rows": newest_first[:POINTS_MAX]}


def _number(chart: Mapping[str, Any], rows: list[Row]) -> dict[str, Any]:
    """The newest value, and those before it."""
    path = chart["y"][0] if chart["y"] else ""
    values = [
        (each.timestamp_ms, number) for each in rows if (number := _numeric(field_of(each.values, path))) is not None
    ]
    return {"value": values[-1][1] if values else None, "points": [list(each) for each in values[-POINTS_MAX:]]}


def _series(chart: Mapping[str, Any], rows: list[Row]) -> dict[str, Any]:
    """Lines or bars: points by series, in the order of x. ``x_kind`` is time, number or text."""
    given = [(field_of(each.values, chart["x"]), each) for each in rows]
    given = [(x, each) for x, each in given if x is not None]
    x_kind = _x_kind([x for x, _ in given])
    found: dict[str, dict[Any, float]] = {}
    for x, row in given:
        place = time_ms(x) if x_kind == "time" else _numeric(x) if x_kind == "number" else str(x)
        for path in chart["y"]:
            value = _numeric(field_of(row.values, path))
            name = str(field_of(row.values, chart["series"])) if chart["series"] else path
            if value is not None and (name in found or len(found) < SERIES_MAX):
                found.setdefault(name, {})[place] = value  # the newest of several
    most = BARS_MAX if chart["kind"] == "bar" else POINTS_MAX
    return {"x_kind": x_kind, "lines": [_line(name, points, x_kind, most) for name, points in found.items()]}


def _line(name: str, points: Mapping[Any, float], x_kind: str, most: int) -> dict[str, Any]:
    """Text keeps the largest values, times and numbers the last ones."""
    if x_kind == "text":
        chosen = sorted(points.items(), key=lambda each: -each[1])[:most]
    else:
        chosen = sorted(points.items())[-most:]
    return {"name": name, "points": [list(each) for each in chosen]}


def _x_kind(values: list[Any]) -> str:
    if values and all(time_ms(each) is not None for each in values):
        return "time"
    if values and all(not isinstance(each, str) and _numeric(each) is not None for each in values):
        return "number"
    return "text"


def _numeric(value: Any) -> float | None:
    """Decimals are texts in JSON."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1e300 else None


PAGE = Page(
    name="dashboards",
    views=(
        View(name="dashboards", answer=dashboards),
        View(name="dashboard", answer=dashboard),
    ),
    actions=(forget(KIND),),
)
