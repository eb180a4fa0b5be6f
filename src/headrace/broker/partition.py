"""A partition as the broker sees it: a log, and the readers and producers that wait for it.

Both wait for the high watermark. For topics with ``headrace.flush=ack`` it is the flushed end of the log, so that no
producer is answered and no reader sees a record that a power failure could take back; for the others it is the written
end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from headrace.batch import Batch, control_batch
from headrace.log.errors import LogError
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.ports import Clock
from headrace.vocabulary import Epoch, Offset

__all__ = ["DamagedPartition", "Partition", "Watcher"]

LOG = logging.getLogger("headrace.broker")


class Watcher(Protocol):
    """Wants to know that a partition's high watermark has moved."""

    def partition_advanced(self, partition: Partition) -> None: ...


class Partition:
    """One partition of a topic."""

    fault: LogError | None = None
    removed_at: Offset | None = None
    """The high watermark when the topic was deleted. What is not below it will not be acknowledged."""

    def __init__(
        self, *, topic: str, index: int, log: PartitionLog, flusher: Flusher, clock: Clock, leader_epoch: Epoch
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.leader_epoch = leader_epoch
        self.watchers: dict[Watcher, None] = {}
        self.dropped_records = 0
        self.refused_batches = 0
        self.unwritten: dict[int, tuple[int, float]] = {}
        """By producer id: the epoch of a batch that could not be written since its last one, and when that was."""
        self.removed = False
        self.read_offset = Offset(-1)
        """Where the last read that found records began."""
        self.read_count = 0
        """How many reads in a row began there."""
        self.nothing_new: dict[bool, Any] = {}
        """Fetch's answer to a reader at the end, by whether it reads committed data only."""
        self._flusher = flusher
        self._clock = clock
        log.on_advanced = self._advanced

    @property
    def high_watermark(self) -> Offset:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        return self.log.last_stable_offset

    def epoch_at(self, offset: Offset) -> Epoch:
        """The leader epoch under which ``offset`` was written, or would be; -1 for no offset."""
        if offset < 0:
            return Epoch(-1)
        below = [epoch for epoch, start in self.log.mark.epochs if start <= offset]
        return below[-1] if below and offset < self.log.end_offset else self.leader_epoch

    def append(self, batch: Batch) -> Offset:
        """Write the batch at the log's end and ask for a flush; fetchers wake when it becomes visible. Returns its
        offset, with which it is stamped."""
        log = self.log
        base_offset = log.append(batch, leader_epoch=self.leader_epoch, now_ms=self._clock.wall_ms())
        self._flusher.mark(log)
        return base_offset

    def append_marker(self, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int = 0) -> Offset:
        """End the producer's transaction in this partition; the marker's offset."""
        marker = control_batch(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock.wall_ms(),
        )
        return self.append(marker)

    def when_acknowledged(self, offset: Offset, callback: Callable[[], None]) -> None:
        """Call once ``offset`` is acknowledged as the topic's ``headrace.flush`` says, which may be now, or once the
        topic is deleted (``removed_at``)."""
        self.log.when_acknowledged(offset, callback)

    def acknowledged(self, offset: Offset) -> asyncio.Future[None]:
        """The same as a future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log.when_acknowledged(offset, lambda: None if future.done() else future.set_result(None))
        return future

    def _advanced(self) -> None:
        """The high watermark has moved. Fetchers come before producers: a reader waits for the record, while the
        acknowledgement only lets the producer forget it."""
        self._notify_watchers()

    def _notify_watchers(self) -> None:
        for watcher in list(self.watchers):
            try:
                watcher.partition_advanced(self)
            except Exception:
                LOG.exception("%s-%d has new records, and a reader that waits for them failed", self.topic, self.index)

    def remove(self) -> None:
        """The topic is deleted. Callbacks that wait for an acknowledgement run, and see ``removed_at``."""
        self.retire()
        if self.fault is None:
            self.removed_at = self.high_watermark
            self.log.release_waiters()

    def retire(self) -> None:
        """This object stands for the partition no longer: fetchers look for the one that does."""
        self.removed = True
        if self.fault is None:
            self.log.is_retired = True
            self.log.on_advanced = None
        self._notify_watchers()


class DamagedPartition(Partition):
    """A partition whose log cannot be served as it is. Whatever needs the log raises ``fault``, and nothing is repaired
    by guesswork. Restoring the file from a copy and restarting brings the partition back; deleting the topic ends it.
    """

    def __init__(self, *, topic: str, index: int, fault: LogError, leader_epoch: Epoch) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.fault: LogError = fault
        self.watchers = {}
        self.dropped_records = 0
        self.refused_batches = 0
        self.removed = False

    def __getattr__(self, name: str) -> Any:
        """Every attribute that a healthy partition has and this one lacks: the log, its clock, its flusher."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.fault
