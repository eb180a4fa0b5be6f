"""Groups under joins, leaves, silence, broker crashes and slow disks, with members that follow their protocol honestly.

After every step: no partition has two members that both believe it is theirs; generations and epochs do not go back;
neither do committed offsets, though processes that were replaced try. At the end every rebalance comes to rest, and
each partition has exactly one owner.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import ErrorCode
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from headrace.wire.kafka.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from headrace.wire.kafka.messages.groups import JoinGroupResponse
from tests.unit.broker.fakes import FakeTopics, settle
from tests.unit.broker.groups.world import World

TOPIC = "orders"
PARTITIONS = 5
CLIENTS_MAX = 4
TICK_S = 3.0
SESSION_TICKS = 20
EMBEDDED_VERSION = 1
REBALANCE_MS = 9_000
"""Shorter than a session: who does not join in time is removed."""
SLOW_REBALANCE_MS = 1_800_000
"""Beyond what a run lasts: a member dropped for being slow would believe in its partitions until its next heartbeat."""

GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH)


class Client:
    """A member's process. ``owned`` is what it believes is its own."""

    def __init__(self, world: World, number: int, instance: str | None) -> None:
        self.world = world
        self.number = number
        self.instance = instance
        self.owned: set[int] = set()
        self.waiting: asyncio.Future[Any] | None = None
        self.member_id = ""
        self.epoch = 0
        self.last_commit: dict[int, int] = {}
        self.slow = False
        """Slow to give up what it must (in the consumer protocol)."""

    async def step(self) -> None:
        """Look at the answer that was waited for, or else say the next thing."""
        if self.waiting is None:
            self.say()
            await settle()
        if self.waiting is not None and self.waiting.done():
            answered, self.waiting = self.waiting.result(), None
            self.hear(answered)
            await settle()

    def say(self) -> None:
        raise NotImplementedError

    def hear(self, answered: Any) -> None:
        raise NotImplementedError

    def connection_lost(self) -> None:
        self.waiting = None

    async def leave(self) -> None:
        raise NotImplementedError

    def settled(self) -> bool:
        raise NotImplementedError


