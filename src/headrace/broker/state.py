"""What the broker remembers besides records: topics, settings, groups, offsets, transactions.

Everything is a row in a keyed table in memory, and the tables are the fold of a journal on disk. The journal is a
partition log like any other (its batches have checksums, a torn tail is cut, flushes are shared with everybody's), so
there is one recovery to get right and not two. A change is one record: key ``table/key``, value JSON or null. The
changes of one ``put_many`` share one batch: after a crash all of them are there or none.

The journal does not grow for ever. When it is much longer than what it says, every live row is written once more at
its end, a few hundred at a time between other work; when the last of them is flushed, everything before the first is
removed. A row that changes meanwhile is simply written again: the fold takes the last. There is no point at which a
crash needs special care: a journal that begins anywhere up to the first rewritten row folds to the same tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from headrace.batch import build_batch
from headrace.errors import HeadraceError
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.ports import Clock
from headrace.record import Record, decode_records
from headrace.vocabulary import Epoch, Offset

__all__ = ["StateStore"]

Change = tuple[str, str, Any]

REWRITE_BYTES_MIN = 8 << 20
"""A journal shorter than this is never rewritten."""

REWRITE_ROWS_PER_STEP = 500
LEADER_EPOCH = Epoch(0)
BATCH_DECODED_BYTES_MAX = 256 << 20


class StateStore:
    """Durable keyed tables. Rows are read from ``tables`` freely and changed only through ``put``."""

    def __init__(self, log: PartitionLog, flusher: Flusher, clock: Clock) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self._log = log
        self._flusher = flusher
        self._clock = clock
        self._rewriting: Iterator[tuple[str, str]] | None = None
        self._pending_rows: list[tuple[str, str]] = []
        self._rewrite_from = log.start_offset
        self._load()

    def table(self, name: str) -> dict[str, Any]:
        return self.tables.setdefault(name, {})

    @property
    def start_offset(self) -> Offset:
        return self._log.start_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of the journal on disk."""
        return self._log.size_bytes

    @property
    def rewriting(self) -> bool:
        return self._rewriting is not None

    @property
    def end_offset(self) -> Offset:
        return self._log.end_offset

    def put(self, table: str, key: str, value: Any | None) -> Offset:
        """Set or (None) remove one row; the journal offset to wait for."""
        return self.put_many([(table, key, value)])

    def put_many(self, changes: Sequence[Change]) -> Offset:
        """Make several changes, all or none of which survive a crash. Raises, changing nothing, if the disk is full."""
        offset = self._append(changes)
        for change in changes:
            self._fold(*change)
        if self._rewriting is None and self._log.size_bytes > max(REWRITE_BYTES_MIN, 4 * self._live_estimate()):
            self._begin_rewrite()
        return offset

    def when_flushed(self, offset: int, callback: Callable[[], None]) -> None:
        """Call once the journal is flushed up to and including ``offset``, which may be now."""
        self._log.when_acknowledged(Offset(offset), callback)

    def _append(self, changes: Sequence[Change]) -> Offset:
        now_ms = self._clock.wall_ms()
        records = [
            Record(key=f"{table}/{key}".encode(), value=_dump(value), timestamp=now_ms) for table, key, value in changes
        ]
        result = self._log.append([build_batch(records)], leader_epoch=LEADER_EPOCH, now_ms=now_ms)
        self._flusher.mark(self._log)
        return result.last_offset

    def _fold(self, table: str, key: str, value: Any | None) -> None:
        rows = self.tables.setdefault(table, {})
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value

    def _load(self) -> None:
        for batch in self._log.reader.batches(self._log.start_offset):
            for record in decode_records(batch, BATCH_DECODED_BYTES_MAX):
                assert record.key is not None
                table, _, key = record.key.decode().partition("/")
                self._fold(table, key, None if record.value is None else json.loads(record.value))

    # ---- rewriting ----

    def _live_estimate(self) -> int:
        """Bytes the live rows would take, guessed from a sample: it only decides when rewriting is worth it."""
        total = 0
        for table, rows in self.tables.items():
            sample = [len(table) + len(key) + len(_dump(rows[key]) or b"") for key in islice(rows, 20)]
            if sample:
                total += len(rows) * (sum(sample) // len(sample) + 20)
        return total

    def _begin_rewrite(self) -> None:
        self._rewriting = iter([(table, key) for table, found in self.tables.items() for key in found])
        self._rewrite_from = self._log.end_offset
        self._clock.call_later(0.0, self._rewrite_some)

    def _rewrite_some(self) -> None:
        """Write the next rows; one that is gone by now needs none, its removal stands behind ``_rewrite_from``."""
        assert self._rewriting is not None
        rows = self._pending_rows or list(islice(self._rewriting, REWRITE_ROWS_PER_STEP))
        if rows:
            changes = [
                change
                for change in ((table, key, self.tables[table].get(key)) for table, key in rows)
                if change[2] is not None
            ]
            try:
                if changes:
                    self._append(changes)
            except HeadraceError:
                self._pending_rows = rows  # the disk is full: the same rows again when it may not be
                self._clock.call_later(1.0, self._rewrite_some)
                return
            self._pending_rows = []
            self._clock.call_later(0.001, self._rewrite_some)
            return
        self._rewriting = None
        start = self._rewrite_from
        self._log.when_acknowledged(Offset(self._log.end_offset - 1), lambda: self._log.advance_start(start))


def _dump(value: Any | None) -> bytes | None:
    return None if value is None else json.dumps(value, separators=(",", ":")).encode()
