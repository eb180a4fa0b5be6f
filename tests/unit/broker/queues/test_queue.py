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
from headrace.broker.queues.queue import EXPIRED_PER_TURN, Queue
from headrace.broker.queues.retention import Retention
from headrace.broker.queues.rotation import Delivery
from headrace.broker.queues.turn import Turn
from headrace.log.config import FlushMode, LogConfig
from headrace.log.errors import LogError
from headrace.log.log import PartitionLog
from headrace.log.reader import LogReader
from headrace.testing.clock import VirtualClock
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.properties import NO_PROPERTIES, encode_properties

CONFIG = LogConfig(segment_bytes_max=16 << 20, retention_ms=-1, cleanup_delete=False, flush=FlushMode.OS)


class NoFlusher:
    """Nothing is synced."""

    def mark(self, log: PartitionLog) -> None: ...


class Bench:
    """A queue on a simulated disk; ``run`` is a turn of the loop."""

    def __init__(
        self,
        arguments: dict[str, Any] | None = None,
        *,
        budget: WindowBudget | None = None,
        retention_ms: int = 0,
    ) -> None:
        self.disk = SimulatedDisk()
        self.dead: list[bytes] = []
        self.delays: list[float] = []
        self.cancelled = 0
        self.now_ms = 1_000
        self.policy = QueuePolicy.of(arguments or {}, "queue 'q'")
        self.budget = budget
        self.retention_ms = retention_ms
        self.open()

    def open(self) -> None:
        flusher: Any = NoFlusher()
        numbers = range(2 + self.policy.priority_max)
        logs = [PartitionLog.open(self.disk, f"/data/{number}", CONFIG) for number in numbers]
        self.lanes = [Lane(log, flusher, Retention(self.retention_ms, -1), self.budget) for log in logs[1:]]
        self.turn = Turn(defer=lambda run: None, later=self._later, now_ms=lambda: self.now_ms)
        self.queue = Queue(
            "q",
            arguments={},
            policy=self.policy,
            lanes=self.lanes,
            journal=QueueJournal(logs[0], flusher, self.lanes),
            turn=self.turn,
            dead_letters=self,
            group="g",
            where="queue 'q'",
            is_durable=True,
        )

    def _later(self, delay_s: float, function: Any) -> Any:
        self.delays.append(delay_s)
        return self

    def cancel(self) -> None:
        """Of a timer."""
        self.cancelled += 1

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
        self.outlet: object = self
        self.got: list[tuple[int, bytes, bool]] = []

    def has_credit(self) -> bool:
        return self.left > 0

    def credit(self) -> int:
        return self.left

    room = credit

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


def test_many_queues_with_slow_consumers_hold_no_more_than_the_budget() -> None:
    """Each consumer takes one message; what was read with it from the log is not kept where others use up the room."""
    budget = WindowBudget(2_000)
    benches = [Bench(budget=budget) for _ in range(5)]
    takers = [Taker("c", 1) for _ in benches]
    for bench, taker in zip(benches, takers, strict=True):
        bench.publish(20, size=500)
        bench.run()
        bench.queue.add_consumer(taker)
        bench.run()
    held = sum(len(bench.lanes[0]._window) for bench in benches)
    assert held * 500 <= 2_000 + 20 * 500, "the budget, and what one turn had appended when it was used up"
    for _ in range(19):
        for bench, taker in zip(benches, takers, strict=True):
            taker.left = 1
            bench.run()
    assert [[offset for offset, _, _ in taker.got] for taker in takers] == [list(range(20))] * 5
    for bench in benches:
        bench.queue.delete()
    assert budget.left == 2_000


def test_a_message_comes_back_as_often_as_it_likes_where_there_is_no_limit() -> None:
    bench = Bench({"x-queue-type": "quorum", "x-delivery-limit": -1})
    bench.publish(1)
    bench.run()
    for returns in range(30):
        found = bench.queue.get(no_ack=False)
        assert found is not None
        assert found[1].headers.get("x-delivery-count", 0) == returns
        bench.queue.give_back(found[0])
        bench.run()
    assert bench.dead == []


def test_a_message_that_is_fetched_for_good_says_how_often_it_came_back() -> None:
    bench = Bench({"x-queue-type": "quorum"})
    bench.publish(1)
    bench.run()
    found = bench.queue.get(no_ack=False)
    assert found is not None
    bench.queue.give_back(found[0])
    bench.run()
    found = bench.queue.get(no_ack=True)
    assert found is not None
    assert found[1].headers == {"x-delivery-count": 1}


