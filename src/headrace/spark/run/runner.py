"""Runs pipelines until they are done or somebody stops them.

    build all ─▶ check each against its checkpoint ─▶ start all ─▶ watch ─▶ stop
                                                        ▲            │ one failed
                                                        └─ back-off ─┘

What can be wrong with a pipeline itself shows before anything starts, and ends the command. What goes wrong later (a
broker is away, a task died) is tried again after a pause that doubles; a micro-batch that finishes resets it. Nothing
is lost by that: the checkpoint says where to go on. What only the user can fix (a table without the column, a row that
nobody takes) ends the pipeline with its reason, and the others go on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from headrace.client import BrokerUnreachable, Client, ClientOptions, StatePublisher
from headrace.errors import HeadraceError, UsageError
from headrace.spark.plan import JvmLost, exit_status, noticing_loss
from headrace.spark.run.checkpoint_lock import CheckpointInUse, Locks, locked
from headrace.spark.run.checkpoints import HadoopFile
from headrace.spark.run.failures import place_of, reason
from headrace.spark.run.jobs import BoundedJob, Choices, Job, StreamJob, Watcher, pause_s
from headrace.spark.run.lag import TopicEnds
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.report import KIND
from headrace.spark.run.session import settings_of
from headrace.spark.state.kernel import COMPARE_CONF

__all__ = ["Choices", "Watcher", "pause_s", "run"]

POLL_S = 0.5
START_POLL_S = 0.1
START_S_MAX = 30.0
STARTS_MAX = max(2, (os.cpu_count() or 2) // 2)
FINISH_S_MAX = 15.0
"""How long a stop waits for the micro-batch in flight."""
BROKER_TIMEOUT_MS = 5_000

logger = logging.getLogger(__name__)
T = TypeVar("T")


def run(
    spark: SparkSession,
    pipelines: Sequence[Pipeline],
    choices: Choices,
    watcher: Watcher,
    stop: threading.Event,
    publisher: StatePublisher | None = None,
) -> bool:
    """Whether all went well: every pipeline is done, or was running when ``stop`` was set.

    ``publisher``: where the state of every pipeline is published, if anywhere.
    """
    names = [each.name for each in pipelines]
    with locked(choices.checkpoints, names, partial(HadoopFile, spark, choices.checkpoints), watcher.say) as locks:
        ends = TopicEnds(watcher.say)
        jobs = [_prepared(spark, each, choices, watcher, ends) for each in pipelines]
        _reach_brokers(jobs)
        try:
            good = _run(spark, jobs, watcher, stop, locks, publisher)
        except CheckpointInUse:
            raise  # the driver that runs them now publishes their state
        except BaseException as error:
            _publish(publisher, jobs, fatal=reason(error))
            raise
        finally:
            ends.stop()
        _publish(publisher, jobs)
        return good


def _publish(publisher: StatePublisher | None, jobs: Sequence[Job], *, fatal: str = "") -> None:
    """``fatal``: why all that still runs has ended."""
    if publisher is None:
        return
    now_s = time.monotonic()
    for job in jobs:
        is_cut = bool(fatal) and job.is_alive
        is_in_trouble = job.state in ("waiting", "failed")
        publisher.publish(
            KIND,
            job.pipeline.name,
            state="failed" if is_cut else job.state,
            error=fatal if is_cut else job.report.last_error if is_in_trouble else "",
            ended=is_cut or not job.is_alive,
            details=job.details(now_s),
        )


def _run(
    spark: SparkSession,
    jobs: Sequence[Job],
    watcher: Watcher,
    stop: threading.Event,
    locks: Locks,
    publisher: StatePublisher | None,
) -> bool:
    grace_s = FINISH_S_MAX
    try:
        with noticing_loss():
            for job in jobs:
                _named(job.pipeline, job.begin)
                _publish(publisher, jobs)
                _until_some_started(jobs, watcher, stop)
            while not stop.is_set() and any(job.is_alive for job in jobs):
                _check_alive(spark)
                _look(jobs, watcher, locks)
                _publish(publisher, jobs)
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


def _look(jobs: Sequence[Job], watcher: Watcher, locks: Locks) -> None:
    now_s = time.monotonic()
    if any(job.is_due(now_s) for job in jobs):
        locks.beat()  # it may have failed because another driver took its place
    locks.check()
    for job in jobs:
        job.watch(now_s, may_start=_starting(jobs) < STARTS_MAX)
    watcher.show([job.snapshot(now_s) for job in jobs])


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
            with noticing_loss():
                job.end(deadline_s)
        except (JvmLost, ConnectionError):
            logger.warning("%s could not be stopped: Spark's process is gone", job.pipeline.name)


def _prepared(spark: SparkSession, pipeline: Pipeline, choices: Choices, watcher: Watcher, ends: TopicEnds) -> Job:
    """Built and checked, and nothing changed yet: the next one may not pass."""

    def prepare() -> Job:
        with settings_of(spark, {COMPARE_CONF: "false"}):  # ``check`` compares, and may be told to accept what it finds
            rows = pipeline.build(spark)
        if not isinstance(rows, DataFrame):
            raise UsageError(f"it returns {type(rows).__name__} and not a DataFrame", pipeline.origin)
        if not rows.isStreaming:
            return BoundedJob(spark, pipeline, choices, watcher, rows)
        job = StreamJob(spark, pipeline, choices, watcher, rows, ends=ends)
        job.check()
        return job

    return _named(pipeline, prepare)


def _named(pipeline: Pipeline, attempt: Callable[[], T]) -> T:
    """An error before a pipeline runs is the pipeline's, and is reported with its name."""
    try:
        with noticing_loss():
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
    """A wrong address is reported at once, and not after minutes of retries inside Spark."""
    addresses = {source.bootstrap for job in jobs for source in job.shape.sources if source.bootstrap}
    for address in sorted(addresses):
        options = ClientOptions(
            client_id="headrace-run", request_timeout_ms=BROKER_TIMEOUT_MS, retry_timeout_ms=BROKER_TIMEOUT_MS
        )
        with Client(address, options) as client:
            client.topics()


def _check_alive(spark: SparkSession) -> None:
    status = exit_status(spark)
    if status is not None:
        raise HeadraceError(f"Spark's process has ended with status {status}; its log tells why")
