"""Debezium's key and value of a change, as JSON bytes, from what was compiled once per shape of a table.

A ``TableEncoder`` holds the templates of one table: a row is one formatting operation over its rendered values, and the
``source`` block comes ready from the transaction with only the position left open. So the cost of an event is the
rendering of its values and little else.

Every event has its transaction's stable id (the database's transaction id and the commit position) and its place in it:
``transaction.id`` and ``transaction.total_order`` together are the (commit position, index) by which a consumer can
recognise an event it has seen. Debezium writes the same fields, with an id that changes within the transaction.

**Key and identity.** ``key`` is the key of the message, which the user may choose (``key_columns``) and mask.
``identity`` names the row: the table's own key, as it is. What matches rows with each other uses ``identity``.

**Dead letters.** A row that cannot be encoded (``CannotEncode``), or whose event is larger than its topic takes, goes
to the dead letters of the capture with its key and the reason. It is counted as the event that it would have been, so
the numbers of the events after it do not change. A deletion is always written: what was deleted, but for its key, can
be left out of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from json.encoder import encode_basestring
from typing import Any, NamedTuple, Protocol, TypeAlias

from headrace.capture.columns import Mask, is_shown, mask_of, masked
from headrace.capture.options import CaptureOptions
from headrace.capture.schemas import STRING, Type, before_payload, envelope_schema, struct
from headrace.client.byte_column import ByteColumn, Part
from headrace.errors import HeadraceError, UsageError

__all__ = [
    "UNCHANGED",
    "CannotEncode",
    "Column",
    "EventOutput",
    "Headers",
    "Rendered",
    "Table",
    "TableEncoder",
    "Transaction",
    "json_text",
]

Headers = Sequence[tuple[str, bytes | None]]
Render: TypeAlias = Callable[[Any], bytes]
RenderAll: TypeAlias = Callable[[Sequence[Any]], Sequence[bytes]]

OLD_KEY_HEADER = "__debezium.oldkey"
NEW_KEY_HEADER = "__debezium.newkey"
OPERATION_HEADER = "__op"


class CannotEncode(HeadraceError):
    """A value has no form in an event. The row becomes a dead letter, and capture goes on."""


class Unchanged:
    """The value of a column that the database did not send again, because it is large and had not changed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()


class EventOutput(Protocol):
    """Where events go."""

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None: ...

    def add_many(self, topic: str, keys: ByteColumn | None, values: ByteColumn) -> None:
        """``add`` for many records at once."""

    def partitions(self, topic: str) -> int: ...

    def takes_truncations(self, topic: str) -> bool:
        """A truncation has no key, and a compacted topic refuses what has none."""

    def bytes_max(self, topic: str) -> int:
        """Records of no more bytes are always taken."""

    def takes(self, topic: str, key: bytes | None, value: bytes) -> bool:
        """Whether a record that is larger than ``bytes_max`` is taken after all, because it compresses well."""

    def begin_shape(self, table: Table) -> None:
        """Events of a table in this shape will come. Refused where a hidden column may have got another name."""

    def dead_letter(
        self,
        topic: str,
        table: str,
        key: bytes | None,
        operation: str,
        reason: str,
        row: bytes,
        *,
        source: bytes = b"null",
        transaction: bytes = b"null",
    ) -> None:
        """Keep a row that cannot be an event. All bytes are JSON; ``row`` has what can be shown of it."""


class Column(NamedTuple):
    """``render`` gives a value's JSON; None: the value is JSON already."""

    name: str
    render: Callable[[Any], bytes] | None = None
    type_name: str = ""
    unavailable: bytes = b"null"
    may_be_unsent: bool = False
    schema: Type | None = None
    """What ``render`` writes, for messages with a schema."""
    render_all: RenderAll | None = None
    """``render`` for many values at once: the same bytes, faster."""
    is_text: bool = False
    """``render`` makes a JSON string of bytes of UTF-8."""


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


