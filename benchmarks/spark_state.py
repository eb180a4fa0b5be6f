"""Keyed state on Spark: the kernel beside Spark's own transformWithState, key by key.

- keys       a batch of 100,000 rows over 10,000 keys, each key counting its rows: the kernel, whole buckets in columns,
             and ``transformWithState``, with rows and with pandas, as its documentation shows it
- large      the same with 1,000,000 rows a batch over as many keys, with rows only
- ceiling    the kernel beside the same way through Spark without state: rows are packed, pass ``transformWithState`` as
             they are, and are unpacked; and beside the same rows without Python. No kernel on this way can be faster
- held       10,000 keys touched of 10,000 held and of 1,000,000 held: how much longer the second takes
- operators  rows a second through dedup and sessions, for information
- files      what a batch of ten rows spends on the files of its checkpoint in ``hr.session`` and in ``headrace run``
- growth     the files of a checkpoint after 10,000 micro-batches, and after half of them: they must not grow

The rows are made by Spark's ``rate-micro-batch``, whose own cost is small beside either. A batch's time is what Spark
reports for running it (``addBatch``); the first batches, in which workers start, state is filled and the JVM compiles
what it runs, do not count.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import headrace.spark as hr
from benchmarks.figures import Figure, table
from benchmarks.spark_source import spark_session
from headrace.spark.run.session import state_in
from headrace.spark.state.kernel import BUCKETS, Plan, apply_operator, arrow_schema, key_type, packing, unpacking
from headrace.spark.state.operator import Clock, Operator, Step, Touched
from headrace.spark.state.placement import BUCKET, with_buckets

ROWS = 100_000
KEYS = 10_000
HELD = 1_000_000
PATIENCE_S = 600
TRANSFORM = "transformWithState by key"
PARTS = ("keys", "large", "ceiling", "held", "operators", "files", "growth")
BY_DEFAULT = PARTS[:-1]
"""10,000 micro-batches take about an hour, so they run only when asked for."""
GROWTH_BATCHES = 10_000
WARM_BATCHES = 60
"""Compiling is 40% of what the JVM does in the twentieth batch of a query; a stream runs for thousands of them."""
FILES_WARM_BATCHES = 20
LOOKING = 0.1
"""The last part of the micro-batches, in which files are counted again and again."""


@dataclass(frozen=True, slots=True)
class Counting(Operator):
    """How many rows each key has had: the least that state can be."""

    name: ClassVar[str] = "count"
    clock: ClassVar[Clock] = "none"

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("count", pa.int64())])

    @property
    def output(self) -> pa.Schema:
        return pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        before = np.asarray(touched.held.field("count").fill_null(0), np.int64)
        counts = pa.array(before + np.bincount(touched.codes, minlength=count))
        return Step(
            output=pa.Table.from_arrays([*touched.keys.flatten(), counts], schema=self.output),
            states=pa.StructArray.from_arrays([counts], fields=list(self.state)),
            keep=np.ones(count, np.bool_),
        )


class CountingByKey(StatefulProcessor):
    """The same with Spark's own interface."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        held = self.count.get()
        total = (held[0] if held else 0) + sum(1 for _ in rows)
        self.count.update((total,))
        yield Row(key=key[0], count=total)

    def close(self) -> None:
        pass


class CountingByKeyInPandas(StatefulProcessor):
    """The same with its pandas interface."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        held = self.count.get()
        total = (held[0] if held else 0) + sum(len(each) for each in rows)
        self.count.update((total,))
        yield pd.DataFrame({"key": [key[0]], "count": [total]})

    def close(self) -> None:
        pass


class Passing(StatefulProcessor):
    """Keeps nothing: the rows of a bucket come out as they came in."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            yield Row(payload=bytes(row.payload))

    def close(self) -> None:
        pass


def rows_of(spark: SparkSession, key: Any, rows_per_batch: int) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    source = reader.option("numPartitions", 2).option("startTimestamp", 1_767_225_600_000)
    made = source.option("advanceMillisPerBatch", 1000).load()
    return made.select(key.alias("key"), F.col("timestamp").alias("at"), F.col("value"))


def batch_seconds(
    rows: DataFrame,
    *,
    skip: int,
    rounds: int,
    part: Callable[[dict[str, Any]], float] = lambda report: report["durationMs"]["addBatch"],
    mode: str = "append",
) -> list[float]:
    """How long each batch ran, after those that do not count. One that is not seen before the next is left out."""
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        writer = rows.writeStream.format("noop").outputMode(mode).option("checkpointLocation", folder)
        query = writer.start()
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < rounds:
                assert time.monotonic() < deadline, f"{len(found)} batches in {PATIENCE_S} s; {query.lastProgress}"
                assert query.isActive, query.exception()
                report = query.lastProgress
                if report is not None and report["batchId"] >= skip and report["numInputRows"]:
                    found[report["batchId"]] = part(report) / 1000
                time.sleep(0.05)
        finally:
            query.stop()
    return list(found.values())


