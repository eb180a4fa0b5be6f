"""The event store beside pyeventsourcing (the package eventsourcing), on SQLite and on PostgreSQL.

Both append events of 256 bytes, one per append, to streams chosen by a Zipf distribution, each append with the version
that it expects; both sync every commit (SQLite: WAL and synchronous=FULL; PostgreSQL: fsync and synchronous_commit). A
writer is a thread with streams that no other writer has, since pyeventsourcing would otherwise raise conflicts. Then a
reader reads streams, and another all events in order, as one that catches up. The two take turns in every round.

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
ROUNDS = 3
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


def write(side: Side, writers: int, appends: int) -> tuple[float, list[float]]:
    """Appends per second of all writers, and the time of each in seconds."""
    each = appends // writers
    times: list[list[float]] = [[] for _ in range(writers)]
    go = threading.Barrier(writers + 1)

    def work(number: int) -> None:
        chosen = random.Random(number)
        weights = [1 / (rank + 1) for rank in range(STREAMS_PER_WRITER)]
        picks = chosen.choices(range(STREAMS_PER_WRITER), weights, k=each)
        names = [uuid5(SPACE, f"{number}:{rank}") for rank in range(STREAMS_PER_WRITER)]
        versions = [0] * STREAMS_PER_WRITER
        go.wait()
        for pick in picks:
            versions[pick] += 1
            began = time.perf_counter()
            side.append(names[pick], versions[pick])
            times[number].append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    go.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    return each * writers / elapsed, sorted(value for mine in times for value in mine)


def reads(side: Side, count: int) -> float:
    """Events per second of a reader that reads the streams of a writer, one after another."""
    names = [uuid5(SPACE, f"0:{rank}") for rank in range(STREAMS_PER_WRITER)]
    began, events = time.perf_counter(), 0
    for number in range(count):
        events += side.read(names[number % 5])
    return events / (time.perf_counter() - began)


def catching_up(side: Side, times: int) -> float:
    began, events = time.perf_counter(), 0
    for _ in range(times):
        events += side.catch_up()
    return events / (time.perf_counter() - began)


Measured = dict[tuple[str, str], float]


def measure(make: Callable[[int], Any], appends: int) -> Measured:
    """Every workload once; each number of writers has a store of its own."""
    found: Measured = {}
    for place, writers in enumerate(WRITERS):
        with make(place) as side:
            rate, times = write(side, writers, appends * min(writers, 8))
            found["append", f"{writers} writers"] = rate
            found["append p99", f"{writers} writers"] = times[int(len(times) * 0.99)] * 1000
            if writers == 1:
                found["read", "streams"] = reads(side, appends // 2)
                found["catch-up", "all events"] = catching_up(side, 20)
    return found


def compared(where: str, our: list[Measured], their: list[Measured]) -> list[Figure]:
    figures = []
    for hop, case in our[0]:
        is_time = hop.endswith("p99")
        unit = "ms" if is_time else "appends/s" if hop == "append" else "events/s"
        figures.append(
            Figure(
                hop=f"{where} {hop}",
                case=case,
                unit=unit,
                ours=[each[hop, case] for each in our],
                peers=[each[hop, case] for each in their],
                peer=PEER,
                higher_is_better=not is_time,
                goal=1.0,
            )
        )
    return figures


def run(*, quick: bool = False) -> list[Figure]:
    rounds, appends = (1, 100) if quick else (ROUNDS, 400)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as temporary:
        folder = Path(temporary)
        our, their = [], []
        for turn in range(rounds):
            our.append(measure(lambda place, turn=turn: ours(f"sqlite:///{folder}/ours-{turn}-{place}.db"), appends))
            their.append(measure(lambda place, turn=turn: theirs(_sqlite(folder, turn, place)), appends))
        figures += compared("SQLite", our, their)
    with postgres({"fsync": "on", "wal_level": "replica", "max_wal_senders": "0"}) as server:
        our, their = [], []
        for turn in range(rounds):
            our.append(measure(lambda place, turn=turn: ours(_database(server, f"ours_{turn}_{place}")), appends))
            their.append(measure(lambda place, turn=turn: theirs(_postgres(server, turn, place)), appends))
        figures += compared("PostgreSQL", our, their)
    return figures


def _sqlite(folder: Path, turn: int, place: int) -> dict[str, str]:
    return {
        "PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "SQLITE_DBNAME": f"{folder}/theirs-{turn}-{place}.db",
        "SQLITE_LOCK_TIMEOUT": "60",
    }


def _database(server: Any, name: str) -> str:
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    url: str = server.url(name)
    return url


def _postgres(server: Any, turn: int, place: int) -> dict[str, str]:
    name = f"theirs_{turn}_{place}"
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
