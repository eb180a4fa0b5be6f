"""Appends on their way into a store, and how those of many threads share one commit.

A commit costs a sync of the disk, whatever it holds. So a thread that appends puts its request into a queue. If nobody
writes, it becomes the leader: it takes the queue, writes all of it in one transaction, and reports to each request its
own outcome. Requests that come meanwhile wait for the next leader, which is the first of them. A single thread pays
nothing for this; with many, one sync serves all that wait.

Requests of one batch are decided one after another, in the order of the queue: a request that conflicts changes
nothing, and the one after it sees the events of those before it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from headrace.errors import UsageError
from headrace.sourcing.errors import AppendConflict, StoreUnavailable
from headrace.sourcing.events import ANY, EXISTS, NONE, Condition, Expected, Row

__all__ = [
    "Appended",
    "Appends",
    "EventRow",
    "GroupCommit",
    "Part",
    "Progress",
    "Request",
    "check_expected",
    "repeated_by_ids",
    "repeated_of",
    "retrying",
]

T = TypeVar("T")
BATCH_REQUESTS_MAX = 256
RETRY_PAUSE_S_MAX = 0.1

EventRow = tuple[str, str, int, str, str, str | None, str | None, str | None]
"""event_id, type, schema_version, data, tags, correlation_id, causation_id, actor. The id is empty where the
application gave none and the store makes it from the position."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a process has read, kept in the store. ``position`` must be greater than the one that is kept; otherwise
    the append is an ``AppendConflict``.
    """

    name: str
    position: int


class Part(NamedTuple):
    """The events of a request that go to one stream, or to none."""

    stream: str | None
    expected: Expected
    rows: Sequence[EventRow]
    tags: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append has done. ``repeated``: it was done before, by the same event ids or the same command."""

    position: int
    """Of the last event."""
    first_position: int
    versions: dict[str, int]
    """Of each stream, after the append."""
    repeated: bool = False

    @property
    def version(self) -> int:
        """Of the stream, where the append was to one."""
        return next(iter(self.versions.values()), 0)


@dataclass(slots=True, eq=False)
class Request:
    """One append. Its events become visible together, or not at all."""

    parts: Sequence[Part]
    command_id: str | None = None
    condition: Condition | None = None
    progress: Progress | None = None
    checks_ids: bool = False
    """Whether event ids were given by the caller, so that they may be there already."""
    outcome: Appended | BaseException | None = None
    batch: list[Request] = field(default_factory=list)
    """What it has taken to write, while it leads."""
    wake: Any = None
    """The lock that it waits with, if it waits."""

    @property
    def event_ids(self) -> list[str]:
        return [row[0] for part in self.parts for row in part.rows]

    @property
    def event_streams(self) -> list[str | None]:
        return [part.stream for part in self.parts for _ in part.rows]


def _locked() -> Any:
    lock = threading.Lock()
    lock.acquire()
    return lock


class GroupCommit:
    """See the module. ``write`` gives every request of a batch its outcome; what it raises is everybody's.

    A thread can be interrupted anywhere (Ctrl-C). Who leads is part of the state, and so is what a leader has taken: a
    thread that leaves early, for whatever reason, hands the lead on and reports to those it has taken.
    """

    def __init__(self, write: Callable[[Sequence[Request]], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._queue: list[Request] = []
        self._leader: Request | None = None
        self.requests = 0
        self.batches = 0

    def submit(self, request: Request) -> Appended:
        try:
            self._join(request)
            if request.outcome is None:
                self._lead(request)
        except BaseException as error:
            self._leave(request, error)
            raise
        outcome = request.outcome
        assert outcome is not None, "a batch was written without an outcome for each of its requests"
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _join(self, request: Request) -> None:
        """Wait until the request was written, or leads."""
        with self._lock:
            if self._leader is None:  # nor is there a queue
                self._leader = request
                self._take(request, [request])
                return
            request.wake = _locked()
            self._queue.append(request)
        request.wake.acquire()

    def _take(self, own: Request, batch: list[Request]) -> None:
        own.batch = batch
        self.requests += len(batch)
        self.batches += 1

    def _lead(self, own: Request) -> None:
        if not own.batch:
            with self._lock:
                self._take(own, self._queue[:BATCH_REQUESTS_MAX])
                del self._queue[:BATCH_REQUESTS_MAX]
        try:
            self._write(own.batch)
        except BaseException as error:
            for each in own.batch:
                each.outcome = error if each is own else _for_another_thread(error)
        self._hand_over(own)

    def _leave(self, own: Request, error: BaseException) -> None:
        """The thread was interrupted."""
        with self._lock:
            self._queue = [each for each in self._queue if each is not own and each not in own.batch]
        for each in own.batch:
            if each.outcome is None:
                each.outcome = _for_another_thread(error)
        self._hand_over(own)

    def _hand_over(self, own: Request) -> None:
        """The first that waits leads: it wakes without an outcome. Those that ``own`` has taken wake with theirs."""
        with self._lock:
            if self._leader is own:
                self._leader = self._queue[0] if self._queue else None
                if self._leader is not None:
                    _wake(self._leader)
        for each in own.batch:
            if each is not own:
                _wake(each)


def _wake(request: Request) -> None:
    with suppress(RuntimeError):  # it was woken before
        request.wake.release()


def _for_another_thread(error: BaseException) -> BaseException:
    """A copy: an exception belongs to one thread, and its traceback grows where it is raised."""
    if not isinstance(error, Exception):
        return StoreUnavailable("the thread that wrote was interrupted: whether the append was committed is not known")
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


class Appends:
    """Counts appends of this process, for those who wait for the next one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def happened(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout_s: float) -> None:
        """Until there was one after ``seen``, or for a while: other processes append too."""
        with self._changed:
            if self._count == seen:
                self._changed.wait(timeout_s)


def check_expected(stream: str, expected: Expected, actual: int) -> None:
    """Raise unless the stream has the version that was expected."""
    if expected in (ANY, actual) or (expected == EXISTS and actual) or (expected == NONE and not actual):
        return
    wanted = {NONE: "no event", EXISTS: "at least one event"}.get(str(expected), f"version {expected}")
    found = f"is at version {actual}" if actual else "has no event"
    raise AppendConflict(
        f"stream {stream} {found}, and the append expected {wanted}: read it again and decide again",
        stream=stream,
        actual=actual,
    )


def retrying(attempt: Callable[[], T], *, attempts: int = 5, pause_s: float = 0.002) -> T:
    """Call until there is no conflict: ``attempt`` reads, decides and appends. The last conflict is raised."""
    for left in range(attempts - 1, -1, -1):
        try:
            return attempt()
        except AppendConflict:
            if not left:
                raise
            time.sleep(random.uniform(0, pause_s))
            pause_s = min(pause_s * 2, RETRY_PAUSE_S_MAX)
    raise UsageError("an attempt must be allowed at least once", "attempts=5")


def repeated_of(rows: Sequence[Row]) -> Appended:
    """What an earlier append has done, from the position, stream and version of its events."""
    versions = {stream: version for _, stream, version in rows if stream is not None}
    return Appended(rows[-1][0], rows[0][0], versions, repeated=True)


def repeated_by_ids(wanted: Sequence[str | None], rows: Sequence[Row]) -> Appended | None:
    """The same for the events that have the ids of an append; ``wanted`` are the streams of its events, in order."""
    if not rows:
        return None
    rows = sorted(rows)
    if [row[1] for row in rows] == list(wanted):
        return repeated_of(rows)
    raise AppendConflict(
        f"{len(rows)} of the {len(wanted)} event ids are in the store already, and not by the same append: "
        "an id belongs to one event"
    )