def counted(spark: SparkSession, key: Any, rows: int) -> DataFrame:
    return apply_operator(rows_of(spark, key, rows), Counting(), keys=["key"])


def against_transform(
    spark: SparkSession, rounds: int, rows: int, keys: int, *, with_pandas: bool = True
) -> list[Figure]:
    """Spark's own ways; the goal is for the faster one."""
    key = F.col("value") % keys
    ours = batch_seconds(counted(spark, key, rows), skip=WARM_BATCHES, rounds=rounds)
    by_key = rows_of(spark, key, rows).groupBy("key")
    schema = "key long, count long"
    peers = {TRANSFORM: by_key.transformWithState(CountingByKey(), schema, "Append", "None")}
    if with_pandas:
        pandas = by_key.transformWithStateInPandas(CountingByKeyInPandas(), schema, "Append", "None")
        peers[f"{TRANSFORM} in pandas"] = pandas
    return [
        Figure(
            hop="spark state",
            case=f"{rows:,} rows over {keys:,} keys a batch",
            unit="rows/s",
            ours=[rows / each for each in ours],
            peers=[rows / each for each in batch_seconds(frame, skip=1, rounds=2)],
            peer=peer,
            goal=30 if peer == TRANSFORM else None,
        )
        for peer, frame in peers.items()
    ]


def passed(rows: DataFrame) -> DataFrame:
    """The kernel's way through Spark, both shuffles of rows into columns included, with nothing kept on it."""
    operator = Counting()
    plan = Plan(operator, arrow_schema(rows.schema), key_type(rows, ["key"]), None, BUCKETS, False, 0, "passing")
    numbered = with_buckets(rows, operator, ["key"], BUCKETS)
    packed = numbered.mapInArrow(packing(plan), f"{BUCKET} int, payload binary")
    kept = packed.groupBy(BUCKET).transformWithState(Passing(), "payload binary", "Append", "None")
    return kept.mapInArrow(unpacking(plan), rows.schema)


