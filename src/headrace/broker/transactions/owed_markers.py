"""Markers that damaged partitions could not take.

A transaction ends although one of its partitions is damaged: its id and its healthy partitions do not wait for a
repair. The marker that the damaged partition lacks becomes a row of the state table ``owed_markers``, in the change
that completes the transaction. When a start finds the partition whole again (restored from a copy), the marker
is written before anybody can read or write there, and the row is removed when the marker is flushed. Without the row,
the records would look like part of the producer's next transaction. Deleting the topic removes the row as well.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any

from headrace.broker.partition import Partition
from headrace.broker.state import StateStore
from headrace.broker.topics import Topics
from headrace.broker.transactions.states import Transaction
from headrace.errors import HeadraceError

__all__ = ["OWED_MARKERS_TABLE", "OwedMarker", "OwedMarkers", "has_open_records"]

OWED_MARKERS_TABLE = "owed_markers"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedMarker:
    """One marker, and the partition that it belongs to."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    data_epoch: int
    """The epoch of the transaction's records: what carries a later one belongs to a later transaction."""
    commits: bool

    @classmethod
    def of(cls, decided: Transaction, topic: str, partition: int) -> OwedMarker:
        return cls(
            topic=topic,
            partition=partition,
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            data_epoch=decided.data_epoch,
            commits=decided.commits,
        )

    @property
    def row(self) -> tuple[str, str, Any]:
        return OWED_MARKERS_TABLE, self.key, asdict(self)

    @property
    def key(self) -> str:
        return f"{self.topic}:{self.partition}:{self.producer_id}"


class OwedMarkers:
    """Writes owed markers once their partitions are whole again."""

    def __init__(self, state: StateStore, topics: Topics) -> None:
        self._state = state
        self._topics = topics

    def write_where_restored(self) -> None:
        """To be called at a start, when the logs are open and nobody is served yet."""
        for row in list(self._state.table(OWED_MARKERS_TABLE).values()):
            owed = OwedMarker(**row)
            topic = self._topics.get(owed.topic)
            partition = topic.partition(owed.partition) if topic is not None else None
            if partition is None:
                self._forget(owed)
            elif partition.fault is not None:
                _log.error("%s-%d is still damaged, and a transaction's marker is owed to it", *_where(owed))
            else:
                self._write(owed, partition)

    def covers(self, partition: Partition, producer_id: int) -> bool:
        """Whether a transaction that a log holds open is one whose marker is owed."""
        return f"{partition.topic}:{partition.index}:{producer_id}" in self._state.table(OWED_MARKERS_TABLE)

    def _write(self, owed: OwedMarker, partition: Partition) -> None:
        if not has_open_records(partition, owed.producer_id, owed.data_epoch):
            self._forget(owed)
            return
        try:
            offset = partition.append_marker(owed.producer_id, owed.producer_epoch, owed.commits)
        except HeadraceError as error:
            _log.error("the marker owed to %s-%d waits for the next start: %s", *_where(owed), error)
            return
        _log.warning("%s-%d was restored: the marker owed to it is written", *_where(owed))
        partition.acknowledged(offset).add_done_callback(lambda _: self._forget(owed))

    def _forget(self, owed: OwedMarker) -> None:
        try:
            self._state.put(OWED_MARKERS_TABLE, owed.key, None)
        except HeadraceError as error:
            _log.warning("the row of a marker to %s-%d is removed at the next start: %s", *_where(owed), error)


def has_open_records(partition: Partition, producer_id: int, epoch_max: int) -> bool:
    """Whether the log holds a transaction of the producer without a marker, of this epoch or an earlier one."""
    summary = partition.log.producers.summary(producer_id)
    return summary is not None and summary.transaction_start_offset >= 0 and summary.producer_epoch <= epoch_max


def _where(owed: OwedMarker) -> tuple[str, int]:
    return owed.topic, owed.partition
