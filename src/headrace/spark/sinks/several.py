"""Several sinks of one stream: its source is read, and its rows are computed, once per micro-batch.

    compute      the rows of the micro-batch are kept (in memory, or on the executors' disks where that is too small)
    write        to one sink after the other, each with its own fence
    let go       the rows are removed, whatever happened

A micro-batch is done when all sinks have it. When one of them fails, or the driver dies in between, the whole
micro-batch comes again, and each sink finds out for itself whether it has the batch: those with a fence (topics,
tables, caches, indexes) do not write it twice; those without one (functions, the console, webhooks, mail, exchanges)
get it again. So what a sink promises alone it promises beside others.

All rows are computed before the first sink sees any. A sink that looks at some rows only would otherwise leave the
other partitions' state without this batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.errors import UsageError
from headrace.spark.owner import PipelineRun
from headrace.spark.plan import shape_of
from headrace.spark.sinks.plain import BatchWrite, Sink, as_sink

__all__ = ["SeveralSinks", "Transformed", "several"]


def several(given: Sequence[Sink | BatchWrite] | Sink | BatchWrite) -> Sink:
    """One sink that is all of these. Two that write to the same place are refused."""
    if not isinstance(given, Sequence):
        raise UsageError(f"sinks={given!r} is no list", "sinks=[one, other]; one alone: sink=…")
    sinks = tuple(as_sink(each) for each in given)
    if not sinks:
        raise UsageError("sinks=[] has no sink", "sinks=[hr.sinks.topic(…), hr.sinks.sql(…)]")
    names = [each.describe() for each in sinks]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(
            f"two of the sinks are {twice[0]}, and it could not be known for each of them whether it has a batch",
            "write the union of their rows to it once",
        )
    return sinks[0] if len(sinks) == 1 else SeveralSinks(sinks)


@dataclass(frozen=True, slots=True)
class SeveralSinks(Sink):
    sinks: tuple[Sink, ...]

    def describe(self) -> str:
        return ", ".join(each.describe() for each in self.sinks)

    @property
    def parts(self) -> tuple[Sink, ...]:
        return self.sinks

    def for_run(self, run: PipelineRun) -> SeveralSinks:
        return SeveralSinks(tuple(each.for_run(run.beside_others()) for each in self.sinks))

    def check(self) -> None:
        for each in self.sinks:
            each.check()

    @property
    def results_topic(self) -> str:
        """The first of them."""
        return next((each.results_topic for each in self.sinks if each.results_topic), "")

    @property
    def dead_letters_topic(self) -> str:
        """The first of them."""
        return next((each.dead_letters_topic for each in self.sinks if each.dead_letters_topic), "")

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        return rows.writeStream.outputMode(mode).foreachBatch(self.batches(rows, mode, checkpoint))

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        writes = [each.batches(rows, mode, checkpoint) for each in self.sinks]

        def write_all(batch: DataFrame, batch_id: int) -> None:
            with _computed(batch):
                for write in writes:
                    write(batch, batch_id)

        return write_all

    def write(self, rows: DataFrame) -> None:
        with _computed(rows):
            for each in self.sinks:
                each.write(rows)


@contextmanager
def _computed(rows: DataFrame) -> Iterator[None]:
    """Every partition is computed, once, and kept until the end."""
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        rows.write.format("noop").mode("append").save()
        yield
    finally:
        rows.unpersist()


@dataclass(frozen=True, slots=True)
class Transformed(Sink):
    """A sink for a part of the rows. The function sees one micro-batch, so it may not keep state across them."""

    sink: Sink
    function: Callable[[DataFrame], DataFrame]

    def describe(self) -> str:
        return self.sink.describe()

    def for_run(self, run: PipelineRun) -> Transformed:
        return replace(self, sink=self.sink.for_run(run))

    def check(self) -> None:
        self.sink.check()

    @property
    def can_be_rebuilt(self) -> bool:
        return self.sink.can_be_rebuilt

    @property
    def results_topic(self) -> str:
        return self.sink.results_topic

    @property
    def dead_letters_topic(self) -> str:
        return self.sink.dead_letters_topic

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        return self.sink.stream(self._checked(rows), mode, checkpoint)

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        write = self.sink.batches(self._checked(rows), mode, checkpoint)
        return lambda batch, batch_id: write(self._applied(batch), batch_id)

    def write(self, rows: DataFrame) -> None:
        self.sink.write(self._applied(rows))

    def _applied(self, rows: DataFrame) -> DataFrame:
        made = self.function(rows)
        if not isinstance(made, DataFrame):
            raise UsageError(
                f"the function that makes the rows for {self.describe()} returns {type(made).__name__} and not a "
                "DataFrame"
            )
        return made

    def _checked(self, rows: DataFrame) -> DataFrame:
        made = self._applied(rows)
        before, after = (len(shape_of(each, output_mode=None, sink="").operators) for each in (rows, made))
        if after > before:
            raise UsageError(
                f"the function that makes the rows for {self.describe()} aggregates, joins or removes duplicates, and "
                "it sees one micro-batch at a time: the results would depend on where batches end",
                "do that in the pipeline, before its rows go to the sinks; or in a separate pipeline",
            )
        return made
