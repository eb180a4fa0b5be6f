"""One connection: order, waiting, failing, ending."""

from __future__ import annotations

import itertools
import logging
import select
import socket
import struct
import threading
from dataclasses import replace
from typing import Any

import pytest

from headrace.broker.replies import PendingReply
from headrace.broker.request import Peer, Request
from headrace.broker.slices import UNITS_PER_TURN
from headrace.server.kafka import REQUESTS_PER_TURN
from headrace.wire.kafka.connection import Limits
from headrace.wire.kafka.messages.groups import HeartbeatRequest, HeartbeatResponse
from headrace.wire.kafka.messages.metadata import ApiVersionsResponse
from headrace.wire.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.unit.server.harness import (
    HEARTBEAT,
    KAFKA_LIMITS,
    LIMITS,
    PRODUCE,
    Client,
    Held,
    Serving,
    at_once,
    request_bytes,
    serving,
)
from tests.waiting import PATIENCE_S, eventually


def test_requests_are_answered_in_order_though_their_answers_come_out_of_order() -> None:
    held = Held()
    with serving(held) as server, Client(server.address) as client:
        for number in range(5):
            client.produce(number)
        server.until(lambda: len(held.requests) == 5)
        for number in (4, 2, 0, 3, 1):
            server.on_loop(lambda number=number: held.let_go(number))  # type: ignore[misc]
        assert [client.answered() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_a_produce_that_waits_for_the_disk_does_not_hold_up_the_next_request() -> None:
    held = Held()
    with serving(held) as server, Client(server.address) as client:
        client.produce(1)
        client.heartbeat(2)
        server.until(lambda: held.executed == [1, 2])


def test_any_other_request_that_waits_holds_up_what_came_after_it() -> None:
    held = Held()
    with serving(held) as server, Client(server.address) as client:
        client.heartbeat(1)
        client.produce(2)
        client.heartbeat(3)
        server.until(lambda: len(held.requests) == 1)
        server.on_loop(lambda: None)
        assert held.executed == [1]
        server.on_loop(lambda: held.let_go(1))
        assert client.answered() == 1
        server.until(lambda: held.executed == [1, 2, 3])


def test_no_more_requests_are_under_way_than_the_limit_and_an_answer_makes_room() -> None:
    held = Held()
    with (
        serving(held, kafka_limits=replace(KAFKA_LIMITS, requests_in_flight_max=3)) as server,
        Client(server.address) as client,
    ):
        for number in range(10):
            client.produce(number)
        server.until(lambda: len(held.requests) == 3)
        with Client(server.address) as other:  # a whole round trip later nothing more was executed
            other.heartbeat(77)
            server.until(lambda: 77 in held.executed)
        assert held.executed == [0, 1, 2, 77]
        server.on_loop(lambda: held.let_go(0))
        assert client.answered() == 0
        server.until(lambda: held.executed == [0, 1, 2, 77, 3])


def test_a_request_without_an_answer_does_not_hold_up_the_next_answer() -> None:
    def handle(request: Request[Any]) -> Any:
        return None if request.api_key == PRODUCE else HeartbeatResponse()

    with serving(handle) as server, Client(server.address) as client:
        client.produce(1)
        client.heartbeat(2)
        assert client.answered() == 2


def test_thousands_of_small_requests_in_one_go_are_all_answered_in_order() -> None:
    with (
        serving(at_once, kafka_limits=replace(KAFKA_LIMITS, requests_in_flight_max=2)) as server,
        Client(server.address) as client,
    ):
        client.socket.sendall(b"".join(request_bytes(HeartbeatRequest(), HEARTBEAT, 3, n) for n in range(5000)))
        assert [client.answered() for _ in range(5000)] == list(range(5000))


def test_thousands_of_requests_of_one_connection_do_not_keep_another_waiting() -> None:
    other_has_asked = threading.Event()
    seen: list[int] = []

    def handle(request: Request[Any]) -> Any:
        if seen == [0]:
            other_has_asked.wait(PATIENCE_S)
            (waiting,) = [each for each in server.listener._sessions if each.peer.id != request.peer.id]
            readable = select.select([waiting._transport.get_extra_info("socket")], [], [], PATIENCE_S)[0]
            assert readable, "what was sent has arrived"
        seen.append(request.correlation_id)
        return HeartbeatResponse()

    with serving(handle) as server, Client(server.address) as flood, Client(server.address) as other:
        other.heartbeat(0)
        other.answered()
        flood.socket.sendall(b"".join(request_bytes(HeartbeatRequest(), HEARTBEAT, 3, 1) for _ in range(1500)))
        other.heartbeat(2)
        other_has_asked.set()
        assert other.answered() == 2
        assert [flood.answered() for _ in range(1500)] == [1] * 1500
    assert seen.index(2) <= 4 * REQUESTS_PER_TURN, "the loop may go round a few times before it looks at the other"


def long_produce(correlation_id: int, elements: int) -> bytes:
    """The last partition has some records, so that a cut there is found only when all before it is decoded."""
    partitions = [PartitionProduceData(index=n) for n in range(elements - 1)]
    partitions[-1].records = bytes(100)
    topics = [TopicProduceData(name="t", partition_data=partitions)]
    return request_bytes(ProduceRequest(acks=1, topic_data=topics), PRODUCE, 8, correlation_id)


def test_a_request_that_takes_long_to_decode_is_decoded_in_slices_and_keeps_its_place() -> None:
    executed: list[tuple[int, int]] = []

    def handle(request: Request[Any]) -> Any:
        body = request.body
        executed.append((request.correlation_id, len(body.topic_data[0].partition_data) if body.topic_data else 0))
        return ProduceResponse()

    with serving(handle) as server, Client(server.address) as client:
        client.socket.sendall(long_produce(1, 15_000))
        client.produce(2)
        assert [client.answered(), client.answered()] == [1, 2]
        units = server.on_loop(lambda: server.kafka.slices.units_in_turn_max)
    assert executed == [(1, 14_999), (2, 0)]
    assert UNITS_PER_TURN <= units < UNITS_PER_TURN * 1.1, "so it took several turns"


def test_a_long_request_that_turns_out_malformed_closes_its_connection_after_the_answers_before_it() -> None:
    raw = long_produce(2, 15_000)[:-1]
    raw = struct.pack(">i", len(raw) - 4) + raw[4:]
    with serving(at_once) as server, Client(server.address) as bad, Client(server.address) as good:
        bad.heartbeat(1)
        bad.socket.sendall(raw)
        assert bad.answered() == 1
        server.until(lambda: server.kafka.slices.units_in_turn_max > 0)
        with pytest.raises(EOFError):
            bad.answered()
        good.heartbeat(3)
        assert good.answered() == 3


def test_a_long_request_of_a_peer_that_goes_before_it_is_decoded_is_not_executed() -> None:
    executed: list[int] = []

    def handle(request: Request[Any]) -> Any:
        executed.append(request.correlation_id)
        return HeartbeatResponse()

    with serving(handle) as server:
        slices = server.kafka.slices
        slices.units_per_turn = 0
        with Client(server.address) as client:
            client.socket.sendall(long_produce(1, 15_000))
            server.until(lambda: len(slices._queue) == 1)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so it is a reset
        server.until(lambda: not server.listener._sessions)
        slices.units_per_turn = UNITS_PER_TURN
        server.until(lambda: not slices._queue)
    assert executed == []


def test_an_exception_in_a_handler_closes_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request[Any]) -> Any:
        if request.api_key == PRODUCE:
            raise ZeroDivisionError("a mistake of ours")
        return HeartbeatResponse()

    with serving(handle) as server, Client(server.address) as good, Client(server.address) as bad:
        bad.produce(1)
        assert bad.is_closed()
        good.heartbeat(2)
        assert good.answered() == 2
    record = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert "Produce version 8" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_an_answer_that_fails_later_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    with serving(held) as server, Client(server.address) as client:
        client.produce(1)
        client.heartbeat(2)
        server.until(lambda: len(held.requests) == 2)
        server.on_loop(lambda: held.replies[2].fail(ZeroDivisionError()))
        server.on_loop(lambda: held.let_go(1))
        assert client.is_closed()
    assert "Heartbeat version 3" in caplog.text


