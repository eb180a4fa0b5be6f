"""PostgreSQL's changes as events: relations become encoders, rows become records, large values are filled in.

One ``PostgresEvents`` lives as long as a replication connection: the server describes a table (a *relation*) before its
first change, and again when its shape has changed.

**Values that are not sent again.** A large value is stored outside its row, and an update that does not touch it does
not carry it. It is filled in from the old row where that is sent (replica identity full) or from what capture has seen
of the row before (``LargeValues``, bounded); where neither knows it, Debezium's stand-in says so.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import headrace
from headrace.capture.boundaries import begun, ended
from headrace.capture.envelope import UNCHANGED, Column, EventOutput, Table, TableEncoder, Transaction, json_text
from headrace.capture.options import CaptureOptions
from headrace.capture.outbox import OutboxRouter
from headrace.capture.postgres import pgoutput
from headrace.capture.postgres.schemas import schema_of
from headrace.capture.postgres.values import PgType, is_text, renderer, renderer_of_all, unavailable
from headrace.capture.shapes import announce, table_topic

__all__ = ["FollowedRelation", "LargeValues", "PostgresEvents", "SourceBlock"]

LARGE_MESSAGE_BYTES = 1_400
"""A row is stored in parts only when it exceeds about 2 kB; a shorter message cannot have been such a row."""

SOURCE = (
    b'{"version":%b,"connector":"postgresql","name":%b,"ts_ms":%%d,"snapshot":"%%b","db":%b,'
    b'"sequence":"[%%b,\\"%%%%d\\"]","ts_us":%%d,"ts_ns":%%d,"schema":%b,"table":%b,"txId":%%b,"lsn":%%%%d,'
    b'"xmin":null,"origin":%%b,"origin_lsn":null}'
)


class SourceBlock:
    """The ``source`` of one table's events, filled in two steps: per transaction, and then per row."""

    __slots__ = ("_template",)

    def __init__(self, server: str, database: str, schema: str, table: str, template: bytes = SOURCE) -> None:
        version = f"headrace-{headrace.__version__}"
        names = [json_text(each).replace(b"%", b"%%%%") for each in (version, server, database, schema, table)]
        self._template = template % tuple(names)

    def of_transaction(
        self,
        commit_us: int,
        xid: int | None,
        last_commit: int | None,
        snapshot: bytes = b"false",
        origin: bytes = b"null",
    ) -> bytes:
        """A template that leaves two numbers open: the position of the row, twice."""
        last = b"null" if last_commit is None else b'\\"%d\\"' % last_commit
        of = b"null" if xid is None else b"%d" % xid
        return self._template % (commit_us // 1000, snapshot, last, commit_us, commit_us * 1000, of, origin)


class LargeValues:
    """The large values of rows seen lately, by table and key; the oldest go when there are too many."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._rows: OrderedDict[tuple[str, bytes], list[Any]] = OrderedDict()
        self._columns: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def of_columns(self, table: str, columns: tuple[str, ...]) -> None:
        """Rows of the table have these columns; those of other columns are forgotten."""
        if self._columns.get(table, columns) != columns:
            self.forget_table(table)
        self._columns[table] = columns

    def remember(self, table: str, key: bytes, values: list[Any]) -> None:
        self.forget(table, key)
        self._rows[table, key] = values
        self._bytes += self._size(values)
        while self._bytes > self._bytes_max:
            _, oldest = self._rows.popitem(last=False)
            self._bytes -= self._size(oldest)

    def forget(self, table: str, key: bytes) -> None:
        values = self._rows.pop((table, key), None)
        if values is not None:
            self._bytes -= self._size(values)

    def fill(self, table: str, key: bytes, values: list[Any]) -> None:
        """Put what is known in the place of what was not sent."""
        known = self._rows.get((table, key))
        if known is not None and len(known) == len(values):
            for index, value in enumerate(values):
                if value is UNCHANGED:
                    values[index] = known[index]

    def forget_table(self, table: str) -> None:
        for name, key in [each for each in self._rows if each[0] == table]:
            self.forget(name, key)

    @staticmethod
    def _size(values: list[Any]) -> int:
        return 200 + sum(len(value) for value in values if isinstance(value, bytes))


class FollowedRelation:
    """A relation with everything compiled for it."""

    __slots__ = ("block", "encoder", "name", "outbox", "shows_key", "table")

    def __init__(self, encoder: TableEncoder, block: SourceBlock, outbox: OutboxRouter | None) -> None:
        self.encoder = encoder
        self.block = block
        self.table = encoder.table
        self.name = encoder.table.full_name
        self.outbox = outbox
        self.shows_key = True
        """Whether the server shows that an update changed the key."""


class PostgresEvents:
    """Turns decoded messages into events; see the module."""

    def __init__(
        self,
        options: CaptureOptions,
        database: str,
        out: EventOutput,
        now_ns: Callable[[], int] = time.time_ns,
        source: bytes = SOURCE,
    ) -> None:
        self._options = options
        self._source_template = source
        self._database = database
        self.out = out
        self._now_ns = now_ns
        self._relations: dict[int, FollowedRelation | None] = {}
        self._large = LargeValues(options.remembered_bytes_max)
        self._messages = SourceBlock(options.topic_prefix, database, "", "")
        self.transaction = Transaction("", 0)
        self._commit_us = 0
        self._xid = 0
        self._origin = b"null"
        self.last_commit: int | None = None
        self.types: dict[int, PgType] = {}
        self._described: dict[int, pgoutput.Relation] = {}
        self._topics: dict[str, tuple[int, list[str]]] = {}
        self.shapes: dict[str, int] = {}
        self.touched: Callable[[str, bytes | None], bool] | None = None
        """Called with every key that changes while a snapshot runs; False: the event is not wanted."""
        self.emptied: Callable[[str], bool] | None = None
        """The same for truncations, called with the table."""
        self.waiting: Callable[[str, bytes, list[str]], list[bytes | None] | None] | None = None
        """Gives the row of a snapshot that a change will replace, for values that were not sent with the change."""
        self.lacks: Callable[[str, bytes], None] | None = None
        """Called with a change that lacks a value all the same, while a snapshot runs."""
        self.unidentified: Callable[[str], None] | None = None
        """Called with a table of which a change has come without its key."""

    # ---- tables -----------------------------------------------------------------------------------------------------

    def topic_of(self, schema: str, table: str) -> str:
        return table_topic(self._options.topic_prefix, schema, table)

    def stand_for(self, topics: Mapping[str, tuple[int, list[str]]]) -> None:
        """Which table, by its OID, each topic stands for from here on, and with which key."""
        before, self._topics = self._topics, dict(topics)
        for relation, message in self._described.items():
            name = f"{message.schema}.{message.name}"
            if before.get(name) != self._topics.get(name):
                self._relations[relation] = self._accepted(message)

    def relation(self, message: pgoutput.Relation) -> None:
        """A table has been described: for the first time, or in another shape."""
        self._described[message.relation] = message
        self._relations[message.relation] = self._accepted(message)

    def _accepted(self, message: pgoutput.Relation) -> FollowedRelation | None:
        """None: the topic of that name stands for another table, or there is none."""
        name = f"{message.schema}.{message.name}"
        oid, key = self._topics.get(name, (0, []))
        if oid != message.relation:
            return None
        if not {each.name for each in message.columns}.issuperset(key):
            self._without_key(name)
            return None
        followed = self.follow(message.schema, message.name, list(message.columns), key)
        flagged = {each.name for each in message.columns if each.is_identity}
        followed.shows_key = message.identity == "f" or not flagged or flagged.issuperset(key)
        self._large.of_columns(name, tuple(each.name for each in message.columns))
        return followed

    def _without_key(self, name: str) -> None:
        """The key changed in the database: what comes until the topic changes over does not fit the old one."""
        if self.unidentified is not None:
            self.unidentified(name)

    def follow(
        self, schema: str, name: str, columns: list[pgoutput.RelationColumn], key: list[str]
    ) -> FollowedRelation:
        """Compile what a table of this shape needs; a shape not seen before is announced."""
        encoder = self.encoder_of(schema, name, columns, key)
        table = encoder.table
        block = SourceBlock(self._options.topic_prefix, self._database, schema, name, self._source_template)
        announce(
            self.out,
            self._options.topic_prefix,
            self.shapes,
            table,
            database=self._database,
            source=block.of_transaction(self._commit_us, self._xid or None, self.last_commit) % (0, 0),
            lengths=[each.type_modifier if each.type_modifier >= 0 else None for each in columns],
        )
        outbox = OutboxRouter(table) if table.full_name == self._options.outbox else None
        return FollowedRelation(encoder, block, outbox)

    def encoder_of(
        self, schema: str, name: str, columns: list[pgoutput.RelationColumn], key: list[str]
    ) -> TableEncoder:
        in_key = {*key, *self._options.key_columns.get(f"{schema}.{name}", ())}
        made = tuple(self._column(each, exact=each.name in in_key) for each in columns)
        names = [each.name for each in columns]
        table = Table(schema, name, made, tuple(names.index(each) for each in key if each in names))
        return TableEncoder(table, self.topic_of(schema, name), self._options)

    def _column(self, column: pgoutput.RelationColumn, *, exact: bool) -> Column:
        oid, modifier = column.type_oid, column.type_modifier
        render = renderer(oid, modifier, self.types, self._options, exact=exact)
        return Column(
            column.name,
            render,
            self.types[oid].name if oid in self.types else str(oid),
            unavailable(oid, self.types),
            schema=schema_of(oid, modifier, self.types, self._options, exact=exact),
            render_all=renderer_of_all(render),
            is_text=is_text(render),
        )

    # ---- transactions -----------------------------------------------------------------------------------------------

    def begin(self, commit_lsn: int, commit_us: int, xid: int, written_up_to: int = 0) -> None:
        self.transaction = Transaction(f"{xid}:{commit_lsn}", self._now_ns(), written_up_to)
        self._commit_us = commit_us
        self._xid = xid
        self._origin = b"null"
        if self._options.transactions and written_up_to == 0:
            begun(self.out, self._options.topic_prefix, self.transaction, commit_us // 1000)

    def end(self, end_lsn: int) -> None:
        if self._options.transactions and self.transaction.index:
            ended(self.out, self._options.topic_prefix, self.transaction, self._commit_us // 1000)
        self.last_commit = end_lsn

    def origin(self, name: str) -> None:
        self._origin = json_text(name)

    def _source(self, followed: FollowedRelation, lsn: int) -> bytes:
        sources = self.transaction.sources
        template = sources.get(followed)
        if template is None:
            template = sources[followed] = followed.block.of_transaction(
                self._commit_us, self._xid, self.last_commit, origin=self._origin
            )
        return template % (lsn, lsn)

    # ---- changes ----------------------------------------------------------------------------------------------------

    def insert(self, message: pgoutput.Insert, lsn: int, size: int) -> None:
        followed = self._relations[message.relation]
        if followed is None:
            return
        encoder, new = followed.encoder, message.new
        if followed.outbox is not None:
            followed.outbox.created(self.out, self.transaction, new)
            return
        if self.touched is not None and not self.touched(followed.name, encoder.identity(new)):
            return
        if size >= LARGE_MESSAGE_BYTES and followed.table.key:
            self._large.remember(followed.name, encoder.identity(new) or b"", new)
        encoder.created(self.out, self.transaction, self._source(followed, lsn), new)

    def update(self, message: pgoutput.Update, lsn: int, size: int) -> None:
        followed = self._relations[message.relation]
        if followed is None or followed.outbox is not None:
            return
        encoder, old, new = followed.encoder, message.old, message.new
        if not self._names_row(followed, old, message.old_is_key, new):
            return
        old_id = new_id = None
        if old is not None:
            # The old row, or at least its key, was sent: a value that is too large to be sent again is in it.
            sent = range(len(new)) if not message.old_is_key else followed.table.key
            new = [old[place] if each is UNCHANGED and place in sent else each for place, each in enumerate(new)]
            old_id, new_id = encoder.identity(old), encoder.identity(new)
        elif self.touched is not None or size >= LARGE_MESSAGE_BYTES or len(self._large):
            old_id = new_id = encoder.identity(new)
        if UNCHANGED in new and self.waiting is not None and old_id is not None:
            read = self.waiting(followed.name, old_id, [each.name for each in followed.table.columns])
            if read is not None:
                new = [before if after is UNCHANGED else after for before, after in zip(read, new, strict=True)]
        if self.touched is not None and not self._both_touched(followed.name, old_id, new_id):
            return
        self._keep_large(followed, old_id, new_id, new, size)
        source = self._source(followed, lsn)
        if old is not None and (old_id != new_id or not encoder.has_same_key(old, new)):
            encoder.moved(self.out, self.transaction, source, old, new)
        else:
            encoder.updated(self.out, self.transaction, source, None if message.old_is_key else old, new)

    def _names_row(
        self, followed: FollowedRelation, old: Sequence[Any] | None, old_is_key: bool, new: Sequence[Any] = ()
    ) -> bool:
        """Whether a change identifies its row: the columns of a key are never null."""
        if old is None:
            shown = followed.shows_key and not any(new[place] is UNCHANGED for place in followed.table.key)
        else:
            shown = not old_is_key or all(old[place] is not None for place in followed.table.key)
        if not shown:
            self._without_key(followed.name)
        return shown

    def _both_touched(self, table: str, old_id: bytes | None, new_id: bytes | None) -> bool:
        assert self.touched is not None
        wanted = self.touched(table, new_id)
        return self.touched(table, old_id) if old_id != new_id else wanted

    def _keep_large(
        self, followed: FollowedRelation, old_id: bytes | None, new_id: bytes | None, new: list[Any], size: int
    ) -> None:
        """Fill in what is known, and remember what may be left out the next time."""
        if new_id is None or old_id is None:
            return
        unsent = UNCHANGED in new
        if unsent:
            self._large.fill(followed.name, old_id, new)
            if self.lacks is not None and UNCHANGED in new:
                self.lacks(followed.name, new_id)
        self._large.forget(followed.name, old_id)
        if unsent or size >= LARGE_MESSAGE_BYTES:
            self._large.remember(followed.name, new_id, new)

    def remember_read(self, table: str, columns: tuple[str, ...], rows: Mapping[bytes, list[Any]]) -> None:
        """The large values of rows that a snapshot has read: later updates of other columns will not carry them."""
        self._large.of_columns(table, columns)
        for identity, row in rows.items():
            if sum(len(each) for each in row if each is not None) >= LARGE_MESSAGE_BYTES:
                self._large.remember(table, identity, row)

    def delete(self, message: pgoutput.Delete, lsn: int) -> None:
        followed = self._relations[message.relation]
        if followed is None or followed.outbox is not None:
            return
        if not self._names_row(followed, message.old, message.old_is_key):
            return
        identity = followed.encoder.identity(message.old)
        if self.touched is not None and not self.touched(followed.name, identity):
            return
        if identity is not None:
            self._large.forget(followed.name, identity)
        followed.encoder.deleted(self.out, self.transaction, self._source(followed, lsn), message.old)

    def truncate(self, message: pgoutput.Truncate, lsn: int) -> None:
        for relation in message.relations:
            followed = self._relations.get(relation)
            if followed is not None and followed.outbox is None:
                self._large.forget_table(followed.name)
                if self.emptied is not None and not self.emptied(followed.name):
                    continue
                followed.encoder.truncated(self.out, self.transaction, self._source(followed, lsn))

    def told(self, relation: int) -> int:
        """How many events of a table the transaction under way has so far."""
        followed = self._relations.get(relation)
        return 0 if followed is None else self.transaction.per_table.get(followed.name, 0)

    def emptied_unlogged(self, schema: str, name: str, lsn: int, *, rows_follow: bool) -> None:
        """A truncation that is not in the server's log: the topic begins again here. ``rows_follow``: they are read."""
        table = Table(schema, name, ())
        self._large.forget_table(table.full_name)
        encoder = TableEncoder(table, self.topic_of(schema, name), replace(self._options, key_columns={}))
        block = SourceBlock(self._options.topic_prefix, self._database, schema, name, self._source_template)
        snapshot = b"incremental" if rows_follow else b"false"
        source = block.of_transaction(self._commit_us, self._xid or None, self.last_commit, snapshot) % (lsn, lsn)
        encoder.truncated(self.out, self.transaction, source)

    def message(self, message: pgoutput.LogicalMessage, lsn: int) -> None:
        """What ``pg_logical_emit_message`` wrote: an event without a table."""
        transaction = self.transaction
        if not message.transactional:
            transaction = Transaction(f"0:{message.lsn}", self._now_ns())
        transaction.index += 1
        transaction.per_table["message"] = in_table = transaction.per_table.get("message", 0) + 1
        if transaction.index <= transaction.written_up_to:
            return
        commit_us = self._commit_us if message.transactional else self._now_ns() // 1000
        xid = self._xid if message.transactional else None
        source = self._messages.of_transaction(commit_us, xid, self.last_commit) % (lsn, lsn)
        prefix = json_text(message.prefix)
        value = (
            b'{"op":"m","ts_ms":%d,"source":%b,"transaction":{"id":%b,"total_order":%d,"data_collection_order":%d},'
            b'"message":{"prefix":%b,"content":"%b"}}'
        ) % (
            transaction.now_ns // 1_000_000,
            source,
            transaction.id_json,
            transaction.index,
            in_table,
            prefix,
            b64encode(message.content),
        )
        self.out.add(f"{self._options.topic_prefix}.message", b'{"prefix":%b}' % prefix, value)
