"""How a pipeline is doing, as the details of its state record (``headrace.client.state_records``).

Made of Spark's progress reports, which the runner takes anyway: nothing here asks Spark. docs/state-records.md has the
fields. A number that Spark does not know is null.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.spark.graph import Graph, Node
from headrace.spark.plan import METRIC
from headrace.spark.progress import RATE_WINDOW_S, Report, Snapshot, lag_of
from headrace.spark.state.kernel import BUCKET
from headrace.spark.time.explanation import explain

__all__ = ["KIND", "PipelineReport"]

KIND = "pipeline"
BATCHES_MAX = 60
"""Micro-batches in a record, so that a chart has something to show at once."""
REPORTS_MAX = 30
PHASES = ("latestOffset", "queryPlanning", "walCommit", "getBatch", "addBatch", "commitOffsets")
"""Of Spark's ``durationMs``, in the order in which they happen."""
TOTAL = "triggerExecution"


@dataclass(slots=True)
class PipelineReport:
    """Gathers what a record says of one pipeline, over all restarts of its query."""

    graph: Graph = field(default_factory=Graph)
    restarts: int = 0
    last_error: str = ""
    last_error_ms: int = 0
    late_rows: int = 0
    _reports: deque[Report] = field(default_factory=lambda: deque(maxlen=REPORTS_MAX))
    _batches: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=BATCHES_MAX))
    _flows: deque[_Flow] = field(default_factory=deque)
    _held: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By operator of ours and bucket: keys and bytes. A micro-batch reports the buckets that it touched."""

    def take(self, reports: Iterable[Report], now_s: float) -> None:
        """Progress reports that are new, in their order."""
        for report in reports:
            self._reports.append(report)
            self._batches.append(_batch(report))
            self._flows.append(_Flow(now_s, _ms(report, TOTAL) / 1000, self._rows_by_node(report)))
            self.late_rows += _late_rows(report)
            for node in self.graph.of_kind("operator"):
                self._held.setdefault(node.id, {}).update(_buckets(_metrics(report, node.metric) or {}))

    def failed(self, reason: str, now_ms: int, *, restarts: bool) -> None:
        self.last_error, self.last_error_ms = reason, now_ms
        self.restarts += restarts

    def details(self, snapshot: Snapshot, now_s: float, last: Report) -> dict[str, Any]:
        """``last``: the last report, with the ends that topics have now."""
        explained = explain(list(self._reports), datetime.now(UTC)) if self._reports else None
        return {
            "rows": snapshot.rows,
            "rows_per_s": round(snapshot.rows_per_s, 1),
            "lag": snapshot.lag,
            "batch": snapshot.batch_id,
            "batch_ms": snapshot.batch_ms,
            "batches": list(self._batches),
            "watermark_ms": None if snapshot.watermark is None else round(snapshot.watermark.timestamp() * 1000),
            "watermark_text": str(explained) if explained and explained.watermark else "",
            "late_rows": self.late_rows,
            "restarts": self.restarts,
            "last_error": self.last_error,
            "last_error_ms": self.last_error_ms,
            "nodes": self._nodes(last, now_s),
            "graph": self.graph.to_json(),
        }

    # ---- nodes of the graph -----------------------------------------------------------------------------------------

    def _nodes(self, last: Report, now_s: float) -> dict[str, dict[str, Any]]:
        """By id: rows per second that leave a source or reach another node, and what is particular to its kind."""
        while self._flows and self._flows[0].ended_s < now_s - RATE_WINDOW_S:
            self._flows.popleft()
        states = last.get("stateOperators") or ()
        found = {}
        for node in self.graph.nodes:
            values: dict[str, Any] = {"rows_per_s": self._rate(node.id, now_s)}
            if node.kind == "source":
                values["lag"] = self._lag(node, last)
            elif node.state is not None:
                values |= self._state(node, states, last)
            found[node.id] = values
        return found

    def _rate(self, node: str, now_s: float) -> float | None:
        known = [each for each in self._flows if each.rows.get(node) is not None]
        if not known:
            return None if self._reports and node not in self._rows_by_node(self._reports[-1]) else 0.0
        seconds = max(1.0, min(RATE_WINDOW_S, now_s - (known[0].ended_s - known[0].took_s)))
        return round(sum(each.rows[node] or 0 for each in known) / seconds, 1)

    def _rows_by_node(self, report: Report) -> dict[str, int | None]:
        """Rows of each node in one micro-batch, as far as Spark or the operator tells."""
        rows: dict[str, int | None] = {}
        for node, source in self._matched(report):
            rows[node.id] = int(source.get("numInputRows") or 0)
        for node in self.graph.of_kind("operator"):
            metrics = _metrics(report, node.metric)
            if metrics is not None:
                rows[node.id] = int(metrics.get("rows") or 0)
        written = (report.get("sink") or {}).get("numOutputRows")
        if written is not None and int(written) >= 0:
            rows |= {node.id: int(written) for node in self.graph.of_kind("sink")}
        return rows

    def _matched(self, report: Report) -> list[tuple[Node, Mapping[str, Any]]]:
        """Sources of the graph with what Spark reports of them, by the topics in their offsets, else by their order."""
        told = [each for each in report.get("sources") or () if "marked_ms" not in str(each.get("endOffset"))]
        nodes = self.graph.of_kind("source")
        matched = []
        for index, node in enumerate(nodes):
            named = [each for each in told if node.topics and all(f'"{t}"' in _text(each) for t in node.topics)]
            source = named[0] if named else (told[index] if len(told) == len(nodes) else None)
            if source is not None:
                matched.append((node, source))
        return matched

    def _state(self, node: Node, states: Sequence[Mapping[str, Any]], report: Report) -> dict[str, Any]:
        """What an operator holds: keys where it is ours; otherwise rows of Spark's store, where it counts them."""
        assert node.state is not None, "called for operators with state"
        own = states[node.state] if node.state < len(states) else {}
        metrics = _metrics(report, node.metric) or {}
        held = self._held.get(node.id, {}).values()
        return {
            "held": sum(keys for keys, _ in held) if node.metric else own.get("numRowsTotal") or None,
            "held_bytes": sum(size for _, size in held) if node.metric else own.get("memoryUsedBytes"),
            "updated": own.get("numRowsUpdated"),
            "dropped": own.get("numRowsDroppedByWatermark"),
            "late_rows": metrics.get("late_rows"),
            "commit_ms": own.get("commitTimeMs"),
        }

    def _lag(self, node: Node, report: Report) -> int | None:
        source = next((each for other, each in self._matched(report) if other is node), None)
        return None if source is None else lag_of({"sources": [source]})