class Sliced:
    """A handler whose requests have not taken effect until the test says so."""

    def __init__(self) -> None:
        self.executed: list[int] = []
        self.executing: dict[int, PendingReply[Any]] = {}

    def __call__(self, request: Request[Any]) -> PendingReply[Any]:
        self.executed.append(request.correlation_id)
        reply: PendingReply[Any] = PendingReply()
        reply.executing = True
        self.executing[request.correlation_id] = reply
        return reply


def test_a_produce_that_is_executed_in_slices_holds_up_the_next_until_it_has_taken_effect() -> None:
    sliced = Sliced()
    with serving(sliced) as server, Client(server.address) as client:
        client.produce(1)
        client.produce(2)
        server.until(lambda: sliced.executed == [1])
        server.on_loop(lambda: None)
        assert sliced.executed == [1]
        first, second = PendingReply(ProduceResponse()), PendingReply(ProduceResponse())
        server.on_loop(lambda: sliced.executing[1].deliver(first))
        server.until(lambda: sliced.executed == [1, 2])
        server.on_loop(lambda: sliced.executing[2].deliver(second))
        server.on_loop(second.one_done)
        server.on_loop(first.one_done)
        assert [client.answered(), client.answered()] == [1, 2]


def test_a_reply_that_gives_a_reply_that_waits_is_answered_when_that_is_done() -> None:
    sliced = Sliced()
    with serving(sliced) as server, Client(server.address) as client:
        client.heartbeat(1)
        client.heartbeat(2)
        server.until(lambda: sliced.executed == [1])
        last = PendingReply[Any](prompt=True)
        server.on_loop(lambda: sliced.executing[1].deliver(last))
        server.on_loop(lambda: None)
        assert sliced.executed == [1], "it has not been answered yet"
        server.on_loop(lambda: last.deliver(HeartbeatResponse()))
        assert client.answered() == 1
        server.until(lambda: sliced.executed == [1, 2])


