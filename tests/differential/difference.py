"""Where two sets of notes differ, one line per place: a wall of nested dicts would hide it."""

from __future__ import annotations

from typing import Any

from tests.differential.masks import A_TEXT


def differences(kafka: Any, headrace: Any, path: str = "") -> list[str]:
    if isinstance(kafka, dict) and isinstance(headrace, dict):
        keys = [*kafka, *(key for key in headrace if key not in kafka)]
        return [
            line
            for key in keys
            if not explains_itself(key, kafka, headrace)
            for line in differences(kafka.get(key, "(absent)"), headrace.get(key, "(absent)"), f"{path}.{key}")
        ]
    if isinstance(kafka, list) and isinstance(headrace, list) and len(kafka) == len(headrace):
        return [
            line
            for index, (theirs, ours) in enumerate(zip(kafka, headrace, strict=True))
            for line in differences(theirs, ours, f"{path}[{label(theirs, index)}]")
        ]
    return [] if kafka == headrace else [f"{path}: Apache Kafka {kafka!r}, headrace {headrace!r}"]


def explains_itself(key: str, kafka: dict[str, Any], headrace: dict[str, Any]) -> bool:
    """An error of ours may have a text where Kafka's has none, as listed in ``masks``. The reverse is a difference."""
    failed = kafka.get("error_code", "NONE") != "NONE"
    return key == "error_message" and failed and not kafka.get(key, "(absent)") and headrace.get(key) == A_TEXT


def label(item: Any, index: int) -> str:
    """A note is [label, answer]; its label says more than its number."""
    return item[0] if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) else str(index)
