"""Rows that a target refused, in a topic of their own: the row as JSON under its key, the reason in headers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any

import pyarrow as pa

from headrace.client import Producer
from headrace.spark.topic_sink.options import SinkOptions

__all__ = ["DeadLetters", "as_json"]

HEADER_PREFIX = "headrace."


def as_json(row: Mapping[str, Any]) -> bytes:
    """Bytes become base64, and what JSON has no form for its text."""
    return json.dumps(row, default=_text, ensure_ascii=False).encode()


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where refused rows go. They arrive at least once: a batch that is repeated after a crash sends them again."""

    options: Mapping[str, str]
    key: tuple[str, ...]
    about: Mapping[str, str]

    def send(self, refused: Sequence[tuple[pa.Table, str]]) -> None:
        options = SinkOptions.parse(self.options, streaming=False)
        with options.connect() as client, Producer(client, options.settings.producer) as producer:
            for rows, reason in refused:
                headers = [(HEADER_PREFIX + name, text.encode()) for name, text in self.about.items()]
                headers.append((HEADER_PREFIX + "reason", reason.encode()))
                for row in rows.to_pylist():
                    key = as_json({name: row.get(name) for name in self.key}) if self.key else None
                    producer.send(options["topic"], as_json(row), key=key, headers=headers)
