"""What all requests about queues share: errors as the codes of the Kafka port, names as bytes, lanes that exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.broker.errors import code_of
from headrace.broker.queues.queue import Queue
from headrace.broker.slices import Steps
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.wire.amqp.errors import AmqpError, ReplyCode

__all__ = ["answered", "lane_number", "raw_name", "reply_code"]

T = TypeVar("T")

_CODES = {
    ReplyCode.NOT_FOUND: ErrorCode.RESOURCE_NOT_FOUND,
    ReplyCode.RESOURCE_LOCKED: ErrorCode.POLICY_VIOLATION,
    ReplyCode.ACCESS_REFUSED: ErrorCode.POLICY_VIOLATION,
    ReplyCode.RESOURCE_ERROR: ErrorCode.KAFKA_STORAGE_ERROR,
}


def answered(response: Callable[..., T], steps: Steps[T]) -> Steps[T]:
    """What the steps answer, or the error that they end with."""
    try:
        return (yield from steps)
    except HeadraceError as error:
        return response(error_code=reply_code(error), error_message=error.message)


def reply_code(error: HeadraceError) -> ErrorCode:
    if isinstance(error, AmqpError):
        return _CODES.get(error.code, ErrorCode.INVALID_REQUEST)
    return code_of(error)


def raw_name(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def lane_number(queue: Queue, number: int) -> int:
    if not 0 <= number < len(queue.lanes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"queue '{queue.name}' has lanes 0 to {len(queue.lanes) - 1}")
    return number
