"""Compaction: what a reader finds when the broker has cleaned up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.differential.batches import batch
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario
from tests.differential.test_transactions import Producer

pytestmark = [pytest.mark.servers, pytest.mark.slow]

# An eager cleaner: every sealed segment is dirty enough at once, and the next small batch seals a segment.
COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.0",
    "segment_ms": "100",
    "delete_retention_ms": "600000",
}


def records(s: Scenario, name: str, isolation_level: int = 0) -> list[tuple[int, str | None, str | None]]:
    """Every record of the log with its offset, control records left out."""
    found = []
    offset = 0
    while True:
        answer = s.fetch(name, offset, isolation_level=isolation_level)["responses"][0]["partitions"][0]
        batches = s.normal({"records": answer["records"]})["records"] if answer["records"] else []
        for each in batches:
            if not each["attributes"] & 0x20:
                found += [(each["base_offset"], key, value) for key, value in each["records"]]
            offset = each["base_offset"] + each["last_offset_delta"] + 1
        if not batches:
            return found


def keys_left(s: Scenario, name: str) -> list[tuple[str | None, str | None]]:
    return [(key, value) for _, key, value in records(s, name)]


def is_clean(s: Scenario, name: str) -> bool:
    """No key twice, but for the one that seals: each segment may be cleaned in a separate pass."""
    keys = [key for key, _ in keys_left(s, name) if key != "sealed"]
    return len(keys) == len(set(keys))


def seal(s: Scenario, name: str) -> None:
    """Roll the segment: a batch that comes later than segment.ms, under its own key."""
    time.sleep(0.2)
    s.produce(name, batch(records=[(b"sealed", b"")], timestamps=[int(time.time() * 1000)]))


def test_only_the_last_value_of_each_key_is_kept(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", **COMPACTED)
        for round_ in range(3):
            s.produce(name, batch(records=[(f"k{n}".encode(), f"{n}.{round_}".encode()) for n in range(4)]))
        s.produce(name, batch(records=[(b"k1", None)]))
        seal(s, name)
        seal(s, name)
        s.until(lambda: is_clean(s, name))
        s.notes.append([each for each in keys_left(s, name) if each[0] != "sealed"])
        s.note("positions stay", "ListOffsets", replica_id=-1, topics=[latest(name)])

    same_as_kafka(play)


def latest(name: str) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}


def test_records_of_aborted_transactions_are_removed_and_committed_ones_kept(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic("topic", **COMPACTED), Producer(s)
        producer.init()
        for text, commit in (("kept", True), ("dropped", False)):
            producer.add("", name)
            data = batch(
                records=[(text.encode(), b"1")],
                attributes=0x10,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=0 if commit else 1,
            )
            s.produce(name, data, transactional_id=producer.id)
            producer.end("", commit=commit)
            producer.wait_for("CompleteCommit", "CompleteAbort")
        seal(s, name)
        seal(s, name)
        s.until(lambda: "dropped" not in [key for key, _ in keys_left(s, name)])
        s.notes.append([each for each in keys_left(s, name) if each[0] != "sealed"])

    same_as_kafka(play)


def test_a_consumer_at_a_removed_offset_gets_the_next_record(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", **COMPACTED)
        for n in range(5):
            s.produce(name, batch(records=[(b"key", str(n).encode())]))
        seal(s, name)
        seal(s, name)
        s.until(lambda: is_clean(s, name))
        answer = s.fetch(name, 1)["responses"][0]["partitions"][0]
        first = s.normal({"records": answer["records"]})["records"][0]
        s.notes.append([answer["error_code"], first["base_offset"], first["records"], answer["log_start_offset"]])

    same_as_kafka(play)
