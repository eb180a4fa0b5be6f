"""Decisions: as text, in judgement, and in a topic that many sinks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import testing
from headrace.client import (
    Admin,
    Client,
    ProducerIdentity,
    ResourceKind,
    TransactionalProducer,
    TransactionLost,
    end_offsets,
)
from headrace.errors import Refused
from headrace.spark.topic_sink.decisions import BatchRef, Decision, DecisionTopic, TaskResult, Verdict, judge
from tests.unit.spark.sink_world import PATIENCE

identities = st.builds(ProducerIdentity, st.text(max_size=9), st.integers(0, 2**63 - 1), st.integers(0, 32767))
numbers = st.integers(0, 2**40)
results = st.builds(TaskResult, numbers, numbers, numbers, numbers, st.none() | identities)
batches = st.builds(BatchRef, st.just("sink"), numbers, st.none() | st.text(max_size=9), st.text(max_size=9))
decisions = st.builds(Decision, batches, st.lists(results, max_size=4).map(tuple), st.integers(0, 9))


@settings(max_examples=50, deadline=None)
@given(decisions)
def test_a_decision_is_read_as_it_was_written(decision: Decision) -> None:
    assert Decision.from_json("sink", decision.to_json()) == decision


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b'{"format":1,"batch":"x"}'])
def test_what_is_no_decision_is_refused(text: bytes) -> None:
    with pytest.raises(Refused, match="no decision of headrace"):
        Decision.from_json("sink", text)


def test_a_decision_of_a_later_format_is_refused() -> None:
    text = decided("s", 1).to_json().replace(b'"format":1', b'"format":2')
    with pytest.raises(Refused, match="has format 2; this version of headrace knows 1"):
        Decision.from_json("s", text)


def decided(sink: str, batch_id: int, ends: str | None = None, query: str = "") -> Decision:
    return Decision(BatchRef(sink, batch_id, ends, query), (TaskResult(0, 1, 2, 3, ProducerIdentity("t", 4, 5)),))


@pytest.mark.parametrize(
    ("last", "batch", "verdict"),
    [
        (None, BatchRef("s", 0), Verdict.WRITE),
        (None, BatchRef("s", 7), Verdict.WRITE),
        (decided("s", 6, "a"), BatchRef("s", 7, "b"), Verdict.WRITE),
        (decided("s", 7, "a"), BatchRef("s", 7, "a"), Verdict.REPLAY),
        (decided("s", 7, "a"), BatchRef("s", 7), Verdict.REPLAY),
        (decided("s", 7), BatchRef("s", 7, "a"), Verdict.REPLAY),
    ],
)
def test_a_batch_is_new_or_a_replay(last: Decision | None, batch: BatchRef, verdict: Verdict) -> None:
    assert judge(last, batch) is verdict


@pytest.mark.parametrize(
    ("last", "batch", "told"),
    [
        (decided("s", 7, "a"), BatchRef("s", 7, "b"), "written up to a, and now Spark plans it up to b"),
        (decided("s", 7, "a"), BatchRef("s", 6, "a"), "has written batch 7, and Spark comes with batch 6"),
        (decided("s", 7, "a", "q1"), BatchRef("s", 0, "a", "q2"), r"used by another query \(q1\)"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(last: Decision, batch: BatchRef, told: str) -> None:
    with pytest.raises(Refused, match=told):
        judge(last, batch)


# ---- the topic -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with testing.broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap, PATIENCE) as client:
        yield client


@pytest.fixture
def topic(client: Client, unique: Callable[[str], str]) -> DecisionTopic:
    made = DecisionTopic(client, unique("d"))
    made.ensure()
    made.ensure()
    return made


def record(topic: DecisionTopic, decision: Decision) -> None:
    topic.record(topic.take_lease(decision.batch.sink), decision)


def test_the_last_decision_of_each_sink_is_found_however_far_back_it_is(topic: DecisionTopic) -> None:
    record(topic, decided("quiet", 1))
    for batch_id in range(100):
        record(topic, decided("busy", batch_id))
    assert topic.last("quiet") == decided("quiet", 1)
    assert topic.last("busy") == decided("busy", 99)
    assert topic.last("nobody") is None


def test_a_decision_that_was_never_ended_does_not_count_after_the_next_lease(
    client: Client, topic: DecisionTopic
) -> None:
    record(topic, decided("s", 1))
    dying = TransactionalProducer(client, "s")
    dying.begin()
    dying.send(topic.place.topic, decided("s", 2).to_json(), key=b"s", partition=0)
    dying.flush()
    topic.take_lease("s")
    assert topic.last("s") == decided("s", 1)


def test_who_has_lost_the_lease_decides_nothing(client: Client, topic: DecisionTopic) -> None:
    old = topic.take_lease("s")
    new = topic.take_lease("s")
    with pytest.raises(TransactionLost):
        topic.record(old, decided("s", 1))
    assert topic.last("s") is None
    topic.record(new, decided("s", 1))
    assert topic.last("s") == decided("s", 1)


def test_what_is_forgotten_is_not_found(topic: DecisionTopic) -> None:
    record(topic, decided("s", 1))
    topic.forget(topic.take_lease("s"), "s")
    assert topic.last("s") is None


def test_the_topic_is_compacted(client: Client, topic: DecisionTopic) -> None:
    found = Admin(client).describe_config(ResourceKind.TOPIC, topic.place.topic)
    assert next(each.value for each in found if each.name == "cleanup.policy") == "compact"
    assert end_offsets(client, [topic.place])[topic.place] == 0