class ClassicClient(Client):
    """Eager: gives up everything before it joins. Cooperative: keeps what it has, and joins again after giving up."""

    def __init__(
        self, world: World, number: int, instance: str | None, *, cooperative: bool, rebalance_ms: int
    ) -> None:
        super().__init__(world, number, instance)
        self.cooperative = cooperative
        self.rebalance_ms = rebalance_ms
        self.joining = True
        self.synced_generation = -1
        self.seen_generation = 0
        self.assignments: dict[str, bytes] | None = None
        self.syncing = False

    def say(self) -> None:
        if self.syncing:
            self.waiting = self.world.sync(self.member_id, self.epoch, self.assignments, instance=self.instance)
        elif self.joining:
            self.waiting = self.world.join(
                self.member_id,
                instance=self.instance,
                protocols=[("sticky", self._metadata())],
                rebalance_ms=self.rebalance_ms,
            )
        else:
            self.waiting = asyncio.ensure_future(self.world.beat(self.member_id, self.epoch, instance=self.instance))

    def hear(self, answered: Any) -> None:
        if isinstance(answered, JoinGroupResponse):
            self._joined(answered)
        elif self.syncing:
            self._synced(ErrorCode(answered.error_code), answered.assignment)
        elif answered != ErrorCode.NONE:
            self._rejoin(answered)

    def _joined(self, answered: JoinGroupResponse) -> None:
        code = ErrorCode(answered.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answered.member_id
            return
        if code is not ErrorCode.NONE:
            self._rejoin(code)
            return
        self.member_id, self.epoch = answered.member_id, answered.generation_id
        self.seen_generation = answered.generation_id
        self.joining, self.syncing = False, True
        leads = answered.leader == answered.member_id and not answered.skip_assignment
        self.assignments = _share({each.member_id: each.metadata for each in answered.members}) if leads else None

    def _synced(self, code: ErrorCode, assignment: bytes) -> None:
        self.syncing = False
        if code is not ErrorCode.NONE:
            self._rejoin(code)
            return
        given = _partitions_of(assignment)
        gives_up = self.owned - given
        self.owned = given
        self.synced_generation = self.epoch
        if gives_up:
            assert self.cooperative, "an eager member has nothing when it syncs"
            self.joining = True

    def _rejoin(self, code: ErrorCode) -> None:
        self.joining, self.syncing = True, False
        if code in GONE or not self.cooperative:
            self.owned = set()
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def connection_lost(self) -> None:
        if self.waiting is not None and (self.joining or self.syncing):
            self.joining, self.syncing = True, False
            if not self.cooperative:
                self.owned = set()
        super().connection_lost()

    def _metadata(self) -> bytes:
        owned = sorted(self.owned) if self.cooperative else []
        claim = json.dumps({"owned": owned, "generation": self.synced_generation}).encode()
        has = [TopicPartition(topic=TOPIC, partitions=owned)] if owned else []
        return _embedded(ConsumerProtocolSubscription(topics=[TOPIC], user_data=claim, owned_partitions=has))

    async def leave(self) -> None:
        self.owned = set()
        if self.member_id:
            await self.world.leave((self.member_id, self.instance))

    def settled(self) -> bool:
        return not self.joining and not self.syncing and self.waiting is None


def _share(members: dict[str, bytes]) -> dict[str, bytes]:
    """A sticky assignor that gives nobody what another member still has; that comes in the next rebalance."""
    claims: dict[int, tuple[int, str]] = {}
    for member_id, metadata in members.items():
        message, _ = read_message(ConsumerProtocolSubscription, EMBEDDED_VERSION, metadata, 2)
        claim = json.loads(message.user_data or b"{}")
        for partition in claim["owned"]:
            claims[partition] = max(claims.get(partition, (-2, "")), (claim["generation"], member_id))
    shares: dict[str, list[int]] = {member_id: [] for member_id in members}
    room = -(-PARTITIONS // len(members))
    for partition in sorted(range(PARTITIONS), key=lambda each: each not in claims):
        holder = claims.get(partition, (0, ""))[1]
        if holder in shares and len(shares[holder]) < room:
            shares[holder].append(partition)
        elif not holder:
            least = min(shares, key=lambda each: len(shares[each]))
            shares[least].append(partition)
    return {member_id: _assignment_of(share) for member_id, share in shares.items()}


def _embedded(message: Any) -> bytes:
    chunks = write_message(message, EMBEDDED_VERSION)
    return struct.pack(">h", EMBEDDED_VERSION) + b"".join(bytes(chunk) for chunk in chunks)


def _assignment_of(partitions: list[int]) -> bytes:
    given = [ConsumerProtocolAssignmentTopicPartition(topic=TOPIC, partitions=partitions)] if partitions else []
    return _embedded(ConsumerProtocolAssignment(assigned_partitions=given))


def _partitions_of(assignment: bytes) -> set[int]:
    if not assignment:
        return set()
    message, _ = read_message(ConsumerProtocolAssignment, EMBEDDED_VERSION, assignment, 2)
    return {partition for topic in message.assigned_partitions for partition in topic.partitions}


class ConsumerClient(Client):
    """KIP-848. It may take its time between being told what to have and having it; then it says what it has."""

    def __init__(self, world: World, number: int, instance: str | None) -> None:
        super().__init__(world, number, instance)
        self.member_id = f"process-{number}"
        self.told: set[int] = set()
        self.said: set[int] | None = None
        self.full = True

    def say(self) -> None:
        if self.epoch == 0:
            self.owned = self.told = set()
            self.full = True
        if not self.slow:
            self.owned = set(self.told)  # what it must give up it gives up now, and says so
        tells = self.full or self.owned != self.said
        body = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance
        )
        if self.full:
            body.rebalance_timeout_ms = SLOW_REBALANCE_MS
            body.subscribed_topic_names = [TOPIC]
        if tells:
            topic = self.world.topics.get(TOPIC)
            assert topic is not None
            partitions = sorted(self.owned)
            body.topic_partitions = (
                [TopicPartitions(topic_id=topic.topic_id, partitions=partitions)] if partitions else []
            )
        self.said = set(self.owned)
        self.waiting = self.world.call("consumer_group_heartbeat", body, 1)

    def hear(self, answered: Any) -> None:
        code = ErrorCode(answered.error_code)
        if code in GONE or code is ErrorCode.GROUP_ID_NOT_FOUND:
            self.epoch = 0
            self.owned = self.told = set()
        elif code is ErrorCode.NONE:
            assert answered.member_epoch >= self.epoch, "a member's epoch went back"
            self.epoch = answered.member_epoch
            self.full = False
            if answered.assignment is not None:
                self.told = {each for topic in answered.assignment.topic_partitions for each in topic.partitions}
                if self.owned <= self.told:
                    self.owned = set(self.told)
        else:
            assert code in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE), code
            self.full = True

    def connection_lost(self) -> None:
        super().connection_lost()
        self.full = True

    async def leave(self) -> None:
        self.owned = set()
        await self.world.consumer_beat(self.member_id, -1, instance_id=self.instance)

    def settled(self) -> bool:
        return self.epoch > 0 and self.owned == self.told == self.said and self.waiting is None


