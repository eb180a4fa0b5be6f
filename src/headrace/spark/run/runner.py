"""Runs pipelines until they are done or somebody stops them.

    build all ─▶ check each against its checkpoint ─▶ start all ─▶ watch ─▶ stop
                                                        ▲            │ one failed
                                                        └─ back-off ─┘

What can be wrong with a pipeline itself shows before anything starts, and ends the command. What goes wrong later (a
broker is away, a task died) is tried again after a pause that doubles; a micro-batch that finishes resets it. Nothing
is lost by that: the checkpoint says where to go on. What only the user can mend (a table without the column, a row that
nobody takes) ends the pipeline with its reason, and the others go on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from headrace.client import BrokerUnreachable, Client, ClientOptions
from headrace.errors import HeadraceError, UsageError
from headrace.spark.owner import PipelineRun
from headrace.spark.plan import JvmLost, exit_status, shape_of
from headrace.spark.progress import Snapshot, Tracker
from headrace.spark.run.checkpoint_lock import CheckpointInUse, Locks, locked
from headrace.spark.run.checkpoints import Checkpoint, HadoopFile
from headrace.spark.run.failures import is_permanent, place_of, reason
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.session import state_in
from headrace.spark.shape import Shape, changes, refuse
from headrace.spark.time.explanation import explain

__all__ = ["Choices", "Watcher", "pause_s", "run"]

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
POLL_S = 0.5
START_POLL_S = 0.1
START_S_MAX = 30.0
STARTS_MAX = max(2, (os.cpu_count() or 2) // 2)
INITIALIZING = "Initializing"
"""How Spark's status begins until the sources of a query are there."""
FINISH_S_MAX = 15.0
"""How long a stop waits for the micro-batch in flight."""
STILL_S = 60.0
"""A watermark that has not moved for so long is explained."""
EXPLAIN_INTERVAL_S = 5.0
BROKER_TIMEOUT_MS = 5_000
RESTARTS_AVAILABLE_NOW = 3

logger = logging.getLogger(__name__)
T = TypeVar("T")


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

    @property
    def patience(self) -> int | None:
        """Restarts in a row without a finished micro-batch; None is for ever."""
        if self.restarts_max is None and self.available_now:
            return RESTARTS_AVAILABLE_NOW
        return self.restarts_max


class Watcher(Protocol):
    """Is told what happens."""

    def say(self, line: str) -> None: ...
    def progressed(self, snapshot: Snapshot) -> None:
        """A micro-batch is done."""

    def show(self, snapshots: Sequence[Snapshot]) -> None:
        """Called again and again while pipelines run."""


def run(
    spark: SparkSession, pipelines: Sequence[Pipeline], choices: Choices, watcher: Watcher, stop: threading.Event
) -> bool:
    """Whether all went well: every pipeline is done, or was running when ``stop`` was set."""
    names = [each.name for each in pipelines]
    with locked(choices.checkpoints, names, partial(HadoopFile, spark, choices.checkpoints), watcher.say) as locks:
        return _run(spark, pipelines, choices, watcher, stop, locks)


def _run(
    spark: SparkSession,
    pipelines: Sequence[Pipeline],
    choices: Choices,
    watcher: Watcher,
    stop: threading.Event,
    locks: Locks,
) -> bool:
    jobs = [_prepared(spark, each, choices, watcher) for each in pipelines]
    _reach_brokers(jobs)
    grace_s = FINISH_S_MAX
    try:
        for job in jobs:
            _named(job.pipeline, job.begin)
            _until_some_started(jobs, watcher, stop)
        while not stop.is_set() and any(job.is_alive for job in jobs):
            _check_alive(spark)
            now_s = time.monotonic()
            if any(job.is_due(now_s) for job in jobs):
                locks.beat()  # it may have failed because another driver took its place
            locks.check()
            for job in jobs:
                job.watch(now_s, may_start=_starting(jobs) < STARTS_MAX)
            watcher.show([job.snapshot(now_s) for job in jobs])
            stop.wait(POLL_S)
    except CheckpointInUse:
        grace_s = 0.0  # another driver does these micro-batches by now
        raise
    except (JvmLost, ConnectionError) as error:
        if not stop.is_set():
            raise HeadraceError("Spark's process has ended; its log tells why") from error
    finally:
        _end(jobs, grace_s)
    watcher.show([job.snapshot(time.monotonic()) for job in jobs])
    return not any(job.state == "failed" for job in jobs)


def _until_some_started(jobs: Sequence[Job], watcher: Watcher, stop: threading.Event) -> None:
    """Few at a time: Spark gives the Python process of a source ten seconds to start, and they share a few cores."""
    deadline_s = time.monotonic() + START_S_MAX
    while _starting(jobs) >= STARTS_MAX and time.monotonic() < deadline_s and not stop.wait(START_POLL_S):
        watcher.show([each.snapshot(time.monotonic()) for each in jobs])


def _starting(jobs: Sequence[Job]) -> int:
    return sum(job.is_starting for job in jobs)


def _end(jobs: Sequence[Job], grace_s: float) -> None:
    """One deadline for all: while one is waited for, the others' micro-batches finish too."""
    deadline_s = time.monotonic() + grace_s
    for job in jobs:
        try:
            job.end(deadline_s)
        except (JvmLost, ConnectionError):
            logger.warning("%s could not be stopped: Spark's process is gone", job.pipeline.name)


