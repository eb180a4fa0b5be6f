"""Pipelines, as they report on themselves: the graph, batches by phase, watermark, state, errors; and their results."""

from __future__ import annotations

import time
from typing import Any

from headrace.client import StateRecord
from headrace.console.page import Ask, Page, View, listing
from headrace.console.problems import BadRequest
from headrace.console.results import columns_of, read_rows
from headrace.console.subjects import forget, life, subject
from headrace.console.watch import Watched, figure

__all__ = ["PAGE"]

KIND = "pipeline"
RANGE_S = 600
RANGE_S_MAX = 86_400
COLUMNS_MAX = 30
RESULTS = 50
RESULTS_MAX = 500


def pipelines(ask: Ask) -> dict[str, Any]:
    seen = ask.console.watch.look()
    found = listing(ask, [_row(each, seen) for each in seen.of(KIND)], search=("name", "state", "error"), sort="name")
    return {**found, "problem": seen.problem}


def _row(record: StateRecord, watched: Watched) -> dict[str, Any]:
    details = record.details
    names = ("rows_per_s", "rows", "lag", "batch", "batch_ms", "watermark_ms", "late_rows", "dead_letters", "restarts")
    shown = {name: figure(details.get(name)) for name in names}
    living = life(record, watched)
    if not living["alive"]:
        shown |= {"rows_per_s": None, "lag": None}  # what a dead pipeline said last is not so any more
    return {
        **living,
        **shown,
        "last_error": str(details.get("last_error", "")),
        "last_error_ms": figure(details.get("last_error_ms")),
        "results_topic": str(details.get("results_topic", "")),
        "dead_letters_topic": str(details.get("dead_letters_topic", "")),
    }


def pipeline(ask: Ask) -> dict[str, Any]:
    record = subject(ask, KIND)
    details = record.details
    batches, nodes, graph = (details.get(name) for name in ("batches", "nodes", "graph"))
    return {
        **_row(record, ask.console.watch.newest),
        "problem": ask.console.watch.newest.problem,
        "origin": str(details.get("origin", "")),
        "command": str(details.get("command", "")),
        "watermark_text": str(details.get("watermark_text", "")),
        "batches": [each for each in batches if isinstance(each, dict)] if isinstance(batches, list) else [],
        "nodes": nodes if isinstance(nodes, dict) else {},
        "graph": graph if isinstance(graph, dict) else {"nodes": [], "edges": []},
        "charts": _charts(ask, record.key),
    }


def _charts(ask: Ask, key: str) -> dict[str, Any]:
    range_s = ask.integer("range", RANGE_S, least=60, most=RANGE_S_MAX)
    history, now_s = ask.console.watch.history, time.time()
    return {
        "rows": history.chart({"rows/s": f"rows_per_s/{key}"}, now_s, range_s),
        "lag": history.chart({"lag": f"lag/{key}"}, now_s, range_s),
    }


def pipeline_results(ask: Ask) -> dict[str, Any]:
    """The newest rows of the topic that a pipeline writes to, newest first."""
    record = subject(ask, KIND)
    topic = record.details.get("results_topic")
    if not isinstance(topic, str) or not topic:
        raise BadRequest(
            f"pipeline {record.name!r} writes to no topic of this broker", "its sink says where its rows are"
        )
    count = ask.integer("count", RESULTS, least=1, most=RESULTS_MAX)
    rows, unreadable = read_rows(ask.client, topic, count)
    columns = columns_of(rows, COLUMNS_MAX)
    return {
        "topic": topic,
        "columns": columns,
        "rows": [
            {"timestamp_ms": each.timestamp_ms, "values": [each.values.get(name) for name in columns]}
            for each in reversed(rows)
        ],
        "unreadable": unreadable,
    }


PAGE = Page(
    name="pipelines",
    views=(
        View(name="pipelines", answer=pipelines),
        View(name="pipeline", answer=pipeline, every_s=1.0),
        View(name="pipeline/results", answer=pipeline_results),
    ),
    actions=(forget(KIND),),
)
