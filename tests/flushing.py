"""A flusher that syncs when a test says so, and then only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.sync_guard import SyncGuard
from headrace.log.unsynced import FlushMark
from headrace.ports import Disk

__all__ = ["FlusherByHand"]


class FlusherByHand(Flusher):
    """Marks are kept until ``flush``, which lets the real thread run to its end."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        monotonic: Callable[[], float] = lambda: 0.0,
        note: Callable[[Sequence[FlushMark]], None] = lambda _: None,
    ) -> None:
        self._posted: list[Callable[[], None]] = []
        self._failures: list[BaseException] = []
        guard = disk if isinstance(disk, SyncGuard) else SyncGuard(disk, self._failures.append)
        super().__init__(
            guard, directory, post=self._posted.append, monotonic=monotonic, defer=lambda _: None, note=note
        )

    def flush(self, logs: Iterable[PartitionLog] = ()) -> None:
        for log in logs:
            self.mark(log)
        self.start()
        self.stop()
        for failure in self._failures:
            raise failure
        while self._posted:
            self._posted.pop(0)()
