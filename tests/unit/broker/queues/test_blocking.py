"""Publishers are held for as long as there is a reason, and a disk that fills up is looked at often enough."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.queues.blocking import FILLED_BYTES_PER_S, Blocking, DiskReserve

LIMIT = 50_000_000


class Bench:
    """A disk whose free space a test sets; ``tick`` is the next look."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.free: int | None = 1 << 40
        self.delays: list[float] = []
        self.heard: list[str | None] = []
        self.blocking = Blocking()
        self.blocking.on_change = self.heard.append
        self.reserve = DiskReserve(limit, free_bytes=self._free, blocking=self.blocking, later=self._later)

    def _free(self) -> int:
        if self.free is None:
            raise OSError(5, "Input/output error")
        return self.free

    def _later(self, delay_s: float, function: Callable[[], None]) -> Any:
        self.delays.append(delay_s)

    def tick(self, free: int | None) -> None:
        self.free = free
        self.reserve.look()


def test_publishers_are_held_below_the_limit_and_go_on_above_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.reserve.start()
    for free in (LIMIT, LIMIT - 1, 0, LIMIT - 1, LIMIT):
        bench.tick(free)
    assert bench.heard == ["low on disk", None]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "amqp.disk.free.limit.bytes is 50000000" in caplog.text


def test_a_publisher_cannot_use_up_the_reserve_between_two_looks() -> None:
    bench = Bench()
    for free in (1 << 40, LIMIT + 1_000_000_000, LIMIT + 200_000_000, LIMIT):
        bench.tick(free)
        most = bench.delays[-1] * FILLED_BYTES_PER_S
        assert free - most >= LIMIT / 2 or bench.delays[-1] == 0.1
    assert bench.delays[0] == 10.0, "far from the limit it is rarely looked at"


def test_a_limit_of_nothing_never_looks() -> None:
    bench = Bench(0)
    bench.reserve.start()
    assert bench.delays == []


def test_a_disk_that_cannot_be_asked_changes_nothing_and_is_asked_again() -> None:
    bench = Bench()
    bench.tick(0)
    bench.tick(None)
    assert bench.heard == ["low on disk"]
    assert len(bench.delays) == 2


def test_publishers_are_held_until_the_last_reason_has_ended() -> None:
    bench = Bench()
    bench.blocking.set("write", "no space left")
    bench.tick(0)
    bench.blocking.set("write", None)
    assert bench.heard == ["no space left"]
    assert bench.blocking.reason == "low on disk"
    bench.tick(1 << 40)
    assert bench.heard == ["no space left", None]
    assert bench.blocking.reason is None
