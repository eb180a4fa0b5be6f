"""Named spaces: folders of logs, each with its own names, under one checkpoint."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.log.config import LogConfig
from headrace.log.space import STATE, TOPICS
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk
from tests.unit.log.builders import fill, group, open_log

ID = UUID(int=7)


def test_logs_of_all_spaces_share_the_checkpoint_and_keep_apart() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "orders", ID, 3, LogConfig()), 5)
    fill(store.space(STATE).open_log("journal", 0, LogConfig()), 2)
    assert sorted(store.logs) == ["state/journal/0", f"topics/{group('orders', ID)}/3"]
    assert store.space(TOPICS).groups_on_disk() == [group("orders", ID)]
    assert store.space(STATE).groups_on_disk() == ["journal"]
    store.close()
    again = LogStore.open(disk, "/data")
    assert again.space(STATE).open_log("journal", 0, LogConfig()).end_offset == 2
    assert open_log(again, "orders", ID, 3, LogConfig()).recovery.scanned_bytes == 0


def test_a_name_that_is_not_a_spaces_own_is_refused_and_reported_where_it_lies() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    with pytest.raises(AssertionError):
        store.space(TOPICS).open_log("journal", 0, LogConfig())
    store.close()
    disk.mkdir("/data/state/holiday")
    again = LogStore.open(disk, "/data")
    assert [each.path for each in again.report.findings] == ["/data/state/holiday"]
    assert again.space(STATE).groups_on_disk() == []


def test_deleting_a_group_touches_no_group_whose_name_begins_like_it() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    gone, kept = open_log(store, "a", ID, 1, LogConfig()), open_log(store, "a", UUID(int=8), 1, LogConfig())
    fill(gone, 1)
    fill(kept, 1)
    store.space(TOPICS).forget(group("a", ID))
    store.space(TOPICS).move_deleted(group("a", ID))
    assert list(store.logs.values()) == [kept]
    assert disk.listdir("/data/deleted") == [f"topics.{group('a', ID)}"]
    while store.remove_deleted(1):
        pass
    assert disk.listdir("/data/deleted") == []
    store.close()
    assert open_log(LogStore.open(disk, "/data"), "a", UUID(int=8), 1, LogConfig()).end_offset == 1
