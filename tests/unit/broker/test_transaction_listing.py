"""DescribeTransactions and ListTransactions: what they show, and patterns that clients send."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.broker.limits import PATTERN_CHARS_MAX
from headrace.broker.request import Peer, Request
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages import transactions as messages
from tests.unit.broker.test_transactions import started
from tests.unit.broker.txn_fakes import World, result

INVALID_PATTERN = ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_describe_and_list_show_what_there_is(world: World) -> None:
    producer = started(world, *world.partitions)
    world.ready("idle")
    body = messages.DescribeTransactionsRequest(transactional_ids=["t", "nobody", ""])
    found, missing, empty = result(world.ask("describe_transactions", 0, body)).transaction_states
    assert (found.transaction_state, found.producer_id, found.transaction_timeout_ms) == (
        "Ongoing",
        producer.id,
        60_000,
    )
    assert [(each.topic, each.partitions) for each in found.topics] == [("a", [0, 1]), ("b", [0])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST

    def listed(**filters: object) -> list[str]:
        answer = result(world.ask("list_transactions", 2, messages.ListTransactionsRequest(**filters)))
        return [each.transactional_id for each in answer.transaction_states]

    assert listed() == ["t", "idle"]
    assert listed(state_filters=["Ongoing"]) == ["t"]
    assert listed(producer_id_filters=[producer.id + 1]) == ["idle"]
    assert listed(transactional_id_pattern="i.*") == ["idle"]
    world.advance(5000)
    assert listed(state_filters=["Ongoing"], duration_filter=4999) == ["t"]
    assert listed(state_filters=["Ongoing"], duration_filter=5000) == []


def test_unknown_states_and_bad_patterns_are_told(world: World) -> None:
    answer = result(world.ask("list_transactions", 0, messages.ListTransactionsRequest(state_filters=["Odd", "Empty"])))
    assert answer.unknown_state_filters == ["Odd"]
    bad = messages.ListTransactionsRequest(transactional_id_pattern="(")
    assert result(world.ask("list_transactions", 2, bad)).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["(\n2026-11-20T00:00:00.000+00:00 ERROR   node: forged", "(" * 100_000])
def test_a_bad_pattern_writes_nothing_to_the_operators_log(
    world: World, pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    body = messages.ListTransactionsRequest(transactional_id_pattern=pattern)
    assert world.ask("list_transactions", 2, body).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert capfd.readouterr() == ("", "")


def test_a_pattern_may_be_so_long_and_no_longer(world: World) -> None:
    for length, code in ((PATTERN_CHARS_MAX, ErrorCode.NONE), (PATTERN_CHARS_MAX + 1, INVALID_PATTERN)):
        body = messages.ListTransactionsRequest(transactional_id_pattern="x" * length)
        assert world.ask("list_transactions", 2, body).error_code == code


def test_a_pattern_is_matched_with_long_ids_in_many_steps(world: World) -> None:
    for number in range(5):
        world.ready(f"{number}".ljust(10_000, "a"))
    request = Request(api_key=0, version=2, body=messages.ListTransactionsRequest(), peer=Peer(id=1))
    request.body.transactional_id_pattern = ".*b"
    request.access = world.gate.access(request.peer.principal)
    steps = [units for units in world.coordinator.list_transactions(request) if isinstance(units, int)]
    assert len([units for units in steps if units >= 500]) == 5, "each is worth a turn of the loop"


def test_a_pattern_that_becomes_large_when_it_is_compiled_is_refused(world: World) -> None:
    for pattern, code in (
        (".{1000}" * 6, INVALID_PATTERN),
        ("|".join(f"topic-{n}" for n in range(190)), ErrorCode.NONE),
    ):
        body = messages.ListTransactionsRequest(transactional_id_pattern=pattern)
        assert world.ask("list_transactions", 2, body).error_code == code
