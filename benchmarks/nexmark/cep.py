"""``python -m benchmarks.nexmark.cep [query …] [--events N] [--warm N] [--rounds N] [--without-flink]``: patterns.

The pattern queries of Nexmark's family over bids, as SQL's MATCH_RECOGNIZE, on headrace beside Flink: the same topics,
the same two cores, results thrown away, as for the other queries (``__main__``). Before anything is measured, the
matches of fewer events are compared: headrace's on a stream with Flink's. And each query runs some rounds on both that
are not counted: both JVMs compile while they run, and until then that is a third or more of what they do.

The texts differ where the dialects do: Flink has no PREV, and an average of its integers is an integer. Nexmark leaves
B of ``A+ B`` undefined. Flink's greedy loop never gives a row back, so at the end of WITHIN it has no match where the
standard has a shorter one. So B is defined here as the row that ends the loop, and both have the same matches.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

import headrace.spark as hr
from benchmarks.figures import Figure, table
from benchmarks.meters import cpu_seconds
from benchmarks.nexmark.__main__ import MICRO_BATCHES, SMALL_EVENTS, SMALL_HOUSE, Spent, figures_of, machine, say
from benchmarks.nexmark.flink import Flink, flink
from benchmarks.nexmark.generator import House
from benchmarks.nexmark.load import Loaded, load
from benchmarks.nexmark.queries import Query
from benchmarks.nexmark.streams import Lane
from benchmarks.spark_source import spark_session
from tests.servers.headrace import headrace_server
from tests.servers.process import CannotRun

PROGRAM = "benchmarks.nexmark.cep"
EVENTS = 1_000_000
WARM = 3
ROUNDS = 3
COLUMNS = ("auction", "bidder", "price", "dateTime")
ORDERED = "PARTITION BY auction ORDER BY `dateTime`, price, bidder"
AVERAGE = """PATTERN (A+ B) WITHIN INTERVAL '10' SECOND
    DEFINE A AS AVG(A.price) < 1000000, B AS SUM(A.price) + B.price >= 1000000 * (COUNT(A.price) + 1)"""
TOTALS = "MEASURES COUNT(A.price) AS n, SUM(A.price) AS total, LAST(B.price) AS ended"


class PatternQuery(Protocol):
    """A pattern on both sides."""

    @property
    def name(self) -> str: ...

    def query(self) -> Query:
        """As headrace runs it."""
        ...

    def sql(self) -> str | None:
        """As Flink does; None where Flink's dialect cannot say it."""
        ...


@dataclass(frozen=True, slots=True)
class BidPattern:
    """A question in both dialects, after PARTITION BY and ORDER BY."""

    name: str
    ours: str
    flinks: str

    def build(self, bid: DataFrame) -> DataFrame:
        return hr.match_recognize(bid, f"{ORDERED} {self.ours}").drop("match_id")

    def query(self) -> Query:
        return Query(self.name, self.build, {"bid": COLUMNS}, "append", (), "disk")

    def sql(self) -> str:
        return f"SELECT * FROM bid MATCH_RECOGNIZE ({ORDERED} {self.flinks})"


def both(name: str, text: str) -> BidPattern:
    return BidPattern(name, text, text)


V_SHAPE = """MEASURES STRT.price AS top, LAST(DOWN.price) AS bottom, LAST(UP.price) AS after
    ONE ROW PER MATCH AFTER MATCH SKIP TO LAST UP PATTERN (STRT DOWN+ UP) WITHIN INTERVAL '10' SECOND
    DEFINE DOWN AS {}, UP AS UP.price > LAST(DOWN.price)"""
QUERIES = {
    each.name: each
    for each in (
        BidPattern(
            "cep0",
            V_SHAPE.format("DOWN.price < PREV(DOWN.price)"),
            V_SHAPE.format(
                "(LAST(DOWN.price, 1) IS NULL AND DOWN.price < STRT.price) OR DOWN.price < LAST(DOWN.price, 1)"
            ),
        ),
        both("cep1", f"{TOTALS} ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW {AVERAGE}"),
        both("cep2", f"{TOTALS} ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW {AVERAGE}"),
        both(
            "cep3",
            """MEASURES A.price AS before, B.price AS after ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
            PATTERN (A B) WITHIN INTERVAL '5' SECOND DEFINE B AS B.price * 10 < A.price""",
        ),
    )
}


