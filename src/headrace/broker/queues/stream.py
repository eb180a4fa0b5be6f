"""A stream: a queue that is the log itself (``x-queue-type=stream``).

Nothing is taken out of it. Every consumer reads from an offset of its choice (``x-stream-offset``) at its own pace, and
as many as like may do so. An acknowledgement only makes room for the next message: prefetch is how far a consumer may
be ahead of its acknowledgements. Messages go by age and size (``x-max-age``, ``x-max-length-bytes``), in whole
segments, as with a topic.

Consumers see what is flushed: after a power failure an offset never means another message.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from headrace.broker.queues.lane import MESSAGE_OVERHEAD_BYTES, State
from headrace.broker.queues.message import Message
from headrace.broker.queues.policy import AGE_UNITS_MS, QueuePolicy
from headrace.broker.queues.queue import Place, Queue
from headrace.broker.queues.rotation import Consumer, Delivery
from headrace.log.config import LogConfig
from headrace.record import decode_records
from headrace.vocabulary import Offset
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import Timestamp, type_name

__all__ = ["StreamQueue", "stream_config"]

DELIVERIES_PER_TURN = 1_000
READ_AHEAD_MIN = 64
"""A consumer may read this many messages ahead even when the budget of all consumers is used up."""
DECODED_BYTES_MAX = 256 << 20
_INTERVAL: Final = re.compile(r"(\d{1,9})([YMDhms])")


def stream_config(base: LogConfig, policy: QueuePolicy) -> LogConfig:
    """The log of a stream keeps what its policy says, and removes the rest by itself."""
    return replace(
        base,
        segment_bytes_max=policy.segment_bytes,
        retention_bytes=-1 if policy.bytes_max is None else policy.bytes_max,
        retention_ms=-1 if policy.age_ms_max is None else policy.age_ms_max,
        cleanup_delete=True,
    )


class _Reader:
    """Where a consumer is, and the messages that were read for it."""

    __slots__ = ("consumer", "next", "read")

    def __init__(self, consumer: Consumer, offset: int) -> None:
        self.consumer = consumer
        self.next = offset
        self.read: deque[tuple[int, Message]] = deque()

    @property
    def read_bytes(self) -> int:
        return sum(_held_bytes(message) for _, message in self.read)


class StreamQueue(Queue):
    """See the module."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._lane = self._lanes[0]
        self._readers: dict[Consumer, _Reader] = {}
        self._lane.pass_over()

    def recover(self) -> None:
        """There is no journal: nothing is ever settled."""

    @property
    def ready(self) -> int:
        return self._lane.end - self._lane.log.start_offset + len(self._waiting)

    @property
    def unacknowledged(self) -> int:
        return 0

    def append_waiting(self) -> None:
        if not self._waiting:
            return
        super().append_waiting()
        self._lane.pass_over()
        self._lane.log.when_acknowledged(Offset(self._lane.end - 1), self.wake)

    # ---- consumers --------------------------------------------------------------------------------------------------

    def check_consumer(self, *, no_ack: bool, prefetch: int, arguments: Mapping[str, Any]) -> None:
        if not prefetch:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"consumer prefetch count is not set for '{self.where}'")
        if no_ack:
            raise _not_supported("automatic acknowledgement", self.where)
        self._offset_of(arguments.get("x-stream-offset", "next"))

    def add_consumer(
        self, consumer: Consumer, *, is_exclusive: bool = False, arguments: Mapping[str, Any] | None = None
    ) -> None:
        wanted = (arguments or {}).get("x-stream-offset", "next")
        self._readers[consumer] = _Reader(consumer, self._offset_of(wanted))
        super().add_consumer(consumer, is_exclusive=is_exclusive)

    def remove_consumer(self, consumer: Consumer) -> None:
        self._lane.budget.left += self._readers.pop(consumer).read_bytes
        super().remove_consumer(consumer)

    def delete(self) -> int:
        self._lane.budget.left += sum(reader.read_bytes for reader in self._readers.values())
        self._readers.clear()
        return super().delete()

    def _offset_of(self, wanted: Any) -> int:
        """The offset that ``x-stream-offset`` means now. Raises AmqpError."""
        log = self._lane.log
        start, end = log.start_offset, log.high_watermark
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            return min(max(wanted, start), end)
        if isinstance(wanted, Timestamp):
            return self._offset_at(wanted.seconds * 1000)
        if wanted in ("first", "next"):
            return start if wanted == "first" else end
        if wanted == "last":
            batch = log.reader.batch_holding(Offset(end - 1)) if end > start else None
            return end if batch is None else max(batch.base_offset, start)
        interval = _INTERVAL.fullmatch(wanted) if isinstance(wanted, str) else None
        if interval is None:
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"invalid arg 'x-stream-offset' for {self.where}: a {type_name(wanted)}; expected first, last, next, "
                "an offset, a timestamp or an interval such as 1h",
            )
        return self._offset_at(self.now_ms() - int(interval[1]) * AGE_UNITS_MS[interval[2]])

    def _offset_at(self, time_ms: int) -> int:
        """The first message of that time or later."""
        log = self._lane.log
        look_from: Offset | None = log.start_offset
        while look_from is not None:
            batch, look_from = log.reader.batch_at_or_after(time_ms, look_from)
            if batch is not None:
                late = [each.offset for each in decode_records(batch, DECODED_BYTES_MAX) if each.timestamp >= time_ms]
                if late:
                    return min(late[0], log.high_watermark)
                look_from = Offset(batch.next_offset) if batch.next_offset < log.high_watermark else None
        return log.high_watermark

    # ---- delivering -------------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        is_behind = False
        for reader in list(self._readers.values()):
            for _ in range(DELIVERIES_PER_TURN):
                if not reader.consumer.has_credit() or not self._deliver_next(reader):
                    break
            else:
                is_behind = True
        if is_behind:
            self.wake()

    def _deliver_next(self, reader: _Reader) -> bool:
        """False when there is nothing more."""
        if not reader.read:
            self._read_ahead(reader)
        if not reader.read:
            return False
        offset, message = reader.read.popleft()
        self._lane.budget.left += _held_bytes(message)
        reader.next = offset + 1
        told = message.with_properties(headers={**message.headers, "x-stream-offset": offset})
        reader.consumer.deliver(Delivery(self, 0, offset, len(message.body)), told, is_redelivered=False)
        return True

    def _read_ahead(self, reader: _Reader) -> None:
        """Keep what one read brings, or some of it while all consumers together have read ahead enough."""
        log, budget = self._lane.log, self._lane.budget
        first, end = max(reader.next, log.start_offset), log.high_watermark
        if first < end:
            count_max = None if budget.left > 0 else READ_AHEAD_MIN
            for offset, message in islice(self._lane.scan(first, end), count_max):
                reader.read.append((offset, message))
                budget.left -= _held_bytes(message)

    def get(self, *, no_ack: bool) -> tuple[Delivery, Message, bool] | None:
        raise _not_supported("basic.get", self.where)

    # ---- settling: only room for the next ---------------------------------------------------------------------------

    def acknowledge_all(self, lane: int, offsets: list[int]) -> None:
        self.wake()

    def acknowledge(self, delivery: Delivery) -> None:
        self.wake()

    def give_back(self, delivery: Delivery, *, is_failure: bool = False) -> None:
        """The end of a consumer gives nothing back either."""
        if not is_failure:
            raise _not_supported("basic.nack and basic.reject", self.where)

    def reject(self, delivery: Delivery, reason: str = "rejected") -> None:
        raise _not_supported("basic.nack and basic.reject", self.where)

    def cursors(self, number: int) -> tuple[int, int]:
        """Nothing is gone, and nothing is handed out for good."""
        start = self._lane.log.start_offset
        return start, start

    def state_of(self, number: int, offset: int) -> State:
        return "ready"

    def hold(self, places: Sequence[Place]) -> list[Place]:
        raise _not_supported("moving and acknowledging messages", self.where)

    def restore(self, number: int, first: int, end: int) -> int:
        raise _not_supported("restoring", self.where)

    def write_journal(self) -> bool:
        """There is none."""
        return True

    @property
    def keeps_what_is_gone(self) -> bool:
        """Nothing is gone before its segment is: age and size alone remove it."""
        return False

    def release(self) -> None:
        """The log removes by itself what is too old or too much."""

    def _enforce_length(self) -> None:
        """The log does it, in whole segments."""

    def purge(self) -> int:
        raise _not_supported("queue.purge", self.where)


def _held_bytes(message: Message) -> int:
    return message.size + MESSAGE_OVERHEAD_BYTES


def _not_supported(what: str, where: str) -> AmqpError:
    return AmqpError(ReplyCode.NOT_IMPLEMENTED, f"{what} not supported by stream queues {where}")
