"""Kill -9 of capture, broker and database: ``python -m tests.capture.kills --database mariadb --kills 200 --seed 7``.

A database, a broker and ``headrace capture run`` are children of this process. Writers change tables at random,
without pause: insertions, updates, deletions, changed keys, large values, savepoints, truncations, new columns,
transactions of one row and of thousands. All the while one of the three is killed and started again, from the very
beginning on, so that snapshots are hit too: every other time as soon as something new was told, else at any moment. In
the end writers stop, capture catches up, and then folding the topics must give the tables exactly, every event must be
there once, and in the order of commits: ``judge.py`` says how that is known. A capture that ends by itself, or that
writes nothing for a minute, is a failure.

The seed decides what is done and killed; threads and processes add what no seed decides.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from headrace.client import Client, TopicPartition, end_offsets
from headrace.testing import broker
from headrace.testing.broker import ChildBroker
from tests.capture.judge import Fault, Tolerance, check_counter, check_transactions, compare, folded
from tests.capture.kills_subjects import NAME, SUBJECTS, Subject
from tests.capture.world import catch_up, check_order, slim_events
from tests.servers.process import log_tail

COMMAND = Path(sys.executable).with_name("headrace")
EVENTS_TIMEOUT_S = 60.0
COUNTED = ("keyed", "pairs", "emptied", "ledger")
ADDED = Tolerance(added=("c0", "c1", "c2", "c3"))


class Rig:
    """The three that are killed."""

    def __init__(self, subject: Subject, log: ChildBroker, home: Path) -> None:
        self.subject = subject
        self.log = log
        self.killed: Counter[str] = Counter()
        self._output = home / "capture.log"
        self._capture: subprocess.Popen[bytes] | None = None
        self._said_before = 0

    def start_capture(self) -> None:
        command = [str(COMMAND), "capture", "run", NAME, self.subject.options.url, *self.subject.arguments]
        command += ["--chunk-rows", "200", "--heartbeat", "0.5", "--bootstrap", self.log.bootstrap]
        self._said_before = len(self._output.read_text(errors="replace")) if self._output.exists() else 0
        with self._output.open("ab") as output:
            self._capture = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def kill_capture(self) -> None:
        if self._capture is not None:
            self._capture.kill()
            self._capture.wait()
            self._capture = None

    def kill(self, which: str) -> None:
        self.killed[which] += 1
        if which == "capture":
            self.kill_capture()
        elif which == "broker":
            self.log.kill()
            self.log.start()
        else:
            self.subject.kill()
        if self._capture is None:
            self.start_capture()

    def check_alive(self) -> None:
        """A capture that has ended by itself is a fault, unless it could not begin: its broker was away just then."""
        if self._capture is None or (status := self._capture.poll()) is None:
            return
        said = self._output.read_text(errors="replace")[self._said_before :]
        if "capturing" in said or "cannot reach" not in said:
            raise Fault(f"capture ended by itself with {status}:\n{self.tail()}")
        self.start_capture()

    def wait_for_events(self) -> None:
        """Until something new is in the topics: a capture that is killed before it has begun to work proves little."""
        deadline = time.monotonic() + EVENTS_TIMEOUT_S
        before = self._told()
        while self._told() <= before:
            self.check_alive()
            if time.monotonic() > deadline:
                raise Fault(f"capture wrote nothing for {EVENTS_TIMEOUT_S:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def _told(self) -> int:
        with Client(self.log.bootstrap) as client:
            wanted = f"{NAME}.{self.subject.schema}."
            places = [TopicPartition(each.name, 0) for each in client.topics() if each.name.startswith(wanted)]
            return sum(end_offsets(client, places).values())

    def tail(self) -> str:
        return log_tail(self._output, 60)


def check(rig: Rig) -> dict[str, int]:
    """Compare topics and tables; gives the number of events of each."""
    subject = rig.subject
    told = {table: slim_events(rig.log.bootstrap, f"{NAME}.{subject.schema}.{table}") for table in ("bag", *COUNTED)}
    for table, found in told.items():
        compare(table, folded(found), subject.rows(table), ADDED)
    for table in COUNTED:
        check_counter(told[table], first=0)
        check_order([each for each in told[table] if each.op != "r"], subject.place)
    if subject.has_transactions:
        check_transactions(told, "ledger")
    return {table: len(found) for table, found in told.items()}


def run(database: str, kills: int, seed: int, *, least_s: float, most_s: float, seconds_max: float = math.inf) -> str:
    """Kill so often, or for so long."""
    choose = random.Random(seed)
    deadline = time.monotonic() + seconds_max
    home = Path(tempfile.mkdtemp(prefix="headrace-kills-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        subject = SUBJECTS[database](stack, home, seed)
        rig = Rig(subject, stack.enter_context(broker(in_process=False)), home)
        stack.callback(rig.kill_capture)
        subject.start_writing(seed)
        try:
            rig.start_capture()
            for number in range(kills):
                if time.monotonic() > deadline:
                    break
                if number % 2:
                    rig.wait_for_events()
                time.sleep(choose.uniform(least_s, most_s))
                rig.check_alive()
                rig.kill(choose.choices(["capture", "broker", "database"], [3, 1, 1])[0])
        finally:
            subject.stop_writing()
        rig.check_alive()
        rig.kill_capture()
        try:
            catch_up(rig.log.bootstrap, subject.options)
            counts = check(rig)
        except BaseException:
            print(rig.tail())
            raise
        return f"sound: {database}, {rig.killed.total()} kills {dict(rig.killed)}, seed {seed}, events {counts}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.capture.kills")
    parser.add_argument("--database", choices=[*SUBJECTS, "all"], default="all")
    parser.add_argument("--kills", type=int, default=100, help="of each database")
    parser.add_argument("--rounds", type=int, default=1, help="each with fresh servers and the next seed")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--least-s", type=float, default=0.1)
    parser.add_argument("--most-s", type=float, default=2.0)
    parser.add_argument("--seconds-max", type=float, default=math.inf, help="of killing, for each database")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # children end with us
    how = {"least_s": given.least_s, "most_s": given.most_s, "seconds_max": given.seconds_max}
    for number in range(given.rounds):
        for database in SUBJECTS if given.database == "all" else [given.database]:
            print(run(database, given.kills, given.seed + number, **how), flush=True)


if __name__ == "__main__":
    main()
