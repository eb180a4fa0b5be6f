"""A store in a PostgreSQL database: any number of writers on any number of machines.

A sequence would not do: it leaves gaps where a transaction rolls back, and a transaction with a small number may commit
after one with a greater number, so that a reader goes past events it has not seen. Here the last position is a row,
headrace_head. An append locks it, and the lock is held until the commit: the next append takes its position when
this one is visible. So commits happen in the order of positions. The lock is taken by the function
headrace_append in the database, which does the whole append: the lock is held for one call and one commit,
never for the time that a client takes.

Appends of one process share a transaction (``appends.py``), so that one sync serves many; their calls go to the server
together. A call that conflicts returns so and changes nothing.

Several stores fit into one database, each in its schema: ``?options=-csearch_path%3Dbank`` at the end of the address.

Where the connection breaks between an append and its answer, nobody knows whether it was committed. It is then sent
once more over a new connection: its event ids tell whether it was.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from zlib import crc32

from headrace.address import Address
from headrace.errors import HeadraceError, UsageError
from headrace.sourcing.appends import Appended, Request, check_expected, repeated_by_ids, repeated_of
from headrace.sourcing.errors import SourcingError, StoreUnavailable
from headrace.sourcing.events import ANY, EXISTS, NONE, Expected, Query, Row
from headrace.sourcing.privacy import FORGOTTEN_STREAM
from headrace.sourcing.sql import SqlReads, condition_of, tables
from headrace.sourcing.sqlite import condition_failed, progress_conflict
from headrace.sourcing.store import Choices, EventStore, Snapshot, StreamInfo, no_store

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ModuleNotFoundError as error:
    raise UsageError("a store in PostgreSQL needs the package psycopg", "pip install 'headrace[sourcing]'") from error

__all__ = ["PostgresStore", "purge_tables"]

IDLE_CONNECTIONS_MAX = 8
CONNECT_TIMEOUT_S = 10
OPTIONS = "-c synchronous_commit=on -c client_min_messages=warning -c default_transaction_isolation=read\\ committed"
"""Isolation: an append that waited for the lock must see what was committed meanwhile, whatever the default is."""
MAKING_TABLES = 0x68656164
"""The advisory lock of those who make the tables: two at once would fail."""
_EXPECTED = {ANY: -1, NONE: -2, EXISTS: -3}

# One call is one append. What it gives: (what, number, detail).
#   appended    the last position, and the versions that the streams had before
#   expected    the number of the part whose stream has another version, and that version
#   command     rows of the events that the command has appended before, as JSON
#   repeated    rows of the events that are there already, by their ids
#   matched     the position of an event that the condition does not allow
#   progress    somebody was there before
_APPEND = """
create or replace function headrace_append(
    part_streams text[], part_expected bigint[], part_sizes integer[], ids text[], types text[], schemas bigint[],
    datas text[], tag_lists text[], correlations text[], causations text[], actors text[], command text, checks_ids
    boolean, condition_sql text, condition_values text[], progress_name text, progress_position bigint)
returns table (what text, number bigint, detail text) language plpgsql as $body$
declare
    head bigint; now_us bigint; actual bigint; before bigint[] := '{}'; part integer; earlier jsonb; hit bigint;
