"""Watermarks per source, which a source without news does not hold back: ``hr.watermark``.

Spark's watermark is the smallest of those of a query's sources, each the newest event time seen there less the
lateness. A source that has nothing new stays where it is, and all others with it: windows stay open and joins wait,
although everything that could be waited for has come.

With ``idle_after`` a second, tiny source stands beside the rows. It plans as the rows' own does, with the same options
and positions, but reads no records. When it has read everything there is, and nothing has come for that long, it gives
one row, the *mark*: its event time is ``idle_after`` ago. Rows and marks go through one watermark together, and marks
are left out after it. So a source that is silent counts as if its newest row were always ``idle_after`` old.

    rows ────────────────┐
                         ├─ union ─ EventTimeWatermark ─ observe ─ where not a mark
    marks (headrace-idle)┘

Spark moves conditions below a watermark unless they are about its column, and adds its own conditions (a key of a
join is not null). A mark has nothing but its time, so none of them would let it pass; and rows that a condition
leaves out would not move the watermark. Spark moves nothing below what is observed. So the observation follows the
watermark, which then goes by all rows of its source, whatever is asked of them later.

Both sources are asked in one breath for every micro-batch. Should a record come between the two questions, the rows'
own source is one batch behind the other; a mark needs two plannings in a row with nothing new, so the record is
in the batch of the mark at the latest, and Spark moves the watermark only after that batch.
"""

# ruff: noqa: N802 the names of methods are Spark's
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of, time_column
from headrace.spark.plan import streaming_sources
from headrace.spark.source.columns import plain_schema
from headrace.spark.source.data_source import StreamReader
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import from_json

__all__ = ["METRIC", "IdleDataSource", "IdleReader", "watermark"]

METRIC = "watermark "
"""What the names of the observed metrics begin with."""
MARK = "_idle_mark"
IDLE_FORMAT = "headrace-idle"
ROWS_FORMAT = "headrace"
TEST_FORMAT = "headrace-events"
"""The test kit's events are all there from the beginning, so nothing is ever idle."""
VALUE_OPTIONS = ("valueformat", "valueschema", "onbadrecord", "deadlettertopic", "includeheaders")
MARKS = pa.schema([("marked", pa.timestamp("us", "UTC"))])


def watermark(
    rows: DataFrame, event_time: str, lateness: str, *, idle_after: str | None = None, name: str | None = None
) -> DataFrame:
    """Set the event time of a source and how late its rows may come, as Spark's ``withWatermark`` does.

    With ``idle_after`` a source without new rows for that long does not hold back the others. Call it on each source
    before ``union`` or a join. ``name`` (by default topic and column) is what ``hr.explain_watermark`` calls it.
    """
    time_column(rows, event_time, "event_time")
    lateness_us = micros_of(lateness, "lateness")
    idle_us = micros_of(idle_after, "idle_after") if idle_after is not None else None
    if not rows.isStreaming:
        return rows
    sources = streaming_sources(rows)
    called = name or f"{_topics(sources)}.{event_time}"
    if idle_us is None or all(kind == TEST_FORMAT for kind, _ in sources):
        return _observed(rows.withWatermark(event_time, lateness), event_time, lateness_us, None, called)
    marks = _marks(rows, event_time, sources, idle_us)
    together = rows.withColumn(MARK, F.lit(False)).unionByName(marks)
    moved = _observed(together.withWatermark(event_time, lateness), event_time, lateness_us, MARK, called)
    return moved.where(~F.col(MARK)).drop(MARK)


