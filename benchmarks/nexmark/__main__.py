"""``python -m benchmarks.nexmark [query …] [--events N] [--rounds N] [--without-flink] [--output table|json]
[--record DIR]``.

Events a second for each query, headrace's next to Flink's. No number without a check: before anything is measured, each
query's results on a stream are compared with DuckDB's, headrace's on the very events that are measured, Flink's on
fewer of them (its results come out row by row).

Both read the same columns of the same topics of the same broker with the same two cores, and throw results away. The
sessions are up and each query has run once before. Topics hold everything before, so this is the speed of catching up.

One clock for both: from the call that starts a query to its end. It is read for two sets of events, the second four
times as large. What the larger one takes longer, divided by its further events, is the speed, with the micro-batches
and checkpoints that they cost; what is left of the smaller one's time is the start of a query (planning, processes,
Flink's small cluster), and has its own line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyspark

from benchmarks.figures import Figure, as_json, number, record, table
from benchmarks.meters import cpu_seconds
from benchmarks.nexmark.flink import FLINK_VERSION, Flink, flink
from benchmarks.nexmark.flink_sql import NOT_COMPARED
from benchmarks.nexmark.generator import House, fingerprint
from benchmarks.nexmark.load import Loaded, load
from benchmarks.nexmark.oracle import Judge
from benchmarks.nexmark.queries import QUERIES, Query
from benchmarks.nexmark.streams import Lane
from benchmarks.spark_source import spark_session
from tests.servers.headrace import headrace_server
from tests.servers.process import CannotRun

EVENTS = 4_000_000
LARGER = 4
"""How many times as many events as the smaller set has."""
ROUNDS = 3
QUERY_S = 240
"""No further round begins when a query has taken so long; at least one is measured."""
MICRO_BATCHES = 4
SMALLER_BATCHES = 2
"""Micro-batches of the smaller set; those of the larger one are as large as these, and so more."""
MEMORY = "6g"
"""For Spark's JVM: Flink's takes a quarter of the machine's by itself."""
SMALL_HOUSE = House(gap_us=2000, out_of_order=100)
SMALL_EVENTS = 20_000
"""For the check of Flink: forty seconds of event time."""

IN_THE_JOIN = "Spark's join of two streams keeps every row apart, and looks each up"
IN_THE_STORE = "whole rows are held, one by one in RocksDB; Flink's are in the heap"
IN_PYTHON = "rows go to Python's columns and back, and each micro-batch has its checkpoint"
FEW_EVENTS = "few events: planning and checkpoints of the micro-batches cost more than they do"
WHY = {
    **dict.fromkeys(("q3", "q8"), FEW_EVENTS),
    **dict.fromkeys(("q18", "q19"), IN_THE_STORE),
    **dict.fromkeys(("q4", "q9", "q11"), IN_PYTHON),
    **dict.fromkeys(("q5", "q7", "q15", "q16", "q17"), "each micro-batch of Spark's aggregations has its checkpoint"),
    "q20": IN_THE_JOIN,
}
"""What costs headrace most where Flink is ahead; queries without state share nothing but the reading."""
READING = "JSON is read by Python workers and handed to the JVM"


@dataclass(slots=True)
class Spent:
    """What rounds of a query took, headrace's and Flink's."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    """What of the seconds does not depend on the events, where that is known."""

    def add(self, seconds: float, cpu: float) -> None:
        self.seconds.append(seconds)
        self.cpu.append(cpu)

    def add_slope(self, smaller: Took, larger: Took, share: float) -> None:
        """``share`` of the larger set's events are in the smaller one; both counts become those of the larger set."""
        seconds, cpu = ((more - less) / (1 - share) for more, less in zip(larger, smaller, strict=True))
        self.add(seconds, cpu)
        self.starts.append(smaller[0] - share * seconds)


Took = tuple[float, float]
"""Seconds, and processor seconds."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Both engines, on both sets of events."""

    smaller: Lane
    larger: Lane
    flink: Flink | None

    def ours(self, query: Query, lane: Lane) -> Took:
        before = cpu_seconds(os.getpid())
        run = lane.stream(query, keep=False)
        return run.seconds, cpu_seconds(os.getpid()) - before

    def theirs(self, query: Query, lane: Lane) -> Took:
        assert self.flink is not None
        self.flink.read(lane.loaded, query.reads)
        job = self.flink.measure(query.name)
        return job.seconds, job.cpu_seconds


