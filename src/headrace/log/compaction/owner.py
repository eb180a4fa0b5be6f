"""The owner's side of a compaction: starting the child, waiting for its result, and cleaning up after it."""

from __future__ import annotations

import asyncio
import errno
import json

from headrace.errors import HeadraceError
from headrace.log.compaction.child import command, job_to_json
from headrace.log.compaction.cleaner import CleaningJob, CleaningResult
from headrace.log.compaction.swap import discard_cleaned
from headrace.log.sync_guard import SyncGuard

__all__ = ["CompactionFailed", "clean_in_child"]


class CompactionFailed(HeadraceError):
    """The child that compacts could not; the log is as it was."""


async def clean_in_child(job: CleaningJob, guard: SyncGuard) -> CleaningResult:
    """Run ``job`` in another process. Whatever happens, no file of an attempt that failed is left."""
    loop = asyncio.get_running_loop()
    try:
        return await _clean_in_child(job, guard)
    except BaseException:
        await loop.run_in_executor(None, discard_cleaned, guard, job.directory, job.token)
        raise


async def _clean_in_child(job: CleaningJob, guard: SyncGuard) -> CleaningResult:
    loop = asyncio.get_running_loop()
    line = await loop.run_in_executor(None, job_to_json, job)
    child = await asyncio.create_subprocess_exec(
        *command(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(line.encode())
        output = await child.stdout.read()
        status = await child.wait()
    except BaseException:
        if child.returncode is None:
            child.kill()
        await child.wait()
        raise
    finally:
        child.stdin.close()  # not before: the child works as long as its input is open
    answer = await loop.run_in_executor(None, json.loads, output or f'{{"error": "it ended with status {status}"}}')
    if "sync_failed" in answer:
        guard.fail(OSError(errno.EIO, answer["sync_failed"], job.directory))
        guard.check()
    if "error" in answer:
        raise CompactionFailed(f"compaction of {job.directory} failed: {answer['error']}")
    return CleaningResult.from_json(answer)
