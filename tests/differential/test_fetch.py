"""What a consumer gets: offsets, limits, isolation, sessions, epochs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.batches import batch, values
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers


def topic_with_three_batches(s: Scenario, **configs: str) -> str:
    name = s.topic("topic", **configs)
    for texts in ("abc", "def", "ghi"):
        s.produce(name, batch(records=values(*texts)))
    return name


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch_gives_the_same_records(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        where = {"topic_id": s.topic_id(name)} if version >= 13 else {"topic": name}
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{**where, "partitions": [partition]}]
        s.note("fetch", "Fetch", version, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=topics)

    same_as_kafka(play)


def test_a_fetch_inside_a_batch_gives_the_whole_batch(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        for offset in range(10):
            s.note_fetch(f"offset {offset}", name, offset)

    same_as_kafka(play)


def test_offsets_outside_the_log(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        for offset in (10, 1 << 40, -1, -2):
            s.note_fetch(f"offset {offset}", name, offset)
        s.note_fetch("empty topic at 0", s.topic("empty"), 0)
        s.note_fetch("empty topic at 1", s.name("empty"), 1)

    same_as_kafka(play)


def test_unknown_topics_and_partitions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        s.note_fetch("unknown topic", s.name("unknown"), 0)
        s.note_fetch("unknown partition", name, 0, partition=1)
        s.note_fetch("negative partition", name, 0, partition=-1)
        topics = [{"topic_id": b"\x05" * 16, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
        for version in (13, 18):
            s.note(f"unknown id, version {version}", "Fetch", version, max_wait_ms=0, topics=topics)
        topics = [{"partitions": [{"partition": 0, "partition_max_bytes": 1000}]}]
        s.note("no id", "Fetch", 17, max_wait_ms=0, topics=topics)

    same_as_kafka(play)


@pytest.mark.parametrize(
    ("partition_max", "request_max"), [(1, 1 << 20), (150, 1 << 20), (1 << 20, 1), (1 << 20, 150), (0, 0)]
)
def test_limits_cut_at_batches_but_never_below_one(
    same_as_kafka: Compare, partition_max: int, request_max: int
) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        s.note_fetch("limited", name, 0, partition_max_bytes=partition_max, max_bytes=request_max)

    same_as_kafka(play)


def test_a_small_request_limit_gives_one_partition_its_batch_and_the_others_none(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=3)
        for partition in range(3):
            s.produce(name, batch(records=values("x" * 100)), partition=partition)
        asked = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for n in range(3)]
        topics = [{"topic": name, "partitions": asked}]
        answer = s.ask("Fetch", 12, max_wait_ms=100, min_bytes=1, max_bytes=10, topics=topics)
        partitions = answer["responses"][0]["partitions"]
        s.notes.append(sorted(bool(each["records"]) for each in partitions))

    same_as_kafka(play)


def test_leader_epochs_are_checked(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        for epoch in (-1, 0, 1, 99):
            s.note_fetch(f"epoch {epoch}", name, 0, current_leader_epoch=epoch)

    same_as_kafka(play)


def test_a_fetch_after_delete_records_starts_behind_them(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        partition = {"partition_index": 0, "offset": 4}
        s.ask("DeleteRecords", topics=[{"name": name, "partitions": [partition]}], timeout_ms=60_000)
        for offset in (0, 3, 4, 6):
            s.note_fetch(f"offset {offset}", name, offset)

    same_as_kafka(play)


def test_an_unknown_isolation_level(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        for level in (0, 1):
            s.note_fetch(f"level {level}", name, 0, isolation_level=level)

    same_as_kafka(play)


def test_a_fetch_as_a_follower_is_refused_or_served_alike(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_three_batches(s)
        s.note_fetch("unknown replica", name, 0, replica_id=99)

    same_as_kafka(play)


def session_fetch(s: Scenario, label: str, session: tuple[int, int], asked: list[dict[str, Any]], **more: Any) -> int:
    topics = [{"topic": each.pop("topic"), "partitions": [{"partition_max_bytes": 1 << 20, **each}]} for each in asked]
    session_id, epoch = session
    values = {
        "max_wait_ms": 100,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_id": session_id,
        "session_epoch": epoch,
    }
    answer = s.note(label, "Fetch", 12, **values, topics=topics, **more)
    given: int = answer["session_id"]
    return given


def test_fetch_sessions_send_only_what_changed(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        one, two = s.topic("one"), s.topic("two")
        s.produce(one, batch())
        both = [{"topic": one, "fetch_offset": 0}, {"topic": two, "fetch_offset": 0}]
        session = session_fetch(s, "full", (0, 0), both)
        session_fetch(s, "incremental, nothing named", (session, 1), [])
        session_fetch(s, "incremental, one moves on", (session, 2), [{"topic": one, "fetch_offset": 1}])
        session_fetch(s, "incremental, nothing new", (session, 3), [])
        s.produce(two, batch())
        session_fetch(s, "incremental, two has news", (session, 4), [])
        forgotten = [{"topic": two, "partitions": [0]}]
        session_fetch(s, "two is forgotten", (session, 5), [], forgotten_topics_data=forgotten)
        session_fetch(s, "wrong epoch", (session, 9), [])
        session_fetch(s, "the epoch before", (session, 5), [])

    same_as_kafka(play)


def test_fetch_session_errors(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        session_fetch(s, "unknown session", (123_456, 1), [{"topic": name, "fetch_offset": 0}])
        session_fetch(s, "unknown session, full", (123_456, 0), [{"topic": name, "fetch_offset": 0}])
        session_fetch(s, "no session, epoch 5", (0, 5), [{"topic": name, "fetch_offset": 0}])
        session_fetch(s, "no session wanted", (0, -1), [{"topic": name, "fetch_offset": 0}])
        session = session_fetch(s, "opened", (0, 0), [{"topic": name, "fetch_offset": 0}])
        session_fetch(s, "closed", (session, -1), [])
        session_fetch(s, "after closing", (session, 1), [])

    same_as_kafka(play)


def test_a_session_keeps_an_error_until_it_is_mended(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        s.produce(name, batch())
        session = session_fetch(s, "out of range", (0, 0), [{"topic": name, "fetch_offset": 77}])
        session_fetch(s, "still", (session, 1), [])
        session_fetch(s, "mended", (session, 2), [{"topic": name, "fetch_offset": 0}])

    same_as_kafka(play)


def test_a_fetch_waits_for_the_bytes_it_asked_for(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        consumer = s.connect("consumer")
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": name, "partitions": [partition]}]
        asked = consumer.send("Fetch", 12, max_wait_ms=20_000, min_bytes=1, max_bytes=1 << 20, topics=topics)
        s.produce(name, batch(records=values("late")))
        s.note_answer("answered by a produce", consumer, asked)
        asked = consumer.send("Fetch", 12, max_wait_ms=300, min_bytes=100_000, max_bytes=1 << 20, topics=topics)
        s.note_answer("answered by the clock, with what there is", consumer, asked)

    same_as_kafka(play)


def test_a_topic_deleted_under_a_waiting_fetch(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        identifier = s.topic_id(name)
        s.ask("DeleteTopics", topics=[{"name": name}], timeout_ms=60_000)
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        s.until(lambda: s.ask("Metadata", **asked)["topics"][0]["error_code"] == 3)
        s.note_fetch("by name", name, 0)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic_id": identifier, "partitions": [partition]}]
        s.note("by id", "Fetch", 17, max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=topics)

    same_as_kafka(play)


def test_fetch_sessions_with_topic_ids(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        identifier = s.topic_id(name)
        s.produce(name, batch())
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        limits = {"max_wait_ms": 100, "min_bytes": 0, "max_bytes": 1 << 20}

        def ask(label: str, session: int, epoch: int, *ids: bytes, **more: Any) -> int:
            topics = [{"topic_id": each, "partitions": [partition]} for each in ids]
            values = {"session_id": session, "session_epoch": epoch, "topics": topics}
            answer = s.note(label, "Fetch", 17, **limits, **values, **more)
            given: int = answer["session_id"]
            return given

        session = ask("full", 0, 0, identifier)
        ask("nothing named", session, 1)
        ask("an unknown id joins", session, 2, b"\x09" * 16)
        forgotten = [{"topic_id": identifier, "partitions": [0]}]
        ask("one is forgotten", session, 3, forgotten_topics_data=forgotten)

    same_as_kafka(play)
