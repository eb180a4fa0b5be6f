"""What can go wrong with events, as a tree.

HeadraceError
└── SourcingError
    ├── AppendConflict        somebody else appended first: load again, decide again (``retriable``)
    ├── WriterBusy            a log has another writer, which is named
    ├── SubjectIsForgotten    nothing can be written about a subject that was forgotten
    ├── TakenOver             a projection or process runs in another place, which is named
    └── StoreUnavailable      the database or broker cannot be reached at the moment (``retriable``)
"""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = [
    "AppendConflict",
    "SourcingError",
    "StoreUnavailable",
    "SubjectIsForgotten",
    "TakenOver",
    "WriterBusy",
]


class SourcingError(HeadraceError):
    """The root of what event sourcing raises."""


class AppendConflict(SourcingError):
    """An append expected another state of the store than it found. ``actual`` is the version of the stream."""

    retriable = True

    def __init__(self, message: str, *, stream: str | None = None, actual: int | None = None) -> None:
        super().__init__(message)
        self.stream = stream
        self.actual = actual


class WriterBusy(SourcingError):
    """A log takes one writer at a time, and ``owner`` is it."""

    retriable = True

    def __init__(self, message: str, owner: str) -> None:
        super().__init__(message)
        self.owner = owner


class SubjectIsForgotten(SourcingError):
    """The key of the subject was destroyed, and no new one is made for it."""


class TakenOver(SourcingError):
    """Another process has taken a projection or a process manager over; this one stops."""


class StoreUnavailable(SourcingError):
    """The store cannot be reached at the moment."""

    retriable = True