begin
    select h.position, greatest(h.recorded_us, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
        into head, now_us from headrace_head h for update;
    if command is not null then
        select jsonb_agg(jsonb_build_array(e.position, e.stream, e.version) order by e.position) into earlier
            from headrace_events e where e.command_id = command;
        if earlier is not null then
            return query select 'command'::text, 0::bigint, earlier::text; return;
        end if;
    end if;
    if checks_ids then
        select jsonb_agg(jsonb_build_array(e.position, e.stream, e.version) order by e.position) into earlier
            from headrace_events e where e.event_id = any (ids);
        if earlier is not null then
            return query select 'repeated'::text, 0::bigint, earlier::text; return;
        end if;
    end if;
    for part in 1 .. coalesce(array_length(part_streams, 1), 0) loop
        select coalesce(max(e.version), 0) into actual from headrace_events e where e.stream = part_streams[part];
        if not (case part_expected[part] when -1 then true when -2 then actual = 0 when -3 then actual > 0
               else actual = part_expected[part] end) then
            return query select 'expected'::text, part::bigint, actual::text; return;
        end if;
        before := before || actual;
    end loop;
    if condition_sql is not null then
        execute condition_sql into hit using condition_values;
        if hit is not null then
            return query select 'matched'::text, hit, ''::text; return;
        end if;
    end if;
    if progress_name is not null then
        insert into headrace_progress as p values (progress_name, progress_position)
            on conflict (name) do update set position = excluded.position where p.position < excluded.position;
        if not found then
            return query select 'progress'::text, progress_position, ''::text; return;
        end if;
    end if;
    if ids <> '{}' then
        insert into headrace_events
            select head + e.at, p.stream,
                   case when p.stream is not null then before[p.part::integer] + e.at - p.skipped end,
                   e.id, e.kind, e.schema, e.content, e.named, e.correlation, e.causation, e.actor, command, now_us
            from unnest(ids, types, schemas, datas, tag_lists, correlations, causations, actors) with ordinality
                     as e (id, kind, schema, content, named, correlation, causation, actor, at)
            join (select s.stream, s.part, sum(s.size) over (order by s.part) - s.size as skipped, s.size
                  from unnest(part_streams, part_sizes) with ordinality as s (stream, size, part)) p
                on e.at > p.skipped and e.at <= p.skipped + p.size;
        insert into headrace_tags
            select distinct tag.name, head + e.at from unnest(tag_lists) with ordinality as e (named, at),
                lateral jsonb_array_elements_text(e.named::jsonb) as tag (name) where e.named <> '[]';
        update headrace_head set position = position + array_length(ids, 1), recorded_us = now_us;
    end if;
    return query select 'appended'::text, head + coalesce(array_length(ids, 1), 0), to_jsonb(before)::text;
end $body$
"""
_APPEND_ID = f"headrace {crc32(_APPEND.encode()):08x}"
"""In the function's comment: another one there is of another version, and is replaced."""
_CALL = (
    "select what, number, detail from headrace_append("
    "%s::text[], %s::bigint[], %s::integer[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::text[], "
    "%s::text[], %s::text[], %s::text[], %s, %s, %s, %s::text[], %s, %s)"
)


class PostgresStore(EventStore):
    """See the module."""

    def __init__(self, url: str, choices: Choices | None = None) -> None:
        self._address = Address(url)
        super().__init__(self._address.shown, choices or Choices())
        self._idle: list[psycopg.Connection[Row]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reads = SqlReads(self._ask)
        try:
            self._make_tables(may_create=choices is None or choices.create)
            self._finish_forgetting()
        except BaseException:
            self.close()
            raise

    # ---- connections ------------------------------------------------------------------------------------------------

    def _connected(self) -> psycopg.Connection[Row]:
        url = self._address.resolved()
        options = f"{conninfo_to_dict(url).get('options', '')} {OPTIONS}"
        whole = make_conninfo(url, options=options, application_name="headrace-events")
        return psycopg.connect(whole, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Row]]:
        """One from the pool; one that broke is not put back."""
        self._opener.check(self.shown)
        with self._explained():
            with self._lock:
                if self._closed.is_set():
                    raise SourcingError(f"the store {self.shown} is closed")
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._connected()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            with self._lock:
                if not self._closed.is_set() and not connection.broken and len(self._idle) < IDLE_CONNECTIONS_MAX:
                    self._idle.append(connection)
                    return
            connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            text = self._address.hidden_in(f"{self.shown}: {str(error).strip() or type(error).__name__}")
            raise (StoreUnavailable(text) if passing else SourcingError(text)) from error

    def _ask(self, statement: str, values: Sequence[Any]) -> list[Row]:
        return self._run(statement.replace("?", "%s"), values)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Reads are sent once more over a new connection: one from the pool may have been broken for long."""
        try:
            return self._run_once(statement, values)
        except StoreUnavailable:
            self._drop_idle()
            return self._run_once(statement, values)

    def _run_once(self, statement: str, values: Sequence[Any]) -> list[Row]:
        with self._connection() as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def _drop_idle(self) -> None:
        with self._lock:
            dropped, self._idle = self._idle, []
        for connection in dropped:
            connection.close()

    def _close(self) -> None:
        with self._lock:
            self._closed.set()
        self._drop_idle()

    def _make_tables(self, *, may_create: bool) -> None:
        """Unless they are there: then a user without the right to make any can use the store."""
        if self._run("select obj_description(to_regproc('headrace_append'), 'pg_proc')") == [(_APPEND_ID,)]:
            return
        if not may_create and self._run("select to_regclass('headrace_events')") == [(None,)]:
            raise no_store(self.shown)
        with self._connection() as connection, connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", (MAKING_TABLES,))
            for statement in tables("bigint", ' collate "C"'):
                connection.execute(statement.encode())
            connection.execute(
                "create table if not exists headrace_head (only_row boolean primary key default true check (only_row), "
                "position bigint not null, recorded_us bigint not null)"
            )
            connection.execute("insert into headrace_head values (true, 0, 0) on conflict do nothing")
            connection.execute(_APPEND.encode())
            connection.execute(f"comment on function headrace_append is '{_APPEND_ID}'".encode())

    # ---- append -----------------------------------------------------------------------------------------------------

    def _write(self, batch: Sequence[Request]) -> None:
        try:
            self._write_once(batch)
        except StoreUnavailable:
            self._drop_idle()
            if not all(request.event_ids for request in batch):
                raise  # nothing would tell whether it was committed
            self._write_once([self._checking(request) for request in batch], report_to=batch)

    def _checking(self, request: Request) -> Request:
        return replace(request, checks_ids=True)

    def _write_once(self, batch: Sequence[Request], report_to: Sequence[Request] | None = None) -> None:
        try:
            answers = self._answers([self._arguments(request) for request in batch])
        except Exception as error:
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                raise
            # One of them is not taken by the database: alone, it gets its own error.
            for request in report_to or batch:
                try:
                    self._write_once([request])
                except Exception as own:
                    request.outcome = own
            return
        for request, answer in zip(report_to or batch, answers, strict=True):
            try:
                request.outcome = outcome_of(request, *answer)
            except SourcingError as conflict:
                request.outcome = conflict

    def _answers(self, calls: Sequence[Sequence[Any]]) -> list[Row]:
        with self._connection() as connection:
            if len(calls) == 1:
                cursors = [connection.execute(_CALL, calls[0])]
            else:
                with connection.pipeline():
                    connection.execute("begin")
                    cursors = [connection.execute(_CALL, call) for call in calls]
                    connection.execute("commit")
            return [_one(cursor.fetchone()) for cursor in cursors]

    def _arguments(self, request: Request) -> Sequence[Any]:
        rows = [row for part in request.parts for row in part.rows]
        ids, types, schemas, datas, tags, correlations, causations, actors = (
            map(list, zip(*rows, strict=True)) if rows else ([],) * 8
        )
        condition, values = _condition(request)
        progress = request.progress
        return (
            [part.stream for part in request.parts],
            [_code(part.expected) for part in request.parts],
            [len(part.rows) for part in request.parts],
            ids,
            types,
            schemas,
            datas,
            tags,
            correlations,
            causations,
            actors,
            request.command_id,
            request.checks_ids,
            condition,
            values,
            progress and progress.name,
            progress and progress.position,
        )

    # ---- read -------------------------------------------------------------------------------------------------------

    def _select(self, query: Query, after: int, until: int | None, limit: int, *, backwards: bool = False) -> list[Row]:
        return self._reads.events(query, after, until, limit, backwards)

    def _select_stream(
        self, stream: str, after: int, until: int | None, limit: int, *, backwards: bool = False
    ) -> list[Row]:
        return self._reads.stream(stream, after, until, limit, backwards)

    def head(self) -> int:
        return self._reads.head()

    def version(self, stream: str) -> int:
        return self._reads.version(stream)

    def streams(self, category: str | None = None, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        return self._reads.streams(category, after, limit)

    def progress(self, name: str) -> int:
        return self._reads.progress(name)

    def _rows_with_ids(self, ids: Sequence[str]) -> list[Row]:
        return self._run("select position, stream, version from headrace_events where event_id = any(%s)", [list(ids)])

    def command_result(self, command_id: str) -> Appended | None:
        rows = self._reads.command(command_id)
        return repeated_of(rows) if rows else None

    # ---- snapshots, purging -----------------------------------------------------------------------------------------

    def load_snapshot(self, stream: str, kind: str) -> Snapshot | None:
        return self._reads.snapshot(stream, kind)

    def save_snapshot(self, stream: str, kind: str, snapshot: Snapshot, *, forgotten: int) -> None:
        # The row of the head is locked first, by a separate statement: the second one sees all that was committed
        # until then. In one statement, it would see the store as it was before it waited for the lock.
        with self._connection() as connection, connection.transaction():
            connection.execute("select 1 from headrace_head for share")
            connection.execute(
                "insert into headrace_snapshots select %s, %s, %s, %s, %s "
                "where (select coalesce(max(version), 0) from headrace_events where stream = %s) = %s "
                "on conflict (stream, kind) do update set version = excluded.version, "
                "schema_version = excluded.schema_version, state = excluded.state",
                (stream, kind, snapshot.version, snapshot.schema, snapshot.state, FORGOTTEN_STREAM, forgotten),
            )

    def delete_snapshots(self, streams: Iterable[str] | None = None) -> int:
        if streams is None:
            return len(self._run("delete from headrace_snapshots returning 1"))
        return len(self._run("delete from headrace_snapshots where stream = any (%s) returning 1", (list(streams),)))

    def purge(self) -> None:
        """VACUUM FULL writes the table of snapshots again; then the server's WAL goes on in a new file."""
        with self._connection() as connection:
            purge_tables(connection, ["headrace_snapshots"], self.shown)


def purge_tables(connection: psycopg.Connection[Row], names: Iterable[str], shown: str) -> None:
    """Write tables again without what was deleted from them, then make a checkpoint.

    Values of the tables are also in the planner's statistics: those are made again, and the old ones removed.
    PostgreSQL only warns about a table that the user may not vacuum, and leaves it as it is.
    """
    warnings: list[str] = []

    def warned(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            warnings.append(str(diagnostic.message_primary))

    connection.add_notice_handler(warned)
    try:
        for name in names:
            connection.execute(f"vacuum (full, analyze) {name}".encode())
        if warnings:
            raise SourcingError(
                f"{shown}: deleted rows are still in the files ({'; '.join(warnings)}): "
                "purge as the owner of the tables"
            )
        connection.execute("vacuum full pg_catalog.pg_statistic")
        if warnings:
            raise SourcingError(
                f"{shown}: the tables are purged, and the planner's statistics may still have values of them "
                f"({'; '.join(warnings)}): purge as the owner of the database, or let an administrator run "
                "VACUUM FULL pg_statistic; CHECKPOINT"
            )
        connection.execute("checkpoint")
    except psycopg.errors.InsufficientPrivilege as error:
        user = connection.info.user
        raise SourcingError(
            f"{shown}: the tables are purged, and the checkpoint was refused ({error.diag.message_primary}): "
            f"as an administrator, GRANT pg_checkpoint TO {user} (PostgreSQL 15), or run CHECKPOINT"
        ) from error
    finally:
        connection.remove_notice_handler(warned)


def _one(row: Row | None) -> Row:
    assert row is not None, "headrace_append gives a row"
    return row


def _code(expected: Expected) -> int:
    return expected if isinstance(expected, int) else _EXPECTED[expected]


def _condition(request: Request) -> tuple[str | None, list[str] | None]:
    """The statement that finds an event which the condition does not allow, over an array of values."""
    if request.condition is None:
        return None, None
    after = request.condition.after
    terms, values = condition_of(request.condition.fail_if_events_match, after)
    pieces = f"select position from headrace_events where position > ? and {terms} limit 1".split("?")
    values = [after, *values]
    places = [f"($1)[{number}]{'::bigint' if isinstance(value, int) else ''}" for number, value in enumerate(values, 1)]
    statement = "".join(piece + place for piece, place in zip(pieces, [*places, ""], strict=True))
    return statement, [str(value) for value in values]


def outcome_of(request: Request, what: str, number: int, detail: str) -> Appended:
    """What an append has done, from the row that the database gave."""
    if what == "appended":
        before = json.loads(detail)
        versions = {
            part.stream: before[index] + len(part.rows)
            for index, part in enumerate(request.parts)
            if part.stream is not None
        }
        return Appended(number, number - len(request.event_ids) + 1, versions)
    if what == "command":
        return repeated_of([tuple(row) for row in json.loads(detail)])
    if what == "repeated":
        repeated = repeated_by_ids(request.event_streams, [tuple(row) for row in json.loads(detail)])
        assert repeated is not None, "there is at least one row"
        return repeated
    if what == "expected":
        part = request.parts[number - 1]
        check_expected(part.stream or "", part.expected, int(detail))
    if what == "matched":
        assert request.condition is not None, "only a condition matches"
        raise condition_failed(number, request.condition.after)
    if what == "progress" and request.progress is not None:
        raise progress_conflict(request.progress.name, number)
    raise HeadraceError(f"internal error, please report it: headrace_append gave {what}")
