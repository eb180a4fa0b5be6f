"""Operators with state on Spark: a stream that is stopped and goes on ends where the bounded frame does."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.runner import Choices, run
from headrace.spark.run.session import FILES_NAMED_ONCE, STATE_STORE, STATE_STORES, state_in
from headrace.spark.sinks.plain import as_sink
from headrace.spark.state.kernel import COMPARE_CONF
from tests.spark.watching import Told

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

SCHEMA = "user string, at timestamp, amount long, sent timestamp"
START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
TIMEOUT_S = 400
FIRST_FILE_S = 1_750_000_000
BUCKETS = 4
Operator = Callable[[DataFrame], DataFrame]
Event = tuple[str | None, int, int]
"""(user, seconds after the start, amount)"""


class Lane:
    """Files that a stream reads one by one, and the checkpoint that it goes on from."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.input = folder / "input"
        self.checkpoint = folder / "checkpoint"
        self.input.mkdir()
        self.progress: list[Any] = []

    def add(self, *files: Sequence[Event]) -> None:
        for events in files:
            lines = [json.dumps(self._line(event)) for event in events]
            number = len(list(self.input.iterdir()))
            path = self.input / f"{number:04}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (FIRST_FILE_S + number, FIRST_FILE_S + number))  # streams take files by their age

    def _line(self, event: Event) -> dict[str, Any]:
        user, second, amount = event
        at = START + timedelta(seconds=second)
        sent = at - timedelta(seconds=60 + amount)  # a clock about a minute behind
        return {"user": user, "at": at.isoformat(), "amount": amount, "sent": sent.isoformat()}

    def run(self, operator: Operator) -> list[Row]:
        """Everything that is there, file by file, in a separate query: what it gives out."""
        return self.collect(operator(self.rows(streaming=True).withWatermark("at", "20 seconds")))

    def rows(self, *, streaming: bool) -> DataFrame:
        if not streaming:
            return self.spark.read.schema(SCHEMA).json(str(self.input))
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.input))

    def collect(self, results: DataFrame) -> list[Row]:
        """What a query that goes on from the checkpoint gives out until it has read everything."""
        found: list[Row] = []
        writer = results.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), f"not done after {TIMEOUT_S} s: {query.lastProgress}"
        finally:
            query.stop()
        self.progress += query.recentProgress
        return found

    def bounded(self, operator: Operator) -> list[Row]:
        return operator(self.rows(streaming=False)).collect()


@pytest.fixture
def lane(spark: SparkSession, tmp_path: Path) -> Iterator[Lane]:
    kept = spark.conf.get("spark.sql.session.timeZone")
    yield Lane(spark, tmp_path)
    spark.conf.set("spark.sql.session.timeZone", kept)


FILES: list[list[Event]] = [
    [("anna", 0, 1), ("ben", 2, 2), (None, 3, 3)],
    [("anna", 12, 4), ("ben", 1, 5)],
    [("anna", 5, 6), ("anna", 5, 6), ("ben", 40, 7)],
]
MORE: list[list[Event]] = [
    [("anna", 55, 8), ("ben", 41, 9), ("ben", 41, 9)],
    [("anna", 120, 10), (None, 121, 11)],
]
LAST: Event = ("last", 10_000, 0)
"""Its time moves the watermark past everything else."""


def visited(key: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], state: Any, now: datetime) -> hr.Answer:
    """A session, written by hand: given out by a timer."""
    if not rows:
        return hr.Answer([{"user": key["user"], "until": now, "spent": state["spent"]}])
    spent = (state["spent"] if state else 0) + sum(row["amount"] for row in rows)
    return hr.Answer(state={"spent": spent}, timer=now + timedelta(seconds=10))


