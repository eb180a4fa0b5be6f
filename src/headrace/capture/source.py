"""What a database must offer to be captured, and the errors that are the same for all of them.

    source = open_source(options, writer)
    source.start(state)                     # where to go on; {} the first time
    source.read(wait_s)                     # changes go into the writer as they come
    writer.commit(source.position())        # events and position together
    source.committed()                      # the database may forget what came before

``read`` returns when nothing more is there at the moment, or when the writer holds enough. Between two calls the source
stands anywhere, also inside a transaction; ``at_boundary`` tells. ``position`` is right at any such moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.capture.options import CaptureOptions
    from headrace.capture.writer import Writer

__all__ = ["DatabaseGone", "PositionLost", "Progress", "Source", "SourceStatus", "open_source"]


class DatabaseGone(HeadraceError):
    """The database cannot be reached at the moment: capture tries again."""


class PositionLost(HeadraceError):
    """The database no longer has what comes behind the position in the log: a person must decide what to do."""


@dataclass(slots=True)
class Progress:
    """How far the snapshot of a table is. ``after``: the key of the last row read, as the database writes it."""

    done: bool = False
    rows: int = 0
    rows_expected: int = 0
    after: list[str] | None = None
    filter: list[Any] | None = None
    """Of a table without a key: which transactions its snapshot has seen, and until where that is asked."""

    def as_json(self) -> dict[str, Any]:
        values = {"done": self.done, "rows": self.rows, "expected": self.rows_expected}
        return {
            **values,
            **({"after": self.after} if self.after else {}),
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
        )


@dataclass(slots=True)
class SourceStatus:
    """What a person wants to see: where the source stands, and how far behind the database it is."""

    position: str = ""
    lag_bytes: int | None = None
    retained_bytes: int | None = None
    health: str = "ok"


class Source(Protocol):
    @property
    def at_boundary(self) -> bool:
        """Whether everything read so far belongs to whole transactions."""

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        """Connect, check what capture needs, and go on behind ``state``."""

    def read(self, wait_s: float) -> bool:
        """Take what is there, waiting up to ``wait_s`` for the first of it; False: nothing more is there."""

    def position(self) -> dict[str, Any]:
        """Behind everything read so far."""

    def committed(self, state: Mapping[str, Any]) -> None:
        """The log has everything up to ``state``."""

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


def open_source(options: CaptureOptions, writer: Writer | None) -> Source:
    """The source for an address. ``writer`` may be None for those who only check, ask or remove."""
    kind = options.database.kind
    try:
        if kind == "postgresql" and options.triggers:
            from headrace.capture.postgres_triggers import TriggerSource

            return TriggerSource(options, writer)
        if kind == "postgresql":
            from headrace.capture.postgres import PostgresSource

            return PostgresSource(options, writer)
        if kind == "mysql":
            from headrace.capture.mariadb import MariadbSource

            return MariadbSource(options, writer)
        from headrace.capture.sqlite import SqliteSource

        return SqliteSource(options, writer)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"capture needs {error.name}", "pip install 'headrace[capture]'") from error
