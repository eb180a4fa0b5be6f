"""Topics, their settings and their records: made, described, altered and removed.

Groups have their own module, ``groups``. Every function names what it was asked for in its errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace.client.client import ANY, CONTROLLER, Client, TopicInfo, TopicPartition, check
from headrace.client.connection import UnsupportedByBroker
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from headrace.wire.kafka.messages.snapshots import CreateSnapshotRequest, CreateSnapshotResponse
from headrace.wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

__all__ = ["Admin", "ConfigEntry", "ConfigSource", "LogDir", "ResourceKind"]

OWN = "__headrace_"
"""How the names of topics begin in which headrace keeps positions, decisions and settings."""

SET = 0
DELETE = 1


class ResourceKind(IntEnum):
    """What a setting belongs to; the number is the wire's."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from; the number is the wire's."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting as the broker reports it; a sensitive one has no value."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    inherited: str | None = None
    """What holds when this value is removed: from the broker, or the default. Known where details were asked for."""
    doc: str = ""

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """A data directory of a broker; a broker before Kafka 3.3 does not tell how large its disk is."""

    node: int
    path: str
    total_bytes: int | None
    usable_bytes: int | None
    partition_bytes: Mapping[TopicPartition, int]


class Admin:
    """Administration through a client; each call retries what may pass."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # ---- topics -----------------------------------------------------------------------------------------------------

    def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """All topics by name; internal ones, also headrace's own, only when asked for."""
        found = self._client.topics()
        return found if internal else [each for each in found if not (each.internal or each.name.startswith(OWN))]

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Make a topic; -1 leaves a number to the broker's default."""
        self.create_topics(
            [name],
            partitions=partitions,
            replication_factor=replication_factor,
            config=config,
            validate_only=validate_only,
        )

    def create_topics(
        self,
        names: Sequence[str],
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
        may_exist: bool = False,
    ) -> None:
        """Make several topics alike with one request; ``may_exist``: one that is there already stays as it is."""
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        topics = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication_factor, configs=configs)
            for name in names
        ]
        request = CreateTopicsRequest(
            topics=topics, timeout_ms=self._client.options.request_timeout_ms, validate_only=validate_only
        )

        def attempt() -> None:
            answer = self._client.call(CONTROLLER, request, CreateTopicsResponse)
            for each in answer.topics:
                if not (may_exist and each.error_code == ErrorCode.TOPIC_ALREADY_EXISTS):
                    check(each.error_code, each.error_message, f"creating topic {each.name!r}")

        self._client.retrying(attempt)

    def delete_topic(self, name: str) -> None:
        state = DeleteTopicState(name=name)
        timeout_ms = self._client.options.request_timeout_ms
        request = DeleteTopicsRequest(topics=[state], topic_names=[name], timeout_ms=timeout_ms)

        def attempt() -> None:
            answer = self._client.call(CONTROLLER, request, DeleteTopicsResponse)
            for each in answer.responses:
                check(each.error_code, each.error_message, f"deleting topic {name!r}")

        self._client.retrying(attempt)
        self._client.forget_topic(name)

    def create_partitions(self, name: str, total: int) -> None:
        """Grow a topic to ``total`` partitions; their number never shrinks."""
        topic = CreatePartitionsTopic(name=name, count=total, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=self._client.options.request_timeout_ms)

        def attempt() -> None:
            answer = self._client.call(CONTROLLER, request, CreatePartitionsResponse)
            for each in answer.results:
                check(each.error_code, each.error_message, f"growing topic {name!r} to {total} partitions")

        self._client.retrying(attempt)
        self._client.forget_topic(name)

    # ---- settings ---------------------------------------------------------------------------------------------------

    def describe_config(self, kind: ResourceKind, name: str, *, details: bool = False) -> list[ConfigEntry]:
        """Every setting of a topic, broker or group, by name; with ``details`` what it does and what it would be."""
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=details, include_documentation=details)
        node = int(name) if kind is ResourceKind.BROKER and name else ANY

        def attempt() -> list[ConfigEntry]:
            answer = self._client.call(node, request, DescribeConfigsResponse)
            result = answer.results[0]
            check(result.error_code, result.error_message, f"describing {kind.name.lower()} {name!r}")
            return [
                ConfigEntry(
                    name=each.name,
                    value=each.value,
                    source=_source(each.config_source),
                    read_only=each.read_only,
                    sensitive=each.is_sensitive,
                    inherited=_inherited(each),
                    doc=each.documentation or "",
                )
                for each in sorted(result.configs, key=lambda config: config.name)
            ]

        return self._client.retrying(attempt)

    def describe_topics(self, names: Sequence[str], settings: Sequence[str]) -> dict[str, dict[str, str]]:
        """Some settings of many topics, with one request; a topic that may not be described is left out."""
        resources = [
            DescribeConfigsResource(
                resource_type=ResourceKind.TOPIC, resource_name=name, configuration_keys=list(settings)
            )
            for name in names
        ]
        request = DescribeConfigsRequest(resources=resources)

        def attempt() -> dict[str, dict[str, str]]:
            found = {}
            for each in self._client.call(ANY, request, DescribeConfigsResponse).results:
                if each.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    check(each.error_code, each.error_message, f"describing topic {each.resource_name!r}")
                    found[each.resource_name] = {one.name: one.value or "" for one in each.configs}
            return found

        return self._client.retrying(attempt)

    def alter_config(
        self, kind: ResourceKind, name: str, *, put: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        """Set some settings and return others to their defaults; those not named stay as they are."""
        changes = [(key, SET, value) for key, value in (put or {}).items()] + [(key, DELETE, None) for key in remove]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        node = int(name) if kind is ResourceKind.BROKER and name else CONTROLLER

        def attempt() -> None:
            answer = self._client.call(node, request, IncrementalAlterConfigsResponse)
            for each in answer.responses:
                check(each.error_code, each.error_message, f"altering {kind.name.lower()} {name!r}")

        self._client.retrying(attempt)

    # ---- records and disks ------------------------------------------------------------------------------------------

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Remove all records before an offset (-1: all there are); gives the new first offsets."""
        return self._client.retrying(lambda: self._delete_records(before))

    def _delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        starts = {}
        for node, partitions in self._client.by_leader(before).items():
            by_topic: dict[str, list[DeleteRecordsPartition]] = {}
            for each in partitions:
                cut = DeleteRecordsPartition(partition_index=each.partition, offset=before[each])
                by_topic.setdefault(each.topic, []).append(cut)
            topics = [DeleteRecordsTopic(name=name, partitions=cuts) for name, cuts in by_topic.items()]
            request = DeleteRecordsRequest(topics=topics, timeout_ms=self._client.options.request_timeout_ms)
            answer = self._client.call(node, request, DeleteRecordsResponse)
            for topic in answer.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    check(result.error_code, None, f"deleting records of {partition} before {before[partition]}")
                    starts[partition] = result.low_watermark
        return starts

    def partition_bytes(self) -> dict[TopicPartition, int]:
        """Bytes on disk per partition, the largest replica where there are several."""
        sizes: dict[TopicPartition, int] = {}
        for directory in self.log_dirs():
            for partition, size in directory.partition_bytes.items():
                sizes[partition] = max(size, sizes.get(partition, 0))
        return sizes

    def log_dirs(self) -> list[LogDir]:
        """The data directories of every broker, what they hold and what their disks have room for."""
        found = []
        for node in self._client.brokers():
            answer = self._client.call(node, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            check(answer.error_code, None, f"asking broker {node} for its disks")
            for result in answer.results:
                sizes = {
                    TopicPartition(topic.name, each.partition_index): each.partition_size
                    for topic in result.topics
                    for each in topic.partitions
                }
                found.append(
                    LogDir(
                        node=node,
                        path=result.log_dir,
                        total_bytes=result.total_bytes if result.total_bytes >= 0 else None,
                        usable_bytes=result.usable_bytes if result.usable_bytes >= 0 else None,
                        partition_bytes=sizes,
                    )
                )
        return found

    def create_snapshot(self) -> str:
        """Let the broker keep its data directory as it is now; where, on the broker's machine. The process that reads
        it locks the file ``lock`` in there. Only headrace has this."""
        try:
            answer = self._client.call(ANY, CreateSnapshotRequest(), CreateSnapshotResponse)
        except UnsupportedByBroker:
            addresses = ", ".join(map(str, self._client.bootstrap))
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{addresses} is not a headrace broker: back up Apache Kafka with its own tools",
            ) from None
        check(answer.error_code, answer.error_message, "making a snapshot")
        return answer.path


def _inherited(config: DescribeConfigsResourceResult) -> str | None:
    """The first synonym that is not the resource's own value; they come in the order in which they hold."""
    own = (ConfigSource.TOPIC, ConfigSource.GROUP)
    return next((each.value for each in config.synonyms if each.source not in own), None)


def _source(number: int) -> ConfigSource:
    return ConfigSource(number) if number in ConfigSource._value2member_map_ else ConfigSource.UNKNOWN