def test_a_function_per_key_with_timers_gives_the_sessions_of_sparks_own_also_after_a_restart(lane: Lane) -> None:
    def per_user(rows: DataFrame) -> DataFrame:
        output = "user string, until timestamp, spent long"
        return hr.per_key(rows, "user", visited, event_time="at", state="spent long", output=output, buckets=BUCKETS)

    lane.add(*FILES)
    streamed = lane.run(per_user)
    lane.add(*MORE, [LAST])
    streamed += lane.run(per_user)
    window = F.session_window("at", "10 seconds")
    own = lane.bounded(lambda rows: rows.groupBy("user", window).agg(F.sum("amount").alias("spent")))
    theirs = Counter((row.user, row.session_window.end, row.spent) for row in own if row.user != "last")
    assert Counter(tuple(row) for row in streamed if row.user != "last") == theirs
    assert Counter(tuple(row) for row in lane.bounded(per_user) if row.user != "last") == theirs


@dataclass(frozen=True, slots=True)
class Both(hr.Operator):
    """How many rows of two inputs a key has."""

    name: ClassVar[str] = "both"
    clock: ClassVar[Any] = "none"

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("seen", pa.bool_())])

    @property
    def output(self) -> pa.Schema:
        return pa.schema([("user", pa.string()), ("orders", pa.int64()), ("clicks", pa.int64())])

    def step(self, touched: hr.Touched) -> hr.Step:
        count = len(touched.keys)
        there = [np.asarray(touched.rows.column(each).is_valid()) for each in ("orders", "clicks")]
        counts = [pa.array(np.bincount(touched.codes[each], minlength=count)) for each in there]
        seen = pa.array(np.ones(count, np.bool_))
        return hr.Step(
            output=pa.Table.from_arrays([touched.keys.field("user"), *counts], schema=self.output),
            states=pa.StructArray.from_arrays([seen], fields=list(self.state)),
            keep=np.ones(count, np.bool_),
        )


def test_an_operator_of_the_users_sees_several_inputs_as_a_struct_each(spark: SparkSession) -> None:
    orders = spark.createDataFrame([("anna", 1), ("ben", 2), ("anna", 3)], "user string, amount long")
    clicks = spark.createDataFrame([("anna", "/a"), (None, "/b")], "user string, page string")
    found = hr.apply_operator({"orders": orders, "clicks": clicks}, Both(), keys=["user"], buckets=1)
    assert Counter(tuple(row) for row in found.collect()) == {
        ("anna", 2, 1): 1,
        ("ben", 1, 0): 1,
        (None, 0, 1): 1,
    }


def test_sessions_of_a_restarted_stream_are_those_of_the_bounded_frame_and_of_sparks_own(lane: Lane) -> None:
    def per_user(rows: DataFrame) -> DataFrame:
        values = {"spent": F.sum("amount")}
        return hr.windows(
            rows, "user", event_time="at", window=hr.session_window("10 seconds"), values=values, buckets=BUCKETS
        )

    lane.add(*FILES)
    streamed = lane.run(per_user)
    assert streamed, "sessions end before the restart too"
    lane.add(*MORE, [LAST])
    streamed += lane.run(per_user)
    assert all(row.is_final for row in streamed)
    columns = ("user", "session_start", "session_end", "events", "spent")
    found = Counter(tuple(row[name] for name in columns) for row in streamed)
    whole = Counter(tuple(row[name] for name in columns) for row in lane.bounded(per_user) if row.user != "last")
    assert found == whole
    window = F.session_window("at", "10 seconds")
    own = lane.bounded(
        lambda rows: rows.groupBy("user", window).agg(F.count("*").alias("n"), F.sum("amount").alias("s"))
    )
    theirs = Counter(
        (row.user, row.session_window.start, row.session_window.end, row.n, row.s) for row in own if row.user != "last"
    )
    assert found == theirs