@dataclass(frozen=True, slots=True)
class _Flow:
    """One micro-batch: when it ended, how long it took, and the rows of each node."""

    ended_s: float
    took_s: float
    rows: Mapping[str, int | None]


def _text(source: Mapping[str, Any]) -> str:
    offset = source.get("endOffset")
    return offset if isinstance(offset, str) else repr(offset).replace("'", '"')


def _batch(report: Report) -> dict[str, Any]:
    return {
        "id": int(report["batchId"]),
        "at_ms": round(datetime.fromisoformat(report["timestamp"]).timestamp() * 1000),
        "rows": int(report.get("numInputRows") or 0),
        "ms": _ms(report, TOTAL),
        "phases": {name: _ms(report, name) for name in PHASES if _ms(report, name)},
    }


def _ms(report: Report, phase: str) -> int:
    return int((report.get("durationMs") or {}).get(phase) or 0)


def _metrics(report: Report, name: str) -> Mapping[str, Any] | None:
    found = (report.get("observedMetrics") or {}).get(name) if name else None
    if found is None:
        return None
    values: Mapping[str, Any] = found.asDict() if hasattr(found, "asDict") else found
    return values


def _late_rows(report: Report) -> int:
    """Spark's own operators count what they drop, ours what they see to be late."""
    by_spark = sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in report.get("stateOperators") or ())
    names = [name for name in report.get("observedMetrics") or {} if name.startswith(METRIC)]
    return by_spark + sum(int((_metrics(report, name) or {}).get("late_rows") or 0) for name in names)


def _buckets(metrics: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    found = [each.asDict() if hasattr(each, "asDict") else each for each in metrics.get("buckets") or ()]
    return {int(each[BUCKET]): (int(each["keys"]), int(each["bytes"])) for each in found}
