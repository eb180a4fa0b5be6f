"""Derived systems behind Spark, while everything they stand on is killed.

``headrace run`` keeps tables, a cache, an index and a warehouse up to date from one topic (``spark_pipelines``), into
which changes are written all the time: rows come, change, go and move to other keys. Meanwhile the broker, the targets'
servers and the driver are killed with SIGKILL and started again, alone or together, at moments that the seed decides.
One kind of death is not left to chance: *between* the target's commit and Spark's own. In the end what each target
holds is compared with what the topic, read at once, comes to. Rows without a key are among them, where a batch that is
written again would show.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import redis as redis_library
from deltalake import DeltaTable

from headrace.client import Admin, Client, ClientOptions, Producer
from headrace.testing import broker as start_broker
from tests.chaos.spark_judge import committed, has_read_all
from tests.chaos.spark_life import Life
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import postgres_server
from tests.servers.process import log_tail
from tests.servers.redis import redis_server
from tests.sinks.restarts import Server, start_again
from tests.sinks.spark_pipelines import COPY, TOPIC
from tests.sinks.world import Base

__all__ = ["PIPELINES", "Unsound", "World", "kill_loop"]

FILE = Path(__file__).with_name("spark_pipelines.py")
PIPELINES = ("table", "events", "cache", "index", "warehouse", "ledger", "mirror", "both")
WITHOUT_KEY = ("events", "ledger", "both")
PARTITIONS = 2
KEYS = 400
ROUND_ROWS = 20
ROUND_S = 0.1
STILL_S_MAX = 300.0
"""So long without a finished batch means that something hangs, on the busiest machine."""
LOOK_S = 0.1
DOWN_S_MAX = 3.0
PATIENCE = ClientOptions(retry_timeout_ms=120_000, first_contact_timeout_ms=120_000)
TEXTS = ("", "plain", 'it\'s "quoted"', "back\\slash\tand\nline", "zażółć 🫘", "null", "%s; drop table followed")
WEIGHTS = {"between": 3, "driver": 3, "broker": 4, "postgres": 4, "redis": 3, "mariadb": 3}
"""How often each is killed. A new driver takes longer to come than all else together."""
TOGETHER = 0.25
"""How often a server is killed with the driver, or two servers at once."""

Row = tuple[Any, ...]


class Unsound(Exception):
    """The run has shown a mistake, or stands still."""


# ---- the changes -----------------------------------------------------------------------------------------------------


class Feeder(threading.Thread):
    """Writes changes until it is asked to stop; a broker that is away is waited for.

    A row and all its moves lie in one partition, since only there records have an order.
    """

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(name="feeder", daemon=True)
        self._address = bootstrap
        self._chance = random.Random(seed)
        self._rows: dict[int, dict[str, Any]] = {}
        self._stopping = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with Client(self._address, PATIENCE) as client, Producer(client) as producer:
                while not self._stopping.wait(ROUND_S):
                    for _ in range(ROUND_ROWS):
                        self._one(producer)
                    producer.flush()
        except BaseException as error:
            self.failed = error

    def stop(self) -> None:
        self._stopping.set()
        if self.ident is not None:
            self.join()

    def _one(self, producer: Producer) -> None:
        number, fate = self._chance.randrange(KEYS), self._chance.random()
        before = self._rows.get(number)
        if before is None:
            self._write(producer, "c", None, self._row(number))
        elif fate < 0.15:
            self._write(producer, "d", before, None)
        elif fate < 0.3:
            self._write(producer, "u", before, {**before, "id": self._free_beside(number)})
        else:
            self._write(producer, "u", before, self._row(number))

    def _row(self, number: int) -> dict[str, Any]:
        text = self._chance.choice((None, *TEXTS, f"text {self._chance.randrange(1000)}"))
        amount = f"{self._chance.randrange(1_000_000) / 100:.2f}"
        return {"id": number, "kind": f"kind {number % 5}", "text": text, "amount": amount}

    def _free_beside(self, number: int) -> int:
        """Another number of the same partition that nobody has; beyond the common ones there always is one."""
        while number in self._rows:
            number += PARTITIONS
        return number

    def _write(self, producer: Producer, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        known = after or before
        assert known is not None, "a change changes something"
        number, partition = known["id"], known["id"] % PARTITIONS
        key = json.dumps({"id": number}).encode()
        value = {"op": op, "before": before, "after": after, "ts_ms": 1}
        producer.send(TOPIC, json.dumps(value).encode(), key=key, partition=partition)
        if before is not None:
            self._rows.pop(before["id"])
        if after is None:
            producer.send(TOPIC, None, key=key, partition=partition)
        else:
            self._rows[number] = after


def recomputed(client: Client) -> tuple[dict[int, Row], Counter[Row]]:
    """The rows that all changes of the topic come to, and the place of every record."""
    rows: dict[int, Row] = {}
    places: Counter[Row] = Counter()
    for partition, record in committed(client, TOPIC):
        change = {"op": "tombstone"} if record.value is None else json.loads(record.value)
        places[partition, record.offset, change["op"]] += 1
        if before := change.get("before"):
            rows.pop(before["id"], None)
        if after := change.get("after"):
            rows[after["id"]] = (after["kind"], after["text"], Decimal(after["amount"]))
    return rows, places


# ---- the world -------------------------------------------------------------------------------------------------------


class World:
    """A broker, the targets' servers, and one driver after the other; all of it ends with ``stack``."""

    def __init__(self, stack: ExitStack, home: Path, seed: int, pipelines: Sequence[str] = PIPELINES) -> None:
        self.home = home
        self.pipelines = tuple(pipelines)
        self.lives: list[Life] = []
        (home / "doom").mkdir()
        broker = stack.enter_context(start_broker(in_process=False, data=home / "data"))
        postgres = stack.enter_context(postgres_server())
        redis = stack.enter_context(redis_server())
        self.servers: dict[str, Server] = {"broker": broker, "postgres": postgres, "redis": redis}
        self.places = {"POSTGRES": postgres.url(), "REDIS": redis.url()}
        if "mirror" in self.pipelines:
            mariadb = stack.enter_context(mariadb_server())
            with closing(mariadb.connect()) as admin:
                admin.cursor().execute("create database kills")
            self.servers["mariadb"] = mariadb
            self.places["MARIADB"] = mariadb.url("kills")
        self.bootstrap = broker.bootstrap
        self.client = stack.enter_context(Client(self.bootstrap, PATIENCE))
        Admin(self.client).create_topic(TOPIC, partitions=PARTITIONS)
        self.feeder = Feeder(self.bootstrap, seed)
        stack.callback(self._close)

    def _close(self) -> None:
        self.feeder.stop()
        for life in self.lives:
            life.close()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def command(self, *words: str) -> tuple[list[str], dict[str, str]]:
        """A command of headrace on the file of pipelines, and its environment."""
        paths = ["--checkpoints", str(self.home / "checkpoints"), "--log", str(self.home / "spark.log")]
        command = [sys.executable, "-m", "headrace", words[0], str(FILE), *words[1:], *paths]
        environment = {f"KILLS_{name}": place for name, place in self.places.items()}
        return [*command, "--bootstrap", self.bootstrap], {**environment, "KILLS_HOME": str(self.home)}

    def begin(self, *names: str) -> None:
        """A new driver of all pipelines, or of some, which goes on where the last one was killed."""
        chosen = [word for name in names or self.pipelines for word in ("--only", name)]
        command, environment = self.command("run", *chosen)
        self.lives.append(Life(self.home / f"driver-{len(self.lives) + 1}.log", command, **environment))

    def rebuild(self, name: str, death: str = "") -> int:
        """Rebuild a target, while its pipeline rests, to the end or to that death; the status it ended with."""
        if death:
            (self.home / "doom" / f"{name}-{death}").touch()
        command, environment = self.command("rebuild", name)
        self.lives.append(Life(self.home / f"rebuild-{len(self.lives) + 1}.log", command, **environment))
        try:
            return self.life.child.wait(STILL_S_MAX)
        finally:
            self.life.close()

    # ---- progress ---------------------------------------------------------------------------------------------------

    def checkpoint(self, name: str) -> Path:
        return self.home / "checkpoints" / name / "spark"

    def last(self, name: str, what: str = "commits") -> int:
        """The number of the last batch that was committed, or planned (``offsets``)."""
        folder = self.checkpoint(name) / what
        return max((int(each.name) for each in folder.glob("*") if each.name.isdecimal()), default=-1)

    def batches(self) -> list[int]:
        return [self.last(name) for name in self.pipelines]

    def check(self) -> None:
        self.life.check()
        if self.feeder.failed is not None:
            raise Unsound(f"changes cannot be written: {self.feeder.failed}")
        for line in self.life.text().splitlines():
            if any(f"{name} failed: " in line for name in self.pipelines) and "; restart " not in line:
                raise Unsound(line)

    def until(self, done: Callable[[], bool], otherwise: str) -> None:
        """As long as batches are finished, however slowly, there is hope."""
        before, deadline_s = self.batches(), time.monotonic() + STILL_S_MAX
        while not done():
            self.check()
            if (now := self.batches()) != before:
                before, deadline_s = now, time.monotonic() + STILL_S_MAX
            if time.monotonic() > deadline_s:
                raise Unsound(f"{otherwise} after {STILL_S_MAX:g} s without a batch:\n{log_tail(self.life.log)}")
            time.sleep(LOOK_S)

    def until_all_moved(self, names: Sequence[str] = ()) -> None:
        """Each of the pipelines has finished a batch that was not finished when this began."""
        chosen = names or self.pipelines
        before = {name: self.last(name) for name in chosen}
        self.until(lambda: all(self.last(name) > before[name] for name in chosen), f"not all of {chosen} move")

    # ---- deaths -----------------------------------------------------------------------------------------------------

    def kill(self, *parts: str, down_s: float = 0.0) -> None:
        """At once; servers come back on their data after a while, and a new driver in place of the old one."""
        servers = [self.servers[part] for part in parts if part != "driver"]
        for server in servers:
            server.kill()
        if "driver" in parts:
            self.life.kill(list(self.life.processes()))
        try:
            time.sleep(down_s)
        finally:
            for server in servers:
                start_again(server)
        if "driver" in parts:
            self.begin()

    def kill_between(self, name: str, target: str = "") -> None:
        """The driver dies when a target of a pipeline has committed a batch, and Spark has not."""
        (self.home / "doom" / (target or name)).touch()
        before, deadline_s = self.batches(), time.monotonic() + STILL_S_MAX
        while self.life.child.poll() is None:
            if (now := self.batches()) != before:
                before, deadline_s = now, time.monotonic() + STILL_S_MAX
            if time.monotonic() > deadline_s:
                raise Unsound(f"{name} writes nothing:\n{log_tail(self.life.log)}")
            time.sleep(LOOK_S)
        self.life.close()
        if self.last(name, "offsets") != self.last(name) + 1:
            raise Unsound(f"{name}: the driver ended elsewhere:\n{log_tail(self.life.log)}")
        self.begin()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> int:
        """Let everything come to the end of the topic, and compare; gives the number of its records."""
        self.feeder.stop()
        chosen = self.pipelines
        self.until(
            lambda: all(has_read_all(self.client, TOPIC, self.checkpoint(name)) for name in chosen), "not all was read"
        )
        self.life.close()
        rows, places = recomputed(self.client)
        for name in chosen:
            compare(name, self.held(name), places if name in WITHOUT_KEY else rows)
        return sum(places.values())

    def held(self, name: str) -> dict[Any, Any]:
        """What a target really holds, by its own means."""
        if name == "events":
            return Counter(Base("postgresql", self.places["POSTGRES"]).rows("events", "part, place, op"))
        if name == "both":
            return self._in_all_three()
        if name in ("ledger", "warehouse"):
            found = DeltaTable(str(self.home / name)).to_pyarrow_table().to_pylist()
            return Counter(tuple(row.values()) for row in found) if name == "ledger" else by_id(found)
        if name == "cache":
            with redis_library.Redis.from_url(self.places["REDIS"], decode_responses=True) as client:
                documents: dict[str, str] = client.hgetall("followed")  # type: ignore[assignment]
            return by_id([json.loads(each) for each in documents.values()])
        if name == "index":
            return self._indexed()
        kind, place = ("mariadb", "MARIADB") if name == "mirror" else ("postgresql", "POSTGRES")
        columns = ("id", "kind", "text", "amount")
        rows = Base(kind, self.places[place]).rows("followed", ", ".join(columns))
        return by_id([dict(zip(columns, row, strict=True)) for row in rows])

    def _in_all_three(self) -> dict[Any, Any]:
        """A table, a topic and a Delta table that are filled from one read, and so have the same rows."""
        table = Counter(Base("postgresql", self.places["POSTGRES"]).rows("both", "part, place, op"))
        records = [json.loads(record.value or b"") for _, record in committed(self.client, COPY)]
        delta = DeltaTable(str(self.home / "both")).to_pyarrow_table().to_pylist()
        for what, found in (("topic", records), ("delta", delta)):
            compare(f"both: the {what}", Counter((row["part"], row["place"], row["op"]) for row in found), table)
        return table

    def _indexed(self) -> dict[Any, Any]:
        with closing(sqlite3.connect(self.home / "index.db", timeout=60)) as look:
            rows = look.execute("SELECT id, kind, text, amount FROM followed").fetchall()
            texts = look.execute("SELECT r.id, f.text FROM followed r JOIN followed__fts f ON f.rowid = r.rowid")
            if {row[0]: row[2] for row in rows} != dict(texts):
                raise Unsound("index: what is searched differs from its rows")
        return by_id([dict(zip(("id", "kind", "text", "amount"), row, strict=True)) for row in rows])


