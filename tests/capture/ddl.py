"""Random DDL and DML under a capture that is killed: ``python -m tests.capture.ddl --database sqlite --runs 20``.

Tables are made, swapped, dropped and made again, renamed, truncated, partitioned, keyed differently and altered, rows
are changed in transactions and savepoints, and the database is put back to an old copy, while ``headrace capture run``
works, is killed, stopped and started. At quiet moments and in the end, each topic folds into its table, and a topic
whose table is gone into nothing; or capture has ended with an error that says why. Such a stop must come again at the
next start, and ``--resnapshot`` must cure it; or it names a statement, which must cure it.

A seed decides the steps; processes add what no seed decides. ``--shrink`` looks for the fewest steps that still fail.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from headrace.testing import broker
from tests.capture.ddl_steps import Step, steps
from tests.capture.ddl_worlds import WORLDS, World
from tests.capture.judge import Fault, Tolerance, compare, folded
from tests.capture.world import Event, events, topics

__all__ = ["Outcome", "Session", "attempt", "main"]

COMMAND = Path(sys.executable).with_name("headrace")
SETTLE_S = 45.0
STOP_S = 30.0
ALTERED = Tolerance(added=("c1", "c2"))
CURE = re.compile(r"\((ALTER TABLE \S+ ENGINE=InnoDB);")
"""What a stop may ask for where a new snapshot would stop again."""
BROKEN = re.compile(r"Traceback|internal error|please file a bug", re.IGNORECASE)


@dataclass(slots=True)
class Outcome:
    """What a run that found no fault did."""

    taken: int = 0
    refused: int = 0
    kills: int = 0
    stops: list[str] = field(default_factory=list)
    events: int = 0


class Session:
    """One run: a database, a capture of it, and what became of both."""

    def __init__(self, world: World, bootstrap: str, name: str, home: Path, arguments: Sequence[str] = ()) -> None:
        self.world = world
        self.outcome = Outcome()
        self._bootstrap = bootstrap
        self._name = name
        self._output = home / f"{name}.log"
        self._arguments = arguments
        self._capture: subprocess.Popen[bytes] | None = None
        self._said_before = 0

    # -- capture

    def start(self, *more: str) -> None:
        if self._capture is not None:
            return
        command = [str(COMMAND), "capture", "run", self._name, self.world.url, *self.world.arguments, *self._arguments]
        command += ["--chunk-rows", "3", "--heartbeat", "0.5", "--bootstrap", self._bootstrap, *more]
        self._said_before = self._output.stat().st_size if self._output.exists() else 0
        with self._output.open("ab") as output:
            self._capture = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        if self._capture is not None and self._capture.poll() is None:
            self.outcome.kills += 1
            self._capture.kill()
            self._capture.wait()
            self._capture = None

    def stop(self) -> None:
        """SIGTERM, and a clean end."""
        if self._capture is None or self._capture.poll() is not None:
            return
        self._capture.terminate()
        try:
            status = self._capture.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Fault(f"capture did not end within {STOP_S:g} s of SIGTERM:\n{self.said()}") from None
        self._capture = None
        if status not in (0, -signal.SIGTERM):
            self._loud(status)

    def close(self) -> None:
        if self._capture is not None:
            self._capture.kill()
            self._capture.wait()

    def said(self) -> str:
        whole = self._output.read_bytes()[self._said_before :].decode(errors="replace")
        return whole[-3000:]

    def _look(self) -> None:
        """A capture that has ended by itself must have said why, must do it again, and must be cured."""
        if self._capture is None or (status := self._capture.poll()) is None:
            return
        self._capture = None
        self._loud(status)

    def _loud(self, status: int) -> None:
        said = self.said()
        if status == 0 or not said.strip() or BROKEN.search(said):
            raise Fault(f"capture ended by itself with {status}, which is no answer:\n{said}")
        self.outcome.stops.append(said.strip().splitlines()[-1])
        if cure := CURE.search(self.outcome.stops[-1]):
            self.world.alone(cure[1])
        self.start()
        if not self._ends_within(STOP_S):
            self._judge_until_equal("a stop that the next start forgets")
            return
        self.start("--resnapshot")

    def _ends_within(self, seconds: float) -> bool:
        assert self._capture is not None
        try:
            self._capture.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._capture = None
        return True

    # -- steps

    def run(self, work: Sequence[Step]) -> Outcome:
        for at, step in enumerate(work):
            try:
                self._do(step)
            except Fault as fault:
                raise Fault(f"step {at} {step}: {fault}") from fault
        return self.outcome

    def _do(self, step: Step) -> None:
        if step.kind in ("transaction", "alone"):
            self._change(step)
        elif step.kind in ("backup", "restore", "crash"):
            getattr(self.world, step.kind)()
        elif step.kind == "wait":
            time.sleep(0.3)
        elif step.kind == "settle":
            self.start()
            self._judge_until_equal("")
        else:
            getattr(self, step.kind)()
        self._look()

    def _change(self, step: Step) -> None:
        if step.kind == "alone":
            taken = all(self.world.alone(each) for each in step.statements)
        else:
            taken = self.world.transaction(step.statements)
        if taken:
            self.outcome.taken += 1
        else:
            self.outcome.refused += 1

    # -- the judgement

    def _judge_until_equal(self, context: str) -> None:
        deadline = time.monotonic() + SETTLE_S
        while True:
            try:
                return self.judge()
            except Fault as fault:
                self._look()
                if time.monotonic() > deadline:
                    raise Fault(f"{context}{fault}\ncapture said:\n{self.said()}") from fault
            self.start()
            time.sleep(0.2)

    def judge(self) -> None:
        tables = self.world.tables()
        told = self._told()
        for name in self.world.unjudged():
            tables.pop(name, None)
            told.pop(name, None)
        self.outcome.events = sum(len(each) for each in told.values())
        for name in tables.keys() | told.keys():
            compare(name, folded(told.get(name, [])), tables.get(name, []), ALTERED)

    def _told(self) -> dict[str, list[Event]]:
        """Events by the table that they name, which no two tables share a topic for."""
        found: dict[str, list[Event]] = {}
        for topic in topics(self._bootstrap, f"{self._name}.{self.world.schema}."):
            told = events(self._bootstrap, topic)
            names = {each.value["source"]["table"] for each in told if each.value is not None}
            if len(names) > 1:
                raise Fault(f"topic {topic} has events of several tables: {sorted(names)}")
            for name in names:
                if name in found:
                    raise Fault(f"table {name} has two topics, {topic} and another")
                found[name] = told
        return found


def attempt(world: World, bootstrap: str, name: str, home: Path, work: Sequence[Step]) -> Outcome:
    session = Session(world, bootstrap, name, home)
    try:
        return session.run(work)
    finally:
        session.close()
        world.close()


Attempt = Callable[[Sequence[Step]], Outcome]


def shrunk(work: list[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """Fewer steps that still fail: halves, quarters, … single ones are left out as long as that helps."""
    size = len(work) // 2
    while size:
        at = 0
        while at < len(work):
            shorter = work[:at] + work[at + size :]
            if fails(shorter):
                work = shorter
            else:
                at += size
        size //= 2
    return work


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.capture.ddl")
    parser.add_argument("--database", choices=[*WORLDS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--runs", type=int, default=1, help="of each database, each with the next seed")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--shrink", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # children end with us
    failed = 0
    for database in WORLDS if given.database == "all" else [given.database]:
        failed += explore(database, range(given.seed, given.seed + given.runs), given.steps, shrink=given.shrink)
    sys.exit(1 if failed else 0)


def explore(database: str, seeds: Sequence[int], count: int, *, shrink: bool) -> int:
    """Run each seed on one server; gives the number of seeds with a fault."""
    failed = 0
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="headrace-ddl-"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        home.chmod(0o755)
        make = stack.enter_context(WORLDS[database](home))
        log = stack.enter_context(broker(in_process=False))
        numbers = iter(range(1, 1_000_000))

        def once(work: Sequence[Step]) -> Outcome:
            name = f"ddl{os.getpid()}_{next(numbers)}"
            return attempt(make(name), log.bootstrap, name, home, work)

        for seed in seeds:
            work = steps(database, seed, count, restores=seed % 4 == 0)
            try:
                print(f"sound: {database}, seed {seed}: {once(work)}", flush=True)
            except Fault as fault:
                failed += 1
                print(f"FAULT: {database}, seed {seed}: {fault}", flush=True)
                if shrink:
                    report(shrunk(work, lambda shorter: is_faulty(once, shorter)))
    return failed


def is_faulty(once: Attempt, work: list[Step]) -> bool:
    try:
        once(work)
    except Fault:
        return True
    return False


def report(work: Sequence[Step]) -> None:
    print("fewest steps:")
    for each in work:
        print(" ", each.kind, *each.statements, sep="\n    " if each.statements else " ", flush=True)


if __name__ == "__main__":
    main()
