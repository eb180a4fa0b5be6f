"""Queues against a model of them, on a disk that loses power and under processes that are killed.

Real channels, queues, exchanges, registry and logs; the wire and the disk are stand-ins. Messages are published with
confirms, to one queue, to a priority and to several queues at once; consumers come and go, acknowledge, give back,
reject and purge. The process is killed or the power fails.

The model is a list of bodies for every queue and priority, in the order in which they were published. A consumer must
get the first that is ready, marked exactly when somebody had it before. After a kill everything that was published is
there, and nothing that was settled. After a power failure everything that was confirmed is there, in order, and
nothing that was settled before the last checkpoint.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.queues.channel import Channel
from headrace.broker.queues.registry import Registry
from headrace.broker.queues.turn import Turn
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.broker.state import StateStore
from headrace.log.config import LogConfig
from headrace.log.space import STATE
from headrace.log.store import LogStore
from headrace.testing.clock import VirtualClock
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.connection import AckReceived, PublishReceived
from headrace.wire.amqp.errors import AmqpError
from headrace.wire.amqp.methods import decode_method
from headrace.wire.amqp.properties import encode_properties
from tests.flushing import FlusherByHand

LIMIT = 2
QUEUES: dict[str, dict[str, Any]] = {
    "work": {},
    "ranked": {"x-max-priority": 2},
    "limited": {
        "x-queue-type": "quorum",
        "x-delivery-limit": LIMIT,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    },
    "dead": {},
}
TARGETS: dict[str, tuple[str, ...]] = {**{name: (name,) for name in QUEUES}, "all": ("work", "ranked", "limited")}
"""``all`` is an exchange; the others are queues."""

names = st.sampled_from(sorted(QUEUES))


class OnThisThread(ThreadPoolExecutor):
    """What runs elsewhere is done at once, so that a run can be repeated."""

    def submit(self, fn: Any, /, *args: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **keywords))
        return future


class Wire:
    """Takes what a channel sends."""

    def __init__(self, machine: QueueMachine) -> None:
        self._machine = machine

    def send(self, channel: int, name: str, arguments: dict[str, Any] | None = None) -> None:
        if name == "basic.nack":
            raise AssertionError("no queue of the model refuses messages")

    def send_ack(self, channel: int, delivery_tag: int, *, is_multiple: bool) -> None:
        self._machine.confirmed(delivery_tag, is_multiple)

    def send_content(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        name, arguments = decode_method(method)
        if name in ("basic.deliver", "basic.get-ok"):
            self._machine.arrived.append((channel, arguments["delivery_tag"], body.decode(), arguments["redelivered"]))

    def send_deliveries(
        self, channel: int, consumer: bytes, first: int, messages: Sequence[Any], *, is_redelivered: bool
    ) -> None:
        for tag, message in enumerate(messages, first):
            self._machine.arrived.append((channel, tag, message.body.decode(), is_redelivered))


@dataclass(eq=False)
class Client:
    virtual_host: VirtualHost
    wire: Any
    user: str = "guest"
    is_writable: bool = True

    def flush(self) -> None: ...

    def refuse(self, number: int, error: AmqpError) -> None:
        raise error


@dataclass
class Message:
    """One message in one queue."""

    body: str
    lane: int
    was_seen: bool = False
    """A consumer had it."""
    may_be_unmarked: bool = False
    """The power failed after a consumer had it, before that was durable."""
    returns: int = 0


@dataclass
class Model:
    """What a queue holds, in order of publication, and what of that consumers hold."""

    live: list[Message] = field(default_factory=list)
    held: list[Message] = field(default_factory=list)
    ever: dict[str, Message] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    settled_for_good: set[str] = field(default_factory=set)

    def published(self, body: str, lane: int) -> None:
        message = Message(body, lane)
        self.live.append(message)
        self.ever[body] = message

    @property
    def ready(self) -> list[Message]:
        return [each for each in self.live if not any(each is held for held in self.held)]

    def head(self) -> Message:
        """The first of the highest priority."""
        return max(self.ready, key=lambda each: each.lane)

    def settle(self, message: Message) -> None:
        self.held = [each for each in self.held if each is not message]
        self.live = [each for each in self.live if each is not message]
        self.settled.add(message.body)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(OnThisThread())
        self.disk = SimulatedDisk()
        self.clock = VirtualClock()
        self.groups = itertools.count()
        self.models = {name: Model() for name in QUEUES}
        self.count = 0
        self.in_flight: dict[int, tuple[str, ...]] = {}
        """Confirm number, and ``queue/body`` of the message in each of its queues."""
        self.promised: set[str] = set()
        self.start()
        self.declare()

    def teardown(self) -> None:
        self.loop.close()

    # ---- the broker -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.store = LogStore.open(self.disk, "/data")
        self.flusher = FlusherByHand(self.disk, "/data", monotonic=self.clock.monotonic, note=self.store.note_flushed)
        self.deferred: list[Any] = []
        self.arrived: list[tuple[int, int, str, bool]] = []
        """Channel, tag, body and mark of what came in this turn."""
        turn = Turn(defer=self.deferred.append, later=self.clock.call_later, now_ms=self.clock.wall_ms)
        journal = self.store.space(STATE).open_log("journal", 0, LogConfig(cleanup_delete=False), sync=False)
        self.registry = Registry(
            store=self.store,
            state=StateStore(journal, self.flusher, self.clock),
            flusher=self.flusher,
            turn=turn,
            remove_files=lambda space, group, done: done(),
            new_group=lambda: f"{next(self.groups):032x}",
        )
        self.registry.load()
        self.store.sync_recovered()
        self.host = self.registry.hosts["/"]
        self.turn = turn
        self.channels: dict[int, Channel] = {}
        self.last_channel = 0
        self.tags: dict[int, dict[int, tuple[str, Message]]] = {}
        """Of each channel, what its consumers hold."""
        self.consumed: dict[int, str] = {}
        self.publisher = self.channel()
        self.ask(self.publisher, "confirm.select", no_wait=False)
        self.in_flight.clear()
        self.next_confirm = 1

    def channel(self) -> int:
        self.last_channel += 1
        number = self.last_channel
        client: Any = Client(self.host, Wire(self))
        self.channels[number] = Channel(number, client, self.registry, self.turn)
        self.tags[number] = {}
        return number

    def ask(self, channel: int, name: str, **arguments: Any) -> None:
        self.run(self.channels[channel].handle(name, {"no_wait": False, "arguments": {}, **arguments}))

    def run(self, waiting: Awaitable[None]) -> None:
        async def to_the_end() -> None:
            task = asyncio.ensure_future(waiting)
            while not task.done():
                await asyncio.sleep(0)
                self.flusher.flush()
            task.result()

        self.loop.run_until_complete(to_the_end())
        self.turns()

    def turns(self) -> None:
        for channel in self.channels.values():
            channel.end_turn()
        while self.deferred:
            self.deferred.pop(0)()
        arrived, self.arrived = self.arrived, []
        for name in QUEUES:
            self.delivered(name, [each for each in arrived if self.consumed[each[0]] == name])

    def declare(self) -> None:
        for name, arguments in QUEUES.items():
            declared = {"queue": name, "passive": False, "durable": True, "exclusive": False, "auto_delete": False}
            self.ask(self.publisher, "queue.declare", **declared, arguments=arguments)
        exchange = {"exchange": "all", "type": "fanout", "passive": False, "durable": True, "internal": False}
        self.ask(self.publisher, "exchange.declare", **exchange, auto_delete=False)
        for name in TARGETS["all"]:
            self.ask(self.publisher, "queue.bind", queue=name, exchange="all", routing_key="")

    # ---- what clients see -------------------------------------------------------------------------------------------

    def confirmed(self, number: int, is_multiple: bool) -> None:
        for each in [number] if not is_multiple else [one for one in self.in_flight if one <= number]:
            self.promised.update(self.in_flight.pop(each))

    def delivered(self, name: str, arrived: list[tuple[int, int, str, bool]]) -> None:
        """One turn deals the first messages to the consumers. Each consumer gets its share in order."""
        model = self.models[name]
        bodies = [body for _, _, body, _ in arrived]
        assert set(bodies) <= set(model.ever), f"{name} gives what was never published to it"
        expected: list[Message] = []
        for _ in arrived:
            expected.append(model.head())
            model.held.append(expected[-1])
        assert sorted(bodies) == sorted(each.body for each in expected), f"{name} does not give its first messages"
        order = {each.body: place for place, each in enumerate(expected)}
        by_body = {each.body: each for each in expected}
        for channel in {channel for channel, _, _, _ in arrived}:
            mine = [order[body] for each, _, body, _ in arrived if each == channel]
            assert mine == sorted(mine), f"{name} gives a consumer messages out of order"
        for channel, tag, body, is_redelivered in arrived:
            message = by_body[body]
            if not (message.was_seen and message.may_be_unmarked):
                assert is_redelivered == message.was_seen, f"{body} of {name} is marked wrongly"
            message.was_seen = True
            self.tags[channel][tag] = (name, message)

    # ---- what clients do --------------------------------------------------------------------------------------------

    @rule(where=st.sampled_from(sorted(TARGETS)), priorities=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def publish(self, where: str, priorities: list[int]) -> None:
        exchange, key = (b"all", b"") if where == "all" else (b"", where.encode())
        for priority in priorities:
            body = f"m{self.count}"
            self.count += 1
            properties = encode_properties({"delivery_mode": 2, "priority": priority})
            for name in TARGETS[where]:
                self.models[name].published(body, min(priority, 2) if name == "ranked" else 0)
            self.in_flight[self.next_confirm] = tuple(f"{name}/{body}" for name in TARGETS[where])
            self.next_confirm += 1
            event = PublishReceived(self.publisher, exchange, key, True, False, properties, [body.encode()])
            self.channels[self.publisher].publish(event)
        self.turns()

    @precondition(lambda self: len(self.channels) < 5)
    @rule(name=names, prefetch=st.integers(1, 3))
    def consume(self, name: str, prefetch: int) -> None:
        channel = self.channel()
        self.consumed[channel] = name
        self.ask(channel, "basic.qos", prefetch_size=0, prefetch_count=prefetch, **{"global": False})
        self.ask(channel, "basic.consume", queue=name, consumer_tag="c", no_ack=False, exclusive=False)

    @rule(name=names)
    def get(self, name: str) -> None:
        channel = self.channel()
        self.consumed[channel] = name
        is_empty = not self.models[name].ready
        self.ask(channel, "basic.get", queue=name, no_ack=False)
        assert (not self.tags[channel]) == is_empty

    def a_tag(self, data: st.DataObject) -> tuple[int, int, str, Message]:
        held = [(channel, tag) for channel, tags in self.tags.items() for tag in tags]
        channel, tag = data.draw(st.sampled_from(held))
        return channel, tag, *self.tags[channel].pop(tag)

    @property
    def holds_any(self) -> bool:
        return any(self.tags.values())

    @precondition(lambda self: self.holds_any)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        channel, tag, name, message = self.a_tag(data)
        self.models[name].settle(message)
        self.channels[channel].ack(AckReceived(channel, [tag], False))
        self.turns()

    @precondition(lambda self: self.holds_any)
    @rule(data=st.data())
    def acknowledge_all_up_to_it(self, data: st.DataObject) -> None:
        channel, tag, name, message = self.a_tag(data)
        for each in [each for each in self.tags[channel] if each <= tag]:
            self.models[name].settle(self.tags[channel].pop(each)[1])
        self.models[name].settle(message)
        self.channels[channel].ack(AckReceived(channel, [tag], True))
        self.turns()

    @precondition(lambda self: self.holds_any)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        channel, tag, name, message = self.a_tag(data)
        self.came_back(name, message)
        self.ask(channel, "basic.nack", delivery_tag=tag, multiple=False, requeue=True)

    @precondition(lambda self: self.holds_any)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        channel, tag, name, message = self.a_tag(data)
        self.models[name].settle(message)
        if name == "limited":
            self.dies(message)
        self.ask(channel, "basic.reject", delivery_tag=tag, requeue=False)

    @precondition(lambda self: len(self.channels) > 1)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """The consumer is gone: what it holds comes back, to its old place."""
        channel = data.draw(st.sampled_from([each for each in self.channels if each != self.publisher]))
        for name, message in self.tags.pop(channel).values():
            self.came_back(name, message)
        self.channels[channel].close()
        del self.channels[channel]
        self.turns()

    def came_back(self, name: str, message: Message) -> None:
        model = self.models[name]
        model.held = [each for each in model.held if each is not message]
        if name == "limited":
            message.returns += 1
            if message.returns > LIMIT:
                model.settle(message)
                self.dies(message)

    def dies(self, message: Message) -> None:
        self.models["dead"].published(message.body, 0)

    @rule(name=names)
    def purge(self, name: str) -> None:
        for message in self.models[name].ready:
            self.models[name].settle(message)
        self.ask(self.publisher, "queue.purge", queue=name)

    # ---- time, and the end of it ------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.flusher.flush()
        self.turns()
        assert not self.in_flight, "what was published is flushed and not confirmed"

    @rule()
    def checkpoint(self) -> None:
        """Journals are synced too."""
        self.store.checkpoint(everything=True)
        for model in self.models.values():
            model.settled_for_good |= model.settled

    @rule()
    def kill(self) -> None:
        returns = {each.body: each.returns for each in self.models["limited"].live}
        self.disk.kill()
        self.restart()
        found = {each.body: each.returns for each in self.models["limited"].live}
        assert found == returns, "how often messages came back is remembered"
        for model in self.models.values():
            model.held = []
        for name in QUEUES:
            assert self.contents(name) == [each.body for each in self.in_order(name)], f"{name} after a kill"

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.disk.crash(seed)
        self.restart()
        for name, model in self.models.items():
            found = self.contents(name)
            known = [body for body in found if body in model.ever]
            assert known == found, f"{name} holds what nobody published"
            assert len(set(found)) == len(found), f"{name} holds a message twice"
            lost = {each.body for each in model.live if f"{name}/{each.body}" in self.promised} - set(found)
            assert not lost, f"{name} lost {lost}, which were confirmed"
            back = set(found) & model.settled_for_good
            assert not back, f"{name} has {back} again, which were settled before a checkpoint"
            order = list(model.ever)
            by_lane = sorted(found, key=lambda body: (-model.ever[body].lane, order.index(body)))
            assert found == by_lane, f"{name} has another order"
            self.adopt(model, found)
        if any(message.body in self.models["dead"].ever for message in self.models["limited"].live):
            # A rejection was lost and its dead letter was not: the model tells messages apart by their bodies.
            self.purge("limited")

    def adopt(self, model: Model, found: list[str]) -> None:
        """What was not promised may have gone either way; from now on it is as it was found."""
        model.live = [message for body, message in model.ever.items() if body in set(found)]
        model.held = []
        model.settled -= set(found)
        model.settled_for_good = set(model.settled)
        model.ever = {body: model.ever[body] for body in model.ever if body in set(found) | model.settled}
        for message in model.live:
            message.may_be_unmarked = True

    def restart(self) -> None:
        self.start()
        for name in QUEUES:
            queue = self.host.queues[name]
            for message in self.models[name].ever.values():
                message.returns = 0
            for number, lane in enumerate(queue._lanes):
                for offset, each in lane.messages(lane.floor, lane.ready):
                    known = self.models[name].ever.get(each.body.decode())
                    if known is not None:
                        known.returns = queue._journal.returns(number, offset)

    def contents(self, name: str) -> list[str]:
        lanes = self.host.queues[name]._lanes
        return [
            message.body.decode() for lane in reversed(lanes) for _, message in lane.messages(lane.floor, lane.ready)
        ]

    def in_order(self, name: str) -> list[Message]:
        return sorted(self.models[name].live, key=lambda each: -each.lane)

    @invariant()
    def counts_agree(self) -> None:
        for name, model in self.models.items():
            queue = self.host.queues[name]
            assert (queue.ready, queue.unacknowledged) == (len(model.ready), len(model.held)), name


QueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_queues_are_their_model_also_after_kills_and_power_failures = QueueMachine.TestCase
