"""The table into which triggers write every change of a PostgreSQL database: made, watched, read and emptied here.

    _headrace_<name>.changes    seq, xid, relation, operation, columns, old_row, new_row, at, depth

``seq`` counts changes as they are made, ``xid`` is their transaction's id in 64 bits. A row is the text of a record,
and ``columns`` its shape at that moment, so a schema may change between a change and its reading. Operations are c, u,
d and t, and g for a gap: changes are missing, and the table is read again (``columns`` then has
its schema and name). ``depth`` counts triggers within triggers.

**The function** is one for all tables and names no column: no change of a schema can make the application's own writes
fail. It runs as its owner, so writers need no rights for it, and with settings under which values have the texts
that ``values`` reads. Rows become text by ``format``, which never looks for a cast: one that the owner of a
table has made for its rows would run with our rights.

**The triggers' names** begin with a character that sorts before letters. Triggers of one event run by their names, and
one that changes the row again, such as a foreign key that cascades, must find the first change noted already. They end
with the number of their table, which is also their argument: a table that becomes another one's partition gets the
other's triggers beside its own, and its own are silent from then on.

**Rights.** Making a trigger takes the right TRIGGER, dropping one the ownership of its table; but what a schema holds
goes with the schema. So everything but the triggers themselves lies in one schema, which capture owns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

from psycopg import errors, sql

from headrace.capture.postgres.catalogue import GONE
from headrace.capture.postgres.copying import as_stored, copied_fields
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.setup import VERSION_MIN, Connection, PostgresSetup, TableInfo
from headrace.capture.source import DatabaseGone
from headrace.errors import UsageError

__all__ = ["Change", "ChangeTable", "record_fields", "shape_of"]

LOCK_TIMEOUT = "5s"
"""A trigger waits for sessions that write to its table, and others that want to write wait for it: not for long."""
STATEMENT_CHARACTERS_MAX = 200
_BODY = """
declare
  of_table constant oid := coalesce(pg_partition_root(tg_relid), tg_relid);
begin
  if tg_argv[0]::oid <> of_table then
    return null;
  end if;
  insert into {changes} (relation, operation, columns, old_row, new_row) values (
    of_table::regclass::text,
    case tg_op when 'INSERT' then 'c' when 'UPDATE' then 'u' when 'DELETE' then 'd' else 't' end,
    array_to_string(array(
      select atttypid || ' ' || atttypmod || ' ' || (attgenerated <> '')::int || ' ' || to_json(attname)
      from pg_attribute where attrelid = tg_relid and attnum > 0 and not attisdropped order by attnum), e'\\n'),
    nullif(format('%s', old), ''), nullif(format('%s', new), ''));
  return null;
end
"""
_FUNCTION = """
create or replace function {function}() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp set datestyle = 'ISO' set intervalstyle = 'iso_8601' set timezone = 'UTC'
set bytea_output = 'hex' set extra_float_digits = 1 set lc_monetary = 'C'
as {body}
"""
_TABLES = (
    "create table {changes} (seq bigint generated always as identity, xid xid8 not null default pg_current_xact_id(), "
    "relation text not null, operation text not null, columns text, old_row text, new_row text, "
    "at timestamptz not null default clock_timestamp(), depth int not null default pg_trigger_depth()) "
    "with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)",
    "create index on {changes} (xid)",
    "create table {flushed} (number bigint) with (fillfactor = 10)",
    "insert into {flushed} values (0)",
)
_HAS_DEPTH = "select true from pg_attribute where attrelid = %s::text::regclass and attname = 'depth'"
_READ = """
copy (
  select seq, xid, operation, relation, columns, old_row, new_row, last,
    (extract(epoch from committed_at) * 1000000)::bigint, depth
  from (
    select *, max(seq) over of_transaction as last, max(at) over of_transaction as committed_at
    from {changes}
    where xid >= pg_snapshot_xmin({seen}) and not pg_visible_in_snapshot(xid, {seen})
      and pg_visible_in_snapshot(xid, {through})
    window of_transaction as (partition by xid)
  ) as change
  where last > {after} order by last, seq
) to stdout
"""


class Change(NamedTuple):
    """A row of the change table. ``last`` is the number of its transaction's last change."""

    seq: int
    xid: int
    operation: bytes
    relation: bytes
    columns: bytes | None
    old_row: bytes | None
    new_row: bytes | None
    last: int
    committed_us: int
    depth: int


