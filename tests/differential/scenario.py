"""A scenario talks to one broker and writes down the answers; two brokers that behave alike leave the same notes.

What differs from broker to broker without meaning (ids, addresses, moments) becomes a symbol: the first topic id seen
is ``topic-id 1`` on either side. What is compared is everything else: every field of every answer, error codes by
name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from headrace.errors import ErrorCode
from tests.differential.batches import read_batches
from tests.differential.client import Answer, Asked, RawClient
from tests.servers.process import RunningServer
from tests.waiting import eventually

NOT_COMPARED = frozenset(
    {
        "throttle_time_ms",
        "error_message",
        "batch_index_error_message",
        "host",
        "port",
        "client_host",
        "cluster_id",
        "rack",
        "finalized_features_epoch",
        "documentation",
        "node_endpoints",
        "log_dir",
        "total_bytes",
        "usable_bytes",
    }
)
"""Texts for people, addresses, and sizes of disks."""

NODE_KEYS = frozenset({"node_id", "leader_id", "controller_id", "broker_id", "replica_nodes", "isr_nodes"})
EPOCH_KEYS = frozenset({"member_epoch", "group_epoch", "assignment_epoch"})
"""A consumer group's epochs only ever grow; at which number the first member finds the group is nobody's business."""

MOMENT_MS_MIN = 1_600_000_000_000
"""Timestamps chosen by a test are small numbers; what is above this is a clock."""


class Scenario:
    """One run on one broker: names of its own, connections, and the notes."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.run = os.urandom(4).hex()
        self.notes: list[Any] = []
        self.symbols: dict[Any, str] = {}
        self.connections: list[RawClient] = []
        self.epoch_base: int | None = None
        self.main = self.connect()
        self.node: int = self.ask("Metadata", topics=[])["controller_id"]

    def connect(self, client_id: str = "differential") -> RawClient:
        connection = RawClient(self.server.address, client_id)
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def name(self, what: str) -> str:
        return f"{what}-{self.run}"

    # ---- asking ----

    def ask(self, api: str, version: int | None = None, **values: Any) -> Answer:
        """Ask without a note: for steps that only prepare."""
        return self.main.ask(api, version, **values)

    def note(self, label: str, api: str, version: int | None = None, /, **values: Any) -> Answer:
        """Ask and write the answer down."""
        return self.write(label, self.main.ask(api, version, **values))

    def note_answer(self, label: str, connection: RawClient, asked: Asked) -> Answer:
        return self.write(label, connection.receive(asked))

    def write(self, label: str, answer: Answer) -> Answer:
        self.notes.append([label, self.normal(answer)])
        return answer

    # ---- preparing ----

    def topic(self, what: str = "topic", partitions: int = 1, **configs: str) -> str:
        """A topic of this run, with configs as keyword arguments (dots as underscores). Its id becomes a symbol."""
        name = self.name(what)
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        answer = self.ask(
            "CreateTopics",
            topics=[{"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}],
            timeout_ms=60_000,
        )
        assert answer["topics"][0]["error_code"] == 0, answer
        self.topic_id(name, register=what)
        self.until(lambda: self.is_served(name, partitions))
        return name

    def is_served(self, name: str, partitions: int) -> bool:
        """The metadata may name a leader before that leader knows."""
        asked = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        answer = self.ask("ListOffsets", replica_id=-1, topics=[{"name": name, "partitions": asked}])
        return all(each["error_code"] == 0 for each in answer["topics"][0]["partitions"])

    def topic_id(self, name: str, *, register: str = "") -> bytes:
        """Its id, once the broker's own metadata has it.

        Apache Kafka acknowledges a topic a moment before it serves it.
        """

        def look() -> Answer:
            asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            found: Answer = self.ask("Metadata", **asked)["topics"][0]
            return found

        def is_there(topic: Answer) -> bool:
            return topic["error_code"] == 0 and all(each["leader_id"] >= 0 for each in topic["partitions"])

        identifier: bytes = eventually(look, is_there)["topic_id"]
        if register:
            self.symbols[identifier] = f"topic-id {register}"
        return identifier

    def coordinator(self, key: str, key_type: int) -> None:
        """Wait until the coordinator of a group (0) or transaction (1) serves."""
        eventually(
            lambda: self.ask("FindCoordinator", key_type=key_type, coordinator_keys=[key])["coordinators"][0],
            lambda found: found["error_code"] == 0,
        )

    def until(self, ready: Callable[[], object]) -> None:
        """Apache Kafka settles some things in the background; wait for that and for nothing longer."""
        eventually(ready, pause_s=0.05)

    def produce(self, topic: str, *batches: bytes, partition: int = 0, **values: Any) -> Answer:
        """Produce version 12, by name; ``acks=-1`` unless said otherwise. Several batches go as one record set."""
        data = [{"name": topic, "partition_data": [{"index": partition, "records": b"".join(batches)}]}]
        return self.ask("Produce", 12, **{"acks": -1, "timeout_ms": 60_000, "topic_data": data, **values})

    def note_produce(self, label: str, topic: str, *batches: bytes, partition: int = 0, **values: Any) -> Answer:
        return self.write(label, self.produce(topic, *batches, partition=partition, **values))

    def fetch(self, topic: str, offset: int, *, partition: int = 0, version: int = 12, **values: Any) -> Answer:
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        for key in ("current_leader_epoch", "last_fetched_epoch", "log_start_offset", "partition_max_bytes"):
            if key in values:
                asked[key] = values.pop(key)
        defaults = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1 << 24}
        return self.ask("Fetch", version, **{**defaults, "topics": [{"topic": topic, "partitions": [asked]}], **values})

    def note_fetch(self, label: str, topic: str, offset: int, **values: Any) -> Answer:
        return self.write(label, self.fetch(topic, offset, **values))

    # ---- making answers comparable ----

    def epoch(self, value: int) -> int:
        """Counted from the first epoch that a member of this run was given."""
        if self.epoch_base is None:
            self.epoch_base = value - 1
        return value - self.epoch_base

    def symbol(self, kind: str, value: Any) -> str:
        if value not in self.symbols:
            count = sum(each.startswith(f"{kind} ") for each in self.symbols.values())
            self.symbols[value] = f"{kind} {count + 1}"
        return self.symbols[value]

    def normal(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self.normal(each, name) for name, each in value.items() if name not in NOT_COMPARED}
        if key == "aborted_transactions" and value is None:
            return []  # no list and an empty one mean the same to every client, and Kafka itself sends either
        if isinstance(value, list):
            items = [self.normal(each, key) for each in value]
            return sorted(items, key=json.dumps) if value and isinstance(value[0], dict) else items
        if isinstance(value, bytes):
            return self.normal_bytes(value, key)
        if isinstance(value, str):
            return self.normal_text(value, key)
        if isinstance(value, int) and not isinstance(value, bool):
            return self.normal_number(value, key)
        return value

    def normal_bytes(self, value: bytes, key: str) -> Any:
        if key == "records":
            return [self.normal(each) for each in read_batches(value) or []]
        if key.endswith("_id"):
            return self.symbol("topic-id", value) if any(value) else "no id"
        return value.hex()

    def normal_text(self, value: str, key: str) -> str:
        if value and (key in ("member_id", "leader") or value in self.symbols):
            return self.symbol("member", value)
        return value.replace(f"-{self.run}", "")

    def normal_number(self, value: int, key: str) -> Any:
        if key.endswith("error_code"):
            return ErrorCode(value).name
        if key in NODE_KEYS:
            return "node" if value >= 0 else value
        if key.endswith("producer_id") and value >= 0:
            return self.symbol("producer", value)
        if key in EPOCH_KEYS and value > 0:
            return self.epoch(value)
        if key == "session_id" and value > 0:
            return "a session"
        return "now" if value > MOMENT_MS_MIN and value < 1 << 50 else value
