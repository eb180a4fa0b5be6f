"""What a capture is asked to do: kept in the log under its name, given at the command line, checked here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.errors import UsageError

__all__ = ["CaptureOptions", "DatabaseUrl"]

NAME = re.compile(r"[a-z0-9_]{1,40}")
PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
ENVIRONMENT = re.compile(r"\$\{(\w+)\}")
KINDS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A database's address; ``${NAME}`` in it stands for an environment variable, read when it is used."""

    text: str

    def __post_init__(self) -> None:
        if self.scheme not in KINDS:
            raise UsageError(
                f"{self.shown} is no database that capture knows",
                "use postgresql://USER@HOST:PORT/DATABASE, mysql://…, sqlite:///FILE",
            )

    @property
    def scheme(self) -> str:
        return urlsplit(self.text).scheme

    @property
    def kind(self) -> str:
        """postgresql, mysql or sqlite."""
        return KINDS[self.scheme]

    @property
    def shown(self) -> str:
        """The address as it may be printed: without a password."""
        parts = urlsplit(self.text)
        if "@" not in parts.netloc:
            return self.text
        who, _, where = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{who.partition(':')[0]}@{where}"))

    @property
    def password(self) -> str | None:
        """A password written into the address itself, and not by reference to the environment."""
        who, at, _ = urlsplit(self.text).netloc.rpartition("@")
        _, colon, password = who.partition(":")
        if not at or not colon or ENVIRONMENT.fullmatch(password):
            return None
        return unquote(password)

    def resolved(self) -> str:
        """With the environment filled in."""

        def value(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                raise UsageError(f"{self.shown} needs the environment variable {found[1]}", f"export {found[1]}=…")
            return os.environ[found[1]]

        return ENVIRONMENT.sub(value, self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Every choice of a capture. Defaults are Debezium's where it has the same choice."""

    name: str
    url: str
    tables: tuple[str, ...] = ()  # SCHEMA.TABLE; none: every table that the user may read
    prefix: str = ""  # topics are PREFIX.SCHEMA.TABLE; default: the capture's name
    partitions: int = 1
    topic_config: Mapping[str, str] = field(default_factory=dict)
    unwrap: bool = False  # values are plain rows, and a deletion is a tombstone alone
    decimals: Literal["precise", "string", "double"] = "precise"
    times: Literal["numbers", "strings"] = "numbers"
    tombstones: bool = True
    transactions: bool = False  # BEGIN and END of every transaction into PREFIX.transaction
    outbox: str = ""  # SCHEMA.TABLE whose rows are events for outbox.event.<aggregatetype>
    snapshot: bool = True
    triggers: bool = False  # PostgreSQL is followed by triggers, without the right to replicate
    streaming: bool = False  # PostgreSQL sends large transactions before they commit
    heartbeat_ms: int = 10_000
    chunk_rows: int = 10_000
    remembered_bytes_max: int = 64 * 1024 * 1024  # large values kept to fill in where the database does not resend
    lag_alarm_bytes: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!r} is no name of a capture", "use up to 40 of a-z, 0-9 and _")
        if self.prefix and not PREFIX.fullmatch(self.prefix):
            raise UsageError(f"{self.prefix!r} is no prefix of topics", "use letters, digits, '.', '_' and '-'")
        for name, low in (("partitions", 1), ("chunk_rows", 1), ("heartbeat_ms", 100)):
            if getattr(self, name) < low:
                raise UsageError(f"{name} is {getattr(self, name)}", f"it must be at least {low}")
        kind = DatabaseUrl(self.url).kind
        if self.triggers and kind != "postgresql":
            raise UsageError("triggers are a choice for PostgreSQL", "SQLite has no other way, MariaDB has its binlog")

    @property
    def topic_prefix(self) -> str:
        return self.prefix or self.name

    @property
    def database(self) -> DatabaseUrl:
        return DatabaseUrl(self.url)

    def qualified(self, schema: str) -> CaptureOptions:
        """With the schema in front of every table that was named without one."""

        def full(name: str) -> str:
            return name if "." in name or not name else f"{schema}.{name}"

        return replace(self, tables=tuple(map(full, self.tables)), outbox=full(self.outbox))

    def stored(self) -> dict[str, Any]:
        """As JSON for the log: only what differs from the defaults, and never a password."""
        values = asdict(replace(self, url=self.database.shown if self.database.password else self.url))
        given = {
            each.name: values[each.name]
            for each in fields(self)
            if each.name in ("name", "url") or values[each.name] != _default(each.name)
        }
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> CaptureOptions:
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UsageError(f"the capture was stored with settings unknown here: {', '.join(unknown)}", "add it again")
        given: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}
        return cls(**given)


def _default(name: str) -> Any:
    return getattr(CaptureOptions(name="x", url="sqlite:///x"), name)
