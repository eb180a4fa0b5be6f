"""AlterConfigs and IncrementalAlterConfigs.

Topics keep their settings in their row of the state, groups in the table ``group_config``, the broker in those of
``dynamic_settings``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.broker.access import Access, Operation
from headrace.broker.dynamic_settings import DynamicSettings
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.limits import GROUPS_MAX
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.broker.state import StateStore
from headrace.broker.topic_config import TopicConfig
from headrace.broker.topics import Topic, Topics, check_name
from headrace.config import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    Kind,
    Setting,
    Settings,
    Source,
    parse_value,
)
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.wire.kafka.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)

__all__ = [
    "BROKER",
    "BROKER_LOGGER",
    "CLIENT_METRICS",
    "GROUP",
    "TOPIC",
    "ConfigChanger",
    "check_broker",
    "found_topic",
]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

VALUE_CHARS_MAX = 32_767
"""Of a value that is set: Kafka's own bound."""

DYNAMIC_SETTINGS_MAX = 1000
NAME_CHARS_MAX = 1000
"""Unknown names are kept, within this length and ``DYNAMIC_SETTINGS_MAX``."""

UNITS_PER_CHANGE = 10
PARTITIONS_PER_UNIT = 5

Alteration = tuple[str, int, str | None]
"""Setting, operation, value."""

Outcome = tuple[int, str, int, str | None]
"""Kind and name of a resource, error code, message."""


class ConfigChanger:
    """Answers AlterConfigs and IncrementalAlterConfigs."""

    def __init__(
        self,
        *,
        topics: Topics,
        state: StateStore,
        settings: Settings,
        dynamic_settings: DynamicSettings,
        identity: Identity,
    ) -> None:
        self._topics = topics
        self._state = state
        self._settings = settings
        self._dynamic_settings = dynamic_settings
        self._identity = identity

    def alter_configs(self, request: Request[AlterConfigsRequest]) -> Steps[Reply]:
        """The older API: settings that are not named return to their defaults."""
        body = request.body
        asked = [
            (each.resource_type, each.resource_name, [(one.name, SET, one.value) for one in each.configs])
            for each in body.resources
        ]
        outcome, offset = yield from self._alter_all(request.access, asked, body.validate_only, replace=True)
        answers = [
            AlterConfigsResourceResponse(error_code=code, error_message=text, resource_type=kind, resource_name=name)
            for kind, name, code, text in outcome
        ]
        return once_flushed(self._state, offset, AlterConfigsResponse(responses=answers))

    def incremental_alter_configs(self, request: Request[IncrementalAlterConfigsRequest]) -> Steps[Reply]:
        body = request.body
        asked = [
            (
                each.resource_type,
                each.resource_name,
                [(one.name, one.config_operation, one.value) for one in each.configs],
            )
            for each in body.resources
        ]
        outcome, offset = yield from self._alter_all(request.access, asked, body.validate_only, replace=False)
        answers = [
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_code=code, error_message=text, resource_type=kind, resource_name=name
            )
            for kind, name, code, text in outcome
        ]
        return once_flushed(self._state, offset, IncrementalAlterConfigsResponse(responses=answers))

    def _alter_all(
        self, access: Access, asked: Sequence[tuple[int, str, list[Alteration]]], validate_only: bool, replace: bool
    ) -> Steps[tuple[list[Outcome], int]]:
        times = Counter((kind, name) for kind, name, _ in asked)
        outcome: list[Outcome] = []
        durable_after = -1
        for kind, name, changes in asked:
            try:
                if times[kind, name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                if len({key for key, _, _ in changes}) != len(changes):
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
                offset = yield from self._alter(access, kind, name, changes, validate_only, replace)
                durable_after = max(durable_after, offset)
                outcome.append((kind, name, ErrorCode.NONE, None))
            except HeadraceError as error:
                outcome.append((kind, name, code_of(error), error.message))
            yield 1 + len(changes)
        return outcome, durable_after

    def _alter(
        self, access: Access, kind: int, name: str, changes: list[Alteration], validate_only: bool, replace: bool
    ) -> Steps[int]:
        """The journal offset to wait for, or -1."""
        if kind == TOPIC:
            topic = found_topic(access, name, Operation.ALTER_CONFIGS)
            given = _changed({} if replace else topic.config.given, changes, TOPIC_SETTINGS, topic.config.get)
            TopicConfig(given, self._settings).check()
            if validate_only:
                return -1
            offset = self._topics.alter(topic, given)
            yield UNITS_PER_CHANGE + len(topic.partitions) // PARTITIONS_PER_UNIT
            return offset
        if kind == BROKER:
            access.check_cluster(Operation.ALTER_CONFIGS)
            check_broker(name, self._identity.node_id)
            return (yield from self._alter_broker(name, changes, validate_only, replace))
        if kind == GROUP:
            access.group(name, Operation.ALTER_CONFIGS)
            return self._alter_group(name, changes, validate_only, replace)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"resource type {kind} has no settings here; use topic, broker or group"
        )

    def _alter_group(self, name: str, changes: list[Alteration], validate_only: bool, replace: bool) -> int:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        table = self._state.table("group_config")
        if name not in table and (len(table) >= GROUPS_MAX or len(name) > NAME_CHARS_MAX):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, "There are too many groups with settings, or the id is too long."
            )
        before = {} if replace else table.get(name, {})
        given = _changed(before, changes, GROUP_SETTINGS, lambda key: GROUP_SETTINGS[key].default)
        self._check_group(given)
        return -1 if validate_only else self._state.put("group_config", name, given or None)

    def _check_group(self, given: Mapping[str, str]) -> None:
        """A session that is not longer than the heartbeat interval would end between any two heartbeats."""
        heartbeat, session = (
            int(given.get(name, self._settings.integer(GROUP_SETTINGS[name].synonym)))
            for name in ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
        )
        if given and session <= heartbeat:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"consumer.session.timeout.ms ({session}) must be greater than consumer.heartbeat.interval.ms "
                f"({heartbeat})",
            )

    def _alter_broker(self, name: str, changes: list[Alteration], validate_only: bool, replace: bool) -> Steps[int]:
        """Settings of this broker, or (with an empty name) the defaults for all brokers."""
        level = Source.DYNAMIC_BROKER if name else Source.DYNAMIC_DEFAULT
        before = {} if replace else self._dynamic_settings.values(level)
        given = _changed(before, changes, BROKER_SETTINGS, self._settings.get, unknown_allowed=True)
        fixed = [key for key in given if key in BROKER_SETTINGS and not BROKER_SETTINGS[key].dynamic]
        if fixed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: [{', '.join(fixed)}]; set them in headrace.toml and restart",
            )
        _check_min_insync(level, changes)
        if len(given) > DYNAMIC_SETTINGS_MAX or any(len(key) > NAME_CHARS_MAX for key in given):
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "There are too many dynamic settings, or a name is too long.")
        if validate_only:
            return -1
        offset = self._dynamic_settings.replace(level, given)
        yield UNITS_PER_CHANGE
        yield from self._topics.settings_changed()
        return offset


