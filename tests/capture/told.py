"""Where encoders write in tests: everything is kept."""

from __future__ import annotations

from typing import Any

from headrace.capture.envelope import Headers, Table
from headrace.client.byte_column import ByteColumn


class Told:
    """``headrace.capture.envelope.Out`` that keeps what it gets."""

    def __init__(self, partition_count: int = 1, bytes_max: int = 1 << 40) -> None:
        self.partition_count = partition_count
        self._bytes_max = bytes_max
        self.records: list[Any] = []
        self.partitions_written: list[int | None] = []
        self.letters: list[dict[str, Any]] = []

    def partitions(self, topic: str) -> int:
        return self.partition_count

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        self.records.append((topic, key, value, list(headers)))
        self.partitions_written.append(partition)

    def add_many(self, topic: str, keys: ByteColumn | None, values: ByteColumn) -> None:
        for place in range(values.count):
            self.add(topic, None if keys is None else keys[place], values[place])

    def begin_shape(self, table: Table) -> None:
        """Nothing is hidden here."""

    def takes_truncations(self, topic: str) -> bool:
        return True

    def bytes_max(self, topic: str) -> int:
        return self._bytes_max

    def takes(self, topic: str, key: bytes | None, value: bytes) -> bool:
        return False

    def dead_letter(
        self, topic: str, table: str, key: bytes | None, operation: str, reason: str, row: bytes, **place: bytes
    ) -> None:
        self.letters.append(
            {"topic": topic, "table": table, "key": key, "operation": operation, "reason": reason, "row": row, **place}
        )
