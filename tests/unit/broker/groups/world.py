"""A coordinator with everything around it, for tests that speak requests."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from headrace.broker.access import Gate
from headrace.broker.groups import GroupCoordinator
from headrace.broker.groups.admin import GroupAdmin
from headrace.broker.groups.commits import OffsetHandler
from headrace.broker.groups.offset_fetch import OffsetFetchHandler
from headrace.broker.groups.offsets import Offsets
from headrace.broker.groups.registry import Groups
from headrace.broker.request import Request
from headrace.broker.slices import Slices
from headrace.broker.transactions.registry import Transactions
from headrace.config import Settings
from headrace.errors import ErrorCode
from headrace.wire.kafka.codec import write_message
from headrace.wire.kafka.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from headrace.wire.kafka.messages.consumer_protocol import ConsumerProtocolSubscription
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from headrace.wire.kafka.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.unit.broker.fakes import (
    FakeClock,
    FakeState,
    FakeTopics,
    executed,
    over_wire,
    request,
    settle,
    when_answered,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on its own loop."""

    @wraps(test)
    def runs(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return runs


def subscription(*topics: str, version: int = 0) -> bytes:
    """What a consumer puts into its join."""
    message = ConsumerProtocolSubscription(topics=list(topics))
    return struct.pack(">h", version) + b"".join(bytes(each) for each in write_message(message, version))


class World:
    """One broker's groups. ``crash`` puts a new coordinator on what was durable."""

    def __init__(self, *, auto_flush: bool = True, topics: FakeTopics | None = None, **settings: Any) -> None:
        self.clock = FakeClock()
        self.slices = Slices()
        self.topics = topics or FakeTopics(orders=4, payments=3)
        given = {"group.initial.rebalance.delay.ms": 0}
        given.update({name.replace("_", "."): value for name, value in settings.items()})
        self.settings = Settings(given)
        self._ids = itertools.count(1)
        self.state = FakeState(auto_flush=auto_flush)
        self.groups = self._coordinator()
        self.check_producer: Callable[[Request[Any]], ErrorCode] = lambda _: ErrorCode.NONE

    def _coordinator(self) -> GroupCoordinator:
        registry = Groups()
        transactions = Transactions(state=self.state, clock=self.clock)  # type: ignore[arg-type]
        self.gate = Gate(topics=self.topics, groups=registry, transactions=transactions, authorizer=None)
        offsets = Offsets(self.state)  # type: ignore[arg-type]
        groups = GroupCoordinator(
            state=self.state,  # type: ignore[arg-type]
            clock=self.clock,
            settings=self.settings,
            topics=self.topics,  # type: ignore[arg-type]
            groups=registry,
            offsets=offsets,
            new_id=lambda: f"id{next(self._ids)}",
        )
        groups.load()
        self.registry = registry
        self.offsets = OffsetHandler(
            state=self.state,  # type: ignore[arg-type]
            clock=self.clock,
            settings=self.settings,
            topics=self.topics,  # type: ignore[arg-type]
            groups=registry,
            offsets=offsets,
            ensure_group=groups.ensure,
        )
        self.offset_fetch = OffsetFetchHandler(
            state=self.state,  # type: ignore[arg-type]
            offsets=offsets,
            settings=self.settings,
        )
        self.admin = GroupAdmin(
            state=self.state,  # type: ignore[arg-type]
            settings=self.settings,
            remove_group=groups.remove,
        )
        return groups

    def crash(self) -> None:
        """Kill -9 and a start: answers that were not given never come."""
        dead, self.state = self.groups, self.state.after_crash(auto_flush=self.state.auto_flush)
        self.topics.forget_listeners()
        self.clock._timers.clear()
        self.groups = self._coordinator()
        del dead

    # ---- requests ----

    def call(self, method: str, body: Any, version: int, **who: Any) -> asyncio.Future[Any]:
        """Send; the future is the answer as the client reads it."""
        asked = request(body, version, **who)
        asked.access = self.gate.access(asked.peer.principal)
        if method == "txn_offset_commit":
            reply = self.offsets.txn_offset_commit(asked, self.check_producer)
        else:
            handler = next(
                each for each in (self.groups, self.offsets, self.offset_fetch, self.admin) if hasattr(each, method)
            )
            reply = getattr(handler, method)(asked)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def ready(response: Any) -> None:
            try:
                answered.set_result(over_wire(response, version))
            except Exception as error:
                answered.set_exception(error)

        when_answered(executed(reply, self.slices), ready)
        return answered

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        **who: Any,
    ) -> asyncio.Future[JoinGroupResponse]:
        offered = [("range", subscription("orders"))] if protocols is None else protocols
        body = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in offered],
        )
        return self.call("join_group", body, version, **who)

    async def new_member(self, **join: Any) -> asyncio.Future[JoinGroupResponse]:
        """Both steps of a dynamic member's first join; the second is under way."""
        asked = await self.join(**join)
        assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED, ErrorCode(asked.error_code)
        return self.join(asked.member_id, **join)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        version: int = 4,
        **fields: Any,
    ) -> asyncio.Future[SyncGroupResponse]:
        body = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=each, assignment=assignment)
                for each, assignment in (assignments or {}).items()
            ],
            **fields,
        )
        return self.call("sync_group", body, version)

    async def beat(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None
    ) -> ErrorCode:
        body = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return ErrorCode((await self.call("heartbeat", body, 4)).error_code)

    async def leave(self, *members: tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        body = LeaveGroupRequest(
            group_id=group,
            members=[MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members],
        )
        answer = await self.call("leave_group", body, 5)
        assert answer.error_code == ErrorCode.NONE
        return [ErrorCode(each.error_code) for each in answer.members]

    async def stable(self, count: int = 2, **join: Any) -> tuple[int, list[str]]:
        """A group with assignments ``a0``, ``a1`` …; its generation and its members, the leader first."""
        waiting = [await self.new_member(**join)]
        await settle()
        for _ in range(count - 1):
            waiting.append(await self.new_member(**join))
            await settle()
            first = (await waiting[0]) if waiting[0].done() else None
            if first is not None:
                waiting[0] = self.join(first.member_id, **join)
                for index in range(1, len(waiting) - 1):
                    waiting[index] = self.join((await waiting[index]).member_id, **join)
        joined = [await each for each in waiting]
        joined.sort(key=lambda each: each.member_id != each.leader)
        members = [each.member_id for each in joined]
        generation = joined[0].generation_id
        assert [each.error_code for each in joined] == [ErrorCode.NONE] * count
        group = join.get("group", "g")
        parts = {member: b"a%d" % index for index, member in enumerate(members)}
        synced = [self.sync(member, generation, group=group) for member in members[1:]]
        synced.append(self.sync(members[0], generation, parts, group=group))
        for each in synced:
            assert (await each).error_code == ErrorCode.NONE
        return generation, members

    async def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        metadata: str | None = None,
        version: int = 9,
        **fields: Any,
    ) -> list[ErrorCode]:
        body = OffsetCommitRequest(group_id=group, member_id=member, generation_id_or_member_epoch=generation, **fields)
        for (topic, partition), offset in offsets.items():
            known = self.topics.get(topic)
            body.topics.append(
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=known.topic_id if known else b"?" * 16,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                    ],
                )
            )
        answer = await self.call("offset_commit", body, version)
        return [ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions]

    async def fetch(self, topic: str, partition: int, *, group: str = "g", stable: bool = False) -> Any:
        body = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
            require_stable=stable,
        )
        return (await self.call("offset_fetch", body, 7)).topics[0].partitions[0]

    async def fetched(self, topic: str, partition: int, *, group: str = "g") -> int:
        return int((await self.fetch(topic, partition, group=group)).committed_offset)

    async def consumer_beat(
        self,
        member: str,
        epoch: int,
        *,
        group: str = "g",
        topics: list[str] | None = None,
        owned: dict[bytes, list[int]] | None = None,
        version: int = 1,
        client_id: str = "test",
        **fields: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        body = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics, **fields
        )
        if epoch == 0:
            body.rebalance_timeout_ms = fields.get("rebalance_timeout_ms", REBALANCE_MS)
            owned = {} if owned is None else owned
        if owned is not None:
            body.topic_partitions = [
                TopicPartitions(topic_id=topic_id, partitions=partitions) for topic_id, partitions in owned.items()
            ]
        answer = await self.call("consumer_group_heartbeat", body, version, client_id=client_id)
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer
