"""SQL that SQLite and PostgreSQL share: the tables of a store, and how queries become conditions.

    headrace_events       one row per event; ``position`` is the key, (stream, version) and event_id are unique
    headrace_tags         tag and position: conditional appends and queries by tag
    headrace_progress     how far process managers have read
    headrace_snapshots    a cache of states; may be emptied at any time
    headrace_head         PostgreSQL only: the last position, and the lock that makes positions gapless

Statements are written with ``?``; PostgreSQL's driver wants ``%s``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.sourcing.events import Query, QueryItem, Row
from headrace.sourcing.store import Snapshot, StreamInfo

__all__ = ["COLUMNS", "SqlReads", "condition_of", "tables"]

COLUMNS = (
    "position, stream, version, event_id, type, schema_version, data, tags, "
    "correlation_id, causation_id, actor, command_id, recorded_us"
)


def tables(integer: str = "integer", order: str = "", no_rowid: str = "", indexed_ids: str = "true") -> list[str]:
    """Statements that make what is not there. ``order`` is the collation of names: categories lie together.

    ``indexed_ids`` says which ids of events are in the index: those that are not found in another way.
    """
    text = f"text{order}"
    return [
        f"create table if not exists headrace_events (position {integer} primary key, stream {text}, "
        f"version {integer}, event_id text not null, type text not null, schema_version {integer} not null, "
        "data text not null, tags text not null, correlation_id text, causation_id text, actor text, command_id text, "
        f"recorded_us {integer} not null)",
        "create unique index if not exists headrace_events_stream on headrace_events (stream, version)",
        f"create unique index if not exists headrace_events_id on headrace_events (event_id) where {indexed_ids}",
        "create index if not exists headrace_events_command on headrace_events (command_id) "
        "where command_id is not null",
        f"create table if not exists headrace_tags (tag {text} not null, position {integer} not null, "
        f"primary key (tag, position)){no_rowid}",
        f"create table if not exists headrace_progress (name text primary key, position {integer} not null)",
        f"create table if not exists headrace_snapshots (stream text, kind text, version {integer} not null, "
        f"schema_version {integer} not null, state text not null, primary key (stream, kind))",
    ]


def _among(column: str, values: Sequence[str]) -> str:
    return f"{column} in ({', '.join('?' * len(values))})"


def _item(item: QueryItem, after: int) -> tuple[str, list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    if item.types:
        terms.append(_among("type", item.types))
        values += item.types
    if item.streams:
        terms.append(_among("stream", item.streams))
        values += item.streams
    if item.categories:
        # A category is everything before the first dash, and the stream of that very name.
        each = "stream = ? or (stream >= ? and stream < ?)"
        terms.append("(" + " or ".join([each] * len(item.categories)) + ")")
        for category in item.categories:
            values += [category, f"{category}-", f"{category}."]
    for tag in item.tags:
        terms.append("position in (select position from headrace_tags where tag = ? and position > ?)")
        values += [tag, after]
    return " and ".join(terms) or "true", values


def condition_of(query: Query, after: int) -> tuple[str, list[Any]]:
    """A condition on rows of headrace_events for a query, and its values; ``after`` narrows the search for tags."""
    if not query.items:
        return "true", []
    found = [_item(item, after) for item in query.items]
    return "(" + " or ".join(f"({terms})" for terms, _ in found) + ")", [value for _, each in found for value in each]


Ask = Callable[[str, Sequence[Any]], list[Row]]


class SqlReads:
    """Questions to the tables; ``ask`` runs one statement."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def events(self, query: Query, after: int, until: int | None, limit: int, backwards: bool) -> list[Row]:
        terms, values = condition_of(query, after)
        return self._ask(
            f"select {COLUMNS} from headrace_events where position > ? and position <= ? and {terms} "
            f"order by position {'desc' if backwards else 'asc'} limit ?",
            [after, _POSITION_MAX if until is None else until, *values, limit],
        )

    def stream(self, stream: str, after: int, until: int | None, limit: int, backwards: bool) -> list[Row]:
        return self._ask(
            f"select {COLUMNS} from headrace_events where stream = ? and version > ? and version <= ? "
            f"order by version {'desc' if backwards else 'asc'} limit ?",
            [stream, after, _POSITION_MAX if until is None else until, limit],
        )

    def version(self, stream: str) -> int:
        return int(self._ask("select coalesce(max(version), 0) from headrace_events where stream = ?", [stream])[0][0])

    def head(self) -> int:
        return int(self._ask("select coalesce(max(position), 0) from headrace_events", [])[0][0])

    def progress(self, name: str) -> int:
        rows = self._ask("select position from headrace_progress where name = ?", [name])
        return rows[0][0] if rows else 0

    def streams(self, category: str | None, after: str, limit: int) -> list[StreamInfo]:
        terms, values = "true", list[Any]()
        if category is not None:
            terms, values = _item(QueryItem(categories=(category,)), 0)
        rows = self._ask(
            "select stream, max(version), min(position), max(position) from headrace_events "
            f"where stream is not null and stream > ? and {terms} group by stream order by stream limit ?",
            [after, *values, limit],
        )
        return [StreamInfo(*row) for row in rows]

    def command(self, command_id: str) -> list[Row]:
        return self._ask(
            "select position, stream, version from headrace_events where command_id = ? order by position", [command_id]
        )

    def snapshot(self, stream: str, kind: str) -> Snapshot | None:
        rows = self._ask(
            "select version, schema_version, state from headrace_snapshots where stream = ? and kind = ?",
            [stream, kind],
        )
        return Snapshot(*rows[0]) if rows else None


_POSITION_MAX = 2**62
