"""DescribeConfigs and ListConfigResources.

Every setting is described with its value, where that came from, and its synonyms, as Kafka's tools expect. What is
asked for again in the same request is described once and shares its bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from headrace.broker.access import AccessDenied, Operation
from headrace.broker.config_changes import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    check_broker,
    found_topic,
)
from headrace.broker.dynamic_settings import DynamicSettings
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.errors import code_of
from headrace.broker.identity import Identity
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.broker.state import StateStore
from headrace.config import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    OF_THE_CLUSTER,
    TOPIC_SETTINGS,
    Kind,
    Setting,
    Settings,
    Source,
    show_value,
)
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.store import LogStore
from headrace.wire.kafka.messages.configs import (
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

__all__ = ["ConfigDescriber"]

UNITS_PER_RESOURCE = 20
"""A topic has about fifty settings."""

RESOURCES_PER_STEP = 100
KEYS_REMEMBERED_MAX = 10


class Entry(NamedTuple):
    """One setting of a resource: every layer that gives it a value, the one that holds first.

    Without layers the default of the setting holds, which is no synonym.
    """

    setting: Setting
    layers: list[tuple[str, str | None, int]]
    """(name, value, source)"""


class ConfigDescriber:
    """Answers DescribeConfigs and ListConfigResources."""

    def __init__(
        self,
        *,
        state: StateStore,
        store: LogStore,
        settings: Settings,
        dynamic_settings: DynamicSettings,
        identity: Identity,
    ) -> None:
        self._state = state
        self._store = store
        self._settings = settings
        self._dynamic_settings = dynamic_settings
        self._identity = identity

    def describe_configs(self, request: Request[DescribeConfigsRequest]) -> Steps[DescribeConfigsResponse]:
        results = Elements(DescribeConfigsResponse, request.version, self._settings)
        for asked in request.body.resources:
            key = _question(asked)
            if results.full is not None:
                results.refuse(_too_much(asked, results.full))
            elif key is None or not results.repeat(key):
                results.add(self._result(request, asked), partial(_too_much, asked), key)
                yield UNITS_PER_RESOURCE
            yield 1
        return DescribeConfigsResponse(results=results.encoded)

    def _result(
        self, request: Request[DescribeConfigsRequest], asked: DescribeConfigsResource
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name)
        wanted = set(asked.configuration_keys or ())
        body = request.body
        try:
            result.configs = [
                self._described(entry, asked.resource_type, body.include_synonyms, body.include_documentation)
                for entry in self._entries(request, asked)
                if not wanted or entry.setting.name in wanted
            ]
        except HeadraceError as error:
            result.error_code = code_of(error)
            result.error_message = error.message
            return result
        if asked.resource_type == BROKER and asked.resource_name:
            result.configs += _facts(self._addresses(), wanted)
        return result

    @staticmethod
    def _described(
        entry: Entry, kind: int, with_synonyms: bool, with_documentation: bool
    ) -> DescribeConfigsResourceResult:
        setting = entry.setting
        known = setting.kind is not Kind.UNKNOWN
        hidden = setting.kind is Kind.PASSWORD or not known
        unset = None if setting.default is None else show_value(setting.default)
        _, value, source = entry.layers[0] if entry.layers else (setting.name, unset, int(Source.DEFAULT))
        synonyms = [
            DescribeConfigsSynonym(name=name, value=None if hidden else given, source=origin)
            for name, given, origin in (entry.layers if with_synonyms else ())
        ]
        return DescribeConfigsResourceResult(
            name=setting.name,
            value=None if hidden else value,
            read_only=kind == BROKER and not setting.dynamic,
            config_source=source,
            is_sensitive=hidden,
            synonyms=synonyms,
            config_type=setting.kind,
            documentation=setting.doc if with_documentation and known else None,
        )

    def _addresses(self) -> dict[str, str]:
        """The broker's addresses and directory, under the names that Kafka's tools look for."""
        found = [f"PLAINTEXT://{host}:{port}" for host, port in self._identity.addresses.values()]
        return {"advertised.listeners": ",".join(found), "log.dirs": self._store.directory}

    # ---- layers ----

    def _entries(self, request: Request[DescribeConfigsRequest], asked: DescribeConfigsResource) -> Iterator[Entry]:
        kind, name, access = asked.resource_type, asked.resource_name, request.access
        if kind == TOPIC:
            topic = found_topic(access, name, Operation.DESCRIBE_CONFIGS)
            return self._with_synonyms(TOPIC_SETTINGS.values(), topic.config.given, Source.TOPIC)
        if kind == BROKER:
            access.check_cluster(Operation.DESCRIBE_CONFIGS)
            check_broker(name, self._identity.node_id)
            return self._of_broker() if name else self._of_cluster()
        if kind == GROUP:
            access.group(name, Operation.DESCRIBE_CONFIGS)
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            given = self._state.table("group_config").get(name, {})
            return self._with_synonyms(GROUP_SETTINGS.values(), given, Source.GROUP)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"resource type {kind} has no settings here; use topic, broker or group"
        )

    def _with_synonyms(self, settings: Iterable[Setting], given: Mapping[str, str], own: Source) -> Iterator[Entry]:
        """Settings of a topic or a group: what it was given, and then the broker setting that gives its default."""
        for setting in settings:
            layers: list[tuple[str, str | None, int]] = []
            if setting.name in given:
                layers.append((setting.name, given[setting.name], int(own)))
            if setting.synonym:
                layers += self._broker_layers(setting.synonym)
            yield Entry(setting, layers)

    def _broker_layers(self, name: str) -> list[tuple[str, str | None, int]]:
        layers: list[tuple[str, str | None, int]] = [
            (name, show_value(value), int(source)) for value, source in self._settings.layers(name)
        ]
        default = BROKER_SETTINGS[name].default
        if default is not None:
            layers.append((name, show_value(default), int(Source.DEFAULT)))
        return layers

    def _of_broker(self) -> Iterator[Entry]:
        for setting in BROKER_SETTINGS.values():
            yield Entry(setting, self._broker_layers(setting.name))
        own = self._dynamic_settings.values(Source.DYNAMIC_BROKER)
        shared = self._dynamic_settings.values(Source.DYNAMIC_DEFAULT)
        for name in {**own, **shared}:
            if name not in BROKER_SETTINGS:
                sources = [
                    source
                    for source, values in ((Source.DYNAMIC_BROKER, own), (Source.DYNAMIC_DEFAULT, shared))
                    if name in values
                ]
                yield Entry(_unknown(name), [(name, None, int(source)) for source in sources])

    def _of_cluster(self) -> Iterator[Entry]:
        """The defaults for all brokers that were set at run time."""
        always = {OF_THE_CLUSTER: show_value(self._settings.layers(OF_THE_CLUSTER)[0][0])}
        for name, value in {**always, **self._dynamic_settings.values(Source.DYNAMIC_DEFAULT)}.items():
            setting = BROKER_SETTINGS.get(name) or _unknown(name)
            yield Entry(setting, [(name, value, int(Source.DYNAMIC_DEFAULT))])

    # ---- listing ----

    def list_config_resources(self, request: Request[ListConfigResourcesRequest]) -> Steps[ListConfigResourcesResponse]:
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
        found: list[tuple[str, int]] = []
        if GROUP in wanted:
            found += [(name, GROUP) for name in self._state.table("group_config")]
        if TOPIC in wanted:
            topics = request.access.visible_topics(or_on_cluster=Operation.DESCRIBE_CONFIGS)
            found += [(each.name, TOPIC) for each in topics]
        found += [(str(self._identity.node_id), kind) for kind in (BROKER, BROKER_LOGGER) if kind in wanted]
        resources = Elements(ListConfigResourcesResponse, request.version, self._settings)
        for some in in_steps(found, RESOURCES_PER_STEP):
            for name, kind in some:
                try:
                    resources.require(ConfigResource(resource_name=name, resource_type=kind))
                except AnswerTooLarge as error:
                    return ListConfigResourcesResponse(error_code=error.code)
            yield len(some)
        return ListConfigResourcesResponse(config_resources=resources.encoded)


def _question(asked: DescribeConfigsResource) -> Hashable:
    """What makes two questions the same; one that names many settings costs no more than it names."""
    keys = asked.configuration_keys or ()
    return (asked.resource_type, asked.resource_name, *keys) if len(keys) <= KEYS_REMEMBERED_MAX else None


def _too_much(asked: DescribeConfigsResource, error: AnswerTooLarge) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


def _unknown(name: str) -> Setting:
    return Setting(name, Kind.UNKNOWN, None, "")


def _facts(facts: Mapping[str, object], wanted: set[str]) -> list[DescribeConfigsResourceResult]:
    """Read-only entries that show facts instead of settings, so that any admin tool can see them."""
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=str(value),
            read_only=True,
            config_source=Source.STATIC,
            config_type=Kind.LIST,
            documentation=None,
        )
        for name, value in facts.items()
        if not wanted or name in wanted
    ]
