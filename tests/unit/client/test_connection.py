"""One connection: versions are negotiated, answers come in order, and whatever is wrong has a name."""

from __future__ import annotations

import socket
import struct
from contextlib import closing

import pytest

from headrace.client.connection import (
    Address,
    BrokerUnreachable,
    Connection,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByBroker,
    parse_addresses,
)
from headrace.errors import ErrorCode, KafkaError, UsageError
from headrace.wire.kafka.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from headrace.wire.kafka.messages.metadata import ApiVersion, MetadataRequest, MetadataResponse
from tests.unit.client.scripted import Answer, answer_frame, frame, scripted_broker, versions
from tests.waiting import PATIENCE_S, eventually

API_VERSIONS = 18
LIST_GROUPS = 16


def opened(address: str) -> Connection:
    return Connection.open(parse_addresses(address)[0], connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S)


def greeting_then(answer: Answer) -> Answer:
    """A broker that offers everything, and then does as the test says."""

    def reply(api_key: int, version: int, correlation_id: int) -> bytes | None:
        if api_key == API_VERSIONS:
            return versions(correlation_id, version)
        return answer(api_key, version, correlation_id)

    return reply


def groups_answer(version: int, correlation_id: int, name: str = "g") -> bytes:
    return answer_frame(ListGroupsResponse(groups=[ListedGroup(group_id=name)]), version, correlation_id)


def test_an_older_broker_is_asked_again_in_a_version_it_knows() -> None:
    asked = []

    def answer(api_key: int, version: int, correlation_id: int) -> bytes:
        asked.append(version)
        if version > 2:
            offered = [ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=2)]
            return versions(correlation_id, 0, error=ErrorCode.UNSUPPORTED_VERSION, offered=offered)
        return versions(correlation_id, version)

    with scripted_broker(answer) as address:
        opened(address).close()
    assert asked[-1] == 2
    assert len(asked) == 2


def test_a_request_is_written_in_the_highest_version_both_sides_know() -> None:
    seen = []

    def answer(api_key: int, version: int, correlation_id: int) -> bytes:
        if api_key == API_VERSIONS:
            offered = [ApiVersion(api_key=LIST_GROUPS, min_version=0, max_version=3)]
            return versions(correlation_id, version, offered=offered)
        seen.append(version)
        return groups_answer(version, correlation_id)

    with scripted_broker(answer) as address, closing(opened(address)) as connection:
        assert connection.call(ListGroupsRequest(), ListGroupsResponse).groups[0].group_id == "g"
        assert connection.call(ListGroupsRequest(), ListGroupsResponse, version_max=1).groups[0].group_id == "g"
        with pytest.raises(UnsupportedByBroker, match=r"MetadataRequest .* does not offer it"):
            connection.call(MetadataRequest(), MetadataResponse)
    assert seen == [3, 1]


def test_answers_are_given_to_those_who_asked_whatever_the_order_of_waiting() -> None:
    names = iter(["first", "second", "third"])
    script = greeting_then(lambda api_key, version, correlation_id: groups_answer(version, correlation_id, next(names)))
    with scripted_broker(script) as address, closing(opened(address)) as connection:
        pending = [connection.send(ListGroupsRequest(), ListGroupsResponse) for _ in range(3)]
        found = [connection.wait(pending[index]).groups[0].group_id for index in (2, 0, 1)]
    assert found == ["third", "first", "second"]


def test_nobody_listening_is_told_with_the_address() -> None:
    with socket.socket() as nobody:  # bound, so that nobody else gets the port, and not listening
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}: connection refused"):
            opened(f"127.0.0.1:{port}")


def test_a_silent_broker_times_out_and_the_connection_is_not_used_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with pytest.raises(RequestTimedOut, match=r"ApiVersionsRequest within 0\.2 s"):
            Connection.open(Address(host, port), timeout_s=0.2)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "the broker closed it"),
        (frame(struct.pack(">i", 999)), "answer 999 where"),
        (struct.pack(">i", -5), "an answer of -5 bytes"),
        (struct.pack(">i", 2**31 - 1), "is this a Kafka listener"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is this a Kafka listener"),
    ],
)
def test_an_answer_that_is_no_answer_ends_the_connection(reply: bytes | None, reason: str) -> None:
    with scripted_broker(greeting_then(lambda *_: reply)) as address, closing(opened(address)) as connection:
        with pytest.raises(ConnectionLost, match=reason):
            connection.call(ListGroupsRequest(), ListGroupsResponse)
        assert not connection.usable


def test_an_answer_that_is_cut_short_is_a_lost_connection_and_not_a_crash() -> None:
    def cut(api_key: int, version: int, correlation_id: int) -> bytes:
        whole = groups_answer(version, correlation_id)[4:]
        return frame(whole[:-3])

    with scripted_broker(greeting_then(cut)) as address, closing(opened(address)) as connection:
        with pytest.raises(ConnectionLost, match="malformed"):
            connection.call(ListGroupsRequest(), ListGroupsResponse)


def test_a_connection_that_the_peer_closed_while_idle_is_seen_before_it_is_used() -> None:
    with scripted_broker(greeting_then(lambda *_: None)) as address:
        connection = opened(address)
    with closing(connection):
        eventually(connection.has_answer)  # the end of the script closed it
        assert not connection.usable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("broker", [Address("broker", 9092)]),
        ("broker:1234", [Address("broker", 1234)]),
        (" a:1 , b:2 ", [Address("a", 1), Address("b", 2)]),
        ("[::1]:9093", [Address("::1", 9093)]),
        ("[::1]", [Address("::1", 9092)]),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, expected: list[Address]) -> None:
    assert parse_addresses(text) == expected


@pytest.mark.parametrize("text", ["", ",", "host:", "host:0", "host:70000", "host:port", ":9092"])
def test_an_address_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_addresses(text)


def test_an_address_is_printed_as_it_is_read() -> None:
    for text in ("[::1]:9093", "broker:1234"):
        assert str(parse_addresses(text)[0]) == text


def test_an_error_of_ours_carries_its_code_and_whether_a_retry_helps() -> None:
    error: KafkaError = RequestTimedOut(Address("a", 1), "X", 1)
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
    assert error.retriable


@pytest.mark.parametrize("moment", ["while it reads", "while it writes"])
def test_a_connection_that_was_interrupted_inside_a_message_is_not_used_again(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come after the first half of a frame. What came next would be taken for the other half."""

    class Interrupted(socket.socket):
        def sendall(self, data: bytes, *_: object) -> None:  # type: ignore[override]
            self.send(data[:5])
            raise KeyboardInterrupt

        def recv_into(self, view: memoryview, *_: object) -> int:  # type: ignore[override]
            view[:1] = self.recv(1)
            raise KeyboardInterrupt

    def answer(_: int, version: int, correlation_id: int) -> bytes:
        return groups_answer(version, correlation_id)

    with scripted_broker(greeting_then(answer)) as address, closing(opened(address)) as connection:
        interrupted = Interrupted(fileno=connection._socket.detach())
        if moment == "while it reads":
            monkeypatch.setattr(Interrupted, "sendall", socket.socket.sendall)
        connection._socket = interrupted
        with pytest.raises(KeyboardInterrupt):
            connection.call(ListGroupsRequest(), ListGroupsResponse)
        assert not connection.usable
