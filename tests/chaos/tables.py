"""Kill -9 under joins, views and weighted rows: ``python -m tests.chaos.tables --kills 10 --seed 7``.

The pipelines of ``table_pipelines`` read a captured table in two partitions (with truncations, deletions, null columns,
values that were not sent, and updates that come before their row), a keyed topic with tombstones, and events (out of
order, repeated, late, with equal times and without a key). How they are killed: ``pipeline_kills``.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from headrace.client import Admin, Client, Producer
from headrace.testing import broker as start_broker
from headrace.vocabulary import UNAVAILABLE
from tests.chaos.pipeline_kills import Row, Run, Wrong, kill_loop, rows_in, same, topic

FILE = Path(__file__).with_name("table_pipelines.py")
START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
LATENESS_S = 5
PARTITIONS = 2
PEOPLE = 12
STRANGERS = range(100, 104)
"""Never visited: an update may be the first that is heard of them."""
CITIES = ("Rome", "Oslo", "Bern", None)
CHANGES_AT_ONCE = 40
PIPELINES = ("groups", "named", "paired", "adults", "visited", "latest")


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


def folded(bootstrap: str, name: str) -> list[Row]:
    found: dict[bytes | None, Row] = {}
    for key, value in topic(bootstrap, name):
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return list(found.values())


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
        home, chance = Path(folder), random.Random(asked.seed)
        generator = Generator(chance, broker.bootstrap)
        sent = generator.sent
        run = Run(
            file=FILE,
            home=home,
            bootstrap=broker.bootstrap,
            pipelines=asked.only or PIPELINES,
            chance=chance,
            generator=generator,
            checker=Checker(home, broker.bootstrap, sent),
            environment={"TABLES_HOME": folder},
        )
        kill_loop(run, asked.kills)
    counted = f"{sum(map(len, sent.people))} changes, {len(sent.cities)} cities, {len(sent.visits)} visits"
    print(f"{run.kills} kills, {run.lives} drivers; {counted}: all as plain loops say")


if __name__ == "__main__":
    main()
