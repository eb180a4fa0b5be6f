"""What a database must offer to be captured, and the errors that are the same for all of them.

    source = open_source(options, writer, say)
    source.start(state)                     # where to go on; {} the first time
    source.read(wait_s)                     # changes go into the writer as they come
    writer.commit(source.position())        # events and position together
    source.committed(state)                 # the database may forget what came before
    source.refresh()                        # about once per second: which tables are there, are they the same

``read`` returns when nothing more is there at the moment, or when the writer holds enough. Between two calls the source
stands anywhere, also inside a transaction; ``at_boundary`` tells. ``position`` is right at any such moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.capture.options import CaptureOptions
    from headrace.capture.writer import Writer

__all__ = [
    "DatabaseGone",
    "DatabaseMissing",
    "PositionLost",
    "Progress",
    "Source",
    "SourceStatus",
    "TableReplaced",
    "hiding_passwords",
    "open_source",
]


class DatabaseGone(HeadraceError):
    """The database cannot be reached at the moment: capture tries again."""


class DatabaseMissing(UsageError):
    """There is no database where the address says. To a capture that has worked with it, it has gone away."""


class PositionLost(HeadraceError):
    """The database no longer has what comes after the position in the log: a person must decide what to do."""


class TableReplaced(PositionLost):
    """A name that is captured belongs to another table now, and the user wants to decide what to do."""

    def __init__(self, capture: str, table: str, what: str) -> None:
        super().__init__(
            f"{table} {what}; decide: 'headrace capture run {capture} --on-replaced resnapshot' writes a truncation "
            "and the rows of the table that has the name now, every time this happens"
        )


@dataclass(slots=True)
class Progress:
    """How far the snapshot of a table is. ``after``: the key of the last row read, as the database writes it; ``key``:
    the columns and types of that key."""

    done: bool = False
    rows: int = 0
    rows_expected: int = 0
    after: list[str] | None = None
    filter: list[Any] | None = None
    """Of a table without a key: which transactions its snapshot has seen, and until where that is asked."""
    key: list[str] | None = None

    def go_on_by(self, key: Sequence[str]) -> list[str] | None:
        """After which row to go on, in the order of a key; None: from the beginning, also where the rows so far were
        read by another key, which says nothing about this one."""
        if self.after and (len(self.after) != len(key) or self.key not in (None, list(key))):
            self.after, self.rows = None, 0
        self.key = list(key)
        return self.after

    def as_json(self) -> dict[str, Any]:
        values = {"done": self.done, "rows": self.rows, "expected": self.rows_expected}
        return {
            **values,
            **({"after": self.after, "key": self.key} if self.after else {}),
            **({"filter": self.filter} if self.filter else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        return cls(
            values.get("done", False),
            values.get("rows", 0),
            values.get("expected", 0),
            values.get("after"),
            values.get("filter"),
            values.get("key"),
        )


@dataclass(slots=True)
class SourceStatus:
    """What a person wants to see: where the source stands, and how far behind the database it is."""

    position: str = ""
    lag_bytes: int | None = None
    retained_bytes: int | None = None
    health: str = "ok"
    lag_ms: int | None = None
    """How old the oldest change is that the log does not have; 0: it has all of them."""
    advice: str = ""
    """What to do where ``health`` is not ok, as a statement or a command."""


class Source(Protocol):
    @property
    def options(self) -> CaptureOptions:
        """With the schema in front of every name."""

    def columns(self) -> dict[str, list[str]]:
        """The columns of every captured table, by its full name; needs no ``start``."""

    @property
    def at_boundary(self) -> bool:
        """Whether everything read so far belongs to whole transactions."""

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        """Connect, check what capture needs, and go on after ``state``."""

    def read(self, wait_s: float) -> bool:
        """Take what is there, waiting up to ``wait_s`` for the first of it; False: nothing more is there."""

    def position(self) -> dict[str, Any]:
        """After everything read so far."""

    def committed(self, state: Mapping[str, Any]) -> None:
        """The log has everything up to ``state``."""

    def refresh(self) -> None:
        """Look at the catalogue: new tables that match, replaced ones, lost publications or triggers.

        Called about once per second, where ``at_boundary`` is true.
        """

    def resnapshot(self, tables: Sequence[str]) -> None:
        """Write a truncation of these tables (SCHEMA.TABLE) and read their rows again, while changes go on.

        Called where ``at_boundary`` is true. A table that is not captured is a UsageError.
        """

    def caught_up(self) -> bool:
        """Whether all that was committed in the database when capture started has been read."""

    def snapshots(self) -> dict[str, Progress]:
        """How far each table's snapshot is."""

    def status(self) -> SourceStatus:
        """Asks the database; needs no ``start``."""

    def check(self) -> list[str]:
        """Everything that capture needs of the database, without changing it; notes for the user come back."""

    def remove(self) -> list[str]:
        """Take away what capture has left in the database; what was removed comes back."""

    def close(self) -> None: ...


@contextmanager
def hiding_passwords(options: CaptureOptions) -> Iterator[None]:
    """Errors that pass through do not show the database's password, whatever a driver has put into them."""
    try:
        yield
    except HeadraceError as error:
        error.rewrite(options.database.hidden_in)
        raise


def _say_nothing(line: str) -> None:
    """For those who only check, ask or remove."""


def open_source(options: CaptureOptions, writer: Writer | None, say: Callable[[str], None] = _say_nothing) -> Source:
    """The source for an address. ``writer`` may be None for those who only check, ask or remove."""
    kind = options.database.kind
    try:
        with hiding_passwords(options):
            return _opened(kind, options, writer, say)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"capture needs {error.name}", "pip install 'headrace[capture]'") from error


def _opened(kind: str, options: CaptureOptions, writer: Writer | None, say: Callable[[str], None]) -> Source:
    """Drivers are loaded only for the database that is captured."""
    if kind == "postgresql" and options.triggers:
        from headrace.capture.postgres.triggers import TriggerSource

        return TriggerSource(options, writer, say)
    if kind == "postgresql":
        from headrace.capture.postgres.source import PostgresSource

        return PostgresSource(options, writer, say)
    if kind == "mysql":
        from headrace.capture.mariadb.source import MariadbSource

        return MariadbSource(options, writer, say)
    from headrace.capture.sqlite.source import SqliteSource

    return SqliteSource(options, writer, say)
