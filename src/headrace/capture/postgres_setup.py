"""What capture needs of a PostgreSQL server: checked, made where it may be, and explained where it may not.

Publications are made for the chosen tables. A table whose old rows cannot be identified (no primary key, replica
identity default or nothing) goes into a second publication of insertions only: published with updates, the server would
refuse *the application's own* updates and deletions of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import psycopg
from psycopg import errors, sql

from headrace.capture.options import CaptureOptions
from headrace.capture.pgoutput import RelationColumn
from headrace.capture.postgres_values import SESSION_OPTIONS, PgType
from headrace.capture.source import DatabaseGone, PositionLost
from headrace.errors import UsageError

__all__ = ["PostgresSetup", "connect", "lsn_number", "lsn_text"]

VERSION_MIN = 140_000
SLOT_RELEASE_TIMEOUT_S = 30.0
COUNTED_BYTES_MAX = 64 * 1024 * 1024
ROW_BYTES_GUESSED = 100
Connection = psycopg.Connection[tuple[Any, ...]]

TABLES = """
select n.nspname, c.relname, c.relreplident::text, c.reltuples::bigint,
       coalesce((select array_agg(a.attname::text order by array_position(i.indkey::int2[], a.attnum))
                 from pg_index i join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)
                 where i.indrelid = c.oid and i.indisprimary), '{}') as key,
       format('%I.%I', n.nspname, c.relname)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
  and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_toast%'
  and n.nspname not like '\\_headrace\\_%'
  and has_table_privilege(c.oid, 'select')
order by 1, 2
"""
COLUMNS = """
select a.attname, a.atttypid::bigint, a.atttypmod, false
from pg_attribute a
where a.attrelid = format('%%I.%%I', %s::text, %s::text)::regclass and a.attnum > 0 and not a.attisdropped
  and a.attgenerated = ''
order by a.attnum
"""
TYPES = """
select oid::bigint, typname, typtype::text, typcategory::text, typbasetype::bigint, typelem::bigint, typtypmod
from pg_type
"""


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def connect(options: CaptureOptions, *, replication: bool = False) -> Connection:
    """A connection whose texts are those that ``postgres_values`` reads."""
    extra: dict[str, Any] = {"replication": "database"} if replication else {}
    try:
        return psycopg.connect(
            options.database.resolved(),
            autocommit=True,
            options=SESSION_OPTIONS,
            application_name=f"headrace-capture-{options.name}",
            client_encoding="UTF8",
            connect_timeout=10,
            **extra,
        )
    except psycopg.OperationalError as error:
        raise _explained(error, options) from error
    except psycopg.ProgrammingError as error:
        raise UsageError(
            f"{options.database.shown} is no address of a PostgreSQL server",
            "use postgresql://USER@HOST:PORT/DATABASE; other characters in a password are written as %XX",
        ) from error


def _explained(error: psycopg.OperationalError, options: CaptureOptions) -> Exception:
    text = " ".join(str(error).split())
    user = psycopg.conninfo.conninfo_to_dict(options.database.resolved()).get("user", "USER")
    if "permission denied to start WAL sender" in text or "must be superuser or replication role" in text:
        return _no_right(str(user))
    if "password authentication failed" in text or "does not exist" in text or "pg_hba.conf" in text:
        return UsageError(f"{options.database.shown}: {text}", "check user, password, database and pg_hba.conf")
    return DatabaseGone(f"{options.database.shown}: {text}")


def _no_right(user: str) -> UsageError:
    return UsageError(
        f"{user} has no right to replicate", f"ALTER ROLE {user} REPLICATION; or capture without it, with --triggers"
    )


class TableInfo:
    """A table as the catalogue shows it."""

    __slots__ = ("identity", "key", "name", "quoted", "rows_estimated", "schema")

    def __init__(self, schema: str, name: str, identity: str, rows_estimated: int, key: list[str], quoted: str) -> None:
        self.schema = schema
        self.name = name
        self.identity = identity
        self.rows_estimated = rows_estimated
        self.key = key
        self.quoted = quoted
        """Its full name as the server itself writes it."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def changes_identifiable(self) -> bool:
        return self.identity in "fi" or (self.identity == "d" and bool(self.key))

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