class ChangeTable:
    """One capture's change table, with its function and triggers; see the module."""

    def __init__(self, setup: PostgresSetup, name: str) -> None:
        self._setup = setup
        self._connection = setup.connection
        self.schema = f"_headrace_{name}"
        self._trigger = f"!headrace_{name}_"
        self._names = {
            "changes": sql.Identifier(self.schema, "changes"),
            "flushed": sql.Identifier(self.schema, "flushed"),
            "function": sql.Identifier(self.schema, "note_change"),
        }

    def _run(self, statement: str, **parts: sql.Composable) -> list[tuple[Any, ...]]:
        composed = sql.SQL(statement).format(**self._names, **parts)
        try:
            cursor = self._connection.execute(composed)
        except errors.InsufficientPrivilege as error:
            text = " ".join(composed.as_string().split())[:STATEMENT_CHARACTERS_MAX]
            raise UsageError(f"{error.diag.message_primary}", f"the user must be allowed to run: {text}") from error
        return cursor.fetchall() if cursor.description else []

    # ---- what there is ----------------------------------------------------------------------------------------------

    def number(self) -> int | None:
        """The table's OID, which a table that is dropped and created again does not have; None: there is no table."""
        query = (
            "select c.oid::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname = %s and c.relname = 'changes'"
        )
        found: int | None = self._setup.one(query, self.schema)
        return found

    def size_bytes(self) -> int:
        """Of the change table with what was deleted from it and not yet used again."""
        name = self._names["changes"].as_string()
        return int(self._setup.one("select pg_total_relation_size(%s::text::regclass)", name))

    def check(self, tables: Iterable[TableInfo]) -> None:
        """Whether the user may make what is missing; the error names the statement that lets him."""
        version = self._connection.info.server_version
        if version < VERSION_MIN:
            raise UsageError(f"PostgreSQL {version // 10000} is too old for capture", "it needs version 14 or newer")
        user = self._setup.one("select quote_ident(current_user)")
        exists = self._setup.one("select true from pg_namespace where nspname = %s", self.schema)
        if exists:
            may = self._setup.one("select has_schema_privilege(%s, 'create')", self.schema)
        else:
            may = self._setup.one("select has_database_privilege(current_database(), 'create')")
        if not may:
            verb = f"ALTER SCHEMA {self.schema} OWNER TO" if exists else f"CREATE SCHEMA {self.schema} AUTHORIZATION"
            raise UsageError(f"{user} may not make a schema for changes", f"let an administrator run: {verb} {user}")
        names = [each.quoted for each in tables]
        query = "select name from unnest(%s::text[]) name where not has_table_privilege(name, 'trigger')"
        refused = [row[0] for row in self._connection.execute(query, (names,)).fetchall()]
        if refused:
            raise UsageError(
                f"{user} may not make triggers on {', '.join(refused)}",
                f"let the owner run: GRANT TRIGGER ON {', '.join(refused)} TO {user}",
            )

    # ---- making -----------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Schema, tables and function, where they are missing."""
        body = sql.SQL(_BODY).format(**self._names).as_string()
        with self._connection.transaction():
            if not self._setup.one("select true from pg_namespace where nspname = %s", self.schema):
                self._run("create schema {schema}", schema=sql.Identifier(self.schema))
            if self.number() is None:
                for statement in _TABLES:
                    self._run(statement)
            elif not self._setup.one(_HAS_DEPTH, self._names["changes"].as_string()):
                self._run("alter table {changes} add column depth int not null default pg_trigger_depth()")
            query = "select prosrc from pg_proc where proname = 'note_change' and pronamespace = %s::text::regnamespace"
            if self._setup.one(query, sql.Identifier(self.schema).as_string()) != body:
                self._run(_FUNCTION, body=sql.Literal(body))

    def watch(self, tables: Iterable[TableInfo]) -> None:
        """Make the triggers that are missing or disabled."""
        query = (
            "select of.number::bigint from unnest(%s::oid[]) as of(number) join pg_class c on c.oid = of.number "
            "where (select count(*) from pg_trigger where tgrelid = of.number and tgname in "
            "(%s || tgrelid::oid::text, %s || tgrelid::oid::text || 't') and tgenabled in ('O', 'A')) < 2"
        )
        by_oid = {each.oid: each for each in tables}
        arguments = (list(by_oid), self._trigger, self._trigger)
        for (oid,) in self._connection.execute(query, arguments).fetchall():
            self._make_triggers(by_oid[oid])

    def members(self) -> dict[int, int]:
        """By table, a number that changes when its triggers are made, dropped, disabled or enabled."""
        query = (
            "select tgrelid::bigint, sum(oid::bigint * 4294967296 + xmin::text::bigint)::text from pg_trigger "
            "where tgname in (%s || tgrelid::oid::text, %s || tgrelid::oid::text || 't') "
            "and tgenabled in ('O', 'A') group by 1"
        )
        rows = self._connection.execute(query, (self._trigger, self._trigger)).fetchall()
        return {oid: int(number) for oid, number in rows}

    def _make_triggers(self, table: TableInfo) -> None:
        """The lock that this takes lasts to its end: a transaction that writes later finds the triggers.

        Where capture may alter the table they are called always, also for what a subscription of logical replication
        writes (``session_replication_role=replica``).
        """
        create = (
            "create or replace trigger {name} after {events} on {table} for each {what} "
            "execute function {function}({argument})"
        )
        rows = {"name": f"{self._trigger}{table.oid}", "events": "insert or update or delete", "what": "row"}
        whole = {"name": f"{self._trigger}{table.oid}t", "events": "truncate", "what": "statement"}
        is_owner = self._setup.one("select pg_has_role(relowner, 'usage') from pg_class where oid = %s", table.oid)
        enable = "alter table {table} enable {always} trigger {name}"
        try:
            with self._connection.transaction():
                self._run("set local lock_timeout = {time}", time=sql.Literal(LOCK_TIMEOUT))
                for each in (rows, whole):
                    name = sql.Identifier(each["name"])
                    self._run(
                        create,
                        name=name,
                        events=sql.SQL(each["events"]),
                        what=sql.SQL(each["what"]),
                        table=table.identifier,
                        argument=sql.Literal(str(table.oid)),
                    )
                    if is_owner:
                        self._run(enable, table=table.identifier, name=name, always=sql.SQL("always"))
                if self._setup.one("select %s::text::regclass::oid::bigint", table.quoted) != table.oid:
                    raise DatabaseGone(f"{table.full_name} has just become another table")
        except errors.LockNotAvailable as error:
            raise DatabaseGone(
                f"{table.full_name} is being written to by a transaction that does not end, and its triggers cannot be "
                "made before: select pid, query from pg_stat_activity where state = 'idle in transaction'"
            ) from error
        except (*GONE, errors.ObjectNotInPrerequisiteState) as error:
            raise DatabaseGone(f"{table.full_name} was changed just now: {error}") from error

    def note_gap(self, schema: str, name: str) -> None:
        described = sql.Literal(json.dumps([schema, name]))
        quoted = sql.Literal(sql.Identifier(schema, name).as_string())
        statement = "insert into {changes} (relation, operation, columns) values ({quoted}, 'g', {described})"
        self._run(statement, quoted=quoted, described=described)

    def drop(self) -> list[str]:
        if not self._setup.one("select true from pg_namespace where nspname = %s", self.schema):
            return []
        self._run("set lock_timeout = {time}", time=sql.Literal(LOCK_TIMEOUT))
        self._run("drop schema {schema} cascade", schema=sql.Identifier(self.schema))
        return [f"schema {self.schema} and the triggers that write to it"]

    # ---- reading ----------------------------------------------------------------------------------------------------

    def has_news(self, seen: str) -> bool:
        query = (
            "select exists (select from {changes} "
            "where xid >= pg_snapshot_xmin({seen}) and not pg_visible_in_snapshot(xid, {seen}))"
        )
        return bool(self._run(query, seen=_snapshot(seen))[0][0])

    def make_durable(self) -> int:
        """Return when the disk has all that anybody could see before, and no id of its transactions can come again.

        A transaction that does not wait for the disk (``synchronous_commit=off``) is seen before it is safe. Should the
        server lose it after the log has it, the next one with its number would be taken for it. Our own commit waits,
        has a higher number, and lies after all of them.
        """
        return int(self._run("update {flushed} set number = number + 1 returning number")[0][0])

    def flushed(self) -> int:
        """The number that ``make_durable`` has reached: an older copy of the database has a lower one."""
        return int(self._run("select number from {flushed}")[0][0])

    def changes(self, reader: Connection, *, seen: str, through: str, after: int) -> Generator[Change, None, None]:
        """What the snapshot ``through`` sees and ``seen`` did not, transaction by transaction.

        Of two transactions that changed one row, the second began to once the first had ended: every snapshot that sees
        the second sees the first, and the first one's last change has the lower number. So neither across two
        readings nor within one can a change overtake another of its row.
        """
        bounds = {"seen": _snapshot(seen), "through": _snapshot(through), "after": sql.Literal(after)}
        statement = sql.SQL(_READ).format(**self._names, **bounds)
        with as_stored(reader), reader.cursor().copy(statement) as lines:
            for line in lines:
                seq, xid, operation, relation, columns, old, new, last, at_us, depth = copied_fields(bytes(line))
                assert operation is not None
                assert relation is not None
                numbers = [int(each or 0) for each in (seq, xid, last, at_us, depth)]
                yield Change(numbers[0], numbers[1], operation, relation, columns, old, new, *numbers[2:])

    def forget(self, seen: str) -> None:
        """The log has these changes."""
        self._run(
            "delete from {changes} where xid < pg_snapshot_xmax({seen}) and pg_visible_in_snapshot(xid, {seen})",
            seen=_snapshot(seen),
        )


