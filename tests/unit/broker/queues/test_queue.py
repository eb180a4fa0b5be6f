"""A queue hands out many messages at once as it would one by one, in bounded memory, and survives a full disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.queues.journal import QueueJournal
from headrace.broker.queues.lane import BATCH_BYTES, READ_BYTES, WINDOW_BYTES, Lane, WindowBudget
from headrace.broker.queues.message import Message
from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.queue import Delivery, Queue
from headrace.broker.queues.turn import Turn
from headrace.log.config import FlushMode, LogConfig
from headrace.log.errors import LogError
from headrace.log.log import PartitionLog
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.properties import NO_PROPERTIES, encode_properties

CONFIG = LogConfig(segment_bytes_max=16 << 20, retention_ms=-1, cleanup_delete=False, flush=FlushMode.OS)


class NoFlusher:
    """Nothing is synced."""

    def mark(self, log: PartitionLog) -> None: ...


class Bench:
    """A queue on a simulated disk; ``run`` is a turn of the loop."""

    def __init__(self, arguments: dict[str, Any] | None = None, *, budget: WindowBudget | None = None) -> None:
        self.disk = SimulatedDisk()
        self.dead: list[bytes] = []
        self.now_ms = 1_000
        policy = QueuePolicy.of(arguments or {}, "queue 'q'")
        flusher: Any = NoFlusher()
        logs = [PartitionLog.open(self.disk, f"/data/{number}", CONFIG) for number in range(2 + policy.priority_max)]
        self.lanes = [Lane(log, flusher, None, budget) for log in logs[1:]]
        turn = Turn(defer=lambda run: None, later=self._later, now_ms=lambda: self.now_ms)
        self.queue = Queue(
            "q",
            arguments={},
            policy=policy,
            lanes=self.lanes,
            journal=QueueJournal(logs[0], flusher, self.lanes),
            turn=turn,
            dead_letters=self,
            group="g",
            where="queue 'q'",
            is_durable=True,
        )

    def _later(self, delay_s: float, function: Any) -> Any:
        return None

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        self.dead.append(message.body)

    def run(self) -> None:
        self.queue.append_waiting()
        self.queue.deliver()
        self.queue.write_journal()

    def publish(self, count: int, size: int = 0, **properties: Any) -> None:
        raw = encode_properties(properties) if properties else NO_PROPERTIES
        self.queue.publish_all(
            [Message(b"", b"q", raw, b"%d" % number + b"x" * size, self.now_ms) for number in range(count)]
        )


class Taker:
    """A consumer with so much credit."""

    def __init__(self, tag: str, credit: int, *, priority: int = 0) -> None:
        self.tag = tag
        self.no_ack = False
        self.priority = priority
        self.left = credit
        self.got: list[tuple[int, bytes, bool]] = []

    def has_credit(self) -> bool:
        return self.left > 0

    def credit(self) -> int:
        return self.left

    def deliver(self, delivery: Delivery, message: Message, *, is_redelivered: bool) -> None:
        self.left -= 1
        self.got.append((delivery.offset, message.body, is_redelivered))

    def deliver_run(
        self, queue: Queue, lane: int, offsets: Sequence[int], messages: Sequence[Message], *, is_redelivered: bool
    ) -> None:
        for offset, message in zip(offsets, messages, strict=True):
            self.deliver(Delivery(queue, lane, offset, len(message.body)), message, is_redelivered=is_redelivered)

    def cancelled(self) -> None: ...


@given(
    allowed=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 15), min_size=1, max_size=4),
)
def test_consumers_get_at_once_what_they_would_get_one_by_one(
    allowed: list[tuple[int, int]], counts: list[int]
) -> None:
    outcomes = []
    for one_by_one in (False, True):
        bench = Bench()
        if one_by_one:
            bench.queue._deliver_run = lambda count_max: 0  # type: ignore[method-assign]
        takers = [Taker(str(place), credit, priority=priority) for place, (credit, priority) in enumerate(allowed)]
        for taker in takers:
            bench.queue.add_consumer(taker)
        for count in counts:
            bench.publish(count)
            bench.run()
        outcomes.append([taker.got for taker in takers])
    assert outcomes[0] == outcomes[1]


def test_a_run_ends_before_a_message_that_has_expired() -> None:
    bench = Bench()
    bench.publish(2)
    bench.publish(2, expiration="10")
    bench.publish(2)
    bench.run()
    bench.now_ms += 10
    taker = Taker("c", 100)
    bench.queue.add_consumer(taker)
    bench.run()
    assert [offset for offset, _, _ in taker.got] == [0, 1, 4, 5]
    assert bench.dead == [b"0", b"1"]


def test_a_producer_that_nobody_follows_fills_the_disk_and_not_the_memory() -> None:
    bench = Bench()
    for _ in range(40):
        bench.publish(100, size=1_000)
        bench.run()
    (lane,) = bench.lanes
    assert lane.end == 4_000
    assert lane._window_bytes <= WINDOW_BYTES + 2 * BATCH_BYTES
    taker = Taker("c", 4_000)
    bench.queue.add_consumer(taker)
    while len(taker.got) < 4_000:
        bench.run()
        assert lane._window_bytes <= WINDOW_BYTES + 2 * BATCH_BYTES + READ_BYTES
    assert [offset for offset, _, _ in taker.got] == list(range(4_000))
    assert lane._window_bytes == 0


@pytest.mark.parametrize("priorities", [0, 2])
def test_what_a_full_disk_has_refused_is_written_once_when_there_is_room(priorities: int) -> None:
    bench = Bench({"x-max-priority": priorities} if priorities else {})
    for priority in range(priorities + 1):
        bench.publish(3, size=BATCH_BYTES // 2, priority=priority)
    bench.disk.capacity_bytes = bench.disk.used_bytes() + BATCH_BYTES + BATCH_BYTES // 4
    with pytest.raises(LogError):
        bench.queue.append_waiting()
    assert sum(lane.end for lane in bench.lanes) == 2  # a batch was written, and the next was refused
    bench.disk.capacity_bytes = None
    bench.queue.append_waiting()
    assert [lane.end for lane in bench.lanes] == [3] * (1 + priorities)
    bodies = [[message.body[:1] for _, message in lane.messages(0, 10)] for lane in bench.lanes]
    assert bodies == [[b"0", b"1", b"2"]] * (1 + priorities)


def test_the_windows_of_all_queues_share_a_budget_and_a_queue_that_goes_gives_its_part_back() -> None:
    budget = WindowBudget(1_000)
    benches = [Bench(budget=budget) for _ in range(3)]
    for bench in benches:
        bench.publish(2, size=500)
        bench.run()
    assert [len(bench.lanes[0]._window) for bench in benches] == [2, 0, 0]
    taker = Taker("c", 10)
    benches[1].queue.add_consumer(taker)
    benches[1].run()
    assert [body[:1] for _, body, _ in taker.got] == [b"0", b"1"]  # from the log
    benches[0].queue.delete()
    assert budget.left == 1_000
