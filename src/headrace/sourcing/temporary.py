"""The folder of a temporary index, removed when its process ends.

A process that is killed leaves its folder, and the snapshots in it may have personal data. So a process that makes such
a folder first removes those of dead processes: the owner of a folder holds a lock on a file in it, which the kernel
releases however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from headrace.sourcing.forks import Opener

__all__ = ["TemporaryFolder"]

PREFIX = "headrace-events-"


class TemporaryFolder:
    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            with suppress(FileNotFoundError):  # taken for an abandoned one before it was locked
                self._lock = (self.path / "lock").open("w")
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if self.path.exists():
                    break
        self._end = weakref.finalize(self, _remove, self.path, Opener())

    def remove(self) -> None:
        self._end()
        self._lock.close()


def _remove(path: Path, opener: Opener) -> None:
    if opener.is_here:  # a fork that ends must not take its parent's folder along
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/lock"):
        with suppress(OSError), lock.open() as file:  # in use, gone, or that of another user
            if lock.parent.lstat().st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