def _topics(sources: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    chosen = [options.get("subscribe") or options.get("subscribepattern") or kind for kind, options in sources]
    return "+".join(chosen)


def _observed(rows: DataFrame, column: str, lateness_us: int, mark: str | None, called: str) -> DataFrame:
    is_mark = F.col(mark) if mark else F.lit(False)
    return rows.observe(
        f"{METRIC}{called}",
        F.max(F.when(~is_mark, F.col(column))).alias("newest"),
        F.max(F.when(is_mark, F.col(column))).alias("marked"),
        F.max(F.lit(lateness_us)).alias("lateness_us"),
    )


def _marks(rows: DataFrame, column: str, sources: Sequence[tuple[str, Mapping[str, str]]], idle_us: int) -> DataFrame:
    """The marks of the one source of these rows, as rows of the same columns."""
    if [kind for kind, _ in sources] != [ROWS_FORMAT]:
        found = ", ".join(kind for kind, _ in sources) or "none"
        raise UsageError(
            f"idle_after needs rows of exactly one source {ROWS_FORMAT!r}; here there is {found}",
            "call hr.watermark on each source's rows, before they meet; or leave idle_after out",
        )
    asked = {key: text for key, text in sources[0][1].items() if key not in VALUE_OPTIONS}
    # What is lost, and how far it has come, the rows' own source tells.
    asked |= {
        "commitgroupoffsets": "false",
        "failondataloss": "false",
        IdleDataSource.IDLE_OPTION: str(idle_us // 1000),
    }
    spark = rows.sparkSession
    spark.dataSource.register(IdleDataSource)
    marks = spark.readStream.format(IDLE_FORMAT).options(**asked).load()
    columns = [
        (F.col("marked") if each.name == column else F.lit(None)).cast(each.dataType).alias(each.name)
        for each in rows.schema
    ]
    return marks.select(*columns, F.lit(True).alias(MARK))


# ---- the source of marks -------------------------------------------------------------------------------------------


@dataclass
class MarkPartition(InputPartition):
    """One mark."""

    marked_ms: int


class IdleDataSource(DataSource):
    """Takes the options of the source that it stands beside, and after how many milliseconds that is idle."""

    IDLE_OPTION = "idleafterms"

    @classmethod
    def name(cls) -> str:
        return IDLE_FORMAT

    def schema(self) -> str:
        return "marked timestamp"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = {key: text for key, text in self.options.items() if key.lower() != self.IDLE_OPTION}
        options = SourceOptions.parse(given, streaming=True)
        return IdleReader(options, int(self.options[self.IDLE_OPTION]))


class IdleReader(StreamReader):
    """Follows positions as the rows' own source does. Its offset has those, and the time of the last mark."""

    def __init__(self, options: SourceOptions, idle_ms: int) -> None:
        super().__init__(options, plain_schema(include_headers=False))
        self._idle_ms = idle_ms
        self._quiet_since_s: float | None = None
        """Since when nothing has come; None while something does."""

    def initialOffset(self) -> dict[str, Any]:
        return {"positions": super().initialOffset(), "marked_ms": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        positions = super().latestOffset(start["positions"], limit)
        marked_ms = start["marked_ms"]
        if self._has_news(start["positions"], positions):
            self._quiet_since_s = None
        elif self._quiet_since_s is None:
            self._quiet_since_s = self._now_s()
        elif self._now_s() - self._quiet_since_s >= self._idle_ms / 1000:
            self._quiet_since_s = self._now_s()
            marked_ms = max(marked_ms, self._wall_ms() - self._idle_ms)
        return {"positions": positions, "marked_ms": marked_ms}

    def _has_news(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Records, or records that wait for more; and a run that only works off what is there marks nothing."""
        begin = from_json(before)
        waiting = any(at > begin.get(place, -1) for place, at in self._ends.items())
        return waiting or from_json(after) != begin or self._target is not None

    def _now_s(self) -> float:
        return time.monotonic()

    def _wall_ms(self) -> int:
        return int(time.time() * 1000)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Nothing that a lag could be counted from: the rows' own source tells."""
        return {"marked_ms": 0}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [MarkPartition(end["marked_ms"])] if end["marked_ms"] != start["marked_ms"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, MarkPartition):
            yield pa.RecordBatch.from_pydict({"marked": [partition.marked_ms * 1000]}, schema=MARKS)

    def commit(self, end: dict[str, Any]) -> None:
        """The rows' own source shows positions."""
