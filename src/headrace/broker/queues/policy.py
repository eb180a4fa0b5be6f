"""What a queue was asked to do with its messages: its ``x-`` arguments, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.wire.amqp.errors import AmqpError, ReplyCode

__all__ = ["QueuePolicy"]

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]

TTL_MS_MAX = 2**32 - 1
PRIORITY_MAX = 255
QUORUM_DELIVERY_LIMIT = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """None where nothing was asked."""

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

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> QueuePolicy:
        """Raises AmqpError in RabbitMQ's words."""
        overflow = _text(arguments, "x-overflow")
        if overflow not in (None, "drop-head", "reject-publish", "reject-publish-dlx"):
            raise _invalid("x-overflow", overflow)
        queue_type = _text(arguments, "x-queue-type")
        if queue_type not in (None, "classic", "quorum"):
            raise _invalid("x-queue-type", queue_type)
        limit = _number(arguments, "x-delivery-limit", 2**31)
        if limit is None and queue_type == "quorum":
            limit = QUORUM_DELIVERY_LIMIT
        exchange = _text(arguments, "x-dead-letter-exchange")
        key = _text(arguments, "x-dead-letter-routing-key")
        if key is not None and exchange is None:
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED, "routing_key_but_no_dlx_defined for x-dead-letter-routing-key"
            )
        return cls(
            message_ttl_ms=_number(arguments, "x-message-ttl", TTL_MS_MAX),
            expires_ms=_number(arguments, "x-expires", TTL_MS_MAX, low=1),
            length_max=_number(arguments, "x-max-length", 2**63),
            bytes_max=_number(arguments, "x-max-length-bytes", 2**63),
            overflow=overflow or "drop-head",  # type: ignore[arg-type]
            dead_letter_exchange=exchange,
            dead_letter_routing_key=key,
            delivery_limit=limit,
            priority_max=_number(arguments, "x-max-priority", PRIORITY_MAX) or 0,
            has_single_active_consumer=bool(arguments.get("x-single-active-consumer", False)),
        )


def _number(arguments: Mapping[str, Any], name: str, high: int, low: int = 0) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _invalid(name, value)
    return value


def _text(arguments: Mapping[str, Any], name: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise _invalid(name, value)
    return value


def _invalid(name: str, value: object) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, f"invalid arg '{name}': {value!r}")
