"""Lag of pipelines and captures, from the state records that they publish to this broker.

They run in other processes and report on themselves to the topic ``__headrace_state`` (``client/state_records.py``).
The broker follows that topic inside its own log: ``seek`` finds the new batches on the event loop, without reading
them, and ``metrics`` decodes them on the thread that makes the text. A scrape finds at most ``SCRAPE_BYTES_MAX``; what
is left is for the next one.

Anybody who may write to the topic can write anything, so only numbers that are finite and not absurd become samples,
and no series is made twice: Prometheus would refuse the whole scrape.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.metrics_core import Metric

from headrace.broker.broker import Broker
from headrace.client.state_records import STATE_TOPIC, SUBJECTS_MAX, StateRecord
from headrace.errors import HeadraceError
from headrace.log.reader import checked_batches
from headrace.log.segment import FileSlice
from headrace.metrics import families
from headrace.metrics.families import Family
from headrace.record import iter_records, records_of
from headrace.vocabulary import Offset

__all__ = ["ReportedStates"]

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20
SCRAPE_BYTES_MAX = 32 << 20
BATCH_BYTES_MAX = 16 << 20
"""Decompressed."""
FIGURE_MAX = 1e18
NAME_LENGTH_MAX = 1_000
STREAMING = "streaming"
"""The context of Debezium's metrics that boards ask for."""

Figure = Callable[[Mapping[str, Any]], float | None]


@dataclass(slots=True)
class _Subject:
    """What is kept of a record: its life and its figures."""

    life: StateRecord
    """Without details and text."""
    is_well: bool
    labels: tuple[str, ...]
    figures: dict[Family, float] = field(default_factory=dict)


class ReportedStates:
    """``seek`` belongs to the event loop and ``metrics`` to any thread, never both at once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic_id = b""
        self._position = Offset(0)
        self._found: list[FileSlice] = []
        self._is_new = False
        """The topic is another one than at the last scrape: what was known is gone."""
        self._subjects: dict[str, _Subject] = {}

    def seek(self) -> Iterator[None]:
        """Find what was published since the last scrape; others may run after each step."""
        self._found = []
        topic = self._broker.topics.get(STATE_TOPIC)
        topic_id = b"" if topic is None else topic.topic_id
        self._is_new = topic_id != self._topic_id
        if self._is_new:
            self._topic_id, self._position = topic_id, Offset(0)
        partition = None if topic is None else topic.partition(0)
        if partition is None or partition.fault is not None:
            return
        left = SCRAPE_BYTES_MAX
        while left > 0:
            start = max(self._position, partition.log.start_offset)
            try:
                pieces = partition.log.reader.read(start, bytes_max=READ_BYTES, offset_max=partition.high_watermark)
            except HeadraceError as error:
                log.warning("state records cannot be read for metrics: %s", error)
                return
            if not pieces:
                return
            self._found += pieces
            self._position = pieces[-1].end_offset
            left -= sum(len(each) for each in pieces)
            yield

    def metrics(self, subjects_max: int) -> Iterator[Metric]:
        """The metrics of what is known now; decodes what ``seek`` found."""
        if self._is_new:
            self._subjects.clear()
        found, self._found, self._is_new = self._found, [], False
        for piece in found:
            self._take(piece)
        yield from self._metrics(self._broker.clock.wall_ms(), subjects_max)

    def _take(self, piece: FileSlice) -> None:
        try:
            for batch in checked_batches(piece):
                if not batch.is_control:
                    for record in iter_records(batch, records_of(batch, BATCH_BYTES_MAX)):
                        self._note((record.key or b"").decode(errors="replace"), record.value)
        except HeadraceError as error:
            log.warning("state records cannot be read for metrics: %s", error)

    def _note(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._subjects.pop(key, None)
            return
        record = StateRecord.from_json(value)
        if record is None or record.key != key or record.kind not in _UP or len(key) > NAME_LENGTH_MAX:
            return
        if key in self._subjects or len(self._subjects) < SUBJECTS_MAX:
            self._subjects[key] = _subject(record)

    def _metrics(self, now_ms: int, subjects_max: int) -> Iterator[Metric]:
        samples: dict[Family, dict[tuple[str, ...], float]] = {family: {} for family in _FAMILIES}
        listed = [self._subjects[key] for key in sorted(self._subjects)[:subjects_max]]
        for each in listed:
            is_alive = each.life.is_alive(now_ms)
            samples[_UP[each.life.kind]][each.life.name,] = float(is_alive and each.is_well)
            for family, value in each.figures.items() if is_alive else ():
                samples[family].setdefault(each.labels if family in _DEBEZIUM else (each.life.name,), value)
        yield families.REPORTS_UNLISTED.of(len(self._subjects) - len(listed))
        for family, found in samples.items():
            yield family.filled(list(found.items()))


def _subject(record: StateRecord) -> _Subject:
    details = record.details
    kept = StateRecord(
        kind=record.kind,
        name=record.name,
        ended=record.ended,
        at_ms=record.at_ms,
        heartbeat_ms=record.heartbeat_ms,
    )
    labels = (_label(details.get("database_kind")), _label(details.get("topic_prefix")), STREAMING)
    subject = _Subject(kept, not record.error, labels)
    for family, figure in _FIGURES[record.kind].items():
        value = figure(details)
        if value is not None and math.isfinite(value) and abs(value) < FIGURE_MAX:
            subject.figures[family] = value
    return subject


def _label(value: object) -> str:
    """Text that can be served: half a surrogate pair, which JSON may hold, cannot."""
    return str(value or "")[:NAME_LENGTH_MAX].encode(errors="replace").decode()


def _number(name: str, scale: float = 1.0) -> Figure:
    def figure(details: Mapping[str, Any]) -> float | None:
        value = details.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= FIGURE_MAX:
            return None  # a number of a thousand digits is an int that no float can hold
        return value * scale

    return figure


def _dead_letters(details: Mapping[str, Any]) -> float | None:
    """Of all tables of a capture together."""
    by_table = details.get("dead_letters")
    if not isinstance(by_table, dict):
        return None
    counts = [each for each in by_table.values() if isinstance(each, int) and abs(each) < FIGURE_MAX]
    return float(sum(counts))


_UP = {"pipeline": families.PIPELINE_UP, "capture": families.CAPTURE_UP}
_FIGURES: dict[str, dict[Family, Figure]] = {
    "pipeline": {
        families.PIPELINE_LAG: _number("lag"),
        families.PIPELINE_ROWS: _number("rows"),
    },
    "capture": {
        families.CAPTURE_LAG_SECONDS: _number("lag_ms", 0.001),
        families.CAPTURE_LAG_BYTES: _number("lag_bytes"),
        families.CAPTURE_RETAINED: _number("retained_bytes"),
        families.CAPTURE_EVENTS: _number("events"),
        families.CAPTURE_DEAD_LETTERS: _dead_letters,
        families.DEBEZIUM_LAG: _number("lag_ms"),
        families.DEBEZIUM_EVENTS: _number("events"),
    },
}
_DEBEZIUM = {families.DEBEZIUM_LAG, families.DEBEZIUM_EVENTS}
_FAMILIES = [*_UP.values(), *(family for figures in _FIGURES.values() for family in figures)]