def test_requests_after_one_that_failed_are_not_executed() -> None:
    executed = []

    def handle(request: Request[Any]) -> Any:
        executed.append(request.correlation_id)
        if request.api_key == PRODUCE:
            raise ZeroDivisionError("a mistake of ours")
        return HeartbeatResponse()

    with serving(handle) as server, Client(server.address) as bad:
        failing = request_bytes(ProduceRequest(), PRODUCE, 8, 1)
        bad.socket.sendall(failing + request_bytes(HeartbeatRequest(), HEARTBEAT, 3, 2))
        assert bad.is_closed()
    assert executed == [1]


def test_an_answer_of_the_wrong_kind_closes_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request[Any]) -> Any:
        return ApiVersionsResponse() if request.api_key == PRODUCE else HeartbeatResponse()

    with serving(handle) as server, Client(server.address) as good, Client(server.address) as bad:
        bad.produce(1)
        assert bad.is_closed()
        good.heartbeat(2)
        assert good.answered() == 2
    assert "does not answer Produce" in caplog.text


def test_a_peer_that_is_gone_is_marked_closed_and_its_late_answer_is_dropped() -> None:
    held = Held()
    with serving(held) as server:
        with Client(server.address) as client:
            client.fetch(1)
            server.until(lambda: len(held.requests) == 1)
            assert not held.requests[0].peer.closed
        server.until(lambda: held.requests[0].peer.closed)
        server.on_loop(lambda: held.let_go(1))
        assert server.on_loop(lambda: server.listener.connections) == 0


