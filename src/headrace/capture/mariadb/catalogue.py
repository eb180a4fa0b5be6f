"""What the server's catalogue says: its settings, the tables to capture, their columns and keys, and which they are.

All tables are asked for with three queries, however many there are.

A table's **identity** is InnoDB's number of it (of each partition), or the time of its creation where the user may not
see that number. It changes when a table is made again under the same name, and also when an ALTER TABLE rebuilds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pymysql

from headrace.capture.mariadb.charsets import Charsets
from headrace.capture.mariadb.keys import KeyColumn, quoted
from headrace.capture.mariadb.values import Kind, kind_in_catalogue
from headrace.capture.options import CaptureOptions
from headrace.capture.source import DatabaseGone
from headrace.errors import UsageError

__all__ = ["Catalogue", "CatalogueColumn", "CatalogueTable", "Gtids", "gtid_text", "parse_gtids"]

Result = TypeVar("Result")
Gtids = dict[int, tuple[int, int]]
"""The last transaction of each domain: its server and number."""

NEEDED = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}
VERSIONED = "SYSTEM VERSIONED"
TRANSACTIONAL = ("InnoDB", "ROCKSDB")
NO_PRIVILEGE = 1227
TEXT_CONVERTERS = {kind: made for kind, made in pymysql.converters.conversions.items() if not isinstance(kind, int)}
"""For arguments of queries only: values come as the bytes that the server sends."""


def parse_gtids(text: str) -> Gtids:
    """``domain-server-number,…`` by domain."""
    found = {}
    for each in filter(None, text.split(",")):
        domain, server, number = (int(part) for part in each.strip().split("-"))
        found[domain] = server, number
    return found


def gtid_text(gtids: Mapping[int, tuple[int, int]]) -> str:
    return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(gtids.items()))


class CatalogueColumn(NamedTuple):
    """A row of information_schema.columns."""

    name: str
    data_type: str
    column_type: str
    scale: int | None
    fraction: int | None
    charset: str | None
    generation: str | None

    @property
    def kind(self) -> Kind:
        return kind_in_catalogue(self.data_type, self.column_type, self.scale, self.fraction)

    @property
    def key_column(self) -> KeyColumn:
        return KeyColumn(self.name, self.data_type, self.scale)

    @property
    def selected(self) -> str:
        """As it is read by a query. A FLOAT is shown with six digits, and as a double with all of them."""
        name = quoted(self.name)
        return f"cast({name} as double)" if self.data_type in ("float", "double") else name


@dataclass(frozen=True, slots=True)
class CatalogueTable:
    schema: str
    name: str
    engine: str
    rows_expected: int
    columns: tuple[CatalogueColumn, ...] = ()
    key: tuple[str, ...] = ()
    row_end: str | None = None
    """Of a system-versioned table: the column that tells current rows from history."""
    identity: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


class Catalogue:
    """A connection for questions; and others, for those who read rows."""

    def __init__(self, options: CaptureOptions) -> None:
        self.settings = connection_settings(options)
        self._options = options.qualified(self.settings["database"])
        self._connection = self.guarded(lambda: pymysql.connect(**self.settings, autocommit=True))
        self.charsets = Charsets(self._ask_apart)

    # ---- questions --------------------------------------------------------------------------------------------------

    def guarded(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except (pymysql.OperationalError, pymysql.InterfaceError, OSError) as error:
            code = error.args[0] if error.args else 0
            text = f"{self._options.database.shown}: {error.args[-1] if error.args else error}"
            if code in (1044, 1045, 1049):
                raise UsageError(text, "check user, password and database") from error
            raise DatabaseGone(text) from error

    def ask(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        def work() -> list[tuple[Any, ...]]:
            with self._connection.cursor() as cursor:
                cursor.execute(query, arguments or None)
                return list(cursor.fetchall())

        return self.guarded(work)

    def _ask_apart(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """On a separate connection: the thread that reads the binlog asks too."""

        def work() -> list[tuple[Any, ...]]:
            with pymysql.connect(**self.settings, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute(query, arguments or None)
                return list(cursor.fetchall())

        return self.guarded(work)

    def connect_for_rows(self) -> pymysql.Connection[Any]:
        """Values come as bytes, texts in the character set of their column."""
        made = pymysql.connect(**self.settings, autocommit=True, use_unicode=False, conv=TEXT_CONVERTERS)
        with made.cursor() as cursor:
            cursor.execute("set character_set_results = null")
            cursor.execute("set session transaction isolation level repeatable read")
        return made

    def gtids(self) -> Gtids:
        return parse_gtids(self.ask("select @@gtid_binlog_pos")[0][0])

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    # ---- the server -------------------------------------------------------------------------------------------------

    def check_server(self) -> None:
        version = self.ask("select version()")[0][0]
        if "mariadb" not in version.lower():
            raise UsageError(
                f"the server is MySQL {version}: its GTIDs, its JSON and its snapshots differ, and capture does not "
                "know them",
                "capture follows MariaDB 10.5 or newer; for MySQL, Debezium writes the same events",
            )
        names = ", ".join(f"'{name}'" for name in NEEDED)
        values = dict(self.ask(f"show global variables where variable_name in ({names})"))
        for name, wanted in NEEDED.items():
            if values.get(name, "").upper() != wanted:
                cure = f"SET GLOBAL {name} = '{wanted}'" if name != "log_bin" else "start the server with --log-bin"
                raise UsageError(f"the server's {name} is {values.get(name)}, and capture needs {wanted}", cure)
        self._check_rights()

    def _check_rights(self) -> None:
        def work() -> list[tuple[Any, ...]]:
            with self._connection.cursor() as cursor:
                cursor.execute("show master status")
                return list(cursor.fetchall())

        try:
            ((_, _, included, excluded),) = work()
        except pymysql.OperationalError as error:
            user = "'{}'@'{}'".format(*self.ask("select current_user()")[0][0].rsplit("@", 1))
            grant = f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {user}"
            raise UsageError(f"{user} has no right to read the binlog: {error.args[-1]}", grant) from error
        schema = self.settings["database"]
        if schema in excluded.split(",") or (included and schema not in included.split(",")):
            raise UsageError(
                f"the server leaves {schema} out of its binlog (binlog_do_db={included}, binlog_ignore_db={excluded})",
                "start the server without these settings",
            )

    def check_prepared(self) -> None:
        """What is prepared now has its rows in the binlog already, and no snapshot sees them before its commit."""
        if prepared := self.ask("xa recover"):
            raise UsageError(
                f"{len(prepared)} XA transactions are prepared, and a snapshot would miss what they change",
                "XA COMMIT or XA ROLLBACK what XA RECOVER shows, then run again",
            )

    # ---- tables -----------------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, CatalogueTable]:
        """All tables of the database that are captured, by their full names."""
        schema = self.settings["database"]
        rows = self.ask(
            "select table_name, table_type, engine, table_rows, create_time from information_schema.tables "
            f"where table_schema = %s and table_type in ('BASE TABLE', '{VERSIONED}') order by 1",
            schema,
        )
        chosen = [row for row in rows if self._options.selects(f"{schema}.{row[0]}")]
        columns, keys, numbers = self._columns(schema), self._keys(schema), self._numbers()
        found = {}
        for name, table_type, engine, expected, created in chosen:
            row_end = _row_end(columns.get(name, ())) if table_type == VERSIONED else None
            key = tuple(each for each in keys.get(name, ()) if each != row_end)
            identity = numbers.get(name, f"time {created}")
            made = (engine or "", int(expected or 0), tuple(columns.get(name, ())), key, row_end, identity)
            found[f"{schema}.{name}"] = CatalogueTable(schema, name, *made)
        return found

    def table(self, name: str) -> CatalogueTable | None:
        """One table; None: it is not there."""
        schema, _, table = name.partition(".")
        rows = self.ask(
            "select table_type, engine, table_rows from information_schema.tables "
            f"where table_schema = %s and table_name = %s and table_type in ('BASE TABLE', '{VERSIONED}')",
            schema,
            table,
        )
        columns = self._columns(schema, table).get(table, [])
        if not rows or not columns:
            return None
        ((table_type, engine, expected),) = rows
        row_end = _row_end(columns) if table_type == VERSIONED else None
        key = tuple(each for each in self._keys(schema, table).get(table, ()) if each != row_end)
        return CatalogueTable(schema, table, engine or "", int(expected or 0), tuple(columns), key, row_end)

    def shape(self, name: str, row_end: str | None) -> tuple[tuple[CatalogueColumn, ...], tuple[str, ...]]:
        """Columns and key that a table has now, to compare them with those of a ``CatalogueTable``."""
        schema, _, table = name.partition(".")
        key = tuple(each for each in self._keys(schema, table).get(table, ()) if each != row_end)
        return tuple(self._columns(schema, table).get(table, ())), key

    def _columns(self, schema: str, table: str | None = None) -> dict[str, list[CatalogueColumn]]:
        rows = self.ask(
            "select table_name, column_name, data_type, column_type, numeric_scale, datetime_precision, "
            "character_set_name, generation_expression from information_schema.columns "
            f"where table_schema = %s{' and table_name = %s' if table else ''} order by table_name, ordinal_position",
            *((schema, table) if table else (schema,)),
        )
        found: dict[str, list[CatalogueColumn]] = {}
        for name, *column in rows:
            found.setdefault(name, []).append(CatalogueColumn(*column))
        return found

    def _keys(self, schema: str, table: str | None = None) -> dict[str, list[str]]:
        """The columns of each table's key: the primary one, else the first unique index that can be one.

        So does the server, which writes that index as the key into the binlog. Indexes come in its order.
        """
        rows = self.ask(
            "select table_name, index_name, column_name, "
            "nullable = 'YES' or sub_part is not null or index_type = 'HASH' from information_schema.statistics "
            f"where non_unique = 0 and table_schema = %s{' and table_name = %s' if table else ''}",
            *((schema, table) if table else (schema,)),
        )
        indexes: dict[str, dict[str, list[tuple[str, bool]]]] = {}
        for name, index, column, is_unfit in rows:
            indexes.setdefault(name, {}).setdefault(index, []).append((column, bool(is_unfit)))
        found: dict[str, list[str]] = {}
        for name, of_table in indexes.items():
            for index, columns in of_table.items():
                if index == "PRIMARY" or not any(is_unfit for _, is_unfit in columns):
                    found[name] = [column for column, _ in columns]
                    break
        return found

    def identities(self) -> dict[str, str]:
        """The identity of every table that is captured."""
        schema = self.settings["database"]
        rows = self.ask(
            "select table_name, create_time from information_schema.tables "
            f"where table_schema = %s and table_type in ('BASE TABLE', '{VERSIONED}')",
            schema,
        )
        numbers = self._numbers()
        return {
            f"{schema}.{name}": numbers.get(name, f"time {created}")
            for name, created in rows
            if self._options.selects(f"{schema}.{name}")
        }

    def _numbers(self) -> dict[str, str]:
        """InnoDB's numbers of tables and their partitions by the name of the table; none without the right to see."""
        schema = self.settings["database"]
        names = self.ask(
            "select table_name, cast(convert(table_name using filename) as binary), "
            "cast(convert(table_schema using filename) as binary) from information_schema.tables "
            "where table_schema = %s",
            schema,
        )
        if not names:
            return {}
        by_file = {encoded.decode(): name for name, encoded, _ in names}
        try:
            with self._connection.cursor() as cursor:
                folder = names[0][2].decode().replace("_", "\\_")
                query = "select name, table_id from information_schema.innodb_sys_tables where name like %s"
                cursor.execute(query, (f"{folder}/%",))
                rows = list(cursor.fetchall())
        except (pymysql.OperationalError, pymysql.InterfaceError, OSError) as error:
            if not error.args or error.args[0] != NO_PRIVILEGE:
                raise DatabaseGone(f"{self._options.database.shown}: {error}") from error
            return {}
        found: dict[str, list[int]] = {}
        for file, number in rows:
            name = by_file.get(file.partition("/")[2].partition("#P#")[0])
            if name is not None:
                found.setdefault(name, []).append(number)
        return {name: "id " + ",".join(map(str, sorted(each))) for name, each in found.items()}

    def references(self) -> list[tuple[str, str, str, str, bool, bool]]:
        """Foreign keys that change rows: parent's schema, table and column, child, on deletion, on update."""
        rows = self.ask(
            "select k.referenced_table_schema, k.referenced_table_name, k.referenced_column_name, k.table_name, "
            "r.delete_rule in ('CASCADE', 'SET NULL'), r.update_rule in ('CASCADE', 'SET NULL') "
            "from information_schema.referential_constraints r join information_schema.key_column_usage k "
            "on k.constraint_schema = r.constraint_schema and k.constraint_name = r.constraint_name "
            "and k.table_name = r.table_name where r.constraint_schema = %s and k.table_schema = %s "
            "and k.referenced_table_name is not null",
            self.settings["database"],
            self.settings["database"],
        )
        return [(*row[:4], bool(row[4]), bool(row[5])) for row in rows if row[4] or row[5]]

    def may_be_changed_through(self, names: frozenset[str]) -> bool:
        """Whether one of the names is a view, a routine, or a table whose triggers or references change others."""
        marks = ", ".join(["%s"] * len(names))
        queries = [
            f"select 1 from information_schema.views where table_name in ({marks})",
            f"select 1 from information_schema.routines where routine_name in ({marks})",
            f"select 1 from information_schema.triggers where event_object_table in ({marks})",
            "select 1 from information_schema.referential_constraints where "
            f"(delete_rule in ('CASCADE', 'SET NULL') or update_rule in ('CASCADE', 'SET NULL')) "
            f"and referenced_table_name in ({marks})",
        ]
        return any(self.ask(f"{each} limit 1", *names) for each in queries)


def _row_end(columns: Sequence[CatalogueColumn]) -> str:
    return next((each.name for each in columns if (each.generation or "").upper() == "ROW END"), "row_end")


def fetched(connection: pymysql.Connection[Any], query: str, arguments: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Rows one by one as they come. A sign for percent is doubled in the query, with arguments or without."""
    with connection.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(query, tuple(arguments))
        yield from cursor


def connection_settings(options: CaptureOptions) -> dict[str, Any]:
    parts = urlsplit(options.database.resolved())
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise UsageError(f"{options.database.shown} names no database", "use mysql://USER@HOST:PORT/DATABASE")
    return {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
        "charset": "utf8mb4",
        "connect_timeout": 10,
        "init_command": "set time_zone = '+00:00'",
    }
