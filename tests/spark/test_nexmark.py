"""Nexmark on Spark: from a broker, in several micro-batches or all at once, each question has DuckDB's answer."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from benchmarks.nexmark.generator import House
from benchmarks.nexmark.load import load
from benchmarks.nexmark.oracle import Judge
from benchmarks.nexmark.queries import QUERIES, Query
from benchmarks.nexmark.streams import Lane
from tests.servers.process import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

HOUSE = House(gap_us=4000, out_of_order=100)
COUNT = 10_000
"""Forty seconds in event time, across midnight; out of order by a tenth of the lateness."""
BOUNDED_SOON = ("q3", "q9", "q14", "q22")
STREAMED_SOON = ("q5", "q9")
"""The others are streamed by ``make test-spark``, and by ``make nexmark`` before it measures."""

Judged = tuple[Lane, Judge]


@pytest.fixture(scope="module")
def house(
    spark: SparkSession, headrace_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Judged]:
    prefix = tmp_path_factory.mktemp("nexmark").name + f"-{os.getpid()}"  # the broker may outlive this run
    loaded = load(headrace_server.bootstrap, HOUSE, COUNT, prefix=prefix)
    judge = Judge(HOUSE, COUNT)
    yield Lane(spark, headrace_server.bootstrap, loaded, micro_batches=3), judge
    judge.close()


def soon(names: tuple[str, ...]) -> list[object]:
    """All queries; those that are not named are slow."""
    return [
        pytest.param(query, id=name, marks=() if name in names else pytest.mark.slow) for name, query in QUERIES.items()
    ]


@pytest.mark.parametrize("query", soon(BOUNDED_SOON))
def test_a_bounded_read_gives_the_answer_of_batch_sql(house: Judged, query: Query) -> None:
    lane, judge = house
    assert judge.check(query, lane.bounded(query)) > 0


@pytest.mark.parametrize("query", soon(STREAMED_SOON))
def test_a_stream_in_several_micro_batches_ends_with_the_answer_of_batch_sql(house: Judged, query: Query) -> None:
    lane, judge = house
    run = lane.stream(query, keep=True)
    assert run.micro_batches >= lane.micro_batches
    assert run.late_rows == 0
    assert judge.check(query, run.batches) > 0
