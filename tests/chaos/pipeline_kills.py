"""Kill -9 under the pipelines of a file: what ``tables`` and ``patterns`` have in common.

``headrace run`` runs the file while a generator writes into its topics. Python workers are killed, and then their
driver: Python alone, the JVM too, or all processes. The next run ends by itself, a checker compares what was written
with plain loops over the input, and the state is shared among another number of tasks. Workers may cache next to
nothing, so state is read again.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from headrace.client import Client, Consumer, ConsumerOptions, FetchOptions, TopicPartition, end_offsets
from tests.chaos.spark_life import Life, LifeEnded
from tests.waiting import eventually

__all__ = ["Checker", "Generator", "Row", "Run", "Wrong", "kill_loop", "rows_in", "same", "topic"]

PATIENCE_S = 900.0
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


class Generator(Protocol):
    def send(self, *, late: bool) -> None:
        """Some of everything. ``late``: the runs before have ended, so the watermark is where it will be."""
        ...

    def close(self) -> None:
        """Times beyond all others, so that everything is decided."""
        ...


class Checker(Protocol):
    def check(self, pipelines: Sequence[str], *, closed: bool) -> None:
        """``closed``: everything is decided. Before, some waits; nothing is there too often."""
        ...


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


def rows_in(home: Path, name: str, columns: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home / f"{name}.db")) as look:
        return look.execute(f"SELECT {columns} FROM {name}").fetchall()


def same(name: str, found: Any, wanted: Any) -> None:
    there, expected = Counter(found), Counter(wanted)
    if there != expected:
        raise Wrong(f"{name}: too much {there - expected}, missing {expected - there}")


# ---- lives ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Run:
    file: Path
    home: Path
    bootstrap: str
    pipelines: Sequence[str]
    chance: random.Random
    generator: Generator
    checker: Checker
    environment: Mapping[str, str] = field(default_factory=dict)
    conf: Sequence[str] = CONF
    kills: int = 0
    lives: int = 0

    def started(self, *more: str, checkpoints: str = "checkpoints", **environment: str) -> Life:
        command = [sys.executable, "-m", "headrace", "run", str(self.file), "--bootstrap", self.bootstrap, *more]
        command += ["--checkpoints", str(self.home / checkpoints), "--log", str(self.home / "spark.log")]
        command += ["--output", "json", "--no-publish", *(part for name in self.pipelines for part in ("--only", name))]
        command += [part for setting in self.conf for part in ("--conf", setting)]
        return Life(self.home / f"life-{self.lives}.txt", command, **{**self.environment, **environment})

    def kill_some(self, most: int, parts: Sequence[str] = PARTS) -> None:
        """Kill workers of one driver, and then the driver."""
        life = self.started()
        part, is_first = "worker", True
        try:
            while part == "worker":
                self.generator.send(late=is_first and self.lives > 0)
                is_first = False
                part = self.chance.choice(parts if self.kills + 1 < most else parts[-2:])
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
            self.to_the_end(self.started("--available-now", *more))
        self.checker.check(self.pipelines, closed=closed)
        print(f"compared; tasks: {tasks or 'as before'}", flush=True)

    def to_the_end(self, life: Life) -> None:
        try:
            if life.child.wait(PATIENCE_S):
                raise LifeEnded(f"a run ended with {life.child.returncode}:\n{life.text()[-3000:]}")
        finally:
            life.close()


def batches(life: Life) -> int:
    return life.text().count('"batch":')


def kill_loop(run: Run, kills: int) -> None:
    """Kill, and compare after each driver; in the end, when everything is decided, once more."""
    while run.kills < kills:
        run.kill_some(kills)
        run.finish(run.chance.randint(1, 5) if run.lives % 2 else None)
    run.generator.close()
    run.finish(closed=True)
