"""Write ten records and read them back, with the client that comes along with headrace."""

from __future__ import annotations

import os
from contextlib import nullcontext

from headrace import testing
from headrace.client import Admin, Client, Consumer, Producer, TopicPartition, start_offsets

TOPIC = "temperatures"


def main(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        Admin(client).create_topic(TOPIC, partitions=2)

        with Producer(client) as producer:  # leaving the block waits until all is acknowledged
            for hour in range(10):
                city = b"oslo" if hour % 2 else b"quito"
                producer.send(TOPIC, b"%d degrees" % (10 + hour), key=city, headers=[("hour", b"%d" % hour)])

        consumer = Consumer(client)
        consumer.assign(start_offsets(client, [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]))
        read = 0
        while read < 10:
            for partition, records in consumer.poll(timeout_ms=1000).items():
                for record in records:
                    print(f"{partition} offset {record.offset}: {record.key!r} {record.value!r} {record.headers}")
                read += len(records)
        print(f"{read} records read")


if __name__ == "__main__":
    given = os.environ.get("HEADRACE_BOOTSTRAP")
    with nullcontext() if given else testing.broker() as broker:
        main(given or broker.bootstrap)
