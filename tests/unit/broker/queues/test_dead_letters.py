"""Dead letters between two queues: on a full disk, and when a kill comes at a bad moment."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.queues.journal import QueueJournal
from headrace.broker.queues.lane import Lane
from headrace.broker.queues.message import Message
from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.turn import Turn
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.log.config import FlushMode, LogConfig
from headrace.log.log import PartitionLog
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.properties import NO_PROPERTIES, encode_properties
from tests.flushing import FlusherByHand

CONFIG = LogConfig(segment_bytes_max=16 << 20, retention_ms=-1, cleanup_delete=False, flush=FlushMode.OS)
BODY = b"x" * 100_000
SOURCE = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class World:
    """The queues ``source`` and ``dead`` of a virtual host, on one disk. ``retry`` is what the turn does later."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.open()

    def open(self) -> None:
        self.later: list[Any] = []
        self.host = VirtualHost("/")
        self.turn = Turn(defer=lambda run: None, later=self._later, now_ms=lambda: 1_000)
        self.flusher = FlusherByHand(self.disk, "/data")
        self.source, self.dead = self._queue("source", SOURCE), self._queue("dead", {})

    def _queue(self, name: str, arguments: dict[str, Any]) -> Queue:
        logs = [PartitionLog.open(self.disk, f"/data/{name}/{number}", CONFIG) for number in range(2)]
        lanes = [Lane(logs[1], self.flusher)]
        queue = Queue(
            name,
            arguments=arguments,
            policy=QueuePolicy.of(arguments, f"queue '{name}'"),
            lanes=lanes,
            journal=QueueJournal(logs[0], self.flusher, lanes),
            turn=self.turn,
            dead_letters=self.host,
            group=name,
            where=f"queue '{name}'",
            is_durable=True,
        )
        queue.recover()
        self.host.add_queue(queue)
        return queue

    def _later(self, delay_s: float, function: Any) -> Any:
        self.later.append(function)
        return self

    def retry(self) -> None:
        later, self.later = self.later, []
        for each in later:
            each()

    def bodies(self) -> int:
        """How many messages both queues hold."""
        return sum(queue.ready + queue.unacknowledged for queue in (self.source, self.dead))


def rejected_on_a_full_disk() -> World:
    """The dead letter does not fit on the disk; the journal of the queue that it comes from would."""
    world = World()
    world.source.publish(Message(b"", b"source", NO_PROPERTIES, BODY, 1_000))
    world.turn.run()
    found = world.source.get(no_ack=False)
    assert found is not None
    world.turn.run()
    world.disk.capacity_bytes = world.disk.used_bytes() + 1_000
    world.source.reject(found[0])
    world.turn.run()
    return world


def test_a_dead_letter_that_the_disk_refuses_is_there_after_a_kill() -> None:
    world = rejected_on_a_full_disk()
    world.disk.kill()
    world.disk.capacity_bytes = None
    world.open()
    assert world.bodies() == 1


def test_a_dead_letter_that_the_disk_refused_is_gone_from_its_queue_when_it_is_written() -> None:
    world = rejected_on_a_full_disk()
    world.disk.capacity_bytes = None
    world.retry()
    assert (world.source.ready, world.dead.ready) == (0, 1)
    world.disk.kill()
    world.open()
    assert (world.source.ready, world.dead.ready) == (0, 1)


def test_a_queue_whose_dead_letters_wait_does_not_ask_for_turn_after_turn() -> None:
    world = rejected_on_a_full_disk()
    assert not world.turn._queues


@pytest.mark.parametrize("count", [2**63 - 2, 2**63 - 1])
def test_a_history_with_the_largest_count_that_a_client_can_write_is_carried_on(count: int) -> None:
    """The dead letter could not be written, so the message was lost, or could not be got rid of."""
    world = World()
    death = {"queue": "source", "reason": "rejected", "count": count}
    properties = encode_properties({"headers": {"x-death": [death]}})
    world.source.publish(Message(b"", b"source", properties, BODY, 1_000))
    world.turn.run()
    found = world.source.get(no_ack=False)
    assert found is not None
    world.source.reject(found[0])
    world.turn.run()
    letter = world.dead.get(no_ack=True)
    assert letter is not None
    assert letter[1].headers["x-death"] == [{**death, "count": 2**63 - 1}]
