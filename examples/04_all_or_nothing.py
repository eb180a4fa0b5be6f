"""A transaction over two topics: a transfer is a debit and a credit, and readers see both or neither."""

from __future__ import annotations

import os
from contextlib import nullcontext

from confluent_kafka import Consumer, Producer

from headrace import testing


def transfer(producer: Producer, amount: int, *, fails: bool) -> None:
    producer.begin_transaction()
    producer.produce("debits", key="anna", value=str(amount))
    if fails:
        producer.flush()  # the debit is in the log …
        producer.abort_transaction()  # … and never happened
        print(f"transfer of {amount} aborted")
        return
    producer.produce("credits", key="ben", value=str(amount))
    producer.commit_transaction()
    print(f"transfer of {amount} committed")


def committed(bootstrap: str, topic: str, count: int) -> list[str]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"audit-{topic}",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append((message.value() or b"").decode())
    consumer.close()
    return values


def main(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "transfers"})
    producer.init_transactions()
    transfer(producer, 100, fails=False)
    transfer(producer, 200, fails=True)
    transfer(producer, 300, fails=False)
    for topic in ("debits", "credits"):
        print(f"{topic}: {committed(bootstrap, topic, 2)}")


if __name__ == "__main__":
    given = os.environ.get("HEADRACE_BOOTSTRAP")
    with nullcontext() if given else testing.broker() as broker:
        main(given or broker.bootstrap)
