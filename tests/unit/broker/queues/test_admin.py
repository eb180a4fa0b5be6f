"""Requests about queues: looking, moving, restoring, declaring; what they refuse and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.access import Operation, ResourceType
from headrace.broker.queues.message import Message
from headrace.broker.queues.moves import MESSAGES_MAX, MOVE_BYTES_MAX, NOWHERE, TO_EXCHANGE, TO_ORIGIN
from headrace.broker.queues.queue import Queue
from headrace.errors import ErrorCode
from headrace.wire.amqp.properties import decode_properties, encode_properties
from headrace.wire.amqp.tables import decode_table, encode_table
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.messages.queues import (
    AlterBindingsRequest,
    BindingChange,
    CreateExchangeRequest,
    CreateQueueRequest,
    DeleteExchangeRequest,
    DeleteQueueRequest,
    DescribeExchangesRequest,
    DescribeQueuesRequest,
    LanePlaces,
    LaneRange,
    MoveMessagesRequest,
    PurgeQueueRequest,
    ReadQueueRequest,
    RestoreMessagesRequest,
)
from headrace.wire.kafka.messages.snapshots import CreateSnapshotRequest
from tests.unit.broker.harness import Harness, running, settled

Scenario = Callable[[Harness], Awaitable[None]]


def play(folder: Path, scenario: Scenario, **options: Any) -> None:
    async def run() -> None:
        async with running(folder, **options) as harness:
            await scenario(harness)

    asyncio.run(run())


async def make(harness: Harness, name: str, **arguments: Any) -> Queue:
    answer = await harness.ask(CreateQueueRequest(queue=name, arguments=encode_table(named(arguments))))
    assert (answer.error_code, answer.error_message) == (0, None)
    return harness.broker.queues.virtual_host("/").queues[name]


def named(arguments: dict[str, Any]) -> dict[str, Any]:
    return {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}


def put(queue: Queue, *bodies: str, headers: dict[str, Any] | None = None, priority: int = 0) -> None:
    properties = encode_properties({"headers": headers or {}, "priority": priority})
    for body in bodies:
        queue.publish(Message(b"shop", b"key", properties, body.encode(), 1_000))
    queue.append_waiting()


async def bodies(harness: Harness, name: str, lane: int = 0) -> list[tuple[str, int]]:
    """The bodies of everything that the log of a queue has, and what has become of each."""
    await flushed(harness, name)
    found, offset = [], 0
    while True:
        answer = await harness.ask(ReadQueueRequest(queue=name, lane=lane, offset=offset))
        assert answer.error_code == 0, answer.error_message
        found += [(each.body.decode(), each.state) for each in answer.messages]
        if answer.next_offset >= answer.end:
            return found
        offset = answer.next_offset


async def flushed(harness: Harness, name: str) -> None:
    for lane in harness.broker.queues.virtual_host("/").queues[name].lanes:
        if lane.end:
            done = asyncio.get_running_loop().create_future()
            lane.log.when_acknowledged(lane.end - 1, lambda done=done: done.set_result(None))  # type: ignore[misc]
            await done


def places(*ranges: tuple[int, int], lane: int = 0) -> list[LanePlaces]:
    return [LanePlaces(lane=lane, ranges=[LaneRange(first=first, end=end) for first, end in ranges])]


def take(queue: Queue, count: int) -> list[Any]:
    found = [queue.get(no_ack=False) for _ in range(count)]
    assert all(found)
    return [each[0] for each in found if each]


READY, UNACKNOWLEDGED, GONE = 0, 1, 2


def test_looking_shows_ready_unacknowledged_and_acknowledged_messages_and_takes_none(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q", headrace_retention_ms=-1)
        put(queue, "a", "b", "c")
        first, _ = take(queue, 2)
        queue.acknowledge(first)
        assert await bodies(harness, "q") == [("a", GONE), ("b", UNACKNOWLEDGED), ("c", READY)]
        assert (queue.ready, queue.unacknowledged) == (1, 1)
        [found] = (await harness.ask(DescribeQueuesRequest())).queues
        assert (found.name, found.ready, found.unacknowledged, found.consumers) == ("q", 1, 1, 0)
        assert decode_table(found.arguments, 0, len(found.arguments))[0] == {"x-headrace-retention-ms": -1}
        assert (found.lanes[0].start, found.lanes[0].floor, found.lanes[0].end) == (0, 1, 3)

    play(tmp_path, scenario)


def test_a_long_queue_is_read_in_pages_of_a_limited_size(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q")
        put(queue, *(f"{number:05}" for number in range(2_500)))
        await flushed(harness, "q")
        answer = await harness.ask(ReadQueueRequest(queue="q", count_max=10**6, bytes_max=2**31 - 1))
        assert len(answer.messages) == answer.next_offset == MESSAGES_MAX
        cut = await harness.ask(ReadQueueRequest(queue="q", offset=2_498, body_bytes_max=2))
        assert [(each.body, each.body_bytes) for each in cut.messages] == [(b"02", 5), (b"02", 5)]
        assert [body for body, _ in await bodies(harness, "q")] == [f"{number:05}" for number in range(2_500)]

    play(tmp_path, scenario)


def test_looking_does_not_fill_the_window_from_which_messages_are_delivered(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q")
        put(queue, *("x" * 1_000 for _ in range(600)))
        before = dict(queue.lanes[0]._window)
        await bodies(harness, "q")
        assert dict(queue.lanes[0]._window) == before

    play(tmp_path, scenario)


def test_chosen_messages_are_moved_in_order_and_say_where_they_came_from(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        source, target = await make(harness, "from"), await make(harness, "to")
        put(source, "a", "b", "c", "d", headers={"mine": 1})
        take(source, 1)
        answer = await harness.ask(MoveMessagesRequest(queue="from", routing_key="to", places=places((3, 9), (0, 2))))
        assert (answer.error_code, answer.moved, answer.not_ready) == (0, 2, 1)
        assert [body for body, _ in await bodies(harness, "to")] == ["d", "b"]
        assert (source.ready, source.unacknowledged, target.ready) == (1, 1, 2)
        [moved, _] = (await harness.ask(ReadQueueRequest(queue="to"))).messages
        headers = decode_properties(moved.properties)["headers"]
        assert headers == {"mine": 1, "x-headrace-moved-from": "from/0/3"}
        assert (moved.exchange, moved.routing_key) == (b"shop", b"key")

    play(tmp_path, scenario)


def test_messages_that_are_held_are_delivered_to_nobody_and_those_that_stay_are(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        source, target = await make(harness, "from"), await make(harness, "to")
        put(source, "a", "b", "c")
        reply = harness.start(MoveMessagesRequest(queue="from", routing_key="to", places=places((0, 1), (2, 3))))
        [delivery] = take(source, 1)
        assert (delivery.offset, source.get(no_ack=False)) == (1, None)
        assert (await settled(reply)).moved == 2
        assert (source.ready, target.ready) == (0, 2)

    play(tmp_path, scenario)


def test_many_large_messages_are_moved_some_at_a_time(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        source, target = await make(harness, "from"), await make(harness, "to")
        put(source, *("x" * (MOVE_BYTES_MAX // 3) for _ in range(8)))
        answer = await harness.ask(MoveMessagesRequest(queue="from", routing_key="to", places=places((0, 8))))
        assert (answer.moved, source.ready, target.ready) == (8, 0, 8)

    play(tmp_path, scenario)


def test_a_dead_letter_goes_back_to_the_queue_it_came_from_as_it_was(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        work = await make(harness, "work", dead_letter_exchange="", dead_letter_routing_key="dead")
        dead = await make(harness, "dead")
        put(work, "a", "b")
        for delivery in take(work, 2):
            work.reject(delivery)
        dead.append_waiting()
        put(dead, "never died")
        answer = await harness.ask(MoveMessagesRequest(queue="dead", way=TO_ORIGIN, places=places((0, 10))))
        assert (answer.moved, answer.unroutable) == (2, 1)
        assert (work.ready, dead.ready) == (2, 1)
        [back, _] = (await harness.ask(ReadQueueRequest(queue="work", offset=2))).messages
        assert (back.exchange, back.routing_key, back.body) == (b"shop", b"key", b"a")

    play(tmp_path, scenario)


def test_a_full_queue_refuses_what_is_moved_to_it_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        source, dead = await make(harness, "from"), await make(harness, "dead")
        arguments = {"max_length": 2, "overflow": "reject-publish-dlx", "dead_letter_exchange": ""}
        target = await make(harness, "to", **arguments, dead_letter_routing_key="dead")
        put(source, "a", "b", "c", "d")
        answer = await harness.ask(MoveMessagesRequest(queue="from", routing_key="to", places=places((0, 4))))
        assert (answer.moved, answer.refused) == (2, 2)
        assert (source.ready, target.ready, dead.ready) == (2, 2, 0)

    play(tmp_path, scenario)


def test_messages_that_are_moved_nowhere_are_gone(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q")
        put(queue, "a", "b", "c")
        answer = await harness.ask(MoveMessagesRequest(queue="q", way=NOWHERE, places=places((1, 2))))
        assert (answer.moved, queue.ready) == (1, 2)
        assert (await harness.ask(PurgeQueueRequest(queue="q"))).purged == 2
        assert queue.ready == 0

    play(tmp_path, scenario)


def test_an_exchange_routes_what_is_moved_to_it(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        source, one, other = [await make(harness, name) for name in ("from", "one", "other")]
        assert (await harness.ask(CreateExchangeRequest(exchange="x", kind="topic"))).error_code == 0
        changes = [BindingChange(source="x", destination=name, routing_key="k.#") for name in ("one", "other")]
        assert (await harness.ask(AlterBindingsRequest(changes=changes))).error_code == 0
        put(source, "a")
        unbound = MoveMessagesRequest(queue="from", exchange="x", places=places((0, 1)))
        assert (await harness.ask(unbound)).unroutable == 1
        answer = await harness.ask(
            MoveMessagesRequest(queue="from", exchange="x", routing_key="k.1", places=places((0, 1)))
        )
        assert (answer.moved, source.ready, one.ready, other.ready) == (1, 0, 1, 1)
        [found] = (await harness.ask(DescribeExchangesRequest(name="x"))).exchanges
        assert {each.destination for each in found.bindings} == {"one", "other"}

    play(tmp_path, scenario)


def test_acknowledged_messages_come_back_marked_before_younger_ones(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q", headrace_retention_ms=-1)
        put(queue, "a", "b", "c")
        for delivery in take(queue, 2):
            queue.acknowledge(delivery)
        await asyncio.sleep(0)
        answer = await harness.ask(RestoreMessagesRequest(queue="q", places=places((0, 1))))
        assert (answer.restored, queue.ready) == (1, 2)
        again = await harness.ask(RestoreMessagesRequest(queue="q", places=places((0, 1))))
        assert again.restored == 0
        found = [queue.get(no_ack=False) for _ in range(2)]
        assert [(each[1].body, each[2]) for each in found if each] == [(b"a", True), (b"c", False)]

    play(tmp_path, scenario)


def test_what_was_restored_or_moved_is_so_after_a_restart(tmp_path: Path) -> None:
    async def first(harness: Harness) -> None:
        queue = await make(harness, "q", headrace_retention_ms=-1)
        await make(harness, "to")
        put(queue, "a", "b", "c", "d")
        for delivery in take(queue, 3):
            queue.acknowledge(delivery)
        await asyncio.sleep(0)
        await harness.ask(RestoreMessagesRequest(queue="q", places=places((1, 2))))
        await harness.ask(MoveMessagesRequest(queue="q", routing_key="to", places=places((3, 4))))

    async def second(harness: Harness) -> None:
        assert await bodies(harness, "q") == [("a", GONE), ("b", READY), ("c", GONE), ("d", GONE)]
        assert await bodies(harness, "to") == [("d", READY)]

    play(tmp_path, first)
    play(tmp_path, second)


def test_a_move_that_died_before_its_last_step_leaves_copies_that_say_so(tmp_path: Path) -> None:
    moving = MoveMessagesRequest(queue="from", routing_key="to", places=places((0, 2)))

    async def first(harness: Harness) -> None:
        source = await make(harness, "from")
        await make(harness, "to")
        put(source, "a", "b")
        source.settle_held = lambda moved: None  # the process dies before it
        assert (await harness.ask(moving)).moved == 2

    async def second(harness: Harness) -> None:
        assert await bodies(harness, "to") == [("a", READY), ("b", READY)]
        assert await bodies(harness, "from") == [("a", READY), ("b", READY)]
        got = harness.broker.queues.virtual_host("/").queues["from"].get(no_ack=True)
        assert got is not None
        assert (got[1].body, got[2]) == (b"a", True)
        assert (await harness.ask(moving)).moved == 1
        copies = (await harness.ask(ReadQueueRequest(queue="to"))).messages
        again = ["x-headrace-moved-again" in decode_properties(each.properties)["headers"] for each in copies]
        assert [(each.body, said) for each, said in zip(copies, again, strict=True)] == [
            (b"a", False),
            (b"b", False),
            (b"b", True),
        ]

    play(tmp_path, first)
    play(tmp_path, second)


def test_without_retention_nothing_can_be_restored(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q")
        put(queue, "a")
        queue.acknowledge(take(queue, 1)[0])
        await asyncio.sleep(0)
        assert (await harness.ask(RestoreMessagesRequest(queue="q", places=places((0, 1))))).restored == 0

    play(tmp_path, scenario)


def test_queues_are_listed_a_page_at_a_time(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        for name in ("c", "a", "b"):
            await make(harness, name)
        page = await harness.ask(DescribeQueuesRequest(count_max=2))
        assert ([each.name for each in page.queues], page.is_last) == (["a", "b"], False)
        page = await harness.ask(DescribeQueuesRequest(count_max=2, after="b"))
        assert ([each.name for each in page.queues], page.is_last) == (["c"], True)

    play(tmp_path, scenario)


MISTAKES = [
    (ReadQueueRequest(queue="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (ReadQueueRequest(queue="q", virtual_host="none"), ErrorCode.INVALID_REQUEST),
    (ReadQueueRequest(queue="q", lane=1), ErrorCode.INVALID_REQUEST),
    (DescribeQueuesRequest(name="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (DescribeExchangesRequest(name="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (MoveMessagesRequest(queue="q", routing_key="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (MoveMessagesRequest(queue="q", routing_key="q"), ErrorCode.INVALID_REQUEST),
    (MoveMessagesRequest(queue="q", way=3), ErrorCode.INVALID_REQUEST),
    (MoveMessagesRequest(queue="q", exchange="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (MoveMessagesRequest(queue="q", way=NOWHERE, places=places((0, 1_001))), ErrorCode.INVALID_REQUEST),
    (MoveMessagesRequest(queue="q", way=NOWHERE, places=places((5, 4))), ErrorCode.INVALID_REQUEST),
    (MoveMessagesRequest(queue="q", way=NOWHERE, places=places((0, 1), lane=-1)), ErrorCode.INVALID_REQUEST),
    (RestoreMessagesRequest(queue="q", places=places((0, 2**62))), ErrorCode.INVALID_REQUEST),
    (PurgeQueueRequest(queue="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (CreateQueueRequest(queue="amq.mine"), ErrorCode.POLICY_VIOLATION),
    (CreateQueueRequest(queue=""), ErrorCode.POLICY_VIOLATION),
    (CreateQueueRequest(queue="q", is_durable=False), ErrorCode.INVALID_REQUEST),
    (CreateQueueRequest(queue="r", arguments=b"\x00\x00\x00\x09"), ErrorCode.INVALID_REQUEST),
    (CreateQueueRequest(queue="r", arguments=encode_table({"x-max-length": -1})), ErrorCode.INVALID_REQUEST),
    (DeleteQueueRequest(queue="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (DeleteQueueRequest(queue="q", if_empty=True), ErrorCode.INVALID_REQUEST),
    (CreateExchangeRequest(exchange="x", kind="round"), ErrorCode.INVALID_REQUEST),
    (CreateExchangeRequest(exchange="amq.x", kind="direct"), ErrorCode.POLICY_VIOLATION),
    (DeleteExchangeRequest(exchange="none"), ErrorCode.RESOURCE_NOT_FOUND),
    (AlterBindingsRequest(changes=[BindingChange(source="", destination="q")]), ErrorCode.POLICY_VIOLATION),
    (AlterBindingsRequest(changes=[BindingChange(source="none", destination="q")]), ErrorCode.RESOURCE_NOT_FOUND),
    (
        AlterBindingsRequest(changes=[BindingChange(source="amq.topic", is_to_exchange=True, destination="")]),
        ErrorCode.POLICY_VIOLATION,
    ),
    *(
        (
            AlterBindingsRequest(
                changes=[
                    BindingChange(source="amq.headers", destination="q", arguments=encode_table({"x-match": match}))
                ]
            ),
            ErrorCode.INVALID_REQUEST,
        )
        for match in (5, "odd")
    ),
]


def test_every_mistake_is_answered_with_a_code_and_a_reason_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q")
        put(queue, "a")
        answers = [await harness.ask(body) for body, _ in MISTAKES]
        assert [ErrorCode(each.error_code) for each in answers] == [code for _, code in MISTAKES]
        assert all(each.error_message for each in answers)
        host = harness.broker.queues.virtual_host("/")
        assert list(host.queues) == ["q"]
        assert not any(exchange.bindings for name, exchange in host.exchanges.items() if name)
        assert queue.ready == 1

    play(tmp_path, scenario)


class DenyAll:
    def __init__(self) -> None:
        self.asked: set[ResourceType] = set()
        self.is_closed = False

    def allows(self, principal: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        self.asked.add(kind)
        return not self.is_closed

    def allows_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        return not self.is_closed


DENIED: list[Any] = [
    ReadQueueRequest(queue="q"),
    MoveMessagesRequest(queue="q", way=NOWHERE, places=places((0, 1))),
    RestoreMessagesRequest(queue="q", places=places((0, 1))),
    PurgeQueueRequest(queue="q"),
    CreateQueueRequest(queue="r"),
    DeleteQueueRequest(queue="q"),
    CreateExchangeRequest(exchange="x", kind="direct"),
    DeleteExchangeRequest(exchange="amq.direct"),
    AlterBindingsRequest(changes=[BindingChange(source="amq.direct", destination="q")]),
    DescribeQueuesRequest(name="q"),
    DescribeExchangesRequest(name="amq.direct"),
    CreateSnapshotRequest(),
]


def test_a_denied_request_says_so_and_changes_nothing(tmp_path: Path) -> None:
    authorizer = DenyAll()

    async def scenario(harness: Harness) -> None:
        queue = await make(harness, "q")
        put(queue, "a")
        authorizer.is_closed = True
        codes = {type(body): (await harness.ask(body)).error_code for body in DENIED}
        assert set(codes.values()) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert codes.keys() == {api.request for api in APIS.values() if api.is_own}
        assert (await harness.ask(DescribeQueuesRequest())).queues == []
        assert (await harness.ask(DescribeExchangesRequest())).exchanges == []
        assert (queue.ready, list(harness.broker.queues.virtual_host("/").queues)) == (1, ["q"])

    play(tmp_path, scenario, authorizer=authorizer)


def test_a_queue_cannot_be_moved_into_one_that_is_denied(tmp_path: Path) -> None:
    class NotTo(DenyAll):
        def allows(self, principal: str, operation: Operation, kind: ResourceType, name: str) -> bool:
            return not (name == "to" and operation is Operation.WRITE)

    async def scenario(harness: Harness) -> None:
        source, target = await make(harness, "from"), await make(harness, "to")
        put(source, "a", headers={"x-death": [{"queue": "to"}]})
        asked = MoveMessagesRequest(queue="from", way=TO_EXCHANGE, routing_key="to", places=places((0, 1)))
        assert (await harness.ask(asked)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        redriven = await harness.ask(MoveMessagesRequest(queue="from", way=TO_ORIGIN, places=places((0, 1))))
        assert (redriven.moved, redriven.unroutable) == (0, 1)
        assert (source.ready, target.ready) == (1, 0)

    play(tmp_path, scenario, authorizer=NotTo())


@pytest.mark.parametrize("way", [TO_EXCHANGE, NOWHERE])
def test_a_queue_that_is_deleted_during_a_move_ends_it(tmp_path: Path, way: int) -> None:
    async def scenario(harness: Harness) -> None:
        source = await make(harness, "from")
        await make(harness, "to")
        put(source, *("x" for _ in range(1_000)))
        reply = harness.start(MoveMessagesRequest(queue="from", way=way, routing_key="to", places=places((0, 1_000))))
        await harness.ask(DeleteQueueRequest(queue="from"))
        assert (await settled(reply)).error_code == 0

    play(tmp_path, scenario)


def test_messages_stay_when_the_queue_they_go_to_is_deleted_during_the_move(tmp_path: Path) -> None:
    async def scenario(harness: Harness) -> None:
        source = await make(harness, "from")
        target = await make(harness, "to")
        put(source, *("x" for _ in range(1_000)))
        reply = harness.start(MoveMessagesRequest(queue="from", routing_key="to", places=places((0, 1_000))))
        assert not target.ready, "it takes more than one turn"
        await harness.ask(DeleteQueueRequest(queue="to"))
        answer = await settled(reply)
        assert (answer.error_code, answer.moved, answer.unroutable) == (0, 0, 1_000)
        assert source.ready == 1_000

    play(tmp_path, scenario)


def test_an_administrator_learns_of_misspelt_and_of_changed_arguments(tmp_path: Path) -> None:
    """Applications do not: they may send any argument, and need not repeat those that are only ours."""

    async def scenario(harness: Harness) -> None:
        await make(harness, "kept", headrace_retention_ms=1_000)
        await make(harness, "kept", headrace_retention_ms=1_000)
        for arguments, reason in (
            ({"x-headrace-retention-ms": 5}, "inequivalent arg 'x-headrace-retention-ms'"),
            ({"x-max-lenght": 5}, "queues have no argument 'x-max-lenght': did you mean 'x-max-length'?"),
        ):
            answer = await harness.ask(CreateQueueRequest(queue="kept", arguments=encode_table(arguments)))
            assert answer.error_code != 0
            assert reason in answer.error_message

    play(tmp_path, scenario)
