"""Kill -9 under patterns and searches: ``python -m tests.chaos.patterns --kills 10 --seed 7``.

The pipelines of ``pattern_pipelines`` read events (out of order, repeated, late, with equal times and without a key),
stored patterns that change at event times ahead, and stored searches that change at any time. How they are killed:
``pipeline_kills``. In the end everything is read once more by a run that nobody disturbs: its matches have the same
ids.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.client import Admin, Client, Producer
from headrace.testing import broker as start_broker
from tests.chaos.pattern_loops import Spec, Tuple, asked, lost_of, nexts_of, series_of, stored_of, text_of, vees_of
from tests.chaos.pipeline_kills import CONF, Row, Run, Wrong, kill_loop, same, topic

FILE = Path(__file__).with_name("pattern_pipelines.py")
START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
LATENESS_S = 5
AHEAD_S = 200
"""How far before its time a pattern's change is sent: a micro-batch has at most 60 events, which are less apart."""
PEOPLE = 5
EVENTS_AT_ONCE = 60
PIPELINES = ("vees", "nexts", "series", "lost", "stored", "searches")
EVENTS, STORED_PATTERNS, STORED_SEARCHES = TOPICS = ("events", "stored-patterns", "stored-searches")
CALM = "-calm"
KEEP_ALL = {"retention.ms": "-1"}
"""Patterns have the times of the events, which the clock has left behind for longer than a topic keeps records."""
PATTERN_NAMES, SEARCH_NAMES = ("p", "q", "r"), ("s", "t", "u", "v")
MICRO_BATCHES = "spark.sql.streaming.minBatchesToRetain=100000"
"""What was read when stays in the checkpoint: which searches an event met depends on it."""


@dataclass(slots=True)
class Input:
    """What was sent, in the order in which it was written."""

    events: list[Row] = field(default_factory=list)
    patterns: list[tuple[str, int, Spec | None]] = field(default_factory=list)
    searches: list[tuple[str, Spec | None]] = field(default_factory=list)
    uncounted: set[int] = field(default_factory=set)
    """Late events, and the last one, which is never behind the watermark."""

    def counted(self) -> list[Row]:
        return [each for each in self.events if each["n"] not in self.uncounted]


class Generator:
    def __init__(self, chance: random.Random, bootstrap: str) -> None:
        self.chance, self.bootstrap, self.sent = chance, bootstrap, Input()
        self.now_s = self.number = 0

    def send(self, *, late: bool) -> None:
        with Client(self.bootstrap) as client, Producer(client) as producer:
            if late and self.now_s:
                self._event(producer, self.now_s - 3600, counts=False)
            for _ in range(2):
                self._pattern(producer)
                producer.flush()
            for _ in range(EVENTS_AT_ONCE):
                self.now_s += self.chance.choice((0, 0, 1, 2))
                if self.chance.random() < 0.1:
                    self._search(producer)
                self._event(producer, self.now_s - self.chance.choice((0, 0, 1, LATENESS_S - 1)))

    def close(self) -> None:
        self.now_s += 10_000
        with Client(self.bootstrap) as client, Producer(client) as producer:
            self._event(producer, self.now_s, counts=False)

    def _event(self, producer: Producer, second: int, *, counts: bool = True) -> None:
        self.number += 1
        n, chance = self.number, self.chance
        row = {
            "n": n,
            "who": chance.choice((None, *range(PEOPLE))),
            "at": (START + timedelta(seconds=second)).isoformat(),
            "kind": chance.choice("abcd"),
            "amount": chance.choice((None, *range(8))),
            "text": f"w{n % 7} w{n % 11}",
        }
        for _ in range(2 if counts and chance.random() < 0.1 else 1):
            self.sent.events.append({**row, "s": second})
            producer.send(EVENTS, json.dumps(row).encode(), partition=0)
        if not counts:
            self.sent.uncounted.add(n)

    def _pattern(self, producer: Producer) -> None:
        chance, name = self.chance, self.chance.choice(PATTERN_NAMES)
        spec = chance.choice(
            (
                None,
                ("bad",),
                ("then", chance.choice("abcd"), chance.choice("abcd"), chance.choice((10, 30))),
                ("then", "a", "d", 30),
                ("rise", chance.choice("abcd"), chance.choice((10, 30))),
            )
        )
        since = self.now_s + AHEAD_S + chance.randint(0, 10)
        if self.sent.patterns:
            since = max(since, self.sent.patterns[-1][1])
        self.sent.patterns.append((name, since, spec))
        value = None if spec is None else json.dumps({"id": name, "pattern": text_of(spec)}).encode()
        at_ms = int((START.timestamp() + since) * 1000)
        producer.send(STORED_PATTERNS, value, key=name.encode(), partition=0, timestamp=at_ms)

    def _search(self, producer: Producer) -> None:
        chance, name = self.chance, self.chance.choice(SEARCH_NAMES)
        word = f"w{chance.randrange(7)}"
        spec = chance.choice(
            (
                None,
                ("bad",),
                ("word", word, chance.randrange(5)),
                ("phrase", word, f"w{chance.randrange(11)}"),
                ("but", chance.choice("abcd"), word),
                ("begins", "w1"),
            )
        )
        self.sent.searches.append((name, spec))
        value = None if spec is None else json.dumps({"id": name, "query": asked(spec)[0]}).encode()
        producer.send(STORED_SEARCHES, value, key=name.encode(), partition=0)


# ---- what was written -----------------------------------------------------------------------------------------------