class PostgresSetup:
    """Asks and prepares one server through one ordinary connection."""

    def __init__(self, connection: Connection, options: CaptureOptions) -> None:
        self.connection = connection
        self._options = options
        self.slot = f"headrace_{options.name}"
        self.publications = (f"headrace_{options.name}", f"headrace_{options.name}_inserts")

    def one(self, query: str, *arguments: object) -> Any:
        row = self.connection.execute(query, arguments or None).fetchone()
        return None if row is None else row[0]

    # ---- asking -----------------------------------------------------------------------------------------------------

    def check_server(self) -> None:
        version = self.connection.info.server_version
        if version < VERSION_MIN:
            raise UsageError(f"PostgreSQL {version // 10000} is too old for capture", "it needs version 14 or newer")
        level = self.one("show wal_level")
        if level != "logical":
            raise UsageError(
                f"the server's wal_level is {level}, and capture needs logical",
                "ALTER SYSTEM SET wal_level = 'logical', then restart the server; or capture with --triggers",
            )
        may = self.one("select rolsuper or rolreplication from pg_roles where rolname = current_user")
        if not may and not self._is_replication_member():
            user = self.one("select current_user")
            raise _no_right(user)

    def _is_replication_member(self) -> bool:
        """Managed services give the right through a role of theirs."""
        roles = "select exists (select from pg_roles where rolname = 'rds_replication' and pg_has_role(oid, 'member'))"
        return bool(self.one(roles))

    def all_tables(self) -> dict[str, TableInfo]:
        """Every table that the user may read, by full name."""
        tables = [TableInfo(*row) for row in self.connection.execute(TABLES).fetchall()]
        return {each.full_name: each for each in tables}

    def tables(self) -> dict[str, TableInfo]:
        """The tables to capture; those that were asked for and are not there are an error."""
        found = self.all_tables()
        chosen = set(self._options.tables)
        if self._options.outbox and chosen:
            chosen.add(self._options.outbox)
        missing = sorted(chosen - found.keys())
        if missing:
            raise UsageError(
                f"there is no table {', '.join(missing)} that the user may read",
                f"GRANT SELECT ON {missing[0]} TO CURRENT_USER; or choose others with --tables",
            )
        return {name: table for name, table in found.items() if not chosen or name in chosen}

    def columns(self, table: TableInfo) -> list[RelationColumn]:
        rows = self.connection.execute(COLUMNS, (table.schema, table.name)).fetchall()
        return [RelationColumn(*row) for row in rows]

    def rows_expected(self, table: TableInfo) -> int:
        """The server's own estimate; a table that it has never looked at is counted where that is quick."""
        if table.rows_estimated >= 0:
            return table.rows_estimated
        size = sql.SQL("select pg_relation_size({}::regclass)").format(sql.Literal(table.identifier.as_string()))
        (pages_bytes,) = self.connection.execute(size).fetchone() or (0,)
        if pages_bytes > COUNTED_BYTES_MAX:
            return int(pages_bytes) // ROW_BYTES_GUESSED
        (count,) = self.connection.execute(sql.SQL("select count(*) from {}").format(table.identifier)).fetchone() or (
            0,
        )
        return int(count)

    def types(self) -> dict[int, PgType]:
        return {row[0]: PgType(*row) for row in self.connection.execute(TYPES).fetchall()}

    def current_lsn(self) -> int:
        return lsn_number(self.one("select pg_current_wal_lsn()::text"))

    def inserted_lsn(self) -> int:
        """Behind everything that anybody can see by now; a commit that does not wait is seen before it is written."""
        return lsn_number(self.one("select pg_current_wal_insert_lsn()::text"))

    def slot_state(self) -> dict[str, Any] | None:
        """The slot as the server shows it; None when there is none."""
        query = (
            "select coalesce(confirmed_flush_lsn, '0/0')::text, active_pid, wal_status,"
            " pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,"
            " pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint"
            " from pg_replication_slots where slot_name = %s"
        )
        row = self.connection.execute(query, (self.slot,)).fetchone()
        if row is None:
            return None
        names = ("confirmed", "active_pid", "wal_status", "retained_bytes", "lag_bytes")
        return {**dict(zip(names, row, strict=True)), "confirmed": lsn_number(row[0])}

    # ---- preparing --------------------------------------------------------------------------------------------------

    def publish(self, tables: Sequence[TableInfo]) -> None:
        """Make the publications hold exactly these tables.

        Both exist from before the slot on, even empty: a stream that names a publication fails where it passes through
        a time at which that did not exist.
        """
        whole = {each.full_name: each.identifier for each in tables if each.changes_identifiable}
        inserts = {each.full_name: each.identifier for each in tables if not each.changes_identifiable}
        self._publication(self.publications[0], "insert, update, delete, truncate")
        self._publication(self.publications[1], "insert, truncate")
        # A table leaves one before it enters the other: in both, its updates would be refused.
        for name, wanted in zip(self.publications, (whole, inserts), strict=True):
            gone = [each for each in self._published_in(name).items() if each[0] not in wanted]
            self._alter(name, "DROP", dict(gone))
        for name, wanted in zip(self.publications, (whole, inserts), strict=True):
            held = self._published_in(name)
            self._alter(name, "ADD", {each: table for each, table in wanted.items() if each not in held})

    def _published_in(self, publication: str) -> dict[str, sql.Identifier]:
        query = "select schemaname, tablename from pg_publication_tables where pubname = %s"
        rows = self.connection.execute(query, (publication,)).fetchall()
        return {f"{schema}.{table}": sql.Identifier(schema, table) for schema, table in rows}

    def _publication(self, name: str, operations: str) -> None:
        if self.one("select true from pg_publication where pubname = %s", name):
            return
        create = sql.SQL("CREATE PUBLICATION {} WITH (publish = {}, publish_via_partition_root = true)")
        self._execute(create.format(sql.Identifier(name), sql.Literal(operations)))

    def _alter(self, name: str, verb: Literal["ADD", "DROP"], tables: dict[str, sql.Identifier]) -> None:
        if tables:
            names = sql.SQL(", ").join(tables.values())
            self._execute(
                sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(sql.Identifier(name), sql.SQL(verb), names)
            )

    def _execute(self, statement: sql.Composed) -> None:
        try:
            self.connection.execute(statement)
        except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as error:
            text = statement.as_string(self.connection)
            raise UsageError(
                f"the user may not change what is published: {error}", f"let its owner run: {text}"
            ) from error

    def create_slot(self) -> int:
        """Changes are kept from here on. The server waits for the transactions that are under way."""
        try:
            return lsn_number(
                self.one("select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput')", self.slot)
            )
        except errors.ConfigurationLimitExceeded as error:
            raise UsageError(
                f"the server has no replication slot left: {error.diag.message_primary}",
                "raise max_replication_slots, or drop one: select slot_name, active from pg_replication_slots",
            ) from error
        except errors.InsufficientPrivilege as error:
            user = self.one("select current_user")
            raise _no_right(user) from error

    def drop_slot(self) -> bool:
        if self.slot_state() is None:
            return False
        self.release_slot()
        self.connection.execute("select pg_drop_replication_slot(%s)", (self.slot,))
        return True

    def release_slot(self) -> None:
        """End whoever still streams from the slot: capture has taken over the name, so it can write no more."""
        deadline = time.monotonic() + SLOT_RELEASE_TIMEOUT_S
        while (state := self.slot_state()) is not None and state["active_pid"] is not None:
            if time.monotonic() > deadline:
                raise DatabaseGone(f"slot {self.slot} is still held by process {state['active_pid']} of the server")
            try:
                self.connection.execute("select pg_terminate_backend(%s)", (state["active_pid"],))
            except errors.InsufficientPrivilege:
                pass  # it ends by itself once its connection is found dead
            time.sleep(0.05)

    def drop_publications(self) -> list[str]:
        query = "select pubname from pg_publication where pubname = any(%s) order by 1"
        dropped = [row[0] for row in self.connection.execute(query, (list(self.publications),)).fetchall()]
        for name in dropped:
            self.connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
        return dropped

    def check_slot(self, slot: dict[str, Any] | None, lsn: int) -> None:
        """The slot must still have everything behind the position in the log."""
        again = f"take a new snapshot: headrace capture run {self._options.name} --resnapshot"
        if slot is None:
            raise PositionLost(
                f"replication slot {self.slot} is gone, and with it the changes behind {lsn_text(lsn)}; {again}"
            )
        if slot["wal_status"] == "lost":
            raise PositionLost(
                f"the server has removed changes behind {lsn_text(lsn)} that slot {self.slot} needed "
                f"(max_slot_wal_keep_size); {again}"
            )
        if slot["confirmed"] > lsn:
            raise PositionLost(
                f"slot {self.slot} was moved to {lsn_text(slot['confirmed'])} by somebody else; the log has changes "
                f"up to {lsn_text(lsn)}, so what lies between is missing; {again}"
            )
