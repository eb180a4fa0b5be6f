"""The version of the data directory: older ones are opened, newer ones refused."""

from __future__ import annotations

import pytest

from headrace.broker.verify import DataVerifier
from headrace.errors import UsageError
from headrace.log.config import LogConfig
from headrace.log.format import FORMAT_VERSION, RESTORING, encode_format
from headrace.log.space import STATE
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk
from tests.unit.log.builders import fill


def written(disk: SimulatedDisk, path: str, data: bytes) -> None:
    disk.open(path, create=True).write([data], 0)


def filled() -> SimulatedDisk:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(store.space(STATE).open_log("journal", 0, LogConfig()), 3)
    store.close()
    return disk


def test_a_new_directory_has_the_current_version() -> None:
    assert filled().contents("/data/format") == encode_format(FORMAT_VERSION)


def test_the_file_is_one_line_with_a_checksum() -> None:
    assert encode_format(1) == b"headrace-data 1 3687b921\n"


def test_a_directory_without_the_file_is_opened_and_gets_it() -> None:
    disk = filled()
    disk.unlink("/data/format")
    store = LogStore.open(disk, "/data")
    assert store.space(STATE).open_log("journal", 0, LogConfig()).end_offset == 3
    assert store.report.findings == []
    assert disk.contents("/data/format") == encode_format(FORMAT_VERSION)


def test_a_newer_version_is_refused_with_nothing_changed_and_the_directory_free() -> None:
    disk = filled()
    newer = encode_format(FORMAT_VERSION + 1)
    written(disk, "/data/format", newer)
    before = disk.contents("/data/checkpoint")
    for _ in range(2):
        with pytest.raises(UsageError, match="format 2, and this headrace knows formats up to 1"):
            LogStore.open(disk, "/data")
    with pytest.raises(UsageError, match="a newer headrace wrote it"):
        DataVerifier(disk, "/data")
    assert disk.contents("/data/format") == newer
    assert disk.contents("/data/checkpoint") == before


@pytest.mark.parametrize("content", [b"", b"headrace-data 3 3687b921\n", b"headrace-data 1 3687b921\nmore"])
def test_a_damaged_file_is_reported_once_and_written_again(content: bytes) -> None:
    disk = filled()
    disk.damage("/data/format", lambda data: data.__setitem__(slice(None), content))
    store = LogStore.open(disk, "/data")
    assert [each.path for each in store.report.findings] == ["/data/format"]
    store.close()
    assert LogStore.open(disk, "/data").report.findings == []


def test_a_directory_into_which_a_restore_did_not_end_is_refused() -> None:
    disk = filled()
    written(disk, f"/data/{RESTORING}", b"")
    with pytest.raises(UsageError, match="did not end"):
        LogStore.open(disk, "/data")
