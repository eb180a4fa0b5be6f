"""Kill -9 of Spark and its broker: ``python -m tests.chaos.spark --kills 50 --seed 7``.

Five pipelines run from topic to topic (``spark_job``). Again and again rows are added, progress is awaited, and then
something is killed: a Python worker, an executor, the driver (whole, only its Python, or with everything that it
started) or the broker, which comes back on its data. Half of the kills come whenever chance wants; half come right
after a batch was decided, where a sink has most to lose. In the end the committed output is compared with what the
input comes to when it is read at once. The seed decides what is killed when; the operating system adds the rest.

``--unfenced`` takes the sink's memory away. Then the run must fail, which shows that it can.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.client import Admin, Client, ClientOptions, Producer, TopicPartition, end_offsets
from headrace.spark.topic_sink.decisions import DECISION_TOPIC, DecisionTopic
from headrace.testing import broker as start_broker
from headrace.testing.broker import ChildBroker
from tests.chaos.spark_job import SOURCE
from tests.chaos.spark_judge import CLOSING_S, Verdict, compare, has_read_all
from tests.chaos.spark_life import CLUSTER, LOCAL, Life, LifeEnded
from tests.chaos.spark_stored import stored

PIPELINES = ("transform", "windows", "updates", "patterns", "searches")
PARTITIONS = 4
KEYS = 7
ROWS_PER_KILL = 400
STILL_S_MAX = 300.0
"""So long without a decision means that something hangs, on the busiest machine."""
LOOK_S = 0.5
"""How often to look whether the pipelines have anything left to do."""
PATIENCE = ClientOptions(retry_timeout_ms=60_000, first_contact_timeout_ms=60_000)
ENDS_A_LIFE = ("driver", "driver-python", "machine")
WEIGHTS = {"worker": 6, "executor": 8, "broker": 6, "driver": 3, "driver-python": 1, "machine": 2}
"""How often each is killed. A new driver takes longer to come than all else together."""


class Unsound(Exception):
    """The run has shown a mistake, or stands still."""


class Broker(Protocol):
    """What a run needs of a broker, or of several."""

    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Kill:
    part: str
    aimed: bool
    delay_s: float


def plan_kill(chance: random.Random, master: str, parts: Sequence[str]) -> Kill:
    there = [part for part in parts if part != "executor" or master == CLUSTER]
    (part,) = chance.choices(there, [WEIGHTS[each] for each in there])
    aimed = chance.random() < 0.5
    return Kill(part, aimed, chance.uniform(0.0, 0.1 if aimed else 2.0))


class Run:
    """A broker, its topics, and one driver after the other."""

    def __init__(
        self, home: Path, broker: Broker, *, pipelines: Sequence[str] = PIPELINES, fenced: bool = True
    ) -> None:
        self.home = home
        self.broker = broker
        self.pipelines = tuple(pipelines)
        self.fence = "fenced" if fenced else "unfenced"
        self.client = Client(broker.bootstrap, PATIENCE)
        self.decisions = TopicPartition(DECISION_TOPIC, 0)
        self.rows = 0
        self.lives: list[Life] = []
        for topic in (SOURCE, *self.pipelines):
            Admin(self.client).create_topic(topic, partitions=PARTITIONS)
        stored(self.client)
        DecisionTopic(self.client, DECISION_TOPIC).ensure()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def close(self) -> None:
        for life in self.lives:
            life.close()
        self.client.close()

    # ---- what happens -----------------------------------------------------------------------------------------------

    def begin(self, master: str) -> None:
        """A new driver. The one before it may still be dying, as it may when a cluster restarts one."""
        log = self.home / f"driver-{len(self.lives) + 1}.log"
        arguments = [str(self.home), self.broker.bootstrap, master, self.fence, *self.pipelines]
        self.lives.append(Life(log, [sys.executable, "-m", "tests.chaos.spark_job", *arguments], master=master))
        self.life.wait_until_running()

    def feed(self, count: int) -> None:
        """Rows that count up, which are their event times as well."""
        with Producer(self.client) as producer:
            for number in range(self.rows, self.rows + count):
                producer.send(SOURCE, b"%d" % number, key=b"key-%d" % (number % KEYS), partition=number % PARTITIONS)
        self.rows += count

    def decided(self) -> int:
        """Grows with every decision."""
        return end_offsets(self.client, [self.decisions])[self.decisions]

    def wait_for_decision(self) -> None:
        """The pipelines get more to do when they have read all there is."""
        before, began = self.decided(), time.monotonic()
        look = began + LOOK_S
        while self.decided() == before:
            self.life.check()
            if time.monotonic() > began + STILL_S_MAX:
                raise Unsound(f"no batch was decided within {STILL_S_MAX:g} s; see {self.life.log}")
            if time.monotonic() > look:
                if self.all_read():
                    self.feed(ROWS_PER_KILL // 4)
                look = time.monotonic() + LOOK_S
            time.sleep(0.005)

    def kill(self, kill: Kill, chance: random.Random) -> str:
        """Kill when progress shows that there is something to kill; gives what was hit."""
        self.wait_for_decision()
        if kill.aimed:
            self.wait_for_decision()
        time.sleep(kill.delay_s)
        if kill.part == "broker":
            assert isinstance(self.broker, ChildBroker), "only a broker that comes back at once is killed here"
            self.broker.kill()
            self.broker.start()
            return "broker"
        pids = self.until(lambda: self.life.pick(kill.part, chance), f"there is no {kill.part} to kill")
        self.life.kill(pids)
        return f"{len(pids)} × {kill.part}" if len(pids) > 1 else kill.part

    def until(self, found: Callable[[], list[int]], otherwise: str) -> list[int]:
        deadline = time.monotonic() + STILL_S_MAX
        while not (pids := found()):
            self.life.check()
            if time.monotonic() > deadline:
                raise Unsound(f"{otherwise}; see {self.life.log}")
            time.sleep(0.01)
        return pids

    # ---- how it ends ------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Verdict]:
        """Let the pipelines come to the end of the input, and judge what they have written."""
        self.wait_until(self.all_read, "not all rows were read")
        # Only now: a row of the far future closes windows for rows that are read after it.
        with Producer(self.client) as producer:
            producer.send(SOURCE, b"%d" % CLOSING_S, key=b"key-0", partition=0)
        verdicts: dict[str, Verdict] = {}

        def settled() -> bool:
            for name in self.pipelines:
                verdicts[name] = compare(self.client, name)
            return all(each.complete for each in verdicts.values()) or any(each.wrong for each in verdicts.values())

        self.wait_until(settled, lambda: "; ".join(f"{name}: {each}" for name, each in verdicts.items()))
        return verdicts

    def all_read(self) -> bool:
        """Whether every query has finished a batch that ends where the input ends."""
        return all(has_read_all(self.client, SOURCE, self.home / "checkpoints" / name) for name in self.pipelines)

    def wait_until(self, done: Callable[[], bool], otherwise: str | Callable[[], str]) -> None:
        """As long as batches are decided, however slowly, there is hope."""
        before, deadline = self.decided(), time.monotonic() + STILL_S_MAX
        while not done():
            self.life.check()
            if (now := self.decided()) != before:
                before, deadline = now, time.monotonic() + STILL_S_MAX
            if time.monotonic() > deadline:
                reason = otherwise if isinstance(otherwise, str) else otherwise()
                raise Unsound(f"after {STILL_S_MAX:g} s without a decision: {reason}; see {self.life.log}")
            time.sleep(LOOK_S)


def kill_loop(run: Run, options: argparse.Namespace, chance: random.Random) -> Counter[str]:
    masters = (CLUSTER, LOCAL)
    hits: Counter[str] = Counter()
    began = time.monotonic()
    run.begin(masters[0])
    for number in range(1, options.kills + 1):
        kill = plan_kill(chance, run.life.master, options.parts)
        run.feed(ROWS_PER_KILL)
        hit = run.kill(kill, chance)
        hits[kill.part] += 1
        moment = "after a decision" if kill.aimed else "at random"
        print(
            f"kill {number} of {options.kills} at {time.monotonic() - began:.0f} s: {hit}, {moment} "
            f"(life {len(run.lives)}, {run.life.master}, {run.rows} rows)",
            flush=True,
        )
        if kill.part in ENDS_A_LIFE:
            run.begin(masters[len(run.lives) % 2])
    return hits


def chaos(options: argparse.Namespace, home: Path) -> bool:
    """Whether all was well."""
    chance = random.Random(options.seed)
    began = time.monotonic()
    with start_broker(in_process=False, data=home / "data") as broker:
        run = Run(home, broker, pipelines=options.pipelines, fenced=not options.unfenced)
        try:
            hits = kill_loop(run, options, chance)
            print(f"{sum(hits.values())} kills done; the pipelines come to the end", flush=True)
            verdicts = run.finish()
        except (Unsound, LifeEnded) as error:
            print(f"result: {error}")
            return False
        finally:
            run.close()
    for name, verdict in verdicts.items():
        print(f"  {name}: {verdict}")
    sound = all(each.complete for each in verdicts.values())
    counts = ", ".join(f"{count} × {part}" for part, count in sorted(hits.items()))
    print(
        f"seed {options.seed}, {options.kills} kills ({counts}), {len(run.lives)} drivers, {run.rows} rows, "
        f"{time.monotonic() - began:.0f} s"
    )
    print(f"result: {'sound' if sound else 'unsound'}")
    return sound


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=PIPELINES)
    parser.add_argument("--parts", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS), help="what is killed")
    parser.add_argument("--unfenced", action="store_true", help="without the sink's memory: must end unsound")
    parser.add_argument("--keep", action="store_true", help="keep data and logs in any case")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    home = Path(tempfile.mkdtemp(prefix="headrace-spark-chaos-"))
    sound = chaos(options, home)
    if sound and not options.keep:
        shutil.rmtree(home, ignore_errors=True)
    else:
        print(f"kept: {home}")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