class Groups(RuleBasedStateMachine):
    """One group; the subclasses say of which kinds its members are."""

    kinds: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clients: list[Client] = []
        self.zombies: list[Client] = []
        self.numbers = itertools.count(1)
        self.issued = [0] * PARTITIONS
        self.acknowledged = [0] * PARTITIONS
        self.generation_max = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(slow=st.lists(st.booleans(), min_size=1, max_size=3), delay_ms=st.sampled_from([0, 3000]))
    def begin(self, slow: list[bool], delay_ms: int) -> None:
        """A few members are there from the start, and so is their first rebalance."""
        self.world = World(
            topics=FakeTopics(**{TOPIC: PARTITIONS}),
            group_initial_rebalance_delay_ms=delay_ms,
            offsets_retention_check_interval_ms=10**9,
        )
        for each in slow:
            self.a_process_starts(static=False, slow=each)
            self.everybody_goes_on(rounds=3)

    def client(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    def start(self, instance: str | None) -> None:
        number = next(self.numbers)
        kind = self.kinds[number % len(self.kinds)]
        if kind == "consumer":
            self.clients.append(ConsumerClient(self.world, number, instance))
        else:
            rebalance_ms = SLOW_REBALANCE_MS if "consumer" in self.kinds else REBALANCE_MS
            cooperative = kind == "cooperative"
            client = ClassicClient(self.world, number, instance, cooperative=cooperative, rebalance_ms=rebalance_ms)
            self.clients.append(client)

    # ---- what happens ----

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(static=st.booleans(), slow=st.booleans())
    def a_process_starts(self, static: bool, slow: bool) -> None:
        self.start(f"instance-{next(self.numbers)}" if static else None)
        self.clients[-1].slow = slow

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9), times=st.integers(1, 4))
    def a_member_goes_on(self, index: int, times: int) -> None:
        for _ in range(times):
            self.run(self.client(index).step())

    @rule(rounds=st.integers(1, 3))
    def everybody_goes_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in self.clients:
                self.run(client.step())

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9))
    def a_process_dies(self, index: int) -> None:
        dead = self.client(index)
        self.clients.remove(dead)
        self.zombies.append(dead)

    @precondition(lambda self: any(each.instance for each in self.zombies))
    @rule()
    def a_static_member_is_started_again(self) -> None:
        before = next(each for each in self.zombies if each.instance)
        self.zombies.remove(before)
        self.start(before.instance)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9))
    def a_member_leaves(self, index: int) -> None:
        gone = self.client(index)
        self.clients.remove(gone)
        self.world.state.auto_flush = True
        self.world.state.flush()
        self.run(gone.leave())

    @rule(slow=st.booleans())
    def the_disk_is_slow_or_not(self, slow: bool) -> None:
        self.world.state.auto_flush = not slow
        if not slow:
            self.world.state.flush()
        self.run(settle())

    @precondition(lambda self: "consumer" in self.kinds and self.clients)
    @rule(index=st.integers(0, 9), slow=st.booleans())
    def a_member_takes_its_time(self, index: int, slow: bool) -> None:
        self.client(index).slow = slow

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9))
    def an_answer_is_lost(self, index: int) -> None:
        self.client(index).connection_lost()

    @rule()
    def the_broker_is_killed_and_starts_again(self) -> None:
        self.run(self._crash())

    async def _crash(self) -> None:
        self.world.crash()
        for client in self.clients:
            client.connection_lost()
        await settle()

    @rule(ticks=st.integers(1, 5))
    def time_passes(self, ticks: int) -> None:
        for _ in range(ticks):
            self.run(self._tick())

    async def _tick(self) -> None:
        self.world.state.flush()
        await settle()
        await self.world.clock.advance(TICK_S)
        for client in self.clients:
            await client.step()

    # ---- commits ----

    @precondition(lambda self: any(client.owned for client in self.clients))
    @rule(index=st.integers(0, 9))
    def an_owner_commits(self, index: int) -> None:
        owners = [client for client in self.clients if client.owned]
        client = owners[index % len(owners)]
        self._commits(client, min(client.owned))

    @precondition(lambda self: any(zombie.last_commit for zombie in self.zombies))
    @rule(index=st.integers(0, 9))
    def a_process_that_was_thought_dead_commits_what_it_had(self, index: int) -> None:
        able = [zombie for zombie in self.zombies if zombie.last_commit]
        zombie = able[index % len(able)]
        partition, offset = next(iter(zombie.last_commit.items()))
        self.world.state.auto_flush = True
        self.run(self._commit(zombie, partition, offset))

    @precondition(lambda self: len(self.clients) > 1 and any(client.owned for client in self.clients))
    @rule(index=st.integers(0, 9))
    def a_process_hangs_until_another_has_its_part_and_then_commits(self, index: int) -> None:
        owners = [client for client in self.clients if client.owned]
        sleeper = owners[index % len(owners)]
        partition = min(sleeper.owned)
        self._commits(sleeper, partition)
        self.clients.remove(sleeper)
        self.zombies.append(sleeper)
        self.time_passes(SESSION_TICKS)
        heirs = [client for client in self.clients if partition in client.owned]
        if heirs and self._commits(heirs[0], partition):
            late = self.run(self._commit(sleeper, partition, sleeper.last_commit.get(partition, 0)))
            assert late != [ErrorCode.NONE]

    def _commits(self, client: Client, partition: int) -> bool:
        self.issued[partition] += 1
        self.world.state.auto_flush = True
        self.world.state.flush()
        if self.run(self._commit(client, partition, self.issued[partition])) != [ErrorCode.NONE]:
            return False
        self.acknowledged[partition] = client.last_commit[partition] = self.issued[partition]
        return True

    async def _commit(self, client: Client, partition: int, offset: int) -> list[ErrorCode]:
        return await self.world.commit(
            {(TOPIC, partition): offset},
            member=client.member_id,
            generation=client.epoch,
            group_instance_id=client.instance,
        )

    # ---- what must hold ----

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = [partition for client in self.clients for partition in client.owned]
        assert len(owned) == len(set(owned)), [(each.member_id, each.epoch, each.owned) for each in self.clients]

    @invariant()
    def generations_do_not_go_back(self) -> None:
        for client in self.clients:
            if isinstance(client, ClassicClient) and client.syncing:
                assert client.seen_generation >= client.synced_generation
        if hasattr(self, "world"):
            told = self.world.state.durable.get("group_generations", {}).get("g", 0)
            row = self.world.state.durable.get("groups", {}).get("g", {})
            now = max(told, row.get("generation", 0), row.get("epoch", 0))
            assert now >= self.generation_max or self.changes_protocol(), "the journal went back"
            self.generation_max = now
            assert all(client.epoch <= now for client in self.clients), "a member was told what is not durable"

    def changes_protocol(self) -> bool:
        """A group that empties takes the next member's protocol and starts counting again, as in Apache Kafka."""
        return len(self.kinds) > 1

    @invariant()
    def committed_offsets_do_not_go_back(self) -> None:
        if not hasattr(self, "world"):
            return
        for partition in range(PARTITIONS):
            found = self.world.offsets.committed_offset("g", TOPIC, partition) or 0
            assert self.acknowledged[partition] <= found <= self.issued[partition]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.run(self._come_to_rest())
        self.loop.close()

    async def _come_to_rest(self) -> None:
        self.world.state.auto_flush = True
        for client in self.clients:
            client.slow = False
        for _ in range(60):
            await self._tick()
            self.no_partition_has_two_owners()
        if self.clients:
            assert all(client.settled() for client in self.clients), "a rebalance does not end"
            assert sorted(each for client in self.clients for each in client.owned) == list(range(PARTITIONS))
        self.world.groups.close()
        assert self.world.clock.pending() == 0


class Eager(Groups):
    kinds = ("eager",)


class Cooperative(Groups):
    kinds = ("cooperative",)


class Consumer(Groups):
    kinds = ("consumer",)


class Upgrading(Groups):
    """Members of both protocols come and go, so that the group changes its own back and forth."""

    kinds = ("cooperative", "consumer")


class UpgradingEager(Groups):
    kinds = ("eager", "consumer", "consumer", "eager")


SETTINGS = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
for machine in (Eager, Cooperative, Consumer, Upgrading, UpgradingEager):
    machine.TestCase.settings = SETTINGS

test_eager_members_never_share_a_partition = Eager.TestCase
test_cooperative_members_never_share_a_partition = Cooperative.TestCase
test_consumers_never_share_a_partition = Consumer.TestCase
test_members_of_two_protocols_never_share_a_partition = Upgrading.TestCase
test_eager_members_and_consumers_never_share_a_partition = UpgradingEager.TestCase
