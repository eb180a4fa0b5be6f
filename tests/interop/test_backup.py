"""Backups of a broker under load, of one that is killed meanwhile, and by a command that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import testing
from headrace.backup.repository import Repository
from tests.chaos.backups import BackupLoad, Moment, faults_in
from tests.waiting import eventually

# pika leaves its sockets to the collector when the broker is killed while it connects.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

COMMAND = str(Path(sys.executable).with_name("headrace"))
BROKER = {
    "log.cleaner.backoff.ms": 200,
    "log.retention.check.interval.ms": 300,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return subprocess.run([COMMAND, *arguments], env=kept, capture_output=True, text=True, timeout=120, check=False)


def back_up(load: BackupLoad, target: Path) -> tuple[Moment, Moment]:
    """Make a backup; what was acknowledged before and after it."""
    before = load.moment()
    done = headrace("backup", "create", str(target), "--bootstrap", load.bootstrap())
    assert done.returncode == 0, done.stderr
    return before, load.moment()


def faults_of_restored(target: Path, name: str, data: Path, moments: tuple[Moment, Moment]) -> list[str]:
    done = headrace("restore", str(target), "--data", str(data), "--backup", name)
    assert (done.returncode, done.stderr) == (0, ""), "log verify finds nothing in a restored directory"
    with testing.broker(in_process=False, amqp=True, data=data, settings=BROKER) as again:
        return faults_in(again.bootstrap, again.amqp_port, *moments)


def test_backups_under_load_hold_all_that_was_acknowledged_at_one_moment(tmp_path: Path) -> None:
    target = tmp_path / "backups"
    with testing.broker(in_process=False, amqp=True, data=tmp_path / "data", settings=BROKER) as broker:
        with BackupLoad(lambda: broker.bootstrap, lambda: broker.amqp_port) as load:
            moments = []
            for _ in range(2):
                load.until_more()
                moments.append(back_up(load, target))
            broker.kill()
            broker.start()
            load.until_more()
            moments.append(back_up(load, target))
    names = Repository(str(target)).names()
    assert len(names) == len(moments)
    for number in (1, 2):  # the second of the first run, and the one after the kill
        assert faults_of_restored(target, names[number], tmp_path / f"again{number}", moments[number]) == []


def test_a_command_that_is_killed_leaves_the_earlier_backup_whole_and_no_snapshot_for_long(tmp_path: Path) -> None:
    target = tmp_path / "backups"
    with testing.broker(in_process=False, amqp=True, data=tmp_path / "data", settings=BROKER) as broker:
        with BackupLoad(lambda: broker.bootstrap, lambda: broker.amqp_port) as load:
            load.until_more()
            moments = back_up(load, target)
            load.until_more()
            # It stops before the first file, as it would in the middle of a large one.
            child = subprocess.Popen(
                [sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(target), broker.bootstrap],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdout is not None
            assert child.stdout.readline() == "copying\n"
            assert list((tmp_path / "data/snapshots").iterdir())
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            broker.kill()
            broker.start()
            eventually(lambda: list((tmp_path / "data/snapshots").iterdir()), lambda left: not left)
    (name,) = Repository(str(target)).names()
    assert headrace("backup", "verify", str(target)).returncode == 0
    assert faults_of_restored(target, name, tmp_path / "again", moments) == []


KILLED_IN_THE_MIDDLE = """
import sys, time
from headrace.backup.create import create
from headrace.backup.repository import Repository
from headrace.backup.source import of_running
from headrace.client import Client

def stop(size):
    print("copying", flush=True)
    time.sleep(600)

repository = Repository.create(sys.argv[1])
repository.locked()
with Client(sys.argv[2]) as client, of_running(client) as source:
    create(repository, source, stop)
"""
