"""Debezium's key and value of a change, as JSON bytes, from what was compiled once per shape of a table.

A ``TableEncoder`` holds the templates of one table: a row is one formatting operation over its rendered values, and the
``source`` block comes ready from the transaction with only the position left open. So the cost of an event is the
rendering of its values and little else.

Every event has its transaction's stable id (the database's transaction id and the commit position) and its place in it:
``transaction.id`` and ``transaction.total_order`` together are the (commit position, index) by which a consumer can
recognise an event it has seen. Debezium writes the same fields, with an id that changes within the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, NamedTuple, Protocol

from headrace.capture.options import CaptureOptions

__all__ = ["UNCHANGED", "Column", "Headers", "Out", "Table", "TableEncoder", "Transaction", "json_text"]

Headers = Sequence[tuple[str, bytes | None]]

OLD_KEY_HEADER = "__debezium.oldkey"
NEW_KEY_HEADER = "__debezium.newkey"


class Unchanged:
    """The value of a column that the database did not send again, because it is large and had not changed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()


class Out(Protocol):
    """Where events go."""

    def add(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None: ...

    def takes_truncations(self, topic: str) -> bool:
        """A truncation has no key, and a compacted topic refuses what has none."""


class Column(NamedTuple):
    """``render`` gives a value's JSON; None: the value is JSON already."""

    name: str
    render: Callable[[Any], bytes] | None = None
    type_name: str = ""
    unavailable: bytes = b"null"
    may_be_unsent: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The shape of a table: what its events are made of. ``key`` are positions in ``columns``; none: no key."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def json_text(value: str) -> bytes:
    return encode_basestring(value).encode()


def _escaped(value: bytes) -> bytes:
    """Bytes that stand for themselves in a template."""
    return value.replace(b"%", b"%%")


def _object_template(names: Sequence[str]) -> bytes:
    return b"{" + b",".join(_escaped(json_text(name)) + b":%b" for name in names) + b"}"


def _column(render: Callable[[Any], bytes] | None, values: Sequence[Any]) -> Sequence[bytes]:
    """The values of one column as JSON."""
    if None in values:
        return [b"null" if value is None else value if render is None else render(value) for value in values]
    return values if render is None else [*map(render, values)]


@dataclass(slots=True)
class Transaction:
    """A transaction on its way: its events are counted, and those that the log has already are passed over."""

    id: str
    now_ns: int
    written_up_to: int = 0
    index: int = 0
    per_table: dict[str, int] = field(default_factory=dict)
    sources: dict[Any, bytes] = field(default_factory=dict)
    """Ready ``source`` blocks by table, each a template that leaves the row's position open."""

    id_json: bytes = b""

    def __post_init__(self) -> None:
        self.id_json = json_text(self.id)

    @property
    def times(self) -> tuple[int, int, int]:
        return self.now_ns // 1_000_000, self.now_ns // 1_000, self.now_ns


_VALUE = b'{"before":%b,"after":%b,"source":%b,"transaction":%b,"op":"%b","ts_ms":%d,"ts_us":%d,"ts_ns":%d}'


class TableEncoder:
    """Turns the changes of one table into events; see the module."""

    def __init__(self, table: Table, topic: str, options: CaptureOptions) -> None:
        self.table = table
        self.topic = topic
        self._renders = [column.render for column in table.columns]
        self._row = _object_template([column.name for column in table.columns])
        self._key = _object_template([table.columns[index].name for index in table.key]) if table.key else None
        self._unwrap = options.unwrap
        self._tombstones = options.tombstones or options.unwrap
        self._full_name = table.full_name

    # ---- values to JSON ---------------------------------------------------------------------------------------------

    def row(self, values: Sequence[Any]) -> bytes:
        """A row as a JSON object; every value that is UNCHANGED shows as its column's stand-in."""
        if UNCHANGED in values:
            return self._row_with_unsent(values)
        return self._row % tuple(
            [
                b"null" if value is None else value if render is None else render(value)
                for render, value in zip(self._renders, values, strict=True)
            ]
        )

    def _row_with_unsent(self, values: Sequence[Any]) -> bytes:
        rendered = [
            column.unavailable if value is UNCHANGED else self._rendered(column.render, value)
            for column, value in zip(self.table.columns, values, strict=True)
        ]
        return self._row % tuple(rendered)

    def _rendered(self, render: Callable[[Any], bytes] | None, value: Any) -> bytes:
        return b"null" if value is None else value if render is None else render(value)

    def key(self, values: Sequence[Any]) -> bytes | None:
        if self._key is None:
            return None
        return self._key % tuple([self._rendered(self._renders[index], values[index]) for index in self.table.key])

    # ---- changes to events ------------------------------------------------------------------------------------------

    def created(self, out: Out, transaction: Transaction, source: bytes, new: Sequence[Any]) -> None:
        row = self.row(new)
        self._event(out, transaction, source, self.key(new), b"c", b"null", row)

    def read(
        self, out: Out, transaction: Transaction, source: bytes, row: Sequence[Any], key: bytes | None = None
    ) -> None:
        """A row of a snapshot; ``key`` where it is known already."""
        self._event(out, transaction, source, key or self.key(row), b"r", b"null", self.row(row))

    def read_all(
        self,
        out: Out,
        transaction: Transaction,
        source: bytes,
        rows: Sequence[Sequence[Any]],
        keys: Sequence[bytes | None] | None = None,
    ) -> None:
        """Many rows of a snapshot with one ``source``: rendered column by column, which is faster than row by row."""
        if transaction.written_up_to or not rows:
            for row in rows:
                self.read(out, transaction, source, row)
            return
        columns = [
            _column(render, values) for render, values in zip(self._renders, zip(*rows, strict=True), strict=True)
        ]
        bodies = map(self._row.__mod__, zip(*columns, strict=True))
        if keys is None:
            keys = self._keys_of_columns(columns, len(rows))
        if self._unwrap:
            for key, body in zip(keys, bodies, strict=True):
                self._count(transaction)
                out.add(self.topic, key, body)
            return
        order = b'{"id":%b,"total_order":%%d,"data_collection_order":%%d}' % _escaped(transaction.id_json)
        fixed = (b"%b", _escaped(source), order, b"r", *transaction.times)
        template = _VALUE % (b"null", *fixed)
        for key, body in zip(keys, bodies, strict=True):
            index, in_table = self._count(transaction)
            out.add(self.topic, key, template % (body, index, in_table))

    def keys(self, rows: Sequence[Sequence[Any]]) -> list[bytes | None]:
        """The keys of many rows."""
        if not rows:
            return []
        values = zip(*rows, strict=True)
        columns = [
            _column(render, each) if place in self.table.key else ()
            for place, (render, each) in enumerate(zip(self._renders, values, strict=True))
        ]
        return self._keys_of_columns(columns, len(rows))

    def _keys_of_columns(self, columns: Sequence[Sequence[bytes]], count: int) -> list[bytes | None]:
        if self._key is None:
            return [None] * count
        return list(map(self._key.__mod__, zip(*(columns[place] for place in self.table.key), strict=True)))

    def updated(
        self, out: Out, transaction: Transaction, source: bytes, old: Sequence[Any] | None, new: Sequence[Any]
    ) -> None:
        """``old`` is the whole row, or None when only its key or nothing was told."""
        before = b"null" if old is None else self.row(old)
        self._event(out, transaction, source, self.key(new), b"u", before, self.row(new))

    def moved(self, out: Out, transaction: Transaction, source: bytes, old: Sequence[Any], new: Sequence[Any]) -> None:
        """The key itself changed: the old one is deleted and the new one created, and each names the other."""
        old_key, new_key = self.key(old), self.key(new)
        self.deleted(out, transaction, source, old, ((NEW_KEY_HEADER, new_key),))
        self._event(out, transaction, source, new_key, b"c", b"null", self.row(new), ((OLD_KEY_HEADER, old_key),))

    def deleted(
        self, out: Out, transaction: Transaction, source: bytes, old: Sequence[Any], headers: Headers = ()
    ) -> None:
        key = self.key(old)
        self._event(out, transaction, source, key, b"d", self.row(old), b"null", headers)
        if key is not None and self._tombstones and transaction.index > transaction.written_up_to:
            out.add(self.topic, key, None)

    def truncated(self, out: Out, transaction: Transaction, source: bytes) -> None:
        """Where the topic does not take it, it is counted all the same: the numbers of what follows stay the same."""
        if self._unwrap or out.takes_truncations(self.topic):
            self._event(out, transaction, source, None, b"t", b"null", b"null")
        else:
            self._count(transaction)

    def _count(self, transaction: Transaction) -> tuple[int, int]:
        """The next event's place in its transaction, and among those of this table."""
        transaction.index = index = transaction.index + 1
        counts = transaction.per_table
        counts[self._full_name] = in_table = counts.get(self._full_name, 0) + 1
        return index, in_table

    def _event(
        self,
        out: Out,
        transaction: Transaction,
        source: bytes,
        key: bytes | None,
        operation: bytes,
        before: bytes,
        after: bytes,
        headers: Headers = (),
    ) -> None:
        index, in_table = self._count(transaction)
        if index <= transaction.written_up_to:
            return
        if self._unwrap:
            if operation in b"cru":
                out.add(self.topic, key, after, headers)
            return
        order = b'{"id":%b,"total_order":%d,"data_collection_order":%d}' % (transaction.id_json, index, in_table)
        value = _VALUE % (before, after, source, order, operation, *transaction.times)
        out.add(self.topic, key, value, headers)
