"""The messages of a queue, or those of one priority: a log, and which of its offsets are ready, taken or gone.

Offsets of the log are the places in the queue. At any time

    floor ≤ … ≤ cursor ≤ end

Everything below *floor* is gone: acknowledged, expired or dropped. From *cursor* on nothing was handed out since the
broker started. Between them an offset is *gone* (``_gone``), *back* (``_back``: it was handed out and returned, and is
ready), or *taken* (handed out and not yet acknowledged; the channels know by whom). So the memory of a lane depends on
what is out of order and not on how much it holds.

An administrator may *hold* any message that is ready, to move it elsewhere, and *restore* one that is gone, as long as
the log still has it. A held message is handed out to nobody.

Messages near the cursor are kept as they were appended, up to ``WINDOW_BYTES``; the others are read from the log in
pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from headrace.batch import build_batch
from headrace.broker.queues.message import Message
from headrace.broker.queues.offset_set import OffsetSet
from headrace.broker.queues.retention import Retention
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.reader import checked_batches
from headrace.record import decode_records, iter_records, records_of
from headrace.vocabulary import Epoch, Offset

__all__ = ["Lane", "State"]

WINDOW_BYTES = 256 << 10
READ_BYTES = 256 << 10
DECODED_BYTES_MAX = 512 << 20
BATCH_BYTES = 1 << 20
"""A batch is read and decoded as a whole: large turns become several."""
LEADER_EPOCH = Epoch(0)

State = Literal["ready", "unacknowledged", "moving", "gone"]


class Lane:
    """One log of a queue; see the module."""

    def __init__(self, log: PartitionLog, flusher: Flusher, retention: Retention | None = None) -> None:
        self.log = log
        self.retention = retention or Retention(0, 0)
        self.floor: int = log.start_offset
        self.cursor: int = log.start_offset
        self.delivered_before: int = 0
        """Offsets below were handed out by an earlier run, or may have been: they come with ``redelivered``."""
        self._flusher = flusher
        self._gone = OffsetSet()
        self._back = OffsetSet()
        self._held = OffsetSet()
        self._doubtful = OffsetSet()
        """Being moved to another queue, or may have been when the broker died: such a message comes marked."""
        self._taken = 0
        self._window: dict[int, Message] = {}
        self._window_bytes = 0

    # ---- counting ---------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.log.end_offset

    @property
    def ready(self) -> int:
        return self.end - self.floor - len(self._gone) - self._taken - len(self._held)

    @property
    def taken(self) -> int:
        return self._taken

    # ---- appending --------------------------------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> Offset:
        """Write the messages at the end; the offset of the last. Raises LogError; those before it stay appended."""
        first = 0
        size = 0
        for place, message in enumerate(messages):
            size += message.size
            if size >= BATCH_BYTES:
                self._append(messages[first : place + 1])
                first, size = place + 1, 0
        if first < len(messages):
            self._append(messages[first:])
        return Offset(self.log.end_offset - 1)

    def _append(self, messages: Sequence[Message]) -> None:
        log = self.log
        offset: int = log.end_offset
        batch = build_batch([message.as_record() for message in messages])
        log.append(batch, leader_epoch=LEADER_EPOCH, now_ms=messages[-1].enqueued_ms)
        self._flusher.mark(log)
        if self._window_bytes < WINDOW_BYTES and (offset == self.cursor or offset - 1 in self._window):
            for message in messages:
                self._window[offset] = message
                self._window_bytes += message.size
                offset += 1

    # ---- handing out ------------------------------------------------------------------------------------------------

    def head(self) -> int | None:
        """The offset of the message that is next, None when none is ready."""
        back = self._back.first()
        if back is not None:
            return back
        self.cursor = self._gone.next_missing(self.cursor) if len(self._gone) else self.cursor
        if len(self._held):
            self._pass_held()
        return self.cursor if self.cursor < self.log.end_offset else None

    def _pass_held(self) -> None:
        while self.cursor in self._held:
            self.cursor = self._gone.next_missing(self._held.next_missing(self.cursor))

    def peek(self, offset: int) -> Message:
        """The message at an offset. Raises LogError when it cannot be read."""
        message = self._window.get(offset)
        return self._read(offset) if message is None else message

    def take(self, offset: int) -> bool:
        """The message that ``head`` has given is handed out; whether it may have been before."""
        self._taken += 1
        message = self._window.pop(offset, None)
        if message is not None:
            self._window_bytes -= message.size
        if offset == self.cursor:
            self.cursor += 1
            return offset < self.delivered_before or (bool(self._doubtful) and offset in self._doubtful)
        self._back.discard(offset)
        return True

    def give_back(self, offset: int) -> None:
        """It was not acknowledged: it is ready again, at its old place."""
        self._taken -= 1
        self._back.add(offset)

    def settle(self, offset: int) -> None:
        """A message that was taken is gone for good."""
        self._taken -= 1
        self._add_gone(offset)

    def drop(self, offset: int) -> None:
        """A message that is ready, and that ``head`` has given, is gone for good."""
        self.take(offset)
        self.settle(offset)

    def _add_gone(self, offset: int) -> None:
        if offset != self.floor:
            self._gone.add(offset)
            return
        self.floor += 1
        self._settle_floor()

    def purge(self) -> int:
        """Everything that is ready is gone; how much that was."""
        count = self.ready
        for offset in list(self._back):
            self._back.discard(offset)
            self._add_gone(offset)
        self.head()  # which passes over what is held at the cursor
        first, end = self.cursor, self.end
        if first < end:
            held = [offset for offset in self._held if offset >= first]
            for offset in held:  # each run between two of them is gone; they are not
                self._gone.add_range(first, offset)
                first = offset + 1
            if first == self.floor:
                self.floor = end
                self._gone.discard_below(end)
            else:
                self._gone.add_range(first, end)
                self._settle_floor()
            self.cursor = end
        self._window.clear()
        self._window_bytes = 0
        return count

    def release(self, now_ms: int) -> None:
        """Let the log remove what lies below the floor and need not be kept."""
        log = self.log
        if self.floor > log.start_offset:
            start = self.retention.start_for(self.floor, log.start_offset, log.segments, now_ms)
            log.advance_start(Offset(min(start, log.end_offset)))

    # ---- moving and restoring ---------------------------------------------------------------------------------------

    def hold(self, offset: int) -> bool:
        """Keep a message that is ready from being handed out; False if it is not ready."""
        if self.state_of(offset) != "ready":
            return False
        self._back.discard(offset)
        self._held.add(offset)
        message = self._window.pop(offset, None)
        if message is not None:
            self._window_bytes -= message.size
        return True

    def let_go(self, offset: int) -> None:
        """A message that was held is ready again, at its old place."""
        self._held.discard(offset)
        if offset < self.cursor:
            self._back.add(offset)

    def settle_held(self, offset: int) -> None:
        """A message that was held is gone for good."""
        self._held.discard(offset)
        self._add_gone(offset)

    def doubt(self, first: int, end: int) -> None:
        """From now on these may be in another queue too."""
        self._doubtful.add_range(first, end)

    def doubtful_ranges(self) -> Iterator[tuple[int, int]]:
        return self._doubtful.ranges()

    def restore(self, first: int, end: int) -> list[int]:
        """Messages that are gone and that the log still has are ready again; which."""
        first, end = max(first, self.log.start_offset), min(end, self.end)
        if first < self.floor:  # what lies before the old floor and is not restored stays gone
            self._gone.add_range(first, self.floor)
            self.floor = first
        restored = [offset for offset in range(first, end) if offset in self._gone]
        for offset in restored:
            self._gone.discard(offset)
            if offset < self.cursor:
                self._back.add(offset)
        self._settle_floor()
        return restored

    def state_of(self, offset: int) -> State:
        """What has become of the message at an offset that the log has."""
        if offset < self.floor or offset in self._gone:
            return "gone"
        if offset in self._back or (offset >= self.cursor and offset not in self._held):
            return "ready"
        return "moving" if offset in self._held else "unacknowledged"

    def scan(self, first: int, end: int) -> Iterator[tuple[int, Message]]:
        """One piece of the log from an offset on, also of what is gone. The messages near the cursor stay as they are.
        Raises LogError."""
        for piece in self.log.reader.read(Offset(first), bytes_max=READ_BYTES, offset_max=Offset(end)):
            for batch in checked_batches(piece):
                for record in iter_records(batch, records_of(batch, DECODED_BYTES_MAX)):
                    if first <= record.offset < end:
                        yield record.offset, Message.from_record(record)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _read(self, offset: int) -> Message:
        """Read the piece of the log that holds an offset, and keep what will be next."""
        found: Message | None = None
        log = self.log
        for piece in log.reader.read(Offset(offset), bytes_max=READ_BYTES, offset_max=log.end_offset):
            for batch in checked_batches(piece):
                for record in decode_records(batch, DECODED_BYTES_MAX):
                    if record.offset == offset:
                        found = Message.from_record(record)
                    elif record.offset > offset and self._window_bytes < WINDOW_BYTES:
                        self._keep(record.offset, Message.from_record(record))
        assert found is not None, f"{log.directory}: offset {offset} is below the end and cannot be found"
        return found

    def _keep(self, offset: int, message: Message) -> None:
        if offset < self.cursor or offset in self._window or offset in self._gone:
            return
        if offset not in self._held:
            self._window[offset] = message
            self._window_bytes += message.size

    def messages(self, first: int, count_max: int) -> Iterator[tuple[int, Message]]:
        """Messages that are not gone, from an offset on, for those who only look."""
        offset = max(first, self.floor)
        while count_max and offset < self.end:
            offset = self._gone.next_missing(offset)
            if offset >= self.end:
                return
            yield offset, self.peek(offset)
            offset += 1
            count_max -= 1

    # ---- recovering -------------------------------------------------------------------------------------------------

    def recover(self, gone: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> None:
        """The journal says that these ranges are gone."""
        for first, end in gone:
            if first <= self.floor:
                self.floor = max(self.floor, end)
            else:
                self._gone.add_range(first, end)
        self._settle_floor()

    def forget_beyond_end(self) -> bool:
        """A power failure can take messages and leave what the journal said of them. Other messages will get their
        offsets, so that must be forgotten; whether there was any."""
        end = self.end
        parts = [each.discard_from(end) for each in (self._gone, self._back, self._doubtful)]
        was_ahead = any(parts) or self.floor > end or self.delivered_before > end
        self.floor = min(self.floor, end)
        self.cursor = min(self.cursor, end)
        self.delivered_before = min(self.delivered_before, end)
        return was_ahead

    def is_gone(self, offset: int) -> bool:
        return offset < self.floor or offset in self._gone

    def recover_nothing(self) -> None:
        """A snapshot of the journal begins: what came before it does not count."""
        self.floor = self.cursor = self.log.start_offset
        for each in (self._gone, self._back, self._doubtful):
            each.clear()

    def recover_chunk(self, number: int, data: bytes) -> None:
        self._gone.add_chunk(number, data)

    def _settle_floor(self) -> None:
        self._gone.discard_below(self.floor)
        if len(self._gone):
            self.floor = self._gone.next_missing(self.floor)
            self._gone.discard_below(self.floor)
        if self._doubtful:
            self._doubtful.discard_below(self.floor)
        self.cursor = max(self.cursor, self.floor)

    def gone_chunks(self) -> Iterator[tuple[int, bytes]]:
        """What is gone above the floor; ``recover_chunk`` takes it."""
        return self._gone.chunks()
