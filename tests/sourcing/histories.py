"""Random histories of an event store beside a plain model: ``python -m tests.sourcing.histories --seeds 100``.

A history is a list of operations that a seed gives: appends of all kinds by several writers, of which one is another
process that is killed with SIGKILL in the middle; reads, subscriptions, decisions with snapshots, a process, views,
forgetting, stores that are opened again. ``model.py`` says what each has to give. After each operation that writes, the
new events are read back and compared; at the end everything is, by every writer and by a store that is opened newly.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from headrace import testing
from headrace.sourcing import ANY, Event, EventStore, ProjectionRunner, Query, UnencryptedPersonalData, load
from tests.servers.postgres import postgres_server
from tests.sourcing.model import Model, Operation, Outcome, account, rows_of
from tests.sourcing.operations import STREAMS, SUBJECTS, Generator
from tests.sourcing.writers import Here, KeptNames, Live, RebuiltNames, There, Totals, view_of

LEASE_S = 1


class Difference(Exception):
    """The store and the model do not agree."""


class History:
    """One store, its model, and those who write; ``run`` raises ``Difference``."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url = url
        self.keys = folder / f"{seed}.keys"
        self.views = url if url.startswith("postgres") else f"sqlite:///{folder}/{seed}.views"
        self.chosen = random.Random(seed)
        self.model = Model()
        self.next = Generator(self.chosen, self.model)
        self.counts: Counter[str] = Counter()
        self.here = [Here(url, self.keys, newest=True), Here(url, self.keys, newest=False)]
        self.there = There(url, self.keys)
        self.lives: list[Live] = []

    @property
    def writers(self) -> list[Here | There]:
        return [*self.here, self.there]

    def run(self, steps: int, kills: int) -> Counter[str]:
        try:
            deaths = self.chosen.sample(range(steps), kills)
            for step in range(steps):
                if step in deaths:
                    self.kill()
                else:
                    self.step(with_child=kills > 0)
            self.end()
        finally:
            for each in (*self.lives, *self.writers):
                each.close()
        return self.counts

    def step(self, with_child: bool) -> None:
        steps = {
            lambda: self.write(self.next.append()): 40,
            lambda: self.write(self.next.writing()): 20,
            self.forget: 2,
            lambda: self.read(self.chosen.choice(self.writers if with_child else self.here), self.next.reading()): 40,
            self.append_together: 4,
            self.begin_live: 2,
            self.reopen: 3,
            self.view: 5,
        }
        self.chosen.choices(list(steps), list(steps.values()))[0]()

    # -- one writer --

    def write(self, operation: Operation, writer: Here | There | None = None) -> None:
        writer = writer or self.chosen.choice(self.writers if self.there.process else self.here)
        real = self.real(writer, operation)
        self.compare(operation, self.model.perform(operation, writer.newest), real)
        self.learn()

    def forget(self) -> None:
        """Somebody of whom there are snapshots, which must not be used after that."""
        subject, writer = self.chosen.choice(SUBJECTS), self.chosen.choice(self.here)
        streams = {row["stream"] for row in self.model.rows if subject in row["personal"].values()} - {None}
        for stream in sorted(streams):
            self.write(Operation("handle", {"stream": stream, "command": 1, "command_id": None, "every": 1}), writer)
        self.write(Operation("forget", {"subject": subject}))
        for stream in sorted(streams):
            self.read(writer, Operation("load", {"stream": stream, "version": None, "every": 1}))

    def real(self, writer: Here | There, operation: Operation) -> Outcome:
        """A topic has one writer: the others give up theirs, and one that was killed loses it after a while."""
        deadline = time.monotonic() + 30 * LEASE_S
        while (outcome := writer.perform(operation))[1] == "WriterBusy" and time.monotonic() < deadline:
            self.counts["writer busy"] += 1
            for other in self.writers:
                if other is not writer:
                    other.again()
            time.sleep(0.05)
        return outcome

    def read(self, writer: Here | There, operation: Operation) -> None:
        self.compare(operation, self.model.perform(operation, writer.newest), writer.perform(operation))

    def compare(self, operation: Operation, wanted: Outcome, found: Outcome) -> None:
        self.counts[operation.name if wanted[0] == "ok" else f"{operation.name}: {wanted[1]}"] += 1
        self.same(str(operation), wanted, found)

    def same(self, where: str, wanted: Any, found: Any) -> None:
        if agree(wanted, found):
            return
        if wanted[:1] == found[:1] == ("ok",):
            wanted, found = wanted[1], found[1]
        while isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
            wanted, found = next((w, f) for w, f in zip(wanted, found, strict=True) if not agree(w, f))
        raise Difference(f"{where}\n  the model: {wanted}\n  the store: {found}")

    def learn(self) -> None:
        """Compare the events that are new, and take over what the store has chosen: ids and times."""
        known = sum("recorded_at" in row for row in self.model.rows)
        found = rows_of(self.here[1].store.read_all(after=known))
        wanted = [self.model.seen(row, newest=False) for row in self.model.rows[known:]]
        self.same(f"after position {known}", wanted, found)
        for row, real in zip(self.model.rows[known:], found, strict=True):
            chosen = ("event_id", "command_id") if row.get("made") else ("event_id",)
            row |= {"recorded_at": real["recorded_at"], **{name: real[name] for name in chosen}}
        times = [row["recorded_at"] for row in self.model.rows]
        if times != sorted(times):
            raise Difference(f"times go back: {times}")

    # -- several at a time --

    def append_together(self) -> None:
        """Threads of both stores append at once: there is an order in which the model agrees with each."""
        operations = [self.next.append() for _ in range(6)]
        alone = self.url.startswith("kafka")
        if alone:
            self.write(MARK, self.here[0])
        writers = [self.here[0] if alone else self.chosen.choice(self.here) for _ in operations]
        with ThreadPoolExecutor(len(operations)) as pool:
            found = list(pool.map(lambda pair: pair[0].perform(pair[1]), zip(writers, operations, strict=True)))
        self.counts["appended together"] += len(operations)
        self.order(list(zip(operations, writers, found, strict=True)))
        self.learn()

    def order(self, together: list[tuple[Operation, Here, Outcome]]) -> None:
        """Those that wrote are in the order of their positions; the others fit at some point between them."""
        wrote = sorted((each for each in together if _has_written(each[2])), key=lambda each: each[2][1][1])
        others = [each for each in together if not _has_written(each[2])]
        wanted: list[Outcome] = []
        for each in [*wrote, None]:
            for other in list(others):
                wanted.append(self.model.perform(other[0], other[1].newest, only_try=True))
                if agree(wanted[-1], other[2]):
                    others.remove(other)
            if each is not None:
                self.compare(each[0], self.model.perform(each[0], each[1].newest), each[2])
        if others:
            shown = "".join(f"\n  {each[0]}\n    the store: {each[2]}" for each in others)
            raise Difference(f"at no point between {len(wrote)} that wrote, {wanted} and not{shown}")

    def begin_live(self) -> None:
        after = self.next.place()
        if len(self.lives) < 3 and after <= len(self.model.rows):
            self.lives.append(Live(self.url, self.keys, self.next.query(), after))
            self.counts["live"] += 1

    def reopen(self) -> None:
        self.chosen.choice(self.writers).again()
        self.counts["opened again"] += 1

    def kill(self) -> None:
        """SIGKILL among several appends: each is whole or not there, in order. Sent again, a command is done once."""
        self.write(MARK, self.there)
        operations = [self.next.append() for _ in range(4)]
        for operation in operations:
            self.there.send(operation)
        time.sleep(self.chosen.choice([0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3]))
        self.there.close(kill=True)
        real = self.real(self.here[0], MARK)
        done = [each for each in operations if self.was_done(each, until=real[1][0])]
        self.compare(MARK, self.model.perform(MARK, newest=True), real)
        self.learn()
        self.counts[f"killed after {len(done)} of 4"] += 1
        for operation in operations:
            if operation.values["command_id"] is not None:
                self.write(operation)

    def was_done(self, operation: Operation, until: int) -> bool:
        """Whether the store has it, if its next events are up to ``until``. What fails, was not done either."""
        before = len(self.model.rows)
        return (
            before + 1 < until
            and self.model.perform(operation, newest=True)[0] == "ok"
            and len(self.model.rows) > before
        )

    # -- views --

    def view(self) -> None:
        for kind in (Totals, RebuiltNames, KeptNames):
            with closing(ProjectionRunner(self.here[0].store, self.views, kind())) as runner:
                if self.chosen.random() < 0.3:
                    runner.rebuild()
                runner.run(until_current=True)
                runner.wait_for(len(self.model.rows))
                columns = "*" if kind is Totals else "position, name"
                table = next(iter(kind.tables))
                found = set(map(tuple, runner.ask(f"select {columns} from {table}")))
            self.counts["views"] += 1
            if found != view_of(self.model, kind):
                raise Difference(f"{kind.__name__}\n  the model: {view_of(self.model, kind)}\n  the view: {found}")

    # -- the end --

    def end(self) -> None:
        self.view()
        everything = Operation("read_all", {"query": Query(), **WHOLE})
        fresh = Here(self.url, self.keys, newest=True)
        with closing(fresh):
            for writer in (*self.here, fresh):
                self.read(writer, everything)
            self.moments(fresh.store)
        for live in self.lives:
            rows = self.model.read_all(live.query, live.after, None, None, False, newest=True)
            live.wait_for(len(rows))
            wanted = [row["position"] for row in rows]
            if live.positions != wanted:
                raise Difference(f"live after {live.after}, {live.query}\n  {wanted}\n  {live.positions}")
        self.counts["events"] += len(self.model.rows)

    def moments(self, store: EventStore) -> None:
        times = [row["recorded_at"] for row in self.model.rows]
        for moment in self.chosen.sample(times, min(5, len(times))):
            position = sum(each <= moment for each in times)
            if store.position_at(moment) != position:
                raise Difference(f"{store.position_at(moment)} and not {position} is the position at {moment}")
            stream = self.chosen.choice(STREAMS)
            version = sum(row["position"] <= position for row in self.model.stream_of(stream))
            state = self.model.state(stream, version, newest=True)
            loaded = load(store, stream, account(self.chosen.choice([None, 3])), at=moment)
            if (dict(loaded.state), loaded.version) != (state, version):
                raise Difference(f"{stream} at {moment}: {loaded} and not {state} at version {version}")


