"""The access gate: every API behind an authorizer that denies, compared with Apache Kafka's answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.access import AccessDenied, Gate, Operation, ResourceType
from headrace.broker.groups.registry import Groups
from headrace.broker.request import Peer
from headrace.broker.transactions.registry import Transactions
from headrace.errors import ErrorCode
from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.apis import APIS
from tests.differential.client import MESSAGES, Answer, from_dict, to_dict
from tests.differential.denials import CASES, RECORDED, essence, key_of, prepare, with_id
from tests.unit.broker.fakes import FakeClock, FakeState, FakeTopics
from tests.unit.broker.harness import Harness, running

KAFKAS_ANSWERS: dict[str, Any] = json.loads(RECORDED.read_text())
ALWAYS_ALLOWED = {ApiKey.API_VERSIONS}


def no_transactions() -> Transactions:
    return Transactions(state=FakeState(), clock=FakeClock())  # type: ignore[arg-type]


class Denying:
    """Denies names that begin with ``closed`` and, if asked to, the cluster and all writes."""

    def __init__(self) -> None:
        self.closed = False
        self.cluster = False
        self.asked: list[tuple[Operation, ResourceType, str]] = []

    def allows(self, principal: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        self.asked.append((operation, kind, name))
        if kind is ResourceType.CLUSTER:
            return not self.cluster
        if self.cluster and kind is ResourceType.TOPIC and operation is Operation.WRITE:
            return False
        return not (self.closed and name.startswith("closed"))

    def allows_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        return not self.cluster


async def ask(harness: Harness, api: str, version: int, **values: Any) -> Answer:
    body = from_dict(MESSAGES[f"{api}Request"], values)
    return to_dict(await harness.ask(body, version), version)


def everything(harness: Harness) -> Any:
    """All that a request could change: rows, logs, and who is in a group."""
    broker = harness.broker
    return (
        json.dumps(broker.state.tables, sort_keys=True),
        [(each.name, [part.log.end_offset for part in each.partitions]) for each in broker.topics.all()],
        [(group.group_id, sorted(group.member_ids())) for group in broker.groups.all()],
    )


@pytest.mark.parametrize("cluster", [False, True], ids=["resources", "cluster"])
def test_what_is_denied_is_answered_as_kafka_answers_and_changes_nothing(tmp_path: Path, cluster: bool) -> None:
    async def play() -> None:
        authorizer = Denying()
        async with running(tmp_path, authorizer=authorizer) as harness:
            closed_id = await prepare(lambda api, version, **values: ask(harness, api, version, **values))
            authorizer.closed, authorizer.cluster = True, cluster
            before = everything(harness)
            wrong = {}
            for case in (each for each in CASES if each.cluster == cluster):
                answer = essence(await ask(harness, case.api, case.version, **with_id(case.values, closed_id)))
                if answer != KAFKAS_ANSWERS[key_of(case)]:
                    wrong[key_of(case)] = (answer, "Kafka:", KAFKAS_ANSWERS[key_of(case)])
                assert everything(harness) == before, f"{key_of(case)} changed something"
            assert wrong == {}

    asyncio.run(play())


def test_every_api_has_a_denied_case(tmp_path: Path) -> None:
    """Those of Kafka's; headrace's are denied in ``tests/unit/broker/queues/test_admin.py``."""

    async def play() -> None:
        async with running(tmp_path) as harness:
            offered = {ApiKey(key) for key in harness.broker.answers() if not APIS[key].is_own}
            covered = {each.key for each in APIS.values() if each.name in {case.api for case in CASES}}
            assert offered - covered == ALWAYS_ALLOWED

    asyncio.run(play())


def test_every_kind_of_resource_is_denied_somewhere() -> None:
    denied = {code for answer in KAFKAS_ANSWERS.values() for code in codes(answer)}
    assert denied >= {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }


def codes(answer: Any) -> list[int]:
    if isinstance(answer, dict):
        own = [value for key, value in answer.items() if key.endswith("error_code")]
        return own + [code for value in answer.values() for code in codes(value)]
    return [code for each in answer for code in codes(each)] if isinstance(answer, list) else []


def test_without_an_authorizer_all_requests_share_one_access() -> None:
    gate = Gate(topics=FakeTopics(), groups=Groups(), transactions=no_transactions(), authorizer=None)
    assert gate.access("User:alice") is gate.access("User:bob")


def test_the_authorizer_hears_the_principal_of_the_connection(tmp_path: Path) -> None:
    class OnlyAlice(Denying):
        def allows(self, principal: str, operation: Operation, kind: ResourceType, name: str) -> bool:
            return principal == "User:alice"

    async def play() -> None:
        async with running(tmp_path, authorizer=OnlyAlice()) as harness:
            harness.peer.principal = "User:alice"
            await harness.create("t")
            mallory = Peer(id=2, principal="User:mallory")
            refused = await harness.produce("t", [b"x"], peer=mallory)
            assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert (await harness.produce("t", [b"x"])).error_code == 0

    asyncio.run(play())


def test_a_denial_says_what_was_denied() -> None:
    topics = FakeTopics(closed=1)
    authorizer = Denying()
    authorizer.closed = True
    access = Gate(topics=topics, groups=Groups(), transactions=no_transactions(), authorizer=authorizer).access(
        "User:a"
    )
    with pytest.raises(AccessDenied, match="READ on TOPIC 'closed' is not authorized") as raised:
        access.topic("closed", Operation.READ)
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert access.operations(ResourceType.TOPIC, "open") == open_operations()


def open_operations() -> int:
    gate = Gate(topics=FakeTopics(), groups=Groups(), transactions=no_transactions(), authorizer=None)
    return gate.access("User:a").operations(ResourceType.TOPIC, "open")
