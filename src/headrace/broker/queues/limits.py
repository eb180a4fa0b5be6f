"""What a client of queues may have at most, and for how long: settings of the broker."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import Settings

__all__ = ["QueueLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """``docs/configuration.md`` has the settings."""

    consumer_timeout_ms: int = 1_800_000
    transaction_bytes_max: int = 128 << 20
    disk_free_bytes_min: int = 50_000_000
    retention_ms: int = 0
    retention_bytes: int = -1

    @classmethod
    def of(cls, settings: Settings) -> QueueLimits:
        return cls(
            consumer_timeout_ms=settings.integer("amqp.consumer.timeout.ms"),
            transaction_bytes_max=settings.integer("amqp.transaction.bytes.max"),
            disk_free_bytes_min=settings.integer("amqp.disk.free.limit.bytes"),
            retention_ms=settings.integer("headrace.queue.retention.ms"),
            retention_bytes=settings.integer("headrace.queue.retention.bytes"),
        )
