"""Events and the position behind them, committed together in one transaction of the log.

Records are encoded as they come, into one batch per partition; full batches go out while the next ones are filled. The
transaction begins with the first of them and ends with ``commit``, which adds the state. Whoever is killed in between
leaves an open transaction that no reader of committed records sees; the next holder of the name aborts it before it
reads where to go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.capture.envelope import Headers
from headrace.capture.options import CaptureOptions
from headrace.capture.state import STATE_CONFIG, ensure_topic, read_state, state_topic
from headrace.client import (
    Admin,
    Client,
    PreparedRecords,
    ProducerOptions,
    ResourceKind,
    TopicPartition,
    TransactionalProducer,
)
from headrace.client.accumulator import OpenBatch
from headrace.client.partitioner import partition_for_key
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Codec, Record

__all__ = ["Writer"]

BATCH_BYTES = 512 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Of topics that capture makes: rows may be larger than the megabyte that a broker allows by itself."""
TRANSACTION_TIMEOUT_MS = 600_000
"""A table without a key is read in one piece and must be written in one transaction; Kafka allows 15 minutes."""


class Writer:
    """Gathers events and commits them with their position; see the module. Used by one thread."""

    def __init__(self, client: Client, options: CaptureOptions, say: Callable[[str], None] = lambda line: None) -> None:
        self._client = client
        self._options = options
        self._say = say
        self._producer = TransactionalProducer(
            client,
            f"headrace-capture-{options.name}",
            TRANSACTION_TIMEOUT_MS,
            ProducerOptions(create_topics=False, codec=Codec.LZ4, batch_bytes=BATCH_BYTES),
        )
        self._state_topic = state_topic(options.name)
        self._written: dict[str, bytes] = {}
        self._partitions: dict[str, int] = {}
        self._only_partition: dict[str, TopicPartition] = {}
        self._compacted: dict[str, bool] = {}
        self._open: dict[TopicPartition, OpenBatch] = {}
        self._in_transaction = False
        self._now_ms = 0
        self.events = 0
        """Taken since the writer was made."""
        self.events_pending = 0
        self.bytes_pending = 0
        self.pending_since = 0.0

    def start(self) -> dict[str, Any]:
        """Become the only writer of this name; gives the state that was committed last."""
        ensure_topic(self._client, self._state_topic, partitions=1, config=STATE_CONFIG)
        self._producer.init()
        state = read_state(self._client, self._options.name)
        self._written = {part: _json(value) for part, value in state.items()}
        return state

    def add(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Take one record; it becomes visible with the next ``commit``."""
        place = self._only_partition.get(topic)
        if place is None:
            count = self._partitions.get(topic) or self._prepare(topic)
            place = TopicPartition(topic, 0 if count == 1 or key is None else partition_for_key(key, count))
            if count == 1:
                self._only_partition[topic] = place
        batch = self._open.get(place)
        size = (len(key) if key else 0) + (len(value) if value else 0)
        if batch is not None and len(batch) + size > BATCH_BYTES:
            # Before and not behind: a large record must not make a batch that the topic refuses.
            self._send(self._open.pop(place))
            batch = None
        if batch is None:
            if not self.events_pending:
                self.pending_since = time.monotonic()
            self._now_ms = time.time_ns() // 1_000_000
            batch = self._open[place] = OpenBatch(place, Codec.NONE, 0)
        before = len(batch)
        batch.add(key, value, headers, self._now_ms)
        self.events += 1
        self.events_pending += 1
        self.bytes_pending += len(batch) - before

    def takes_truncations(self, topic: str) -> bool:
        """Whether a topic takes records without a key. When one is left out, that is said each time."""
        if topic not in self._compacted:
            if topic not in self._partitions:
                self._prepare(topic)
            self._compacted[topic] = self._is_compacted(topic)
        if self._compacted[topic]:
            self._say(
                f"a truncation is left out of {topic}, which is compacted and takes no records without a key: "
                "rows that are gone stay in it (delete the topic and run with --resnapshot to begin anew)"
            )
        return not self._compacted[topic]

    def _is_compacted(self, topic: str) -> bool:
        try:
            entries = Admin(self._client).describe_config(ResourceKind.TOPIC, topic)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            return False  # who may not ask finds out by writing
        return any(each.name == "cleanup.policy" and "compact" in (each.value or "") for each in entries)

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make the events and the state visible together. When it raises, only ``start`` tells what has come of it."""
        changed = self._changed(state)
        if not changed and not self.events_pending:
            return
        self._begin()
        batches = [(batch.partition, _prepared(batch)) for batch in self._open.values()]
        self._open.clear()
        if changed:
            now_ms = time.time_ns() // 1_000_000
            records = [Record(part.encode(), text, now_ms) for part, text in changed.items()]
            batches.append((TopicPartition(self._state_topic, 0), PreparedRecords.of(records)))
        self._producer.send_all_prepared(batches)
        self._producer.commit()
        self._in_transaction = False
        self._written.update(changed)
        self.events_pending = self.bytes_pending = 0

    def is_new(self, state: Mapping[str, Any]) -> bool:
        """Whether ``commit`` would write this state."""
        return bool(self._changed(state))

    def _changed(self, state: Mapping[str, Any]) -> dict[str, bytes]:
        return {part: text for part, value in state.items() if self._written.get(part) != (text := _json(value))}

    def abandon(self) -> None:
        """Take back what was not committed."""
        self._open.clear()
        self._in_transaction = False
        self.events_pending = self.bytes_pending = 0
        self._producer.abort()

    def _begin(self) -> None:
        if not self._in_transaction:
            self._producer.begin()
            self._in_transaction = True

    def _send(self, batch: OpenBatch) -> None:
        self._begin()
        self._producer.send_prepared(batch.partition, _prepared(batch))

    def _prepare(self, topic: str) -> int:
        """The number of a topic's partitions; a topic that is not there is made."""
        config = {"max.message.bytes": str(MESSAGE_BYTES_MAX), **self._options.topic_config}
        ensure_topic(self._client, topic, partitions=self._options.partitions, config=config)
        count = self._partitions[topic] = len(self._client.topic(topic).partitions)
        return count


def _prepared(batch: OpenBatch) -> PreparedRecords:
    return PreparedRecords(batch.data, batch.count, batch.base_timestamp, batch.max_timestamp)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
