"""Topics: their names, ids, partitions and settings.

A topic is a row of the state table ``topics``; its partitions are directories. The row is written first when a topic is
made, and removed first when it is deleted, so that a crash in between leaves either a topic whose empty logs are made
at the next start or directories that the row in ``deleted`` names. A directory that no row names is reported and never
removed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.broker.partition import DamagedPartition, Partition
from headrace.broker.state import StateStore
from headrace.config import TOPIC_SETTINGS, Settings, parse_value
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.config import FlushMode, LogConfig
from headrace.log.errors import CorruptLog, LogError, storage_error
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.space import GROUP_CHARACTERS_MAX, TOPICS, LogSpace
from headrace.log.store import LogStore
from headrace.ports import Clock
from headrace.record import Codec
from headrace.vocabulary import Epoch

__all__ = [
    "NAME_LENGTH_MAX",
    "PARTITIONS_PER_TOPIC_MAX",
    "Topic",
    "TopicConfig",
    "Topics",
    "check_name",
    "group_name",
    "new_id",
]

LOG = logging.getLogger("headrace.topics")

NAME_LENGTH_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 10_000
SYNC_TOGETHER_ABOVE = 3
"""New partitions take about three syncs each; from here on one sync of the filesystem serves them all."""
CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""By the values of ``compression.type``; "producer" is none of them."""
_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")


