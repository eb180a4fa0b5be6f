"""A queue: who gets the next message, and what its policy does to the others.

Messages keep the order in which they were published, within a priority. A message that comes back (its consumer died,
or gave it back) is handed out again before younger ones: it stands at its old place. Which consumer gets it is a matter
of ``rotation.py``.

Time limits are looked at where they matter, at the head: an expired message after one that is not expired leaves when
it gets there. It is never delivered. A message that has just been published is not expired for consumers that take it
in the same turn, whatever its limit: a limit of 0 means "now or never".
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from headrace.broker.queues.journal import QueueJournal
from headrace.broker.queues.lane import Lane, State
from headrace.broker.queues.message import Message
from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.rotation import Consumer, Delivery, Rotation
from headrace.broker.queues.turn import Alarm, Turn
from headrace.log.errors import LogError
from headrace.vocabulary import Offset
from headrace.wire.amqp.properties import summary_of

__all__ = ["DeadLetters", "Place", "Published", "Queue"]

Place = tuple[int, int]
"""The number of a lane, and an offset in it."""

DELIVERIES_PER_TURN = 1_000
"""After this many deliveries of one queue, other work gets its turn of the loop."""

DROPS_PER_TURN = 10_000
EXPIRED_PER_TURN = 500
"""The same for expired messages. After a restart all may have expired, and each becomes a dead letter."""
EXPIRY_LOOK_MS = 3_600_000
"""At the latest after this time, the next message to expire is looked for again."""


class Published(Protocol):
    """Waits until messages are flushed: a group of confirms."""

    def add_waits(self, count: int) -> None: ...

    def one_done(self) -> None: ...


class DeadLetters(Protocol):
    """Takes what a queue does not deliver."""

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None: ...


class Queue:
    """One queue of a virtual host; see the module."""

    def __init__(
        self,
        name: str,
        *,
        arguments: Mapping[str, Any],
        policy: QueuePolicy,
        lanes: Sequence[Lane],
        journal: QueueJournal,
        turn: Turn,
        dead_letters: DeadLetters,
        group: str,
        where: str,
        is_durable: bool,
        is_auto_delete: bool = False,
        owner: object | None = None,
    ) -> None:
        self.name = name
        self.arguments = dict(arguments)
        self.policy = policy
        self.is_durable = is_durable
        self.is_auto_delete = is_auto_delete
        self.owner = owner
        """The connection to which the queue is exclusive."""
        self.group = group
        self.where = where
        """Its name and virtual host, in messages."""
        self.exclusive_consumer: Consumer | None = None
        self.had_consumers = False
        self.is_deleted = False
        self.used_at_ms = turn.now_ms()
        self.ready_bytes = 0
        """Of bodies; only counted where the policy limits it."""
        self._waiting_bytes = 0
        """Those of them that are not appended yet."""
        self._has_returned = False
        """Whether messages have come back since the length was last checked. The excess is then dropped before a
        consumer can take it, as in RabbitMQ."""
        self._lanes = lanes
        self._journal = journal
        self._turn = turn
        self._dead_letters = dead_letters
        self._waiting: list[Message] = []
        self._written: dict[Lane, int] = {}
        """By lane, the last offset written whose flush is not yet waited for: the disk may refuse the rest."""
        self._published: dict[Published, None] = {}
        self._rotation = Rotation(has_single_active=policy.has_single_active_consumer)
        self._delayed: list[tuple[int, Delivery]] = []
        """Messages that wait before they are delivered again, by when that is over; a heap."""
        self._delay = Alarm(turn, self._end_delays)
        self._expiry = Alarm(turn, self.wake)
        self._use = Alarm(turn, self._look_at_use)
        self._remove_unused: Callable[[], None] = lambda: None
        self._expired_left = EXPIRED_PER_TURN
        self._left_to: set[Queue] = set()
        """Queues that got dead letters from this one since its journal was written."""
        self._fresh: dict[int, int] = {}
        """By lane, the offset from which on messages have not been offered to consumers."""

    def recover(self) -> None:
        """Fold the journal of a queue that was there before the start. Raises LogError."""
        self._journal.load(self._turn.now_ms())
        if self.policy.bytes_max is not None:
            self.ready_bytes = sum(
                len(message.body) for lane in self._lanes for _, message in lane.messages(lane.floor, lane.ready)
            )

    # ---- counting ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return sum(lane.ready for lane in self._lanes) + len(self._waiting)

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self._rotation.consumers

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait to be appended."""
        return bool(self._waiting)

    @property
    def unacknowledged(self) -> int:
        return sum(lane.taken for lane in self._lanes)

    def cursors(self, number: int) -> tuple[int, int]:
        """Of a lane: below the first offset everything is gone, below the second everything was handed out."""
        lane = self._lanes[number]
        return lane.floor, lane.cursor

    def state_of(self, number: int, offset: int) -> State:
        """What has become of a message that the log of a lane has."""
        return self._lanes[number].state_of(offset)

    def now_ms(self) -> int:
        return self._turn.now_ms()

    def used(self) -> None:
        """Somebody has declared it, or asked for a message."""
        self.used_at_ms = self._turn.now_ms()

    def when_unused(self, remove: Callable[[], None]) -> None:
        """Call this when nobody has used the queue for as long as its policy says, if it does."""
        if self.policy.expires_ms is not None:
            self._remove_unused = remove
            self._use.set(self.policy.expires_ms)

    def _look_at_use(self) -> None:
        limit_ms = self.policy.expires_ms
        assert limit_ms is not None, "the alarm is set for queues that have a limit"
        left_ms = limit_ms if self.consumers else max(0, self.used_at_ms + limit_ms - self._turn.now_ms())
        if left_ms > 0:
            self._use.set(left_ms)
        else:
            self._remove_unused()

    # ---- publishing -------------------------------------------------------------------------------------------------

    def rejects(self, message: Message) -> bool:
        """Whether the policy refuses one more message."""
        if self.has_room(1, len(message.body)):
            return False
        if self.policy.overflow == "reject-publish-dlx":
            self._dead_letters.dead_letter(self, message, "maxlen")
        return True

    def has_room(self, count: int, body_bytes: int) -> bool:
        """Whether the policy lets so many messages in, of so many bytes together. What consumers take at once does not
        count: this turn hands it out."""
        if self.policy.overflow == "drop-head" or self._fits(self.ready + count, self.ready_bytes + body_bytes):
            return True
        if not self._fits(count, body_bytes) or not self.consumers:
            return False
        left = max(0, self._rotation.room() - (self.ready - len(self._waiting)))
        stay = self._waiting[left:] if left else self._waiting
        return bool(left) and self._fits(len(stay) + count, sum(len(each.body) for each in stay) + body_bytes)

    def _fits(self, count: int, body_bytes: int) -> bool:
        """Whether so many messages and bytes are within the policy's limits."""
        length_max, bytes_max = self.policy.length_max, self.policy.bytes_max
        return (length_max is None or count <= length_max) and (bytes_max is None or body_bytes <= bytes_max)

    @property
    def may_reject(self) -> bool:
        """Whether the policy may refuse a message."""
        return self.policy.overflow != "drop-head"

    def publish(self, message: Message, published: Published | None = None) -> None:
        """Take a message; it is appended with all others of this turn."""
        self.publish_all([message], published)

    def publish_all(self, messages: Sequence[Message], published: Published | None = None) -> None:
        self._waiting += messages
        if self.policy.bytes_max is not None:
            size = sum(len(message.body) for message in messages)
            self.ready_bytes += size
            self._waiting_bytes += size
        if published is not None and published not in self._published:
            self._published[published] = None
            published.add_waits(1)
        self._turn.touch(self)

    def append_waiting(self) -> None:
        """Write what was published. Raises LogError; what is not written then waits."""
        if self._has_returned:
            self._has_returned = False
            self._enforce_length()
        if not self._waiting:
            return
        waiting, self._waiting = self._by_lane(self._waiting), []
        self._waiting_bytes = 0
        for place, (number, messages) in enumerate(waiting):
            lane = self._lanes[number]
            first = lane.end
            self._fresh.setdefault(number, first)
            try:
                lane.append(messages)
            except BaseException:
                self._waiting = messages[lane.end - first :]
                for _, others in waiting[place + 1 :]:
                    self._waiting += others
                if self.policy.bytes_max is not None:
                    self._waiting_bytes = sum(len(message.body) for message in self._waiting)
                raise
            finally:
                if lane.end > first:
                    self._written[lane] = lane.end - 1
        published, self._published = self._published, {}
        written, self._written = self._written, {}
        for each in published:
            each.add_waits(len(written) - 1)
            for lane, offset in written.items():
                lane.log.when_acknowledged(Offset(offset), each.one_done)

    def _by_lane(self, messages: list[Message]) -> list[tuple[int, list[Message]]]:
        if len(self._lanes) == 1:
            return [(0, messages)]
        highest = len(self._lanes) - 1
        lanes: dict[int, list[Message]] = {}
        for message in messages:
            lanes.setdefault(min(summary_of(message.properties).priority, highest), []).append(message)
        return list(lanes.items())

    def _enforce_length(self) -> None:
        """drop-head: what stands at the head goes until it fits, so the oldest of the highest priority, as in RabbitMQ.
        Only what is ready counts. A queue that refuses messages keeps those that come back, also over its limit."""
        if self.may_reject or (self.policy.length_max is None and self.policy.bytes_max is None):
            return
        for _ in range(DROPS_PER_TURN):
            count = sum(lane.ready for lane in self._lanes)
            fits = self._fits(count, self.ready_bytes - self._waiting_bytes)
            place = None if fits else self._first()
            if place is None:
                return
            self._drop(*place, "maxlen")
        self._turn.touch(self)

    # ---- delivering -------------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Hand out ready messages to consumers with credit, some at a time; then apply the limits to what is left."""
        left = 0 if self.is_deleted else DELIVERIES_PER_TURN
        self._expired_left = EXPIRED_PER_TURN
        while left > 0:
            delivered = self._deliver_run(left) or self._deliver_one()
            if not delivered:
                self._keep_what_is_left()
                return
            left -= delivered
        if not self.is_deleted:
            self._turn.touch(self)

    def _keep_what_is_left(self) -> None:
        """No consumer takes more: apply the length limit, and drop what has expired at the head."""
        self._enforce_length()
        if not self._expired_left:  # more have expired, and the messages after them were not offered yet
            return
        self._fresh.clear()
        if self.policy.message_ttl_ms is not None or any(lane.has_expirations for lane in self._lanes):
            self._head()

    def _deliver_run(self, count_max: int) -> int:
        """Hand out consecutive messages, distributed as one by one; returns how many. 0 if messages have come back,
        which go first and differ in more than their bodies, or may have before the broker started. Also 0 if takers
        share a channel: its messages keep the order of the queue."""
        place = self._head()  # drops what has expired, also without a consumer for the next message
        takers = self._rotation.takers()
        if place is None or not takers:
            return 0
        if len(takers) > 1 and len({taker.outlet for taker in takers}) < len(takers):
            return 0
        number, offset = place
        lane = self._lanes[number]
        if self.policy.delivery_limit is not None and offset < lane.delivered_before:
            return 0
        count_max = min(count_max, len(takers) * min(taker.credit() for taker in takers))
        may_expire = self.policy.message_ttl_ms is not None
        fresh = self._fresh.get(number, lane.end)
        offsets, messages = lane.take_run(count_max, self._is_expired, may_expire=may_expire, fresh=fresh)
        if not messages:
            return 0
        if self.policy.bytes_max is not None:
            self.ready_bytes -= sum(len(message.body) for message in messages)
        is_redelivered = offsets[0] < lane.delivered_before
        for place_of_taker, taker in enumerate(takers[: len(messages)]):
            mine = slice(place_of_taker, None, len(takers))
            taker.deliver_run(self, number, offsets[mine], messages[mine], is_redelivered=is_redelivered)
            if taker.no_ack:
                self._settle_all(number, offsets[mine])
        self._rotation.gave(takers, len(messages))
        return len(messages)

    def _deliver_one(self) -> int:
        """Hand out the next message; 0 if there is none, or nobody who takes it."""
        place = self._head()
        consumer = None if place is None else self._rotation.take_next()
        if place is None or consumer is None:
            return 0
        number, offset = place
        message = self._lanes[number].peek(offset)
        consumer.deliver(
            Delivery(self, number, offset, len(message.body)),
            self._counted(message, number, offset),
            is_redelivered=self._take(number, offset, message),
        )
        if consumer.no_ack:
            self._settle(number, offset)
        return 1

    def get(self, *, no_ack: bool) -> tuple[Delivery, Message, bool] | None:
        """The next message for ``basic.get``."""
        self.used()
        with suppress(LogError):  # what the disk does not take waits; the turn says so
            self.append_waiting()
        self.deliver()  # consumers that wait come first
        place = self._head()
        if place is None:
            return None
        number, offset = place
        message = self._lanes[number].peek(offset)
        counted = self._counted(message, number, offset)
        is_redelivered = self._take(number, offset, message)
        if no_ack:
            self._settle(number, offset)
        self._head()  # what has expired after it does not count as ready
        self._turn.touch(self)
        return Delivery(self, number, offset, len(message.body)), counted, is_redelivered

    def _take(self, number: int, offset: int, message: Message) -> bool:
        if self.policy.bytes_max is not None:
            self.ready_bytes -= len(message.body)
        return self._lanes[number].take(offset)

    def _counted(self, message: Message, number: int, offset: int) -> Message:
        """Queues that limit deliveries say how often a message was returned."""
        returns = self._journal.returns(number, offset)
        if not returns:
            return message
        return message.with_properties(headers={**message.headers, "x-delivery-count": returns})

    def _head(self) -> tuple[int, int] | None:
        """The lane and offset of the next message: the highest priority first. Expired ones are dropped on the way;
        if there are very many, the others in the next turn."""
        while (place := self._first()) is not None:
            wait_ms = self._expires_in_ms(*place)
            if wait_ms is None:
                return place
            if wait_ms > 0:
                self._expiry.set(min(wait_ms, EXPIRY_LOOK_MS))  # it will expire although nothing else happens
                return place
            if not self._expired_left:
                self._turn.touch(self)
                return None
            self._expired_left -= 1
            self._drop(*place, "expired")
        return None

    def _first(self) -> tuple[int, int] | None:
        """The message that stands at the head, whether it has expired or not."""
        for number in reversed(range(len(self._lanes))):
            offset = self._lanes[number].head()
            if offset is not None:
                return number, offset
        return None

    def _is_expired(self, message: Message) -> bool:
        return self._left_ms(message) == 0

    def _expires_in_ms(self, number: int, offset: int) -> int | None:
        lane = self._lanes[number]
        message = lane.peek(offset)
        if self.policy.message_ttl_ms is None and not lane.has_expirations:
            return None
        left_ms = self._left_ms(message)
        return 1 if left_ms == 0 and offset >= self._fresh.get(number, lane.end) else left_ms

    def _left_ms(self, message: Message) -> int | None:
        """How long until it expires; None if it does not."""
        limits = [self.policy.message_ttl_ms] if self.policy.message_ttl_ms is not None else []
        expiration = message.summary.expiration
        if expiration is not None:
            limits.append(int(expiration))
        if not limits:
            return None
        return max(0, message.enqueued_ms + min(limits) - self._turn.now_ms())

    def _drop(self, number: int, offset: int, reason: str) -> None:
        """The message is not delivered; it becomes a dead letter if the policy says so."""
        message = self._lanes[number].peek(offset)
        self._take(number, offset, message)
        self._settle(number, offset)
        self._dead_letters.dead_letter(self, message, reason)

    # ---- settling ---------------------------------------------------------------------------------------------------

    def acknowledge_all(self, lane: int, offsets: list[int]) -> None:
        """Messages of one lane that were delivered are done with."""
        if not self.is_deleted:
            self._settle_all(lane, offsets)
            self._turn.touch(self)

    def acknowledge(self, delivery: Delivery) -> None:
        if not self.is_deleted:
            self._settle(delivery.lane, delivery.offset)
            self._turn.touch(self)

    def _settle(self, number: int, offset: int) -> None:
        self._lanes[number].settle(offset)
        self._journal.note_gone(number, offset)

    def _settle_all(self, number: int, offsets: list[int]) -> None:
        offsets.sort()
        self._lanes[number].settle_all(offsets)
        self._journal.note_all_gone(number, offsets)

    def give_back(self, delivery: Delivery, *, is_failure: bool = False) -> None:
        """The message returns to its old place, unless it exceeds the delivery limit. ``is_failure``: its consumer
        ended without giving it back."""
        if self.is_deleted:
            return
        self._turn.touch(self)
        policy = self.policy
        if policy.delivery_limit is not None:
            returns = self._journal.note_returned(delivery.lane, delivery.offset)
            if returns > policy.delivery_limit:
                try:
                    self.reject(delivery, "delivery_limit")
                except LogError:  # it cannot be read, so it stays at its place; the next delivery reports that
                    self._put_back(delivery)
                return
            delay_ms = policy.retry_delay_ms(returns, is_failure=is_failure)
            if delay_ms:
                heapq.heappush(self._delayed, (self._turn.now_ms() + delay_ms, delivery))
                self._delay.set(delay_ms)
                return
        self._put_back(delivery)

    def _put_back(self, delivery: Delivery) -> None:
        if self.policy.bytes_max is not None:
            self.ready_bytes += delivery.size
        self._lanes[delivery.lane].give_back(delivery.offset)
        self._has_returned = True

    def _end_delays(self) -> None:
        """What has waited long enough is ready again. A kill ends all delays."""
        if self.is_deleted:
            return
        now_ms = self._turn.now_ms()
        while self._delayed and self._delayed[0][0] <= now_ms:
            self._put_back(heapq.heappop(self._delayed)[1])
            self._turn.touch(self)
        if self._delayed:
            self._delay.set(self._delayed[0][0] - now_ms)

    def reject(self, delivery: Delivery, reason: str = "rejected") -> None:
        """It is not wanted: it becomes a dead letter."""
        if self.is_deleted:
            return
        if self.policy.dead_letter_exchange is not None:
            message = self._lanes[delivery.lane].peek(delivery.offset)
            self._dead_letters.dead_letter(self, message, reason)
        self.acknowledge(delivery)

    def leaves_to(self, other: Queue) -> None:
        """A dead letter of this queue waits to be appended to another: until then it is not noted as gone here."""
        self._left_to.add(other)

    def write_journal(self) -> bool:
        """False while dead letters wait for the disk: what is gone is not noted, since a kill would lose them. Raises
        LogError."""
        if self.is_deleted:
            return True
        if self._left_to:
            self._left_to = {each for each in self._left_to if each.has_waiting and not each.is_deleted}
        self._journal.write(self._turn.now_ms(), with_gone=not self._left_to)
        return not self._left_to

    def purge(self) -> int:
        """Everything that is ready is gone; how much that was."""
        self.append_waiting()
        count = sum(lane.purge() for lane in self._lanes)
        self.ready_bytes = 0
        if self.policy.bytes_max is not None:  # what is held to be moved stays
            self.ready_bytes = sum(len(lane.peek(offset).body) for lane in self._lanes for offset in lane.held)
        self._journal.forget_returns_of_gone()
        self._journal.snapshot(self._turn.now_ms())
        self.release()
        return count

    @property
    def keeps_what_is_gone(self) -> bool:
        return any(lane.retention.keeps_something for lane in self._lanes)

    def release(self) -> None:
        """Let the logs remove what is gone and need not be kept."""
        for lane in self._lanes:
            lane.release(self._turn.now_ms())

    # ---- moving and restoring ---------------------------------------------------------------------------------------

    @property
    def lanes(self) -> Sequence[Lane]:
        """One per priority."""
        return self._lanes

    def hold(self, places: Sequence[Place]) -> list[Place]:
        """Keep messages that are ready from being handed out; those that are not ready are left out."""
        self.append_waiting()
        return [place for place in places if self._lanes[place[0]].hold(place[1])]

    def let_go(self, places: Sequence[Place]) -> None:
        """They are not moved: they are ready again."""
        if not self.is_deleted:
            for number, offset in places:
                self._lanes[number].let_go(offset)
            self._turn.touch(self)

    def note_moving(self, places: Sequence[Place]) -> None:
        """From now on these may be in another queue too. Raises LogError."""
        for number, lane in enumerate(self._lanes):
            offsets = [offset for each, offset in places if each == number]
            if offsets:
                self._journal.note_moving(number, offsets, self._turn.now_ms())
                for offset in offsets:
                    lane.doubt(offset, offset + 1)

    def settle_held(self, moved: Sequence[tuple[Place, Message]]) -> None:
        """They are in another queue, or not wanted: they are gone from this one."""
        if self.is_deleted:
            return
        for (number, offset), message in moved:
            self._lanes[number].settle_held(offset)
            self._journal.note_gone(number, offset)
            if self.policy.bytes_max is not None:
                self.ready_bytes -= len(message.body)
        self._turn.touch(self)

    def restore(self, number: int, first: int, end: int) -> int:
        """Messages that are gone and still in the log are ready again; how many. Raises LogError."""
        lane = self._lanes[number]
        self._journal.note_restored(number, first, end, self._turn.now_ms())
        restored = lane.restore(first, end)
        if self.policy.bytes_max is not None:
            self.ready_bytes += sum(len(lane.peek(offset).body) for offset in restored)
        self._turn.touch(self)
        return len(restored)

    # ---- consumers --------------------------------------------------------------------------------------------------

    def check_consumer(self, *, no_ack: bool, prefetch: int, arguments: Mapping[str, Any]) -> None:
        """Whether a consumer may begin like this. Raises AmqpError."""

    def add_consumer(
        self, consumer: Consumer, *, is_exclusive: bool = False, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._rotation.add(consumer)
        self.had_consumers = True
        if is_exclusive:
            self.exclusive_consumer = consumer
        self._turn.touch(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        self._rotation.remove(consumer)
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        self.used()
        self._turn.touch(self)

    def wake(self) -> None:
        """A consumer may have credit again."""
        self._turn.touch(self)

    # ---- ending -----------------------------------------------------------------------------------------------------

    def delete(self) -> int:
        """Tell the consumers, and give up the logs; how many messages were ready."""
        count = self.ready
        self.is_deleted = True
        for consumer in list(self.consumers):
            consumer.cancelled()
        self._rotation.clear()
        for alarm in (self._delay, self._expiry, self._use):  # each would keep the queue in memory until it rings
            alarm.cancel()
        self._waiting.clear()
        self._written.clear()
        published, self._published = self._published, {}
        for each in published:  # as if it had been written, and deleted then
            each.one_done()
        for lane in self._lanes:
            lane.forget_window()
            lane.log.is_retired = True
            lane.log.release_waiters()
        return count
