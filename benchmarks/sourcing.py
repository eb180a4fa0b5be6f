"""The event store beside pyeventsourcing (the package eventsourcing), on SQLite and on PostgreSQL.

Both append events of 256 bytes, one per append, to streams chosen by a Zipf distribution, each append with the version
that it expects; both sync every commit (SQLite: WAL and synchronous=FULL; PostgreSQL: fsync and synchronous_commit). A
writer is a thread with streams that no other writer has, since pyeventsourcing would otherwise raise conflicts. Then a
reader reads streams, and another all events in order, as one that catches up. The two take turns in short bursts, the
order reversed each time, after one burst each that does not count.

An append begins with a dict on both sides, and each makes JSON of it with its own encoder. When reading, neither
decodes: pyeventsourcing gives bytes, ours decodes when ``data`` is looked at. On SQLite everything happens in this
process, so its CPU time is measured, too; it is disturbed less by other processes than rates are.
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID, uuid5

from benchmarks.figures import Figure
from headrace.sourcing import Event, EventStore, open_store
from headrace.testing.postgres import postgres
from tests.servers.process import CannotRun

__all__ = ["run"]

T = TypeVar("T")
PEER = "pyeventsourcing"
EVENT_BYTES = 256
STREAMS_PER_WRITER = 50
SYNCHRONOUS_FULL = 2
WRITERS = (1, 8, 32)
SPACE = UUID(int=17)
DATA = {"data": "x" * (EVENT_BYTES - len('{"data":""}'))}
NEEDED = {"eventsourcing": "eventsourcing", "psycopg": "psycopg[binary]", "psycopg_pool": "psycopg-pool"}
"""Modules that it imports, with the packages that have them."""


class Side(Protocol):
    """One of the two, with an empty store."""

    def named(self, stream: UUID) -> Any:
        """The stream as this side names it."""

    def append(self, stream: Any, version: int) -> None: ...

    def read(self, stream: Any) -> int: ...

    def catch_up(self) -> int: ...


class Ours:
    def __init__(self, store: EventStore) -> None:
        self._store = store

    @property
    def appends_per_commit(self) -> float:
        return self._store.appends / self._store.commits

    def named(self, stream: UUID) -> str:
        return stream.hex  # as pyeventsourcing stores it

    def append(self, stream: str, version: int) -> None:
        self._store.append(stream, Event("Happened", DATA), expected=version - 1)

    def read(self, stream: str) -> int:
        return sum(1 for _ in self._store.read(stream))

    def catch_up(self) -> int:
        return sum(1 for _ in self._store.subscribe(until_current=True))


class Theirs:
    def __init__(self, recorder: Any, stored_event: Any, encode: Callable[[Any], bytes]) -> None:
        self._recorder = recorder
        self._event = stored_event
        self._encode = encode

    def named(self, stream: UUID) -> UUID:
        return stream

    def append(self, stream: UUID, version: int) -> None:
        state = self._encode(DATA)
        self._recorder.insert_events(
            [self._event(originator_id=stream, originator_version=version, topic="Happened", state=state)]
        )

    def read(self, stream: UUID) -> int:
        return len(self._recorder.select_events(stream))

    def catch_up(self) -> int:
        found, last = 0, 0
        while notifications := self._recorder.select_notifications(last, 1000, inclusive_of_start=False):
            found, last = found + len(notifications), notifications[-1].id
        return found


@contextmanager
def ours(url: str) -> Iterator[Side]:
    with open_store(url) as store:
        yield Ours(store)


@contextmanager
def theirs(environment: dict[str, str]) -> Iterator[Side]:
    from eventsourcing.persistence import InfrastructureFactory, JSONTranscoder, StoredEvent
    from eventsourcing.utils import Environment

    factory: Any = InfrastructureFactory.construct(Environment("bench", environment))
    try:
        if "SQLITE_DBNAME" in environment:
            _check_synced(factory.datastore)
        yield Theirs(factory.application_recorder(), StoredEvent, JSONTranscoder().encode)
    finally:
        factory.close()


def _check_synced(datastore: Any) -> None:
    """It takes SQLite's default, which some builds have changed to a sync at checkpoints only."""
    with datastore.transaction(commit=False) as cursor:
        cursor.execute("pragma synchronous")
        (synchronous,) = cursor.fetchone()
    if synchronous < SYNCHRONOUS_FULL:
        raise CannotRun(
            f"{PEER} does not sync every commit with this SQLite (synchronous={synchronous}), and ours does"
        )


# ---- workloads ------------------------------------------------------------------------------------------------------


class Writer:
    """One thread's streams, and how far each of them is."""

    def __init__(self, side: Side, number: int) -> None:
        self._chosen = random.Random(number)
        self._weights = [1 / (rank + 1) for rank in range(STREAMS_PER_WRITER)]
        self._names = [side.named(uuid5(SPACE, f"{number}:{rank}")) for rank in range(STREAMS_PER_WRITER)]
        self._versions = [0] * STREAMS_PER_WRITER
        self.times_s: list[float] = []
        """Of the appends of the last burst."""

    def work(self, side: Side, appends: int, go: threading.Barrier) -> None:
        picks = self._chosen.choices(range(STREAMS_PER_WRITER), self._weights, k=appends)
        self.times_s = []
        go.wait()
        for pick in picks:
            self._versions[pick] += 1
            began = time.perf_counter()
            side.append(self._names[pick], self._versions[pick])
            self.times_s.append(time.perf_counter() - began)


class Burst(NamedTuple):
    """Of all writers together."""

    appends_per_s: float
    p99_ms: float
    cpu_us: float
    """Of this process, per append."""


