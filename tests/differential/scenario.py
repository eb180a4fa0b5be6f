"""A scenario talks to one broker and writes down the answers; two brokers that behave alike leave the same notes.

What differs from broker to broker without meaning (ids, addresses, times) becomes a symbol: the first topic id seen is
``topic-id 1`` on either side. Which fields these are, and what of them is compared, is listed in ``masks``. Everything
else is compared as it stands: every field of every answer, error codes by name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import ErrorCode
from tests.differential.batches import NOW_MS, read_batches
from tests.differential.client import Answer, Asked, RawClient
from tests.differential.masks import NOW_WITHIN_MS, SENT_WITHIN_MS, mask_of
from tests.servers.process import RunningServer
from tests.waiting import eventually

MOMENT_MS_MIN = 1_600_000_000_000
"""Timestamps chosen by a test are small numbers; what is above this is a clock."""


class Scenario:
    """One run on one broker: its own names, connections, and the notes."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.run = os.urandom(4).hex()
        self.notes: list[Any] = []
        self.symbols: dict[Any, str] = {}
        self.connections: list[RawClient] = []
        self.epoch_base: int | None = None
        self.address = server.address
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
            return {name: self.normal(each, name) for name, each in value.items()}
        if isinstance(value, list):
            items = [self.normal(each, key) for each in value]
            return sorted(items, key=json.dumps) if value and isinstance(value[0], dict) else items
        if key == "records":
            return None if value is None else [self.normal_batch(each) for each in read_batches(value)]
        if mask := mask_of(key):
            return mask.show(self, value)
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, str):
            return self.symbols.get(value) or value.replace(f"-{self.run}", "")
        if isinstance(value, int) and not isinstance(value, bool):
            return ErrorCode(value).name if key.endswith("error_code") else normal_time(value)
        return value

    def normal_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Records are lists of texts already."""
        shown = self.normal({name: value for name, value in batch.items() if name != "records"})
        return {**shown, "records": self.normal(batch["records"])}


def normal_time(value: int) -> Any:
    """A time that the test sent is known exactly; one that a broker made must be near."""
    if not MOMENT_MS_MIN < value < 1 << 50:
        return value
    if 0 <= value - NOW_MS < SENT_WITHIN_MS:
        return f"sent + {value - NOW_MS}"
    return "now" if abs(value - time.time() * 1000) < NOW_WITHIN_MS else value
