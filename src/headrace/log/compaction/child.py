"""The process that compacts.

Reading and rewriting gigabytes happens in ``python -m headrace.log.compaction.child``, which runs with low priority, so
that the event loop's latency does not notice. It takes a job as one JSON line on its input and gives the result as one
JSON line on its output.

It must not outlive its owner, whose successor would compact the same log. Three things see to that, and each of them
suffices:

* the kernel kills it when its owner dies (``PR_SET_PDEATHSIG``, which only Linux has);
* its input stays open as long as its owner wants the result, and it looks before every batch;
* its files carry the job's token in their names, so it shares none with another child, and only the owner renames
  them. What a dead one left is removed when the log is opened.
"""

from __future__ import annotations

import json
import os
import select
import sys
from dataclasses import fields
from typing import TextIO

from headrace.child_process import EXIT_NOT_WANTED, die_with
from headrace.errors import HeadraceError
from headrace.log.compaction.cleaner import CleaningCancelled, CleaningJob, clean
from headrace.log.disk import OsDisk
from headrace.log.sync_guard import SyncFailed, SyncGuard

__all__ = ["command", "job_from_json", "job_to_json"]

_NICE = 10
_EXIT_FAILED = 1


def command() -> list[str]:
    """The command line of the child of this process."""
    return [sys.executable, "-m", "headrace.log.compaction.child", str(os.getpid())]


def job_to_json(job: CleaningJob) -> str:
    content = {each.name: getattr(job, each.name) for each in fields(job)}
    return json.dumps(content, separators=(",", ":")) + "\n"


def job_from_json(line: str) -> CleaningJob:
    content = json.loads(line)
    for name in ("segments", "aborted", "last_batches"):
        content[name] = [tuple(entry) for entry in content[name]]
    return CleaningJob(**content)


def main(source: TextIO, target: TextIO) -> int:
    """Run one job: a line in, a line out. Returns the exit status."""
    try:
        status = _run(source, target)
        target.flush()
        return status
    except BrokenPipeError:  # the owner died while the result was on its way to it
        return EXIT_NOT_WANTED


def _run(source: TextIO, target: TextIO) -> int:
    line = source.readline()
    if not line.endswith("\n"):  # the owner died before it had written the job
        return EXIT_NOT_WANTED
    job = job_from_json(line)
    try:
        disk = SyncGuard(OsDisk(), on_failure=lambda _: None)
        result = clean(disk, job, check_wanted=lambda: _check_input_is_open(source))
    except CleaningCancelled:
        return EXIT_NOT_WANTED
    except SyncFailed as error:
        target.write(json.dumps({"sync_failed": str(error)}) + "\n")
        return _EXIT_FAILED
    except (HeadraceError, OSError) as error:
        target.write(json.dumps({"error": str(error)}) + "\n")
        return _EXIT_FAILED
    target.write(json.dumps(result.to_json()) + "\n")
    return 0


def _check_input_is_open(source: TextIO) -> None:
    """Nothing follows the job, so an input that can be read is at its end: the owner is gone."""
    if select.select([source], [], [], 0)[0]:
        raise CleaningCancelled


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.nice(_NICE)
    os._exit(main(sys.stdin, sys.stdout))  # sys.exit would write again what nobody reads any more