def below_the_ceiling(spark: SparkSession, rounds: int, rows: int) -> list[Figure]:
    """In turns, so that a machine that gets busy meets all three."""
    made = rows_of(spark, F.col("value") % KEYS, rows)
    frames = {
        "": counted(spark, F.col("value") % KEYS, rows),
        "the ceiling: the same way through Spark, nothing kept": passed(made),
        "the same rows, no Python": made,
    }
    seconds: dict[str, list[float]] = {name: [] for name in frames}
    for skip in (WARM_BATCHES, WARM_BATCHES // 3):
        for name, frame in frames.items():
            seconds[name] += batch_seconds(frame, skip=skip, rounds=rounds)
    ours = [rows / each for each in seconds.pop("")]
    return [
        Figure(
            hop="spark state",
            case=f"{rows:,} rows over {KEYS:,} keys a batch",
            unit="rows/s",
            ours=ours,
            peers=[rows / each for each in found],
            peer=name,
        )
        for name, found in seconds.items()
    ]


def with_much_held(spark: SparkSession, rounds: int, held: int) -> Figure:
    """Batches that touch 10,000 keys, after a first one that leaves few behind, and after one that leaves many."""
    few = batch_seconds(after_filling(spark, KEYS), skip=WARM_BATCHES, rounds=rounds)
    many = batch_seconds(after_filling(spark, held), skip=WARM_BATCHES, rounds=rounds)
    return Figure(
        hop="spark state",
        case=f"{KEYS:,} keys touched, of {held:,} held and of {KEYS:,}",
        unit="s a batch",
        ours=many,
        peers=few,
        peer=f"{KEYS:,} held",
        higher_is_better=False,
        goal=1.5,
        note=f"slowest {max(many):.2f} s, {max(few):.2f} s; no merge of everything among them, one in 100 batches",
    )


def after_filling(spark: SparkSession, held: int) -> DataFrame:
    """Of the first batch each row becomes many; keys are scattered, so that those of a batch are no neighbours."""
    rows = rows_of(spark, F.col("value"), KEYS)
    copies = F.sequence(F.lit(0), F.when(F.col("value") < KEYS, F.lit(held // KEYS - 1)).otherwise(F.lit(0)))
    spread = rows.select("value", F.explode(copies).alias("copy"))
    key = (F.col("value") + F.col("copy") * KEYS) * 7919 % held
    return apply_operator(spread.select(key.alias("key")), Counting(), keys=["key"])


def operators(spark: SparkSession, rounds: int) -> list[Figure]:
    rows = rows_of(spark, F.col("value") % KEYS, ROWS).withWatermark("at", "2 seconds")
    cases = {
        "dedup within 10 s": hr.dedup(rows, ["key", "value"], within="10 seconds", event_time="at"),
        "sessions, gap 2 s": hr.windows(
            rows, "key", event_time="at", window=hr.session_window("2 seconds"), values={"v": F.sum("value")}
        ),
    }
    return [
        Figure(
            hop="spark state",
            case=case,
            unit="rows/s",
            ours=[ROWS / each for each in batch_seconds(frame, skip=WARM_BATCHES, rounds=rounds)],
            peer="nothing",
        )
        for case, frame in cases.items()
    ]


def file_ms(report: dict[str, Any]) -> float:
    """What a batch spends on the files of its checkpoint: plan, commit, and the state of a task."""
    times, state = report["durationMs"], report["stateOperators"]
    tasks = sum(each["numShufflePartitions"] for each in state) or 1
    return float(times["walCommit"] + times["commitOffsets"] + sum(each["commitTimeMs"] for each in state) / tasks)


def files(spark: SparkSession, rounds: int) -> list[Figure]:
    """Both ways in turn, so that a machine that gets busy meets both."""
    few = rows_of(spark, F.col("value") % 5, 10)
    figures = []
    for case, rows in {"without state": few, "with state": few.groupBy("key").count()}.items():
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(4):
            named_once = turn in (1, 2)
            with state_in(spark, "disk", named_once=named_once):
                mode = "append" if case == "without state" else "update"
                seconds[named_once] += batch_seconds(
                    rows, skip=FILES_WARM_BATCHES, rounds=rounds, part=file_ms, mode=mode
                )
        figures.append(
            Figure(
                hop="spark state",
                case=f"files of a checkpoint, 10 rows a batch {case}",
                unit="ms a batch",
                ours=[1000 * each for each in seconds[False]],
                peers=[1000 * each for each in seconds[True]],
                peer="headrace run",
                higher_is_better=False,
            )
        )
    return figures


def folder_size(folder: Path) -> tuple[int, int]:
    """Files and bytes. A file may go while they are counted."""
    count = size = 0
    for each in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if each.is_file():
                count, size = count + 1, size + each.stat().st_size
    return count, size


def checkpoint_sizes(rows: DataFrame, folder: Path, marks: Sequence[int]) -> list[tuple[int, int]]:
    """Files and bytes of the query's checkpoint when it has done so many micro-batches; the largest of a few looks.

    Spark removes old files now and then, so a single look would find a point on a saw's edge.
    """
    writer = rows.writeStream.format("noop").outputMode("append").option("checkpointLocation", str(folder))
    query = writer.start()
    found = []
    try:
        for mark in marks:
            looks: list[tuple[int, int]] = []
            while _batches(query) < mark:
                assert query.isActive, query.exception()
                if _batches(query) >= mark * (1 - LOOKING):
                    looks.append(folder_size(folder))
                time.sleep(0.2)
            looks.append(folder_size(folder))
            found.append((max(count for count, _ in looks), max(size for _, size in looks)))
    finally:
        query.stop()
    return found


def _batches(query: StreamingQuery) -> int:
    report = query.lastProgress
    return 0 if report is None else int(report["batchId"]) + 1


def growth(spark: SparkSession, batches: int) -> list[Figure]:
    """State that comes and goes: keys are forgotten after ten seconds of event time, so ten batches are held."""
    rows = rows_of(spark, F.col("value"), 20).withWatermark("at", "2 seconds")
    held = hr.dedup(rows, ["key"], within="10 seconds", event_time="at")
    figures = []
    for way, named_once in (("headrace run", True), ("hr.session", False)):
        with (
            tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
            state_in(spark, "disk", named_once=named_once),
        ):
            (files_then, bytes_then), (files_now, bytes_now) = checkpoint_sizes(
                held, Path(folder), (batches // 2, batches)
            )
        for unit, now, then in (("files", files_now, files_then), ("bytes", bytes_now, bytes_then)):
            figures.append(
                Figure(
                    hop="spark state",
                    case=f"the checkpoint after {batches:,} micro-batches and after {batches // 2:,}, {way}",
                    unit=unit,
                    ours=[float(now)],
                    peers=[float(then)],
                    peer=f"after {batches // 2:,}",
                    higher_is_better=False,
                    goal=1.2,
                )
            )
    return figures


def run(*, quick: bool, parts: tuple[str, ...] = BY_DEFAULT) -> list[Figure]:
    rounds = 2 if quick else 8
    figures: list[Figure] = []
    with spark_session([]) as spark:
        if "keys" in parts:
            part = 10 if quick else 1
            figures += against_transform(spark, rounds, ROWS // part, KEYS // part)
        if "large" in parts and not quick:
            figures += against_transform(spark, rounds, 10 * ROWS, KEYS, with_pandas=False)
        if "ceiling" in parts:
            figures += below_the_ceiling(spark, rounds, ROWS)
            figures += [] if quick else below_the_ceiling(spark, rounds, 10 * ROWS)
        if "held" in parts:
            figures.append(with_much_held(spark, 5 if quick else 25, HELD // 10 if quick else HELD))
        if "operators" in parts:
            figures += operators(spark, rounds)
        if "files" in parts:
            figures += files(spark, rounds)
        if "growth" in parts:
            figures += growth(spark, GROWTH_BATCHES // 10 if quick else GROWTH_BATCHES)
    return figures


if __name__ == "__main__":
    asked = tuple(each for each in sys.argv[1:] if each in PARTS)
    print(table(run(quick="--quick" in sys.argv, parts=asked or BY_DEFAULT)))
