"""A topic's effective settings: its own where given, else the broker's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.config import TOPIC_SETTINGS, Settings, Source, parse_value
from headrace.errors import ErrorCode, KafkaError
from headrace.log.config import FlushMode, LogConfig
from headrace.record import Codec

__all__ = ["ProducePolicy", "TopicConfig"]

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""By the values of ``compression.type``; "producer" is none of them."""


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

    def source(self, name: str) -> Source:
        """Where the value came from."""
        if name in self.given:
            return Source.TOPIC
        synonym = TOPIC_SETTINGS[name].synonym
        layers = self._settings.layers(synonym) if synonym else []
        return layers[0][1] if layers else Source.DEFAULT

    def forget(self) -> None:
        """Drop cached values, because a setting has changed."""
        self._cache.clear()
        self._produce_policy = None

    def check(self) -> None:
        """Refuse settings that contradict each other, or ask for what is not there."""
        if self.get("remote.storage.enable"):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
                "storage.",
            )
        least, most = self.get("min.compaction.lag.ms"), self.get("max.compaction.lag.ms")
        if least > most:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})",
            )

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
        segment_ms_max, compaction_lag_ms_max = self.get("segment.ms"), self.get("max.compaction.lag.ms")
        if self.compacted:
            # The active segment is never compacted, so it must end in time.
            segment_ms_max = min(segment_ms_max, compaction_lag_ms_max)
        return LogConfig(
            segment_bytes_max=self.get("segment.bytes"),
            segment_ms_max=segment_ms_max,
            index_interval_bytes=self.get("index.interval.bytes"),
            retention_ms=self.get("retention.ms"),
            retention_bytes=self.get("retention.bytes"),
            cleanup_delete="delete" in policies,
            cleanup_compact="compact" in policies,
            delete_retention_ms=self.get("delete.retention.ms"),
            min_cleanable_dirty_ratio=self.get("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=self.get("min.compaction.lag.ms"),
            max_compaction_lag_ms=compaction_lag_ms_max,
            flush=FlushMode(self.get("headrace.flush")),
            flush_interval_ms=self._settings.integer("flush.interval.ms"),
            producer_expiration_ms=self._settings.integer("producer.id.expiration.ms"),
            decompressed_bytes_max=self._settings.integer("records.decoded.bytes.max"),
        )