def test_duplicates_are_removed_across_a_restart_and_what_is_held_is_seen_in_the_progress(lane: Lane) -> None:
    def once(rows: DataFrame) -> DataFrame:
        return hr.dedup(rows, ["user", "amount"], within="1 hour", event_time="at", name="orders", buckets=BUCKETS)

    lane.add(*FILES)
    streamed = lane.run(once)
    lane.add(FILES[-1][-1:], [("late", 0, 0)], MORE[0])
    streamed += lane.run(once)
    expected = {event for file in [*FILES, MORE[0]] for event in file}
    assert Counter((row.user, row.amount) for row in streamed) == Counter(
        (user, amount) for user, _, amount in expected
    )
    seen = [report["observedMetrics"]["state orders"] for report in lane.progress if report["observedMetrics"]]
    assert sum(each["late_rows"] or 0 for each in seen) == 1
    held: dict[int, int] = {}
    for each in seen:
        held |= {bucket["_bucket"]: bucket["keys"] for bucket in each["buckets"] or []}
    assert sum(held.values()) == len(expected)


def test_state_in_memory_gives_the_same_and_stays_there_when_a_query_goes_on_without_being_told(lane: Lane) -> None:
    def per_minute(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.window("at", "10 seconds"), "user").agg(F.sum("amount").alias("spent"))

    def stores() -> list[str]:
        files = sorted((lane.checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
        return [json.loads(each.read_text().splitlines()[1])["conf"][STATE_STORE] for each in files]

    before = lane.spark.conf.get(STATE_STORE)
    lane.add(*FILES)
    with state_in(lane.spark, "memory"):
        streamed = lane.run(per_minute)
    assert lane.spark.conf.get(STATE_STORE) == before
    lane.add(*MORE, [LAST])
    streamed += lane.run(per_minute)
    assert set(stores()) == {STATE_STORES["memory"]}
    assert Counter(streamed) == Counter(row for row in lane.bounded(per_minute) if row.user != "last")


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after the state of the last batch was written and before the batch was committed."""
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def known_users(rows: DataFrame) -> DataFrame:
    return hr.dedup(rows, "user", within=hr.FOREVER, buckets=BUCKETS)


@pytest.mark.parametrize(
    ("place", "named_once"), [("disk", False), pytest.param("disk", True, marks=pytest.mark.slow), ("memory", False)]
)
def test_a_batch_computed_again_after_a_death_goes_on_with_its_own_state(
    lane: Lane, place: str, named_once: bool
) -> None:
    def sparks(rows: DataFrame) -> DataFrame:
        return rows.dropDuplicates(["user"])

    operator = known_users if place == "disk" else sparks
    files: list[list[Event]] = [[(f"{batch}-{user}", 0, 0) for user in range(20)] for batch in range(5)]
    found: set[str] = set()
    with state_in(lane.spark, place, named_once=named_once):
        for batch, events in enumerate(files):
            lane.add(events)
            found |= {row.user for row in lane.run(operator)}
            if batch in (1, 2):
                forget_last_commit(lane.checkpoint)
    assert found == {user for events in files for user, _, _ in events}
    lane.add(*files)
    with state_in(lane.spark, place, named_once=named_once):
        assert lane.run(operator) == [], "every user is known"


@pytest.mark.parametrize("first", [{}, FILES_NAMED_ONCE])
def test_a_pipeline_goes_on_with_state_files_of_the_kind_that_its_checkpoint_has(
    lane: Lane, first: dict[str, str], tmp_path: Path
) -> None:
    """A checkpoint that a session without our profile began, and one that ``headrace run`` began."""
    lane.checkpoint = tmp_path / "pipelines" / "known" / "spark"
    for name, value in first.items():
        lane.spark.conf.set(name, value)
    try:
        for batch in range(2):
            lane.add([(f"{batch}-{user}", 0, 0) for user in range(20)])
            lane.run(known_users)
    finally:
        for name in first:
            lane.spark.conf.unset(name)
    given: list[Row] = []

    def build(spark: SparkSession) -> DataFrame:
        return known_users(lane.rows(streaming=True).withWatermark("at", "20 seconds"))

    def take(rows: DataFrame, batch_id: int) -> None:
        given.extend(rows.collect())

    pipeline = Pipeline("known", build, as_sink(take))
    choices = Choices(command="test", checkpoints=str(tmp_path / "pipelines"), available_now=True)
    for batch in range(2, 5):
        forget_last_commit(lane.checkpoint)
        lane.add([(f"{batch}-{user}", 0, 0) for user in range(20)])
        assert run(lane.spark, [pipeline], choices, Told(), threading.Event())
    assert {row.user for row in given} == {f"{batch}-{user}" for batch in range(1, 5) for user in range(20)}
    given.clear()
    lane.add([(f"{batch}-{user}", 0, 0) for batch in range(5) for user in range(20)])
    assert run(lane.spark, [pipeline], choices, Told(), threading.Event())
    assert given == [], "every user is known"


@pytest.mark.slow
@pytest.mark.parametrize("named_once", [False, True])
def test_state_on_a_disk_that_was_full_goes_on_as_if_it_had_not_been(
    lane: Lane, tmp_path: Path, named_once: bool
) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small tmpfs: {mounted.stderr.decode().strip()}")
    lane.checkpoint = disk / "checkpoint"
    try:
        lane.add(*[[(f"{batch}-{user}", 0, 0) for user in range(20)] for batch in range(30)])
        found: list[Row] = []
        with state_in(lane.spark, "disk", named_once=named_once):
            with pytest.raises(StreamingQueryException, match=r"(?s)No space left on device"):
                lane.run(known_users)
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            found = lane.run(known_users)
            lane.add([(f"{batch}-{user}", 0, 0) for batch in range(30) for user in range(20)])
            assert lane.run(known_users) == [], "every user is known"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    users = [row.user for row in found]
    assert len(users) == len(set(users)) > 0


def test_a_session_writes_checkpoints_as_every_other_session_does(lane: Lane) -> None:
    assert [lane.spark.conf.get(name, None) for name in FILES_NAMED_ONCE] == [None, None]


def test_clocks_corrected_on_a_restarted_stream_are_those_of_the_bounded_frame(lane: Lane) -> None:
    def by_user(rows: DataFrame) -> DataFrame:
        timed = rows.withColumn("occurred", F.col("sent"))
        return hr.correct_clock(
            timed, keys="user", occurred="occurred", sent="sent", received="at", samples=3, buckets=BUCKETS
        )

    lane.add(*FILES)
    streamed = lane.run(by_user)
    lane.add(*MORE, [LAST])
    streamed += lane.run(by_user)
    expected = Counter(row for row in lane.bounded(by_user) if row.user != "last")
    assert Counter(streamed) == expected
    assert {row.clock_trusted for row in streamed} == {True}
    ben = sorted((row.at, row.clock_offset_us) for row in streamed if row.user == "ben")
    assert [offset // 1_000_000 for _, offset in ben] == [65, 63, 65, 67, 69], "medians of 65, 62, 67, 69, 69"


@pytest.mark.slow
def test_a_checkpoint_shows_what_is_held_of_a_key_and_refuses_another_number_of_buckets(lane: Lane) -> None:
    def per_user(rows: DataFrame, buckets: int = 8) -> DataFrame:
        return hr.windows(rows, "user", event_time="at", window=hr.session_window("10 seconds"), buckets=buckets)

    lane.add([("anna", 0, 1), (None, 3, 3)], [("anna", 5, 2), ("ben", 30, 0)])
    lane.run(per_user)
    checkpoint = str(lane.checkpoint)
    totals = hr.state_totals(lane.spark, checkpoint)
    assert (totals.keys, totals.timers, totals.late_rows) == (3, 3, 0)
    anna = hr.state_of(lane.spark, checkpoint, {"user": "anna"})
    assert anna is not None
    assert [each["value events"] for each in anna.state["open"]] == [2]
    assert anna.wake == START + timedelta(seconds=15)
    nobody = hr.state_of(lane.spark, checkpoint, {"user": None})
    assert nobody is not None
    assert hr.state_of(lane.spark, checkpoint, {"user": "carl"}) is None
    with pytest.raises(UsageError, match="they are user"):
        hr.state_of(lane.spark, checkpoint, {"name": "anna"})
    lane.add([("anna", 40, 1), ("ben", 41, 1), (None, 42, 1), ("carl", 43, 1)])
    with pytest.raises(StreamingQueryException, match=r"has 8 buckets and the program asks for 4.*say buckets=8"):
        lane.run(lambda rows: per_user(rows, buckets=4))


def totals(value: Any, emit: str) -> Operator:
    window = hr.session_window("30 seconds")
    return lambda rows: hr.windows(rows, "user", event_time="at", window=window, emit=emit, values={"n": value})


def test_state_of_another_query_is_refused_where_a_query_is_started_without_headrace_run(lane: Lane) -> None:
    lane.add(*FILES)
    lane.run(totals(F.sum("amount"), "early"))
    lane.add(*MORE)
    with pytest.raises(StreamingQueryException, match="in this checkpoint was made with other parameters"):
        lane.run(totals(F.max("amount"), "early"))
    lane.run(totals(F.sum("amount"), "final"))  # what may change
    lane.add([LAST])
    lane.spark.conf.set(COMPARE_CONF, "false")
    try:
        assert lane.run(totals(F.max("amount"), "final"))
    finally:
        lane.spark.conf.unset(COMPARE_CONF)


def test_a_change_that_headrace_run_was_told_to_accept_goes_on_with_the_old_state(lane: Lane, tmp_path: Path) -> None:
    given: list[Row] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        given.extend(rows.collect())

    def run_with(value: Any, *, accept: bool) -> bool:
        rows = totals(value, "early")
        pipeline = Pipeline(
            "totals",
            lambda spark: rows(lane.rows(streaming=True).withWatermark("at", "20 seconds")),
            as_sink(take),
        )
        choices = Choices(
            command="test", checkpoints=str(tmp_path), available_now=True, restarts_max=0, accept_changes=accept
        )
        return run(lane.spark, [pipeline], choices, Told(), threading.Event())

    lane.add(*FILES)
    assert run_with(F.sum("amount"), accept=False)
    lane.add(*MORE)
    with pytest.raises(UsageError, match="accept-changes"):
        run_with(F.max("amount"), accept=False)
    given.clear()
    assert run_with(F.max("amount"), accept=True)
    assert given, "it went on"
    lane.add([LAST])
    assert run_with(F.max("amount"), accept=False), "and is the pipeline's query from then on, in buckets of before too"


def test_what_cannot_work_is_refused_before_the_query_starts_with_what_to_write_instead(lane: Lane) -> None:
    rows = lane.spark.readStream.schema(SCHEMA).json(str(lane.input))
    dated = rows.withWatermark("at", "1 minute")
    with pytest.raises(UsageError, match=r"sessions on a stream needs a watermark on at.*hr.watermark\(rows, \"at\""):
        hr.windows(rows, "user", event_time="at", window=hr.session_window("10 seconds"))
    with pytest.raises(UsageError, match="needs a watermark on sent"):
        hr.dedup(dated, "user", within="1 hour", event_time="sent")
    clocks = {"occurred": "sent", "sent": "sent", "received": "at"}
    with pytest.raises(UsageError, match=r"clock correction on a stream needs a watermark on at.*hr.watermark"):
        hr.correct_clock(rows, keys="user", **clocks)
    with pytest.raises(UsageError, match=r"samples=0: a median needs at least one"):
        hr.correct_clock(dated, keys="user", samples=0, **clocks)
    with pytest.raises(UsageError, match=r"how long it has to remember.*within=hr.FOREVER"):
        hr.dedup(dated, "user")
    with pytest.raises(UsageError, match=r"event_time is not given.*at, sent"):
        hr.dedup(dated, "user", within="1 hour")
    with pytest.raises(UsageError, match=r"no column 'id'.*user, at, amount, sent"):
        hr.dedup(dated, "id", within=hr.FOREVER)
    with pytest.raises(UsageError, match="cannot be a key"):
        hr.dedup(dated.withColumn("x", F.lit(1.5)), "x", within=hr.FOREVER)
    with pytest.raises(UsageError, match=r"gap='soon' is no duration.*10 minutes"):
        hr.windows(dated, "user", event_time="at", window=hr.session_window("soon"))
    with pytest.raises(UsageError, match="gap='1 month' is no duration"):
        hr.windows(dated, "user", event_time="at", window=hr.session_window("1 month"))
    with pytest.raises(UsageError, match=r"x: median\(amount\) is not offered here.*F.sum, F.avg"):
        hr.windows(dated, "user", event_time="at", window=hr.session_window("1 hour"), values={"x": F.median("amount")})
    with pytest.raises(UsageError, match="would be called 'events'"):
        hr.windows(
            dated, "user", event_time="at", window=hr.session_window("1 hour"), values={"events": F.sum("amount")}
        )


def test_keys_of_a_bounded_frame_without_a_bound_come_once_each(lane: Lane) -> None:
    lane.add(*FILES)
    rows = lane.bounded(lambda rows: hr.dedup(rows, "user", within=hr.FOREVER))
    assert Counter(row.user for row in rows) == Counter(["anna", "ben", None])


def test_each_row_is_corrected_by_itself_without_a_device(lane: Lane) -> None:
    lane.add([("anna", 10, 5)])
    (row,) = lane.bounded(lambda rows: hr.correct_clock(rows, occurred="sent", sent="sent", received="at"))
    assert (row.corrected, row.clock_offset_us, row.clock_trusted) == (row.at, 65_000_000, True)
    (other,) = lane.bounded(
        lambda rows: hr.correct_clock(rows, occurred="sent", sent="sent", received="at", offset_max="1 minute")
    )
    assert (other.corrected, other.clock_offset_us, other.clock_trusted) == (other.sent, None, False)


@pytest.mark.slow
def test_sessions_in_another_time_zone_are_the_same_instants(lane: Lane) -> None:
    def per_user(rows: DataFrame) -> DataFrame:
        found = hr.windows(rows, "user", event_time="at", window=hr.session_window("10 seconds"), buckets=BUCKETS)
        return found.withColumn("starts", F.unix_micros("session_start"))

    lane.add(*FILES, [LAST])
    expected = Counter((row.user, row.starts) for row in lane.bounded(per_user))
    lane.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    assert Counter((row.user, row.starts) for row in lane.bounded(per_user)) == expected
    streamed = Counter((row.user, row.starts) for row in lane.run(per_user))
    assert streamed == Counter({key: count for key, count in expected.items() if key[0] != "last"})


def test_a_dot_in_the_name_of_a_key_is_part_of_the_name(spark: SparkSession) -> None:
    """As it is for Spark's own windows, which some of these become."""
    at = datetime(2026, 1, 31, 10, tzinfo=UTC)
    given = [("ann", 1, at), ("ann", 1, at), ("bob", 5, at)]
    rows = spark.createDataFrame(given, "`user.name` string, n long, at timestamp")
    key, minute = "user.name", hr.tumbling("1 minute")
    total, kinds = {"total": F.sum("n")}, {"total": F.count_distinct("n")}
    found = {
        "dedup": hr.dedup(rows, [key, "n"], within=hr.FOREVER).withColumnRenamed("n", "total"),
        "windows": hr.windows(rows, key, event_time="at", window=minute, values=total),
        "operator": hr.windows(rows, key, event_time="at", window=minute, values=total, emit="early"),
        "distinct": hr.windows(rows, key, event_time="at", window=minute, values=kinds),
        "rolling": hr.rolling(
            hr.dedup(rows, [key], within=hr.FOREVER), key, event_time="at", within="1 minute", values=total
        ),
        "view": hr.as_rows(
            hr.view(hr.changes(hr.dedup(rows, [key], within=hr.FOREVER), key, position="n"), [key], total)
        ),
    }
    counted = {name: sorted({(row[key], row["total"]) for row in frame.collect()}) for name, frame in found.items()}
    assert counted == {
        "dedup": [("ann", 1), ("bob", 5)],
        "windows": [("ann", 2), ("bob", 5)],
        "operator": [("ann", 2), ("bob", 5)],
        "distinct": [("ann", 1), ("bob", 1)],
        "rolling": [("ann", 1), ("bob", 5)],
        "view": [("ann", 1), ("bob", 5)],
    }
