"""What a queue was asked to do with its messages: its ``x-`` arguments, checked once, with RabbitMQ's words.

Every type of queue has its own arguments. One that belongs to another type is refused, and one that nobody knows is
kept and has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.methods import SHORT_STRING_BYTES_MAX, is_short
from headrace.wire.amqp.tables import type_name

__all__ = ["AGE_UNITS_MS", "REFUSED", "QueuePolicy", "QueueType"]

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
QueueType = Literal["classic", "quorum", "stream"]
RetryType = Literal["disabled", "all", "returned", "failed"]

DURATION_MS_MAX = 10 * 365 * 24 * 60 * 60 * 1000
"""Ten years: RabbitMQ's limit for anything that expires."""

COUNT_MAX = 2**63 - 1
PRIORITY_MAX = 255
QUORUM_DELIVERY_LIMIT = 20
RETRY_MS = 1_000
"""``x-delayed-retry-min`` where only the type is given."""
STREAM_SEGMENT_BYTES = 32 << 20
STREAM_SEGMENT_BYTES_MAX = 3_000_000_000
SEGMENT_BYTES_MIN = 1 << 16

_OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
_RETRIES: Final = ("disabled", "all", "returned", "failed")
_EXPIRING = frozenset({"x-message-ttl", "x-expires", "x-dead-letter-exchange", "x-dead-letter-routing-key"})
_RETRYING = frozenset({"x-delivery-limit", "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"})
_CLASSIC = frozenset({"x-queue-mode", "x-queue-version"})
_QUORUM = frozenset(
    {"x-quorum-initial-group-size", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-dead-letter-strategy"}
)
_STREAM = frozenset({"x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"})
REFUSED: Final[Mapping[QueueType, frozenset[str]]] = {
    "classic": _RETRYING | _QUORUM | _STREAM,
    "quorum": _CLASSIC | _STREAM,
    "stream": _EXPIRING
    | _RETRYING
    | _CLASSIC
    | _QUORUM
    | {"x-overflow", "x-max-length", "x-max-priority", "x-single-active-consumer", "x-consumer-timeout"},
}
"""Arguments of other types of queues. The size of a cluster and the like has no effect, and is refused all the same: a
stream whose type was forgotten would be a queue that keeps nothing for ``x-max-age``."""
_REFUSED_OF_CONSUMERS: Final[Mapping[QueueType, frozenset[str]]] = {
    "classic": frozenset({"x-stream-offset"}),
    "quorum": frozenset({"x-stream-offset", "x-cancel-on-ha-failover"}),
    "stream": frozenset({"x-priority", "x-cancel-on-ha-failover"}),
}
_AGE = re.compile(r"(\d{1,9})([YMDhms])")
AGE_UNITS_MS: Final = {
    "Y": 365 * 24 * 3_600_000,
    "M": 30 * 24 * 3_600_000,
    "D": 24 * 3_600_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """None where nothing was asked."""

    queue_type: QueueType = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    delivery_limit: int | None = None
    priority_max: int = 0
    has_single_active_consumer: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    consumer_timeout_ms: int | None = None
    retry_type: RetryType = "disabled"
    """Which messages that come back wait before they are delivered again."""
    retry_min_ms: int = RETRY_MS
    retry_max_ms: int = DURATION_MS_MAX
    age_ms_max: int | None = None
    """Of a stream: older segments go."""
    segment_bytes: int = STREAM_SEGMENT_BYTES

    def retry_delay_ms(self, returns: int, *, is_failure: bool) -> int:
        """How long a message waits after so many returns. ``is_failure``: its consumer ended without giving it back."""
        wanted = self.retry_type in ("all", "failed" if is_failure else "returned")
        return min(self.retry_min_ms * returns, self.retry_max_ms) if wanted else 0

    def consumer_priority(self, arguments: Mapping[str, Any], where: str) -> int:
        """The consumer's priority, 0 by default. Raises AmqpError, also for arguments of other types of queues."""
        priority = arguments.get("x-priority", 0)
        refused = _REFUSED_OF_CONSUMERS[self.queue_type]
        if (isinstance(priority, bool) or not isinstance(priority, int)) and "x-priority" not in refused:
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"invalid arg 'x-priority' for {where}: \"expected integer, got {type_name(priority)}\"",
            )
        _refuse(arguments, refused, where, self.queue_type)
        return int(priority)

    @classmethod
    def of(cls, arguments: Mapping[str, Any], where: str, *, is_new: bool = True) -> QueuePolicy:
        """Raises AmqpError. ``where`` is the queue's name in an error. A queue that exists keeps what it was declared
        with."""
        read = _Arguments(arguments, where)
        queue_type = read.queue_type()
        if is_new:
            _refuse(arguments, REFUSED[queue_type], where, queue_type)
        limit = read.number("x-delivery-limit", low=-COUNT_MAX)
        if limit is None and queue_type == "quorum":
            limit = QUORUM_DELIVERY_LIMIT
        elif limit is not None and limit < 0:  # no limit, in RabbitMQ's words; what comes back is counted all the same
            limit = COUNT_MAX
        exchange = read.name("x-dead-letter-exchange")
        key = read.name("x-dead-letter-routing-key")
        if key is not None and not is_short(key):
            raise read.invalid("x-dead-letter-routing-key", f"{{value_too_long,{SHORT_STRING_BYTES_MAX}}}")
        if key is not None and exchange is None:
            raise read.invalid("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
        retry_min_ms = read.number("x-delayed-retry-min", high=DURATION_MS_MAX)
        default: RetryType = "disabled" if retry_min_ms is None else "all"
        return cls(
            queue_type=queue_type,
            message_ttl_ms=read.number("x-message-ttl", high=DURATION_MS_MAX),
            expires_ms=read.number("x-expires", high=DURATION_MS_MAX, may_be_zero=False),
            length_max=read.number("x-max-length"),
            bytes_max=read.number("x-max-length-bytes"),
            overflow=read.choice("x-overflow", _OVERFLOWS, "invalid_overflow") or "drop-head",
            dead_letter_exchange=exchange,
            dead_letter_routing_key=key,
            delivery_limit=limit,
            priority_max=read.number("x-max-priority", high=PRIORITY_MAX, excess="max_value_exceeded") or 0,
            has_single_active_consumer=read.boolean("x-single-active-consumer"),
            consumer_timeout_ms=read.number("x-consumer-timeout", high=DURATION_MS_MAX, may_be_zero=False),
            retry_type=read.choice("x-delayed-retry-type", _RETRIES, "invalid_delayed_retry_type") or default,
            retry_min_ms=RETRY_MS if retry_min_ms is None else retry_min_ms,
            retry_max_ms=read.number("x-delayed-retry-max", high=DURATION_MS_MAX) or DURATION_MS_MAX,
            age_ms_max=read.age("x-max-age"),
            segment_bytes=max(
                SEGMENT_BYTES_MIN,
                read.number("x-stream-max-segment-size-bytes", high=STREAM_SEGMENT_BYTES_MAX) or STREAM_SEGMENT_BYTES,
            ),
            retention_ms=read.number("x-headrace-retention-ms", low=-1),
            retention_bytes=read.number("x-headrace-retention-bytes", low=-1),
        )


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Reads arguments; what is wrong with one is said as RabbitMQ says it."""

    values: Mapping[str, Any]
    where: str

    def invalid(self, name: str, reason: str) -> AmqpError:
        return AmqpError(ReplyCode.PRECONDITION_FAILED, f"invalid arg '{name}' for {self.where}: {reason}")

    def queue_type(self) -> QueueType:
        value: Any = self.values.get("x-queue-type", "classic")
        if not isinstance(value, str):
            raise self.invalid("x-queue-type", f"{{unacceptable_type,{type_name(value)}}}")
        if value not in REFUSED:
            raise self.invalid("x-queue-type", f"\"unsupported queue type '{value}'\"")
        return cast("QueueType", value)

    def number(
        self,
        name: str,
        *,
        low: int = 0,
        high: int = COUNT_MAX,
        may_be_zero: bool = True,
        excess: str = "value_too_large",
    ) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, f'"expected integer, got {type_name(value)}"')
        if value < low:
            raise self.invalid(name, f"{{value_negative,{value}}}")
        if value == 0 and not may_be_zero:
            raise self.invalid(name, f"{{value_zero,{value}}}")
        if value > high:
            raise self.invalid(name, f"{{{excess},{value}}}")
        return value

    def choice(self, name: str, choices: tuple[str, ...], otherwise: str) -> Any:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.invalid(name, f"{{unacceptable_type,{type_name(value)}}}")
        if value is not None and value not in choices:
            raise self.invalid(name, otherwise)
        return value

    def name(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED, f"invalid type '{type_name(value)}' for arg '{name}' in {self.where}"
            )
        return value

    def boolean(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise self.invalid(name, f"{{unacceptable_type,{type_name(value)}}}")
        return value

    def age(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.invalid(name, f"{{unacceptable_type,{type_name(value)}}}")
        found = _AGE.fullmatch(value)
        if found is None:
            raise self.invalid(name, "invalid_max_age")
        return int(found[1]) * AGE_UNITS_MS[found[2]]


def _refuse(arguments: Mapping[str, Any], refused: frozenset[str], where: str, queue_type: QueueType) -> None:
    for name in arguments:
        if name in refused:
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"invalid arg '{name}' for {where} of queue type rabbit_{queue_type}_queue",
            )
