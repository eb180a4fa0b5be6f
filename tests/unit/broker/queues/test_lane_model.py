"""Lanes and their journal against a plain model, with kills: what is gone stays gone, all else is there, in order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.broker.queues.journal import QueueJournal
from headrace.broker.queues.lane import Lane
from headrace.broker.queues.message import Message
from headrace.broker.queues.retention import Retention
from headrace.log.config import FlushMode, LogConfig
from headrace.log.log import PartitionLog
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.properties import NO_PROPERTIES

CONFIG = LogConfig(segment_bytes_max=2_000, retention_ms=-1, cleanup_delete=False, flush=FlushMode.OS)


class NoFlusher:
    """Logs are written and never synced: what a kill leaves."""

    def mark(self, log: PartitionLog) -> None: ...


class LaneMachine(RuleBasedStateMachine):
    """``ready`` and ``taken`` are bodies by offset; ``handed_out`` is what any consumer may have seen."""

    @initialize()
    def begin(self) -> None:
        self.disk = SimulatedDisk()
        self.ready: dict[int, bytes] = {}
        self.taken: dict[int, bytes] = {}
        self.held: dict[int, bytes] = {}
        self.gone: dict[int, bytes] = {}
        self.handed_out: set[int] = set()
        self.count = 0
        self.open()

    def open(self) -> None:
        flusher: Any = NoFlusher()
        self.lane = Lane(PartitionLog.open(self.disk, "/data/1", CONFIG), flusher, Retention(-1, -1))
        self.journal = QueueJournal(PartitionLog.open(self.disk, "/data/0", CONFIG), flusher, [self.lane])
        self.journal.load(1_000)

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5))
    def publish(self, sizes: list[int]) -> None:
        messages = []
        for size in sizes:
            body = b"%d " % self.count + b"x" * size
            messages.append(Message(b"", b"q", NO_PROPERTIES, body, 1_000 + self.count))
            self.ready[self.count] = body
            self.count += 1
        self.lane.append(messages)

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        for _ in range(count):
            offset = self.lane.head()
            assert offset == min(self.ready, default=None)
            if offset is None:
                break
            assert self.lane.peek(offset).body == self.ready[offset]
            assert self.lane.take(offset) == (offset in self.handed_out)
            self.taken[offset] = self.ready.pop(offset)
            self.handed_out.add(offset)
        self.journal.write(1_000)

    @rule(count=st.integers(1, 9), stop=st.none() | st.integers(0, 100))
    def take_run(self, count: int, stop: int | None) -> None:
        """Messages that follow each other; one of them may have expired."""
        expired = None if stop is None else self.ready.get(stop)
        was_handed_out = min(self.ready, default=-1) in self.handed_out
        offsets, run = self.lane.take_run(
            count, lambda message: message.body == expired, may_expire=True, fresh=self.lane.end
        )
        assert offsets == sorted(self.ready)[: len(run)]
        for offset, message in zip(offsets, run, strict=True):
            assert message.body == self.ready[offset] != expired
            assert (offset in self.handed_out) == was_handed_out == (offset < self.lane.delivered_before)
            self.taken[offset] = self.ready.pop(offset)
        self.handed_out.update(offsets)
        self.journal.write(1_000)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def acknowledge_together(self, data: st.DataObject) -> None:
        offsets = sorted(data.draw(st.sets(st.sampled_from(sorted(self.taken)), min_size=1)))
        for offset in offsets:
            self.gone[offset] = self.taken.pop(offset)
        self.lane.settle_all(offsets)
        self.journal.note_all_gone(0, offsets)
        self.journal.write(1_000)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        for offset in data.draw(st.sets(st.sampled_from(sorted(self.taken)), min_size=1)):
            self.gone[offset] = self.taken.pop(offset)
            self.lane.settle(offset)
            self.journal.note_gone(0, offset)
        self.journal.write(1_000)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.taken)))
        self.ready[offset] = self.taken.pop(offset)
        self.lane.give_back(offset)

    @rule()
    def purge(self) -> None:
        assert self.lane.purge() == len(self.ready)
        self.gone.update(self.ready)
        self.ready.clear()
        self.journal.snapshot(1_000)

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """An administrator moves messages from anywhere in the queue; they may be elsewhere from now on."""
        offsets = sorted(data.draw(st.sets(st.sampled_from(sorted(self.ready)), min_size=1)))
        self.journal.note_moving(0, offsets, 1_000)
        for offset in offsets:
            assert self.lane.hold(offset)
            assert not self.lane.hold(offset)
            self.lane.doubt(offset, offset + 1)
            self.held[offset] = self.ready.pop(offset)
            self.handed_out.add(offset)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_moved=st.booleans())
    def settle_held(self, data: st.DataObject, is_moved: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        body = self.held.pop(offset)
        if is_moved:
            self.lane.settle_held(offset)
            self.journal.note_gone(0, offset)
            self.journal.write(1_000)
            self.gone[offset] = body
        else:
            self.lane.let_go(offset)
            self.ready[offset] = body

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.count))
        end = data.draw(st.integers(first, self.count))
        self.journal.note_restored(0, first, end, 1_000)
        wanted = [offset for offset in sorted(self.gone) if first <= offset < end]
        assert self.lane.restore(first, end) == wanted
        for offset in wanted:
            self.ready[offset] = self.gone.pop(offset)
            if offset < self.lane.cursor:
                self.handed_out.add(offset)

    @rule()
    def snapshot(self) -> None:
        self.journal.snapshot(1_000)

    @rule()
    def kill(self) -> None:
        """The process dies: what was taken comes back, and what was acknowledged does not."""
        self.disk.kill()
        self.ready.update(self.taken)
        self.ready.update(self.held)
        self.taken.clear()
        self.held.clear()
        self.open()

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "lane"):
            assert (self.lane.ready, self.lane.taken) == (len(self.ready), len(self.taken))
            states = {offset: self.lane.state_of(offset) for offset in range(self.count)}
            assert {offset for offset, state in states.items() if state == "gone"} == set(self.gone)
            assert {offset for offset, state in states.items() if state == "ready"} == set(self.ready)


def test_what_the_journal_says_of_messages_that_power_took_is_forgotten() -> None:
    """Their offsets go to other messages. The journal must not say of those that they are gone, at any later start."""
    disk = SimulatedDisk()
    flusher: Any = NoFlusher()

    def opened() -> tuple[Lane, QueueJournal]:
        lane = Lane(PartitionLog.open(disk, "/data/1", CONFIG), flusher)
        journal = QueueJournal(PartitionLog.open(disk, "/data/0", CONFIG), flusher, [lane])
        journal.load(1_000)
        return lane, journal

    lane, journal = opened()
    lane.append([Message(b"", b"q", NO_PROPERTIES, b"%d" % number, 1_000) for number in range(3)])
    for offset in range(3):
        lane.take(offset)
    for offset in (0, 2):
        lane.settle(offset)
        journal.note_gone(0, offset)
    journal.write(1_000)
    disk.kill()
    for name in disk.listdir("/data/1"):
        disk.unlink(f"/data/1/{name}")
    lane, _ = opened()
    lane.append([Message(b"", b"q", NO_PROPERTIES, b"later %d" % number, 1_000) for number in range(3)])
    disk.kill()
    lane, _ = opened()
    assert [message.body for _, message in lane.messages(0, 10)] == [b"later 0", b"later 1", b"later 2"]
    assert lane.take(0) is False, "nobody has had it"


LaneMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_a_lane_is_its_model_also_after_kills = LaneMachine.TestCase


def test_a_move_that_a_kill_has_cut_off_leaves_a_message_that_is_marked_also_after_a_snapshot() -> None:
    machine = LaneMachine()
    machine.begin()
    machine.publish([1, 1, 1])
    machine.journal.note_moving(0, [1], 1_000)
    assert machine.lane.hold(1)
    machine.lane.doubt(1, 2)
    machine.snapshot()
    flusher: Any = NoFlusher()
    lane = Lane(machine.lane.log, flusher)
    QueueJournal(machine.journal._log, flusher, [lane]).load(
        1_000
    )  # from the snapshot on: what was before it is removed
    marks = []
    while (offset := lane.head()) is not None:
        marks.append((offset, lane.take(offset)))
    assert marks == [(0, False), (1, True), (2, False)]


def test_a_run_is_all_that_follows_each_other_also_where_every_second_message_is_gone() -> None:
    machine = LaneMachine()
    machine.begin()
    machine.publish([1] * 20)
    machine.publish([1] * 20)
    machine.take_run(20, None)
    assert sorted(machine.taken) == list(range(20))
    machine.lane.settle_all(list(range(0, 20, 2)))
    machine.journal.note_all_gone(0, list(range(0, 20, 2)))
    machine.journal.write(1_000)
    machine.disk.kill()
    machine.open()
    offsets, _ = machine.lane.take_run(100, lambda _: False, may_expire=False, fresh=machine.lane.end)
    assert offsets == list(range(1, 20, 2))  # up to what was not handed out before
    offsets, _ = machine.lane.take_run(100, lambda _: False, may_expire=False, fresh=machine.lane.end)
    assert offsets == list(range(20, 40))
