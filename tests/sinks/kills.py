"""Followers that are killed, and targets that are: at the end each target equals the changes folded in memory.

``python -m tests.sinks.kills --kills N`` for every kind of target. A follower is a process that does what Spark does
around a session: it plans a batch, gives it to the target, and only then writes down that it is done. It is killed with
SIGKILL at random moments, and in every run once exactly between the target's commit and its own note. The next one
begins after the last note, under the same query. Every third kill hits the target's server instead, where there is one.

Targets with a key end right even when a batch is written twice. So there are targets without one (``-append``), where
every repetition shows, and a control: the same run without fences must show doubles, or the judge is blind.

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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis as redis_library
from deltalake import DeltaTable

from headrace.address import Address
from headrace.spark.owner import owner_text
from headrace.targets.changes import Changes
from headrace.targets.delta import DeltaTarget
from headrace.targets.redis import RedisTarget
from headrace.targets.search import SearchTarget
from headrace.targets.sql.dialect import TableName
from headrace.targets.sql.table import SqlTarget
from headrace.targets.target import Delivery, Fence, Outcome, Session, Target, Unavailable
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
KEYED = ("sqlite", "search", "delta", "postgresql", "mariadb", "redis")
APPEND = "-append"
ADDED = ("sqlite-append", "delta-append", "postgresql-append", "mariadb-append")
KINDS = (*KEYED, *ADDED)
TABLE = TableName("followed")
DIE_AFTER = "KILLS_DIE_AFTER"
"""The batch after which a follower dies, when its target has it and its note does not."""
STOP_AFTER = "KILLS_STOP_AFTER"
"""The same, but it only stops (SIGSTOP), and may go on later."""
FAIL_AT = "KILLS_FAIL_AT"
"""The batch at which a follower ends by itself, as a mistake would end it."""

Row = tuple[Any, ...]
Held = Counter[Row]


class Unsound(AssertionError):
    """A target does not hold what it should, or a follower ended by itself."""


def rows_of(batch_id: int) -> list[list[Row]]:
    """The changes of a batch, always the same ones; its first chunk has new rows only, which may take a shorter way."""
    chance = random.Random(batch_id)
    chunks = []
    for chunk in range(CHUNKS):
        rows: list[Row] = []
        for row in range(ROWS_PER_CHUNK):
            key = chance.randrange(KEYS) if chunk else KEYS + batch_id * ROWS_PER_CHUNK + row
            gone = chunk > 0 and chance.random() < 0.25
            rows.append(("-", key) if gone else (key, f"{batch_id}/{chunk}/{row}"))
        chunks.append(rows)
    return chunks


def added_rows(batch_id: int) -> list[list[Row]]:
    """The same for a target without a key, which takes no deletions."""
    return [[row for row in chunk if row[0] != "-"] for chunk in rows_of(batch_id)]


def folded(kind: str, batches: int) -> Held:
    """What a target holds after so many batches."""
    if kind.endswith(APPEND):
        return Counter(row for batch_id in range(batches) for chunk in added_rows(batch_id) for row in chunk)
    kept: dict[int, str] = {}
    for batch_id in range(batches):
        for row in (row for chunk in rows_of(batch_id) for row in chunk):
            if row[0] == "-":
                kept.pop(row[1], None)
            else:
                kept[row[0]] = row[1]
    return Counter(kept.items())


def judge(kind: str, found: Held, wanted: Held) -> None:
    """Raises with what is missing, what is there too often, and an example of each."""
    missing, extra = wanted - found, found - wanted
    if not missing and not extra:
        return
    doubled = sum(count for row, count in extra.items() if row in wanted)
    example = next(iter(missing or extra))
    raise Unsound(
        f"{kind}: {missing.total()} rows are missing and {extra.total()} too many ({doubled} doubled), as {example}"
    )


def target_for(kind: str, place: str, *, fenced: bool = True) -> Target:
    made = _target_for(kind.removesuffix(APPEND), place, () if kind.endswith(APPEND) else ("id",))
    return made if fenced else Unfenced(made)


def _target_for(kind: str, place: str, key: tuple[str, ...]) -> Target:
    if kind == "delta":
        return DeltaTarget(place, key)
    if kind == "redis":
        return RedisTarget(Address(place), "followed", key, "map")
    if kind == "search":
        return SearchTarget(Address(place), TABLE, key, None, create=True)
    return SqlTarget(Address(place), TABLE, key, None, create=True)


@dataclass(frozen=True, slots=True)
class Unfenced(Target):
    """The control: a target that forgets which batches it has."""

    inner: Target

    @property
    def shown(self) -> str:
        return self.inner.shown

    @property
    def key(self) -> tuple[str, ...]:
        return self.inner.key

    def open(self) -> Session:
        return UnfencedSession(self.inner.open())


@dataclass(frozen=True, slots=True)
class UnfencedSession(Session):
    inner: Session

    def write(self, delivery: Delivery) -> Outcome:
        return self.inner.write(replace(delivery, fence=None))

    def close(self) -> None:
        self.inner.close()


def held(kind: str, place: str) -> Held:
    """What the target really holds, by its own means."""
    kind = kind.removesuffix(APPEND)
    if kind == "delta":
        return Counter((row["id"], row["name"]) for row in DeltaTable(place).to_pyarrow_table().to_pylist())
    if kind == "redis":
        with redis_library.Redis.from_url(place, decode_responses=True) as client:
            found: dict[str, str] = client.hgetall("followed")  # type: ignore[assignment]
            return Counter((int(key), json.loads(value)["name"]) for key, value in found.items())
    rows = Counter(Base("sqlite" if kind == "search" else kind, place).rows("followed"))
    if kind == "search":
        indexed = "SELECT r.id, f.name FROM followed__fts f LEFT JOIN followed r ON f.rowid = r.rowid"
        judge("the index of search", Counter(Base("sqlite", place).run(indexed)), rows)
    return rows


# ---- the follower --------------------------------------------------------------------------------------------------


def follow(kind: str, place: str, note: Path, until: int, *, fenced: bool = True) -> None:
    """Batch after batch, to the end; a target that is away is waited for, as ``headrace run`` does."""
    target, owner, first = target_for(kind, place, fenced=fenced), owner_text(), True
    batch_id = int(note.read_text()) + 1 if note.exists() else 0
    while batch_id < until:
        rows = added_rows(batch_id) if kind.endswith(APPEND) else rows_of(batch_id)
        if os.environ.get(FAIL_AT) == str(batch_id):
            raise RuntimeError("as a mistake would")
        chunks: list[Changes] = [changes_of(chunk) for chunk in rows]
        try:
            deliver(target, *chunks, at=Fence("q", batch_id, f"end {batch_id}", owner, first, "killed"))
        except Unavailable:
            time.sleep(0.02)
            continue
        first = False
        if os.environ.get(DIE_AFTER) == str(batch_id):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get(STOP_AFTER) == str(batch_id):
            os.kill(os.getpid(), signal.SIGSTOP)
        fresh = note.with_suffix(".new")
        fresh.write_text(str(batch_id))
        fresh.replace(note)
        batch_id += 1


class Follower:
    """A follower in a separate process; what it prints is in ``log``."""

    def __init__(self, kind: str, place: str, note: Path, until: int, *, fenced: bool = True, **more: str) -> None:
        self._note = note
        self.log = note.with_name("follower.log")
        words = ["--follow", kind, place, str(note), str(until), *([] if fenced else ["--unfenced"])]
        command = [sys.executable, "-m", "tests.sinks.kills", *words]
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(command, cwd=ROOT, stderr=log, env={**os.environ, **more})

    def noted(self) -> int:
        return int(self._note.read_text()) if self._note.exists() else -1

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def ended(self) -> bool:
        return self.child.poll() is not None

    def stopped(self) -> bool:
        """Linux says so by a letter, after the name in parentheses."""
        return Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def check(self) -> None:
        """A follower ends with its last batch, or because we kill it; anything else is a mistake in what it runs."""
        if self.child.poll() not in (None, 0):
            raise Unsound(f"the follower ended by itself with {self.child.returncode}:\n{self._tail()}")

    def finish(self) -> None:
        eventually(self.ended, patience_s=240)
        self.check()

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


@contextmanager
def place_for(kind: str, folder: Path) -> Iterator[tuple[str, Server | None]]:
    kind = kind.removesuffix(APPEND)
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
    until = kills * 4 + 8
    note = folder / "note"
    with place_for(kind, folder) as (place, server):
        die_between_commits(kind, place, note, until)
        for number in range(kills):
            follower = Follower(kind, place, note, until)
            try:
                before = follower.noted()
                eventually(lambda: follower.noted() > before or follower.ended(), patience_s=240)  # noqa: B023
                time.sleep(chance.uniform(0, 0.05))
                follower.check()
                if server is not None and number % 3 == 2:
                    server.kill()
                    start_again(server)
            finally:
                follower.kill()
        finish(kind, place, note, until)
        judge(kind, held(kind, place), folded(kind, until))
    say(f"{kind}: {kills + 1} kills over {until} batches, and the target equals the folded changes")


def die_between_commits(kind: str, place: str, note: Path, until: int, *, fenced: bool = True) -> None:
    """A follower that dies when its target has a batch and its note does not."""
    follower = Follower(kind, place, note, until, fenced=fenced, **{DIE_AFTER: "2"})
    try:
        eventually(follower.ended, patience_s=240)
        if follower.child.returncode != -signal.SIGKILL or follower.noted() != 1:
            raise Unsound(f"the follower ended elsewhere: {follower.child.returncode} after {follower.noted()}")
    finally:
        follower.kill()


def finish(kind: str, place: str, note: Path, until: int, *, fenced: bool = True, **more: str) -> None:
    last = Follower(kind, place, note, until, fenced=fenced, **more)
    try:
        last.finish()
    finally:
        last.kill()


def run_without_fences(kind: str, folder: Path) -> None:
    """The control: the same death without a fence. It must be judged unsound."""
    with place_for(kind, folder) as (place, _):
        die_between_commits(kind, place, folder / "note", 6, fenced=False)
        finish(kind, place, folder / "note", 6, fenced=False)
        judge(kind, held(kind, place), folded(kind, 6))


def run_spark(kills: int, seed: int) -> None:
    """Loaded only here: followers without Spark need not load it."""
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
    parser.add_argument("--unfenced", action="store_true", help="the control, with --follow")
    parser.add_argument("--follow", nargs=4, metavar=("KIND", "PLACE", "NOTE", "UNTIL"))
    arguments = parser.parse_args()
    if arguments.follow:
        kind, place, note, until = arguments.follow
        follow(kind, place, Path(note), int(until), fenced=not arguments.unfenced)
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
