"""What is accepted into the log and what is refused, and how the refusal is reported."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import Any

import pytest

from tests.differential.batches import batch, record, values
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce_gives_offsets_in_order(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=2)
        where = {"topic_id": s.topic_id(name)} if version >= 13 else {"name": name}
        for count in (3, 2):
            data = [{"index": n, "records": batch(records=values(*"abc"[:count]))} for n in (0, 1)]
            asked = {"acks": -1, "timeout_ms": 60_000, "topic_data": [{**where, "partition_data": data}]}
            s.note(f"{count} records", "Produce", version, **asked)

    same_as_kafka(play)


@pytest.mark.parametrize("acks", [1, -1, 2, -2, 7])
def test_acks_are_one_or_all(same_as_kafka: Compare, acks: int) -> None:
    def play(s: Scenario) -> None:
        s.note_produce("produce", s.topic(), batch(), acks=acks)

    same_as_kafka(play)


def test_acks_zero_is_not_answered_and_is_stored(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        data = [{"name": name, "partition_data": [{"index": 0, "records": batch()}]}]
        s.main.send("Produce", 12, acks=0, timeout_ms=60_000, topic_data=data)
        s.note("the next answer belongs to the next request", "FindCoordinator", key_type=0, coordinator_keys=["g"])
        s.until(lambda: s.fetch(name, 0)["responses"][0]["partitions"][0]["high_watermark"] == 1)

    same_as_kafka(play)


def test_acks_zero_to_an_unknown_topic_closes_the_connection(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        data = [{"name": s.name("unknown"), "partition_data": [{"index": 0, "records": batch()}]}]
        s.main.send("Produce", 12, acks=0, timeout_ms=60_000, topic_data=data)
        s.notes.append("closed" if s.main.receive_frame() is None else "answered")

    same_as_kafka(play)


def test_unknown_topics_and_partitions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=2)
        s.note_produce("unknown topic", s.name("unknown"), batch())
        s.note_produce("partition beyond the last", name, batch(), partition=2)
        s.note_produce("negative partition", name, batch(), partition=-1)
        s.note_produce("impossible name", "no/name", batch())
        data = [{"topic_id": b"\x07" * 16, "partition_data": [{"index": 0, "records": batch()}]}]
        s.note("unknown topic id", "Produce", 13, acks=-1, timeout_ms=60_000, topic_data=data)
        data = [{"partition_data": [{"index": 0, "records": batch()}]}]
        s.note("no topic id", "Produce", 13, acks=-1, timeout_ms=60_000, topic_data=data)

    same_as_kafka(play)


def test_one_wrong_partition_does_not_spoil_the_others(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=2)
        data = [{"index": index, "records": batch()} for index in (0, 1, 5)]
        data[1]["records"] = batch(crc_error=1)
        topics = [{"name": name, "partition_data": data}, {"name": s.name("unknown"), "partition_data": data[:1]}]
        s.note("mixed", "Produce", 12, acks=-1, timeout_ms=60_000, topic_data=topics)

    same_as_kafka(play)


def old_message(magic: int) -> bytes:
    """A message of format 0 or 1, as clients sent it before 2017."""
    time = struct.pack(">q", 1_000_000) if magic == 1 else b""
    body = struct.pack(">bb", magic, 0) + time + struct.pack(">i", -1) + struct.pack(">i", 5) + b"value"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


WRONG_BATCHES: dict[str, bytes] = {
    "crc": batch(crc_error=0xFF),
    "count too high": batch(records=values("a", "b"), count=3),
    "count too low": batch(records=values("a", "b"), count=1),
    "count zero": batch(records=values("a", "b"), count=0),
    "count negative": batch(records=values("a"), count=-1),
    "last offset delta too high": batch(records=values("a", "b"), last_offset_delta=5),
    "last offset delta too low": batch(records=values("a", "b"), last_offset_delta=0),
    "last offset delta negative": batch(records=values("a"), last_offset_delta=-1),
    "base offset not zero": batch(base_offset=42),
    "magic 0": old_message(0),
    "magic 1": old_message(1),
    "magic 3": batch(magic=3),
    "magic -1": batch(magic=-1),
    "length too short": batch(length_error=-10),
    "length too long": batch(length_error=10),
    "length tiny": struct.pack(">qi", 0, 3) + bytes(60),
    "length negative": struct.pack(">qi", 0, -5) + bytes(60),
    "cut in the header": batch()[:40],
    "cut in the records": batch()[:-3],
    "one byte": b"\x00",
    "no bytes": b"",
    "garbage": bytes(range(200)),
    "two batches": batch() + batch(),
    "empty batch": batch(records=[], payload=b"", timestamps=[1_000_000], last_offset_delta=-1, count=0),
    "control batch": batch(attributes=0x20),
    "transactional without id": batch(attributes=0x10),
    "log append time": batch(attributes=0x08),
    "unused attribute bits": batch(attributes=0x7F00),
    "delete horizon": batch(attributes=0x40),
    "sequence without producer": batch(base_sequence=0),
    "producer without sequence": batch(producer_id=1, producer_epoch=0),
}


@pytest.mark.parametrize("kind", WRONG_BATCHES)
def test_a_batch_that_is_wrong_in_its_header_gets_kafkas_error(same_as_kafka: Compare, kind: str) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        s.note_produce(kind, name, WRONG_BATCHES[kind])
        s.note_fetch("stored", name, 0)

    same_as_kafka(play)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(same_as_kafka: Compare, codec: int) -> None:
    """Kafka stumbles (UNKNOWN_SERVER_ERROR); that it refuses is what counts."""

    def play(s: Scenario) -> None:
        name = s.topic()
        answer = s.produce(name, batch(attributes=codec))
        s.notes.append(["refused", answer["responses"][0]["partition_responses"][0]["error_code"] != 0])
        s.note_fetch("stored", name, 0)

    same_as_kafka(play)


def test_a_gzip_batch_comes_back_as_it_went_in(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        s.note_produce("produce", name, batch(attributes=1, records=values("a", "b")))
        s.note_fetch("fetch", name, 0)

    same_as_kafka(play)


def test_a_batch_above_max_message_bytes_is_too_large(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", max_message_bytes="1000")
        s.note_produce("fits", name, batch(records=values("x" * 500)))
        s.note_produce("too large", name, batch(records=values("x" * 2000)))
        s.note_produce("second batch too large", name, batch(), batch(records=values("x" * 2000)))
        s.note_produce("default limit", s.topic("other"), batch(records=values("x" * 1_100_000)))

    same_as_kafka(play)


def test_a_compacted_topic_wants_keys(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", cleanup_policy="compact")
        s.note_produce("no key", name, batch(records=values("a", "b")))
        s.note_produce("one key", name, batch(records=[(b"k", b"a"), (None, b"b")]))
        s.note_produce("keys", name, batch(records=[(b"k", b"a"), (b"k", None)]))
        payload = gzip.compress(record(0, None, b"x"))
        s.note_produce("no key, compressed", name, batch(attributes=1, payload=payload))

    same_as_kafka(play)


def test_log_append_time_replaces_the_producers_clock(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", message_timestamp_type="LogAppendTime")
        s.note_produce("produce", name, batch(records=values("a", "b")))
        s.note_fetch("fetch", name, 0)

    same_as_kafka(play)


def test_timestamps_outside_the_allowed_range_are_refused(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", message_timestamp_before_max_ms="1000")
        s.note_produce("long ago", name, batch(timestamps=[1_000]))
        name = s.topic("other")
        s.note_produce("far ahead", name, batch(timestamps=[4_000_000_000_000]))
        s.note_produce("minus one", name, batch(timestamps=[-1]))

    same_as_kafka(play)


def idempotent(s: Scenario) -> Any:
    answer = s.ask("InitProducerId", transactional_id=None, transaction_timeout_ms=1000)
    assert answer["error_code"] == 0

    def make(sequence: int, *, epoch: int = answer["producer_epoch"], count: int = 1, pid: int | None = None) -> bytes:
        producer = answer["producer_id"] if pid is None else pid
        texts = [f"{sequence + n}" for n in range(count)]
        return batch(records=values(*texts), producer_id=producer, producer_epoch=epoch, base_sequence=sequence)

    return make


def test_init_producer_id_gives_fresh_ids(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        for version in range(6):
            s.note(f"version {version}", "InitProducerId", version, transactional_id=None, transaction_timeout_ms=1000)
        s.note("empty id", "InitProducerId", transactional_id="", transaction_timeout_ms=1000)
        given = {"producer_id": 5, "producer_epoch": -1}
        s.note("id without epoch", "InitProducerId", transactional_id=None, transaction_timeout_ms=1000, **given)
        given = {"producer_id": -1, "producer_epoch": 3}
        s.note("epoch without id", "InitProducerId", transactional_id=None, transaction_timeout_ms=1000, **given)

    same_as_kafka(play)


def test_a_duplicate_is_answered_with_its_first_offset_and_stored_once(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        for sequence in range(0, 12, 2):
            s.note_produce(f"sequence {sequence}", name, make(sequence, count=2))
        for sequence in (10, 8, 2, 0):
            s.note_produce(f"again {sequence}", name, make(sequence, count=2))
        s.note_produce("same start, other length", name, make(10, count=1))
        s.note_produce("overlapping", name, make(9, count=2))
        s.note_fetch("fetch", name, 0)

    same_as_kafka(play)


def test_gaps_and_stale_epochs_are_refused(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        s.note_produce("first", name, make(0))
        s.note_produce("gap", name, make(2))
        s.note_produce("next", name, make(1))
        s.note_produce("epoch bumped by the client, sequence 0", name, make(0, epoch=1))
        s.note_produce("old epoch", name, make(2, epoch=0))
        s.note_produce("bumped again, sequence 5", name, make(5, epoch=2))
        s.note_produce("epoch 1 goes on", name, make(1, epoch=1))

    same_as_kafka(play)


def test_a_batch_that_arrives_after_its_topic_was_deleted_and_created_again(same_as_kafka: Compare) -> None:
    """A network may hold it for so long; its client has sent it again meanwhile. A name says nothing of the topic that
    was meant, and a new topic knows no producer: the batch is appended. An id says which was meant."""

    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        old_id, before = s.topic_id(name), s.connect()
        s.produce(name, make(0, count=7))
        s.note_produce("the copy that was sent again", name, make(7, count=2))
        s.ask("DeleteTopics", topics=[{"name": name}], timeout_ms=60_000)
        gone = {"topics": [{"topic_id": old_id}], "allow_auto_topic_creation": False}
        s.until(lambda: s.ask("Metadata", **gone)["topics"][0]["error_code"] != 0)
        s.topic()
        late = [{"index": 0, "records": make(7, count=2)}]
        asked = {"acks": -1, "timeout_ms": 60_000}
        by_name = before.send("Produce", 12, **asked, topic_data=[{"name": name, "partition_data": late}])
        s.note_answer("the copy that was held, by name", before, by_name)
        by_id = before.send("Produce", 13, **asked, topic_data=[{"topic_id": old_id, "partition_data": late}])
        s.note_answer("the copy that was held, by id", before, by_id)
        s.note_fetch("the new topic", name, 0)

    same_as_kafka(play)


def test_an_unknown_producer_may_start_anywhere(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        s.note_produce("first seen at 7", name, make(7, pid=987_654_321))
        s.note_produce("then 8", name, make(8, pid=987_654_321))
        s.note_produce("then 10", name, make(10, pid=987_654_321))

    same_as_kafka(play)


def test_sequences_wrap_around_after_two_to_the_thirty_first(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        top = 2**31 - 1
        s.note_produce("two before the end", name, make(top - 1, count=2))
        s.note_produce("zero follows", name, make(0))
        s.note_produce("two before the end, again", name, make(top - 1, count=2))
        s.note_produce("one", name, make(1))

    same_as_kafka(play)


def test_a_batch_may_wrap_around_in_its_middle(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        top = 2**31 - 1
        s.note_produce("first", name, make(top - 3, count=2))
        s.note_produce("across", name, make(top - 1, count=4))
        s.note_produce("after", name, make(2))

    same_as_kafka(play)


def test_two_idempotent_batches_in_one_request_are_refused(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        s.note_produce("two", name, make(0), make(1))
        s.note_fetch("fetch", name, 0)

    same_as_kafka(play)


def test_describe_producers_tells_what_a_partition_knows(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, make = s.topic(), idempotent(s)
        s.produce(name, make(0, count=3))
        s.note("known", "DescribeProducers", topics=[{"name": name, "partition_indexes": [0, 1]}])
        s.note("unknown", "DescribeProducers", topics=[{"name": s.name("unknown"), "partition_indexes": [0]}])

    same_as_kafka(play)
