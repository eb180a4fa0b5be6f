"""Where two sets of notes differ, one line per place: a wall of nested dicts would hide it."""

from __future__ import annotations

from typing import Any


def differences(kafka: Any, headrace: Any, path: str = "") -> list[str]:
    if isinstance(kafka, dict) and isinstance(headrace, dict):
        keys = [*kafka, *(key for key in headrace if key not in kafka)]
        return [
            line
            for key in keys
            for line in differences(kafka.get(key, "(absent)"), headrace.get(key, "(absent)"), f"{path}.{key}")
        ]
    if isinstance(kafka, list) and isinstance(headrace, list) and len(kafka) == len(headrace):
        return [
            line
            for index, (theirs, ours) in enumerate(zip(kafka, headrace, strict=True))
            for line in differences(theirs, ours, f"{path}[{label(theirs, index)}]")
        ]
    return [] if kafka == headrace else [f"{path}: Apache Kafka {kafka!r}, headrace {headrace!r}"]


def label(item: Any, index: int) -> str:
    """A note is [label, answer]; its label says more than its number."""
    return item[0] if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) else str(index)
