"""Repairing a data directory: wherever that is interrupted, it can be repeated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.broker.broker import JOURNAL
from headrace.broker.repair import carry_out, plan
from headrace.log.log import PartitionLog
from headrace.log.space import STATE, TOPICS
from headrace.log.store import LogStore
from headrace.testing.disk import PowerLoss, SimulatedDisk
from tests.unit.log.builders import SMALL, append, fill, offsets_in, plain
from tests.unit.log.test_damage import cut_at, flip, starts_in

DATA = "/data"
ORDERS = f"orders~{7:032x}"
COUNT = 22

Damage = Callable[[SimulatedDisk, list[str]], None]
"""Changes a file of the log whose segments have these paths."""


def opened(disk: SimulatedDisk) -> tuple[LogStore, PartitionLog]:
    store = LogStore.open(disk, DATA)
    store.space(STATE).open_log(JOURNAL, 0, SMALL, sync=False)
    log = store.space(TOPICS).open_log(ORDERS, 0, SMALL, sync=False)
    store.sync_recovered()
    return store, log


def damaged(damage: Damage, *, stopped: bool) -> SimulatedDisk:
    """What a broker has left that was stopped, or killed after two more batches than the checkpoint knows of."""
    disk = SimulatedDisk()
    store, log = opened(disk)
    fill(log, COUNT - 2)
    log.sync_all()
    store.checkpoint(everything=True)
    fill(log, 2)
    log.sync_all()
    store.checkpoint()
    if stopped:
        store.close()
    disk.kill()
    damage(disk, [segment.path for segment in log.segments])
    disk.syncfs(DATA)  # else a power loss brings back what is gone
    return disk


def flip_in(number: int) -> Damage:
    return lambda disk, paths: disk.damage(paths[number], flip(starts_in(disk, paths[number])[1] + 80))


def cut_in(number: int) -> Damage:
    return lambda disk, paths: disk.damage(paths[number], cut_at(starts_in(disk, paths[number])[1]))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize(
    "damage",
    [flip_in(1), flip_in(-1), cut_in(1), cut_in(-1), lambda disk, paths: disk.unlink(paths[1])],
    ids=["a batch", "a batch at the end", "the end of a segment", "the end", "a segment"],
)
def test_a_repair_that_is_interrupted_anywhere_can_be_repeated(damage: Damage, stopped: bool) -> None:
    disk = damaged(damage, stopped=stopped)
    before = disk.operations
    carry_out(disk, DATA, plan(disk, DATA))
    steps = disk.operations - before
    expected = offsets_in(opened(disk)[1])
    assert 0 < len(expected) < COUNT
    for step in range(steps):
        disk = damaged(damage, stopped=stopped)
        disk.crash_after = disk.operations + step
        try:
            carry_out(disk, DATA, plan(disk, DATA))
        except PowerLoss:
            if step % 2:
                disk.crash(step)
        disk.kill()
        carry_out(disk, DATA, plan(disk, DATA))
        assert plan(disk, DATA) == [], f"step {step}"
        _, log = opened(disk)
        assert offsets_in(log) == expected, f"step {step}"
        assert append(log, plain(b"next")) == COUNT
