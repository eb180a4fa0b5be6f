"""kill -9 of writers, publisher and view in a loop, and a checker: ``python -m tests.sourcing.kills --kills 200``.

Writers append batches to a few streams, by commands with ids, and write down what was acknowledged. A publisher follows
the store into a topic, and a projection into a view. One process after another is killed at a random moment and started
again. At the end the checker looks at the whole:

- every acknowledged append is there, with the positions that were acknowledged;
- a command is there once, although writers send their last one again after a kill;
- positions and versions have no gaps, and a batch is not split;
- the topic has every event of the store once, in order, and the view has their sum.

Each of these checks is itself tested, by planted faults (``test_kills.py``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headrace import testing
from headrace.client import Client
from headrace.client.positioned import committed_records
from headrace.sourcing import Event, EventStore, Projection, ProjectionRunner, RecordedEvent, View, on, open_store
from headrace.sourcing.errors import StoreUnavailable, TakenOver, WriterBusy
from headrace.sourcing.publishing import publish

TOPIC = "events"
STREAMS = 5
BATCH_MAX = 4


class Sums(Projection):
    tables: ClassVar = {"sums": "stream text primary key, number bigint not null, total bigint not null"}
    personal = False

    @on("Paid")
    def paid(self, view: View, event: RecordedEvent) -> None:
        table = view.table("sums")
        view.execute(
            f"insert into {table} values (?, 1, ?) on conflict (stream) do update "
            f"set number = {table}.number + 1, total = {table}.total + excluded.total",
            event.stream,
            event.data["amount"],
        )


# ---- the processes that are killed ----------------------------------------------------------------------------------


def write(url: str, name: str, path: str, pace_s: float) -> None:
    """Append for ever. The command under way is written down before, and sent again after a kill."""
    log = Path(path)
    lines = _lines(log)
    store = _opened(url)
    with log.open("a") as file:
        file.write("\n")  # after what a kill may have torn
        for number in itertools.count(lines[-1]["number"] if lines else 0):
            chosen = random.Random(f"{name}:{number}")
            events = [Event("Paid", {"amount": chosen.randrange(100)}) for _ in range(chosen.randint(1, BATCH_MAX))]
            file.write(json.dumps({"number": number, "sum": sum(each.data["amount"] for each in events)}) + "\n")
            file.flush()
            done = None
            while done is None:
                try:
                    done = store.append(f"s-{chosen.randrange(STREAMS)}", events, command_id=f"{name}:{number}")
                except (StoreUnavailable, WriterBusy):
                    time.sleep(0.1)
            acknowledged = {"number": number, "first": done.first_position, "last": done.position}
            file.write(json.dumps(acknowledged) + "\n")
            file.flush()
            time.sleep(pace_s)


def _opened(url: str) -> EventStore:
    while True:
        try:
            return open_store(url)
        except (StoreUnavailable, WriterBusy):
            time.sleep(0.1)


def follow(url: str, bootstrap: str) -> None:
    publish(_opened(url), bootstrap, TOPIC)


def view(url: str, database: str) -> None:
    while True:
        try:
            ProjectionRunner(_opened(url), database, Sums()).run()
        except (StoreUnavailable, TakenOver):
            time.sleep(0.1)


# ---- the checker ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """What a run has left: the rows of the store, the records of the topic, the view, and what was acknowledged."""

    store: list[dict[str, Any]]
    topic: list[dict[str, Any]]
    view: dict[str, tuple[int, int]]
    acknowledged: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def faults_of(seen: Seen) -> list[str]:
    return [*_gaps(seen.store), *_lost(seen), *_followed(seen)]


def _gaps(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    versions: dict[str, int] = {}
    last_us = 0
    for number, event in enumerate(events, 1):
        if event["position"] != number:
            yield f"position {event['position']} is the {number}th"
        versions[event["stream"]] = versions.get(event["stream"], 0) + 1
        if event["version"] != versions[event["stream"]]:
            yield f"{event['stream']} has version {event['version']} in the place of {versions[event['stream']]}"
        if event["recorded_us"] < last_us:
            yield f"the time goes back at position {number}"
        last_us = event["recorded_us"]
    if len({event["event_id"] for event in events}) != len(events):
        yield "an event id is there twice"


def _lost(seen: Seen) -> Iterator[str]:
    commands: dict[str, list[int]] = {}
    for event in seen.store:
        commands.setdefault(event["command_id"], []).append(event["position"])
    for command, positions in commands.items():
        if positions != list(range(positions[0], positions[0] + len(positions))):
            yield f"command {command} is split: {positions}"
    for name, lines in seen.acknowledged.items():
        for line in lines:
            wanted = list(range(line["first"], line["last"] + 1))
            found = commands.get(f"{name}:{line['number']}", [])
            if found != wanted:
                yield f"{name}:{line['number']} was acknowledged at {wanted} and is at {found}"


def _followed(seen: Seen) -> Iterator[str]:
    ids = [event["event_id"] for event in seen.store]
    published = [event["event_id"] for event in seen.topic]
    if ids != published:
        place = next((at for at, (one, other) in enumerate(zip(ids, published, strict=False)) if one != other), None)
        yield f"the topic has {len(published)} of {len(ids)} events, and another one first at {place}"
    sums: dict[str, tuple[int, int]] = {}
    for event in seen.store:
        number, total = sums.get(event["stream"], (0, 0))
        sums[event["stream"]] = (number + 1, total + event["data"]["amount"])
    if sums != seen.view:
        yield f"the view has {seen.view} and not {sums}"


# ---- a run ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class World:
    url: str
    bootstrap: str
    folder: Path
    writers: int = 2
    pace_s: float = 0.0

    @property
    def commands(self) -> dict[str, list[str]]:
        base = [sys.executable, "-m", "tests.sourcing.kills"]
        database = f"sqlite:///{self.folder}/views.db"
        return {
            **{
                f"writer-{number}": [*base, "--write", self.url, f"w{number}", self.log(number), str(self.pace_s)]
                for number in range(self.writers)
            },
            "publisher": [*base, "--follow", self.url, self.bootstrap],
            "view": [*base, "--view", self.url, database],
        }

    def log(self, number: int) -> str:
        return str(self.folder / f"w{number}.log")

    def seen(self) -> Seen:
        """Bring topic and view to the end, and look at everything."""
        with closing(_opened(self.url)) as store:
            publish(store, self.bootstrap, TOPIC, until_current=True)
            runner = ProjectionRunner(store, self.folder / "views.db", Sums())
            runner.run(until_current=True)
            rows = {stream: (number, total) for stream, number, total in runner.ask("select * from sums")}
            runner.close()
            with Client(self.bootstrap) as client:
                topic = [json.loads(record.value or b"") for record in committed_records(client, TOPIC)]
            events = [
                {**event.as_dict(), "recorded_us": event.row[12], "data": event.data} for event in store.read_all()
            ]
        logs = {f"w{number}": _acknowledged(Path(self.log(number))) for number in range(self.writers)}
        return Seen(events, topic, rows, logs)


def _lines(log: Path) -> list[dict[str, Any]]:
    """Of a writer's log; a kill may have torn one."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _acknowledged(log: Path) -> list[dict[str, Any]]:
    return [line for line in _lines(log) if "last" in line]