def _object_template(names: Sequence[str], quoted: Sequence[bool] | None = None) -> bytes:
    """A JSON object whose values are open; ``quoted``: which of them are texts without their quotes."""
    opened = [b":%b"] * len(names) if quoted is None else [b':"%b"' if each else b":%b" for each in quoted]
    return b"{" + b",".join(_escaped(json_text(name)) + each for name, each in zip(names, opened, strict=True)) + b"}"


def _column(render: Render | None, render_all: RenderAll | None, values: Sequence[Any]) -> Sequence[bytes]:
    """The values of one column as JSON."""
    if None in values:
        made = iter(_column(render, render_all, [value for value in values if value is not None]))
        return [b"null" if value is None else next(made) for value in values]
    if render is None or not values:
        return values
    return render_all(values) if render_all is not None else list(map(render, values))


@cache
def _first_numbers() -> list[bytes]:
    return list(map(b"%d".__mod__, range(_NUMBERS_KEPT)))


def _numbers(first: int, count: int) -> list[bytes]:
    """Numbers from ``first`` on, as text. Every chunk of a snapshot counts its rows from one, so most are made once."""
    if first + count <= _NUMBERS_KEPT:
        return _first_numbers()[first : first + count]
    return list(map(b"%d".__mod__, range(first, first + count)))