class Checker:
    """Compares what a pipeline has written with plain loops over what was sent."""

    def __init__(self, home: Path, bootstrap: str, sent: Input) -> None:
        self.home, self.bootstrap, self.sent = home, bootstrap, sent

    def check(self, pipelines: Sequence[str], *, closed: bool) -> None:
        for name in pipelines:
            if name == "searches":
                found = ((row["n"], row["search_id"]) for row in self.written(name))
                same(name, found, self.searched())
            else:
                self.matches(name, closed)

    def matches(self, name: str, closed: bool) -> None:
        """Before the end some wait, but no row is wrong and no match is there twice."""
        rows = self.written(name)
        found, wanted = Counter(map(SHOWN[name], rows)), Counter(self.wanted(name))
        if found - wanted or (closed and wanted - found):
            raise Wrong(f"{name}: too much {found - wanted}, missing {wanted - found}")
        ids = Counter(row.get("match_id") for row in rows if name != "series")
        if None in ids or any(count > 1 for count in ids.values()):
            raise Wrong(f"{name}: these ids are missing or there more than once: {ids - Counter(set(ids) - {None})}")

    def wanted(self, name: str) -> Iterable[Tuple]:
        counted = self.sent.counted()
        if name == "stored":
            return stored_of(counted, self.sent.patterns)
        return {"vees": vees_of, "nexts": nexts_of, "series": series_of, "lost": lost_of}[name](counted)

    def calm(self, pipelines: Sequence[str]) -> None:
        """The matches and their ids are those of the run that nobody disturbed."""
        for name in pipelines:
            if name != "searches":
                texts = (map(text, self.written(name + suffix)) for suffix in ("", CALM))
                same(f"{name} and its ids, beside a calm run", *texts)

    def written(self, name: str) -> list[Row]:
        if not name.startswith("nexts"):
            return [value for _, value in topic(self.bootstrap, name) if value is not None]
        with closing(sqlite3.connect(self.home / f"{name}.db")) as look:
            look.row_factory = sqlite3.Row
            return [dict(row) for row in look.execute("SELECT * FROM nexts")]

    def searched(self) -> Iterator[Tuple]:
        """Each micro-batch first has the changes in it, and then its events."""
        searches: dict[str, Callable[[Row], bool]] = {}
        events_read = searches_read = 0
        for events_end, searches_end in self.micro_batches():
            for name, spec in self.sent.searches[searches_read:searches_end]:
                searches.pop(name, None)
                if spec is not None:
                    searches[name] = asked(spec)[1]
            for event in self.sent.events[events_read:events_end]:
                yield from ((event["n"], name) for name, matches in searches.items() if matches(event))
            events_read, searches_read = events_end, searches_end

    def micro_batches(self) -> Iterator[tuple[int, int]]:
        """How far each had read, by the checkpoint."""
        offsets = self.home / "checkpoints" / "searches" / "spark" / "offsets"
        for number in sorted(int(each.name) for each in offsets.iterdir() if each.name.isdecimal()):
            lines = (offsets / str(number)).read_text().splitlines()[2:]
            ends = {name: each for line in lines if line != "-" for name, each in json.loads(line).items()}
            yield int(ends.get(EVENTS, {}).get("0", 0)), int(ends.get(STORED_SEARCHES, {}).get("0", 0))


def events_of(row: Row) -> Tuple:
    return tuple((each["variable"], each["n"]) for each in row["events"])


SHOWN: dict[str, Callable[[Row], Tuple]] = {
    "vees": lambda row: tuple(map(row.get, ("who", "top", "bottom", "last", "number"))),
    "nexts": lambda row: tuple(map(row.get, ("who", "first", "between_n", "between_count", "last"))),
    "series": lambda row: tuple(map(row.get, ("who", "n", "variable", "number", "total"))),
    "lost": lambda row: (row["pattern"], row.get("who"), row["timed_out"], events_of(row)),
    "stored": lambda row: (row["pattern"], row.get("who"), events_of(row)),
}


def text(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)


# ---- the run --------------------------------------------------------------------------------------------------------


def run_of(folder: Path, bootstrap: str, pipelines: Sequence[str], chance: random.Random) -> tuple[Run, Input]:
    with Client(bootstrap) as client:
        for name in TOPICS:
            Admin(client).create_topic(name, partitions=1, config=KEEP_ALL)
        for name in pipelines:
            for suffix in ("", CALM):
                if name != "nexts":
                    Admin(client).create_topic(name + suffix, partitions=1)
    generator = Generator(chance, bootstrap)
    run = Run(
        file=FILE,
        home=folder,
        bootstrap=bootstrap,
        pipelines=pipelines,
        chance=chance,
        generator=generator,
        checker=Checker(folder, bootstrap, generator.sent),
        environment={"PATTERNS_HOME": str(folder)},
        conf=(*CONF, MICRO_BATCHES),
    )
    return run, generator.sent


def compare_calm(run: Run) -> None:
    """Read everything again with a separate checkpoint, undisturbed."""
    run.to_the_end(run.started("--available-now", checkpoints="calm", PATTERNS_SUFFIX=CALM))
    checker: Any = run.checker
    checker.calm(run.pipelines)
    print("compared with an undisturbed run", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", action="append", choices=PIPELINES, metavar="NAME", help="a pipeline; repeatable")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    asked_for = parser.parse_args()
    print(f"seed {asked_for.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="patterns-") as folder, start_broker(in_process=False) as broker:
        chance = random.Random(asked_for.seed)
        run, sent = run_of(Path(folder), broker.bootstrap, asked_for.only or PIPELINES, chance)
        kill_loop(run, asked_for.kills)
        compare_calm(run)
    counted = f"{len(sent.events)} events, {len(sent.patterns)} patterns, {len(sent.searches)} searches"
    print(f"{run.kills} kills, {run.lives} drivers; {counted}: all as plain loops say, and with the same ids")


if __name__ == "__main__":
    main()
