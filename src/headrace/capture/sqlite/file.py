"""A SQLite file as capture uses it: one connection, errors that say whether waiting helps, and the catalogue."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.capture.source import DatabaseGone, DatabaseMissing
from headrace.capture.sqlite.values import text_or_bytes
from headrace.errors import BadArgument, UsageError

__all__ = ["SqliteFile", "TableInfo", "UniqueIndex", "literal", "quoted"]

LOCK_TIMEOUT_S = 30.0
VERSION_MIN = (3, 37, 0)
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_SCHEMA,
}
_HINTS = {
    sqlite3.SQLITE_READONLY: "capture makes triggers and a table of changes, so it must be allowed to write the file "
    "and its folder",
    sqlite3.SQLITE_NOTADB: "give the file of a SQLite database",
    sqlite3.SQLITE_CORRUPT: "run PRAGMA integrity_check, and restore the file from a backup",
}
_ROWIDS = ("rowid", "oid", "_rowid_")
_ORDER = re.compile(r"\s+(asc|desc)\s*$", re.IGNORECASE)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """What a row must not share with another: SQL of its terms over the table's columns, and of its condition."""

    terms: tuple[str, ...]
    condition: str = ""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as the catalogue shows it. ``rowid`` is a name by which its rowids can be asked for, if it has any."""

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]
    rowid: str | None
    key_is_rowid: bool
    unique: tuple[UniqueIndex, ...]
    filled: tuple[str, ...] = ()
    """Columns that, once added, have a value in rows from before: with a default, and generated ones."""
    key_terms: tuple[str, ...] = ()
    """The key as the index of it compares: in a collation that need not be the columns' own."""


