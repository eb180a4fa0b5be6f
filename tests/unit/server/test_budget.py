"""Request bytes held at once: who waits, who goes on, who is dropped."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace

import pytest

from headrace.server.budget import RequestBudget
from headrace.testing import VirtualClock
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.unit.server.harness import KAFKA_LIMITS, PRODUCE, Client, at_once, request_bytes, serving
from tests.waiting import PATIENCE_S

MIB = 1 << 20


class Waiter:
    def __init__(self, missing_bytes: int = 0) -> None:
        self.missing_bytes = missing_bytes
        self.told: list[str] = []

    def budget_granted(self) -> None:
        self.told.append("granted")

    def budget_refused(self) -> None:
        self.told.append("refused")


def a_budget(clock: VirtualClock | None = None) -> RequestBudget:
    return RequestBudget(100, favour_s=2.0, call_later=(clock or VirtualClock()).call_later)


def test_everybody_reads_while_there_is_room() -> None:
    budget = a_budget()
    budget.change(100)
    assert budget.may_read(Waiter())
    assert budget.may_read(Waiter())


def test_when_the_budget_is_spent_one_goes_on_and_the_others_wait() -> None:
    budget = a_budget()
    budget.change(101)
    first, second, third = Waiter(), Waiter(), Waiter()
    assert budget.may_read(first)
    assert not budget.may_read(second)
    assert not budget.may_read(third)
    assert budget.may_read(first)
    budget.leave(first)
    assert (second.told, third.told) == (["granted"], [])


def test_when_there_is_room_again_all_go_on() -> None:
    budget = a_budget()
    budget.change(101)
    waiters = [Waiter() for _ in range(4)]
    for waiter in waiters:
        budget.may_read(waiter)
    budget.change(-50)
    assert [waiter.told for waiter in waiters] == [[], ["granted"], ["granted"], ["granted"]]
    assert all(budget.may_read(waiter) for waiter in waiters)


def test_a_favour_that_is_not_used_in_time_is_taken_back() -> None:
    clock = VirtualClock()
    budget = a_budget(clock)
    budget.change(101)
    slow, next_one = Waiter(), Waiter()
    assert budget.may_read(slow)
    assert not budget.may_read(next_one)
    clock.advance(1_999)
    assert slow.told == []
    clock.advance(1)
    assert slow.told == ["refused"]
    budget.leave(slow)
    assert next_one.told == ["granted"]


def test_a_favour_lasts_while_nobody_else_waits() -> None:
    clock = VirtualClock()
    budget = a_budget(clock)
    budget.change(101)
    slow, late = Waiter(), Waiter()
    assert budget.may_read(slow)
    clock.advance(60_000)
    assert slow.told == []
    assert not budget.may_read(late)
    clock.advance(2_000)
    assert slow.told == ["refused"]


def test_the_one_that_lacks_least_is_favoured_next() -> None:
    budget = a_budget()
    budget.change(101)
    first, huge, small, middling = Waiter(1), Waiter(90), Waiter(2), Waiter(50)
    for waiter in (first, huge, small, middling):
        budget.may_read(waiter)
    budget.leave(first)
    assert [huge.told, small.told, middling.told] == [[], ["granted"], []]


def test_a_favour_ends_without_consequence_when_there_is_room_again() -> None:
    clock = VirtualClock()
    budget = a_budget(clock)
    budget.change(101)
    waiter = Waiter()
    assert budget.may_read(waiter)
    budget.change(-101)
    clock.advance(10_000)
    assert waiter.told == []
    assert clock.timers == 0


def large_produce(size: int) -> bytes:
    records = PartitionProduceData(records=os.urandom(size))
    return request_bytes(
        ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[records])]), PRODUCE, 8, 1
    )


def test_a_request_larger_than_the_whole_budget_still_arrives() -> None:
    limits = replace(KAFKA_LIMITS, request_bytes_held_max=MIB)
    with serving(at_once, kafka_limits=limits) as server, Client(server.address) as client:
        client.socket.sendall(large_produce(8 * MIB))
        assert client.answered() == 1
        assert server.on_loop(lambda: server.kafka.budget.held_bytes) == 0


def test_peers_that_send_half_a_request_and_stop_do_not_stop_the_others_for_good() -> None:
    limits = replace(KAFKA_LIMITS, request_bytes_held_max=MIB)
    raw = large_produce(4 * MIB)
    with serving(at_once, kafka_limits=limits) as server:
        with ExitStack() as stack:
            for _ in range(3):
                client = stack.enter_context(Client(server.address))
                client.socket.settimeout(0.2)
                try:
                    client.socket.sendall(raw[: 2 * MIB])
                except (TimeoutError, ConnectionError):
                    pass  # it is not read any more, or was dropped for its slowness
            with Client(server.address) as good:
                good.heartbeat(5)
                assert good.answered() == 5, "small requests do not wait"
            while not is_taken(server.address, raw):
                pass  # on a busy machine a good peer may be slow as well, and is dropped as one that has stopped
        server.until(lambda: server.listener.connections == 0)
        assert server.on_loop(lambda: server.kafka.budget.held_bytes) == 0


def is_taken(address: tuple[str, int], raw: bytes) -> bool:
    with Client(address) as client:
        try:
            client.socket.sendall(raw)
            return client.answered() == 1
        except (EOFError, ConnectionError):
            return False


def test_many_large_requests_at_once_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headrace.server.kafka_service.FAVOUR_S", 600.0
    )  # nobody is too slow, however busy the machine is
    limits = replace(KAFKA_LIMITS, request_bytes_held_max=MIB)
    raw = large_produce(MIB)
    with serving(at_once, kafka_limits=limits) as server, ExitStack() as stack:
        clients = [stack.enter_context(Client(server.address)) for _ in range(8)]
        positions = dict.fromkeys(clients, 0)
        for client in clients:
            client.socket.setblocking(False)
        while positions:
            for client, position in list(positions.items()):
                try:
                    positions[client] += client.socket.send(raw[position : position + 65536])
                except BlockingIOError:
                    continue
                if positions[client] == len(raw):
                    del positions[client]
        for client in clients:
            client.socket.settimeout(PATIENCE_S)
            assert client.answered() == 1
