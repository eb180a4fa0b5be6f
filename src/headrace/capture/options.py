"""What a capture is asked to do: kept in the log under its name, given at the command line, checked here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import parse_qsl

from headrace.address import ENVIRONMENT, Address
from headrace.capture.columns import Mask
from headrace.capture.patterns import is_pattern, matches
from headrace.errors import BadArgument, UsageError

__all__ = ["CaptureOptions", "DatabaseUrl", "counted"]

NAME = re.compile(r"[a-z0-9_]{1,40}")
PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
OWN_TABLES = re.compile(r"(?:^|\.)(?:_headrace_.*|headrace_fences)$")
"""What captures and exactly-once sinks keep in a database; captured only by name."""
SECRET_OPTIONS = ("password", "passwd", "sslpassword")
KINDS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}

ADDRESSES = "use postgresql://USER@HOST:PORT/DATABASE, mysql://…, sqlite:///FILE"


def counted(number: int, noun: str) -> str:
    """``1 table``, ``2 tables``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class DatabaseUrl(Address):
    """A database's address."""

    __slots__ = ()

    def check(self) -> None:
        if self.text.partition("://")[0] not in KINDS:
            raise BadArgument(f"{self.shown} is no database that capture knows", ADDRESSES)
        if self.kind != "sqlite":
            self.must_be(KINDS, "address of a database", ADDRESSES)
        if self.has_password and "@" in self.options:
            raise BadArgument(
                f"the address of {self.shown} has an @ after a ?, so it is not clear where the password ends",
                "in a password write ? as %3F, in an option @ as %40; or use ${NAME} of an environment variable",
            )
        for name, value in parse_qsl(self.options):
            if name.lower() in SECRET_OPTIONS and not ENVIRONMENT.fullmatch(value):
                raise BadArgument(
                    f"{self.shown} has a {name} among its options, where it would be kept in the log",
                    "write it before the @, or as ${NAME} of an environment variable",
                )

    @property
    def kind(self) -> str:
        """postgresql, mysql or sqlite."""
        return KINDS[self.text.partition("://")[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Every choice of a capture.

    Defaults are Debezium's where it has the same choice, but for decimals and times. Debezium writes base64 and numbers
    whose scale and unit only a schema tells; text says what it is to every reader.
    """

    name: str
    url: str
    tables: tuple[str, ...] = ()  # SCHEMA.TABLE, or patterns of them; none: every table that the user may read
    exclude_tables: tuple[str, ...] = ()
    include_columns: tuple[str, ...] = ()  # patterns of SCHEMA.TABLE.COLUMN; none: every column
    exclude_columns: tuple[str, ...] = ()
    masks: Mapping[str, str] = field(default_factory=dict)  # pattern of SCHEMA.TABLE.COLUMN: how, see columns.Mask
    key_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # SCHEMA.TABLE: the columns of its key
    prefix: str = ""  # topics are PREFIX.SCHEMA.TABLE; default: the capture's name
    partitions: int = 1
    topic_config: Mapping[str, str] = field(default_factory=dict)
    unwrap: bool = False  # values are plain rows, and a deletion is a tombstone alone
    decimals: Literal["precise", "string", "double"] = "string"
    times: Literal["numbers", "strings"] = "strings"
    tombstones: bool = True
    transactions: bool = False  # BEGIN and END of every transaction into PREFIX.transaction
    outbox: str = ""  # SCHEMA.TABLE whose rows are events for outbox.event.<aggregatetype>
    snapshot: bool = True
    on_replaced: Literal["resnapshot", "stop"] = "resnapshot"  # when a table's name belongs to another table now
    schemas: bool = False  # keys and values are Kafka Connect's {"schema": …, "payload": …}
    triggers: bool = False  # PostgreSQL is followed by triggers, without the right to replicate
    streaming: bool = False  # PostgreSQL sends large transactions before they commit
    heartbeat_ms: int = 10_000
    chunk_rows: int = 25_000
    remembered_bytes_max: int = 64 * 1024 * 1024  # large values kept to fill in where the database does not resend
    lag_alarm_bytes: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadArgument(f"{self.name!r} is no name of a capture", "use up to 40 of a-z, 0-9 and _")
        if self.prefix and not PREFIX.fullmatch(self.prefix):
            raise BadArgument(f"{self.prefix!r} is no prefix of topics", "use letters, digits, '.', '_' and '-'")
        for name, low in (("partitions", 1), ("chunk_rows", 1), ("heartbeat_ms", 100)):
            if getattr(self, name) < low:
                raise BadArgument(f"{name} is {getattr(self, name)}", f"it must be at least {low}")
        if self.on_replaced not in ("resnapshot", "stop"):
            raise BadArgument(f"on_replaced is {self.on_replaced!r}", "it is resnapshot or stop")
        for how in self.masks.values():
            Mask(how)
        for table, columns in self.key_columns.items():
            if not columns or len(set(columns)) < len(columns):
                raise BadArgument(f"the key of {table} has no column, or one twice", "give TABLE:COLUMN,COLUMN")
        self.database.check()
        if self.schemas and self.database.kind == "sqlite":
            raise BadArgument("columns of SQLite have no types that a schema could name", "leave --schemas out")
        if self.triggers and self.database.kind != "postgresql":
            raise BadArgument("triggers are a choice for PostgreSQL", "SQLite has no other way, MariaDB has its binlog")

    @property
    def topic_prefix(self) -> str:
        return self.prefix or self.name

    @property
    def chooses_columns(self) -> bool:
        return bool(self.include_columns or self.exclude_columns or self.masks or self.key_columns)

    @property
    def database(self) -> DatabaseUrl:
        return DatabaseUrl(self.url)

    def qualified(self, schema: str) -> CaptureOptions:
        """With the schema in front of every table that was named without one."""

        def full(name: str) -> str:
            return name if "." in name or not name else f"{schema}.{name}"

        def full_column(pattern: str) -> str:
            return pattern if pattern.count(".") >= 2 or pattern.startswith("*") else f"{schema}.{pattern}"

        return replace(
            self,
            tables=tuple(map(full, self.tables)),
            exclude_tables=tuple(map(full, self.exclude_tables)),
            include_columns=tuple(map(full_column, self.include_columns)),
            exclude_columns=tuple(map(full_column, self.exclude_columns)),
            masks={full_column(pattern): how for pattern, how in self.masks.items()},
            key_columns={full(table): columns for table, columns in self.key_columns.items()},
            outbox=full(self.outbox),
        )

    def selects(self, full_name: str) -> bool:
        """Whether a table is captured. The options must be ``qualified``."""
        if full_name == self.outbox:
            return True
        if any(matches(each, full_name) for each in self.exclude_tables):
            return False
        if OWN_TABLES.search(full_name) and full_name not in self.tables:
            return False
        return not self.tables or any(matches(each, full_name) for each in self.tables)

    def check_tables(self, found: Iterable[str], hint: str = "choose others with --tables") -> list[str]:
        """Refuse a table that was named and is not among those found; a pattern that matches none is a note.

        ``{table}`` in the hint is the first that is missing.
        """
        names = set(found)
        asked = [*self.tables, *self.key_columns, *([self.outbox] if self.outbox else [])]
        missing = sorted({each for each in asked if not is_pattern(each)} - names)
        if missing:
            near = get_close_matches(missing[0], sorted(names), n=3)
            nearest = f"the nearest: {', '.join(near)}; " if near else ""
            raise UsageError(
                f"there is no table {', '.join(missing)} that the user may read",
                nearest + hint.replace("{table}", missing[0]),
            )
        patterns = [each for each in (*self.tables, *self.exclude_tables) if is_pattern(each)]
        return [f"no table matches {each} yet" for each in patterns if not any(matches(each, name) for name in names)]

    def stored(self) -> dict[str, Any]:
        """As JSON for the log: only what differs from the defaults, and never a password."""
        has_password = self.database.written_password is not None
        values = asdict(replace(self, url=self.database.with_password(None)) if has_password else self)
        given = {
            each.name: values[each.name]
            for each in fields(self)
            if each.name in ("name", "url") or values[each.name] != _default(each.name)
        }
        return {name: _as_json(value) for name, value in given.items()}

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> CaptureOptions:
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UsageError(f"the capture was stored with settings unknown here: {', '.join(unknown)}", "add it again")
        given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}
        if "key_columns" in given:
            given["key_columns"] = {table: tuple(columns) for table, columns in given["key_columns"].items()}
        return cls(**given)


def _default(name: str) -> Any:
    return getattr(CaptureOptions(name="x", url="sqlite:///x"), name)


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
