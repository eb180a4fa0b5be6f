"""What has become of a queue's messages: a second log beside them.

A record is one turn's changes, entries of 18 bytes:

    'g' lane first end      the offsets [first, end) are gone: acknowledged, expired or dropped
    'd' lane cursor 0       offsets below the cursor were handed out
    'r' lane offset count   the message has come back so often, in a queue that counts that
    'm' lane first end      they are being moved to another queue, and may be there if they are still here
    'u' lane first end      those of them that were gone are ready again

or a part of a snapshot, which takes the place of everything that the records before it said:

    'f' lane floor cursor   everything below the floor is gone
    'b' lane number bits    a chunk of an ``OffsetSet``: what is gone above the floor
    'r' lane offset count   as above

Folding the journal from its start gives the lanes as they were. It is written before a consumer sees a message and when
one has acknowledged it, once per turn of the loop, and synced at intervals: what a killed process wrote is there. After
a power loss the acknowledgements of the last second may be missing, and those messages come again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headrace.batch import build_batch
from headrace.broker.queues.lane import Lane, ranges_of
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.record import Record, decode_records
from headrace.vocabulary import Epoch

__all__ = ["QueueJournal"]

SNAPSHOT_BYTES_MIN = 1 << 20
DECODED_BYTES_MAX = 256 << 20
LEADER_EPOCH = Epoch(0)
_ENTRY = struct.Struct(">cBQQ")
_CHUNK = struct.Struct(">cBQ")


class QueueJournal:
    """Writes and folds the journal of one queue."""

    def __init__(self, log: PartitionLog, flusher: Flusher, lanes: Sequence[Lane]) -> None:
        self._log = log
        self._flusher = flusher
        self._lanes = lanes
        self._gone: list[list[int]] = [[] for _ in lanes]
        self._returns: dict[tuple[int, int], int] = {}
        """By lane and offset; of messages that are not gone."""
        self._returned: dict[tuple[int, int], None] = {}
        self._written_cursors = [lane.cursor for lane in lanes]
        self._bytes = 0
        self._snapshot_bytes = 0

    def load(self, now_ms: int) -> None:
        """Fold the journal. If it speaks of messages that a power failure took, a new snapshot without them is written;
        recovery syncs it before the broker serves anybody."""
        gone: list[list[tuple[int, int]]] = [[] for _ in self._lanes]
        for batch in self._log.reader.batches(self._log.start_offset):
            self._bytes += batch.size
            for record in decode_records(batch, DECODED_BYTES_MAX):
                self._fold(record.value or b"", gone)
        for lane, ranges in zip(self._lanes, gone, strict=True):
            lane.recover(ranges)
        was_ahead = [lane.forget_beyond_end() for lane in self._lanes]
        self._returns = {
            (number, offset): count
            for (number, offset), count in self._returns.items()
            if not self._lanes[number].is_gone(offset) and offset < self._lanes[number].end
        }
        self._written_cursors = [lane.delivered_before for lane in self._lanes]
        if any(was_ahead):
            self.snapshot(now_ms)

    def _fold(self, value: bytes, gone: list[list[tuple[int, int]]]) -> None:
        if value[:1] == b"b":
            _, number_of_lane, number = _CHUNK.unpack_from(value)
            self._lanes[number_of_lane].recover_chunk(number, value[_CHUNK.size :])
            return
        for kind, number_of_lane, first, second in _ENTRY.iter_unpack(value):
            lane = self._lanes[number_of_lane]
            if kind == b"g":
                gone[number_of_lane].append((first, second))
            elif kind == b"d":
                lane.delivered_before = first
            elif kind == b"r":
                self._returns[number_of_lane, first] = second
            elif kind == b"m":
                lane.doubt(first, second)
            elif kind == b"u":
                lane.recover(gone[number_of_lane])
                gone[number_of_lane].clear()
                lane.restore(first, second)
            else:
                lane.recover_nothing()
                gone[number_of_lane] = [(0, first)]
                lane.delivered_before = second
                self._returns = {place: each for place, each in self._returns.items() if place[0] != number_of_lane}

    def note_gone(self, lane: int, offset: int) -> None:
        """For the next ``write``."""
        self._gone[lane].append(offset)
        if self._returns:
            self._returns.pop((lane, offset), None)

    def note_returned(self, lane: int, offset: int) -> int:
        """The same, for a message that has come back once more; how often that is now."""
        place = (lane, offset)
        self._returned[place] = None
        count = self._returns[place] = self._returns.get(place, 0) + 1
        return count

    def returns(self, lane: int, offset: int) -> int:
        """How often a message has come back."""
        return self._returns.get((lane, offset), 0) if self._returns else 0

    def note_moving(self, lane: int, offsets: list[int], now_ms: int) -> None:
        """Written before the other queue has them. Raises LogError."""
        self._write_ranges(b"m", lane, ranges_of(sorted(offsets)), now_ms)

    def note_restored(self, lane: int, first: int, end: int, now_ms: int) -> None:
        """Written before they are ready. Raises LogError."""
        self.write(now_ms)  # what is gone and not yet written was gone before this
        self._write_ranges(b"u", lane, [(first, end)], now_ms)

    def _write_ranges(self, kind: bytes, lane: int, ranges: list[tuple[int, int]], now_ms: int) -> None:
        entries = [_ENTRY.pack(kind, lane, first, end) for first, end in ranges]
        self._append([Record(None, b"".join(entries), now_ms)], now_ms)

    def forget_returns_of_gone(self) -> None:
        """Many are gone at once, which a snapshot is going to say."""
        self._returns = {
            place: count for place, count in self._returns.items() if not self._lanes[place[0]].is_gone(place[1])
        }

    def note_all_gone(self, lane: int, offsets: list[int]) -> None:
        """The same, for some at once."""
        self._gone[lane] += offsets
        if self._returns:
            for offset in offsets:
                self._returns.pop((lane, offset), None)

    def write(self, now_ms: int, *, with_gone: bool = True) -> None:
        """Write what has changed since the last time, or all but what is gone. Raises LogError; then it is kept for the
        next."""
        entries = []
        for number, lane in enumerate(self._lanes):
            if with_gone and self._gone[number]:
                ranges = ranges_of(sorted(self._gone[number]))
                entries += [_ENTRY.pack(b"g", number, first, end) for first, end in ranges]
            if lane.cursor > self._written_cursors[number]:
                entries.append(_ENTRY.pack(b"d", number, lane.cursor, 0))
        entries += [self._return_entry(*place) for place in self._returned if place in self._returns]
        if not entries:
            return
        self._append([Record(None, b"".join(entries), now_ms)], now_ms)
        self._returned.clear()
        for number, lane in enumerate(self._lanes):
            self._written_cursors[number] = max(lane.cursor, self._written_cursors[number])
        if not with_gone:
            return
        for gone, lane in zip(self._gone, self._lanes, strict=True):
            gone.clear()
            lane.release(now_ms)
        if self._bytes > max(SNAPSHOT_BYTES_MIN, 4 * self._snapshot_bytes):
            self.snapshot(now_ms)

    def snapshot(self, now_ms: int) -> None:
        """Say everything once more, in one batch, and let go of what was said before."""
        records = []
        for number, lane in enumerate(self._lanes):
            cursor = max(lane.cursor, self._written_cursors[number])
            records.append(Record(None, _ENTRY.pack(b"f", number, lane.floor, cursor), now_ms))
            records += [
                Record(None, _CHUNK.pack(b"b", number, chunk) + data, now_ms) for chunk, data in lane.gone_chunks()
            ]
            records += [
                Record(None, _ENTRY.pack(b"m", number, first, end), now_ms) for first, end in lane.doubtful_ranges()
            ]
        if self._returns:
            records.append(Record(None, b"".join(self._return_entry(*place) for place in self._returns), now_ms))
        self._log.roll()
        first = self._log.end_offset
        self._bytes = 0
        self._append(records, now_ms)
        self._snapshot_bytes = self._bytes
        self._log.advance_start(first)

    def _return_entry(self, lane: int, offset: int) -> bytes:
        return _ENTRY.pack(b"r", lane, offset, self._returns[lane, offset])

    def _append(self, records: list[Record], now_ms: int) -> None:
        batch = build_batch(records)
        self._log.append(batch, leader_epoch=LEADER_EPOCH, now_ms=now_ms)
        self._bytes += batch.size
        self._flusher.mark(self._log)
