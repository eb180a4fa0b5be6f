"""The markers that end a transaction in its partitions, and the open transactions of recovered logs.

A marker is a control batch after the records of a transaction: readers of committed data learn from it whether to keep
or to skip them, and the partition's last stable offset moves past them. While the disk is full, writing one is tried
again, because the decision has been made and a client may know it. A damaged partition cannot take its marker: it is
owed (``owed_markers``), and the transaction ends without waiting for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.broker.partition import Partition
from headrace.broker.topics import Topics
from headrace.broker.transactions.owed_markers import OwedMarker, has_open_records
from headrace.broker.transactions.states import Transaction
from headrace.errors import HeadraceError
from headrace.log.errors import CorruptLog
from headrace.ports import Clock

__all__ = ["RETRY_S", "MarkerWriter", "OpenTransaction", "open_transactions", "pause"]

RETRY_S = 0.25
MARKERS_PER_TURN = 100
_log = logging.getLogger(__name__)

_WAITS = "the marker of transaction %r in %s-%d waits: %s"
_OWED = (
    "transaction %r has ended except in %s-%d, which is damaged: its marker is written there when the files are "
    "restored and the broker starts again. %s"
)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Records without a marker, as the log of a partition knows them."""

    partition: Partition
    producer_id: int
    producer_epoch: int


def open_transactions(topics: Topics, *, rows_are_lost: bool) -> Iterator[OpenTransaction]:
    """Every transaction without a marker that no row may stand for.

    What lies below a partition's recovery point was flushed together with the whole data directory, and so with the
    rows that were written before it. So partitions that were closed in good order are skipped, unless the journal was
    repaired and has lost rows: then any transaction may be without one, and would hold back readers of committed data
    for ever.
    """
    for topic in topics.all():
        for partition in topic.served:
            if rows_are_lost or partition.log.recovery.scanned_bytes:
                try:
                    yield from _open_in(partition)
                except HeadraceError as error:
                    _log.error("%s-%d: open transactions cannot be looked for: %s", topic.name, partition.index, error)


def _open_in(partition: Partition) -> Iterator[OpenTransaction]:
    producers = partition.log.producers
    for producer_id in producers.open_transactions():
        summary = producers.summary(producer_id)
        if summary is not None:
            yield OpenTransaction(partition, producer_id, summary.producer_epoch)


async def pause(clock: Clock, delay_s: float) -> None:
    """Sleep by the broker's clock."""
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(delay_s, lambda: None if woken.done() else woken.set_result(None))
    try:
        await woken
    finally:
        timer.cancel()


class MarkerWriter:
    """Writes the markers of decided transactions."""

    def __init__(self, clock: Clock, topics: Topics) -> None:
        self._clock = clock
        self._topics = topics

    async def write(
        self, decided: Transaction, *, only_where_open: bool, on_trouble: Callable[[], None]
    ) -> list[OwedMarker]:
        """Return when every healthy partition of the transaction has its marker, flushed; what damaged ones are owed.

        ``on_trouble`` is called when this may take long. ``only_where_open`` is for a decision found after a restart:
        some of its markers may be there, and after one of them the producer's next transaction may have begun, with a
        higher epoch.
        """
        left = sorted(decided.partitions)
        flushes: list[asyncio.Future[None]] = []
        owed: list[OwedMarker] = []
        while True:
            refused = []
            for number, where in enumerate(left, 1):
                if number % MARKERS_PER_TURN == 0:
                    await asyncio.sleep(0)
                try:
                    flushes += self._write_one(where, decided, only_where_open)
                except HeadraceError as error:
                    if self._is_damaged(where, error):
                        owed.append(OwedMarker.of(decided, *where))
                        _log.error(_OWED, decided.transactional_id, *where, error)
                    else:
                        refused.append(where)
                        _log.warning(_WAITS, decided.transactional_id, *where, error)
            left = refused
            if not left:
                break
            on_trouble()
            await pause(self._clock, RETRY_S)
        for flushed in flushes:
            await flushed
        return owed

    def _write_one(
        self, where: tuple[str, int], decided: Transaction, only_where_open: bool
    ) -> list[asyncio.Future[None]]:
        """Write one marker; its flush to wait for. A partition that was deleted meanwhile needs none."""
        partition = self._find(where)
        if partition is None:
            return []
        if only_where_open and not has_open_records(partition, decided.producer_id, decided.data_epoch):
            return []
        offset = partition.append_marker(decided.producer_id, decided.producer_epoch, decided.commits)
        return [partition.acknowledged(offset)]

    def _find(self, where: tuple[str, int]) -> Partition | None:
        topic = self._topics.get(where[0])
        return topic.partition(where[1]) if topic is not None else None

    def _is_damaged(self, where: tuple[str, int], error: HeadraceError) -> bool:
        partition = self._find(where)
        return isinstance(error, CorruptLog) or (partition is not None and partition.fault is not None)

    async def abort(self, stray: OpenTransaction) -> None:
        """Abort a transaction that belongs to no transactional id."""
        while not stray.partition.removed:
            try:
                stray.partition.append_marker(stray.producer_id, stray.producer_epoch, commit=False)
                return
            except CorruptLog as error:
                _log.error("a stray transaction of producer %d stays open: %s", stray.producer_id, error)
                return
            except HeadraceError as error:
                _log.warning("cannot abort a stray transaction of producer %d yet: %s", stray.producer_id, error)
                await pause(self._clock, RETRY_S)
