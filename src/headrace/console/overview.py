"""The overview: what flows, what waits, what is wrong; and the names that the command palette searches."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from headrace.console.alarms import alarms, forecast
from headrace.console.limits import FINE_POINTS, NAMES_MAX
from headrace.console.page import Ask, Page, View
from headrace.console.subjects import running, subject_alarms

__all__ = ["PAGE"]

RANGE_S_MAX = 86_400
ROWS = 6
NOW_S = 5.0
CHARTS = {
    "flow": {"in": "in", "out": "out"},
    "bytes": {"written": "bytes"},
    "lag": {"lag": "lag"},
    "disk": {"used": "used"},
}
"""What each chart calls its series, and what the history calls them."""


def overview(ask: Ask) -> dict[str, Any]:
    console, now_s = ask.console, time.time()
    snapshot, history = console.sampler.snapshot, console.history
    shown = [each for each in snapshot.topics.values() if not each.internal]
    busiest = sorted(shown, key=lambda each: (-each.rate, -(each.messages or 0), each.name))[:ROWS]
    lagging = sorted(snapshot.groups.values(), key=lambda each: (-(each.lag or 0), each.name))[:ROWS]
    disk = snapshot.disk
    watched = console.watch.newest
    return {
        "sampled": snapshot.taken_s > 0,
        "cluster": snapshot.cluster_id,
        "controller": snapshot.controller,
        "brokers": [{"id": node, "address": address} for node, address in snapshot.brokers.items()],
        "topics": len(shown),
        "partitions": sum(each.partitions for each in shown),
        "messages": sum(each.messages or 0 for each in shown),
        "groups": len(snapshot.groups),
        "in": round(history.mean("in", now_s, NOW_S), 1),
        "out": round(history.mean("out", now_s, NOW_S), 1),
        "bytes": round(history.mean("bytes", now_s, NOW_S)),
        "lag": sum(each.lag or 0 for each in snapshot.groups.values()),
        "used": sum(each.size or 0 for each in snapshot.topics.values()),
        "disk": None if disk is None else {"total": disk.total, "usable": disk.usable},
        "forecast": asdict(forecast(snapshot, history, now_s)),
        "busiest": [
            {"name": each.name, "rate": round(each.rate, 1), "messages": each.messages, "size": each.size}
            for each in busiest
        ],
        "lagging": [{"name": each.name, "state": each.state, "lag": each.lag} for each in lagging],
        "running": running(watched)[:ROWS],
        "alarms": alarms(snapshot, history, now_s, watched, subject_alarms(watched)) if snapshot.taken_s else [],
        "problem": snapshot.problem,
        "charts": _charts(ask, now_s),
    }


def _charts(ask: Ask, now_s: float) -> dict[str, Any]:
    range_s = ask.integer("range", FINE_POINTS, least=10, most=RANGE_S_MAX)
    return {name: ask.console.history.chart(series, now_s, range_s) for name, series in CHARTS.items()}


def names(ask: Ask) -> dict[str, Any]:
    """What can be jumped to."""
    snapshot = ask.console.sampler.snapshot
    watched = ask.console.watch.newest
    return {
        "pipelines": [each.name for each in watched.of("pipeline")][:NAMES_MAX],
        "captures": [each.name for each in watched.of("capture")][:NAMES_MAX],
        "dashboards": [each.name for each in watched.of("dashboard")][:NAMES_MAX],
        "queues": sorted(watched.queues)[:NAMES_MAX],
        "topics": sorted(snapshot.topics)[:NAMES_MAX],
        "groups": sorted(snapshot.groups)[:NAMES_MAX],
    }


PAGE = Page(
    name="overview",
    views=[
        View(name="overview", answer=overview, every_s=1.0),
        View(name="names", answer=names),
    ],
)
