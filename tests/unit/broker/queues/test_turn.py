"""A turn: what waits for a sync is answered in the turn of the loop in which the sync is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.queues.turn import Turn


class Bench:
    """A turn whose loop runs when ``loop`` says so, and a connection."""

    def __init__(self) -> None:
        self.deferred: list[Callable[[], None]] = []
        self.flushes = 0
        later: Any = None
        self.turn = Turn(defer=self.deferred.append, later=later, now_ms=lambda: 0)

    def flush(self) -> None:
        self.flushes += 1

    def confirm(self) -> None:
        self.turn.send(self)

    def loop(self) -> None:
        deferred, self.deferred[:] = list(self.deferred), []
        for each in deferred:
            each()


def test_confirms_leave_when_the_sync_is_reported_and_the_loop_need_not_turn_again() -> None:
    bench = Bench()
    bench.turn.at_once(bench.confirm)
    assert (bench.flushes, bench.deferred) == (1, [])


def test_a_turn_that_is_due_anyway_sends_them() -> None:
    bench = Bench()
    bench.confirm()
    bench.turn.at_once(bench.confirm)
    assert bench.flushes == 0
    bench.loop()
    assert (bench.flushes, bench.deferred) == (1, [])


def test_a_report_that_fails_holds_up_no_later_turn() -> None:
    bench = Bench()

    def fails() -> None:
        bench.confirm()
        raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        bench.turn.at_once(fails)
    assert bench.flushes == 1
    bench.confirm()
    bench.loop()
    assert bench.flushes == 2
