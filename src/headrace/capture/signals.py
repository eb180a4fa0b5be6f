"""Signals: requests to a capture while it runs, in Debezium's form.

    topic   <prefix>-signal, partition 0
    key     <prefix>
    value   {"type": "execute-snapshot", "data": {"data-collections": ["public.orders"], "type": "incremental"}}

``execute-snapshot`` writes a truncation of these tables and all their rows again, while changes go on. ``log`` says a
line. Anything else is reported once and passed over. Names may be patterns; as Debezium takes regular expressions, a
point may be written ``\\.``.

How far the topic was read is part of the capture's state, and is committed after a signal was taken up. So a signal
that is sent while nobody runs is found by the next run, and one that is taken up at the moment of a crash may be taken
up twice: the table is read once more. Signals from before a capture's first run are not for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.capture.patterns import is_pattern, matches
from headrace.capture.source import Source
from headrace.client import Client, Consumer, ConsumerOptions, FetchOptions, TopicPartition, end_offsets
from headrace.client.positioned import topic_exists
from headrace.errors import UsageError

__all__ = ["SIGNALS_CONFIG", "Signals", "signal_topic", "snapshot_signal"]

SIGNALS_CONFIG = {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * 3600 * 1000)}
LOOK_AGAIN_S = 5.0
"""How often a topic is looked for that is not there; that asks the broker for all of them."""
KINDS = ("incremental", "blocking")


def signal_topic(prefix: str) -> str:
    return f"{prefix}-signal"


def snapshot_signal(tables: list[str]) -> bytes:
    data = {"data-collections": tables, "type": "incremental"}
    return json.dumps({"type": "execute-snapshot", "data": data}).encode()


class Signals:
    """The signals of one capture; asked about once per second."""

    def __init__(self, client: Client, prefix: str, state: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._client = client
        self._prefix = prefix
        self._place = TopicPartition(signal_topic(prefix), 0)
        self._say = say
        self._unknown: set[str] = set()
        self._is_there = False
        self._look_again_s = 0.0
        self.offset: int | None = state.get("signals", {}).get("offset")
        """The next to be read; None: the topic was not looked at yet."""

    def state(self) -> dict[str, Any]:
        return {} if self.offset is None else {"signals": {"offset": self.offset}}

    def take(self, source: Source) -> bool:
        """Do what is asked; True: something was, and the state has changed."""
        end = self._end()
        if self.offset is None:
            self.offset = end
            return False
        if self.offset >= end:
            self.offset = min(self.offset, end)  # the topic was made again
            return False
        consumer = Consumer(self._client, ConsumerOptions(reset="earliest", fetch=FetchOptions(read_committed=True)))
        consumer.assign({self._place: self.offset})
        while consumer.positions[self._place] < end:
            before = consumer.positions[self._place]
            for record in consumer.poll(timeout_ms=1_000).get(self._place, []):
                if record.key == self._prefix.encode() and record.value is not None:
                    self._obey(source, record.value)
            if consumer.positions[self._place] == before and consumer.at_end():
                break
        self.offset = consumer.positions[self._place]
        return True

    def _end(self) -> int:
        if not self._is_there and time.monotonic() >= self._look_again_s:
            self._look_again_s = time.monotonic() + LOOK_AGAIN_S
            self._is_there = topic_exists(self._client, self._place.topic)
        return end_offsets(self._client, [self._place])[self._place] if self._is_there else 0

    def _obey(self, source: Source, value: bytes) -> None:
        try:
            signal = json.loads(value)
            kind, data = str(signal["type"]), signal.get("data") or {}
            if kind == "execute-snapshot":
                self._snapshot(source, data)
            elif kind == "log":
                self._say(str(data["message"]))
            elif kind not in self._unknown:
                self._unknown.add(kind)
                self._say(f"signals of type {kind!r} are not known; known: execute-snapshot, log")
        except UsageError as error:
            self._say(f"a signal is refused: {error}")
        except (ValueError, KeyError, TypeError, AttributeError):
            self._say(f"a signal cannot be read: {value[:200].decode(errors='replace')}")

    def _snapshot(self, source: Source, data: Mapping[str, Any]) -> None:
        kind = str(data.get("type", "incremental")).lower()
        if kind not in KINDS:
            raise UsageError(f"{kind!r} is no type of snapshot", f"known: {', '.join(KINDS)}")
        if data.get("additional-conditions") or data.get("additional-condition"):
            raise UsageError("additional conditions are not known: a snapshot has all rows of its tables")
        asked = [str(each).replace("\\.", ".") for each in data["data-collections"]]
        captured = list(source.snapshots())
        found = [name for each in asked if is_pattern(each) for name in captured if matches(each, name)]
        tables = list(dict.fromkeys([*(each for each in asked if not is_pattern(each)), *found]))
        if not tables:
            raise UsageError(f"no table matches {', '.join(asked)}", f"captured: {', '.join(captured)}")
        source.resnapshot(tables)
        self._say(f"{', '.join(tables)}: a truncation and all rows again, as a signal asked")