def main() -> None:
    arguments = parse(PROGRAM, list(QUERIES))
    measure(
        [QUERIES[name] for name in arguments.names or QUERIES],
        arguments,
        lambda bootstrap: load(bootstrap, House(), arguments.events),
        lambda bootstrap: load(bootstrap, SMALL_HOUSE, SMALL_EVENTS),
    )


def measure(
    queries: Sequence[PatternQuery],
    arguments: argparse.Namespace,
    load_into: Callable[[str], Loaded],
    load_few_into: Callable[[str], Loaded],
) -> None:
    """Check the matches of few events, measure with all of them, and print a table."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-cep-")))
        spark = stack.enter_context(spark_session([]))
        server = stack.enter_context(headrace_server())
        loaded = load_into(server.bootstrap)
        lane = Lane(spark, server.bootstrap, loaded, MICRO_BATCHES)
        theirs = None
        if not arguments.without_flink:
            try:
                check(lane, folder, queries, load_few_into)
                theirs = stack.enter_context(flink(server.bootstrap, loaded, folder))
            except CannotRun as reason:
                say(f"without Flink: {reason}")
        figures = [figure for each in queries for figure in compared(lane, theirs, each, arguments)]
    print(" · ".join(f"{what} {value}" for what, value in machine().items()) + f"\n\n{table(figures)}")


def parse(program: str, names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description="Patterns, beside Flink.")
    parser.add_argument("names", nargs="*", metavar="query", help=f"which ones: {', '.join(names)}; all when none")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"how many there are; {EVENTS:,} when not given")
    parser.add_argument("--warm", type=int, default=WARM, help="rounds of each before that, which are not counted")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")
    parser.add_argument("--without-flink", action="store_true", help="headrace alone")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names))
    if unknown:
        parser.error(f"no query {', '.join(unknown)}; there are: {', '.join(names)}")
    return arguments


def check(lane: Lane, folder: Path, queries: Sequence[PatternQuery], load_into: Callable[[str], Loaded]) -> None:
    """On a small broker: the matches of both are the same."""
    with headrace_server() as server:
        loaded = load_into(server.bootstrap)
        small = Lane(lane.spark, server.bootstrap, loaded, MICRO_BATCHES)
        with flink(server.bootstrap, loaded, folder) as theirs:
            for each in queries:
                if each.sql() is not None:
                    check_one(small, theirs, each)


def check_one(small: Lane, theirs: Flink, query: PatternQuery) -> None:
    ours = rows_of(pa.concat_tables(small.stream(query.query(), keep=True).batches))
    other = rows_of(theirs.answer_to(str(query.sql())))
    if ours != other:
        first = list((ours - other).items())[:3], list((other - ours).items())[:3]
        sys.exit(f"{query.name}: headrace alone has {first[0]}, Flink alone {first[1]}")
    say(f"{query.name}: {sum(ours.values()):,} matches of {events_of(small, query):,} events, in both")


def events_of(lane: Lane, query: PatternQuery) -> int:
    return sum(lane.loaded.rows[kind] for kind in query.query().reads)


def rows_of(rows: pa.Table) -> Counter[tuple[str, ...]]:
    """All values as text."""
    return Counter(tuple(str(value) for value in row.values()) for row in rows.to_pylist())


def compared(lane: Lane, theirs: Flink | None, query: PatternQuery, arguments: argparse.Namespace) -> list[Figure]:
    """In turn, the first rounds without being counted."""
    ours_spent, their_spent, sql = Spent(), Spent(), query.sql()
    for number in range(arguments.warm + arguments.rounds):
        counts = number >= arguments.warm
        before, began = cpu_seconds(os.getpid()), time.monotonic()
        run = lane.stream(query.query(), keep=False)
        if counts:
            ours_spent.add(run.net_seconds, cpu_seconds(os.getpid()) - before)
        if theirs is not None and sql is not None:
            job = theirs.measure_of(sql)
            if counts:
                their_spent.add(job.net_seconds, job.cpu_seconds)
        say(f"{query.name}: round {number} in {time.monotonic() - began:.1f} s")
    figures = figures_of(query.query(), events_of(lane, query), ours_spent, their_spent)
    say(f"{query.name}: " + "; ".join(f"{each.unit} {each.ours} beside {each.peers}" for each in figures))
    return figures


if __name__ == "__main__":
    main()
