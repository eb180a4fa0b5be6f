"""How a capture is doing, published as a state record (``headrace.client.state_records``) for people to look at.

It says who runs the capture, since when, how far its snapshots and its position are, how far behind it is and what went
wrong last. A process that is killed leaves a record that grows old; one that ends says so. Nothing here decides
anything: where a capture goes on stands in its own state, which is committed with its events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.capture.options import CaptureOptions
from headrace.capture.source import Progress, SourceStatus
from headrace.client import StatePublisher

__all__ = ["KIND", "CaptureReport"]

KIND = "capture"
INTERVAL_S = 1.0
TABLES_MAX = 1_000
"""Of more tables those whose snapshot is not done are named first."""


class CaptureReport:
    """What this process says of one capture. Without a publisher it says nothing."""

    def __init__(self, options: CaptureOptions, publisher: StatePublisher | None) -> None:
        self._name = options.name
        self._heartbeat_ms = options.heartbeat_ms
        self._publisher = publisher
        self._details: dict[str, Any] = {
            "database": options.database.shown,
            "database_kind": options.database.kind,
            "topic_prefix": options.topic_prefix,
        }
        self._rows: dict[str, int] = {}
        self._measured_s = float("-inf")
        self._published_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        return self._publisher is not None and now_s - self._published_s >= INTERVAL_S

    def running(
        self,
        snapshots: Mapping[str, Progress] | None = None,
        status: SourceStatus | None = None,
        **counts: Any,
    ) -> None:
        """``counts``: what is counted since the start, by name."""
        self._details = self._details | counts
        if snapshots is not None:
            self._details |= {"tables": self._tables(snapshots)}
        if status is not None:
            self._details |= {
                "position": status.position,
                "health": status.health,
                "advice": status.advice,
                "lag_ms": status.lag_ms,
                "lag_bytes": status.lag_bytes,
                "retained_bytes": status.retained_bytes,
            }
        self._publish("running")

    def failed(self, error: str, *, ended: bool) -> None:
        self._publish("failed" if ended else "trying again", error=error, ended=ended)

    def stopped(self) -> None:
        self._publish("stopped", ended=True)

    def _publish(self, state: str, *, error: str = "", ended: bool = False) -> None:
        self._published_s = time.monotonic()
        if self._publisher is not None:
            self._publisher.publish(
                KIND,
                self._name,
                state=state,
                error=error,
                ended=ended,
                details=self._details,
                heartbeat_ms=self._heartbeat_ms,
            )

    def _tables(self, snapshots: Mapping[str, Progress]) -> dict[str, Any]:
        """Snapshot progress by table, with rows per second since the last report where a table is being read."""
        now_s = time.monotonic()
        passed_s = max(0.001, now_s - self._measured_s)
        chosen = sorted(snapshots.items(), key=lambda each: (each[1].done, each[0]))[:TABLES_MAX]
        tables = {name: self._table(name, each, passed_s) for name, each in chosen}
        self._measured_s = now_s
        self._rows = {name: each.rows for name, each in chosen if not each.done}
        return tables

    def _table(self, name: str, progress: Progress, passed_s: float) -> dict[str, Any]:
        found = {"done": progress.done, "rows": progress.rows, "expected": progress.rows_expected}
        before = self._rows.get(name)
        if not progress.done and before is not None and progress.rows > before:
            found["rows_per_s"] = round((progress.rows - before) / passed_s)
        return found
