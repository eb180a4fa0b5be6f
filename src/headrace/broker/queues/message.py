"""A message, and the record that it is in a queue's log.

The body is the record's value; what AMQP says about it are headers of the record, as the bytes that came:

    exchange      the exchange it was published to
    routing-key   the routing key
    properties    the flags and fields of the content header

So a message is encoded once, a Kafka client can read a queue's log, and nothing of it is decoded on its way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.properties import PropertySummary, decode_properties, encode_properties, summary_of
from headrace.wire.amqp.tables import type_name

__all__ = ["Message", "carbon_copies", "check_expiration", "without_hidden_copies"]

EXPIRATION = re.compile(r"\+?[0-9]{1,15}")


class Message(NamedTuple):
    """As it was published. ``enqueued_ms`` is the broker's time of that; for a dead letter, of its latest routing."""

    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes
    enqueued_ms: int

    @property
    def summary(self) -> PropertySummary:
        return summary_of(self.properties)

    @property
    def headers(self) -> dict[str, Any]:
        found: dict[str, Any] = decode_properties(self.properties).get("headers") or {}
        return found

    @property
    def may_have_copies(self) -> bool:
        """Whether CC or BCC may be among the headers. Most messages have neither, and theirs are not decoded."""
        return b"CC" in self.properties and self.summary.has_headers

    def with_properties(self, **changed: Any) -> Message:
        """The same message with other properties; None removes one."""
        return self._replace(properties=encode_properties({**decode_properties(self.properties), **changed}))

    @property
    def size(self) -> int:
        return len(self.body) + len(self.properties) + len(self.exchange) + len(self.routing_key)


def carbon_copies(headers: Mapping[str, Any]) -> list[bytes]:
    """The routing keys that a message has besides its own. Raises AmqpError."""
    keys: list[bytes] = []
    for name in ("CC", "BCC"):
        values = headers.get(name, [])
        if not isinstance(values, list):
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(values)}}}',
            )
        keys += [each.encode("utf-8", "surrogateescape") for each in values if isinstance(each, str)]
    return keys


def without_hidden_copies(message: Message) -> Message:
    """The message as receivers see it, and its publisher if it is returned."""
    if not message.may_have_copies:
        return message
    headers = message.headers
    if "BCC" not in headers:
        return message
    del headers["BCC"]
    return message.with_properties(headers=headers)


def check_expiration(expiration: str) -> None:
    """Whether it is a time to live. Raises AmqpError with RabbitMQ's reasons."""
    if EXPIRATION.fullmatch(expiration):
        return
    number = re.match(r"[+-]?[0-9]+", expiration)
    if number is None:
        why = "no_integer"
    elif number.end() < len(expiration):
        why = f'{{leftover_string,"{expiration[number.end() :]}"}}'
    else:
        why = f"{{value_{'negative' if expiration[0] == '-' else 'too_big'},{int(expiration)}}}"
    raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"invalid expiration '{expiration}': {why}")