def test_a_purge_forgets_how_often_messages_came_back() -> None:
    bench = Bench({"x-queue-type": "quorum"})
    for _ in range(3):
        bench.publish(10)
        bench.run()
        for found in [bench.queue.get(no_ack=False) for _ in range(10)]:
            assert found is not None
            bench.queue.give_back(found[0])
        bench.run()
        assert bench.queue.purge() == 10
    assert bench.queue._journal._returns == {}


def test_messages_that_were_restored_and_acknowledged_do_not_come_back_after_a_kill() -> None:
    bench = Bench(retention_ms=1_000_000)
    bench.publish(5)
    bench.run()
    for count in (5, 3):
        for _ in range(count):
            found = bench.queue.get(no_ack=False)
            assert found is not None
            bench.queue.acknowledge(found[0])
        bench.queue.write_journal()
        if count == 5:
            assert bench.queue.restore(0, 0, 3) == 3
    bench.disk.kill()
    bench.open()
    bench.queue.recover()
    assert bench.queue.get(no_ack=True) is None


def test_messages_expire_although_the_windows_of_other_queues_take_all_memory() -> None:
    bench = Bench(budget=WindowBudget(0))
    bench.publish(2)
    bench.publish(2, expiration="10")
    bench.run()
    bench.now_ms += 10
    taker = Taker("c", 100)
    bench.queue.add_consumer(taker)
    bench.run()
    assert [offset for offset, _, _ in taker.got] == [0, 1]
    assert bench.dead == [b"0", b"1"]


def test_an_expired_head_is_dropped_although_the_windows_of_other_queues_take_all_memory() -> None:
    bench = Bench(budget=WindowBudget(0))
    bench.publish(1, expiration="10")
    bench.run()
    bench.now_ms += 10
    assert bench.queue.get(no_ack=True) is None
    assert bench.dead == [b"0"]


def test_a_limit_holds_after_a_turn_that_brought_more_than_it_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.queues.queue.DROPS_PER_TURN", 10)
    bench = Bench({"x-max-length": 5})
    bench.publish(30)
    for _ in range(3):
        bench.run()
    assert bench.queue.ready == 5
    assert bench.dead == [b"%d" % number for number in range(25)]


class Waits:
    """Counts what it waits for."""

    def __init__(self) -> None:
        self.left = 0

    def add_waits(self, count: int) -> None:
        self.left += count

    def one_done(self) -> None:
        self.left -= 1


def test_nobody_waits_for_messages_of_a_queue_that_was_deleted_before_they_were_written() -> None:
    bench = Bench()
    waits = Waits()
    bench.queue.publish(Message(b"", b"q", NO_PROPERTIES, b"x", 1_000), waits)
    assert waits.left == 1
    bench.queue.delete()
    assert waits.left == 0
    bench.run()


def test_a_deleted_queue_hands_out_nothing_and_has_no_dead_letters() -> None:
    bench = Bench()
    bench.publish(1, expiration="0")
    bench.queue.append_waiting()
    bench.queue.delete()
    bench.run()
    assert bench.dead == []


def test_a_purge_counts_the_bytes_of_what_is_being_moved() -> None:
    bench = Bench({"x-max-length-bytes": 1_000})
    bench.publish(3)
    assert bench.queue.hold([(0, 1)]) == [(0, 1)]
    assert bench.queue.purge() == 2
    assert bench.queue.ready_bytes == 1
    bench.queue.let_go([(0, 1)])
    found = bench.queue.get(no_ack=True)
    assert found is not None
    assert found[1].body == b"1"
    assert bench.queue.ready_bytes == 0


def test_the_publishers_of_a_broker_are_not_held_because_one_queue_cannot_be_read() -> None:
    bench = Bench(budget=WindowBudget(0))
    troubles: list[LogError | None] = []
    bench.turn.on_trouble = troubles.append
    bench.publish(1)
    bench.turn.run()
    bench.queue.add_consumer(Taker("c", 1))
    bench.disk.damage("/data/1/00000000000000000000.log", lambda data: data.__setitem__(slice(70, 74), b"\xff" * 4))
    bench.turn.run()
    assert troubles == []
    assert bench.delays == [1.0], "it is tried again"


