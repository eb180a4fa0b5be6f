"""Clients of both kinds run transactions while the broker crashes at random moments with random survivors.

The clients are honest: they repeat what was not answered, commit when all is acknowledged, and start over with
InitProducerId where the answer asks for it. What must hold: a transaction that was reported to its client as committed
is there whole, one reported as aborted is nowhere, and one whose end the client never learned is either of both, in all
partitions and in the group's offsets alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.request import Peer
from headrace.errors import ErrorCode
from tests.unit.broker.txn_disk import DiskWorld
from tests.unit.broker.txn_fakes import FakePartition, Producer, World, result, waits

IN_FLIGHT_MAX = 5
"""A log remembers so many batches of a producer; no idempotent client has more under way."""

RETRY = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass
class Told:
    """One transaction as its client knows it."""

    name: str
    offset: int
    values: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    unacknowledged: list[tuple[tuple[str, int], str, int, int]] = field(default_factory=list)
    """(partition, value, sequence, offset) of what may have to be sent again."""
    offset_stored_at: int | None = None
    offset_acknowledged: bool = False
    end: bool | None = None
    """The outcome the client asked for, once it has."""
    known: bool = False
    """Whether it was told that this is the outcome."""


class Client:
    """A producer with a transactional id and a group whose offsets it commits."""

    def __init__(self, name: str, *, bumps: bool, peer: Peer) -> None:
        self.name = name
        self.bumps = bumps
        self.peer = peer
        self.producer: Producer | None = None
        self.told: list[Told] = []
        self.open: Told | None = None
        self.waiting: tuple[str, Any] | None = None
        self.count = 0

    @property
    def group(self) -> str:
        return f"group-of-{self.name}"

    def step(self, world: World, chance: random.Random) -> None:
        self.hear_acknowledgements(world)
        if self.waiting is not None:
            self.look(world)
        elif self.producer is None:
            self.waiting = ("init", world.init(self.name, peer=self.peer, version=5))
            self.look(world)
        elif self.open is None:
            self.count += 1
            self.open = Told(f"{self.name}/{self.count}", self.count)
            self.told.append(self.open)
        elif self.open.end is not None or (self.open.values and chance.random() < 0.4):
            if self.open.end is not None or not self.open.unacknowledged:
                self.ask_end(world, chance)
        elif len(self.open.unacknowledged) < IN_FLIGHT_MAX:
            self.write(world, chance)

    def hear_acknowledgements(self, world: World) -> None:
        if self.open is None:
            return
        flushed = {(each.topic, each.index): each.waiters.flushed for each in world.partitions}
        self.open.unacknowledged = [each for each in self.open.unacknowledged if each[3] >= flushed[each[0]]]
        stored_at = self.open.offset_stored_at
        if stored_at is not None and stored_at < world.state.waiters.flushed:
            self.open.offset_acknowledged = True

    def write(self, world: World, chance: random.Random) -> None:
        assert self.producer is not None
        assert self.open is not None
        partition = chance.choice(world.partitions)
        where = (partition.topic, partition.index)
        if not self.bumps and where not in self.open.values:
            self.waiting = ("join", (world.add(self.producer, partition, peer=self.peer), partition))
            self.look(world)
            return
        self.append(world, partition)
        if self.open is not None and chance.random() < 0.5:
            self.commit_offset(world)

    def commit_offset(self, world: World) -> None:
        assert self.producer is not None
        assert self.open is not None
        code = world.commit_offsets(self.producer, self.group)
        if code is ErrorCode.NONE:
            self.open.offset_stored_at = world.groups.pend(self.producer.id, self.group, self.open.offset)

    def append(self, world: World, partition: FakePartition) -> None:
        assert self.open is not None
        value = f"{self.open.name}:{sum(map(len, self.open.values.values()))}"
        self.send(world, partition, value, None)

    def send(self, world: World, partition: FakePartition, value: str, sequence: int | None) -> None:
        assert self.producer is not None
        assert self.open is not None
        where = (partition.topic, partition.index)
        version = 12 if self.bumps else 11
        code = world.check_produce(self.producer, partition, version)
        if code is ErrorCode.NONE:
            sequence, offset = self.producer.append(partition, value, sequence)
            self.open.unacknowledged.append((where, value, sequence, offset))
            if value not in self.open.values.setdefault(where, []):
                self.open.values[where].append(value)
        elif sequence is not None or code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS):
            self.start_over()

    def ask_end(self, world: World, chance: random.Random) -> None:
        assert self.producer is not None
        assert self.open is not None
        if self.open.end is None:
            self.open.end = chance.random() < 0.7
        reply = world.end(self.producer, commit=self.open.end, version=5 if self.bumps else 4, peer=self.peer)
        self.waiting = ("end", reply)
        self.look(world)

    def look(self, world: World) -> None:
        """See whether the answer has come, and act on it."""
        assert self.waiting is not None
        kind, waiting = self.waiting
        reply = waiting[0] if kind == "join" else waiting
        if waits(reply):
            return
        reply = result(reply)
        self.waiting = None
        if kind == "init":
            if reply.error_code == 0:
                self.producer = Producer(self.name, reply.producer_id, reply.producer_epoch)
        elif kind == "join":
            code = reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code == 0:
                self.append(world, waiting[1])
            elif code not in RETRY:
                self.start_over()
        else:
            self.ended(reply)

    def ended(self, reply: Any) -> None:
        assert self.producer is not None
        assert self.open is not None
        if reply.error_code == 0:
            self.open.known = True
            self.open = None
            if self.bumps:
                self.producer.moved(reply.producer_id, reply.producer_epoch)
        elif reply.error_code not in RETRY:
            self.start_over()

    def start_over(self) -> None:
        """Fenced or confused: what is open has an unknown end, unless none was asked for."""
        self.producer = None
        self.open = None
        self.waiting = None

    def broker_crashed(self, chance: random.Random, world: World, peer: Peer) -> None:
        """The connection is gone. A client repeats what was not answered, or gives up and starts over."""
        self.peer = peer
        self.waiting = None
        if self.open is None:
            return
        if not self.open.offset_acknowledged:
            self.open.offset_stored_at = None
        again, self.open.unacknowledged = self.open.unacknowledged, []
        if chance.random() < 0.3:
            self.start_over()
            return
        partitions = {(each.topic, each.index): each for each in world.partitions}
        for where, value, sequence, _ in again:
            if self.open is not None:
                self.send(world, partitions[where], value, sequence)


def check(world: World, clients: list[Client]) -> None:
    outcomes = {(each.topic, each.index): each.outcome() for each in world.partitions}
    assert all(open_ == [] for _, _, open_ in outcomes.values()), "a transaction hangs"
    for committed, _, _ in outcomes.values():
        assert len(set(committed)) == len(committed), "a record is there twice"
    for client in clients:
        stored = world.groups.committed(client.group) or 0
        assert stored in {0} | {told.offset for told in client.told if told.end}, "offsets of an aborted transaction"
        for told in client.told:
            check_one(told, {where: outcome[0] for where, outcome in outcomes.items()}, stored)


def check_one(told: Told, committed: dict[tuple[str, int], list[str]], stored_offset: int) -> None:
    values = [(where, value) for where, values in told.values.items() for value in values]
    there = [(where, value) for where, value in values if value in committed[where]]
    assert there in ([], values), f"{told.name} is there in part: {there} of {values}"
    if told.known and told.end:
        assert there == values, f"{told.name} was committed and is not there"
    if there:
        assert told.end, f"{told.name} is there and nobody asked to commit it"
        if told.offset_acknowledged:
            assert stored_offset >= told.offset, f"{told.name} is there without its offset"


def run_model(world: Any, seed: int, steps: int) -> None:
    """``world`` is a ``World``, or whatever takes its place."""
    chance = random.Random(seed)
    clients = [Client(name, bumps=bumps, peer=Peer(id=1)) for name, bumps in (("old", False), ("new", True))]
    ids: list[tuple[str, int]] = []
    try:
        for number in range(steps):
            event = chance.random()
            if event < 0.08:
                world = world.crash(chance.randint)
                for client in clients:
                    client.broker_crashed(chance, world, Peer(id=number + 2))
            elif event < 0.3:
                world.flush_state()
            elif event < 0.5:
                world.flush_partitions(chance.choice(world.partitions))
            elif event < 0.53:
                world.advance(chance.randint(100, 30_000))
            else:
                chance.choice(clients).step(world, chance)
            ids += [(each.name, each.producer.id) for each in clients if each.producer]
        world = world.crash(chance.randint)
        world.advance(200_000)
        world.flush()
        check(world, clients)
        owners = {producer_id: name for name, producer_id in ids}
        assert all(owners[producer_id] == name for name, producer_id in ids), "two clients shared a producer id"
    finally:
        world.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), steps=st.integers(20, 120))
def test_whatever_crashes_a_transaction_is_whole_or_nowhere(seed: int, steps: int) -> None:
    run_model(World(), seed, steps)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), steps=st.integers(20, 120))
def test_the_same_holds_for_the_whole_broker_on_a_disk_that_tears_and_forgets(seed: int, steps: int) -> None:
    run_model(DiskWorld(), seed, steps)