def _rows(columns: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


class Rendered(NamedTuple):
    """Rows of a snapshot as JSON, with their keys, before it is known where they stand."""

    rows: list[bytes]
    keys: ByteColumn | None


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


NULL = b"null"
_NUMBERS_KEPT = 32_768
"""A little more than the rows that a chunk has by default."""
_SHOWN_BYTES_MAX = 1024
"""Of each value of a row in a dead letter."""
_VALUE = b'{"before":%b,"after":%b,"source":%b,"transaction":%b,"op":"%b","ts_ms":%d,"ts_us":%d,"ts_ns":%d}'
_PLACE = b'{"id":%b,"total_order":%d,"data_collection_order":%d}'


class TableEncoder:
    """Turns the changes of one table into events; see the module."""

    def __init__(self, table: Table, topic: str, options: CaptureOptions) -> None:
        self.table = table
        self.topic = topic
        self._full_name = table.full_name
        self._unwrap = options.unwrap
        self._tombstones = options.tombstones or options.unwrap
        self._bytes_max: int | None = None
        names = [column.name for column in table.columns]
        full_names = [f"{self._full_name}.{name}" for name in names]
        self._identity_renders = [column.render for column in table.columns]
        self._identity = _object_template([names[place] for place in table.key]) if table.key else None
        self._key_places = self._chosen_key(options, names)
        self._key = _object_template([names[place] for place in self._key_places]) if self._key_places else None
        self._key_schema = b""
        masks = [mask_of(options.masks, each) for each in full_names]
        for place in self._key_places:
            mask = masks[place]
            if mask is not None and not mask.keeps_distinct:
                raise UsageError(
                    f"{full_names[place]} is part of the key, and its mask would make different keys equal",
                    "mask it with hash, or choose another key with --key-columns",
                )
        self._renders = [
            column.render if mask is None else masked(column.render, mask)
            for column, mask in zip(table.columns, masks, strict=True)
        ]
        self._render_alls = [
            column.render_all if mask is None else None for column, mask in zip(table.columns, masks, strict=True)
        ]
        self._is_text = [column.is_text and mask is None for column, mask in zip(table.columns, masks, strict=True)]
        shown = [
            place
            for place, each in enumerate(full_names)
            if is_shown(each, options.include_columns, options.exclude_columns)
        ]
        self._shown = None if len(shown) == len(names) else shown
        self._shown_renders = [self._renders[place] for place in shown]
        self._shown_columns = [table.columns[place] for place in shown]
        self._row = _object_template([names[place] for place in shown])
        self._plain_row = _object_template([names[place] for place in shown], [self._is_text[place] for place in shown])
        self._row_schema: Type | None = None
        self._before_payload: bytes | None = None
        if options.schemas:
            self._describe(shown, masks)

    def _chosen_key(self, options: CaptureOptions, names: Sequence[str]) -> tuple[int, ...]:
        chosen = options.key_columns.get(self._full_name)
        if chosen is None:
            return self.table.key
        missing = [name for name in chosen if name not in names]
        if missing:
            raise UsageError(
                f"{self._full_name} has no column {', '.join(missing)} for its key",
                "choose others with --key-columns",
            )
        return tuple(names.index(name) for name in chosen)

    def _describe(self, shown: Sequence[int], masks: Sequence[Mask | None]) -> None:
        """Keys and values carry their schema."""

        def kind(place: int) -> Type:
            found, mask = self.table.columns[place].schema, masks[place]
            if found is None:
                raise UsageError(f"{self._full_name} has columns without a type", "leave --schemas out")
            return STRING if mask is not None and mask.makes_texts else found

        names = [column.name for column in self.table.columns]
        self._row_schema = struct(
            f"{self.topic}.Value", [(names[place], kind(place), place not in self.table.key) for place in shown]
        )
        if self._key is not None:
            key = struct(f"{self.topic}.Key", [(names[place], kind(place), False) for place in self._key_places])
            self._key_schema = before_payload(key)
            self._key = _escaped(self._key_schema) + self._key + b"}"

    def _with_schema(self, value: bytes, source: bytes) -> bytes:
        if self._row_schema is None:
            return value
        if self._before_payload is None:
            whole = self._row_schema
            if not self._unwrap:
                whole = envelope_schema(self.topic, self._row_schema, list(json.loads(source)))
            self._before_payload = before_payload(whole)
        return self._before_payload + value + b"}"

    # ---- values to JSON ---------------------------------------------------------------------------------------------

    def row(self, values: Sequence[Any]) -> bytes:
        """A row as a JSON object; every value that is UNCHANGED shows as its column's stand-in."""
        if self._shown is not None:
            values = [values[place] for place in self._shown]
        if UNCHANGED in values:
            return self._row_with_unsent(values)
        return self._row % tuple(
            [
                b"null" if value is None else value if render is None else render(value)
                for render, value in zip(self._shown_renders, values, strict=True)
            ]
        )

    def _row_with_unsent(self, values: Sequence[Any]) -> bytes:
        rendered = [
            column.unavailable if value is UNCHANGED else _rendered(render, value)
            for column, render, value in zip(self._shown_columns, self._shown_renders, values, strict=True)
        ]
        return self._row % tuple(rendered)

    def key(self, values: Sequence[Any]) -> bytes | None:
        """The key of the row's messages; None: they have none."""
        if self._key is None:
            return None
        return self._key % tuple([self._of_key(self._renders, place, values) for place in self._key_places])

    def identity(self, values: Sequence[Any]) -> bytes | None:
        """What names the row among those of its table, also one whose key cannot be encoded; None: nothing does."""
        if self._identity is None:
            return None
        try:
            rendered = [self._of_key(self._identity_renders, place, values) for place in self.table.key]
        except CannotEncode:
            # No JSON begins like this, so it is no other row's.
            return b"\0" + repr([values[place] for place in self.table.key]).encode()
        return self._identity % tuple(rendered)

    def _of_key(self, renders: Sequence[Callable[[Any], bytes] | None], place: int, values: Sequence[Any]) -> bytes:
        value = values[place]
        if value is UNCHANGED:
            raise CannotEncode(f"the database did not send {self.table.columns[place].name}, which is part of the key")
        return _rendered(renders[place], value)

    def has_same_key(self, old: Sequence[Any], new: Sequence[Any]) -> bool:
        """Whether an update leaves the key of the row's messages as it was. One that has none keeps that."""
        return self._key_if_encodable(old) == self._key_if_encodable(new)

    def identities(self, columns: Sequence[Sequence[Any]], count: int) -> list[bytes | None]:
        """The identities of rows that are given as columns."""
        if self._identity is None or not count:
            return [None] * count
        try:
            made = [
                _column(self._identity_renders[place], self.table.columns[place].render_all, columns[place])
                for place in self.table.key
            ]
        except CannotEncode:
            return [self.identity(row) for row in zip(*columns, strict=True)]
        return list(map(self._identity.__mod__, zip(*made, strict=True)))

    # ---- changes to events ------------------------------------------------------------------------------------------

    def created(self, out: EventOutput, transaction: Transaction, source: bytes, new: Sequence[Any]) -> None:
        self._event(out, transaction, source, b"c", None, new)

    def read(self, out: EventOutput, transaction: Transaction, source: bytes, row: Sequence[Any]) -> None:
        """A row of a snapshot."""
        self._event(out, transaction, source, b"r", None, row)

    def read_all(
        self, out: EventOutput, transaction: Transaction, source: bytes, rows: Sequence[Sequence[Any]]
    ) -> None:
        """Many rows of a snapshot with one ``source``: rendered column by column, which is faster than row by row."""
        self.read_columns(out, transaction, source, list(zip(*rows, strict=True)), len(rows))

    def read_columns(
        self,
        out: EventOutput,
        transaction: Transaction,
        source: bytes,
        columns: Sequence[Sequence[Any]],
        count: int,
        *,
        plain: bool = False,
    ) -> None:
        """``read_all`` of rows that are given as columns. ``plain``: no value is null, and all are bytes of UTF-8
        without a character that JSON escapes."""
        rendered = self.rendered(columns, count, plain=plain) if count else None
        if rendered is None or not self.read_rendered(out, transaction, source, rendered):
            for row in _rows(columns, count):
                self.read(out, transaction, source, row)

    def rendered(self, columns: Sequence[Sequence[Any]], count: int, *, plain: bool = False) -> Rendered | None:
        """The rows for ``read_rendered``, which takes most of the time that they need; None: one cannot be encoded."""
        try:
            render = self._plain_column if plain else self._column
            made = list(map(render, range(len(columns)), columns))
        except CannotEncode:
            return None
        shown = made if self._shown is None else [made[place] for place in self._shown]
        template = self._plain_row if plain else self._row
        rows = list(map(template.__mod__, zip(*shown, strict=True))) if shown else [template] * count
        return Rendered(rows, self._keys(made, count, plain))

    def read_rendered(self, out: EventOutput, transaction: Transaction, source: bytes, rendered: Rendered) -> bool:
        """``read_all`` of what ``rendered`` gave. False: nothing is written, and the rows are to be read one by one,
        because one is too large or the log has some of them."""
        count = len(rendered.rows)
        if not count or transaction.written_up_to:
            return not count
        values = self._values(transaction, source, rendered.rows)
        if max(values.lengths) > self._limit(out):
            return False
        in_table = transaction.per_table.get(self._full_name, 0)
        transaction.index += count
        transaction.per_table[self._full_name] = in_table + count
        out.add_many(self.topic, rendered.keys, values)
        return True

    def _values(self, transaction: Transaction, source: bytes, rows: list[bytes]) -> ByteColumn:
        count = len(rows)
        parts: list[Part] = [*self._around_rows(transaction, source)]
        if self._unwrap:
            return ByteColumn([parts[0], rows, parts[1]], count)
        first, first_in_table = transaction.index + 1, transaction.per_table.get(self._full_name, 0) + 1
        order = _numbers(first, count)
        in_table = order if first_in_table == first else _numbers(first_in_table, count)
        return ByteColumn([parts[0], rows, parts[1], order, parts[2], in_table, parts[3]], count)

    def _column(self, place: int, values: Sequence[Any]) -> Sequence[bytes]:
        return _column(self._renders[place], self._render_alls[place], values)

    def _plain_column(self, place: int, values: Sequence[Any]) -> Sequence[bytes]:
        """Of texts, what stands between their quotes."""
        render, render_all = self._renders[place], self._render_alls[place]
        if render is None or self._is_text[place]:
            return values
        return render_all(values) if render_all is not None else list(map(render, values))

    def _keys(self, columns: Sequence[Sequence[bytes]], count: int, plain: bool) -> ByteColumn | None:
        """The keys of rows by their rendered columns."""
        if not self._key_places:
            return None
        parts: list[Part] = []
        before = self._key_schema + b"{"
        for place in self._key_places:
            quote = b'"' if plain and self._is_text[place] else b""
            parts += [before + json_text(self.table.columns[place].name) + b":" + quote, columns[place]]
            before = quote + b","
        return ByteColumn([*parts, before[:-1] + (b"}}" if self._key_schema else b"}")], count)

    def _around_rows(self, transaction: Transaction, source: bytes) -> list[bytes]:
        """What the values of a snapshot have in common: before and after the row, and around their place, if they have
        one. No JSON has a zero byte."""
        value = b"\0"
        if not self._unwrap:
            order = _PLACE.replace(b"%d", b"\0") % transaction.id_json
            value = _VALUE % (NULL, b"\0", source, order, b"r", *transaction.times)
        return self._with_schema(value, source).split(b"\0")

    def updated(
        self, out: EventOutput, transaction: Transaction, source: bytes, old: Sequence[Any] | None, new: Sequence[Any]
    ) -> None:
        """``old`` is the whole row, or None when only its key or nothing was sent."""
        self._event(out, transaction, source, b"u", old, new)

    def moved(
        self, out: EventOutput, transaction: Transaction, source: bytes, old: Sequence[Any], new: Sequence[Any]
    ) -> None:
        """The key itself changed: the old one is deleted and the new one created, and each names the other."""
        old_key, new_key = self._key_if_encodable(old), self._key_if_encodable(new)
        self.deleted(out, transaction, source, old, ((NEW_KEY_HEADER, new_key),))
        self._event(out, transaction, source, b"c", None, new, headers=((OLD_KEY_HEADER, old_key),))

    def _key_if_encodable(self, values: Sequence[Any]) -> bytes | None:
        try:
            return self.key(values)
        except CannotEncode:
            return None

    def deleted(
        self, out: EventOutput, transaction: Transaction, source: bytes, old: Sequence[Any], headers: Headers = ()
    ) -> None:
        key = self._event(out, transaction, source, b"d", old, None, headers=headers)
        if key is not None and self._tombstones:
            out.add(self.topic, key, None, headers)

    def truncated(self, out: EventOutput, transaction: Transaction, source: bytes) -> None:
        """One event, in every partition of the topic: after the rows that it removes, and before the next ones.

        Among plain rows it is a record with neither key nor value, which nothing else writes, and the header that
        Debezium gives to plain rows on request. Where the topic does not take it, it is counted all the same: the
        numbers of the events that follow stay the same.
        """
        is_taken = out.takes_truncations(self.topic)
        place = self._count(transaction)
        if not is_taken or place[0] <= transaction.written_up_to:
            return
        count = out.partitions(self.topic)
        value: bytes | None = None
        if not self._unwrap:
            value = self._value(transaction, source, place, b"t", NULL, NULL)
            if count > 1:
                value = b'%b,"partitions":%d}' % (value[:-1], count)
            value = self._with_schema(value, source)
        for partition in range(count):
            out.add(self.topic, None, value, ((OPERATION_HEADER, b"t"),) if self._unwrap else (), partition=partition)

    # ---- one event --------------------------------------------------------------------------------------------------

    def _count(self, transaction: Transaction) -> tuple[int, int]:
        """The next event's place in its transaction, and among those of this table."""
        transaction.index = index = transaction.index + 1
        counts = transaction.per_table
        counts[self._full_name] = in_table = counts.get(self._full_name, 0) + 1
        return index, in_table

    def _event(
        self,
        out: EventOutput,
        transaction: Transaction,
        source: bytes,
        operation: bytes,
        old: Sequence[Any] | None,
        new: Sequence[Any] | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> bytes | None:
        """Write the event unless the log has it; gives the key of what was written."""
        place = self._count(transaction)
        if place[0] <= transaction.written_up_to:
            return None
        row = new if new is not None else old
        assert row is not None, "an event is about a row"
        try:
            key = key or self.key(row)
            after = NULL if new is None else self.row(new)
        except CannotEncode as error:
            self._dead_letter(out, transaction, source, place, operation, self._key_if_encodable(row), row, str(error))
            return None
        if self._unwrap:
            value = None if new is None else self._with_schema(after, source)
        else:
            value = self._with_schema(
                self._value(transaction, source, place, operation, self._before(old), after), source
            )
        limit = self._limit(out)
        if value is not None and len(value) > limit and not out.takes(self.topic, key, value):
            value = self._without_before(transaction, source, place, operation, old, after)
            if len(value) > limit and not out.takes(self.topic, key, value):
                self._too_large(out, transaction, source, place, operation, key, row, len(value))
                return key if operation == b"d" else None
        if value is not None:
            out.add(self.topic, key, value, headers)
        return key

    def _before(self, old: Sequence[Any] | None) -> bytes:
        if old is None:
            return NULL
        try:
            return self.row(old)
        except CannotEncode:
            return self._only_key(old)

    def _only_key(self, old: Sequence[Any]) -> bytes:
        """The row where the database sends no more of it: the columns of its key, and nulls."""
        told = {*self.table.key, *self._key_places}
        try:
            return self.row([value if place in told else None for place, value in enumerate(old)])
        except CannotEncode:
            return NULL

    def _without_before(
        self,
        transaction: Transaction,
        source: bytes,
        place: tuple[int, int],
        operation: bytes,
        old: Sequence[Any] | None,
        after: bytes,
    ) -> bytes:
        """The event with as little of the old row as a database may send."""
        if self._unwrap:
            return self._with_schema(after, source)
        before = self._only_key(old) if operation == b"d" and old is not None else NULL
        return self._with_schema(self._value(transaction, source, place, operation, before, after), source)

    def _value(
        self,
        transaction: Transaction,
        source: bytes,
        place: tuple[int, int],
        operation: bytes,
        before: bytes,
        after: bytes,
    ) -> bytes:
        order = _PLACE % (transaction.id_json, *place)
        return _VALUE % (before, after, source, order, operation, *transaction.times)

    # ---- what cannot be an event ------------------------------------------------------------------------------------

    def _limit(self, out: EventOutput) -> int:
        if self._bytes_max is None:
            self._bytes_max = out.bytes_max(self.topic)
        return self._bytes_max

    def _too_large(
        self,
        out: EventOutput,
        transaction: Transaction,
        source: bytes,
        place: tuple[int, int],
        operation: bytes,
        key: bytes | None,
        row: Sequence[Any],
        size: int,
    ) -> None:
        reason = f"the event has {size} bytes, and {self.topic} takes {self._limit(out)} (max.message.bytes)"
        self._dead_letter(out, transaction, source, place, operation, key, row, reason)

    def _dead_letter(
        self,
        out: EventOutput,
        transaction: Transaction,
        source: bytes,
        place: tuple[int, int],
        operation: bytes,
        key: bytes | None,
        row: Sequence[Any],
        reason: str,
    ) -> None:
        out.dead_letter(
            self.topic,
            self._full_name,
            key,
            operation.decode(),
            reason,
            self._shown_of(row),
            source=source,
            transaction=_PLACE % (transaction.id_json, *place),
        )

    def _shown_of(self, row: Sequence[Any]) -> bytes:
        """What can be shown of a row: values that can be encoded and are short."""
        parts = []
        for place in range(len(self.table.columns)) if self._shown is None else self._shown:
            try:
                value = NULL if row[place] is UNCHANGED else _rendered(self._renders[place], row[place])
            except CannotEncode:
                continue
            if len(value) <= _SHOWN_BYTES_MAX:
                parts.append(json_text(self.table.columns[place].name) + b":" + value)
        return b"{" + b",".join(parts) + b"}"


def _rendered(render: Callable[[Any], bytes] | None, value: Any) -> bytes:
    return NULL if value is None else value if render is None else render(value)
