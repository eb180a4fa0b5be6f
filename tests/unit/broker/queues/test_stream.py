"""Streams: where a consumer begins, what it sees, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.broker.queues.journal import QueueJournal
from headrace.broker.queues.lane import Lane
from headrace.broker.queues.message import Message
from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.retention import Retention
from headrace.broker.queues.rotation import Delivery
from headrace.broker.queues.stream import READ_AHEAD_MIN, StreamQueue, stream_config
from headrace.broker.queues.turn import Turn
from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog
from headrace.log.retention import advance_by_retention
from headrace.testing.clock import VirtualClock
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.errors import AmqpError
from headrace.wire.amqp.properties import NO_PROPERTIES
from headrace.wire.amqp.tables import Timestamp
from tests.flushing import FlusherByHand

MINUTE_MS = 60_000


@dataclass(eq=False)
class Reader:
    """A consumer with room for some messages."""

    room: int = 1_000
    tag: str = "r"
    no_ack: bool = False
    priority: int = 0
    got: list[str] = field(default_factory=list)

    def has_credit(self) -> bool:
        return self.room > 0

    def deliver(self, delivery: Delivery, message: Message, *, is_redelivered: bool) -> None:
        assert message.headers["x-stream-offset"] == delivery.offset
        self.room -= 1
        self.got.append(message.body.decode())

    def cancelled(self) -> None: ...


class World:
    """A stream, and a minute between any two messages."""

    def __init__(self, arguments: dict[str, Any] | None = None) -> None:
        self.disk = SimulatedDisk()
        self.clock = VirtualClock()
        self.flusher = FlusherByHand(self.disk, "/data")
        self.arguments = {"x-queue-type": "stream", **(arguments or {})}
        self.count = 0
        self.open()

    def open(self) -> None:
        policy = QueuePolicy.of(self.arguments, "queue 's' in vhost '/'")
        self.log = PartitionLog.open(self.disk, "/data/1", stream_config(LogConfig(), policy))
        lanes = [Lane(self.log, self.flusher, Retention(MINUTE_MS, -1))]
        journal = QueueJournal(PartitionLog.open(self.disk, "/data/0", LogConfig()), self.flusher, lanes)
        self.turn = Turn(defer=lambda _: None, later=self.clock.call_later, now_ms=self.clock.wall_ms)
        self.stream = StreamQueue(
            "s",
            arguments=self.arguments,
            policy=policy,
            lanes=lanes,
            journal=journal,
            turn=self.turn,
            dead_letters=None,
            group="g",
            where="queue 's' in vhost '/'",
            is_durable=True,
        )
        self.stream.recover()

    def publish(self, count: int, size: int = 1, *, is_flushed: bool = True) -> None:
        for _ in range(count):
            body = str(self.count).ljust(size)
            self.stream.publish(Message(b"", b"s", NO_PROPERTIES, body.encode(), self.clock.wall_ms()))
            self.count += 1
            self.turn.run()
            self.clock.advance(MINUTE_MS)
        if is_flushed:
            self.flusher.flush()
            self.turn.run()

    def read(self, offset: Any, room: int = 1_000) -> list[str]:
        reader = Reader(room)
        arguments = {"x-stream-offset": offset}
        self.stream.check_consumer(no_ack=False, prefetch=room, arguments=arguments)
        self.stream.add_consumer(reader, arguments=arguments)
        self.turn.run()
        self.stream.remove_consumer(reader)
        return [body.strip() for body in reader.got]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", ["0", "1", "2", "3", "4"]),
        ("last", ["4"]),
        ("next", []),
        (3, ["3", "4"]),
        (99, []),
        ("3m", ["2", "3", "4"]),
    ],
)
def test_a_consumer_begins_where_it_asks(offset: Any, expected: list[str]) -> None:
    world = World()
    world.publish(5)
    assert world.read(offset) == expected


def test_a_time_means_the_first_message_of_that_time_or_later() -> None:
    world = World()
    begin_s = world.clock.wall_ms() // 1000
    world.publish(5)
    assert world.read(Timestamp(begin_s + 120)) == ["2", "3", "4"]
    assert world.read(Timestamp(begin_s + 121)) == ["3", "4"]
    assert world.read(Timestamp(begin_s + 10_000)) == []
    assert world.read(Timestamp(0)) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("offset", ["middle", True, 1.5, ["first"]])
def test_an_offset_that_is_none_is_refused_in_words(offset: Any) -> None:
    with pytest.raises(AmqpError, match="expected first, last, next, an offset, a timestamp or an interval"):
        World().read(offset)


def test_consumers_see_only_what_is_flushed() -> None:
    world = World()
    world.publish(2)
    world.publish(1, is_flushed=False)
    assert world.read("first") == ["0", "1"]
    world.flusher.flush()
    assert world.read("first") == ["0", "1", "2"]


def test_a_consumer_gets_no_more_than_it_has_room_for() -> None:
    world = World()
    world.publish(5)
    assert world.read("first", room=2) == ["0", "1"]


def test_a_stream_is_there_after_a_kill_and_a_power_failure() -> None:
    world = World()
    world.publish(3)
    world.disk.kill()
    world.open()
    assert world.read("first") == ["0", "1", "2"]
    world.publish(1)
    world.disk.crash(seed=1)
    world.open()
    assert world.read(2) == ["2", "3"]
    assert world.stream.ready == 4


def test_what_is_too_old_or_too_much_goes_in_whole_segments() -> None:
    segments = {"x-stream-max-segment-size-bytes": 65_536}
    for limit in ({"x-max-age": "10m"}, {"x-max-length-bytes": 200_000}):
        world = World({**segments, **limit})
        world.publish(30, size=20_000)
        advance_by_retention(world.log, world.clock.wall_ms())
        kept = world.read("first")
        assert 9 <= len(kept) <= 14
        assert kept == [str(number) for number in range(30 - len(kept), 30)]


def test_acknowledgements_of_a_stream_take_no_memory() -> None:
    world = World()
    world.publish(5)
    world.stream.acknowledge_all(0, [0, 1, 2])
    world.stream.acknowledge_all(0, [3, 4])
    (lane,) = world.stream.lanes
    assert (len(lane._gone), lane.taken, world.stream._journal._gone) == (0, 0, [[]])


def test_the_retention_of_queues_removes_nothing_of_a_stream() -> None:
    world = World()
    world.publish(5)
    assert not world.stream.keeps_what_is_gone
    world.stream.release()
    world.clock.advance(2 * MINUTE_MS)
    world.stream.release()
    assert world.read("first") == ["0", "1", "2", "3", "4"]


def test_a_limit_of_bytes_is_for_the_log_of_a_stream_and_drops_no_message() -> None:
    world = World({"x-max-length-bytes": 10})
    world.publish(5, size=100)
    assert world.read("first") == ["0", "1", "2", "3", "4"]
    assert world.stream._journal._gone == [[]]


def test_nothing_of_a_stream_can_be_restored() -> None:
    world = World()
    world.publish(1)
    with pytest.raises(AmqpError, match="not supported by stream queues"):
        world.stream.restore(0, 0, 1)


def test_many_slow_consumers_read_ahead_no_more_than_the_budget() -> None:
    """Each of them kept a whole piece of the log: 300 of them took 300 MB."""
    world = World()
    world.publish(500)
    budget = world.stream._lane.budget
    before, budget.left = budget.left, 10_000
    readers = [Reader(room=1) for _ in range(20)]
    for reader in readers:
        world.stream.add_consumer(reader, arguments={"x-stream-offset": "first"})
        world.turn.run()
    kept = sum(len(each.read) for each in world.stream._readers.values())
    assert kept < 500 + 20 * READ_AHEAD_MIN, "one has a whole piece, the others as much as they need soon"
    for _ in range(499):
        for reader in readers:
            reader.room = 1
        world.stream.wake()
        world.turn.run()
    assert [reader.got for reader in readers] == [[str(number) for number in range(500)]] * 20
    budget.left += before - 10_000
    assert budget.left == before


def test_consumers_that_end_give_back_what_they_have_read_ahead() -> None:
    world = World()
    world.publish(50)
    budget = world.stream._lane.budget
    before = budget.left
    readers = [Reader(room=1) for _ in range(2)]
    for reader in readers:
        world.stream.add_consumer(reader, arguments={"x-stream-offset": "first"})
    world.turn.run()
    assert budget.left < before
    world.stream.remove_consumer(readers[0])
    world.stream.delete()
    assert budget.left == before


def test_a_queue_that_exists_keeps_arguments_that_a_new_one_may_not_have() -> None:
    """It was declared before they were refused, and its messages are served."""
    arguments = {"x-max-age": "7D", "x-max-length": 3}
    with pytest.raises(AmqpError, match="x-max-age"):
        QueuePolicy.of(arguments, "queue 'old'")
    assert QueuePolicy.of(arguments, "queue 'old'", is_new=False).length_max == 3
