"""The process that compacts.

Reading and rewriting gigabytes happens in ``python -m headrace.log.compaction.child``, which runs with low priority, so
that the event loop's latency does not notice. It takes a job as one JSON line on its input and gives the result as one
JSON line on its output.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TextIO

from headrace.errors import HeadraceError
from headrace.log.compaction.cleaner import CleaningJob, clean
from headrace.log.disk import OsDisk
from headrace.log.sync_guard import SyncFailed, SyncGuard

__all__ = ["command", "job_from_json", "job_to_json"]

_NICE = 10


def command() -> list[str]:
    """The command line of the child process."""
    return [sys.executable, "-m", "headrace.log.compaction.child"]


def job_to_json(job: CleaningJob) -> str:
    return json.dumps(asdict(job), separators=(",", ":")) + "\n"


def job_from_json(line: str) -> CleaningJob:
    content = json.loads(line)
    content["segments"] = [tuple(entry) for entry in content["segments"]]
    content["aborted"] = [tuple(entry) for entry in content["aborted"]]
    content["last_batches"] = [tuple(entry) for entry in content["last_batches"]]
    return CleaningJob(**content)


def main(source: TextIO, target: TextIO) -> int:
    """Run one job: a line in, a line out. Returns the exit status."""
    job = job_from_json(source.readline())
    try:
        result = clean(SyncGuard(OsDisk(), on_failure=lambda _: None), job)
    except SyncFailed as error:
        target.write(json.dumps({"sync_failed": str(error)}) + "\n")
        return 1
    except (HeadraceError, OSError) as error:
        target.write(json.dumps({"error": str(error)}) + "\n")
        return 1
    target.write(json.dumps(result.to_json()) + "\n")
    return 0


if __name__ == "__main__":
    os.nice(_NICE)
    sys.exit(main(sys.stdin, sys.stdout))
