"""Signs of life: the part of a capture's state that says who runs it, since when, and how it is.

It is committed with heartbeats, into the compacted topic that has the rest of the state, so it takes no more room than
one record. A process that is killed leaves a sign that grows old; one that ends says so.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from headrace.capture.source import Progress, SourceStatus

__all__ = ["SignOfLife", "is_fresh"]

BEATS_MISSED = 3
SLACK_MS = 5_000
"""A session that begins again has connections to make."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def is_fresh(sign: Mapping[str, Any], now_ms: int | None = None) -> bool:
    """Whether the process that left the sign can be thought to run: it is not many heartbeats old."""
    if not sign or sign.get("stopped"):
        return False
    age_ms = (now_ms or _now_ms()) - sign["at_ms"]
    return bool(age_ms <= BEATS_MISSED * sign["heartbeat_ms"] + SLACK_MS)


class SignOfLife:
    """What this process says of itself; ``rates`` of snapshots are measured between two signs."""

    def __init__(self, heartbeat_ms: int) -> None:
        self._values: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since_ms": _now_ms(),
            "heartbeat_ms": heartbeat_ms,
        }
        self._rows: dict[str, int] = {}
        self._measured_s = time.monotonic()

    def now(
        self,
        snapshots: Mapping[str, Progress] | None = None,
        status: SourceStatus | None = None,
        *,
        error: str = "",
        stopped: bool = False,
    ) -> dict[str, Any]:
        values = self._values | {"at_ms": _now_ms(), "stopped": stopped, "rates": self._rates(snapshots or {})}
        if error:
            values["error"] = error
        if status is not None:
            values |= {"health": status.health, "lag_ms": status.lag_ms, "lag_bytes": status.lag_bytes}
        return values

    def _rates(self, snapshots: Mapping[str, Progress]) -> dict[str, int]:
        """Rows per second of every table that is being read."""
        now_s = time.monotonic()
        passed_s = max(0.001, now_s - self._measured_s)
        rates = {
            name: round((each.rows - self._rows[name]) / passed_s)
            for name, each in snapshots.items()
            if not each.done and each.rows > self._rows.get(name, each.rows)
        }
        self._measured_s = now_s
        self._rows = {name: each.rows for name, each in snapshots.items() if not each.done}
        return rates
