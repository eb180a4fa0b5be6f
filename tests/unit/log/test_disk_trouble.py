"""A disk that refuses is said once, and so is its recovery."""

from __future__ import annotations

import errno
import logging

import pytest

from headrace.log.disk_trouble import CALM_S, ROOM_BYTES, DiskTrouble
from headrace.log.sync_guard import SyncGuard
from headrace.testing import SimulatedDisk, VirtualClock

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_thousand_refusals_are_one_line_and_their_end_is_another(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    trouble = DiskTrouble("writing", clock.monotonic)
    with caplog.at_level(logging.INFO, "headrace.disk"):
        for _ in range(1000):
            trouble.refused(FULL, "/data/a.log")
            clock.advance(10)
        assert trouble.active
        clock.advance(int(CALM_S * 1000))
        trouble.worked()
        trouble.worked()
    assert [record.getMessage() for record in caplog.records] == [
        "writing fails: /data/a.log: No space left on device; requests that need it get an error",
        "writing works again after 11 s; it was refused 1000 times",
    ]
    assert not trouble.active
    assert trouble.refused_total == 1000


def test_a_small_write_that_fits_between_two_that_do_not_is_no_recovery(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    trouble = DiskTrouble("writing", clock.monotonic)
    with caplog.at_level(logging.INFO, "headrace.disk"):
        for _ in range(10):
            trouble.refused(FULL, "/data/a.log")
            clock.advance(100)
            trouble.worked()
    assert len(caplog.records) == 1


def test_a_second_trouble_counts_its_own_refusals(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    trouble = DiskTrouble("writing", clock.monotonic)
    with caplog.at_level(logging.INFO, "headrace.disk"):
        for _ in range(2):
            trouble.refused(FULL, "/data/a.log")
            clock.advance(2000)
            trouble.worked()
    assert caplog.messages[-1] == "writing works again after 2 s; it was refused 1 times"


def test_a_full_disk_is_noticed_where_it_is_written() -> None:
    disk, clock = SimulatedDisk(), VirtualClock()
    guard = SyncGuard(disk, lambda error: None, monotonic=clock.monotonic)
    guard.mkdir("/data")
    file = guard.open("/data/a.log", create=True)
    disk.capacity_bytes = 10
    with pytest.raises(OSError, match="space"):
        file.write([b"x" * 100], 0)
    assert guard.writing.active
    disk.capacity_bytes = None
    clock.advance(2000)
    file.write([b"x" * 100], 0)
    assert not guard.writing.active
    assert not guard.creating.active


def test_a_write_that_fits_into_the_last_block_of_a_full_disk_is_no_recovery(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    free_bytes = 0
    trouble = DiskTrouble("writing", clock.monotonic, lambda path: free_bytes)
    with caplog.at_level(logging.INFO, "headrace.disk"):
        trouble.refused(FULL, "/data/a.log")
        clock.advance(60_000)
        trouble.worked()
        assert trouble.active
        free_bytes = ROOM_BYTES
        trouble.worked()
        assert not trouble.active