def kill_in_turn(world: World, kills: int, seed: int) -> Seen:
    chosen = random.Random(seed)
    children = {name: subprocess.Popen(command) for name, command in world.commands.items()}
    try:
        for _ in range(kills):
            name = chosen.choice(list(children))
            _wait_for_progress(world, name, chosen)
            children[name].send_signal(signal.SIGKILL)
            children[name].wait()
            children[name] = subprocess.Popen(world.commands[name])
        _wait_for_work(world, children)
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return world.seen()


def _wait_for_progress(world: World, name: str, chosen: random.Random) -> None:
    """A writer is killed in the middle of its work, however long it took to start; the others at any moment."""
    time.sleep(chosen.uniform(0.05, 0.5))
    if not name.startswith("writer-"):
        return
    log = Path(world.log(int(name.removeprefix("writer-"))))
    wanted = len(_acknowledged(log)) + chosen.randint(1, 20)
    deadline = time.monotonic() + 20
    while len(_acknowledged(log)) < wanted and time.monotonic() < deadline:
        time.sleep(chosen.uniform(0.001, 0.02))


def _wait_for_work(world: World, children: dict[str, subprocess.Popen[bytes]]) -> None:
    """Every writer has written something: a check of nothing proves nothing."""
    deadline = time.monotonic() + 60
    while not all(len(_acknowledged(Path(world.log(number)))) >= 3 for number in range(world.writers)):
        assert time.monotonic() < deadline, {name: child.poll() for name, child in children.items()}
        time.sleep(0.05)


@contextmanager
def worlds(kind: str, pace_s: float = 0.0) -> Iterator[World]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-events-kills-")))
        broker = stack.enter_context(testing.broker())
        if kind == "sqlite":
            yield World(f"sqlite:///{folder}/events.db", broker.bootstrap, folder, pace_s=pace_s)
        elif kind == "postgres":
            from headrace.testing.postgres import postgres

            server = stack.enter_context(postgres({"fsync": "on"}))
            yield World(server.url(), broker.bootstrap, folder, pace_s=pace_s)
        else:
            url = f"kafka://{broker.bootstrap}/store?lease=0.5"
            yield World(url, broker.bootstrap, folder, writers=1, pace_s=pace_s)


def main() -> None:
    if sys.argv[1:2] == ["--write"]:
        write(*sys.argv[2:5], float(sys.argv[5]))
    elif sys.argv[1:2] == ["--follow"]:
        follow(*sys.argv[2:4])
    elif sys.argv[1:2] == ["--view"]:
        view(*sys.argv[2:4])
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--kills", type=int, default=60)
        parser.add_argument("--store", choices=["sqlite", "postgres", "topic", "all"], default="all")
        parser.add_argument("--seed", type=int, default=1)
        given = parser.parse_args()
        kinds = ["sqlite", "postgres", "topic"] if given.store == "all" else [given.store]
        for kind in kinds:
            with worlds(kind) as world:
                seen = kill_in_turn(world, given.kills, given.seed)
            faults = faults_of(seen)
            acknowledged = sum(map(len, seen.acknowledged.values()))
            print(
                f"{kind}: {given.kills} kills, {len(seen.store)} events, {acknowledged} appends, {len(faults)} faults"
            )
            for each in faults[:20]:
                print(f"  {each}")
            if faults:
                sys.exit(1)


if __name__ == "__main__":
    main()
