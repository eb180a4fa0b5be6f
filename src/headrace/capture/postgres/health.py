"""Whether a slot is well, and what to do when it is not: alarms come before the server gives the slot up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["slot_health"]

SAFE_PART = 4
"""An alarm is raised when what the slot may still keep is less than this part of what it keeps."""


def slot_health(slot: Mapping[str, Any], lag_alarm_bytes: int, capture: str) -> tuple[str, str]:
    """What is wrong with a slot, or ``ok``, and the statement or command that helps."""
    run = f"run it: headrace capture run {capture}"
    if slot["wal_status"] == "lost":
        return "slot is lost", f"start again: headrace capture run {capture} --resnapshot"
    if slot["wal_status"] == "unreserved":
        return "slot is unreserved: the next checkpoint may give it up", f"at once, {run}; {_raise_limit()}"
    safe_bytes, retained_bytes, lag_bytes = slot["safe_bytes"], slot["retained_bytes"] or 0, slot["lag_bytes"]
    if safe_bytes is not None and safe_bytes < retained_bytes // SAFE_PART:
        return f"slot is given up after {max(0, safe_bytes)} more bytes of the server's log", f"{run}; {_raise_limit()}"
    if lag_bytes is not None and lag_bytes > lag_alarm_bytes:
        what = f"behind by more than {lag_alarm_bytes} bytes, which the server keeps on its disk"
        return what, f"{run}, or headrace capture remove {capture}"
    return "ok", ""


def _raise_limit() -> str:
    return "or raise the limit: ALTER SYSTEM SET max_slot_wal_keep_size = …, then SELECT pg_reload_conf()"
