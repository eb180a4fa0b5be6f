"""What a run does when another driver has its checkpoint by now, and when its JVM is gone. No JVM is started."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from headrace.client import Client, StatePublisher, read_state_records
from headrace.errors import HeadraceError, UsageError
from headrace.spark import sinks
from headrace.spark.graph import Graph
from headrace.spark.plan import JvmLost, NotRepartitioned
from headrace.spark.run import jobs, rescale, runner
from headrace.spark.run.checkpoint_lock import CheckpointInUse, Lease, Locks
from headrace.spark.run.jobs import Choices, Job, StreamJob
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.session import SHUFFLE_PARTITIONS, STATE_STORE, STATE_STORES, state_in
from headrace.spark.shape import Column, Operator, Shape
from headrace.testing import broker
from tests.spark.watching import Told

CHOICES = Choices(command="headrace run shop.py", checkpoints="s3a://bucket/checkpoints")


class Failed(Job):
    """A query that has failed, and whose pause is over."""

    ended_after_s = float("inf")

    def begin(self) -> None:
        self.state = "waiting"

    def is_due(self, now_s: float) -> bool:
        return True

    def watch(self, now_s: float, may_start: bool = True) -> None:
        raise AssertionError("it was started again")

    def end(self, deadline_s: float) -> None:
        self.ended_after_s = deadline_s - time.monotonic()


class Taken:
    """The file of a lease that another driver has taken over meanwhile."""

    def read(self) -> str:
        return '{"owner": "process 7 on other", "beats": 0}'

    def create(self, text: str) -> bool:
        raise AssertionError("it is there")

    def replace(self, text: str) -> None:
        raise AssertionError("it is another's")

    def remove(self) -> None:
        raise AssertionError("it is another's")


def test_a_query_is_not_started_again_when_another_driver_has_its_checkpoint_and_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease is looked at before a restart, and not at its next beat, which may be seconds away."""
    session: Any = None
    pipeline = Pipeline("orders", lambda spark: session, sinks.console())
    job = Failed(session, pipeline, CHOICES, Told(), session)
    monkeypatch.setattr(runner, "_check_alive", lambda spark: None)
    locks = Locks()
    locks.held.append(Lease(Taken(), "s3a://bucket/checkpoints/orders", "process 3 on here"))
    with pytest.raises(CheckpointInUse, match=r"orders is in use by process 7 on other"):
        runner._run(session, [job], Told(), threading.Event(), locks, None)
    assert job.ended_after_s <= 0


class Cut(Job):
    """A query whose JVM dies while it is asked something: what py4j raises then."""

    error = Py4JError("An error occurred while calling o3927.isActive")

    def begin(self) -> None:
        self.state = "running"

    def watch(self, now_s: float, may_start: bool = True) -> None:
        raise self.error

    def end(self, deadline_s: float) -> None:
        raise Py4JError("An error occurred while calling o3927.stop")


class Mistaken(Cut):
    """The JVM lives, and says that there is no such method."""

    error = Py4JError("An error occurred while calling o7.isActiv. Trace:\npy4j.Py4JException: no such method\n")


@pytest.mark.parametrize(
    ("kind", "raised", "told"),
    [(Cut, HeadraceError, "Spark's process has ended; its log tells why"), (Mistaken, Py4JError, "no such method")],
)
def test_a_jvm_that_dies_during_a_call_is_told_as_that_and_another_error_is_not(
    monkeypatch: pytest.MonkeyPatch, kind: type[Job], raised: type[Exception], told: str
) -> None:
    session: Any = None
    job = kind(session, Pipeline("orders", lambda spark: session, sinks.console()), CHOICES, Told(), session)
    monkeypatch.setattr(runner, "_check_alive", lambda spark: None)
    with pytest.raises(raised, match=told):
        runner._run(session, [job], Told(), threading.Event(), Locks(), None)


def test_pipelines_that_end_with_their_jvm_are_published_as_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session: Any = None
    orders = Pipeline("orders", lambda spark: session, sinks.console())
    choices = replace(CHOICES, checkpoints=str(tmp_path))
    monkeypatch.setattr(runner, "_prepared", lambda *_: Cut(session, orders, choices, Told(), session))
    monkeypatch.setattr(runner, "_check_alive", lambda spark: None)
    with broker() as running, Client(running.bootstrap) as client:
        with StatePublisher(running.bootstrap) as publisher, pytest.raises(HeadraceError, match="has ended"):
            runner.run(session, [orders], choices, Told(), threading.Event(), publisher)
        found = read_state_records(client, "pipeline")["orders"]
    assert (found.state, found.ended, found.error) == ("failed", True, "Spark's process has ended; its log tells why")


