"""confluent-kafka, exactly as with Apache Kafka: nothing in this program but the address knows what serves it."""

from __future__ import annotations

import os
from contextlib import nullcontext

from confluent_kafka import Consumer, KafkaError, Message, Producer

from headrace import testing

TOPIC = "page-views"


def delivered(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise SystemExit(f"not delivered: {error}")


def main(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(1000):
        producer.produce(TOPIC, key=f"user-{number % 7}", value=f"/page/{number}", on_delivery=delivered)
        producer.poll(0)
    producer.flush()
    print("1000 page views acknowledged")

    settings = {"bootstrap.servers": bootstrap, "group.id": "counter", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    views: dict[str, int] = {}
    while sum(views.values()) < 1000:
        for message in consumer.consume(500, timeout=1.0):
            if message.error() is None:
                user = (message.key() or b"").decode()
                views[user] = views.get(user, 0) + 1
    consumer.close()  # commits, and hands the partitions to the next member
    for user, count in sorted(views.items()):
        print(f"{user}: {count} views")


if __name__ == "__main__":
    given = os.environ.get("HEADRACE_BOOTSTRAP")
    with nullcontext() if given else testing.broker() as broker:
        main(given or broker.bootstrap)
