"""From topics to results: a query as a stream that reads what is there in several micro-batches, or a bounded read.

All streams have a watermark on ``dateTime``, four seconds behind, as Nexmark is usually run. The event that closes a
topic is left out behind the watermark, by its time: Spark moves no condition on the event time in front of the
watermark, so it counts for the clock and for nothing else.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from benchmarks.nexmark.generator import side_input
from benchmarks.nexmark.load import CLOSING, Loaded
from benchmarks.nexmark.queries import Query
from headrace.spark.run.session import state_in
from headrace.spark.source.registration import register

__all__ = ["LATENESS", "Lane", "Run"]

LATENESS = "4 seconds"
TYPES = {
    pa.int64(): "long",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.timestamp("ms", "UTC"): "timestamp",
}
PATIENCE_S = 600
STARTS_MAX = 5
NOT_UP = "Python worker failed to connect back"


@dataclass(frozen=True, slots=True)
class Run:
    """A query over everything, from ``start()`` to its end; ``net_seconds`` are from its first micro-batch on."""

    seconds: float
    net_seconds: float
    micro_batches: int
    late_rows: int
    batches: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lane:
    """Loaded topics, and the session that reads them."""

    spark: SparkSession
    bootstrap: str
    loaded: Loaded
    micro_batches: int = 5

    def frame(self, kind: str, columns: tuple[str, ...], *, streaming: bool) -> DataFrame:
        """The asked for columns of a topic; the source makes no others."""
        register(self.spark)
        reader: Any = self.spark.readStream if streaming else self.spark.read
        schema = ", ".join(f"{name} {TYPES[self.loaded.schemas[kind].field(name).type]}" for name in columns)
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.loaded.topics[kind],
            "startingOffsets": "earliest",
            "valueFormat": "json",
        }
        if streaming:
            # In proportion, so that the topics of a query advance together in time.
            options["maxOffsetsPerTrigger"] = str(math.ceil((self.loaded.rows[kind] + 1) / self.micro_batches))
        rows = reader.format("headrace").schema(schema).options(**options).load()
        if "dateTime" not in columns:  # no clock is needed
            return rows.where(F.col(columns[0]) >= 0)
        return rows.withWatermark("dateTime", LATENESS).where(F.col("dateTime") < F.lit(CLOSING))

    def build(self, query: Query, *, streaming: bool) -> DataFrame:
        frames = {kind: self.frame(kind, columns, streaming=streaming) for kind, columns in query.reads.items()}
        if query.name == "q13":
            frames["side"] = self.spark.createDataFrame(side_input().to_pandas())
        return query.build(**frames)

    def bounded(self, query: Query) -> list[pa.Table]:
        return [self.build(query, streaming=False).toArrow()]

    def stream(self, query: Query, *, keep: bool) -> Run:
        """All that is there, in micro-batches. ``keep``: hand out the results; else they are made and thrown away.

        Spark gives the Python process that plans a source ten seconds to come up, which no setting changes and a busy
        machine may not keep. The query has not begun then, and is started again.
        """
        for _ in range(STARTS_MAX - 1):
            try:
                return self._run(query, keep)
            except StreamingQueryException as error:
                if NOT_UP not in str(error):
                    raise
        return self._run(query, keep)

    def _run(self, query: Query, keep: bool) -> Run:
        batches: list[pa.Table] = []
        writer = self.build(query, streaming=True).writeStream.trigger(availableNow=True)
        writer = writer.outputMode("update" if query.mode == "update" else "append")
        if keep:
            writer = writer.foreachBatch(lambda batch, _: batches.append(batch.toArrow()))
        else:
            writer = writer.format("noop")
        with tempfile.TemporaryDirectory(prefix="headrace-nexmark-", ignore_cleanup_errors=True) as folder:
            began = datetime.now(UTC)
            with state_in(self.spark, query.state, named_once=True):
                started = writer.option("checkpointLocation", folder).start()
            try:
                if not started.awaitTermination(PATIENCE_S):
                    raise TimeoutError(f"{query.name} was not done after {PATIENCE_S} s: {started.lastProgress}")
                ended = datetime.now(UTC)
            finally:
                started.stop()
            reports = started.recentProgress
            first = datetime.fromisoformat(reports[0]["timestamp"])
            whole, net = ((ended - since).total_seconds() for since in (began, first))
            return Run(whole, net, len(reports), _late(reports), batches)


def _late(reports: list[Any]) -> int:
    native = sum(int(each["numRowsDroppedByWatermark"]) for report in reports for each in report["stateOperators"])
    ours = [seen for report in reports for seen in (report["observedMetrics"] or {}).values()]
    return native + sum(int(each["late_rows"] or 0) for each in ours if "late_rows" in each)
