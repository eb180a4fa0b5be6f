"""What is counted about requests: numbers, sizes, times, errors, and who held the loop."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.broker.elements import Elements
from headrace.broker.request import Request
from headrace.config import Settings
from headrace.errors import ErrorCode
from headrace.measures import Histogram
from headrace.server.kafka import HOLD_S_NOTED
from headrace.server.kafka_measures import error_counter
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.messages.groups import DescribedGroup, DescribeGroupsResponse, HeartbeatResponse
from headrace.wire.kafka.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from headrace.wire.kafka.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.unit.server.harness import HEARTBEAT, PRODUCE, Client, at_once, serving


def test_a_histogram_counts_each_observation_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert histogram.count == 4
    assert histogram.sum == pytest.approx(7.65)


def test_errors_are_found_wherever_an_answer_holds_them() -> None:
    errors: dict[int, int] = {}
    partition = MetadataResponsePartition(error_code=5)
    topics = [
        MetadataResponseTopic(error_code=3),
        MetadataResponseTopic(partitions=[partition, MetadataResponsePartition()]),
    ]
    error_counter(MetadataResponse)(MetadataResponse(topics=topics, error_code=7), errors)
    assert errors == {3: 1, 5: 1, 7: 1}


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_an_answer_without_errors_counts_none(api_key: int) -> None:
    errors: dict[int, int] = {}
    response = APIS[api_key].response
    error_counter(response)(response(), errors)
    assert errors == {}


def test_requests_are_counted_by_api_with_their_sizes_and_errors() -> None:
    def handle(request: Request[Any]) -> Any:
        if request.api_key == PRODUCE:
            partition = PartitionProduceResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])
        return HeartbeatResponse()

    with serving(handle) as server, Client(server.address) as client:
        for number in range(3):
            client.heartbeat(number)
            client.answered()
        client.produce(4)
        client.answered()
        measures = server.on_loop(lambda: server.kafka.measures)
    assert measures[HEARTBEAT].seconds.count == 3
    assert measures[HEARTBEAT].request_bytes > 0
    assert measures[HEARTBEAT].response_bytes > 0
    assert measures[HEARTBEAT].errors == {}
    assert measures[PRODUCE].seconds.count == 1
    assert measures[PRODUCE].errors == {ErrorCode.NOT_LEADER_OR_FOLLOWER: 1}


def test_a_request_without_an_answer_is_counted() -> None:
    def handle(request: Request[Any]) -> Any:
        return None if request.api_key == PRODUCE else at_once(request)

    with serving(handle) as server, Client(server.address) as client:
        client.produce(1)
        client.heartbeat(2)
        assert client.answered() == 2
        assert server.on_loop(lambda: server.kafka.measures[PRODUCE].seconds.count) == 1


def test_the_request_that_held_the_loop_longest_has_a_name() -> None:
    def handle(request: Request[Any]) -> Any:
        if request.api_key == PRODUCE:
            time.sleep(2 * HOLD_S_NOTED)
        return at_once(request)

    with serving(handle) as server, Client(server.address) as client:
        client.heartbeat(1)
        client.produce(2)
        client.heartbeat(3)
        for _ in range(3):
            client.answered()
        hold = server.on_loop(lambda: server.kafka.longest_hold)
    assert hold is not None
    assert hold.api == "Produce"
    assert hold.seconds >= 2 * HOLD_S_NOTED


def test_errors_in_elements_that_are_already_encoded_are_counted() -> None:
    elements = Elements(DescribeGroupsResponse, 6, Settings())
    for group, code in (("a", 0), ("b", 69), ("c", 69)):
        elements.add(DescribedGroup(group_id=group, error_code=code), lambda error: error)
    errors: dict[int, int] = {69: 1}
    error_counter(DescribeGroupsResponse)(DescribeGroupsResponse(groups=elements.encoded), errors)
    assert errors == {69: 3}
