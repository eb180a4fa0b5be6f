"""Metadata, retries and coordinators."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace import testing
from headrace.client import Admin, BrokerUnreachable, Client, ClientOptions, TopicPartition
from headrace.client.client import ANY, check, error_of
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.groups import ListGroupsRequest, ListGroupsResponse
from tests.unit.client.conftest import PATIENCE

MakeTopic = Callable[..., list[TopicPartition]]


def test_a_topic_is_known_with_its_id_and_its_leaders(client: Client, make_topic: MakeTopic) -> None:
    partitions = make_topic(3)
    topic = client.topic(partitions[0].topic)
    assert [each.index for each in topic.partitions] == [0, 1, 2]
    assert client.topic_name(topic.topic_id) == topic.name
    assert client.by_leader(partitions) == {1: partitions}


def test_a_missing_topic_is_an_error_that_names_it(client: Client) -> None:
    with pytest.raises(KafkaError, match="topic 'never-made'") as caught:
        client.topic("never-made")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_does_not_exist_is_told_with_those_that_do(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    with pytest.raises(KafkaError, match="has partitions 0 to 0, not 7"):
        client.leader(partition._replace(partition=7))


def test_a_topic_made_by_somebody_else_is_found_after_it_was_missing(
    client: Client, bootstrap: str, unique: Callable[[str], str]
) -> None:
    name = unique("late")
    attempts = []

    def look() -> str:
        attempts.append(name)
        if len(attempts) == 2:
            with Client(bootstrap, PATIENCE) as other:
                Admin(other).create_topic(name, partitions=1)
        return client._ask_topic(name, create=False).name

    assert client.retrying(look, missing_timeout_ms=60_000) == name
    assert len(attempts) >= 2


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_what_may_pass_is_tried_again_until_it_has(client: Client, code: ErrorCode) -> None:
    outcomes = iter([KafkaError(code), KafkaError(code), None])

    def attempt() -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return "done"

    assert client.retrying(attempt) == "done"


def test_what_will_not_pass_is_raised_at_once(client: Client) -> None:
    attempts = []

    def attempt() -> None:
        attempts.append(1)
        raise KafkaError(ErrorCode.INVALID_CONFIG)

    with pytest.raises(KafkaError):
        client.retrying(attempt)
    assert len(attempts) == 1


class SleepingTime:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_retries_end_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    time = SleepingTime()
    monkeypatch.setattr("headrace.client.client.time", time)
    client = Client("127.0.0.1:1", ClientOptions(retry_pause_ms=100))
    attempts = []

    def attempt() -> None:
        attempts.append(1)
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "still moving")

    with pytest.raises(KafkaError, match="still moving"):
        client.retrying(attempt, timeout_ms=3_000)
    assert len(attempts) > 2
    assert time.now <= 3


def test_a_cluster_of_which_nobody_answers_names_the_first_address() -> None:
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        Client("127.0.0.1:1,127.0.0.1:2").topics()


def test_one_dead_address_of_two_does_not_matter(bootstrap: str) -> None:
    with Client(f"127.0.0.1:1,{bootstrap}", PATIENCE) as client:
        assert client.call(ANY, ListGroupsRequest(), ListGroupsResponse).error_code == ErrorCode.NONE


def test_a_client_survives_a_restart_of_the_broker() -> None:
    with testing.broker() as broker, Client(broker.bootstrap, PATIENCE) as client:
        Admin(client).create_topic("kept", partitions=2)
        coordinator = client.retrying(lambda: client.group_coordinator("g"))
        broker.restart()
        assert len(client.topic("kept").partitions) == 2
        assert [topic.name for topic in client.topics()] == ["kept"]
        assert client.retrying(lambda: client.group_coordinator("g")) == coordinator


def test_an_unknown_code_of_a_newer_broker_is_an_unknown_server_error() -> None:
    error = error_of(9999, None, "asking")
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    check(0, None, "no error")
