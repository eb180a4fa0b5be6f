"""What the broker remembers besides records: topics, settings, groups, offsets, transactions.

Everything is a row in a keyed table in memory, and the tables are the fold of a journal on disk. The journal is a
partition log like any other (its batches have checksums, a torn tail is cut, flushes are shared with everybody's), so
there is one recovery to get right and not two. A change is one record: key ``table/key``, value JSON or null. The
changes of one ``put_many`` share one batch: after a crash all of them are there or none.

The journal does not grow for ever. When it is four times as long as the live rows (and longer than
``REWRITE_BYTES_MIN``), every live row is written once more into a new segment, a few at a time between other work. When
the last of them is flushed, everything before the first is removed and a checkpoint frees the files at once. A row that
changes meanwhile is simply written again: the fold takes the last. A crash needs no special care: a journal that begins
anywhere up to the first rewritten row folds to the same tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from headrace.batch import build_pairs_batch
from headrace.errors import HeadraceError
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.ports import Clock
from headrace.record import decode_records
from headrace.vocabulary import Epoch, Offset

__all__ = ["Change", "Encoded", "StateStore"]

Change = tuple[str, str, Any]
"""Table, key, and the row's new value, which may be ``Encoded``: None removes it."""

Pair = tuple[bytes, bytes | None]
"""Key and value of a change, as they stand in the journal."""

REWRITE_BYTES_MIN = 8 << 20
"""A journal shorter than this is never rewritten."""

REWRITE_ROWS_PER_STEP = 500
REWRITE_BYTES_PER_STEP = 128 << 10
"""What one step may encode and write on the loop."""

RECORD_OVERHEAD_BYTES = 12
"""What a row takes in the journal beside its key and value, about."""

LEADER_EPOCH = Epoch(0)
BATCH_DECODED_BYTES_MAX = 256 << 20


class StateStore:
    """Durable keyed tables. Rows are read from ``tables`` freely and changed only through ``put``.

    ``reclaim`` is called when the beginning of the journal is dead and its files should go.
    """

    def __init__(
        self, log: PartitionLog, flusher: Flusher, clock: Clock, *, reclaim: Callable[[], None] = lambda: None
    ) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self.live_bytes = 0
        """About what the live rows take in the journal."""
        self.journal_bytes = 0
        """The journal from its start offset on."""
        self.rewrites = 0
        self.has_lost_changes = False
        """The journal was repaired, or restored from a backup, and lacks changes. Counters must not go on from what is
        left of it."""
        self._row_bytes: dict[tuple[str, str], int] = {}
        self._log = log
        self._flusher = flusher
        self._clock = clock
        self._reclaim = reclaim
        self._rewriting: Iterator[tuple[str, str]] | None = None
        self._pending_rows: list[tuple[str, str]] = []
        self._rewrite_from = log.start_offset
        self._replaced_bytes = 0
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
        pairs = _pairs(changes)
        offset = self._append(pairs)
        for (table, key, value), pair in zip(changes, pairs, strict=True):
            self._fold(table, key, value.row if type(value) is Encoded else value, _bytes(*pair))
        self._rewrite_if_long()
        return offset

    def when_flushed(self, offset: int, callback: Callable[[], None]) -> None:
        """Call once the journal is flushed up to and including ``offset``, which may be now."""
        self._log.when_acknowledged(Offset(offset), callback)

    def _append(self, pairs: Sequence[Pair]) -> Offset:
        now_ms = self._clock.wall_ms()
        batch = build_pairs_batch(pairs, now_ms)
        self._log.append(batch, leader_epoch=LEADER_EPOCH, now_ms=now_ms)
        self.journal_bytes += batch.size
        self._flusher.mark(self._log)
        return batch.last_offset

    def _fold(self, table: str, key: str, value: Any | None, size: int) -> None:
        rows = self.tables.setdefault(table, {})
        self.live_bytes -= self._row_bytes.pop((table, key), 0)
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
            self._row_bytes[table, key] = size
            self.live_bytes += size

    def _load(self) -> None:
        expected = self._log.start_offset
        for batch in self._log.reader.batches(expected):
            self.has_lost_changes |= batch.base_offset > expected
            expected = batch.next_offset
            self.journal_bytes += batch.size
            for record in decode_records(batch, BATCH_DECODED_BYTES_MAX):
                assert record.key is not None
                table, _, key = record.key.decode().partition("/")
                self._fold(
                    table,
                    key,
                    None if record.value is None else json.loads(record.value),
                    _bytes(record.key, record.value),
                )
        self.has_lost_changes |= expected < self._log.end_offset

    # ---- rewriting ----

    def _rewrite_if_long(self) -> None:
        if self._rewriting is None and self.journal_bytes > max(REWRITE_BYTES_MIN, 4 * self.live_bytes):
            self._begin_rewrite()

    def _begin_rewrite(self) -> None:
        """The rewritten rows begin a segment: when they are flushed, all segments before it can go."""
        try:
            self._log.roll()
        except HeadraceError:
            return  # the disk is full; the next change tries again
        self._rewriting = self._all_rows()
        self._rewrite_from = self._log.end_offset
        self._replaced_bytes = self.journal_bytes
        self._clock.call_later(0.0, self._rewrite_some)

    def _all_rows(self) -> Iterator[tuple[str, str]]:
        for table in list(self.tables):
            for key in list(self.tables[table]):
                yield table, key

    def _next_rows(self) -> list[tuple[str, str]]:
        assert self._rewriting is not None
        rows: list[tuple[str, str]] = []
        total = 0
        while len(rows) < REWRITE_ROWS_PER_STEP and total < REWRITE_BYTES_PER_STEP:
            row = next(self._rewriting, None)
            if row is None:
                break
            rows.append(row)
            total += self._row_bytes.get(row, 0)
        return rows

    def _rewrite_some(self) -> None:
        """Write the next rows; one that is gone by now needs none, its removal comes after ``_rewrite_from``."""
        rows = self._pending_rows or self._next_rows()
        if not rows:
            self._log.when_acknowledged(Offset(self._log.end_offset - 1), self._rewritten)
            return
        live = [(table, key, self.tables[table][key]) for table, key in rows if key in self.tables[table]]
        try:
            if live:
                self._append(_pairs(live))
        except HeadraceError:
            self._pending_rows = rows  # the disk is full: the same rows again when it may not be
            self._clock.call_later(1.0, self._rewrite_some)
            return
        self._pending_rows = []
        self._clock.call_later(0.001, self._rewrite_some)

    def _rewritten(self) -> None:
        self._rewriting = None
        self.rewrites += 1
        self.journal_bytes -= self._replaced_bytes
        self._log.advance_start(self._rewrite_from)
        self._reclaim()
        self._rewrite_if_long()  # much may have changed meanwhile


def _bytes(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES


_encode = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: ``json.dumps`` with separators makes an encoder for each row, which takes longer than a small row."""


class Encoded(NamedTuple):
    """A row and its JSON: for rows that are written more than once, many at a time."""

    row: Any
    raw: bytes

    @classmethod
    def of(cls, row: Any) -> Encoded:
        return cls(row, _encode(row).encode())


def _pairs(changes: Iterable[Change]) -> list[Pair]:
    return [(f"{table}/{key}".encode(), _dump(value)) for table, key, value in changes]


def _dump(value: Any | None) -> bytes | None:
    if value is None:
        return None
    return value.raw if type(value) is Encoded else _encode(value).encode()