def test_a_timer_is_set_again_for_a_message_that_expires_before_the_last_head_would() -> None:
    bench = Bench()
    bench.publish(1, expiration="60000")
    bench.run()
    assert bench.queue.get(no_ack=True) is not None
    bench.publish(1, expiration="20")
    bench.run()
    assert bench.delays == [60.0, 0.02]
    assert bench.cancelled == 1


def test_the_bytes_of_messages_that_come_and_go_together_are_counted() -> None:
    bench = Bench({"x-max-length-bytes": 1_000})
    sizes = (5, 20, 300)
    bench.queue.publish_all([Message(b"", b"q", NO_PROPERTIES, b"x" * size, 1_000) for size in sizes])
    assert bench.queue.ready_bytes == 325
    bench.queue.add_consumer(Taker("c", 3))
    bench.run()
    assert bench.queue.ready_bytes == 0


def test_what_is_acknowledged_together_lets_the_log_go_also_where_some_was_gone_before() -> None:
    bench = Bench()
    bench.publish(6)
    bench.queue.add_consumer(Taker("c", 6))
    bench.run()
    bench.queue.acknowledge_all(0, [2, 4])
    bench.queue.acknowledge_all(0, [0, 3])
    assert bench.lanes[0].floor == 1
    bench.queue.acknowledge_all(0, [1, 5])
    assert bench.lanes[0].floor == 6
    bench.run()
    assert bench.lanes[0].log.start_offset == 6


def test_messages_for_a_consumer_that_does_not_acknowledge_are_gone_when_they_are_delivered() -> None:
    bench = Bench()
    bench.publish(4)
    taker = Taker("c", 4)
    taker.no_ack = True
    bench.queue.add_consumer(taker)
    bench.run()
    assert (len(taker.got), bench.queue.unacknowledged, bench.lanes[0].floor) == (4, 0, 4)


def test_a_message_that_is_restored_in_the_turn_of_its_acknowledgement_is_there_after_a_kill() -> None:
    bench = Bench(retention_ms=1_000_000)
    bench.publish(1)
    bench.run()
    found = bench.queue.get(no_ack=False)
    assert found is not None
    bench.queue.acknowledge(found[0])
    assert bench.queue.restore(0, 0, 1) == 1
    bench.queue.write_journal()
    bench.disk.kill()
    bench.open()
    bench.queue.recover()
    assert bench.queue.ready == 1


def test_only_what_was_handed_out_before_a_kill_is_marked_in_a_run() -> None:
    bench = Bench()
    bench.publish(4)
    bench.queue.add_consumer(Taker("c", 2))
    bench.run()
    bench.disk.kill()
    bench.open()
    bench.queue.recover()
    taker = Taker("d", 10)
    bench.queue.add_consumer(taker)
    bench.run()
    assert [is_redelivered for _, _, is_redelivered in taker.got] == [True, True, False, False]


def test_a_message_over_its_delivery_limit_that_cannot_be_read_stays() -> None:
    bench = Bench({"x-queue-type": "quorum", "x-delivery-limit": 0, "x-dead-letter-exchange": ""})
    bench.publish(1)
    bench.run()
    found = bench.queue.get(no_ack=False)
    assert found is not None
    bench.disk.damage("/data/1/00000000000000000000.log", lambda data: data.__setitem__(slice(70, 74), b"\xff" * 4))
    bench.queue.give_back(found[0])
    assert (bench.queue.ready, bench.queue.unacknowledged, bench.dead) == (1, 0, [])


def test_what_a_full_queue_has_left_expires_although_nothing_else_happens() -> None:
    """The head that does not expire is dropped for being too much, and the next one does expire."""
    bench = Bench({"x-max-length": 1})
    bench.publish(1)
    bench.run()
    bench.publish(1, expiration="200")
    bench.run()
    assert bench.delays == [0.2]
    bench.now_ms += 200
    bench.run()
    assert bench.queue.ready == 0


def test_a_message_is_offered_once_before_it_expires() -> None:
    bench = Bench({"x-message-ttl": 0})
    taker = Taker("t", 2)
    bench.queue.add_consumer(taker)
    bench.now_ms += 5
    bench.publish(3)
    bench.now_ms += 5
    bench.run()
    assert [body for _, body, _ in taker.got] == [b"0", b"1"]
    assert bench.dead == [b"2"]


