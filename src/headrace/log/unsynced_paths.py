"""What was written to a filesystem and is not synced, for systems without ``syncfs``.

There everything that was written is synced file by file, and every directory that was changed too. So each path is
noted when it is written, and forgotten when a sync that began later has returned. A path that is written again
meanwhile stays noted: its number is another one. Two threads that sync at once may both sync a file; neither returns
before all that was written before its call is on disk.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["UnsyncedPaths"]


class UnsyncedPaths:
    """By path, the number of the latest write. Any thread may call."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._files: dict[str, int] = {}
        self._directories: dict[str, int] = {}
        self._lock = threading.Lock()

    def wrote(self, path: str) -> None:
        self._files[path] = next(self._numbers)

    def changed(self, path: str) -> None:
        """The entry ``path`` of its directory was made or removed."""
        self._directories[os.path.dirname(path) or "."] = next(self._numbers)

    def renamed(self, source: str, target: str) -> None:
        with self._lock:
            if self._files.pop(source, None) is not None:
                self._files[target] = next(self._numbers)
        self.changed(source)
        self.changed(target)

    def removed(self, path: str) -> None:
        self._files.pop(path, None)
        self._directories.pop(path, None)
        self.changed(path)

    @contextmanager
    def syncing_file(self, path: str) -> Iterator[None]:
        with self._syncing(self._files, path):
            yield

    @contextmanager
    def syncing_directory(self, path: str) -> Iterator[None]:
        with self._syncing(self._directories, path):
            yield

    @contextmanager
    def _syncing(self, noted: dict[str, int], path: str) -> Iterator[None]:
        """What was noted of ``path`` before is forgotten when the ``with`` has ended without an error."""
        number = noted.get(path)
        yield
        with self._lock:
            if number is not None and noted.get(path) == number:
                del noted[path]

    def sync_noted(self, sync_file: Callable[[str], None], sync_directory: Callable[[str], None]) -> None:
        """Files first: an entry of a directory must not lead to bytes that are not there."""
        for noted, sync in ((self._files, sync_file), (self._directories, sync_directory)):
            for path in list(noted):
                try:
                    with self._syncing(noted, path):
                        sync(path)
                except FileNotFoundError:
                    noted.pop(path, None)  # it was removed by another process, with its directory
