"""How the rows of each table become events: compiled per shape, from the catalogue or from the binlog."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import headrace
from headrace.capture.envelope import Column, EventOutput, Table, TableEncoder, Transaction, json_text
from headrace.capture.mariadb.binlog import Change, Shape
from headrace.capture.mariadb.catalogue import Catalogue, CatalogueTable
from headrace.capture.mariadb.events import Event
from headrace.capture.mariadb.schemas import schema_of
from headrace.capture.mariadb.values import as_catalogued, kind_in_binlog, renderer, text_renderer
from headrace.capture.options import CaptureOptions
from headrace.capture.outbox import OutboxRouter
from headrace.capture.shapes import announce, table_topic
from headrace.capture.writer import Writer

__all__ = ["Encoders", "Followed"]

_SOURCE = (
    b'{"version":%b,"connector":"mariadb","name":%b,"ts_ms":%%d,"snapshot":"%%b","db":%b,"sequence":null,"ts_us":%%d,'
    b'"ts_ns":%%d,"table":%b,"server_id":%%d,"gtid":%%b,"file":"%%b","pos":%%d,"row":%%%%d,"thread":null,"query":null}'
)
NEVER = frozenset((datetime(2038, 1, 19, 3, 14, 7, 999999), datetime(2106, 2, 7, 6, 28, 15, 999999), 2**64 - 1))
"""What the end of a row's time is while it is current: the last moment that the server has, or the last transaction."""
ROW_START, ROW_END = "row_start", "row_end"


