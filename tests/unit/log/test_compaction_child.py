"""The process that compacts: what it answers, and that it never harms its owner or the owner that follows."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.log.compaction import owner
from headrace.log.compaction.child import command, job_from_json, job_to_json, main
from headrace.log.compaction.cleaner import CleaningJob, clean
from headrace.log.compaction.owner import CompactionFailed, clean_in_child
from headrace.log.compaction.planning import plan
from headrace.log.config import LogConfig
from headrace.log.disk import OsDisk, OsFile
from headrace.log.errors import CorruptLog
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.record import decode_records
from headrace.testing.disk import SimulatedDisk
from tests.unit.log.builders import DIRECTORY, append, batches_in, new_log, plain, swap_in
from tests.waiting import PATIENCE_S, eventually

COMPACT = LogConfig(
    segment_bytes_max=4000,
    index_interval_bytes=200,
    retention_ms=-1,
    cleanup_delete=False,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.0,
)
NOW = 10_000


def fill(log: PartitionLog) -> None:
    """300 records of 10 keys, ready to be compacted."""
    for turn in range(300):
        append(log, plain(b"%d" % turn, key=b"k%d" % (turn % 10)))
    log.roll()
    log.sync_all()
    log.checkpointed(log.prepare_checkpoint().written())


def job_for(log: PartitionLog, token: str = "t") -> CleaningJob:
    job = plan(log, NOW, token=token)
    assert job is not None
    return job


def on_disk(tmp_path: Path) -> tuple[PartitionLog, SyncGuard, list[BaseException]]:
    failures: list[BaseException] = []
    guard = SyncGuard(OsDisk(), failures.append)
    log = PartitionLog.open(guard, str(tmp_path / "log"), COMPACT)
    fill(log)
    return log, guard, failures


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for batch in batches_in(log) for record in decode_records(batch, 1 << 20)]


LAST_OF_EACH_KEY = [b"%d" % number for number in range(290, 300)]


def left_over(log: PartitionLog) -> list[str]:
    return [name for name in log._disk.listdir(log.directory) if "cleaned" in name or "swap" in name]


def test_a_job_runs_in_a_child_process(tmp_path: Path) -> None:
    log, guard, _ = on_disk(tmp_path)
    job = job_for(log)
    assert job_from_json(job_to_json(job)) == job
    assert swap_in(log, asyncio.run(clean_in_child(job, guard))) > 0
    assert values(log) == LAST_OF_EACH_KEY
    assert left_over(log) == []


def test_a_child_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    log, guard, _ = on_disk(tmp_path)
    job = job_for(log)
    job.segments = [*job.segments, (10_000, 100, False)]
    with pytest.raises(CompactionFailed, match="No such file"):
        asyncio.run(clean_in_child(job, guard))
    assert left_over(log) == []


def test_a_child_that_is_killed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, guard, _ = on_disk(tmp_path)
    (tmp_path / "log" / f"{0:020d}.log.cleaned-t").touch()
    monkeypatch.setattr(owner, "command", lambda: [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    with pytest.raises(CompactionFailed, match="status -9"):
        asyncio.run(clean_in_child(job_for(log), guard))
    assert left_over(log) == []


def test_a_child_whose_sync_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _, _ = on_disk(tmp_path)

    def failing(_: OsFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OsFile, "datasync", failing)
    answer = io.StringIO()
    reading, writing = os.pipe()
    with os.fdopen(reading) as source, os.fdopen(writing, "w") as kept_open:
        kept_open.write(job_to_json(job_for(log)))
        kept_open.flush()
        assert main(source, answer) == 1
    assert "Input/output error" in json.loads(answer.getvalue())["sync_failed"]


def test_a_sync_that_failed_in_the_child_counts_like_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, guard, failures = on_disk(tmp_path)
    says = "import json; print(json.dumps({'sync_failed': 'Input/output error'}))"
    monkeypatch.setattr(owner, "command", lambda: [sys.executable, "-c", says])
    with pytest.raises(SyncFailed):
        asyncio.run(clean_in_child(job_for(log), guard))
    assert len(failures) == 1


def test_a_child_whose_owner_has_gone_stops_and_leaves_nothing(tmp_path: Path) -> None:
    log, _, _ = on_disk(tmp_path)
    line = job_to_json(job_for(log))  # after which the input ends
    child = subprocess.run(command(), input=line, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (child.returncode, child.stdout) == (2, "")
    assert left_over(log) == []


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_child_whose_owner_dies_while_it_writes_the_job_says_nothing(tmp_path: Path, part: float) -> None:
    log, _, _ = on_disk(tmp_path)
    line = job_to_json(job_for(log))
    answer = io.StringIO()
    assert main(io.StringIO(line[: int(len(line) * part)]), answer) == 2
    assert answer.getvalue() == ""


def test_a_child_whose_owner_dies_before_it_has_the_result_says_nothing(tmp_path: Path) -> None:
    log, _, _ = on_disk(tmp_path)
    line = job_to_json(job_for(log))
    with subprocess.Popen(
        command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.write(line)
        child.stdin.flush()
        assert child.stderr.read() == ""
        assert child.wait(PATIENCE_S) == 2


def test_a_child_that_is_not_its_owners_does_nothing(tmp_path: Path) -> None:
    somebody_else = [*command()[:-1], "1"]
    child = subprocess.run(somebody_else, input="", capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (child.returncode, child.stderr) == (2, "")


OWNER = """
import subprocess, sys, time
from headrace.log.compaction.child import command
child = subprocess.Popen(command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_dies_with_its_owner_even_when_it_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            eventually(lambda: died_with_parent_is_set(child))
            os.kill(child, signal.SIGSTOP)
        finally:
            parent.kill()
        parent.wait()
        eventually(lambda: is_dead(child))


def died_with_parent_is_set(pid: int) -> bool:
    """The child has said how it wants to die when it has made itself nicer than we are, which comes after."""
    return os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("at_batch", [0, 150, 305, 450])
def test_an_attempt_that_outlives_its_owner_harms_nothing(at_batch: int) -> None:
    """An old child is stopped, a new owner compacts the same log, and the old one goes on to its end, noticing
    nothing."""
    disk = SimulatedDisk()
    log = new_log(disk, COMPACT)
    fill(log)
    calls = 0

    def a_new_owner_compacts() -> None:
        nonlocal calls
        if calls == at_batch:
            assert swap_in(log, clean(disk, job_for(log, "new"))) > 0
        calls += 1

    with suppress(FileNotFoundError, CorruptLog):  # it may trip over what has been replaced
        clean(disk, job_for(log, "old"), check_wanted=a_new_owner_compacts)
    assert calls > at_batch
    assert values(log) == LAST_OF_EACH_KEY
    again = PartitionLog.open(disk, DIRECTORY, COMPACT, known=Known(mark=log.mark))
    assert values(again) == LAST_OF_EACH_KEY
    assert left_over(again) == []