def by_id(rows: Sequence[dict[str, Any]]) -> dict[int, Row]:
    return {row["id"]: (row["kind"], row["text"], Decimal(str(row["amount"]))) for row in rows}


def compare(name: str, found: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    wrong = [each for each in {*found, *wanted} if found.get(each) != wanted.get(each)]
    if wrong:
        shown = "; ".join(f"{each}: {found.get(each)} and not {wanted.get(each)}" for each in wrong[:3])
        raise Unsound(f"{name}: {len(wrong)} of {len(wanted)} rows differ, such as {shown}")


def kill_loop(world: World, kills: int, chance: random.Random, say: Callable[[str], None] = print) -> Counter[str]:
    """Kill after some progress each time; how often each part was hit."""
    began_s, hits = time.monotonic(), Counter[str]()
    world.begin()
    world.feeder.start()
    world.until_all_moved()
    for number in range(1, kills + 1):
        there = ["between", "driver", *world.servers]
        parts = chance.choices(there, [WEIGHTS[each] for each in there])
        pipeline = chance.choice(list(world.pipelines))
        world.until_all_moved([pipeline])
        time.sleep(chance.uniform(0.0, 1.0))
        if parts == ["between"]:
            world.kill_between(pipeline)
        else:
            if chance.random() < TOGETHER:
                parts = sorted({*parts, chance.choice(["driver", *world.servers])})
            world.kill(*parts, down_s=chance.uniform(0.0, DOWN_S_MAX))
        hits.update(parts)
        told = f"between the commits of {pipeline}" if parts == ["between"] else " and ".join(parts)
        say(f"kill {number} of {kills} at {time.monotonic() - began_s:.0f} s: {told} (driver {len(world.lives)})")
    return hits
