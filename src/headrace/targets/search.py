"""A search index in a file: SQLite's FTS5, the embedded default, and its query helper.

An index is two tables that change in one transaction: the rows, as ``sql.table`` keeps them, and an FTS5 table of their
text columns. Entries of a chunk are removed and added by one statement each. Triggers would be simpler and ten times
slower: FTS5 writes out what it has gathered at the end of every statement that a trigger is part of.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from headrace.address import Address
from headrace.errors import UsageError
from headrace.targets.changes import Changes
from headrace.targets.sql.dialect import MARK, Dialect, Place, TableName
from headrace.targets.sql.sqlite import Sqlite, sqlite_file, tuples
from headrace.targets.sql.table import SqlSession, SqlTarget, connect

__all__ = ["SearchTarget", "find_in_file"]

FTS = "__fts"
KEYS = "headrace_keys"
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
        return SearchSession(self, self.connect())

    def connect(self) -> Dialect:
        plain = connect(self.address, self.shown)
        assert isinstance(plain, Sqlite), "an index in a file is SQLite's"
        return _Indexed(plain, self)


class SearchSession(SqlSession):
    def fit(self, schema: pa.Schema) -> None:
        super().fit(schema)
        assert isinstance(self.dialect, _Indexed)
        if not self.dialect.columns(self.target.name.beside(self.target.name.name + FTS)):
            with self.dialect.changing_tables():
                self.dialect.make_index(self.target.name, schema)


class _Indexed(Sqlite):
    """SQLite, which looks after the index of a table besides the table."""

    def __init__(self, plain: Sqlite, target: SearchTarget) -> None:
        self._connection = plain._connection
        self._target = target

    def make_index(self, table: TableName, schema: pa.Schema) -> None:
        fts = table.beside(table.name + FTS)
        if self.columns(fts):
            return
        texts = [each.name for each in schema if pa.types.is_string(each.type) or pa.types.is_large_string(each.type)]
        names = self._target.text or tuple(texts)
        missing = [name for name in names if name not in schema.names]
        if missing or not names:
            raise UsageError(f"there is no column {(missing or ['of text'])[0]!r} to search in", f"in {schema.names}")
        tokens = TOKENIZERS[self._target.match]
        self.run(f"CREATE VIRTUAL TABLE {self.table(fts)} USING fts5({self.names(names)}, tokenize = '{tokens}')")
        self._add_entries(table, "")

    def prepare(self, place: Place, names: Sequence[str]) -> None:
        super().prepare(place, names)
        columns = self.names(place.key)
        self.run(f"DROP TABLE IF EXISTS temp.{KEYS}")
        self.run(f"CREATE TEMPORARY TABLE {KEYS} AS SELECT {columns} FROM {self.table(place.table)} LIMIT 0")

    def load(self, place: Place, changes: Changes) -> None:
        with self._indexed(place, changes.rows):
            super().load(place, changes)

    def update(self, place: Place, rows: pa.Table) -> None:
        with self._indexed(place, rows):
            super().update(place, rows)

    def empty(self, place: Place) -> None:
        self.run(f"DELETE FROM {self.table(place.table.beside(place.table.name + FTS))}")
        super().empty(place)

    def purge(self, table: TableName) -> bool:
        """FTS5 only marks the words of deleted rows, and VACUUM copies them with the marks: so they are made again."""
        fts = self.table(table.beside(table.name + FTS))
        self.run(f"INSERT INTO {fts} ({fts}) VALUES ('rebuild')")
        return super().purge(table)

    @contextmanager
    def _indexed(self, place: Place, rows: pa.Table) -> Iterator[None]:
        """Entries are known by the row's number, which a deletion takes away: so they go first and come last."""
        self.run(f"DELETE FROM temp.{KEYS}")
        marks = ", ".join([MARK] * len(place.key))
        self.many(f"INSERT INTO temp.{KEYS} VALUES ({marks})", tuples(rows.select(list(place.key))))
        same = " AND ".join(f"r.{self.quote(each)} = k.{self.quote(each)}" for each in place.key)
        # Keys first and rows by their index: the planner cannot know that the keys are few.
        touched = f" FROM temp.{KEYS} AS k CROSS JOIN {self.table(place.table)} AS r ON {same}"
        fts = self.table(place.table.beside(place.table.name + FTS))
        self.run(f"DELETE FROM {fts} WHERE rowid IN (SELECT r.rowid{touched})")
        yield
        self._add_entries(place.table, touched)

    def _add_entries(self, table: TableName, touched: str) -> None:
        """Of the rows that were touched, or of all."""
        fts = table.beside(table.name + FTS)
        names = list(self.columns(fts))
        source = touched or f" FROM {self.table(table)} AS r"
        columns, values = self.names(names), self.names(names, "r.")
        self.run(f"INSERT INTO {self.table(fts)} (rowid, {columns}) SELECT r.rowid, {values}{source}")

    def replace_rows(self, place: Place, new: TableName, schema: pa.Schema | None) -> None:
        """Rows keep no numbers here, so all entries are made again, also for columns that were not searched before."""
        self.run(f"DROP TABLE IF EXISTS {self.table(place.table.beside(place.table.name + FTS))}")
        super().replace_rows(place, new, schema)
        if schema is not None:
            self.make_index(place.table, schema)


def find_in_file(address: Address, index: str, text: str, limit: int) -> list[dict[str, Any]]:
    """The rows that match, best first. ``text`` is in FTS5's language: words, "phrases", AND OR NOT, prefix*."""
    name = TableName.of(index).name
    rows, fts = (_quoted(each) for each in (name, name + FTS))
    statement = (
        f"SELECT r.*, -bm25({fts}) AS score, snippet({fts}, -1, '[', ']', '…', 12) AS snippet "
        f"FROM {fts} JOIN {rows} AS r ON r.rowid = {fts}.rowid WHERE {fts} MATCH ? ORDER BY bm25({fts}) LIMIT ?"
    )
    path = Path(sqlite_file(address))
    if not path.is_file():
        raise UsageError(f"index {name} at {address.shown}: there is no such file", "a sink of a pipeline makes it")
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=30)) as connection:
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
