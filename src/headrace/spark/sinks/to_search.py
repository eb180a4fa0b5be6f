"""A search index in a file: SQLite's FTS5, the embedded default, and its query helper.

An index is two tables that change in one transaction: the rows, as ``to_sql`` keeps them, and an FTS5 table of their
text columns. Triggers carry each change over, so whoever writes rows keeps the index true, also by hand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.errors import UsageError
from headrace.spark.sinks.address import Address
from headrace.spark.sinks.sql_sqlite import Sqlite, sqlite_file
from headrace.spark.sinks.target import Version
from headrace.spark.sinks.to_sql import NEW, Dialect, SqlSession, SqlTarget, TableName, connect

__all__ = ["SearchTarget", "find_in_file"]

FTS = "__fts"
TOKENIZERS = {"words": "unicode61 remove_diacritics 2", "parts": "trigram"}
"""Whole words, without regard to case and accents; or any three letters in a row, for parts of words."""


@dataclass(frozen=True, slots=True)
class SearchTarget(SqlTarget):
    """``text``: the columns that are searched; all columns of text without it."""

    text: tuple[str, ...] = ()
    match: str = "words"

    def __post_init__(self) -> None:
        if not self.key:
            raise UsageError(f"{self.shown} needs to know what rows are known by", "key=…")
        if self.match not in TOKENIZERS:
            raise UsageError(f"match={self.match!r} must be one of {', '.join(TOKENIZERS)}")

    @property
    def shown(self) -> str:
        return f"index {self.name} at {self.address.shown}"

    def open(self) -> SearchSession:
        return SearchSession(self, connect(self.address, self.shown))

    def version(self) -> Version:
        beside = replace(self, name=self.name.beside(self.name.name + NEW))
        return Version(beside, lambda: self._with(SqlSession.begin_version), lambda: self._with(SqlSession.switch))


class SearchSession(SqlSession):
    def __init__(self, target: SearchTarget, dialect: Dialect) -> None:
        assert isinstance(dialect, Sqlite), "an index in a file is SQLite's"
        super().__init__(target, _Indexed(dialect, target))

    def fit(self, schema: pa.Schema) -> None:
        super().fit(schema)
        assert isinstance(self.dialect, _Indexed)
        self.dialect.make_index(self.target.name, schema)


class _Indexed(Sqlite):
    """SQLite, which looks after the index of a table besides the table."""

    def __init__(self, plain: Sqlite, target: SearchTarget) -> None:
        self._connection = plain._connection
        self._target = target

    def make_index(self, table: TableName, schema: pa.Schema) -> None:
        if self.columns(table.beside(table.name + FTS)):
            return
        texts = [each.name for each in schema if pa.types.is_string(each.type) or pa.types.is_large_string(each.type)]
        names = self._target.text or texts
        missing = [name for name in names if name not in schema.names]
        if missing or not names:
            raise UsageError(f"there is no column {(missing or ['of text'])[0]!r} to search in", f"in {schema.names}")
        self.run("BEGIN IMMEDIATE")
        try:
            self._create_fts(table, names)
            self.make_triggers(table, names)
            self.run("COMMIT")
        except BaseException:
            self.run("ROLLBACK")
            raise

    def _create_fts(self, table: TableName, names: Sequence[str]) -> None:
        fts, tokens = self.table(table.beside(table.name + FTS)), TOKENIZERS[self._target.match]
        self.run(f"CREATE VIRTUAL TABLE {fts} USING fts5({self.names(names)}, tokenize = '{tokens}')")
        columns = self.names(names)
        self.run(f"INSERT INTO {fts} (rowid, {columns}) SELECT rowid, {columns} FROM {self.table(table)}")

    def make_triggers(self, table: TableName, names: Sequence[str]) -> None:
        """Updates are told from insertions by SQLite itself, also those that an upsert became."""
        rows, fts, columns = self.table(table), self.quote(table.name + FTS), self.names(names)
        news = self.names(names, "new.")
        insert = f"INSERT INTO {fts} (rowid, {columns}) VALUES (new.rowid, {news});"
        update = f"UPDATE {fts} SET ({columns}) = ({news}) WHERE rowid = new.rowid;"
        if len(names) == 1:
            update = f"UPDATE {fts} SET {columns} = {news} WHERE rowid = new.rowid;"
        delete = f"DELETE FROM {fts} WHERE rowid = old.rowid;"
        for event, body in (("insert", insert), ("update", update), ("delete", delete)):
            name = self.quote(f"{table.name}{FTS}_{event}")
            self.run(f"CREATE TRIGGER {name} AFTER {event.upper()} ON {rows} BEGIN {body} END")

    def _drop_triggers(self, table: TableName) -> None:
        for event in ("insert", "update", "delete"):
            self.run(f"DROP TRIGGER IF EXISTS {self.quote(f'{table.name}{FTS}_{event}')}")

    def create_like(self, new: TableName, old: TableName) -> None:
        self.run(f"DROP TABLE IF EXISTS {self.table(new.beside(new.name + FTS))}")
        super().create_like(new, old)

    def swap(self, table: TableName, new: TableName, old: TableName) -> None:
        """Triggers name the tables they belong to, so they are made again under the final names."""
        index, fresh = table.beside(table.name + FTS), new.beside(new.name + FTS)
        names = list(self.columns(fresh))
        for each in (table, new):
            self._drop_triggers(each)
        self.run(f"DROP TABLE IF EXISTS {self.table(index)}")
        super().swap(table, new, old)
        self.rename(fresh, index)
        self.make_triggers(table, names)


def find_in_file(address: Address, index: str, text: str, limit: int) -> list[dict[str, Any]]:
    """The rows that match, best first. ``text`` is in FTS5's language: words, "phrases", AND OR NOT, prefix*."""
    name = TableName.of(index).name
    rows, fts = (_quoted(each) for each in (name, name + FTS))
    statement = (
        f"SELECT r.*, -bm25({fts}) AS score, snippet({fts}, -1, '[', ']', '…', 12) AS snippet "
        f"FROM {fts} JOIN {rows} AS r ON r.rowid = {fts}.rowid WHERE {fts} MATCH ? ORDER BY bm25({fts}) LIMIT ?"
    )
    path = sqlite_file(address)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            found = connection.execute(statement, (text, limit))
            names = [each[0] for each in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]
        except sqlite3.OperationalError as error:
            hint = 'words, "a phrase", AND, OR, NOT, prefix*'
            raise UsageError(
                f"index {name} at {address.shown} cannot be searched for {text!r}: {error}", hint
            ) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