def test_a_fetch_does_not_go_on_waiting_for_a_peer_that_is_gone() -> None:
    waiting: list[PendingReply[Any]] = []
    abandoned: list[int] = []

    def handle(request: Request[Any]) -> PendingReply[Any]:
        reply: PendingReply[Any] = PendingReply(prompt=True)
        reply.abandoned = lambda: abandoned.append(request.correlation_id)
        waiting.append(reply)
        return reply

    with serving(handle) as server:
        with Client(server.address) as client:
            client.fetch(1)
            server.until(lambda: bool(waiting))
        server.until(lambda: abandoned == [1])


def test_a_peer_that_only_stopped_sending_still_gets_its_answers() -> None:
    held = Held()
    with serving(held) as server, Client(server.address) as client:
        client.produce(1)
        client.produce(2)
        client.socket.shutdown(socket.SHUT_WR)
        server.until(lambda: len(held.requests) == 2)
        server.on_loop(lambda: held.let_go(1))
        server.on_loop(lambda: held.let_go(2))
        assert [client.answered(), client.answered()] == [1, 2]
        assert client.is_closed()


def test_the_peer_is_known_by_address_and_numbered() -> None:
    seen = []

    def handle(request: Request[Any]) -> Any:
        seen.append((request.peer.id, request.peer.host, request.peer.listener, request.correlation_id))
        return HeartbeatResponse()

    with serving(handle) as server, Client(server.address) as first, Client(server.address) as second:
        for client in (first, second, first):
            client.heartbeat(9)
            client.answered()
    assert seen == [(1, "127.0.0.1", "kafka", 9), (2, "127.0.0.1", "kafka", 9), (1, "127.0.0.1", "kafka", 9)]


# ---- what the broker asks of a connection ---------------------------------------------------------------------------


def test_a_peer_that_is_held_is_neither_read_nor_served_until_it_is_let_go() -> None:
    seen: list[Request[Any]] = []

    def handle(request: Request[Any]) -> Any:
        seen.append(request)
        if request.correlation_id == 1:
            request.peer.hold(True)
        return ProduceResponse()

    with serving(handle) as server, Client(server.address) as client, Client(server.address) as other:
        client.socket.sendall(b"".join(request_bytes(ProduceRequest(acks=1), PRODUCE, 8, n) for n in (1, 2, 3)))
        assert client.answered() == 1, "what was taken is answered"
        client.produce(4)
        other.produce(9)
        assert other.answered() == 9, "nobody else is held"
        assert [request.correlation_id for request in seen] == [1, 9]
        server.on_loop(lambda: seen[0].peer.hold(False))
        assert [client.answered() for _ in range(3)] == [2, 3, 4]


def test_letting_go_of_a_peer_that_is_gone_is_harmless() -> None:
    held = Held()
    with serving(held) as server:
        with Client(server.address) as client:
            client.fetch(1)
            server.until(lambda: len(held.requests) == 1)
        server.until(lambda: held.requests[0].peer.closed)
        server.on_loop(lambda: held.requests[0].peer.hold(False))
        assert server.on_loop(lambda: server.kafka.budget.held_bytes) == 0


def test_hanging_up_sends_the_answers_that_are_due_and_closes() -> None:
    held = Held()

    def handle(request: Request[Any]) -> Any:
        if request.correlation_id == 2:
            request.peer.hang_up("the test wants it")
            return None
        return held(request)

    with serving(handle) as server, Client(server.address) as client:
        for number in (1, 2, 3):
            client.produce(number)
        server.until(lambda: len(held.requests) == 1)
        server.on_loop(lambda: held.let_go(1))
        assert client.answered() == 1
        assert client.is_closed()
        assert held.executed == [1]


