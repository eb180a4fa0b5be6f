"""Followers that are killed, and targets that are: at the end each target equals the changes folded in memory.

``python -m tests.sinks.kills --kills N`` for every kind of target. A follower is a process that does what Spark does
around a session: it plans a batch, gives it to the target, and only then writes down that it is done. It is killed with
SIGKILL at random moments, so between a target's commit and its own note too; the next one begins behind the last note,
under the same query. Every third kill hits the target's server instead, where there is one.

``--spark`` does it with ``headrace run``, a broker and all kinds of targets at once (``spark_kills``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis as redis_library
from deltalake import DeltaTable

from headrace.spark.sinks.address import Address
from headrace.spark.sinks.target import Changes, Fence, Target, Unavailable
from headrace.spark.sinks.to_delta import DeltaTarget
from headrace.spark.sinks.to_redis import RedisTarget
from headrace.spark.sinks.to_search import SearchTarget
from headrace.spark.sinks.to_sql import SqlTarget, TableName
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server
from tests.sinks.restarts import Server, start_again
from tests.sinks.world import Base, changes_of, deliver
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
KEYS = 50
ROWS_PER_CHUNK = 30
CHUNKS = 3
KINDS = ("sqlite", "search", "delta", "postgresql", "mariadb", "redis")
TABLE = TableName("followed")


def rows_of(batch_id: int) -> list[list[tuple[Any, ...]]]:
    """The changes of a batch, always the same ones; its first chunk has new rows only, which may take a shorter way."""
    chance = random.Random(batch_id)
    chunks = []
    for chunk in range(CHUNKS):
        rows: list[tuple[Any, ...]] = []
        for row in range(ROWS_PER_CHUNK):
            key = chance.randrange(KEYS) if chunk else KEYS + batch_id * ROWS_PER_CHUNK + row
            gone = chunk > 0 and chance.random() < 0.25
            rows.append(("-", key) if gone else (key, f"{batch_id}/{chunk}/{row}"))
        chunks.append(rows)
    return chunks


def folded(batches: int) -> dict[int, str]:
    """What a target holds after so many batches."""
    kept: dict[int, str] = {}
    for batch_id in range(batches):
        for row in (row for chunk in rows_of(batch_id) for row in chunk):
            if row[0] == "-":
                kept.pop(row[1], None)
            else:
                kept[row[0]] = row[1]
    return kept


def target_for(kind: str, place: str) -> Target:
    key = ("id",)
    if kind == "delta":
        return DeltaTarget(place, key)
    if kind == "redis":
        return RedisTarget(Address(place), "followed", key, "map")
    if kind == "search":
        return SearchTarget(Address(place), TABLE, key, None, create=True)
    return SqlTarget(Address(place), TABLE, key, None, create=True)


def held(kind: str, place: str) -> dict[int, str]:
    """What the target really holds, by its own means."""
    if kind == "delta":
        return {row["id"]: row["name"] for row in DeltaTable(place).to_pyarrow_table().to_pylist()}
    if kind == "redis":
        with redis_library.Redis.from_url(place, decode_responses=True) as client:
            found: dict[str, str] = client.hgetall("followed")  # type: ignore[assignment]
            return {int(key): json.loads(value)["name"] for key, value in found.items()}
    if kind == "search":
        base = Base("sqlite", place)
        indexed = base.run("SELECT r.id, f.name FROM followed r JOIN followed__fts f ON f.rowid = r.rowid")
        assert dict(indexed) == dict(base.rows("followed")), "the index and its rows differ"
    return dict(Base("sqlite" if kind == "search" else kind, place).rows("followed"))


# ---- the follower --------------------------------------------------------------------------------------------------


def follow(kind: str, place: str, note: Path, until: int) -> None:
    """Batch after batch, to the end; a target that is away is waited for, as ``headrace run`` does."""
    target, owner, first = target_for(kind, place), uuid.uuid4().hex, True
    batch_id = int(note.read_text()) + 1 if note.exists() else 0
    while batch_id < until:
        chunks: list[Changes] = [changes_of(rows) for rows in rows_of(batch_id)]
        try:
            deliver(target, *chunks, at=Fence("killed", batch_id, f"end {batch_id}", owner, first))
        except Unavailable:
            time.sleep(0.02)
            first = True
            continue
        first = False
        fresh = note.with_suffix(".new")
        fresh.write_text(str(batch_id))
        fresh.replace(note)
        batch_id += 1


class Follower:
    """A follower in a process of its own."""

    def __init__(self, kind: str, place: str, note: Path, until: int) -> None:
        self._note = note
        arguments = [kind, place, str(note), str(until)]
        self._child = subprocess.Popen([sys.executable, "-m", "tests.sinks.kills", "--follow", *arguments], cwd=ROOT)

    def noted(self) -> int:
        return int(self._note.read_text()) if self._note.exists() else -1

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    def ended(self) -> bool:
        return self._child.poll() is not None

    def failed(self) -> bool:
        return self._child.poll() not in (None, 0)

    def finish(self) -> None:
        eventually(self.ended, patience_s=240)
        assert self._child.returncode == 0, f"the follower ended with {self._child.returncode}"


@contextmanager
def place_for(kind: str, folder: Path) -> Iterator[tuple[str, Server | None]]:
    if kind in ("sqlite", "search"):
        yield f"sqlite:///{folder}/{kind}.db", None
    elif kind == "delta":
        yield str(folder / "delta"), None
    elif kind == "postgresql":
        with postgres_server() as postgres:
            yield postgres.url(), postgres
    elif kind == "mariadb":
        with mariadb_server() as mariadb:
            with mariadb.connect() as admin:
                admin.cursor().execute("create database followed")
            yield mariadb.url("followed"), mariadb
    else:
        with redis_server() as redis:
            yield redis.url(), redis


def run(kind: str, kills: int, folder: Path, chance: random.Random, say: Callable[[str], None] = print) -> None:
    """Kill after some progress each time, let it finish, and compare."""
    until = kills * 4 + 4
    note = folder / "note"
    with place_for(kind, folder) as (place, server):
        for number in range(kills):
            follower = Follower(kind, place, note, until)
            try:
                before = follower.noted()
                eventually(lambda: follower.noted() > before or follower.ended(), patience_s=240)  # noqa: B023
                time.sleep(chance.uniform(0, 0.05))
                assert not follower.failed(), f"{kind}: the follower ended by itself"
                if server is not None and number % 3 == 2:
                    server.kill()
                    start_again(server)
            finally:
                follower.kill()
        last = Follower(kind, place, note, until)
        try:
            last.finish()
        finally:
            last.kill()
        wanted, found = folded(until), held(kind, place)
        assert found == wanted, f"{kind}: {len(found)} rows held, {len(wanted)} expected"
    say(f"{kind}: {kills} kills over {until} batches, and the target equals the folded changes")


def run_spark(kills: int, seed: int) -> None:
    """Only here: whoever follows without Spark need not load it."""
    from tests.sinks.spark_kills import PIPELINES, World, kill_loop

    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    pipelines = [each for each in PIPELINES if each != "mirror" or shutil.which("mariadbd")]
    with tempfile.TemporaryDirectory(prefix="headrace-kills-") as folder, ExitStack() as stack:
        world = World(stack, Path(folder), seed, pipelines)
        hits = kill_loop(world, kills, random.Random(seed), lambda line: print(line, flush=True))
        records = world.finish()
        counts = ", ".join(f"{count} × {part}" for part, count in sorted(hits.items()))
        print(f"spark: {kills} kills ({counts}), {len(world.lives)} drivers, {records} records: {', '.join(pipelines)}")
    print("each target equals the topic recomputed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sinks.kills")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--spark", action="store_true", help="headrace run into all targets at once, broker and all")
    parser.add_argument("--follow", nargs=4, metavar=("KIND", "PLACE", "NOTE", "UNTIL"))
    arguments = parser.parse_args()
    if arguments.follow:
        kind, place, note, until = arguments.follow
        follow(kind, place, Path(note), int(until))
        return
    print(f"seed {arguments.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))  # and everything with it
    if arguments.spark:
        run_spark(arguments.kills, arguments.seed)
        return
    for kind in KINDS if arguments.only is None else (arguments.only,):
        with tempfile.TemporaryDirectory(prefix="headrace-kills-") as folder:
            run(kind, arguments.kills, Path(folder), random.Random(arguments.seed))


if __name__ == "__main__":
    main()