def burst(side: Side, writers: list[Writer], appends: int) -> Burst:
    go = threading.Barrier(len(writers) + 1)
    each = max(1, appends // len(writers))
    threads = [threading.Thread(target=writer.work, args=(side, each, go)) for writer in writers]
    for thread in threads:
        thread.start()
    go.wait()
    began, cpu_began = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    took_s, cpu_s, count = time.perf_counter() - began, time.process_time() - cpu_began, each * len(writers)
    return Burst(count / took_s, p99_ms(writers), cpu_s / count * 1e6)


def reads(side: Side, count: int) -> float:
    """Events per second of a reader that reads the streams of a writer, one after another."""
    names = [side.named(uuid5(SPACE, f"0:{rank}")) for rank in range(5)]
    began, events = time.perf_counter(), 0
    for number in range(count):
        events += side.read(names[number % 5])
    return events / (time.perf_counter() - began)


def catching_up(side: Side) -> float:
    began = time.perf_counter()
    return side.catch_up() / (time.perf_counter() - began)


def p99_ms(writers: list[Writer]) -> float:
    times_s = sorted(value for writer in writers for value in writer.times_s)
    return times_s[int(len(times_s) * 0.99)] * 1000


def compared(where: str, hop: str, case: str, unit: str, ours: list[float], theirs: list[float]) -> Figure:
    is_time = unit in ("ms", "µs")
    return Figure(
        hop="sourcing",
        case=f"{where}: {hop}, {case}",
        unit=unit,
        ours=ours,
        peers=theirs,
        peer=PEER,
        higher_is_better=not is_time,
        goal=1.0,
    )


Make = Callable[[str], Any]


def measure(where: str, our: Make, their: Make, bursts: int, appends: int) -> list[Figure]:
    """Both stores are open, and take turns in short bursts: a disk that is busy for a second is so for both."""
    figures: list[Figure] = []
    for count in WRITERS:
        with our(f"ours_{count}") as first, their(f"theirs_{count}") as second:
            sides: list[Side] = [first, second]
            writers = [[Writer(side, number) for number in range(count)] for side in sides]
            found = in_turn(
                [
                    partial(burst, side, mine, appends * min(count, 4))
                    for side, mine in zip(sides, writers, strict=True)
                ],
                bursts,
            )
            case = f"{count} writer{'s' if count > 1 else ''}"
            for name, hop, unit in APPENDS[: 3 if where == "SQLite" else 2]:
                values = ([getattr(each, name) for each in one] for one in found)
                figures.append(compared(where, hop, case, unit, *values))
            if isinstance(first, Ours):
                figures.append(_sharing(where, case, first))
            if count == 1:
                taken = in_turn([partial(reads, side, 100) for side in sides], bursts)
                figures.append(compared(where, "read", "streams", "events/s", *taken))
                taken = in_turn([partial(catching_up, side) for side in sides], bursts)
                figures.append(compared(where, "catch-up", "all", "events/s", *taken))
    return figures


APPENDS = (
    ("appends_per_s", "append", "appends/s"),
    ("p99_ms", "append p99", "ms"),
    ("cpu_us", "CPU per append", "µs"),
)


def in_turn(works: Sequence[Callable[[], T]], rounds: int) -> list[list[T]]:
    """What each gives, round by round; the order is reversed each time, and the first round does not count."""
    found: list[list[T]] = [[] for _ in works]
    for number in range(rounds + 1):
        for index in range(len(works))[:: 1 if number % 2 else -1]:
            found[index].append(works[index]())
    return [each[1:] for each in found]


def _sharing(where: str, case: str, side: Ours) -> Figure:
    return Figure(
        hop="sourcing",
        case=f"{where}: appends per commit, {case}",
        unit="appends",
        ours=[side.appends_per_commit],
        peers=[1.0],
        peer=PEER,
        note="counted: does not depend on the machine's load",
    )


def run(*, quick: bool = False) -> list[Figure]:
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise CannotRun(f"packages are missing: pip install {' '.join(missing)}, or build .venv with `make setup`")
    bursts, appends = (3, 20) if quick else (15, 150)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as temporary:
        folder = Path(temporary)
        figures = measure(
            "SQLite",
            lambda name: ours(f"sqlite:///{folder}/{name}.db"),
            lambda name: theirs(_sqlite(folder, name)),
            bursts,
            appends,
        )
    with postgres({"fsync": "on", "wal_level": "replica", "max_wal_senders": "0"}) as server:
        figures += measure(
            "PostgreSQL",
            lambda name: ours(_database(server, name)),
            lambda name: theirs(_postgres(server, name)),
            bursts,
            appends,
        )
    return figures


def _sqlite(folder: Path, name: str) -> dict[str, str]:
    return {
        "PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "SQLITE_DBNAME": f"{folder}/{name}.db",
        "SQLITE_LOCK_TIMEOUT": "60",
    }


def _database(server: Any, name: str) -> str:
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    url: str = server.url(name)
    return url


def _postgres(server: Any, name: str) -> dict[str, str]:
    _database(server, name)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": name,
        "POSTGRES_HOST": "127.0.0.1",
        "POSTGRES_PORT": str(server.port),
        "POSTGRES_USER": "postgres",
        "POSTGRES_PASSWORD": "postgres",
        "POSTGRES_POOL_SIZE": "8",
        "POSTGRES_MAX_OVERFLOW": "24",
        "POSTGRES_MAX_WAITING": "100",
        "POSTGRES_LOCK_TIMEOUT": "60",
    }