MARK = Operation(
    "append", {"parts": [("mark", [Event("Note")], ANY)], "command_id": None, "condition": None, "progress": None}
)
WHOLE = {"after": 0, "until": None, "limit": None, "backwards": False}


def _has_written(outcome: Outcome) -> bool:
    return outcome[0] == "ok" and not outcome[1][3]


def agree(wanted: Any, found: Any) -> bool:
    """Equal, but for what the model does not know: an id that the store has chosen, a time, a process's command."""
    if isinstance(wanted, dict) and "position" in wanted:
        unknown = {"recorded_at"} - wanted.keys() | {name for name in ("event_id",) if wanted[name] is None}
        unknown |= {"command_id"} if wanted.get("made") and wanted["command_id"] is None else set()
        names = (wanted.keys() | found.keys()) - unknown - {"made"}
        return all(wanted.get(name) == found.get(name) for name in names)
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        return len(wanted) == len(found) and all(map(agree, wanted, found))
    return bool(wanted == found)


# ---- the command -----------------------------------------------------------------------------------------------------


@contextmanager
def addresses(kind: str, folder: Path) -> Iterator[Callable[[int], str]]:
    """Gives the address of a new store for each seed."""
    if kind == "sqlite":
        yield lambda seed: f"sqlite:///{folder}/{seed}.db"
    elif kind == "topic":
        with testing.broker() as broker:
            yield lambda seed: f"kafka://{broker.bootstrap}/events-{seed}?lease={LEASE_S}"
    else:
        with postgres_server() as server:
            yield lambda seed: schema(server.url(), seed)


def schema(server: str, seed: int) -> str:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create schema history_{seed}".encode())
    return f"{server}?options=-csearch_path%3Dhistory_{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="sqlite")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no history after that")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UnencryptedPersonalData)  # random values of personal fields are also in others
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, addresses(arguments.kind, Path(name)) as address:
        began = time.monotonic()
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            if time.monotonic() - began > arguments.seconds:
                break
            counts["histories"] += 1
            try:
                counts += History(address(seed), Path(name), seed).run(arguments.steps, arguments.kills)
            except Exception:
                print(f"seed {seed}", file=sys.stderr)
                raise
    for name, number in sorted(counts.items()):
        print(f"{number:8,d} {name}")


if __name__ == "__main__":
    main()
