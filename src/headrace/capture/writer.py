"""Where the events of a capture go: a ``PositionedProducer`` for the topics of captured tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from headrace.capture.envelope import Table, json_text
from headrace.capture.hidden import HiddenColumns
from headrace.capture.options import CaptureOptions
from headrace.capture.state import known_format, state_topic
from headrace.client import Admin, Client, PositionedProducer
from headrace.record import Codec, compress

__all__ = ["Writer"]

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Of topics that capture makes: rows may be larger than the megabyte that a broker allows by itself."""
DEFAULT_MESSAGE_BYTES_MAX = 1_048_588
"""What a broker allows by itself, and is assumed where it may not be asked."""
TOPICS_TOGETHER = 100
SETTINGS = ("cleanup.policy", "max.message.bytes")
RECORD_BYTES = 256
"""What a record and its batch need besides key, value and headers, generously."""


class Writer(PositionedProducer):
    """The producer of one capture; its transactional id belongs to the capture's name."""

    def __init__(self, client: Client, options: CaptureOptions, say: Callable[[str], None] = lambda line: None) -> None:
        super().__init__(
            client,
            f"headrace-capture-{options.name}",
            state_topic(options.name),
            partitions=options.partitions,
            topic_config={"max.message.bytes": str(MESSAGE_BYTES_MAX), **options.topic_config},
        )
        self._name = options.name
        self._say = say
        self._settings: dict[str, dict[str, str]] = {}
        self._letters_topic = f"{options.topic_prefix}.dead-letters"
        self.dead_letters: dict[str, int] = {}
        """How many rows of each table have become dead letters, in all runs."""
        self.hidden: HiddenColumns | None = None

    def start(self) -> dict[str, Any]:
        state = known_format(self._name, super().start())
        self.dead_letters = dict(state.get("dead_letters", {}))
        return state

    def begin_shape(self, table: Table) -> None:
        if self.hidden is not None:
            self.hidden.check(table)

    def prepare(self, topics: Sequence[str]) -> None:
        """Make and look at many topics at once: one by one, a thousand tables would take a thousand times as long."""
        unknown = [each for each in dict.fromkeys(topics) if each not in self._settings]
        for first in range(0, len(unknown), TOPICS_TOGETHER):
            together = unknown[first : first + TOPICS_TOGETHER]
            self.ensure_all(together)
            self._client.retrying(lambda: self._client.refresh(together))  # noqa: B023 - called at once
            self._settings |= {each: {} for each in together} | Admin(self._client).describe_topics(together, SETTINGS)

    def prepare_ahead(self, topics: Iterable[str]) -> None:
        """``prepare`` the topics of tables in the order in which they will be read, unless the first is ready."""
        coming = iter(topics)
        first = next(coming, None)
        if first is not None and first not in self._settings:
            self.prepare([first, *islice(coming, TOPICS_TOGETHER - 1)])

    def takes_truncations(self, topic: str) -> bool:
        """Whether a topic takes records without a key. When one is left out, that is said each time."""
        is_compacted = "compact" in self._setting(topic, "cleanup.policy")
        if is_compacted:
            self._say(
                f"a truncation is left out of {topic}, which is compacted and takes no records without a key: "
                "rows that are gone stay in it (delete the topic and run with --resnapshot to begin again)"
            )
        return not is_compacted

    def bytes_max(self, topic: str) -> int:
        """Records of no more bytes are always taken."""
        return int(self._setting(topic, "max.message.bytes") or DEFAULT_MESSAGE_BYTES_MAX) - RECORD_BYTES

    def takes(self, topic: str, key: bytes | None, value: bytes) -> bool:
        """A topic's limit is for what is sent, which is compressed."""
        return len(compress(Codec.LZ4, (key or b"") + value)) <= self.bytes_max(topic)

    def dead_letter(
        self,
        topic: str,
        table: str,
        key: bytes | None,
        operation: str,
        reason: str,
        row: bytes,
        *,
        source: bytes = b"null",
        transaction: bytes = b"null",
    ) -> None:
        """Keep a row that cannot be an event, and say so: each time the number of a table's has doubled."""
        count = self.dead_letters[table] = self.dead_letters.get(table, 0) + 1
        value = b'{"topic":%b,"table":%b,"key":%b,"op":%b,"reason":%b,"row":%b,"source":%b,"transaction":%b,"ts_ms":%d}'
        letter = value % (
            json_text(topic),
            json_text(table),
            key or b"null",
            json_text(operation),
            json_text(reason),
            row,
            source,
            transaction,
            time.time_ns() // 1_000_000,
        )
        self.add(self._letters_topic, key, letter)
        if count & (count - 1) == 0:
            named = "a row without a key" if key is None else f"the row {key.decode()}"
            self._say(
                f"{table}: {named} is not in {topic}: {reason}; it is in {self._letters_topic} ({count} of this table)"
            )

    def _setting(self, topic: str, name: str) -> str:
        """A topic's setting; empty where a client may not ask."""
        self.prepare([topic])
        return self._settings[topic].get(name, "")
