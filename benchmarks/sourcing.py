"""The event store beside pyeventsourcing (the package eventsourcing), on SQLite and on PostgreSQL.

Both append events of 256 bytes, one per append, to streams chosen by a Zipf distribution, each append with the version
that it expects; both sync every commit (SQLite: WAL and synchronous=FULL; PostgreSQL: fsync and synchronous_commit). A
writer is a thread with streams that no other writer has, since pyeventsourcing would otherwise raise conflicts. Then a
reader reads streams, and another all events in order, as one that catches up. The two take turns in short bursts.

Neither decodes the data of an event: pyeventsourcing gives bytes, ours decodes when ``data`` is looked at.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID, uuid5

from benchmarks.figures import Figure
from headrace.sourcing import Event, EventStore, open_store
from headrace.testing.postgres import postgres

__all__ = ["run"]

PEER = "pyeventsourcing"
EVENT_BYTES = 256
STREAMS_PER_WRITER = 50
WRITERS = (1, 8, 32)
SPACE = UUID(int=17)
DATA = "x" * (EVENT_BYTES - len('{"data":""}'))


class Side(Protocol):
    """One of the two, with an empty store."""

    def append(self, stream: UUID, version: int) -> None: ...

    def read(self, stream: UUID) -> int: ...

    def catch_up(self) -> int: ...


class Ours:
    def __init__(self, store: EventStore) -> None:
        self._store = store

    @property
    def appends_per_commit(self) -> float:
        return self._store.appends / self._store.commits

    def append(self, stream: UUID, version: int) -> None:
        self._store.append(str(stream), Event("Happened", {"data": DATA}), expected=version - 1)

    def read(self, stream: UUID) -> int:
        return sum(1 for _ in self._store.read(str(stream)))

    def catch_up(self) -> int:
        return sum(1 for _ in self._store.subscribe(until_current=True))


class Theirs:
    def __init__(self, recorder: Any, stored_event: Any) -> None:
        self._recorder = recorder
        self._event = stored_event

    def append(self, stream: UUID, version: int) -> None:
        state = b'{"data":"%b"}' % DATA.encode()
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
    from eventsourcing.persistence import InfrastructureFactory, StoredEvent
    from eventsourcing.utils import Environment

    factory: Any = InfrastructureFactory.construct(Environment("bench", environment))
    try:
        yield Theirs(factory.application_recorder(), StoredEvent)
    finally:
        factory.close()


# ---- workloads ------------------------------------------------------------------------------------------------------


class Writer:
    """One thread's streams, and how far each of them is."""

    def __init__(self, number: int) -> None:
        self._chosen = random.Random(number)
        self._weights = [1 / (rank + 1) for rank in range(STREAMS_PER_WRITER)]
        self._names = [uuid5(SPACE, f"{number}:{rank}") for rank in range(STREAMS_PER_WRITER)]
        self._versions = [0] * STREAMS_PER_WRITER
        self.times_s: list[float] = []

    def work(self, side: Side, appends: int, go: threading.Barrier) -> None:
        picks = self._chosen.choices(range(STREAMS_PER_WRITER), self._weights, k=appends)
        go.wait()
        for pick in picks:
            self._versions[pick] += 1
            began = time.perf_counter()
            side.append(self._names[pick], self._versions[pick])
            self.times_s.append(time.perf_counter() - began)


def burst(side: Side, writers: list[Writer], appends: int) -> float:
    """Appends per second of all writers together."""
    go = threading.Barrier(len(writers) + 1)
    each = max(1, appends // len(writers))
    threads = [threading.Thread(target=writer.work, args=(side, each, go)) for writer in writers]
    for thread in threads:
        thread.start()
    go.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return each * len(writers) / (time.perf_counter() - began)


def reads(side: Side, count: int) -> float:
    """Events per second of a reader that reads the streams of a writer, one after another."""
    names = [uuid5(SPACE, f"0:{rank}") for rank in range(5)]
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
    is_time = unit == "ms"
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
            writers = [[Writer(number) for number in range(count)] for _ in sides]
            rates: list[list[float]] = [[], []]
            for _ in range(bursts):
                for side, mine, found in zip(sides, writers, rates, strict=True):
                    found.append(burst(side, mine, appends * min(count, 8)))
            case = f"{count} writer{'s' if count > 1 else ''}"
            figures.append(compared(where, "append", case, "appends/s", *rates))
            figures.append(compared(where, "append p99", case, "ms", *([p99_ms(mine)] for mine in writers)))
            if isinstance(first, Ours):
                figures.append(_sharing(where, case, first))
            if count == 1:
                taken = [[reads(side, 100) for side in sides] for _ in range(bursts)]
                figures.append(compared(where, "read", "streams", "events/s", *map(list, zip(*taken, strict=True))))
                taken = [[catching_up(side) for side in sides] for _ in range(bursts)]
                figures.append(compared(where, "catch-up", "all", "events/s", *map(list, zip(*taken, strict=True))))
    return figures


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
    bursts, appends = (3, 20) if quick else (15, 40)
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
