"""Every declaration against Apache Kafka's own schemas, version by version."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.wire.kafka import messages
from headrace.wire.kafka.messages.queues import OWN_KEYS
from headrace.wire.kafka.schema import _SPECS, i32, message, spec_of, string
from tests.unit.wire.schemas import (
    declared_versions,
    inside,
    kafka_layout,
    kafka_schemas,
    kafka_schemas_of_the_jar,
    our_layout,
    versions,
)

for info in pkgutil.iter_modules(messages.__path__):
    importlib.import_module(f"{messages.__name__}.{info.name}")

DECLARED = sorted(
    (cls for cls in _SPECS if cls.__module__.startswith(messages.__name__) and _SPECS[cls].api_key < OWN_KEYS),
    key=lambda cls: cls.__name__,
)
"""Kafka's; headrace has others from ``OWN_KEYS`` on."""


@dataclass
class Difference:
    version: int
    ours: object
    theirs: object


def differences(cls: type, schema: dict[str, Any]) -> list[Difference]:
    """Versions that both know, and where they lie differently on the wire."""
    known = range(versions(schema["validVersions"])[0], versions(schema["validVersions"])[1] + 1)
    found = []
    for version in set(known) & set(declared_versions(cls)):
        ours, theirs = our_layout(cls, version), kafka_layout(schema, version)
        if ours != theirs:
            found.append(Difference(version, ours, theirs))
        flexible = inside(version, schema["flexibleVersions"])
        if flexible != (version >= spec_of(cls).flexible):
            found.append(Difference(version, f"flexible from {spec_of(cls).flexible}", schema["flexibleVersions"]))
    return found


@pytest.mark.parametrize("cls", DECLARED, ids=lambda cls: cls.__name__)
def test_a_message_lies_on_the_wire_as_kafka_declares_it(cls: type) -> None:
    schema = kafka_schemas().get(cls.__name__) or kafka_schemas_of_the_jar().get(cls.__name__)
    if schema is None:
        assert cls.__name__.startswith("ConsumerGroup"), "no schema to compare with and no golden bytes either"
        pytest.skip("kafka-python has no schema of it; test_golden.py states its bytes")
    if spec_of(cls).api_key >= 0:
        assert spec_of(cls).api_key == schema["apiKey"]
    assert versions(schema["validVersions"])[0] == spec_of(cls).first_version
    assert differences(cls, schema) == []


@pytest.mark.parametrize("cls", DECLARED, ids=lambda cls: cls.__name__)
def test_a_message_agrees_with_the_java_client_where_there_is_one(cls: type) -> None:
    schemas = kafka_schemas_of_the_jar()
    if not schemas:
        pytest.skip("no Java client in the cache: the tests that start Apache Kafka bring it")
    assert differences(cls, schemas[cls.__name__]) == []


def test_the_comparison_notices_a_wrong_type_a_wrong_version_and_a_missing_field() -> None:
    heartbeat = kafka_schemas()["HeartbeatRequest"]

    @message(api_key=12, versions=(0, 4), flexible=4)
    class WrongType:
        group_id: str = string()
        generation_id: str = string()
        member_id: str = string()
        group_instance_id: str | None = string(since=3, null=3, default=None)

    @message(api_key=12, versions=(0, 4), flexible=4)
    class WrongVersion:
        group_id: str = string()
        generation_id: int = i32()
        member_id: str = string()
        group_instance_id: str | None = string(since=2, null=2, default=None)

    @message(api_key=12, versions=(0, 4), flexible=3)
    class WrongFlexible:
        group_id: str = string()
        generation_id: int = i32()
        member_id: str = string()
        group_instance_id: str | None = string(since=3, null=3, default=None)

    @message(api_key=12, versions=(0, 2))
    class Missing:
        group_id: str = string()
        member_id: str = string()

    assert {each.version for each in differences(WrongType, heartbeat)} == {0, 1, 2, 3, 4}
    assert {each.version for each in differences(WrongVersion, heartbeat)} == {2}
    assert {each.version for each in differences(WrongFlexible, heartbeat)} == {3}
    assert {each.version for each in differences(Missing, heartbeat)} == {0, 1, 2}
