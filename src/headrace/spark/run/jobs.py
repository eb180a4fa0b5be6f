"""One pipeline while it runs: a streaming query that is restarted when it fails, or a bounded frame that runs once."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from headrace.spark.owner import PipelineRun
from headrace.spark.plan import JvmLost, graph_of, noticing_loss, query_sources, shape_of
from headrace.spark.progress import Snapshot, Tracker
from headrace.spark.run.checkpoints import Checkpoint
from headrace.spark.run.failures import is_permanent, reason
from headrace.spark.run.lag import FollowedSource, TopicEnds, positions_of, present, take_positions
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.report import PipelineReport
from headrace.spark.run.rescale import rescale
from headrace.spark.run.session import state_in
from headrace.spark.shape import Shape, changes, refuse
from headrace.spark.time.explanation import explain

__all__ = ["BoundedJob", "Choices", "Job", "StreamJob", "Watcher", "pause_s"]

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
INITIALIZING = "Initializing"
"""How Spark's status begins until the sources of a query are there."""
STILL_S = 60.0
"""A watermark that has not moved for so long is explained."""
EXPLAIN_INTERVAL_S = 5.0
RESTARTS_AVAILABLE_NOW = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user chose at the command line."""

    command: str
    """What runs the pipelines, for advice; ``rebuild`` is the one that fills a target again, before the name."""
    checkpoints: str
    rebuild: str = ""
    available_now: bool = False
    restarts_max: int | None = None
    accept_changes: bool = False
    start_over: bool = False
    tasks: int | None = None
    """That share the state of each pipeline from now on."""

    @property
    def patience(self) -> int | None:
        """Restarts in a row without a finished micro-batch; None is for ever."""
        if self.restarts_max is None and self.available_now:
            return RESTARTS_AVAILABLE_NOW
        return self.restarts_max


class Watcher(Protocol):
    """Is notified of what happens."""

    def say(self, line: str) -> None: ...
    def progressed(self, snapshot: Snapshot) -> None:
        """A micro-batch is done."""

    def show(self, snapshots: Sequence[Snapshot]) -> None:
        """Called again and again while pipelines run."""


def pause_s(failures: int) -> float:
    """Before the restart after so many failures in a row: 1, 2, 4 … 60 seconds."""
    assert failures >= 1, f"there is no pause after {failures} failures"
    return float(min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(failures - 1, 10)))


@dataclass
class Job:
    """One pipeline while it runs."""

    spark: SparkSession
    pipeline: Pipeline
    choices: Choices
    watcher: Watcher
    rows: DataFrame
    state: str = "starting"
    note: str = ""
    shape: Shape = field(default_factory=Shape)

    def __post_init__(self) -> None:
        self.tracker = Tracker(self.pipeline.name)
        self.report = PipelineReport()

    @property
    def is_alive(self) -> bool:
        return self.state not in ("done", "failed", "stopped")

    @property
    def is_starting(self) -> bool:
        """Whether Spark is still making its sources."""
        return False

    def is_due(self, now_s: float) -> bool:
        """Whether a restart comes next."""
        return False

    def snapshot(self, now_s: float) -> Snapshot:
        return self.tracker.snapshot(now_s, self.state, self.note)

    def details(self, now_s: float) -> dict[str, Any]:
        """Of the state record."""
        sink = self.pipeline.sink
        return {
            "origin": self.pipeline.origin,
            "command": self.choices.command,
            "results_topic": sink.results_topic,
            "dead_letters_topic": sink.dead_letters_topic,
            **self.report.details(self.tracker.snapshot(now_s, self.state, self.note), now_s, self.tracker.now()),
        }

    def begin(self) -> None:
        raise NotImplementedError

    def watch(self, now_s: float, may_start: bool = True) -> None:
        raise NotImplementedError

    def end(self, deadline_s: float) -> None:
        raise NotImplementedError


class BoundedJob(Job):
    """A bounded DataFrame runs once, beside the streams."""

    def begin(self) -> None:
        self.state = "running"
        self._error: BaseException | None = None
        self._thread = InheritableThread(target=self._write, name=f"pipeline-{self.pipeline.name}", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            self.spark.addTag(self._tag)
            self.pipeline.sink.write(self.rows)
        except Exception as error:
            self._error = error

    @property
    def _tag(self) -> str:
        return f"headrace-{self.pipeline.name}"

    def watch(self, now_s: float, may_start: bool = True) -> None:
        if not self.is_alive or self._thread.is_alive():
            return
        if self._error is None:
            self.state = "done"
            return
        self.state, self.note = "failed", reason(self._error)
        self.report.failed(self.note, _now_ms(), restarts=False)
        self.watcher.say(f"{self.pipeline.name} failed: {self.note}")
        logger.error("pipeline %s failed", self.pipeline.name, exc_info=self._error)

    def end(self, deadline_s: float) -> None:
        if self.state == "running" and self._thread.is_alive():
            self.spark.interruptTag(self._tag)
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
            self.state, self.note = "failed", "stopped before it was done"


@dataclass
class StreamJob(Job):
    """A streaming query with its checkpoint, restarted when it fails."""

    ends: TopicEnds | None = None
    """Asks where topics end; without it the lag is that of the last micro-batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pipeline = self.pipeline
        self.checkpoint = Checkpoint(self.spark, self.choices.checkpoints, pipeline.name)
        self.run = PipelineRun(pipeline.name, self.choices.start_over)
        self.sink = pipeline.sink.for_run(self.run)
        sink = pipeline.sink.describe()
        self.shape = shape_of(self.rows, output_mode=pipeline.output_mode, sink=sink, state=pipeline.state)
        self.report.graph, last = graph_of(self.rows)
        for each in pipeline.sink.parts:
            self.report.graph.add_sink(each.describe(), last, topic=each.results_topic)
        self._query: StreamingQuery | None = None
        self._sources: list[FollowedSource | None] = []
        self.tracker.present = lambda report: present(report, self._sources)
        self._failures = 0
        self._again_s = 0.0
        self._batches_before = 0
        self._explained_s = float("-inf")
        self._explanation = ""

    def snapshot(self, now_s: float) -> Snapshot:
        note = self.note or self._why_still(now_s)
        return self.tracker.snapshot(now_s, self.state, note)

    def details(self, now_s: float) -> dict[str, Any]:
        return {**super().details(now_s), "dead_letters": self.run.dead_letters}

    def _why_still(self, now_s: float) -> str:
        """What holds the watermark back, when it does not move."""
        if self._query is None or self.tracker.still_s(now_s) < STILL_S:
            return ""
        if now_s - self._explained_s >= EXPLAIN_INTERVAL_S:
            reports = self._query.recentProgress
            self._explained_s = now_s
            self._explanation = f"the watermark stands still; {explain(reports, datetime.now(UTC)).reason}"
        return self._explanation

    def check(self) -> None:
        """Raise when the query does not fit its checkpoint."""
        if self.choices.start_over or not self.checkpoint.has_begun():
            return
        before = self.checkpoint.shape()
        found = changes(before, self.shape) if before else []
        name = self.pipeline.name
        again = f"{self.choices.rebuild} {name}" if self.pipeline.sink.can_be_rebuilt else ""
        error = refuse(name, self.checkpoint.shown, found, self.choices.command, again)
        accepted = self.choices.accept_changes and all(each.severity != "breaks" for each in found)
        if error is not None and not accepted:
            raise error
        for each in found:
            self.watcher.say(f"{name}: {each.text}")
        if before is not None:
            self.shape = replace(self.shape, state=before.state)

    def begin(self) -> None:
        if self.choices.start_over:
            aside = self.checkpoint.put_aside()
            if aside:
                self.watcher.say(f"{self.pipeline.name} starts over; its old checkpoint is kept as {aside}")
        if self.choices.tasks is not None and self.shape.operators:
            self._rescale(self.choices.tasks)
        self.checkpoint.keep(self.shape)
        self._start()

    def _rescale(self, tasks: int) -> None:
        with self._settings():
            before = rescale(self.spark, self.checkpoint, tasks, self.choices.command)
        if before is not None:
            self.watcher.say(f"{self.pipeline.name}: its state was shared by {before} tasks, and is by {tasks} now")

    def _settings(self) -> AbstractContextManager[None]:
        """Of Spark, that the query's state is read and written with."""
        named_once = self.checkpoint.may_name_files_once()
        return state_in(self.spark, self.shape.state or None, named_once=named_once, tasks=self.choices.tasks)

    def _start(self) -> None:
        location = self.checkpoint.location
        self.checkpoint.sweep()
        writer = self.sink.stream(self.rows, self.shape.output_mode, location)
        writer = writer.queryName(self.pipeline.name).option("checkpointLocation", location)
        if self.choices.available_now:
            writer = writer.trigger(availableNow=True)
        elif self.pipeline.every:
            writer = writer.trigger(processingTime=self.pipeline.every)
        self._batches_before = self.tracker.batches
        with self._settings():
            self._query = writer.start()
        self.state, self.note = "running", ""
        self._follow(self._query)

    def _follow(self, query: StreamingQuery) -> None:
        """Whatever goes wrong here must not disturb the query."""
        if self.ends is None:
            return
        try:
            read = [positions_of(each) for each in self.checkpoint.committed_offsets()]
            self._sources = self.ends.follow(self.pipeline.name, query_sources(query), read)
        except Exception as error:
            logger.warning("the lag of %s is that of its last micro-batch: %s", self.pipeline.name, error)

    @property
    def is_starting(self) -> bool:
        query = self._query
        return query is not None and query.isActive and query.status["message"].startswith(INITIALIZING)

    def is_due(self, now_s: float) -> bool:
        return self.is_alive and self._query is None and now_s >= self._again_s

    def watch(self, now_s: float, may_start: bool = True) -> None:
        if not self.is_alive:
            return
        if self._query is None:
            if may_start and self.is_due(now_s):
                self._try_again(now_s)
            return
        ended = not self._query.isActive  # asked first, so that the last report is not missed
        self._take_reports(self._query, now_s)
        if ended:
            error = self._query.exception()
            self._query = None
            if error is None:
                self.state, self.note = "done", ""
            else:
                self._failed(error, now_s)

    def _take_reports(self, query: StreamingQuery, now_s: float) -> None:
        last = query.lastProgress
        if last is None or not self.tracker.is_new(last):
            return
        fresh = self.tracker.take(query.recentProgress, now_s)
        self.report.take(fresh, now_s)
        take_positions(fresh[-1] if fresh else {}, self._sources)
        for _ in fresh:
            self.watcher.progressed(self.snapshot(now_s))

    def _failed(self, error: BaseException, now_s: float) -> None:
        if self.tracker.batches > self._batches_before:
            self._failures = 0
        self._failures += 1
        why = reason(error)
        logger.error("pipeline %s failed", self.pipeline.name, exc_info=error)
        patience = self.choices.patience
        is_final = is_permanent(error) or (patience is not None and self._failures > patience)
        self.report.failed(why, _now_ms(), restarts=not is_final)
        if is_final:
            self.state, self.note = "failed", why
            self.watcher.say(f"{self.pipeline.name} failed: {why}")
            return
        pause = pause_s(self._failures)
        self._again_s = now_s + pause
        self.state, self.note = "waiting", f"restart {self._failures} in {pause:.0f} s after: {why}"
        self.watcher.say(f"{self.pipeline.name} failed: {why}; restart {self._failures} in {pause:.0f} s")

    def _try_again(self, now_s: float) -> None:
        try:
            with noticing_loss():
                self.rows = self.pipeline.build(self.spark)  # built again, so that tables in it are read again
                self._start()
        except JvmLost:
            raise
        except Exception as error:
            self._failed(error, now_s)

    def end(self, deadline_s: float) -> None:
        """Let the micro-batch in flight finish, for a while; a query that is stopped in one repeats it next time."""
        query, self._query = self._query, None
        if query is None or not query.isActive:
            return
        last = _batch_of(query)
        while time.monotonic() < deadline_s and query.isActive:
            if not query.status["isTriggerActive"] or _batch_of(query) != last:
                break
            time.sleep(0.02)
        query.stop()
        self._take_reports(query, time.monotonic())
        self.state, self.note = "stopped", ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _batch_of(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])
