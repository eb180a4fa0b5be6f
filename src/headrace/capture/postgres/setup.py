"""What capture needs of a PostgreSQL server: checked, made where it may be, and explained where it may not."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg import errors

from headrace.capture.options import CaptureOptions
from headrace.capture.postgres.catalogue import Catalogue, Connection, TableInfo
from headrace.capture.postgres.values import SESSION_OPTIONS
from headrace.capture.source import DatabaseGone, PositionLost
from headrace.errors import UsageError

__all__ = [
    "Connection",
    "PostgresSetup",
    "TableInfo",
    "connect",
    "explained_error",
    "lsn_number",
    "lsn_text",
    "untranslatable",
]

VERSION_MIN = 140_000
TRANSACTION_TIMEOUT_FROM = 170_000
SLOT_RELEASE_TIMEOUT_S = 30.0


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def connect(options: CaptureOptions, *, replication: bool = False) -> Connection:
    """A connection whose texts are those that ``values`` reads."""
    extra: dict[str, Any] = {"replication": "database"} if replication else {}
    try:
        connection = psycopg.connect(
            options.database.resolved(),
            autocommit=True,
            options=SESSION_OPTIONS,
            application_name=f"headrace-capture-{options.name}",
            client_encoding="UTF8",
            connect_timeout=10,
            **extra,
        )
        if connection.info.server_version >= TRANSACTION_TIMEOUT_FROM:
            # A replication connection takes no other form of statements. It sends a transaction within one of its own.
            connection.pgconn.exec_(b"SET transaction_timeout = 0")
        return connection
    except psycopg.OperationalError as error:
        raise explained_error(error, options) from error
    except psycopg.ProgrammingError as error:
        raise UsageError(
            f"{options.database.shown} is no address of a PostgreSQL server",
            "use postgresql://USER@HOST:PORT/DATABASE; other characters in a password are written as %XX",
        ) from error


def explained_error(error: psycopg.OperationalError, options: CaptureOptions) -> Exception:
    text = " ".join(str(error).split())
    user = psycopg.conninfo.conninfo_to_dict(options.database.resolved()).get("user", "USER")
    if "permission denied to start WAL sender" in text or "must be superuser or replication role" in text:
        return _no_right('"{}"'.format(str(user).replace('"', '""')))
    if "no password supplied" in text:
        return UsageError(f"{options.database.shown}: {text}", "write USER:PASSWORD@ or USER:${NAME}@ in the address")
    if "password authentication failed" in text or "does not exist" in text or "pg_hba.conf" in text:
        return UsageError(f"{options.database.shown}: {text}", "check user, password, database and pg_hba.conf")
    return DatabaseGone(f"{options.database.shown}: {text}")


def _no_right(user: str) -> UsageError:
    return UsageError(
        f"{user} has no right to replicate",
        f"ALTER ROLE {user} REPLICATION; or capture without it, with --triggers",
    )


def untranslatable(why: str, name: str) -> UsageError:
    """The server cannot show a row in UTF-8, and a row that it does not show cannot be a dead letter."""
    return UsageError(
        f"a row holds a character that the server cannot write in UTF-8: {' '.join(why.split())}",
        f"correct the row in the database; then run once with: headrace capture run {name} --resnapshot",
    )


class PostgresSetup(Catalogue):
    """Asks and prepares one server through one ordinary connection."""

    def __init__(self, connection: Connection, options: CaptureOptions) -> None:
        super().__init__(connection, options)
        self.slot = f"headrace_{options.name}"

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
            raise _no_right(self.one("select quote_ident(current_user)"))

    def check_readable(self, tables: Iterable[TableInfo]) -> None:
        """Row-level security would hide rows from the snapshot that the server's log shows."""
        query = "select c.oid::bigint from pg_class c where c.relrowsecurity and row_security_active(c.oid)"
        hidden = {row[0] for row in self.connection.execute(query).fetchall()}
        names = [each.full_name for each in tables if hidden.intersection(each.oids)]
        if names:
            user = self.one("select quote_ident(current_user)")
            raise UsageError(
                f"row-level security may hide rows of {', '.join(names)} from {user}",
                f"ALTER ROLE {user} BYPASSRLS; or leave it out with --exclude-tables {names[0]}",
            )

    def advice(self) -> list[str]:
        """What a server is better set to before a capture that may be away for long."""
        if self.one("select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size'") == -1:
            return [
                "while capture is away the server keeps its log without a limit, up to a full disk "
                "(a limit: ALTER SYSTEM SET max_slot_wal_keep_size = '50GB', then SELECT pg_reload_conf())"
            ]
        return []

    def _is_replication_member(self) -> bool:
        """Managed services give the right through a role of theirs."""
        roles = "select exists (select from pg_roles where rolname = 'rds_replication' and pg_has_role(oid, 'member'))"
        return bool(self.one(roles))

    def current_lsn(self) -> int:
        return lsn_number(self.one("select pg_current_wal_lsn()::text"))

    def inserted_lsn(self) -> int:
        """After everything that anybody can see by now; a commit that does not wait is seen before it is written."""
        return lsn_number(self.one("select pg_current_wal_insert_lsn()::text"))

    def slot_state(self) -> dict[str, Any] | None:
        """The slot as the server shows it; None when there is none."""
        query = (
            "select coalesce(confirmed_flush_lsn, '0/0')::text, active_pid, wal_status,"
            " pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,"
            " pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint, safe_wal_size"
            " from pg_replication_slots where slot_name = %s"
        )
        row = self.connection.execute(query, (self.slot,)).fetchone()
        if row is None:
            return None
        names = ("confirmed", "active_pid", "wal_status", "retained_bytes", "lag_bytes", "safe_bytes")
        return {**dict(zip(names, row, strict=True)), "confirmed": lsn_number(row[0])}

    # ---- preparing --------------------------------------------------------------------------------------------------

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
            raise _no_right(self.one("select quote_ident(current_user)")) from error

    def drop_slot(self) -> bool:
        if self.slot_state() is None:
            return False
        self.release_slot()
        self.connection.execute("select pg_drop_replication_slot(%s)", (self.slot,))
        return True

    def release_slot(self) -> None:
        """End a session that still streams from the slot: this capture has the name now, so that one writes no more."""
        deadline = time.monotonic() + SLOT_RELEASE_TIMEOUT_S
        while (state := self.slot_state()) is not None and state["active_pid"] is not None:
            if time.monotonic() > deadline:
                raise DatabaseGone(f"slot {self.slot} is still held by process {state['active_pid']} of the server")
            try:
                self.connection.execute("select pg_terminate_backend(%s)", (state["active_pid"],))
            except errors.InsufficientPrivilege:
                pass  # it ends by itself once its connection is found dead
            time.sleep(0.05)

    def check_slot(self, slot: dict[str, Any] | None, lsn: int) -> None:
        """The slot must still have everything after the position in the log."""
        again = f"take a new snapshot: headrace capture run {self._options.name} --resnapshot"
        if slot is None:
            raise PositionLost(
                f"replication slot {self.slot} is gone, and with it the changes after {lsn_text(lsn)}; {again}"
            )
        if slot["wal_status"] == "lost":
            raise PositionLost(
                f"the server has removed changes after {lsn_text(lsn)} that slot {self.slot} needed "
                f"(max_slot_wal_keep_size); {again}"
            )
        if slot["confirmed"] > lsn:
            raise PositionLost(
                f"slot {self.slot} was moved to {lsn_text(slot['confirmed'])} by somebody else; the log has changes "
                f"up to {lsn_text(lsn)}, so what lies between is missing; {again}"
            )
