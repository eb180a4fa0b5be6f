"""Data directories as earlier versions wrote them: how they are made, and what must be found in them.

    git worktree add /tmp/old COMMIT
    python -m tests.interop.upgrades /tmp/old tests/interop/data_directories/COMMIT.tar.xz

The broker of that commit is filled through clients that are not headrace's, and killed: a clean stop would leave less
to understand. Empty files are kept, since their names say something.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import pika
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ANSWER_S = 30.0
PLAIN, TABLE, PAIRS, QUEUE = "plain", "table", "pairs", "jobs"
COMMITTED, ABORTED, OPEN = 3, 2, 1
"""Transactions of each kind; each writes to both partitions of a topic."""
PLAIN_RECORDS, READ, DELETED = 60, 40, 10
MESSAGES, ACKNOWLEDGED = 10, 4


def fill(bootstrap: str, amqp_port: int | None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic(PLAIN, 1, config={"segment.ms": "10000", "retention.ms": "-1"}),
        NewTopic(TABLE, 1, config={"cleanup.policy": "compact"}),
        NewTopic(PAIRS, 2),
    ]
    for future in admin.create_topics(topics).values():
        future.result(ANSWER_S)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for number in range(PLAIN_RECORDS):
        value, at_ms = f"{number} ".ljust(500, "."), 1_700_000_000_000 + 1000 * number
        producer.produce(PLAIN, value, key=str(number), headers={"number": str(number)}, timestamp=at_ms)
        producer.produce(TABLE, str(number), key=f"key {number % 5}")
        producer.flush(ANSWER_S)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False})
    reader.commit(offsets=[TopicPartition(PLAIN, 0, READ)], asynchronous=False)
    reader.close()
    for future in admin.delete_records([TopicPartition(PLAIN, 0, DELETED)]).values():
        future.result(ANSWER_S)
    write_pairs(bootstrap)
    if amqp_port is not None:
        fill_queue(amqp_port)


def write_pairs(bootstrap: str) -> None:
    for kind, count in (("committed", COMMITTED), ("aborted", ABORTED), ("open", OPEN)):
        for number in range(count):
            writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{kind} {number}"})
            writer.init_transactions(ANSWER_S)
            writer.begin_transaction()
            for partition in (0, 1):
                writer.produce(PAIRS, f"{kind} {number}", partition=partition)
            writer.flush(ANSWER_S)
            if kind == "committed":
                writer.commit_transaction(ANSWER_S)
            elif kind == "aborted":
                writer.abort_transaction(ANSWER_S)


def fill_queue(amqp_port: int) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, "amq.topic", "jobs.#")
    channel.confirm_delivery()
    for number in range(MESSAGES):
        properties = pika.BasicProperties(delivery_mode=2, headers={"number": number})
        channel.basic_publish("amq.topic", "jobs.new", b"%d" % number, properties)
    for _ in range(ACKNOWLEDGED):
        method, _, _ = channel.basic_get(QUEUE)
        channel.basic_ack(method.delivery_tag)
    channel.queue_declare(QUEUE, passive=True)
    connection.close()


def main(tree: str, target: str) -> None:
    has_queues = Path(tree, "src/headrace/broker/queues").is_dir()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"HEADRACE_DATA": f"{folder}/data", "HEADRACE_KAFKA": "127.0.0.1:0"}
        settings |= {"HEADRACE_AMQP": "127.0.0.1:0"} if has_queues else {}
        broker = subprocess.Popen(
            [sys.executable, "-m", "headrace.node"],
            env={**os.environ, **settings, "PYTHONPATH": f"{tree}/src"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert broker.stdout is not None
            addresses = dict(line.split() for line in iter(broker.stdout.readline, "ready\n"))
            fill(addresses["kafka"], int(addresses["amqp"].rpartition(":")[2]) if has_queues else None)
            time.sleep(6)  # a checkpoint is written every five seconds, where there is something to remove
        finally:
            broker.kill()
            broker.wait()
        with tarfile.open(target, "w:xz") as archive:
            archive.add(f"{folder}/data", "data")


if __name__ == "__main__":
    main(*sys.argv[1:])
