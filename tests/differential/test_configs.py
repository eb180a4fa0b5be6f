"""Settings: their names and defaults, and what changes them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import BROKER_SETTINGS, GROUP_SETTINGS
from tests.differential.client import Answer
from tests.differential.conftest import Compare
from tests.differential.masks import OTHER_SETTINGS, OUR_SETTINGS
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(s: Scenario, kind: int, name: str, keys: list[str] | None = None, **values: Any) -> Answer:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    return s.ask("DescribeConfigs", resources=[resource], **values)


def ours_left_out(answer: Answer) -> Answer:
    """headrace has its own settings beside Kafka's; they begin with its name."""
    for result in answer["results"]:
        result["configs"] = [each for each in result["configs"] if not each["name"].startswith("headrace.")]
    return answer


@pytest.mark.parametrize("synonyms", [False, True], ids=["plain", "with synonyms"])
def test_every_config_of_a_topic_has_kafkas_name_type_and_default(same_as_kafka: Compare, synonyms: bool) -> None:
    def play(s: Scenario) -> None:
        answer = ours_left_out(describe(s, TOPIC, s.topic(), include_synonyms=synonyms))
        s.notes += sorted([config["name"], s.normal(config)] for config in answer["results"][0]["configs"])

    same_as_kafka(play)


def test_a_created_topic_tells_the_same_configs(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        topic = {"name": s.name("topic"), "num_partitions": 1, "replication_factor": 1}
        topic["configs"] = [{"name": "retention.ms", "value": "1000"}]
        answer = s.ask("CreateTopics", topics=[topic], timeout_ms=60_000)["topics"][0]
        configs = {each["name"]: s.normal(each) for each in answer["configs"]}
        s.notes += [[name, configs[name]] for name in sorted(configs) if not name.startswith("headrace.")]

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version_of_describe_configs(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", retention_ms="1000")
        keys = ["retention.ms", "cleanup.policy", "no.such.config"]
        resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}
        s.note("some", "DescribeConfigs", version, resources=[resource])
        s.note("with synonyms", "DescribeConfigs", version, resources=[resource], include_synonyms=True)

    same_as_kafka(play)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TOPIC, "unknown-topic"),
        (TOPIC, "bad/name"),
        (TOPIC, ""),
        (BROKER, "99"),
        (BROKER, "x"),
        (3, "what"),
        (0, ""),
        (GROUP, ""),
    ],
)
def test_configs_of_what_does_not_exist(same_as_kafka: Compare, kind: int, name: str) -> None:
    def play(s: Scenario) -> None:
        answer = describe(s, kind, name)
        s.write("describe", answer)

    same_as_kafka(play)


@pytest.mark.parametrize("synonyms", [False, True], ids=["plain", "with synonyms"])
def test_a_group_has_configs_with_kafkas_defaults(same_as_kafka: Compare, synonyms: bool) -> None:
    def play(s: Scenario) -> None:
        answer = describe(s, GROUP, s.name("group"), include_synonyms=synonyms)
        for result in answer["results"]:
            result["configs"] = [each for each in result["configs"] if each["name"] in GROUP_SETTINGS]
        s.write("group", answer)

    same_as_kafka(play)


@pytest.mark.parametrize("synonyms", [False, True], ids=["plain", "with synonyms"])
def test_the_brokers_settings_have_kafkas_names_and_defaults(same_as_kafka: Compare, synonyms: bool) -> None:
    def play(s: Scenario) -> None:
        names = sorted(set(BROKER_SETTINGS) - OUR_SETTINGS - set(OTHER_SETTINGS))
        more = {"include_synonyms": synonyms, "include_documentation": True}
        answer = describe(s, BROKER, str(s.node), names, **more)
        configs = {each["name"]: s.normal(each) for each in answer["results"][0]["configs"]}
        s.notes += [[name, configs.get(name)] for name in names]

    same_as_kafka(play)


def alter(
    s: Scenario, label: str, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, **more: Any
) -> None:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    s.note(label, "IncrementalAlterConfigs", resources=[resource], **more)