def _snapshot(text: str) -> sql.Composable:
    return sql.SQL("{}::pg_snapshot").format(sql.Literal(text))


# ---- texts of the function ------------------------------------------------------------------------------------------


def shape_of(columns: bytes) -> tuple[list[RelationColumn], list[int]]:
    """The columns of a row and their places in its text; generated ones are left out, as in the server's log."""
    found: list[RelationColumn] = []
    places: list[int] = []
    for place, line in enumerate(columns.decode().split("\n") if columns else []):
        oid, modifier, is_generated, name = line.split(" ", 3)
        if is_generated == "0":
            found.append(RelationColumn(json.loads(name), int(oid), int(modifier), False))
            places.append(place)
    return found, places


_FIELD = re.compile(rb'(?:"((?:[^"\\]|""|\\.)*)"|([^,"]*)),', re.DOTALL)
_DOUBLED = re.compile(rb'["\\](.)', re.DOTALL)


def record_fields(text: bytes) -> list[bytes | None]:
    """The text of a record, ``(1,"a b",)``: what is empty is null, what is quoted is not."""
    inside = text[1:-1]
    if b'"' not in inside:
        return [each or None for each in inside.split(b",")]
    return [
        _DOUBLED.sub(rb"\1", found[1]) if found[1] is not None else found[2] or None
        for found in _FIELD.finditer(inside + b",")
    ]
