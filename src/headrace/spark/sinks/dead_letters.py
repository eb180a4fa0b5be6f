"""Rows that a target refused, in a separate topic: the row as JSON under its key, the reason in headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.client import Producer
from headrace.spark.topic_sink.options import SinkOptions
from headrace.targets.documents import dumps, objects

__all__ = ["DeadLetters"]

HEADER_PREFIX = "headrace."


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
                for row in objects(rows):
                    key = dumps({name: row.get(name) for name in self.key}).encode() if self.key else None
                    producer.send(options["topic"], dumps(row).encode(), key=key, headers=headers)
