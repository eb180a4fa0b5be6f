"""What a run does when another driver has its checkpoint by now, and when its JVM is gone. No JVM is started."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from headrace.errors import HeadraceError
from headrace.spark import sinks
from headrace.spark.plan import JvmLost
from headrace.spark.run import runner
from headrace.spark.run.checkpoint_lock import CheckpointInUse, Lease, Locks
from headrace.spark.run.jobs import Choices, Job
from headrace.spark.run.pipelines import Pipeline
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


def test_a_jvm_that_dies_while_a_pipeline_is_built_is_no_mistake_of_the_pipeline() -> None:
    def build() -> None:
        raise Py4JError("An error occurred while calling o12.load")

    session: Any = None
    with pytest.raises(JvmLost):
        runner._named(Pipeline("orders", lambda spark: session, sinks.console()), build)
