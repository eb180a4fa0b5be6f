"""Delayed retries of quorum queues: what comes back waits, longer each time, and then it is given up."""

from __future__ import annotations

from typing import Any

from headrace.broker.queues.journal import QueueJournal
from headrace.broker.queues.lane import Lane
from headrace.broker.queues.message import Message
from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.turn import Turn
from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog
from headrace.testing.clock import VirtualClock
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.properties import NO_PROPERTIES
from tests.flushing import FlusherByHand


class DeadLetters:
    def __init__(self) -> None:
        self.got: list[tuple[bytes, str]] = []

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        self.got.append((message.body, reason))


def new_queue(clock: VirtualClock, dead: Any, **arguments: Any) -> tuple[Queue, Turn]:
    disk = SimulatedDisk()
    flusher = FlusherByHand(disk, "/data")
    wanted = {"x-queue-type": "quorum", "x-dead-letter-exchange": "dead", **arguments}
    lanes = [Lane(PartitionLog.open(disk, "/data/1", LogConfig()), flusher)]
    turn = Turn(defer=lambda _: None, later=clock.call_later, now_ms=clock.wall_ms)
    queue = Queue(
        "q",
        arguments=wanted,
        policy=QueuePolicy.of(wanted, "queue 'q' in vhost '/'"),
        lanes=lanes,
        journal=QueueJournal(PartitionLog.open(disk, "/data/0", LogConfig()), flusher, lanes),
        turn=turn,
        dead_letters=dead,
        group="g",
        where="queue 'q' in vhost '/'",
        is_durable=True,
    )
    queue.publish(Message(b"", b"q", NO_PROPERTIES, b"x", clock.wall_ms()))
    turn.run()
    return queue, turn


def fail_once(queue: Queue, turn: Turn, *, is_failure: bool = False) -> None:
    found = queue.get(no_ack=False)
    assert found is not None
    queue.give_back(found[0], is_failure=is_failure)
    turn.run()


def test_each_return_waits_longer_up_to_the_maximum_and_then_the_message_is_dead() -> None:
    clock, dead = VirtualClock(), DeadLetters()
    retries = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1_000, "x-delayed-retry-max": 2_500}
    queue, turn = new_queue(clock, dead, **retries, **{"x-delivery-limit": 3})
    for wait_ms in (1_000, 2_000, 2_500):
        fail_once(queue, turn)
        clock.advance(wait_ms - 1)
        assert queue.get(no_ack=False) is None, "it still waits"
        clock.advance(1)
        assert queue.ready == 1
    fail_once(queue, turn)
    assert (dead.got, queue.ready, queue.unacknowledged) == ([(b"x", "delivery_limit")], 0, 0)


def test_only_what_the_type_names_waits() -> None:
    for retry_type, waits in (("returned", [True, False]), ("failed", [False, True]), ("disabled", [False, False])):
        for is_failure, wait in zip((False, True), waits, strict=True):
            queue, turn = new_queue(VirtualClock(), DeadLetters(), **{"x-delayed-retry-type": retry_type})
            fail_once(queue, turn, is_failure=is_failure)
            assert (queue.ready == 0) is wait, (retry_type, is_failure)