def main() -> None:
    arguments = parse()
    queries = [QUERIES[name] for name in arguments.names or QUERIES]
    house = House()
    described = {**machine(), "events": arguments.events, "data_set": fingerprint(house, 100_000)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-nexmark-")))
        server = stack.enter_context(headrace_server())
        few = arguments.events // LARGER
        say(f"making {few:,} and {arguments.events:,} events")
        some = load(server.bootstrap, house, few, prefix="nexmark-smaller")
        loaded = load(server.bootstrap, house, arguments.events)
        say(f"{arguments.events / loaded.seconds:,.0f} events a second were made and written")
        spark = stack.enter_context(spark_session([], memory=MEMORY))
        smaller = Lane(spark, server.bootstrap, some, SMALLER_BATCHES)
        larger = Lane(spark, server.bootstrap, loaded, SMALLER_BATCHES * LARGER)
        check_ours(smaller, house, few, queries)
        theirs = None if arguments.without_flink else start_flink(stack, server.bootstrap, loaded, folder, queries)
        sides = Sides(smaller, larger, theirs)
        figures = [generation(loaded, arguments.events)]
        for query in queries:
            figures += compare(sides, query, arguments.rounds)
            if arguments.record is not None:
                record(arguments.record, "nexmark", described, figures)
    if arguments.output == "json":
        print(json.dumps({"machine": described, "figures": as_json(figures)}, indent=2))
    else:
        print(" · ".join(f"{what} {value}" for what, value in described.items()) + f"\n\n{table(figures)}")
    ahead = [figure for figure in figures if figure.goal is not None]
    print(f"\nahead on {sum(bool(each.met) for each in ahead)} of {len(ahead)} queries", file=sys.stderr)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description="Nexmark, beside Flink.")
    parser.add_argument("names", nargs="*", metavar="query", help=f"which ones: {', '.join(QUERIES)}; all when none")
    parser.add_argument(
        "--events",
        type=int,
        default=EVENTS,
        help=f"of the larger set; {EVENTS:,} when not given, {LARGER} times the other",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")
    parser.add_argument("--without-flink", action="store_true", help="headrace alone")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--record", type=Path, metavar="DIR", help="also write every round of every figure there")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(QUERIES))
    if unknown:
        parser.error(f"no query {', '.join(unknown)}; there are: {', '.join(QUERIES)}")
    return arguments


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def check_ours(lane: Lane, house: House, count: int, queries: list[Query]) -> None:
    judge = Judge(house, count)
    try:
        for query in queries:
            run = lane.stream(query, keep=True)
            rows = judge.check(query, run.batches)
            say(f"{query.name}: {rows:,} rows in {run.micro_batches} micro-batches, as DuckDB has them")
    finally:
        judge.close()


def start_flink(stack: ExitStack, bootstrap: str, loaded: Loaded, folder: Path, queries: list[Query]) -> Flink | None:
    """Checked on a separate small broker, and then put on the topics to be measured."""
    try:
        check_theirs(folder, queries)
        return stack.enter_context(flink(bootstrap, loaded, folder))
    except CannotRun as reason:
        say(f"without Flink: {reason}")
        return None


def check_theirs(folder: Path, queries: list[Query]) -> None:
    judge = Judge(SMALL_HOUSE, SMALL_EVENTS)
    try:
        with headrace_server() as server:
            loaded = load(server.bootstrap, SMALL_HOUSE, SMALL_EVENTS)
            with flink(server.bootstrap, loaded, folder) as theirs:
                for query in queries:
                    left_out = NOT_COMPARED.get(query.name, ())
                    rows = judge.compare(query.name, theirs.answer(query.name), without=left_out)
                    say(f"{query.name}: Flink's {rows:,} rows of {SMALL_EVENTS:,} events are DuckDB's")
    finally:
        judge.close()


def compare(sides: Sides, query: Query, rounds: int) -> list[Figure]:
    """In turn, the order changing from round to round."""
    began = time.monotonic()
    engines: list[tuple[Spent, Callable[[Query, Lane], Took]]] = [(Spent(), sides.ours)]
    if sides.flink is not None:
        engines.append((Spent(), sides.theirs))
    few, many = (sum(lane.loaded.rows[kind] for kind in query.reads) for lane in (sides.smaller, sides.larger))
    for _, run in engines:  # not measured: both compile a query while it runs, and headrace's check was long ago
        run(query, sides.smaller)
    for each in range(rounds):
        for spent, run in engines[:: -1 if each % 2 else 1]:
            spent.add_slope(run(query, sides.smaller), run(query, sides.larger), few / many)
        if time.monotonic() - began > QUERY_S:
            break
    ours, theirs = engines[0][0], engines[-1][0] if len(engines) > 1 else Spent()
    figures = figures_of(query, many, ours, theirs)
    told = (f"{number(each.our_median)} and Flink {number(each.peer_median)} {each.unit}" for each in figures)
    say(f"{query.name}: headrace {'; '.join(told)}")
    return figures


def figures_of(query: Query, events: int, ours: Spent, theirs: Spent) -> list[Figure]:
    cores = psutil.cpu_count() or 1
    common: dict[str, Any] = {"hop": "nexmark", "case": query.name, "peer": f"Flink {FLINK_VERSION}"}
    rate = Figure(
        **common,
        unit="events/s per core",
        ours=[events / each / cores for each in ours.seconds],
        peers=[events / each / cores for each in theirs.seconds],
        goal=1.0 if theirs.seconds else None,
    )
    rate.note = "" if rate.met is not False else WHY.get(query.name, READING)
    spent = Figure(
        **common,
        unit="CPU s per million",
        ours=[each / events * 1e6 for each in ours.cpu],
        peers=[each / events * 1e6 for each in theirs.cpu],
        higher_is_better=False,
    )
    if not ours.starts:
        return [rate, spent]
    start = Figure(**common, unit="s to start", ours=ours.starts, peers=theirs.starts, higher_is_better=False)
    return [rate, spent, start]


def generation(loaded: Loaded, events: int) -> Figure:
    rate = events / loaded.seconds
    return Figure(hop="nexmark", case="events made and written", unit="events/s", ours=[rate], peer="none")


def machine() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": psutil.cpu_count(),
        "load": round(psutil.getloadavg()[0], 1),
        "spark": pyspark.__version__,
        "flink": FLINK_VERSION,
    }


if __name__ == "__main__":
    main()
