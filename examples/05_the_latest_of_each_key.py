"""A compacted topic is a table: read it from the start and keep the last value of each key."""

from __future__ import annotations

import os
from contextlib import nullcontext

from headrace import testing
from headrace.client import Admin, Client, Consumer, Producer, TopicPartition, start_offsets

TOPIC = "prices"
HERE = TopicPartition(TOPIC, 0)


def read_table(client: Client) -> dict[str, str]:
    table: dict[str, str] = {}
    consumer = Consumer(client)
    consumer.assign(start_offsets(client, [HERE]))
    while not consumer.at_end():
        for record in consumer.poll(timeout_ms=1000).get(HERE, []):
            key = (record.key or b"").decode()
            if record.value is None:
                table.pop(key, None)  # a null value deletes its key
            else:
                table[key] = record.value.decode()
    return table


def main(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        Admin(client).create_topic(TOPIC, partitions=1, config={"cleanup.policy": "compact"})
        changes = [("espresso", "3.00"), ("bagel", "3.80"), ("espresso", "3.20"), ("tea", "2.50"), ("tea", None)]
        with Producer(client) as producer:
            for product, price in changes:
                producer.send(TOPIC, None if price is None else price.encode(), key=product.encode())
        for product, price in sorted(read_table(client).items()):
            print(f"{product}: {price}")


if __name__ == "__main__":
    given = os.environ.get("HEADRACE_BOOTSTRAP")
    with nullcontext() if given else testing.broker() as broker:
        main(given or broker.bootstrap)
