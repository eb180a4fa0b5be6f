"""Kill -9 under joins, views and weighted rows: ``python -m tests.chaos.tables --kills 10 --seed 7``.

The pipelines of ``table_pipelines`` read a captured table in two partitions (with truncations, deletions, null columns,
values that were not sent, and updates that come before their row), a keyed topic with tombstones, and events (out of
order, repeated, late, with equal times and without a key). Python workers are killed, and then their driver: Python
alone, the JVM too, or all processes. The next run ends by itself, what was written is compared with plain loops over
the input, and the state is shared among another number of tasks. Workers may cache next to nothing, so state is read
again.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from headrace.client import (
    Admin,
    Client,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Producer,
    TopicPartition,
    end_offsets,
)
from headrace.testing import broker as start_broker
from headrace.vocabulary import UNAVAILABLE
from tests.chaos.spark_life import Life, LifeEnded
from tests.waiting import eventually

FILE = Path(__file__).with_name("table_pipelines.py")
START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
LATENESS_S = 5
PARTITIONS = 2
PEOPLE = 12
STRANGERS = range(100, 104)
"""Never visited: an update may be the first that is heard of them."""
CITIES = ("Rome", "Oslo", "Bern", None)
CHANGES_AT_ONCE = 40
PATIENCE_S = 900.0
PIPELINES = ("groups", "named", "paired", "adults", "visited", "latest")
PARTS = (*["worker"] * 8, "driver-python", "machine")
"""What is killed, and how often. A new driver takes longer to come than all else together."""
CONF = (
    "spark.master=local[2,4]",
    "spark.driver.memory=768m",
    "spark.headrace.state.buckets=3",
    "spark.headrace.state.cacheBytes=20000",
    "spark.sql.streaming.pollingDelay=200ms",
)
Row = dict[str, Any]


class Wrong(Exception):
    """What was written is not what the input comes to."""


@dataclass(slots=True)
class Input:
    """What was sent, in the order of each partition."""

    people: list[list[Row | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """Envelopes; None is the tombstone after a deletion."""
    cities: list[tuple[str, str | None]] = field(default_factory=list)
    visits: list[Row] = field(default_factory=list)
    late: set[int] = field(default_factory=set)


class Generator:
    def __init__(self, chance: random.Random, bootstrap: str) -> None:
        self.chance, self.bootstrap, self.sent = chance, bootstrap, Input()
        self.now_s = 0
        self.visit = 0

    def send(self, *, late: bool) -> None:
        """Some of everything. ``late``: the runs before have ended, so the watermark is where it will be."""
        with Client(self.bootstrap) as client, Producer(client) as producer:
            if late and self.now_s:
                self._visit(producer, self.now_s - 3600, late=True)
            for _ in range(CHANGES_AT_ONCE):
                self.now_s += self.chance.choice((0, 0, 1, 2))
                self._change(producer)
                if self.chance.random() < 0.2:
                    name, boss = self.chance.choice(CITIES[:3]), self.chance.choice(("ann", "bob", None))
                    self.sent.cities.append((name, boss))
                    value = None if boss is None else json.dumps({"name": name, "boss": boss}).encode()
                    producer.send("cities", value, key=name.encode(), partition=0)
                for _ in range(self.chance.choice((0, 1, 2))):
                    self._visit(producer, self.now_s - self.chance.choice((0, 0, 1, LATENESS_S - 1)))

    def close(self) -> None:
        """Times beyond all others, so that every visit has its answer."""
        self.now_s += 10_000
        with Client(self.bootstrap) as client, Producer(client) as producer:
            self._row(producer, "c", {"id": 999, "city": None, "age": None, "paid": None, "bio": "the end"})
            self._visit(producer, self.now_s, late=True)

    def _visit(self, producer: Producer, second: int, *, late: bool = False) -> None:
        self.visit += 1
        who = self.chance.choice((None, *range(PEOPLE)))
        row = {"n": self.visit, "who": who, "at": (START + timedelta(seconds=second)).isoformat()}
        for _ in range(2 if self.chance.random() < 0.1 and not late else 1):
            self.sent.visits.append(row)
            producer.send("visits", json.dumps(row).encode(), partition=0)
        if late:
            self.sent.late.add(self.visit)

    def _change(self, producer: Producer) -> None:
        kind = self.chance.random()
        if kind < 0.02:
            for partition in range(PARTITIONS):
                self._envelope(producer, partition, None, {"op": "t", "partitions": PARTITIONS})
            return
        number = self.chance.choice((*range(PEOPLE), *STRANGERS))
        there = number in after(self.sent.people[number % PARTITIONS])
        if kind < 0.2 and there:
            self._row(producer, "d", {"id": number})
            return
        bio = (
            UNAVAILABLE if self.chance.random() < 0.4 and (there or number in STRANGERS) else f"b{self.chance.random()}"
        )
        age = self.chance.choice((None, 5, 17, 18, 19, 30, 65))
        paid = self.chance.choice((None, "0.10", "0.20", "-3.33", "99999999.99"))
        row = {"id": number, "city": self.chance.choice(CITIES), "age": age, "paid": paid, "bio": bio}
        self._row(producer, "u" if there or bio == UNAVAILABLE else "c", row)

    def _row(self, producer: Producer, op: str, row: Row) -> None:
        partition, key = row["id"] % PARTITIONS, json.dumps({"id": row["id"]}).encode()
        if op == "d":
            self._envelope(producer, partition, key, {"op": "d", "before": row, "after": None})
            self.sent.people[partition].append(None)
            producer.send("people", None, key=key, partition=partition)
        else:
            self._envelope(producer, partition, key, {"op": op, "before": None, "after": row})

    def _envelope(self, producer: Producer, partition: int, key: bytes | None, value: Row) -> None:
        whole = {"ts_ms": int((START.timestamp() + self.now_s) * 1000), **value}
        self.sent.people[partition].append(whole)
        producer.send("people", json.dumps(whole).encode(), key=key, partition=partition)


# ---- plain loops over the input -------------------------------------------------------------------------------------


def after(records: list[Row | None], until_ms: int | None = None) -> dict[int, tuple[Row, int]]:
    """The rows of a partition and the offsets of their versions; those that still lack a value too."""
    rows: dict[int, tuple[Row, int]] = {}
    for offset, value in enumerate(records):
        if value is None:
            continue
        if until_ms is not None and value["ts_ms"] > until_ms:
            break
        if value["op"] == "t":
            rows.clear()
        elif value["op"] == "d":
            rows.pop(value["before"]["id"], None)
        else:
            row = dict(value["after"])
            if row["bio"] == UNAVAILABLE and row["id"] in rows:
                row["bio"] = rows[row["id"]][0]["bio"]
            rows[row["id"]] = row, offset
    return rows


def people_of(sent: Input) -> dict[int, Row]:
    found = {number: row for records in sent.people for number, (row, _) in after(records).items()}
    return {number: row for number, row in found.items() if row["bio"] != UNAVAILABLE}


def cities_of(sent: Input) -> dict[str, str]:
    return {name: boss for name, boss in dict(sent.cities).items() if boss is not None}


def groups_of(people: dict[int, Row]) -> Iterator[Row]:
    for city in {row["city"] for row in people.values()}:
        rows = sorted((row for row in people.values() if row["city"] == city), key=lambda row: row["id"])
        ages = [row["age"] for row in rows if row["age"] is not None]
        paid = [Decimal(row["paid"]) for row in rows if row["paid"] is not None]
        yield {
            "city": city,
            "number": len(rows),
            "known": len(ages),
            "paid": sum(paid) if paid else None,
            "youngest": min(ages, default=None),
            "oldest": max(ages, default=None),
            "ages": len(set(ages)),
            "first": [{"id": row["id"], "bio": row["bio"]} for row in rows[:2]],
        }


def pairs_of(people: dict[int, Row], cities: dict[str, str]) -> Iterator[tuple[Any, ...]]:
    for number, row in people.items():
        yield number, row["city"], row["bio"], cities.get(row["city"])
    for name in cities.keys() - {row["city"] for row in people.values()}:
        yield None, name, None, cities[name]


def visited_of(sent: Input) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for visit in sent.visits:
        if visit["n"] in sent.late:
            continue
        row, version = None, None
        if visit["who"] is not None:
            partition = visit["who"] % PARTITIONS
            at_ms = int(datetime.fromisoformat(visit["at"]).timestamp() * 1000)
            row, offset = after(sent.people[partition], at_ms).get(visit["who"], (None, None))
            version = None if row is None else f"people/{partition}/{offset}"
        found[visit["n"], version, row and row["city"], row and row["bio"]] += 1
    return found


# ---- what was written -----------------------------------------------------------------------------------------------


def topic(bootstrap: str, name: str) -> Iterator[tuple[bytes | None, Row | None]]:
    with Client(bootstrap) as client:
        places = [TopicPartition(name, each) for each in range(len(client.topic(name).partitions))]
        ends = end_offsets(client, places, read_committed=True)
        consumer = Consumer(client, ConsumerOptions(reset="earliest", fetch=FetchOptions(read_committed=True)))
        consumer.assign(dict.fromkeys(places, 0))
        while any(consumer.positions[each] < ends[each] for each in places):
            for records in consumer.poll(500).values():
                for record in records:
                    value = None if record.value is None else json.loads(record.value, parse_float=Decimal)
                    yield record.key, value


def folded(bootstrap: str, name: str) -> list[Row]:
    found: dict[bytes | None, Row] = {}
    for key, value in topic(bootstrap, name):
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return list(found.values())


def rows_in(home: Path, name: str, columns: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home / f"{name}.db")) as look:
        return look.execute(f"SELECT {columns} FROM {name}").fetchall()


class Checker:
    """Compares what a pipeline has written with plain loops over what was sent; a method for each pipeline."""

    def __init__(self, home: Path, bootstrap: str, sent: Input) -> None:
        self.home, self.bootstrap, self.sent = home, bootstrap, sent

    def check(self, pipelines: Sequence[str], *, closed: bool) -> None:
        """``closed``: all visits have their answers. Before, some wait; none is there too often."""
        people, cities = people_of(self.sent), cities_of(self.sent)
        for name in pipelines:
            if name == "visited":
                self.visited(closed)
            else:
                getattr(self, name)(people, cities)

    def groups(self, people: dict[int, Row], _: dict[str, str]) -> None:
        same("groups", map(texts, folded(self.bootstrap, "groups")), map(texts, groups_of(people)))

    def named(self, people: dict[int, Row], cities: dict[str, str]) -> None:
        columns = ("id", "city", "age", "paid", "bio")
        wanted = ((*map(row.get, columns), cities.get(row["city"])) for row in people.values())
        same("named", rows_in(self.home, "named", ", ".join((*columns, "boss"))), wanted)

    def paired(self, people: dict[int, Row], cities: dict[str, str]) -> None:
        rows = folded(self.bootstrap, "paired")
        found = (tuple(each[column] for column in ("id", "city", "bio", "boss")) for each in rows)
        same("paired", found, pairs_of(people, cities))

    def adults(self, people: dict[int, Row], _: dict[str, str]) -> None:
        grown = (row for row in people.values() if row["age"] is not None and row["age"] >= 18)
        wanted = ((row["id"], row["age"] // 10, row["bio"]) for row in grown)
        same("adults", rows_in(self.home, "adults", "id, decade, bio"), wanted)

    def latest(self, _: dict[int, Row], __: dict[str, str]) -> None:
        """Which row it was depends on the micro-batches; each visit is there once, with a version of its person."""
        rows = rows_in(self.home, "latest", "n, who, version, city")
        same("latest", ((n,) for n, *_ in rows), ((visit["n"],) for visit in self.sent.visits))
        for n, who, version, city in rows:
            if version is not None:
                _, partition, offset = version.split("/")
                row = (self.sent.people[int(partition)][int(offset)] or {}).get("after") or {}
                if (row.get("id"), row.get("city")) != (who, city):
                    raise Wrong(f"latest: visit {n} of {who} has {version}, which is {row}")

    def visited(self, closed: bool) -> None:
        rows = (value for _, value in topic(self.bootstrap, "visited") if value is not None)
        found = Counter(tuple(row[each] for each in ("n", "version", "city", "bio")) for row in rows)
        wanted = visited_of(self.sent)
        if found - wanted or (closed and wanted - found):
            raise Wrong(f"visited: too much {found - wanted}, missing {wanted - found}")


def texts(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str).replace('"paid": "', '"paid": ').replace('", "', ", ")


def same(name: str, found: Any, wanted: Any) -> None:
    there, expected = Counter(found), Counter(wanted)
    if there != expected:
        raise Wrong(f"{name}: too much {there - expected}, missing {expected - there}")


# ---- lives ----------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, home: Path, bootstrap: str, pipelines: Sequence[str], chance: random.Random) -> None:
        self.home, self.bootstrap, self.pipelines, self.chance = home, bootstrap, pipelines, chance
        self.generator = Generator(chance, bootstrap)
        self.checker = Checker(home, bootstrap, self.generator.sent)
        self.kills = self.lives = 0

    def started(self, *more: str) -> Life:
        command = [sys.executable, "-m", "headrace", "run", str(FILE), "--bootstrap", self.bootstrap, *more]
        command += ["--checkpoints", str(self.home / "checkpoints"), "--log", str(self.home / "spark.log")]
        command += ["--output", "json", "--no-publish", *(part for name in self.pipelines for part in ("--only", name))]
        command += [part for setting in CONF for part in ("--conf", setting)]
        return Life(self.home / f"life-{self.lives}.txt", command, TABLES_HOME=str(self.home))

    def kill_some(self, most: int) -> None:
        """Kill workers of one driver, and then the driver."""
        life = self.started()
        part, is_first = "worker", True
        try:
            while part == "worker":
                self.generator.send(late=is_first and self.lives > 0)
                is_first = False
                part = self.chance.choice(PARTS if self.kills + 1 < most else PARTS[-2:])
                self._wait(life, batches(life) + self.chance.randint(1, 2 * len(self.pipelines)))
                time.sleep(self.chance.uniform(0, 1.5))
                chosen = life.pick(part, self.chance)
                life.kill(chosen)
                self.kills += bool(chosen)
                print(f"{self.kills}: killed {len(chosen)} ({part}) after {batches(life)} micro-batches", flush=True)
        finally:
            life.close()
        self.lives += 1

    def _wait(self, life: Life, wanted: int) -> None:
        def is_there() -> bool:
            life.check()
            return batches(life) >= wanted

        eventually(is_there, pause_s=0.05, patience_s=PATIENCE_S)

    def finish(self, tasks: int | None = None, *, closed: bool = False) -> None:
        """Read what is there. A batch that a killed run left is finished before other tasks share the state."""
        for more in ((), *(() if tasks is None else (("--tasks", str(tasks)),))):
            life = self.started("--available-now", *more)
            try:
                if life.child.wait(PATIENCE_S):
                    raise LifeEnded(f"a run ended with {life.child.returncode}:\n{life.text()[-3000:]}")
            finally:
                life.close()
        self.checker.check(self.pipelines, closed=closed)
        print(f"compared; tasks: {tasks or 'as before'}", flush=True)


def batches(life: Life) -> int:
    return life.text().count('"batch":')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", action="append", choices=PIPELINES, metavar="NAME", help="a pipeline; repeatable")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tables-") as folder, start_broker(in_process=False) as broker:
        with Client(broker.bootstrap) as client:
            for name, partitions in (("people", PARTITIONS), ("cities", 1), ("visits", 1)):
                Admin(client).create_topic(name, partitions=partitions)
        run = Run(Path(folder), broker.bootstrap, asked.only or PIPELINES, random.Random(asked.seed))
        while run.kills < asked.kills:
            run.kill_some(asked.kills)
            run.finish(run.chance.randint(1, 5) if run.lives % 2 else None)
        run.generator.close()
        run.finish(closed=True)
    sent = run.generator.sent
    counted = f"{sum(map(len, sent.people))} changes, {len(sent.cities)} cities, {len(sent.visits)} visits"
    print(f"{run.kills} kills, {run.lives} drivers; {counted}: all as plain loops say")


if __name__ == "__main__":
    main()
