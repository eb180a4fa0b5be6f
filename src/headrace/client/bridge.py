"""A queue of RabbitMQ, or of any AMQP broker, into a topic: written, then acknowledged.

A queue cannot be read twice, so what must be read exactly once goes into a topic first. A message is acknowledged when
its record is acknowledged by the topic's broker. A death in between repeats records; the same message has the same
header ``message-id``, if its publisher gave one, by which the reader removes repetitions (``hr.dedup``).

The headers of a record are the message's, as text, and ``exchange``, ``routing-key`` and ``message-id``. Its key is the
message id, so that repetitions come to one partition, or else the routing key.
"""

from __future__ import annotations

from typing import Any

from headrace.client.amqp import amqp_channel, need_pika
from headrace.client.client import Client
from headrace.client.producer import Producer
from headrace.errors import HeadraceError
from headrace.wire.amqp.tables import header_of

__all__ = ["bridge"]

PREFETCH = 1_000
PER_COMMIT = 500


def bridge(url: str, queue: str, client: Client, topic: str, *, idle_s: float | None = None) -> int:
    """Move messages until none has come for ``idle_s`` seconds, or for ever; how many."""
    need_pika()
    client.topic(topic)
    count = waiting = 0
    silent_s = 0.0
    with amqp_channel(url, f"queue {queue!r}") as channel, Producer(client) as producer:
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, properties, body in channel.consume(queue, inactivity_timeout=0.1):
            if method is not None:
                _send(producer, topic, method, properties, body)
                tag, waiting, silent_s = method.delivery_tag, waiting + 1, 0.0
            else:
                silent_s += 0.1
            if waiting and (waiting == PER_COMMIT or method is None):
                producer.flush()
                channel.basic_ack(tag, multiple=True)
                count, waiting = count + waiting, 0
            if idle_s is not None and silent_s >= idle_s:
                channel.cancel()
                return count
    raise HeadraceError(f"queue {queue!r} was deleted; {count + waiting} of its messages are in topic {topic!r}")


def _send(producer: Producer, topic: str, method: Any, properties: Any, body: bytes) -> None:
    headers = [header_of(name, value) for name, value in (properties.headers or {}).items()]
    headers += [("exchange", method.exchange.encode()), ("routing-key", method.routing_key.encode())]
    if properties.message_id:
        headers.append(("message-id", properties.message_id.encode()))
    key = (properties.message_id or method.routing_key).encode()
    producer.send(topic, body, key=key, headers=headers)