class SqliteFile:
    """One connection to one file; see the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise DatabaseMissing(
                f"there is no file {path}",
                "use sqlite:///FILE, or sqlite:////FILE for a whole path; if the file was moved, give its new "
                "address with 'headrace capture add'",
            )
        if path.is_dir():
            raise BadArgument(f"{path} is a folder", "give the file of a SQLite database: sqlite:///FILE")
        if sqlite3.sqlite_version_info < VERSION_MIN:
            raise UsageError(
                f"this Python has SQLite {sqlite3.sqlite_version}, which is too old for capture",
                "use one with SQLite 3.37 or newer",
            )
        self._identity = self._file_identity()
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=LOCK_TIMEOUT_S)
        self.connection.text_factory = text_or_bytes

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def check_same(self) -> None:
        """Another file may have been moved to the path; the connection would go on reading the old one."""
        if self._file_identity() != self._identity:
            raise DatabaseGone(f"{self.path} was moved or deleted, or another file is there now")

    # ---- statements -------------------------------------------------------------------------------------------------

    def run(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._explained():
            return self.connection.execute(statement, arguments).fetchall()

    def one(self, statement: str, *arguments: Any) -> Any:
        rows = self.run(statement, *arguments)
        return rows[0][0] if rows else None

    def each(self, statement: str, *arguments: Any) -> Generator[tuple[Any, ...], None, None]:
        """Rows one by one, for those that may be large; a caller that leaves early closes it."""
        with self._explained(), closing(self.connection.execute(statement, arguments)) as rows:
            yield from rows

    def try_run(self, statement: str, *arguments: Any) -> bool:
        """Run it unless somebody else is writing at this moment; True: it has run."""
        self.run("pragma busy_timeout = 0")
        try:
            self.connection.execute(statement, arguments).close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return False
            raise self._error(error) from error
        finally:
            self.run(f"pragma busy_timeout = {int(LOCK_TIMEOUT_S * 1000)}")
        return True

    @contextmanager
    def transaction(self, begin: str = "begin") -> Iterator[None]:
        self.run(begin)
        try:
            yield
            self.run("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                if self.connection.in_transaction:
                    self.connection.execute("rollback")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _PASSING:
            return DatabaseGone(f"{self.path}: {error}")
        return UsageError(f"{self.path}: {error}", _HINTS.get(code, "capture cannot go on before this is solved"))

    # ---- the catalogue ----------------------------------------------------------------------------------------------

    @property
    def schema_version(self) -> int:
        return int(self.one("pragma schema_version"))

    @property
    def encoding(self) -> str:
        return str(self.one("pragma encoding"))

    def table_kinds(self) -> dict[str, str]:
        """Every table by name: table, virtual or shadow."""
        query = (
            "select name, type from pragma_table_list where schema = 'main' and type <> 'view' "
            "and name not like 'sqlite\\_%' escape '\\' and name not like '\\_headrace\\_%' escape '\\' order by name"
        )
        return dict(self.run(query))

    def tables(self, names: Sequence[str]) -> dict[str, TableInfo]:
        """Several tables; asked for one by one, SQLite would list all tables for each."""
        without_rowid = dict(self.run("select name, wr from pragma_table_list where schema = 'main'"))
        return {name: self._table(name, without_rowid=bool(without_rowid.get(name))) for name in names}

    def table(self, name: str) -> TableInfo:
        return self.tables([name])[name]

    def _table(self, name: str, *, without_rowid: bool) -> TableInfo:
        query = "select name, type, pk, dflt_value, hidden from pragma_table_xinfo(?) where hidden <> 1 order by cid"
        rows = self.run(query, name)
        key = tuple(row[0] for row in sorted((row for row in rows if row[2]), key=lambda row: int(row[2])))
        taken = {row[0].lower() for row in rows}
        rowid = None if without_rowid else next((each for each in _ROWIDS if each not in taken), None)
        indexes = self.run('select name, origin, partial from pragma_index_list(?) where "unique" order by seq', name)
        types = {row[0]: row[1] for row in rows}
        has_index = any(origin == "pk" for _, origin, _ in indexes)
        key_is_rowid = len(key) == 1 and types[key[0]].upper() == "INTEGER" and not without_rowid and not has_index
        return TableInfo(
            name,
            tuple(types),
            tuple(types.values()),
            key,
            key[0] if key_is_rowid else rowid,
            key_is_rowid,
            tuple(self._unique_index(each) for each, _, _ in indexes),
            tuple(row[0] for row in rows if row[4] or (row[3] or "null").lower() != "null"),
            next((self._unique_index(each).terms for each, origin, _ in indexes if origin == "pk"), ()),
        )

    def _unique_index(self, name: str) -> UniqueIndex:
        parts = self.run("select cid, name, coll from pragma_index_xinfo(?) where key order by seqno", name)
        text = self.one("select sql from sqlite_schema where type = 'index' and name = ?", name) or ""
        written, condition = _index_parts(text) if text else ([], "")
        terms = [
            f"({_ORDER.sub('', written[place])})" if cid == -2 else f"{quoted(column)} collate {quoted(collation)}"
            for place, (cid, column, collation) in enumerate(parts)
        ]
        return UniqueIndex(tuple(terms), condition)


def _index_parts(text: str) -> tuple[list[str], str]:
    """The terms of ``CREATE INDEX … ON table (term, …) WHERE condition``, and the condition."""
    terms: list[str] = []
    depth, start, place = 0, 0, 0
    closing_of = {"'": "'", '"': '"', "`": "`", "[": "]"}
    while place < len(text):
        character = text[place]
        if character in closing_of:
            place = text.index(closing_of[character], place + 1)
        elif text.startswith("--", place):
            place = text.find("\n", place) % (len(text) + 1)
        elif text.startswith("/*", place):
            place = text.index("*/", place) + 1
        elif character == "(":
            depth += 1
            start = place + 1 if depth == 1 else start
        elif character in ",)" and depth == 1:
            terms.append(text[start:place].strip())
            start = place + 1
            depth -= character == ")"
            if depth == 0:
                return terms, re.sub(r"^\s*where\s", "", text[place + 1 :], flags=re.IGNORECASE).strip()
        elif character == ")":
            depth -= 1
        place += 1
    return terms, ""