def values_of(s: Scenario, label: str, name: str, *keys: str) -> None:
    configs = describe(s, TOPIC, name, list(keys))["results"][0]["configs"]
    s.notes.append([label, sorted([each["name"], each["value"], each["config_source"]] for each in configs)])


def settled(s: Scenario, name: str, key: str, value: str) -> None:
    """Apache Kafka acknowledges a change a moment before its broker shows it."""
    s.until(lambda: describe(s, TOPIC, name, [key])["results"][0]["configs"][0]["value"] == value)


def test_configs_are_changed_one_by_one(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", segment_ms="70000")
        keys = ("retention.ms", "segment.ms", "cleanup.policy")
        alter(s, "set", name, ("retention.ms", SET, "5000"))
        settled(s, name, "retention.ms", "5000")
        values_of(s, "after set", name, *keys)
        alter(s, "validate only", name, ("retention.ms", SET, "9"), validate_only=True)
        alter(s, "append to a list", name, ("cleanup.policy", APPEND, "compact"))
        settled(s, name, "cleanup.policy", "delete,compact")
        values_of(s, "after append", name, *keys)
        alter(s, "append again", name, ("cleanup.policy", APPEND, "compact"))
        alter(s, "subtract", name, ("cleanup.policy", SUBTRACT, "delete"))
        settled(s, name, "cleanup.policy", "compact")
        values_of(s, "after subtract", name, *keys)
        alter(s, "delete", name, ("retention.ms", DELETE, None), ("segment.ms", DELETE, None))
        settled(s, name, "segment.ms", "604800000")
        values_of(s, "after delete", name, *keys)

    same_as_kafka(play)


@pytest.mark.parametrize(
    "change",
    [
        ("no.such.config", SET, "1"),
        ("retention.ms", SET, "soon"),
        ("retention.ms", SET, None),
        ("retention.ms", APPEND, "1"),
        ("retention.ms", SUBTRACT, "1"),
        ("cleanup.policy", APPEND, "shred"),
        ("cleanup.policy", SUBTRACT, "compact"),
        ("cleanup.policy", SUBTRACT, "delete"),
        ("retention.ms", DELETE, None),
        ("no.such.config", DELETE, None),
        ("max.message.bytes", SET, "-5"),
        ("min.cleanable.dirty.ratio", SET, "1.5"),
        ("unclean.leader.election.enable", SET, "maybe"),
        ("segment.bytes", SET, "99999999999"),
        ("compression.type", SET, "zstd"),
        ("message.format.version", SET, "3.0"),
        ("", SET, "1"),
    ],
    ids=lambda change: "-".join(map(str, change)),
)
def test_changes_that_are_refused_or_not(same_as_kafka: Compare, change: tuple[str, int, str | None]) -> None:
    same_as_kafka(lambda s: alter(s, "change", s.topic(), change))


def test_changes_of_what_does_not_exist(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        alter(s, "unknown topic", s.name("unknown"), ("retention.ms", SET, "1"))
        alter(s, "bad name", "bad/name", ("retention.ms", SET, "1"))
        alter(s, "unknown kind", "x", ("retention.ms", SET, "1"), kind=3)
        name = s.topic()
        alter(s, "the same key twice", name, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": []}
        s.note("the same resource twice", "IncrementalAlterConfigs", resources=[resource, resource])
        s.note("no change", "IncrementalAlterConfigs", resources=[resource])

    same_as_kafka(play)


def test_settings_of_the_broker_that_nobody_knows_are_kept_and_hidden(same_as_kafka: Compare) -> None:
    """Kafka keeps them for plug-ins. Their values may be secrets, so nobody is shown them."""

    def play(s: Scenario) -> None:
        node, name = str(s.node), s.name("custom.setting")

        def shown(label: str, broker: str) -> None:
            for result in (answer := describe(s, BROKER, broker, [name], include_synonyms=True))["results"]:
                result["resource_name"] = "the broker" if result["resource_name"] else ""
            s.write(label, answer)

        def change(label: str, broker: str, *changes: tuple[str, int, str | None], **more: Any) -> None:
            configs = [{"name": key, "config_operation": kind, "value": value} for key, kind, value in changes]
            resource = {"resource_type": BROKER, "resource_name": broker, "configs": configs}
            answer = s.ask("IncrementalAlterConfigs", resources=[resource], **more)
            for each in answer["responses"]:
                each["resource_name"] = "the broker" if each["resource_name"] else ""
            s.write(label, answer)

        def is_shown(broker: str, wanted: bool) -> bool:
            return bool(describe(s, BROKER, broker, [name])["results"][0]["configs"]) == wanted

        change("validated", node, (name, SET, "1"), validate_only=True)
        shown("not there yet", node)
        change("set for one broker", node, (name, SET, "1"))
        s.until(lambda: is_shown(node, True))
        shown("one broker", node)
        change("set for all", "", (name, SET, "2"))
        s.until(lambda: is_shown("", True))
        shown("all brokers", "")
        change("append", node, (name, APPEND, "3"))
        change("subtract", node, (name, SUBTRACT, "3"))
        change("no value", node, (name, SET, None))
        change("delete", node, (name, DELETE, None))
        change("delete for all", "", (name, DELETE, None))
        s.until(lambda: is_shown(node, False) and is_shown("", False))
        shown("gone", node)
        change("delete again", node, (name, DELETE, None))

    same_as_kafka(play)


@pytest.mark.parametrize("name", ["log.segment.bytes", "log.roll.ms"])
def test_a_setting_of_the_broker_that_was_changed_shows_what_it_covers(same_as_kafka: Compare, name: str) -> None:
    """``log.roll.ms`` has no value in Kafka until it is given one."""

    def play(s: Scenario) -> None:
        topic = s.topic()

        def change(broker: str, operation: int, value: str | None) -> None:
            configs = [{"name": name, "config_operation": operation, "value": value}]
            resource = {"resource_type": BROKER, "resource_name": broker, "configs": configs}
            assert s.ask("IncrementalAlterConfigs", resources=[resource])["responses"][0]["error_code"] == 0

        def now() -> Any:
            return describe(s, BROKER, str(s.node), [name])["results"][0]["configs"][0]["value"]

        def shown(label: str) -> None:
            for kind, of, key in ((BROKER, str(s.node), name), (TOPIC, topic, OF_TOPICS[name])):
                described = describe(s, kind, of, [key], include_synonyms=True)["results"][0]["configs"]
                for each in described:
                    each["synonyms"] = [layer for layer in each["synonyms"] if layer["name"] in BROKER_SETTINGS]
                s.notes.append([f"{label}: {key}", s.normal(described)])

        before = now()
        try:
            change("", SET, "5000000")
            s.until(lambda: now() == "5000000")
            shown("set for all")
            change(str(s.node), SET, "7000000")
            s.until(lambda: now() == "7000000")
            shown("set for one too")
        finally:
            for broker in (str(s.node), ""):
                change(broker, DELETE, None)
        s.until(lambda: now() == before)
        shown("as before")

    same_as_kafka(play)


OF_TOPICS = {"log.segment.bytes": "segment.bytes", "log.roll.ms": "segment.ms"}


def test_the_old_alter_replaces_everything(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", retention_ms="1000", segment_ms="70000")

        def replace(label: str, *configs: tuple[str, str | None], of: str = name, **more: Any) -> None:
            given = [{"name": key, "value": value} for key, value in configs]
            resource = {"resource_type": TOPIC, "resource_name": of, "configs": given}
            s.note(label, "AlterConfigs", resources=[resource], **more)

        replace("replace", ("retention.ms", "2000"))
        settled(s, name, "segment.ms", "604800000")
        values_of(s, "replaced", name, "retention.ms", "segment.ms")
        replace("validate only", ("retention.ms", "3000"), validate_only=True)
        replace("unknown config", ("no.such", "1"))
        replace("bad value", ("retention.ms", "x"))
        replace("null value", ("retention.ms", None))
        replace("unknown topic", ("retention.ms", "1"), of=s.name("unknown"))
        values_of(s, "unchanged", name, "retention.ms", "segment.ms")

    same_as_kafka(play)
