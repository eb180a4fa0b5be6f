"""The disk of capture's broker is full: capture says so, waits, and goes on when there is room; nothing is lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.capture import CaptureOptions
from tests.capture.judge import check_counter, folded
from tests.capture.world import catch_up, events
from tests.servers.headrace import headrace_server
from tests.servers.process import end
from tests.waiting import eventually

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).with_name("headrace")
DISK_BYTES = 8 << 20
CHANGES = 60
TOPIC = "full.main.t"
REPORT_S = 15


@dataclass(frozen=True, slots=True)
class Full:
    capture: subprocess.Popen[bytes]
    said: Path
    bootstrap: str
    disk: Path
    options: CaptureOptions


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.fixture
def full(small_disk: Path, tmp_path: Path) -> Iterator[Full]:
    """A capture of a SQLite file whose broker has just run out of disk."""
    path, said = tmp_path / "source.db", tmp_path / "capture.log"
    options = CaptureOptions(name="full", url=f"sqlite:///{path}")
    source = sqlite3.connect(path, isolation_level=None)
    with closing(source), headrace_server(data=small_disk / "data") as log:
        source.execute("create table t (id integer primary key, n int, body text)")
        source.executemany("insert into t values (?, 0, '')", [(number,) for number in range(10)])
        command = [str(COMMAND), "capture", "run", "full", options.url, "--bootstrap", log.bootstrap]
        with said.open("wb") as output:
            capture = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            eventually(lambda: len(events(log.bootstrap, TOPIC)) >= 10)
            for number in range(CHANGES):
                body = os.urandom(100_000).hex()  # does not get smaller when compressed
                source.execute("update t set n = n + 1, body = ? where id = ?", (body, number % 10))
            yield Full(capture, said, log.bootstrap, small_disk, options)
        finally:
            subprocess.run(["mount", "-o", f"remount,size={16 * DISK_BYTES}", str(small_disk)], check=True)
            end(capture)


def test_a_full_disk_of_the_broker_is_waited_for_and_nothing_is_lost(full: Full) -> None:
    time.sleep(3)
    told = folded(events(full.bootstrap, TOPIC))
    assert sum(each["n"] for each in told) < CHANGES, "the disk is not full"
    assert full.capture.poll() is None, f"capture ended with {full.capture.returncode}:\n{full.said.read_text()}"
    subprocess.run(["mount", "-o", f"remount,size={16 * DISK_BYTES}", str(full.disk)], check=True)
    eventually(lambda: sum(each["n"] for each in folded(events(full.bootstrap, TOPIC))) == CHANGES)
    end(full.capture)
    catch_up(full.bootstrap, full.options)
    found = events(full.bootstrap, TOPIC)
    check_counter(found, first=0)
    assert len([each for each in found if each.op == "u"]) == CHANGES


def test_a_full_disk_of_the_broker_is_reported_within_seconds(full: Full) -> None:
    deadline = time.monotonic() + REPORT_S
    while time.monotonic() < deadline:
        lines = full.said.read_text().lower().splitlines()[1:]  # the first names the file, in this test's folder
        if any(word in line for line in lines for word in ("no space", "disk is full", "storage")):
            return
        time.sleep(0.2)
    pytest.fail(f"capture said only:\n{full.said.read_text()}")
