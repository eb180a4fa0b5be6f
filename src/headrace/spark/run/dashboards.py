"""Dashboards: one line next to a pipeline makes a live chart or table of its results in the console.

    hr.dashboard("Revenue per minute", topic="revenue", kind="line", x="minute", y="amount", series="shop")

It only writes the chart down. ``headrace run`` publishes it as a state record, and the console draws it from the topic.
What can be wrong with it is refused where it stands, before Spark starts.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.client import Client, StatePublisher, read_state_records
from headrace.errors import UsageError
from headrace.spark.arguments import topic_name

__all__ = ["KIND", "Dashboard", "collected", "dashboard", "publish"]

KIND = "dashboard"
KINDS = ("line", "bar", "table", "number")
TITLE_CHARACTERS_MAX = 100
COLUMNS_MAX = 50
RECORDS_MAX = 10_000
REFRESH = re.compile(r"([0-9]+) ?(s|seconds?|m|minutes?)")
REFRESH_S_MAX = 3600
DASHBOARDS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A chart or table of a topic's newest records, or of the newest record of every key (``by_key``)."""

    title: str
    topic: str
    kind: str
    x: str = ""
    y: tuple[str, ...] = ()
    series: str = ""
    columns: tuple[str, ...] = ()
    by_key: bool = False
    last: int = 500
    refresh_s: int = 2
    unit: str = ""
    origin: str = ""


_registered: dict[str, Dashboard] = {}


def dashboard(
    title: str,
    *,
    topic: str = "",
    view: str = "",
    kind: str = "",
    x: str = "",
    y: str | Sequence[str] = (),
    series: str = "",
    columns: Sequence[str] = (),
    last: int = 500,
    refresh: str = "2 seconds",
    unit: str = "",
) -> None:
    """Show the results in ``topic``, or in a ``view``, as a live chart or table of the console.

    ``topic``: its newest ``last`` records. ``view``: a topic with a key, of which the newest record of every key
    counts, and a null value removes the key; so a table of results shows each row once. ``kind``: line, bar, number
    (the newest value of ``y``) or table; a table without ``x`` and ``y``, else a line. ``x``, ``y``, ``series`` and
    ``columns`` are fields of the JSON value, ``a.b`` for nested ones; several ``y`` make several lines, and ``series``
    one for each of its values. ``refresh``: how often the console reads again. ``unit``: shown after numbers.
    """
    if bool(topic) == bool(view):
        raise UsageError(f"dashboard {title!r} is of a topic= or of a view=, one of the two")
    values = (y,) if isinstance(y, str) else tuple(y)
    made = Dashboard(
        title=title,
        topic=topic or view,
        kind=kind or ("line" if x and values else "number" if values else "table"),
        x=x,
        y=values,
        series=series,
        columns=tuple(columns),
        by_key=bool(view),
        last=last,
        refresh_s=_seconds(title, refresh),
        unit=unit,
        origin=_origin(),
    )
    _check(made)
    known = _registered.get(title)
    if known is not None and known.origin != made.origin:
        raise UsageError(f"two dashboards are called {title!r}: {known.origin} and {made.origin}")
    if known is None and len(_registered) >= DASHBOARDS_MAX:
        raise UsageError(f"there are more than {DASHBOARDS_MAX} dashboards")
    _registered[title] = made


def _check(made: Dashboard) -> None:
    name = f"dashboard {made.title!r}"
    if not made.title.strip() or len(made.title) > TITLE_CHARACTERS_MAX or "\n" in made.title:
        raise UsageError(
            f"{made.title!r} cannot be a dashboard's title: one line of 1 to {TITLE_CHARACTERS_MAX} letters"
        )
    topic_name(made.topic, f"{name}: ")
    if made.kind not in KINDS:
        raise UsageError(f"{name}: kind={made.kind!r} must be one of {', '.join(KINDS)}")
    if made.kind in ("line", "bar") and not (made.x and made.y):
        raise UsageError(f"{name}: a {made.kind} needs x= and y=, names of fields")
    if made.kind == "number" and len(made.y) != 1:
        raise UsageError(f"{name}: a number needs one y=, the name of a field")
    if made.series and len(made.y) > 1:
        raise UsageError(f"{name}: several lines come from series= or from several y=, and not from both")
    if made.kind != "table" and made.columns:
        raise UsageError(f"{name}: columns= is for a table")
    if len(made.columns) > COLUMNS_MAX or len(made.y) > COLUMNS_MAX:
        raise UsageError(f"{name}: more than {COLUMNS_MAX} fields")
    if not 1 <= made.last <= RECORDS_MAX:
        raise UsageError(f"{name}: last={made.last} is outside [1, {RECORDS_MAX}]")
    fields = (made.x, made.series, made.unit, *made.y, *made.columns)
    if not all(isinstance(each, str) for each in fields) or not all((*made.y, *made.columns)):
        raise UsageError(f"{name}: x, y, series, columns and unit are texts")


def _seconds(title: str, refresh: str) -> int:
    found = REFRESH.fullmatch(refresh)
    seconds = int(found[1]) * (60 if found[2].startswith("m") else 1) if found else 0
    if not 1 <= seconds <= REFRESH_S_MAX:
        raise UsageError(f"dashboard {title!r}: refresh={refresh!r} is no time", "for example '2 seconds', '1 minute'")
    return seconds


def _origin() -> str:
    """FILE:LINE of the call of ``dashboard``."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextlib.contextmanager
def collected() -> Iterator[list[Dashboard]]:
    """What is written down meanwhile, apart from what was there before."""
    before = dict(_registered)
    _registered.clear()
    found: list[Dashboard] = []
    try:
        yield found
        found += _registered.values()
    finally:
        _registered.clear()
        _registered.update(before)


def publish(publisher: StatePublisher, client: Client, file: Path, dashboards: Sequence[Dashboard]) -> None:
    """Make the console show these dashboards of a file, and no others that the file had before."""
    whole = str(file.resolve())
    titles = {each.title for each in dashboards}
    for name, record in read_state_records(client, KIND).items():
        if record.details.get("file") == whole and name not in titles:
            publisher.remove(KIND, name)
    for each in dashboards:
        details: dict[str, Any] = {"file": whole, **asdict(each)}
        publisher.publish(KIND, each.title, state="defined", details=details, heartbeat_ms=0)