# ---- protocol errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [struct.pack(">i", -1), struct.pack(">ihhi", 100, 999, 0, 1)])
def test_a_peer_that_breaks_the_protocol_is_closed_and_no_other(raw: bytes) -> None:
    with serving(at_once) as server, Client(server.address) as good, Client(server.address) as bad:
        bad.socket.sendall(raw)
        assert bad.is_closed()
        good.heartbeat(2)
        assert good.answered() == 2


def test_requests_in_front_of_a_protocol_error_are_answered_before_the_connection_is_closed() -> None:
    with serving(at_once) as server, Client(server.address) as client:
        good = request_bytes(HeartbeatRequest(), HEARTBEAT, 3, 5)
        client.socket.sendall(good + good + struct.pack(">i", -1) + good)
        assert [client.answered(), client.answered()] == [5, 5]
        assert client.is_closed()


def test_a_protocol_error_behind_a_request_that_never_gets_its_answer_still_closes() -> None:
    with serving(Held()) as server, Client(server.address) as client:
        client.heartbeat(1)
        client.socket.sendall(struct.pack(">i", -1))
        assert client.is_closed()


def test_an_unknown_version_of_api_versions_is_answered_in_turn() -> None:
    held = Held()
    with serving(held) as server, Client(server.address) as client:
        client.produce(1)
        client.socket.sendall(struct.pack(">ihhih", 10, 18, 99, 2, -1))
        server.until(lambda: len(held.requests) == 1)
        server.on_loop(lambda: held.let_go(1))
        assert client.answered() == 1
        answer = client.answer(ApiVersionsResponse, 0)
        assert answer.error_code == 35


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_connection_that_asks_for_nothing_is_dropped() -> None:
    with serving(at_once, replace(LIMITS, handshake_s=0.1)) as server:
        with Client(server.address) as silent, Client(server.address) as dribbling:
            dribbling.socket.sendall(b"\x00\x00\x00")
            assert silent.is_closed()
            assert dribbling.is_closed()


def test_a_connection_that_made_its_first_request_in_time_is_kept() -> None:
    with serving(at_once, replace(LIMITS, handshake_s=0.2)) as server:
        with answered_in_time(server, 1) as client, Client(server.address) as silent:
            assert silent.is_closed(), "so the time of the other, which came before, is over as well"
            client.heartbeat(2)
            assert client.answered() == 2


def answered_in_time(server: Serving, correlation_id: int) -> Client:
    """A client that asked before its silence was held against it: a busy machine may need several attempts."""
    while True:
        client = Client(server.address)
        try:
            client.heartbeat(correlation_id)
            assert client.answered() == correlation_id
        except (EOFError, ConnectionError):
            client.socket.close()
            continue
        except BaseException:
            client.socket.close()
            raise
        return client


def test_an_idle_connection_is_closed_but_not_one_that_waits_for_its_answer() -> None:
    held = Held()

    def handle(request: Request[Any]) -> Any:
        return HeartbeatResponse() if request.correlation_id == 0 else held(request)

    with serving(handle, replace(LIMITS, idle_s=0.2)) as server:
        with waits_in_time(server, held) as waiting, answered_in_time(server, 0) as idle:
            assert idle.is_closed()
            number = held.executed[-1]
            server.on_loop(lambda: held.let_go(number))
            assert waiting.answered() == number


def waits_in_time(server: Serving, held: Held) -> Client:
    """A client that waits for its answer, and asked before it counted as idle."""
    for number in itertools.count(1):
        client = Client(server.address)
        client.heartbeat(number)
        eventually(lambda: number in held.executed or select.select([client.socket], [], [], 0)[0])  # noqa: B023
        if number in held.executed:
            return client
        client.socket.close()
    raise AssertionError("never reached")


