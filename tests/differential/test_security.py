"""Access control lists, SCRAM credentials and client quotas where nothing is configured. Texts are compared too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers

ANY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
TOPIC = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


def ask(s: Scenario, label: str, api: str, version: int | None = None, **values: Any) -> None:
    """Note the answer and its texts. Each request has its own connection, because some are answered by closing it."""
    answer = s.connect().ask(api, version, **values)
    s.write(label, answer)
    s.notes.append([f"{label}: texts", s.normal(texts(answer))])


def texts(answer: Any) -> list[Any]:
    if isinstance(answer, dict):
        own = [answer["error_message"]] if "error_message" in answer else []
        return own + [text for value in answer.values() for text in texts(value)]
    found = [texts(each) for each in answer] if isinstance(answer, list) else []
    return [text for each in sorted(found, key=str) for text in each]


# ---- access control lists -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_access_control_lists_are_disabled(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        ask(s, "describe all", "DescribeAcls", version, **ANY)
        ask(s, "describe one", "DescribeAcls", version, **{**ANY, "resource_name_filter": "t", "operation": 3})
        ask(s, "create", "CreateAcls", version, creations=[TOPIC])
        ask(s, "create twice", "CreateAcls", version, creations=[TOPIC, TOPIC])
        ask(s, "create nothing", "CreateAcls", version, creations=[])
        ask(s, "delete", "DeleteAcls", version, filters=[ANY])
        ask(s, "delete twice", "DeleteAcls", version, filters=[ANY, ANY])
        ask(s, "delete nothing", "DeleteAcls", version, filters=[])

    same_as_kafka(play)


def test_access_control_lists_with_elements_that_nobody_knows(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        for name in ANY:
            ask(s, f"describe without {name}", "DescribeAcls", **{**ANY, name: 0})
            ask(s, f"describe with a new {name}", "DescribeAcls", **{**ANY, name: 99})
            ask(s, f"delete without {name}", "DeleteAcls", filters=[ANY, {**ANY, name: 0}])
            ask(s, f"delete with a new {name}", "DeleteAcls", filters=[{**ANY, name: 99}])
        for name in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
            ask(s, f"create without {name}", "CreateAcls", creations=[TOPIC, {**TOPIC, name: 0}])
            ask(s, f"create with a new {name}", "CreateAcls", creations=[{**TOPIC, name: 99}])
        ask(s, "a principal without a type", "CreateAcls", creations=[{**TOPIC, "principal": "a"}])

    same_as_kafka(play)


# ---- SCRAM credentials ----------------------------------------------------------------------------------------------

CREDENTIAL = {"name": "a", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}


def test_nobody_has_a_scram_credential(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        def describe(label: str, *names: str) -> None:
            ask(s, label, "DescribeUserScramCredentials", users=[{"name": name} for name in names])

        ask(s, "everybody", "DescribeUserScramCredentials", users=None)
        describe("nobody")
        describe("two", "a", "b")
        describe("one twice", "a", "b", "a")
        describe("without a name", "")

    same_as_kafka(play)


@pytest.mark.parametrize(
    "change",
    [{"name": ""}, {"mechanism": 0}, {"mechanism": 3}, {"iterations": 4095}, {"iterations": 16385}],
    ids=str,
)
def test_scram_credentials_that_nobody_accepts(same_as_kafka: Compare, change: dict[str, Any]) -> None:
    same_as_kafka(lambda s: ask(s, "alter", "AlterUserScramCredentials", upsertions=[{**CREDENTIAL, **change}]))


def test_scram_credentials_that_are_not_there_cannot_be_deleted(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        def delete(label: str, *credentials: tuple[str, int], **more: Any) -> None:
            deletions = [{"name": name, "mechanism": mechanism} for name, mechanism in credentials]
            ask(s, label, "AlterUserScramCredentials", deletions=deletions, **more)

        delete("nothing")
        delete("one", ("a", 1))
        delete("one twice", ("a", 1), ("a", 1))
        delete("both mechanisms", ("a", 1), ("a", 2))
        delete("two users", ("b", 1), ("a", 1))
        delete("an unknown mechanism", ("a", 9))
        delete("without a name", ("", 1))
        delete("and set", ("a", 1), upsertions=[CREDENTIAL])
        delete("and set wrongly", ("b", 1), upsertions=[{**CREDENTIAL, "iterations": 1}])

    same_as_kafka(play)


def test_a_scram_credential_cannot_be_set_twice_in_a_request(same_as_kafka: Compare) -> None:
    same_as_kafka(lambda s: ask(s, "twice", "AlterUserScramCredentials", upsertions=[CREDENTIAL, CREDENTIAL]))


# ---- client quotas --------------------------------------------------------------------------------------------------


def component(kind: str, match_type: int, match: str | None = None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


@pytest.mark.parametrize("version", [0, 1])
def test_there_are_no_client_quotas(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        def describe(label: str, *components: dict[str, Any], **more: Any) -> None:
            ask(s, label, "DescribeClientQuotas", version, components=list(components), **more)

        describe("all")
        describe("any user", component("user", 2))
        describe("the default, strictly", component("user", 1), strict=True)
        describe("one client", component("client-id", 0, s.name("client")))
        describe("user and client", component("user", 0, s.name("user")), component("client-id", 2))
        describe("an address", component("ip", 2))
        describe("exactly nothing", component("user", 0))
        describe("default with a name", component("user", 1, "a"))
        describe("any with a name", component("user", 2, "a"))
        describe("an unknown way to match", component("user", 7))
        describe("an unknown type", component("planet", 2))
        describe("no type", component("", 2))
        describe("one type twice", component("user", 2), component("user", 2))
        describe("address and user", component("ip", 2), component("user", 2))

    same_as_kafka(play)


RATE = {"key": "producer_byte_rate", "value": 1000.0, "remove": False}
REMOVED = {**RATE, "remove": True}


@pytest.mark.parametrize("version", [0, 1])
def test_changes_of_client_quotas_that_change_nothing(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        def alter(label: str, *entities: list[tuple[str, str | None]], ops: Any = (REMOVED,)) -> None:
            entries = [
                {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity], "ops": list(ops)}
                for entity in entities
            ]
            ask(s, label, "AlterClientQuotas", version, entries=entries)

        user, client = ("user", s.name("user")), ("client-id", s.name("client"))
        alter("nothing")
        alter("remove", [user])
        alter("remove of two", [user], [client])
        alter("remove of a pair", [user, client])
        alter("remove the default", [("user", None)])
        alter("one user twice in an entity", [("user", "x"), user])
        alter("no changes", [user], ops=())
        alter("remove an unknown key", [user], ops=[{**REMOVED, "key": "x"}])
        alter("set an unknown key", [user], ops=[{**RATE, "key": "x"}])
        alter("set the key of an address", [user], ops=[{**RATE, "key": "connection_creation_rate"}])
        alter("an unknown type", [("planet", "a")])
        alter("no entity", [])
        alter("an empty name", [("user", "")])
        alter("one entity twice", [user], [user])
        alter("one key twice", [user], ops=[REMOVED, REMOVED])
        entity = [{"entity_type": kind, "entity_name": name} for kind, name in (user, ("ip", "127.0.0.1"))]
        entries = [{"entity": entity, "ops": [REMOVED]}]
        s.note("address and user", "AlterClientQuotas", version, entries=entries)  # Kafka's text lacks a blank

    same_as_kafka(play)