def test_many_messages_that_have_expired_go_some_at_a_time() -> None:
    """All may have, after a restart: each becomes a dead letter, and others want their turn of the loop."""
    bench = Bench({"x-message-ttl": 1_000})
    bench.publish(2 * EXPIRED_PER_TURN + 1)
    bench.run()
    bench.now_ms += 1_000
    bench.publish(1)
    taker = Taker("t", 10)
    bench.queue.add_consumer(taker)
    for turn in (1, 2):
        bench.run()
        assert (len(bench.dead), taker.got) == (turn * EXPIRED_PER_TURN, [])
    bench.run()
    assert len(bench.dead) == 2 * EXPIRED_PER_TURN + 1
    assert taker.got == [(2 * EXPIRED_PER_TURN + 1, b"0", False)]


def test_what_is_published_after_many_that_have_expired_is_offered_once() -> None:
    bench = Bench()
    bench.publish(EXPIRED_PER_TURN + 1, expiration="1")
    bench.run()
    bench.now_ms += 10
    bench.publish(1, expiration="0")
    bench.run()
    taker = Taker("t", 10)
    bench.queue.add_consumer(taker)
    bench.run()
    assert [body for _, body, _ in taker.got] == [b"0"]


def test_a_queue_with_a_delivery_limit_hands_out_many_messages_at_once() -> None:
    """But one by one where they may have come back before the broker started: each says how often."""
    bench = Bench({"x-queue-type": "quorum"})
    bench.publish(10)
    taker = RunTaker("t", 6)
    bench.queue.add_consumer(taker)
    bench.run()
    assert taker.runs == [6]
    bench.open()
    bench.queue.recover()
    taker = RunTaker("t", 10)
    bench.queue.add_consumer(taker)
    bench.run()
    assert taker.runs == [4]
    assert [is_redelivered for _, _, is_redelivered in taker.got] == [True] * 6 + [False] * 4


class RunTaker(Taker):
    """Notes how many messages came at once."""

    def __init__(self, tag: str, credit: int) -> None:
        super().__init__(tag, credit)
        self.runs: list[int] = []

    def deliver_run(self, *arguments: Any, **keywords: Any) -> None:
        self.runs.append(len(arguments[2]))
        super().deliver_run(*arguments, **keywords)


def test_the_bytes_of_a_queue_are_counted_at_the_start_without_a_search_for_each_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench({"x-max-length-bytes": 1_000_000})
    for _ in range(30):
        bench.publish(1, size=20_000)  # a separate batch
        bench.run()
    taker = Taker("t", 3)
    bench.queue.add_consumer(taker)
    bench.run()
    bench.queue.acknowledge(Delivery(bench.queue, 0, 1, 20_001))  # of three that were handed out
    bench.run()
    bench.open()
    searched: list[int] = []
    monkeypatch.setattr(LogReader, "batch_holding", lambda _, offset: searched.append(offset))
    bench.queue.recover()
    assert bench.queue.ready_bytes == 29 * 20_001
    assert not searched


def test_a_deleted_queue_leaves_no_timer_that_would_keep_it_in_memory() -> None:
    clock = VirtualClock()
    bench = Bench({"x-expires": 3_600_000, "x-message-ttl": 600_000})
    bench.turn.later = clock.call_later
    removed: list[str] = []
    bench.queue.when_unused(lambda: removed.append("by its time limit"))
    bench.publish(1)
    bench.run()
    assert clock.timers == 2
    bench.queue.delete()
    assert clock.timers == 0
    clock.advance(3_600_000)
    assert not removed


def test_a_queue_that_somebody_uses_does_not_expire() -> None:
    clock = VirtualClock()
    bench = Bench({"x-expires": 1_000})
    bench.turn.later, bench.turn.now_ms = clock.call_later, clock.wall_ms
    removed: list[int] = []
    began_ms = clock.wall_ms()
    bench.queue.used()
    bench.queue.when_unused(lambda: removed.append(clock.wall_ms() - began_ms))
    clock.advance(600)
    bench.queue.used()
    clock.advance(700)
    taker = Taker("c", 1)
    bench.queue.add_consumer(taker)
    clock.advance(5_000)
    bench.queue.remove_consumer(taker)
    clock.advance(999)
    assert not removed
    clock.advance(2_000)
    assert removed == [7_300]