def test_connections_beyond_the_limit_are_closed_and_room_is_made_when_one_goes() -> None:
    with serving(at_once, replace(LIMITS, connections_max=2)) as server:
        with Client(server.address) as first:
            with Client(server.address) as second, Client(server.address) as third:
                second.heartbeat(1)
                second.answered()
                assert third.is_closed()
            server.until(lambda: server.listener.connections == 1)
            with Client(server.address) as fourth:
                fourth.heartbeat(2)
                assert fourth.answered() == 2
            first.heartbeat(3)
            assert first.answered() == 3


def test_connections_of_one_address_beyond_its_limit_are_closed() -> None:
    with serving(at_once, replace(LIMITS, connections_per_ip_max=1)) as server:
        with Client(server.address) as first:
            first.heartbeat(1)
            first.answered()
            with Client(server.address) as second:
                assert second.is_closed()
        server.until(lambda: server.listener.connections == 0)
        with Client(server.address) as third:
            third.heartbeat(2)
            assert third.answered() == 2


def test_a_request_larger_than_its_limit_is_refused() -> None:
    frames = Limits(produce_bytes_max=10_000, other_bytes_max=1_000)
    with (
        serving(at_once, kafka_limits=replace(KAFKA_LIMITS, frames=frames)) as server,
        Client(server.address) as client,
    ):
        client.send(HeartbeatRequest(member_id="m" * 2_000), HEARTBEAT, 3, 1)
        assert client.is_closed()


# ---- the end --------------------------------------------------------------------------------------------------------


def test_draining_answers_what_is_under_way_and_accepts_nothing_new() -> None:
    held = Held()
    limits = replace(LIMITS, drain_s=30)
    with serving(held, limits) as server, Client(server.address) as busy, Client(server.address) as idle:
        busy.produce(1)
        server.until(lambda: len(held.requests) == 1)
        drained = server.drain()
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            Client(server.address)
        assert not drained.done()
        server.on_loop(lambda: held.let_go(1))
        assert busy.answered() == 1
        assert busy.is_closed()
        drained.result(PATIENCE_S)


def test_draining_does_not_wait_for_a_long_poll() -> None:
    def never(request: Request[Any]) -> Any:
        return PendingReply()

    with serving(never) as server, Client(server.address) as client:
        client.fetch(1)
        server.until(lambda: server.listener.connections == 1)
        server.drain().result(PATIENCE_S)
        assert client.is_closed()


def test_draining_ends_though_an_answer_never_comes() -> None:
    held = Held()
    with serving(held, LIMITS) as server, Client(server.address) as client:
        client.produce(1)
        server.until(lambda: len(held.requests) == 1)
        server.drain().result(PATIENCE_S)
        assert client.is_closed()
        server.on_loop(lambda: held.replies[1].deliver(ProduceResponse()))


# ---- authentication -------------------------------------------------------------------------------------------------


class Password:
    """A peer is known once it has sent a heartbeat with the right group id; until then it may do nothing else."""

    required = True

    def knows(self, peer: Peer) -> bool:
        return peer.principal == "User:ann"

    def handle(self, request: Request[Any]) -> Any:
        if request.api_key != HEARTBEAT:
            request.peer.hang_up("it has not said who it is")
            return None
        if request.body.group_id == "secret":
            request.peer.principal = "User:ann"
        return HeartbeatResponse()


def test_a_peer_that_is_not_known_yet_reaches_the_authentication_and_never_the_broker() -> None:
    seen: list[tuple[int, str]] = []

    def handle(request: Request[Any]) -> Any:
        seen.append((request.correlation_id, request.peer.principal))
        return at_once(request)

    with serving(handle, authentication=Password()) as server:
        with Client(server.address) as stranger:
            stranger.heartbeat(1)
            assert stranger.answered() == 1
            stranger.produce(2)
            assert stranger.is_closed()
        with Client(server.address) as ann:
            ann.send(HeartbeatRequest(group_id="secret"), HEARTBEAT, 3, 3)
            ann.produce(4)
            assert [ann.answered(), ann.answered()] == [3, 4]
    assert seen == [(4, "User:ann")]
