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

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from headrace.broker.queues.encoding import batch_of, messages_of
from headrace.broker.queues.message import Message
from headrace.broker.queues.offset_set import OffsetSet
from headrace.broker.queues.retention import Retention
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.reader import checked_batches
from headrace.vocabulary import Epoch, Offset

__all__ = ["MESSAGE_OVERHEAD_BYTES", "Lane", "State", "WindowBudget", "ranges_of"]

WINDOW_BYTES = 1 << 20
WINDOWS_BYTES = 32 << 20
"""Of all lanes together: above it, what is published is read from the log when its turn comes."""
MESSAGE_OVERHEAD_BYTES = 250
"""What a message takes in memory besides its bytes."""
READ_BYTES = 256 << 10
BATCH_BYTES = 256 << 10
"""A batch is read and decoded as a whole: large turns become several."""
LEADER_EPOCH = Epoch(0)

State = Literal["ready", "unacknowledged", "moving", "gone"]


class WindowBudget:
    """How much the windows of all lanes may still hold."""

    def __init__(self, bytes_max: int = WINDOWS_BYTES) -> None:
        self.left = bytes_max


class Lane:
    """One log of a queue; see the module."""

    def __init__(
        self,
        log: PartitionLog,
        flusher: Flusher,
        retention: Retention | None = None,
        budget: WindowBudget | None = None,
    ) -> None:
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
        self.budget = budget or WindowBudget()
        self._window_bytes = 0
        self._recent: dict[int, Message] = {}
        """The batch that was read last for messages that have come back."""
        self.has_expirations = False
        """Whether a message with its own time limit was seen since the start."""

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
        log.append(batch_of(messages), leader_epoch=LEADER_EPOCH, now_ms=messages[-1].enqueued_ms)
        self._flusher.mark(log)
        has_room = self._window_bytes < WINDOW_BYTES and self.budget.left > 0
        if has_room and (offset == self.cursor or offset - 1 in self._window):
            self._keep(offset, messages)

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
        message = self._window.get(offset) or self._recent.get(offset)
        if message is None:
            is_next = offset == self.cursor and self.budget.left > 0
            message = self._read_ahead(offset) if is_next else self._read_one(offset)
        return message

    def take(self, offset: int) -> bool:
        """The message that ``head`` has given is handed out; whether it may have been before."""
        self._taken += 1
        message = self._window.pop(offset, None)
        if message is not None:
            self._count(-message.size - MESSAGE_OVERHEAD_BYTES)
        if offset == self.cursor:
            self.cursor += 1
            return offset < self.delivered_before or (bool(self._doubtful) and offset in self._doubtful)
        self._back.discard(offset)
        if not self._back:
            self._recent = {}
        return True

    def take_run(
        self, count_max: int, is_expired: Callable[[Message], bool], *, may_expire: bool, fresh: int
    ) -> tuple[list[int], list[Message]]:
        """Hand out messages in memory from the cursor on, up to one that has expired; returns their offsets and the
        messages. Either all were handed out before or none. Returns nothing if some have come back, which go first, or
        if it is not known which were handed out before. Without ``may_expire`` only messages with their own time limit
        expire; none does from ``fresh`` on."""
        if not count_max or self._back or self._doubtful or self.head() != self.cursor:
            return [], []
        offset = self.cursor
        if offset not in self._window:
            self._read_ahead(offset)
        may_expire = may_expire or self.has_expirations  # reading may have found one
        end = self.delivered_before if offset < self.delivered_before else self.end
        window, gone = self._window, self._gone
        offsets: list[int] = []
        run: list[Message] = []
        while offset < end and len(run) < count_max:
            message = window.get(offset)
            if message is None:
                if offset in gone:
                    offset += 1
                    continue
                break
            if may_expire and offset < fresh and is_expired(message):
                break
            del window[offset]
            offsets.append(offset)
            run.append(message)
            offset += 1
        self._count(-sum([message.size for message in run]) - MESSAGE_OVERHEAD_BYTES * len(run))
        self._taken += len(run)
        self.cursor = offset
        if self.budget.left < 0:  # what was read and not taken is read again when its turn comes
            self.forget_window()
        return offsets, run

    def give_back(self, offset: int) -> None:
        """It was not acknowledged: it is ready again, at its old place."""
        self._taken -= 1
        self._back.add(offset)

    def settle(self, offset: int) -> None:
        """A message that was taken is gone for good."""
        self._taken -= 1
        self._add_gone(offset)

    def settle_all(self, offsets: list[int]) -> None:
        """Messages that were taken are gone for good; ``offsets`` ascend."""
        self._taken -= len(offsets)
        floor = self.floor
        if offsets[0] == floor and offsets[-1] - floor == len(offsets) - 1:
            self.floor = offsets[-1] + 1
        else:
            for first, end in ranges_of(offsets):
                self._gone.add_range(first, end)
            if offsets[0] != floor:
                return
        self._settle_floor()

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
        self._count(-self._window_bytes)
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
            self._count(-message.size - MESSAGE_OVERHEAD_BYTES)
        return True

    @property
    def held(self) -> Iterator[int]:
        return iter(self._held)

    def let_go(self, offset: int) -> None:
        """A message that was held is ready again, at its old place."""
        self._held.discard(offset)
        if offset < self.cursor:
            self._back.add(offset)

    def settle_held(self, offset: int) -> None:
        """A message that was held is gone for good."""
        self._held.discard(offset)
        if self._doubtful:
            self._doubtful.discard(offset)
        self._add_gone(offset)

    def doubt(self, first: int, end: int) -> None:
        """From now on these may be in another queue too."""
        self._doubtful.add_range(first, end)

    def is_doubtful(self, offset: int) -> bool:
        """Whether a move of it was cut off."""
        return offset in self._doubtful

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
                for offset, message in messages_of(batch):
                    if first <= offset < end:
                        yield offset, message

    def pass_over(self) -> None:
        """Nobody takes messages out: this only appends, and others read the log."""
        self.floor = self.cursor = self.end
        self._window.clear()
        self._count(-self._window_bytes)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _read_ahead(self, offset: int) -> Message:
        """Read the piece of the log that the cursor has come to, and keep it. Nothing is read twice: the window ends
        where a batch does."""
        log = self.log
        found: list[Message] = []
        for piece in log.reader.read(Offset(offset), bytes_max=READ_BYTES, offset_max=log.end_offset):
            for batch in checked_batches(piece):
                found += [message for place, message in messages_of(batch) if place >= offset]
        assert found, f"{log.directory}: offset {offset} is below the end and cannot be found"
        self._keep(offset, found)
        return found[0]

    def _read_one(self, offset: int) -> Message:
        batch = self.log.reader.batch_holding(Offset(offset))
        found = {} if batch is None else dict(messages_of(batch))
        assert offset in found, f"{self.log.directory}: offset {offset} cannot be found"
        self._recent = found if self.budget.left > 0 else {offset: found[offset]}
        self.has_expirations |= found[offset].summary.expiration is not None
        return found[offset]

    def _keep(self, offset: int, messages: Sequence[Message]) -> None:
        """Put messages that follow each other into the window, but for those that are gone or held."""
        window, gone, held = self._window, self._gone, self._held
        properties = None
        added = 0
        for message in messages:
            if message.properties is not properties:
                properties = message.properties
                self.has_expirations |= message.summary.expiration is not None
            if offset not in window and not (gone and offset in gone) and not (held and offset in held):
                window[offset] = message
                added += message.size + MESSAGE_OVERHEAD_BYTES
            offset += 1
        self._count(added)

    def _count(self, added: int) -> None:
        self._window_bytes += added
        self.budget.left -= added

    def forget_window(self) -> None:
        """Nobody will take what is near the cursor, or not soon."""
        self._window.clear()
        self._count(-self._window_bytes)

    def messages(self, first: int, count_max: int) -> Iterator[tuple[int, Message]]:
        """Messages that are not gone, from an offset on, for those who only look. Raises LogError."""
        offset, end = max(first, self.floor), self.end
        while offset < end:
            first = offset
            for at, message in self.scan(first, end):
                offset = at + 1
                if at not in self._gone:
                    if not count_max:
                        return
                    yield at, message
                    count_max -= 1
            assert offset > first, f"{self.log.directory}: offset {first} is below the end and cannot be found"

    # ---- recovering -------------------------------------------------------------------------------------------------

    def recover(self, gone: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> None:
        """The journal says that these ranges are gone, also those that were restored before."""
        for first, end in gone:
            self._back.discard_range(first, end)
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


def ranges_of(offsets: list[int]) -> list[tuple[int, int]]:
    """[first, end) of each run of offsets that ascend."""
    found = []
    first = end = offsets[0]
    for offset in offsets:
        if offset != end:
            found.append((first, end))
            first = offset
        end = offset + 1
    found.append((first, end))
    return found