@dataclass(frozen=True, slots=True)
class Followed:
    """``kept``: columns of the binlog that are in the table; None: all. ``row_end``: the column that marks history."""

    encoder: TableEncoder
    block: bytes
    outbox: OutboxRouter | None = None
    kept: tuple[int, ...] | None = None
    row_end: int | None = None

    def is_current(self, row: Sequence[Any]) -> bool:
        """Rows of a system-versioned table stay in it when they are replaced or deleted, with the time of their end."""
        return self.row_end is None or row[self.row_end] in NEVER

    def shown(self, row: Sequence[Any]) -> Sequence[Any]:
        return row if self.kept is None else [row[place] for place in self.kept]

    def source(self, transaction: str, snapshot: bytes, event: Event | None = None, file: str = "") -> bytes:
        """The source block of events, with the number of the row left open."""
        at_us = event.header.timestamp * 1_000_000 if event is not None else time.time_ns() // 1000
        server, place = (event.header.server_id, event.header.end) if event is not None else (0, 0)
        gtid = json_text(transaction).replace(b"%", b"%%")
        times = (at_us // 1000, snapshot, at_us, at_us * 1000)
        return self.block % (*times, server, gtid, file.encode(), place)

    def emit(self, out: EventOutput, transaction: Transaction, template: bytes, change: Change) -> None:
        """The events of changed rows; ``template`` is their ``source``."""
        encoder = self.encoder
        if change.event.operation != "update":
            emit = encoder.created if change.event.operation == "insert" else encoder.deleted
            for number, row in enumerate(change.rows):
                if self.is_current(row):
                    emit(out, transaction, template % number, self.shown(row))
            return
        for number, (before, after) in enumerate(zip(change.rows[::2], change.rows[1::2], strict=True)):
            old, new, source = self.shown(before), self.shown(after), template % number
            if not self.is_current(before):
                if self.is_current(after):
                    encoder.created(out, transaction, source, new)
            elif not self.is_current(after):
                encoder.deleted(out, transaction, source, old)
            elif not encoder.has_same_key(old, new):
                encoder.moved(out, transaction, source, old, new)
            else:
                encoder.updated(out, transaction, source, old, new)


class Encoders:
    """Makes and remembers them."""

    def __init__(
        self, options: CaptureOptions, writer: Writer | None, catalogue: Catalogue, shapes: dict[str, int]
    ) -> None:
        self._options = options
        self._writer = writer
        self._catalogue = catalogue
        self._shapes = shapes
        self._of_binlog: dict[str, dict[Shape, Followed]] = {}

    def of_catalogue(self, table: CatalogueTable) -> Followed:
        """For rows of a snapshot."""
        charsets = self._catalogue.charsets
        columns = []
        for each in table.columns:
            decode = charsets.named(each.charset) if each.charset else None
            in_key = self._in_key(table.full_name, table.key, each.name)
            render = text_renderer(each.kind, each.column_type, decode, self._options, in_key=in_key)
            columns.append(Column(each.name, render, each.kind.name, schema=schema_of(each.kind, self._options)))
        return self._made(table.schema, table.name, columns, table.key)

    def of_binlog(self, shape: Shape) -> Followed:
        name = f"{shape.schema}.{shape.table}"
        known = self._of_binlog.setdefault(name, {})
        if shape not in known:
            known[shape] = self._from_shape(shape, self._catalogue.table(name))
        return known[shape]

    def _from_shape(self, shape: Shape, table: CatalogueTable | None) -> Followed:
        """The binlog tells which columns the key had, the catalogue in which order they stand in it."""
        names = [each.name for each in shape.columns]
        catalogued = {each.name: each.data_type for each in table.columns} if table is not None else {}
        row_end = table.row_end if table is not None else None
        hidden = {ROW_START, ROW_END} - catalogued.keys() if row_end == ROW_END else set()
        kept = [place for place, each in enumerate(names) if each not in hidden]
        marked = [each.name for each in shape.columns if each.key and each.name != row_end]
        ordered = table.key if table is not None and set(table.key) == set(marked) else marked
        columns = []
        for place in kept:
            in_key = self._in_key(f"{shape.schema}.{shape.table}", ordered, names[place])
            kind = as_catalogued(kind_in_binlog(shape.columns[place]), catalogued.get(names[place], ""))
            render, schema = renderer(kind, self._options, in_key=in_key), schema_of(kind, self._options)
            columns.append(Column(names[place], render, kind.name, schema=schema))
        made = self._made(shape.schema, shape.table, columns, ordered)
        return replace(
            made,
            kept=None if len(kept) == len(names) else tuple(kept),
            row_end=names.index(row_end) if row_end in names else None,
        )

    def _in_key(self, table: str, key: Sequence[str], column: str) -> bool:
        return column in key or column in self._options.key_columns.get(table, ())

    def _made(self, schema: str, name: str, columns: Sequence[Column], key: Sequence[str]) -> Followed:
        names = [each.name for each in columns]
        table = Table(schema, name, tuple(columns), tuple(names.index(each) for each in key))
        if self._writer is not None:
            announce(self._writer, self._options.topic_prefix, self._shapes, table, database=schema)
        outbox = OutboxRouter(table) if table.full_name == self._options.outbox else None
        encoder = TableEncoder(table, self._topic(schema, name), self._options)
        return Followed(encoder, self._block(schema, name), outbox)

    def without_columns(self, full_name: str) -> Followed:
        """For what concerns a table as a whole; it need not be there any more."""
        schema, _, name = full_name.partition(".")
        options = replace(self._options, key_columns={})
        return Followed(
            TableEncoder(Table(schema, name, ()), self._topic(schema, name), options), self._block(schema, name)
        )

    def _topic(self, schema: str, name: str) -> str:
        return table_topic(self._options.topic_prefix, schema, name)

    def _block(self, schema: str, name: str) -> bytes:
        version = f"headrace-{headrace.__version__}"
        shown = [json_text(each).replace(b"%", b"%%%%") for each in (version, self._options.topic_prefix, schema, name)]
        return _SOURCE % tuple(shown)

    def forget(self, full_name: str) -> None:
        """A table was altered: what the catalogue said of it may not be true any more."""
        self._of_binlog.pop(full_name, None)