def found_topic(access: Access, name: str, operation: Operation) -> Topic:
    topic = access.topic(name, operation)
    check_name(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic


def check_broker(name: str, node_id: int) -> None:
    if name not in ("", str(node_id)):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node_id} or empty string, but received {name}",
        )


def _check_min_insync(level: Source, changes: list[Alteration]) -> None:
    """As in Kafka, which elects leaders by this setting: it belongs to the cluster, and always has a value there."""
    for name, operation, _ in changes:
        if name == "min.insync.replicas" and level is Source.DYNAMIC_BROKER:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
            )
        if name == "min.insync.replicas" and operation == DELETE:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
            )


def _changed(
    before: Mapping[str, str],
    changes: Iterable[Alteration],
    declared: Mapping[str, Setting],
    effective: Callable[[str], Any],
    *,
    unknown_allowed: bool = False,
) -> dict[str, str]:
    """The settings after the changes. If one of them is invalid, none is made."""
    given = dict(before)
    for name, operation, raw in changes:
        if operation == DELETE:
            given.pop(name, None)
            continue
        setting = declared.get(name)
        if raw is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
        if setting is None and not (unknown_allowed and operation == SET):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
        if operation in (APPEND, SUBTRACT):
            assert setting is not None
            raw = _edited_list(setting, operation, raw, effective(name))
        elif operation != SET:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown operation type {operation}")
        if len(raw) > VALUE_CHARS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The configuration value cannot be added because it exceeds the maximum value size of "
                f"{VALUE_CHARS_MAX} bytes.",
            )
        if setting is not None:
            parse_value(setting, raw)
        given[name] = raw
    return given


def _edited_list(setting: Setting, operation: int, raw: str, now: Any) -> str:
    if setting.kind is not Kind.LIST:
        verb = "APPEND" if operation == APPEND else "SUBTRACT"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {setting.name} because its type is not LIST.")
    edit = dict.fromkeys(part.strip() for part in raw.split(",") if part.strip())
    if operation == SUBTRACT:
        return ",".join(each for each in now if each not in edit)
    return ",".join(dict.fromkeys([*now, *edit]))
