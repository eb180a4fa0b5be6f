"""The settings of one partition's log, by plain names with units; the broker maps Kafka's topic configs onto them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["FlushMode", "FlushPolicy", "LogConfig"]

DAY_MS = 24 * 60 * 60 * 1000


class FlushMode(Enum):
    """What an acknowledgement waits for (``headrace.flush``)."""

    ACK = "ack"
    """The sync that covers it: an acknowledged record survives power loss."""
    INTERVAL = "interval"
    """Only the write; a sync follows within ``flush_interval_ms``."""
    OS = "os"
    """Only the write; the operating system syncs when it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    segment_bytes_max: int = 1 << 30
    segment_ms_max: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    """Keep at least this much, delete whole segments beyond it; -1 for no bound."""
    retention_ms: int = 7 * DAY_MS
    """Delete segments whose newest record is older; -1 for no bound."""
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    flush: FlushMode = FlushMode.ACK
    flush_interval_ms: int = 1000
    producer_expiration_ms: int = DAY_MS
    decompressed_bytes_max: int = 128 << 20
    """How far a batch may unfold where its records must be looked at."""


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """What a log's flush mode means. Nothing else looks at the mode."""

    acknowledges_flushed: bool
    """An acknowledged record is flushed; otherwise it is written."""
    sync_after_s: float | None
    """When the flusher syncs what was appended; None leaves it to the operating system, and to checkpoints."""

    @classmethod
    def of(cls, config: LogConfig) -> FlushPolicy:
        if config.flush is FlushMode.ACK:
            return cls(acknowledges_flushed=True, sync_after_s=0.0)
        if config.flush is FlushMode.INTERVAL:
            return cls(acknowledges_flushed=False, sync_after_s=config.flush_interval_ms / 1000)
        return cls(acknowledges_flushed=False, sync_after_s=None)

    @property
    def is_synced_by_us(self) -> bool:
        return self.sync_after_s is not None