def _prepared(spark: SparkSession, pipeline: Pipeline, choices: Choices, watcher: Watcher) -> Job:
    """Built and checked, and nothing changed yet: the next one may not pass."""

    def prepare() -> Job:
        rows = pipeline.build(spark)
        if not isinstance(rows, DataFrame):
            raise UsageError(f"it returns {type(rows).__name__} and not a DataFrame", pipeline.origin)
        if not rows.isStreaming:
            return BoundedJob(spark, pipeline, choices, watcher, rows)
        job = StreamJob(spark, pipeline, choices, watcher, rows)
        job.check()
        return job

    return _named(pipeline, prepare)


def _named(pipeline: Pipeline, attempt: Callable[[], T]) -> T:
    """What goes wrong before a pipeline runs is its own mistake, and is told with its name."""
    try:
        return attempt()
    except (BrokerUnreachable, JvmLost):
        raise
    except UsageError as error:
        raise UsageError(_prefixed(pipeline, error, error.message), error.hint) from error
    except Exception as error:
        raise UsageError(_prefixed(pipeline, error, reason(error))) from error


def _prefixed(pipeline: Pipeline, error: Exception, message: str) -> str:
    """With the user's line, where the error comes from one."""
    named = message if message.startswith("pipeline ") else f"pipeline {pipeline.name!r}: {message}"
    place = place_of(error)
    return f"{place}: {named}" if place else named


def _reach_brokers(jobs: Sequence[Job]) -> None:
    """A wrong address is told at once, and not after minutes of retries inside Spark."""
    addresses = {source.bootstrap for job in jobs for source in job.shape.sources if source.bootstrap}
    for address in sorted(addresses):
        options = ClientOptions(client_id="headrace-run", retry_timeout_ms=BROKER_TIMEOUT_MS)
        with Client(address, options) as client:
            client.retrying(client.topics)


def _check_alive(spark: SparkSession) -> None:
    status = exit_status(spark)
    if status is not None:
        raise HeadraceError(f"Spark's process has ended with status {status}; its log tells why")


def pause_s(failures: int) -> float:
    """Before the restart after so many failures in a row: 1, 2, 4 … 60 seconds."""
    assert failures >= 1, f"there is no pause after {failures} failures"
    return float(min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** min(failures - 1, 10)))


# ---- one pipeline --------------------------------------------------------------------------------------------------


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
        self.watcher.say(f"{self.pipeline.name} failed: {self.note}")
        logger.error("pipeline %s failed", self.pipeline.name, exc_info=self._error)

    def end(self, deadline_s: float) -> None:
        if self.state == "running" and self._thread.is_alive():
            self.spark.interruptTag(self._tag)
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
            self.state, self.note = "failed", "stopped before it was done"


class StreamJob(Job):
    """A streaming query with its checkpoint, restarted when it fails."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pipeline = self.pipeline
        self.checkpoint = Checkpoint(self.spark, self.choices.checkpoints, pipeline.name)
        self.sink = pipeline.sink.for_run(PipelineRun(pipeline.name, self.choices.start_over))
        sink = pipeline.sink.describe()
        self.shape = shape_of(self.rows, output_mode=pipeline.output_mode, sink=sink, state=pipeline.state)
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._again_s = 0.0
        self._batches_before = 0
        self._explained_s = float("-inf")
        self._explanation = ""

    def snapshot(self, now_s: float) -> Snapshot:
        note = self.note or self._why_still(now_s)
        return self.tracker.snapshot(now_s, self.state, note)

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
        self.checkpoint.keep(self.shape)
        self._start()

    def _start(self) -> None:
        location = self.checkpoint.location
        writer = self.sink.stream(self.rows, self.shape.output_mode, location)
        writer = writer.queryName(self.pipeline.name).option("checkpointLocation", location)
        if self.choices.available_now:
            writer = writer.trigger(availableNow=True)
        elif self.pipeline.every:
            writer = writer.trigger(processingTime=self.pipeline.every)
        self._batches_before = self.tracker.batches
        with state_in(self.spark, self.shape.state or None, named_once=self.checkpoint.may_name_files_once()):
            self._query = writer.start()
        self.state, self.note = "running", ""

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
        for _ in self.tracker.take(query.recentProgress, now_s):
            self.watcher.progressed(self.snapshot(now_s))

    def _failed(self, error: BaseException, now_s: float) -> None:
        if self.tracker.batches > self._batches_before:
            self._failures = 0
        self._failures += 1
        why = reason(error)
        logger.error("pipeline %s failed", self.pipeline.name, exc_info=error)
        patience = self.choices.patience
        if is_permanent(error) or (patience is not None and self._failures > patience):
            self.state, self.note = "failed", why
            self.watcher.say(f"{self.pipeline.name} failed: {why}")
            return
        pause = pause_s(self._failures)
        self._again_s = now_s + pause
        self.state, self.note = "waiting", f"restart {self._failures} in {pause:.0f} s after: {why}"
        self.watcher.say(f"{self.pipeline.name} failed: {why}; restart {self._failures} in {pause:.0f} s")

    def _try_again(self, now_s: float) -> None:
        try:
            self.rows = self.pipeline.build(self.spark)  # anew: tables in it are read again
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


def _batch_of(query: StreamingQuery) -> int:
    last = query.lastProgress
    return -1 if last is None else int(last["batchId"])
