"""What a run does when another driver has its checkpoint by now. No JVM is started."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace.spark import sinks
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
