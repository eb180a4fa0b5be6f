"""Data directories to be damaged: a real broker fills one with everything it knows, and is stopped or killed.

Segments are small, because a new one begins with every round of writing. Halfway a DeleteRecords makes the broker
write its checkpoint: what was written before is believed at the next start, what came later is scanned.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace import testing
from headrace.client import (
    Admin,
    Client,
    Consumer,
    Groups,
    Producer,
    ProducerOptions,
    ResourceKind,
    TopicPartition,
    TransactionalProducer,
    end_offsets,
    start_offsets,
)
from headrace.record import Codec
from tests.chaos.damage_snapshot import Snapshot, take
from tests.waiting import eventually

__all__ = ["ENDS", "World", "build", "file_kind"]

ENDS = ("stopped", "killed")
SETTINGS = {"log.cleaner.backoff.ms": 50, "auto.create.topics.enable": False}
NEW_SEGMENT_EACH_ROUND = {"segment.ms": "5000"}
ROUND_MS = 10_000
"""Records of the next round are so much younger, by their own time, which is what begins a segment."""
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **NEW_SEGMENT_EACH_ROUND}
TRANSACTION_TIMEOUT_MS = 900_000
GROUPS = 12
ROUNDS = 3
KEYS = 8


@dataclass(frozen=True, slots=True)
class World:
    """A data directory, how its broker ended, and what clients saw before that."""

    data: Path
    end: str
    truth: Snapshot


def build(folder: Path, end: str) -> World:
    """Fill ``folder`` and end the broker in one of the ways of ``ENDS``."""
    assert end in ENDS
    with testing.broker(in_process=False, data=folder, settings=SETTINGS) as broker:
        with Client(broker.bootstrap) as client:
            Writer(client).write_all()
        truth = take(broker.bootstrap)
        if end == "killed":
            broker.kill()
    return World(folder, end, truth)


class Writer:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.admin = Admin(client)
        self.round = 0
        self.began_ms = int(time.time() * 1000)

    def write_all(self) -> None:
        self.create()
        self.transactions = [TransactionalProducer(self.client, f"t{n}", TRANSACTION_TIMEOUT_MS) for n in range(2)]
        for self.round in range(2 * ROUNDS):
            self.write_round()
            if self.round == ROUNDS - 1:
                self.wait_for_compaction()
                self.delete_records()
        self.leave_a_transaction_open()

    def create(self) -> None:
        for name, config in {
            "plain": {"retention.ms": "-1", **NEW_SEGMENT_EACH_ROUND},
            "packed": {"compression.type": "producer"},
            "atomic": NEW_SEGMENT_EACH_ROUND,
            "compacted": COMPACT,
            "shortened": NEW_SEGMENT_EACH_ROUND,
            "empty": {},
        }.items():
            self.admin.create_topic(name, partitions=1, config=config)
        self.admin.create_partitions("plain", 2)
        self.admin.alter_config(ResourceKind.TOPIC, "empty", put={"retention.ms": "86400000"})
        self.admin.alter_config(ResourceKind.BROKER, "", put={"log.retention.ms": "123456789"})

    def write_round(self) -> None:
        for partition in range(2):
            self.send("plain", 10, partition=partition, idempotent=False)
        self.send("packed", 30, codec=Codec.ZSTD)
        self.send("shortened", 10)
        self.send("compacted", 10, keys=KEYS)
        for producer in self.transactions:
            self.transact(producer, commit=producer is self.transactions[self.round % 2])
        self.commit_offsets()

    def send(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        keys: int = 0,
        idempotent: bool = True,
        codec: Codec = Codec.NONE,
    ) -> None:
        """In several batches: each is flushed by itself."""
        options = ProducerOptions(linger_ms=0, idempotent=idempotent, codec=codec)
        with Producer(self.client, options) as producer:
            for number in range(count):
                key = b"k%d" % ((self.round * count + number) % keys) if keys else None
                is_tombstone = keys and number % 7 == 6
                value = None if is_tombstone else b"%s %d.%d " % (topic.encode(), self.round, number) + b"." * 50
                headers = (("round", b"%d" % self.round),)
                producer.send(topic, value, key=key, partition=partition, headers=headers, timestamp=self.time_ms())
                if number % 4 == 3:
                    producer.flush()

    def time_ms(self) -> int:
        return self.began_ms + self.round * ROUND_MS

    def transact(self, producer: TransactionalProducer, *, commit: bool) -> None:
        producer.begin()
        for number in range(4):
            value = b"%d.%d %s" % (self.round, number, b"stays" if commit else b"goes")
            producer.send("atomic", value, partition=0, timestamp=self.time_ms())
            producer.flush()
        producer.send_offsets("of-transactions", {TopicPartition("plain", 0): self.round + 1})
        if commit:
            producer.commit()
        else:
            producer.abort()

    def commit_offsets(self) -> None:
        groups = Groups(self.client)
        for number in range(GROUPS):
            groups.commit(f"g{number}", {TopicPartition("plain", index): self.round * 10 + number for index in (0, 1)})

    def wait_for_compaction(self) -> None:
        place = TopicPartition("compacted", 0)
        end = end_offsets(self.client, [place])[place]

        def count() -> int:
            consumer = Consumer(self.client)
            consumer.assign(start_offsets(self.client, [place]))
            found = 0
            while not consumer.at_end():
                found += sum(len(records) for records in consumer.poll(100).values())
            return found

        eventually(count, lambda found: found < end)
        # What clients see must not change any more between the reading of the truth and the end of the broker.
        self.admin.alter_config(ResourceKind.TOPIC, "compacted", put={"min.compaction.lag.ms": str(10**12)})

    def delete_records(self) -> None:
        self.admin.delete_records({TopicPartition("shortened", 0): 14})

    def leave_a_transaction_open(self) -> None:
        producer = self.transactions[0]
        producer.begin()
        producer.send("atomic", b"undecided", partition=0, timestamp=self.time_ms())
        producer.flush()


def file_kind(path: Path, data: Path) -> str:
    """What a file is for, to choose evenly among kinds and to tell where damage goes unnoticed."""
    relative = path.relative_to(data)
    place = {"topics": "topic", "state": "journal"}.get(relative.parts[0])
    if place is None:
        return relative.parts[0].partition(".")[0]
    suffixes: Mapping[str, str] = {".log": "log", ".index": "index", ".txn": "txn", ".producers": "producers"}
    return f"{place} {suffixes.get(path.suffix, path.suffix.lstrip('.') or path.name)}"
