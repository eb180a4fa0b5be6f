"""Partitions read in step: against logs that are lists of timestamps, and once on a broker."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from headrace.client import Admin, Client, OffsetAt, Producer, TopicPartition
from headrace.errors import UsageError
from headrace.spark.source.alignment import QUESTIONS_MAX, Aligner
from headrace.spark.source.columns import plain_schema
from headrace.spark.source.data_source import StreamReader
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import Positions, from_json
from headrace.testing import broker

PLACES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
times = st.one_of(st.integers(0, 50), st.integers(1_767_225_600_000, 1_767_225_600_000 + 3_600_000))
Logs = dict[TopicPartition, list[int]]
logs = st.fixed_dictionaries({place: st.lists(times, max_size=40) for place in PLACES})


class Broker:
    """Answers as ListOffsets does, and counts how often."""

    def __init__(self, stored: Logs) -> None:
        self.stored = stored
        self.questions = 0

    def __call__(self, time_ms: int) -> Mapping[TopicPartition, OffsetAt]:
        self.questions += 1
        return {place: self._first(found, time_ms) for place, found in self.stored.items()}

    def _first(self, stamps: list[int], time_ms: int) -> OffsetAt:
        for offset, stamp in enumerate(stamps):
            if stamp >= time_ms:
                return OffsetAt(offset, stamp)
        return OffsetAt(-1, -1)


def batches(stored: Logs, offsets_max: int) -> list[tuple[Positions, Positions]]:
    """All of it, micro-batch by micro-batch, as (start, end)."""
    end = {place: len(stamps) for place, stamps in stored.items()}
    at = dict.fromkeys(stored, 0)
    asked, aligner = Broker(stored), Aligner()
    found = []
    while at != end:
        asked.questions = 0
        following = aligner.admit(at, end, offsets_max, asked)
        assert asked.questions <= QUESTIONS_MAX + 1
        found.append((at, following))
        at = following
    return found


@settings(deadline=None)
@given(logs, st.integers(1, 40))
def test_every_batch_moves_on_and_none_goes_back_or_is_too_large_whatever_the_timestamps(
    stored: Logs, offsets_max: int
) -> None:
    for start, end in batches(stored, offsets_max):
        assert all(start[place] <= end[place] <= len(stored[place]) for place in PLACES)
        size = sum(end[place] - start[place] for place in PLACES)
        assert 0 < size <= offsets_max + len(PLACES), "shares of one millisecond may be rounded up"


@settings(deadline=None)
@given(logs, st.integers(1, 40))
def test_nothing_that_is_left_unread_is_older_than_what_was_read(stored: Logs, offsets_max: int) -> None:
    ordered = {place: sorted(stamps) for place, stamps in stored.items()}
    for start, end in batches(ordered, offsets_max):
        newest = max(max(ordered[place][start[place] : end[place]], default=0) for place in PLACES)
        oldest = min(min(ordered[place][end[place] :], default=newest) for place in PLACES)
        assert oldest >= newest


def test_catching_up_takes_a_few_questions_a_batch() -> None:
    begin_ms = 1_767_225_600_000
    dense, sparse = PLACES[:2]
    stored = {
        dense: [begin_ms + 20 * each for each in range(5000)],
        sparse: [begin_ms + 9 * each for each in range(99)],
    }
    asked, aligner = Broker(stored), Aligner()
    end = {place: len(stamps) for place, stamps in stored.items()}
    at = dict.fromkeys(end, 0)
    counts = []
    while at != end:
        at = aligner.admit(at, end, 500, asked)
        counts.append(asked.questions)
        asked.questions = 0
    assert len(counts) <= 2 * 5099 / 500 + 1
    assert sum(counts) / len(counts) <= 4


def test_a_partition_that_joins_with_older_records_is_read_before_the_others_go_on() -> None:
    old, young = PLACES[:2]
    stored = {young: list(range(10_000, 10_100))}
    asked, aligner = Broker(stored), Aligner()
    at = aligner.admit({young: 0}, {young: 100}, 10, asked)
    assert at[young] > 0
    stored[old] = list(range(5_000, 5_100))
    following = aligner.admit({**at, old: 0}, {young: 100, old: 100}, 10, asked)
    assert following[young] == at[young]
    assert 0 < following[old] <= 10


def test_the_source_reads_partitions_of_a_real_topic_in_step() -> None:
    """An hour lies in 60 records of one partition and in 600 of the other, and both wait from their beginning."""
    begin_ms = 1_767_225_600_000
    with broker() as running, Client(running.bootstrap) as client:
        Admin(client).create_topic("readings", partitions=2)
        with Producer(client) as producer:
            for number in range(600):
                producer.send("readings", b"x", partition=0, timestamp=begin_ms + number * 6_000)
            for number in range(60):
                producer.send("readings", b"x", partition=1, timestamp=begin_ms + number * 60_000)
        options = {
            "kafka.bootstrap.servers": running.bootstrap,
            "subscribe": "readings",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "100",
            "alignBy": "timestamp",
        }
        planner = StreamReader(SourceOptions.parse(options, streaming=True), plain_schema(include_headers=False))
        try:
            offset = planner.initialOffset()
            seen: list[tuple[int, int]] = []
            while not seen or seen[-1] != (600, 60):
                offset = planner.latestOffset(offset, ReadMaxRows(100))
                at = from_json(offset)
                seen.append((at[TopicPartition("readings", 0)], at[TopicPartition("readings", 1)]))
        finally:
            planner.stop()
    assert 7 <= len(seen) <= 14
    assert all(sparse == -(-dense // 10) for dense, sparse in seen), seen


def test_reading_in_step_without_a_limit_is_refused_with_what_to_add() -> None:
    with pytest.raises(UsageError, match=r"alignBy=timestamp needs maxOffsetsPerTrigger.*option"):
        SourceOptions.parse(
            {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "alignBy": "timestamp"}, streaming=True
        )