def test_a_jvm_that_dies_while_a_pipeline_is_built_is_no_mistake_of_the_pipeline() -> None:
    def build() -> None:
        raise Py4JError("An error occurred while calling o12.load")

    session: Any = None
    with pytest.raises(JvmLost):
        runner._named(Pipeline("orders", lambda spark: session, sinks.console()), build)


# ---- a query and its checkpoint ------------------------------------------------------------------------------------

SUM = Shape(operators=(Operator("windows", (Column("shop", "string"),), (Column("sum", "long"),)),), state="memory")
OTHER_MEANING = replace(SUM, operators=(replace(SUM.operators[0], values=(Column("max", "long"),)),), state="")
OTHER_KEYS = replace(SUM, operators=(replace(SUM.operators[0], keys=(Column("shop", "int"),)),))


class Begun:
    """A checkpoint that a query with this shape has made."""

    shown = "checkpoints/orders"

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def has_begun(self) -> bool:
        return True

    def shape(self) -> Shape:
        return self._shape


def job_of(monkeypatch: pytest.MonkeyPatch, before: Shape, now: Shape, **choices: Any) -> StreamJob:
    monkeypatch.setattr(jobs, "Checkpoint", lambda spark, folder, name: Begun(before))
    monkeypatch.setattr(jobs, "shape_of", lambda rows, **options: now)
    monkeypatch.setattr(jobs, "graph_of", lambda rows: (Graph(), []))
    session: Any = None
    pipeline = Pipeline("orders", lambda spark: session, sinks.console())
    return StreamJob(session, pipeline, replace(CHOICES, **choices), Told(), session)


def test_what_a_checkpoint_cannot_serve_is_refused_also_with_accept_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"has changed: .*under the new meaning"):
        job_of(monkeypatch, SUM, OTHER_MEANING).check()
    job_of(monkeypatch, SUM, OTHER_MEANING, accept_changes=True).check()
    with pytest.raises(UsageError, match="no longer fits its checkpoint"):
        job_of(monkeypatch, SUM, OTHER_KEYS, accept_changes=True).check()
    job_of(monkeypatch, SUM, OTHER_KEYS, start_over=True).check()


def test_the_state_of_a_checkpoint_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(monkeypatch, SUM, OTHER_MEANING, accept_changes=True)
    assert job.shape.state == ""
    job.check()
    assert job.shape.state == "memory"


def test_a_finished_micro_batch_starts_the_count_of_restarts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(monkeypatch, SUM, SUM, restarts_max=2)

    def fail() -> str:
        job._failed(RuntimeError("away"), 0.0)
        return job.note.partition(" after")[0]

    assert [fail(), fail()] == ["restart 1 in 1 s", "restart 2 in 2 s"]
    job.tracker.batches += 1
    assert fail() == "restart 1 in 1 s"
    job._batches_before = job.tracker.batches  # as when it is started again
    assert [fail(), fail()] == ["restart 2 in 2 s", "RuntimeError: away"]
    assert job.state == "failed"


class Conf(dict[str, str]):
    """Of a session."""

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        del self[name]


def test_settings_for_one_query_are_those_of_the_session_again_afterwards() -> None:
    session: Any = SimpleNamespace(conf=Conf({SHUFFLE_PARTITIONS: "2", STATE_STORE: STATE_STORES["disk"]}))
    before = dict(session.conf)
    with state_in(session, None, named_once=True, tasks=5):
        assert session.conf[SHUFFLE_PARTITIONS] == "5"
        assert len(session.conf) > len(before), "files that are named once"
    assert session.conf == before
    with pytest.raises(RuntimeError), state_in(session, "memory"):
        assert session.conf[STATE_STORE] == STATE_STORES["memory"]
        raise RuntimeError
    assert session.conf == before


def test_state_that_has_so_many_tasks_already_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(spark: Any, location: str, tasks: int) -> None:
        raise NotRepartitioned(f"[STATE_REPARTITION_INVALID_CHECKPOINT.{rescale.MATCHES}] it has {tasks}")

    monkeypatch.setattr(rescale, "repartition_state", refused)
    session: Any = None
    checkpoint: Any = SimpleNamespace(state_tasks=lambda: 5, location="x", shown="x")
    assert rescale.rescale(session, checkpoint, 5, "headrace run shop.py") is None