def check_name(name: str) -> None:
    """Kafka's rule for topic names; it also keeps names safe as parts of paths."""
    if not name:
        raise _invalid_name("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise _invalid_name("Topic name is invalid: '.' or '..' is not allowed")
    if len(name) > NAME_LENGTH_MAX:
        raise _invalid_name(
            f"Topic name is invalid: the length of '{name[:20]}…' is longer than the max allowed {NAME_LENGTH_MAX}"
        )
    if not _NAME.match(name):
        raise _invalid_name(
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )


def check_not_reserved(name: str) -> None:
    """Refuse names that Kafka's tools or headrace use themselves."""
    if name in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is internal.")
    if name == "__cluster_metadata":
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")


def _invalid_name(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducePolicy:
    """What Produce asks of a topic's settings, looked up once and not for each batch."""

    batch_bytes_max: int
    batch_records_max: int
    decoded_bytes_max: int
    validates_records: bool
    is_compacted: bool
    stamps_append_time: bool
    timestamp_after_ms_max: int
    timestamp_before_ms_max: int
    codec: Codec | None
    """The topic's own codec; None keeps the producer's."""
    reads_records: bool
    """Whether the records of every batch are looked at."""
    may_overflow: bool


class TopicConfig:
    """A topic's effective settings: its own where given, else the broker's."""

    def __init__(self, given: Mapping[str, str], settings: Settings) -> None:
        self.given = dict(given)
        self._settings = settings
        self._cache: dict[str, Any] = {}
        self._produce_policy: ProducePolicy | None = None

    def get(self, name: str) -> Any:
        if name not in self._cache:
            setting = TOPIC_SETTINGS[name]
            if name in self.given:
                value = parse_value(setting, self.given[name])
            elif setting.synonym:
                value = self._settings.get(setting.synonym)
                value = setting.default if value is None else value
            else:
                value = setting.default
            self._cache[name] = value
        return self._cache[name]

    def forget(self) -> None:
        """Drop cached values, because a setting has changed."""
        self._cache.clear()
        self._produce_policy = None

    @property
    def compacted(self) -> bool:
        return "compact" in self.get("cleanup.policy")

    @property
    def produce_policy(self) -> ProducePolicy:
        policy = self._produce_policy
        if policy is None:
            validates_records = self.get("headrace.validate") == "records"
            codec = CODECS.get(self.get("compression.type"))
            policy = self._produce_policy = ProducePolicy(
                batch_bytes_max=self.get("max.message.bytes"),
                batch_records_max=self._settings.integer("max.batch.records"),
                decoded_bytes_max=self._settings.integer("records.decoded.bytes.max"),
                validates_records=validates_records,
                is_compacted=self.compacted,
                stamps_append_time=self.get("message.timestamp.type") == "LogAppendTime",
                timestamp_after_ms_max=self.get("message.timestamp.after.max.ms"),
                timestamp_before_ms_max=self.get("message.timestamp.before.max.ms"),
                codec=codec,
                reads_records=validates_records or self.compacted or codec is not None,
                may_overflow=self.get("headrace.overflow") != "buffer",
            )
        return policy

    def log_config(self) -> LogConfig:
        policies = self.get("cleanup.policy")
        return LogConfig(
            segment_bytes_max=self.get("segment.bytes"),
            segment_ms_max=self.get("segment.ms"),
            index_interval_bytes=self.get("index.interval.bytes"),
            retention_ms=self.get("retention.ms"),
            retention_bytes=self.get("retention.bytes"),
            cleanup_delete="delete" in policies,
            cleanup_compact="compact" in policies,
            delete_retention_ms=self.get("delete.retention.ms"),
            min_cleanable_dirty_ratio=self.get("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=self.get("min.compaction.lag.ms"),
            max_compaction_lag_ms=self.get("max.compaction.lag.ms"),
            flush=FlushMode(self.get("headrace.flush")),
            flush_interval_ms=self._settings.integer("flush.interval.ms"),
            producer_expiration_ms=self._settings.integer("producer.id.expiration.ms"),
            decompressed_bytes_max=self._settings.integer("records.decoded.bytes.max"),
        )


class Topic:
    """One topic, alive."""

    def __init__(self, name: str, topic_id: bytes, config: TopicConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.partitions: list[Partition] = []
        self.internal = False

    @property
    def served(self) -> list[Partition]:
        """The partitions whose logs are whole."""
        return [each for each in self.partitions if each.fault is None]

    def partition(self, index: int) -> Partition | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class Topics:
    """All topics, by name and by id."""

    def __init__(
        self,
        *,
        state: StateStore,
        store: LogStore,
        flusher: Flusher,
        clock: Clock,
        settings: Settings,
        leader_epoch: Epoch,
        remove_files: Callable[[LogSpace, str, Callable[[], None]], None],
    ) -> None:
        """``remove_files`` moves a deleted topic's files away and calls back when that is durable."""
        self._state = state
        self._store = store
        self._space = store.space(TOPICS)
        self._flusher = flusher
        self._clock = clock
        self._settings = settings
        self._leader_epoch = leader_epoch
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._listeners: list[Callable[[], None]] = []
        self._remove_files = remove_files

    def load(self) -> None:
        """Open every topic of the state; finish deletions that a crash interrupted."""
        for name, row in self._state.table("topics").items():
            topic = Topic(name, bytes.fromhex(row["id"]), TopicConfig(row["config"], self._settings))
            self._open_partitions(topic, int(row["partitions"]), sync=False)
            self._register(topic)
        for key in list(self._state.table("deleted")):
            self._space.forget(_group_of(key))
            self._space.move_deleted(_group_of(key))
            self._forget_deleted(key)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def exists(self, name: str) -> bool:
        return name in self._by_name

    def all(self) -> list[Topic]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def __len__(self) -> int:
        return len(self._by_name)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after topics or partitions were created or deleted."""
        self._listeners.append(listener)

    def check_new(self, name: str, partitions: int, config: Mapping[str, str | None]) -> dict[str, str]:
        """Whether a topic could be made like this; its settings, cleaned."""
        check_name(name)
        check_not_reserved(name)
        if name in self._by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        for other in self._by_name:
            if other.replace(".", "_") == name.replace(".", "_"):
                raise _invalid_name(f"Topic '{name}' collides with existing topic: {other}")
        if not 0 < partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Number of partitions was set to an invalid value: {partitions} is not between 1 and "
                f"{PARTITIONS_PER_TOPIC_MAX}.",
            )
        return self.check_config(config)

    def check_config(self, config: Mapping[str, str | None]) -> dict[str, str]:
        """Refuse unknown settings and values that do not fit."""
        clean = {}
        for key, raw in config.items():
            setting = TOPIC_SETTINGS.get(key)
            if setting is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
            if raw is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {key}")
            parse_value(setting, raw)
            clean[key] = raw
        return clean

    def create(self, name: str, partitions: int, config: Mapping[str, str | None] = {}) -> tuple[Topic, int]:
        """Make a topic; it and the state offset after which it is durable."""
        clean = self.check_new(name, partitions, config)
        topic = Topic(name, new_id(), TopicConfig(clean, self._settings))
        offset = self._write_row(topic, partitions)
        try:
            self._open_partitions(topic, partitions)
        except OSError as error:
            self.delete_row(topic)
            raise storage_error(error, self._store.directory) from error
        self._register(topic)
        self._notify()
        return topic, offset

    def add_partitions(self, topic: Topic, count: int) -> int:
        before = len(topic.partitions)
        offset = self._write_row(topic, count)
        try:
            self._open_partitions(topic, count)
        except OSError as error:
            del topic.partitions[before:]
            self._write_row(topic, before)
            raise storage_error(error, self._store.directory) from error
        self._notify()
        return offset

    def delete(self, topic: Topic) -> int:
        """Delete a topic. It is gone at once; its files are removed when that is flushed."""
        key = f"{topic.name}~{topic.topic_id.hex()}"
        offset = self._state.put_many([("topics", topic.name, None), ("deleted", key, True)])
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        for partition in topic.partitions:
            partition.remove()
        for partition in topic.served:
            self._flusher.forget(partition.log)
        self._state.when_flushed(
            offset, lambda: self._remove_files(self._space, _group_of(key), lambda: self._forget_deleted(key))
        )
        self._notify()
        return offset

    def alter(self, topic: Topic, config: Mapping[str, str]) -> int:
        """Replace the topic's own settings."""
        before = topic.config.given
        topic.config.given = dict(config)
        try:
            offset = self._write_row(topic, len(topic.partitions))
        except HeadraceError:
            topic.config.given = before
            raise
        self._apply_settings(topic)
        return offset

    def settings_changed(self) -> Iterator[int]:
        """The broker's settings were altered: apply them to all topics, one at a time. Yields partitions looked at."""
        for topic in list(self._by_name.values()):
            self._apply_settings(topic)
            yield 1 + len(topic.partitions) // 5

    def _apply_settings(self, topic: Topic) -> None:
        topic.config.forget()
        config = topic.config.log_config()
        for partition in topic.served:
            partition.log.config = config
            self._flusher.mark(partition.log)  # it may be an ack topic now, so what is written must be flushed

    # ---- inside ----

    def delete_row(self, topic: Topic) -> None:
        """Undo a creation that the disk refused. Its directories are removed like those of deleted topics."""
        key = f"{topic.name}~{topic.topic_id.hex()}"
        with suppress(HeadraceError):
            self._state.put_many([("topics", topic.name, None), ("deleted", key, True)])

    def _write_row(self, topic: Topic, partitions: int) -> int:
        row = {"id": topic.topic_id.hex(), "partitions": partitions, "config": topic.config.given}
        return self._state.put("topics", topic.name, row)

    def _open_partitions(self, topic: Topic, count: int, *, sync: bool = True) -> None:
        config = topic.config.log_config()
        together = sync and count - len(topic.partitions) > SYNC_TOGETHER_ABOVE
        for index in range(len(topic.partitions), count):
            topic.partitions.append(self._open_partition(topic, index, config, sync=sync and not together))
        if together:
            self._store.sync_recovered()

    def _open_partition(self, topic: Topic, index: int, config: LogConfig, *, sync: bool) -> Partition:
        try:
            log = self._space.open_log(group_name(topic.name, topic.topic_id), index, config, sync=sync)
        except CorruptLog as error:
            LOG.error("%s-%d is not served: %s", topic.name, index, error)
            return DamagedPartition(topic=topic.name, index=index, fault=error, leader_epoch=self._leader_epoch)
        return Partition(
            topic=topic.name,
            index=index,
            log=log,
            flusher=self._flusher,
            clock=self._clock,
            leader_epoch=self._leader_epoch,
        )

    def _register(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def _forget_deleted(self, key: str) -> None:
        with suppress(HeadraceError):  # a full disk: the row stays, and the next start finds nothing left to move
            self._state.put("deleted", key, None)

    def set_damaged(self, log: PartitionLog, fault: LogError) -> None:
        """The log can no longer be served: its partition says so from now on, and the others go on."""
        for topic in self._by_name.values():
            for partition in topic.served:
                if partition.log is log:
                    self._store.set_aside(log)
                    damaged = DamagedPartition(
                        topic=topic.name, index=partition.index, fault=fault, leader_epoch=self._leader_epoch
                    )
                    damaged.dropped_records = partition.dropped_records
                    damaged.refused_batches = partition.refused_batches
                    topic.partitions[partition.index] = damaged
                    partition.retire()


def group_name(name: str, topic_id: bytes) -> str:
    """A topic's directory in the space ``topics``."""
    return f"{name[:GROUP_CHARACTERS_MAX]}~{topic_id.hex()}"


def _group_of(deleted_key: str) -> str:
    name, _, topic_id = deleted_key.rpartition("~")
    return group_name(name, bytes.fromhex(topic_id))


def new_id() -> bytes:
    """A random id. Not the reserved 0 or 1, and not starting with '-' in base64, so that it can be an argument."""
    while True:
        topic_id = os.urandom(16)
        if topic_id[0] >> 2 != 62 and any(topic_id[:15]):
            return topic_id
