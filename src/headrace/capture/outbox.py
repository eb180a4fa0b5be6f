"""The outbox: rows of one table are events, and go to the topic of what they are about.

A service writes its event into the outbox in the same transaction as its data; capture takes the row and sends

    topic     outbox.event.<aggregatetype>
    key       aggregateid
    value     payload, as it stands
    headers   id (to recognise an event seen before), and eventType when the table has a column ``type``

as Debezium's outbox router does. Rows may be deleted at once: only insertions count. If the table has columns
traceparent and tracestate (W3C Trace Context, as OpenTelemetry writes it), they become headers too: the trace of the
request that wrote the event goes on in its readers.

A row that has no text where one is needed, or whose event its topic does not take, goes to the dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from headrace.capture.envelope import CannotEncode, EventOutput, Table, Transaction, json_text
from headrace.capture.shapes import topic_name
from headrace.errors import UsageError

__all__ = ["OutboxRouter", "check_outbox"]

NEEDED = ("id", "aggregatetype", "aggregateid", "payload")
TOPIC = "outbox.event."
TRACE = ("traceparent", "tracestate")
"""Columns whose values become headers."""


def check_outbox(name: str, columns: Collection[str]) -> None:
    """Refuse a table that has not all of the columns."""
    if missing := [each for each in NEEDED if each not in columns]:
        raise UsageError(
            f"the outbox {name} has no column {', '.join(missing)}",
            "its columns are id, aggregatetype, aggregateid, type and payload",
        )


class OutboxRouter:
    """Finds the columns once and routes rows by them."""

    def __init__(self, table: Table) -> None:
        places = {column.name: index for index, column in enumerate(table.columns)}
        check_outbox(table.full_name, places)
        self._name = table.full_name
        self._id, self._kind, self._key, self._payload = (places[name] for name in NEEDED)
        self._event_type = places.get("type")
        self._trace = [(name, places[name]) for name in TRACE if name in places]

    def created(self, out: EventOutput, transaction: Transaction, row: Sequence[Any]) -> None:
        transaction.index += 1
        transaction.per_table[self._name] = transaction.per_table.get(self._name, 0) + 1
        if transaction.index <= transaction.written_up_to:
            return
        try:
            self._route(out, row)
        except CannotEncode as error:
            named = row[self._id]
            shown = named.decode(errors="replace") if isinstance(named, bytes) else str(named)
            out.dead_letter(TOPIC, self._name, None, "c", str(error), b'{"id":%b}' % json_text(shown))

    def _route(self, out: EventOutput, row: Sequence[Any]) -> None:
        headers = [("id", _bytes(row[self._id]))]
        if self._event_type is not None:
            headers.append(("eventType", _bytes(row[self._event_type])))
        headers += [(name, _bytes(row[place])) for name, place in self._trace if row[place] is not None]
        kind, key, value = (_bytes(row[place]) for place in (self._kind, self._key, self._payload))
        try:
            topic = topic_name(TOPIC + (kind or b"").decode())
        except UnicodeDecodeError as error:
            raise CannotEncode(f"its aggregatetype is not UTF-8: {error}") from error
        size = len(value or b"") + sum(len(each or b"") for _, each in headers)
        if size > out.bytes_max(topic) and not out.takes(topic, key, value or b""):
            raise CannotEncode(f"the event has {size} bytes, and {topic} takes {out.bytes_max(topic)}")
        out.add(topic, key, value, headers)


def _bytes(value: Any) -> bytes | None:
    """PostgreSQL's values are texts already; other databases give Python's, and of bytes that are no text, why."""
    if reason := getattr(value, "reason", None):
        raise CannotEncode(reason)
    return value if value is None or isinstance(value, bytes) else str(value).encode()
