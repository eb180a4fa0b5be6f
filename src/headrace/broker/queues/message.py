"""A message, and the record that it is in a queue's log.

The body is the record's value; what AMQP says about it are headers of the record, as the bytes that came:

    exchange      the exchange it was published to
    routing-key   the routing key
    properties    the flags and fields of the content header

So a message is encoded once, a Kafka client can read a queue's log, and nothing of it is decoded on its way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.wire.amqp.properties import PropertySummary, decode_properties, encode_properties, summary_of

__all__ = ["Message"]


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

    def with_properties(self, **changed: Any) -> Message:
        """The same message with other properties; None removes one."""
        return self._replace(properties=encode_properties({**decode_properties(self.properties), **changed}))

    @property
    def size(self) -> int:
        return len(self.body) + len(self.properties) + len(self.exchange) + len(self.routing_key)
