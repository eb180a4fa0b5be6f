"""Settings over the wire: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Topics keep their own settings in their row of the state; changes to the broker's and to groups' settings are rows of
the tables ``broker_config`` and ``group_config``. Every setting is described with its value, where that came from, and
its synonyms, as Kafka's tools expect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation
from headrace.broker.dynamic_settings import DynamicSettings
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.state import StateStore
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
    show_value,
)
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.store import LogStore
from headrace.wire.kafka.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

__all__ = ["ConfigHandler"]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

Alteration = tuple[str, int, str | None]
"""Setting, operation, value."""


class ConfigHandler:
    """Answers DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

    def __init__(
        self,
        *,
        topics: Topics,
        state: StateStore,
        store: LogStore,
        settings: Settings,
        dynamic_settings: DynamicSettings,
        identity: Identity,
    ) -> None:
        self._topics = topics
        self._state = state
        self._store = store
        self._settings = settings
        self._dynamic_settings = dynamic_settings
        self._identity = identity

    # ---- describing ----

    def describe_configs(self, request: Request[DescribeConfigsRequest]) -> Reply:
        results = []
        for asked in request.body.resources:
            result = DescribeConfigsResult(
                error_message=None, resource_type=asked.resource_type, resource_name=asked.resource_name
            )
            try:
                result.configs = self._describe(request, asked)
            except HeadraceError as error:
                result.error_code = code_of(error)
                result.error_message = error.message
            results.append(result)
        return DescribeConfigsResponse(results=results)

    def _describe(
        self, request: Request[DescribeConfigsRequest], asked: DescribeConfigsResource
    ) -> list[DescribeConfigsResourceResult]:
        body, access = request.body, request.access
        settings, entry = self._entries(access, asked.resource_type, asked.resource_name)
        described = []
        for setting in settings:
            if asked.configuration_keys and setting.name not in asked.configuration_keys:
                continue
            value, source, synonyms = entry(setting)
            described.append(
                DescribeConfigsResourceResult(
                    name=setting.name,
                    value=None if setting.kind is Kind.PASSWORD else value,
                    read_only=asked.resource_type == BROKER and not setting.dynamic,
                    config_source=source,
                    is_sensitive=setting.kind is Kind.PASSWORD,
                    synonyms=synonyms if body.include_synonyms else [],
                    config_type=setting.kind,
                    documentation=setting.doc if body.include_documentation else None,
                )
            )
        if asked.resource_type == BROKER:
            described += _facts(asked, self._addresses(), Kind.LIST, Source.STATIC)
        return described

    def _addresses(self) -> dict[str, str]:
        """The broker's addresses and directory, under the names that Kafka's tools look for."""
        found = [f"PLAINTEXT://{host}:{port}" for host, port in self._identity.addresses.values()]
        return {"advertised.listeners": ",".join(found), "log.dirs": self._store.directory}

    def _entries(
        self, access: Access, kind: int, name: str
    ) -> tuple[Iterable[Setting], Callable[[Setting], tuple[str | None, int, list[DescribeConfigsSynonym]]]]:
        if kind == TOPIC:
            topic = _topic(access, name, Operation.DESCRIBE_CONFIGS)
            return TOPIC_SETTINGS.values(), lambda setting: self._layers(setting, topic.config.given, Source.TOPIC)
        if kind == BROKER:
            access.check_cluster(Operation.DESCRIBE_CONFIGS)
            self._check_broker(name)
            return BROKER_SETTINGS.values(), lambda setting: self._layers(setting, {}, Source.STATIC)
        if kind == GROUP:
            access.group(name, Operation.DESCRIBE_CONFIGS)
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            given = self._state.table("group_config").get(name, {})
            return GROUP_SETTINGS.values(), lambda setting: self._layers(setting, given, Source.GROUP)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"resource type {kind} has no settings here; use topic, broker or group"
        )

    def _layers(
        self, setting: Setting, given: Mapping[str, str], own: Source
    ) -> tuple[str | None, int, list[DescribeConfigsSynonym]]:
        """The effective value, its source, and all layers from the one with the highest precedence down."""
        layers: list[tuple[str, str | None, int]] = []
        if setting.name in given:
            layers.append((setting.name, given[setting.name], int(own)))
        broker_name = setting.name if own is Source.STATIC else setting.synonym
        if broker_name:
            settings = self._settings
            source = settings.source(broker_name)
            if source is not Source.DEFAULT:
                layers.append((broker_name, show_value(settings.get(broker_name)), int(source)))
            at_start = settings.given_at_start(broker_name)
            if at_start is not None and source is not Source.STATIC:
                layers.append((broker_name, show_value(at_start), int(Source.STATIC)))
            default = BROKER_SETTINGS[broker_name].default
            if default is not None or own is Source.STATIC:
                layers.append((broker_name, None if default is None else show_value(default), int(Source.DEFAULT)))
        if not layers:
            layers.append((setting.name, show_value(setting.default), int(Source.DEFAULT)))
        synonyms = [DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in layers]
        return layers[0][1], layers[0][2], synonyms

    def _check_broker(self, name: str) -> None:
        if name not in ("", str(self._identity.node_id)):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._identity.node_id} or empty string, but received {name}",
            )

    # ---- altering ----

    def alter_configs(self, request: Request[AlterConfigsRequest]) -> Reply:
        """The older API: settings that are not named return to their defaults."""
        body = request.body
        asked = [
            (each.resource_type, each.resource_name, [(one.name, SET, one.value) for one in each.configs])
            for each in body.resources
        ]
        outcome, offset = self._alter_all(request.access, asked, body.validate_only, replace=True)
        answers = [
            AlterConfigsResourceResponse(error_code=code, error_message=text, resource_type=kind, resource_name=name)
            for kind, name, code, text in outcome
        ]
        return once_flushed(self._state, offset, AlterConfigsResponse(responses=answers))

    def incremental_alter_configs(self, request: Request[IncrementalAlterConfigsRequest]) -> Reply:
        body = request.body
        asked = [
            (
                each.resource_type,
                each.resource_name,
                [(one.name, one.config_operation, one.value) for one in each.configs],
            )
            for each in body.resources
        ]
        outcome, offset = self._alter_all(request.access, asked, body.validate_only, replace=False)
        answers = [
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                error_code=code, error_message=text, resource_type=kind, resource_name=name
            )
            for kind, name, code, text in outcome
        ]
        return once_flushed(self._state, offset, IncrementalAlterConfigsResponse(responses=answers))

    def _alter_all(
        self, access: Access, asked: Sequence[tuple[int, str, list[Alteration]]], validate_only: bool, replace: bool
    ) -> tuple[list[tuple[int, str, int, str | None]], int]:
        times = Counter((kind, name) for kind, name, _ in asked)
        outcome: list[tuple[int, str, int, str | None]] = []
        durable_after = -1
        for kind, name, changes in asked:
            try:
                if times[kind, name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                if not replace and len({key for key, _, _ in changes}) != len(changes):
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
                durable_after = max(durable_after, self._alter(access, kind, name, changes, validate_only, replace))
                outcome.append((kind, name, ErrorCode.NONE, None))
            except HeadraceError as error:
                outcome.append((kind, name, code_of(error), error.message))
        return outcome, durable_after

    def _alter(
        self, access: Access, kind: int, name: str, changes: list[Alteration], validate_only: bool, replace: bool
    ) -> int:
        if kind == TOPIC:
            topic = _topic(access, name, Operation.ALTER_CONFIGS)
            given = _changed({} if replace else topic.config.given, changes, TOPIC_SETTINGS, topic.config.get)
            return -1 if validate_only else self._topics.alter(topic, given)
        if kind == BROKER:
            access.check_cluster(Operation.ALTER_CONFIGS)
            self._check_broker(name)
            return self._alter_broker(changes, validate_only, replace)
        if kind == GROUP:
            access.group(name, Operation.ALTER_CONFIGS)
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            before = {} if replace else self._state.table("group_config").get(name, {})
            given = _changed(before, changes, GROUP_SETTINGS, lambda key: GROUP_SETTINGS[key].default)
            return -1 if validate_only else self._state.put("group_config", name, given or None)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"resource type {kind} has no settings here; use topic, broker or group"
        )

    def _alter_broker(self, changes: list[Alteration], validate_only: bool, replace: bool) -> int:
        table = self._state.table("broker_config")
        before = {} if replace else {key: row["value"] for key, row in table.items()}
        given = _changed(before, changes, BROKER_SETTINGS, self._settings.get)
        for key in given:
            if not BROKER_SETTINGS[key].dynamic:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Cannot update {key} while the broker runs; set it in headrace.toml and restart",
                )
        if validate_only:
            return -1
        rows = [("broker_config", key, None) for key in table if key not in given]
        offset = self._state.put_many([*rows, *(("broker_config", key, {"value": raw}) for key, raw in given.items())])
        self._dynamic_settings.apply()
        self._topics.settings_changed()
        return offset

    def list_config_resources(self, request: Request[ListConfigResourcesRequest]) -> Reply:
        try:
            request.access.check_cluster(Operation.DESCRIBE_CONFIGS)
        except AccessDenied as denied:
            return ListConfigResourcesResponse(error_code=denied.code)
        wanted = set(request.body.resource_types) or (
            {CLIENT_METRICS} if request.version == 0 else {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
        )
        unknown = wanted - {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
        if unknown:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        found = []
        if GROUP in wanted:
            found += [(name, GROUP) for name in self._state.table("group_config")]
        if TOPIC in wanted:
            topics = request.access.visible_topics(or_on_cluster=Operation.DESCRIBE_CONFIGS)
            found += [(each.name, TOPIC) for each in topics]
        found += [(str(self._identity.node_id), kind) for kind in (BROKER, BROKER_LOGGER) if kind in wanted]
        return ListConfigResourcesResponse(
            config_resources=[ConfigResource(resource_name=name, resource_type=kind) for name, kind in found]
        )


def _topic(access: Access, name: str, operation: Operation) -> Topic:
    topic = access.topic(name, operation)
    check_name(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return topic


def _facts(
    asked: DescribeConfigsResource, facts: Mapping[str, object], kind: Kind, source: Source
) -> list[DescribeConfigsResourceResult]:
    """Read-only entries that show facts instead of settings, so that any admin tool can see them."""
    return [
        DescribeConfigsResourceResult(
            name=name, value=str(value), read_only=True, config_source=source, config_type=kind, documentation=None
        )
        for name, value in facts.items()
        if not asked.configuration_keys or name in asked.configuration_keys
    ]


def _changed(
    before: Mapping[str, str],
    changes: Iterable[Alteration],
    declared: Mapping[str, Setting],
    effective: Callable[[str], Any],
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
        if setting is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
        if operation in (APPEND, SUBTRACT):
            raw = _edited_list(setting, operation, raw, effective(name))
        elif operation != SET:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown operation type {operation}")
        parse_value(setting, raw)
        given[name] = raw
    return given


def _edited_list(setting: Setting, operation: int, raw: str, now: Any) -> str:
    if setting.kind is not Kind.LIST:
        verb = "APPEND" if operation == APPEND else "SUBTRACT"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {setting.name} because its type is not LIST.")
    edit = [part.strip() for part in raw.split(",") if part.strip()]
    if operation == SUBTRACT:
        return ",".join(each for each in now if each not in edit)
    return ",".join([*now, *(each for each in edit if each not in now)])
