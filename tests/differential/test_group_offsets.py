"""Positions of groups: committed, fetched, deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario
from tests.differential.test_groups import Group

pytestmark = pytest.mark.servers


def partition(offset: int, *, index: int = 0, metadata: str | None = "note", **values: Any) -> dict[str, Any]:
    return {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata, **values}


def commit(s: Scenario, label: str, group: str, name: str, *partitions: dict[str, Any], **values: Any) -> None:
    topics = [{"name": name, "partitions": list(partitions)}]
    s.note(label, "OffsetCommit", 9, group_id=group, topics=topics, **values)


def fetch(s: Scenario, label: str, group: str, topics: list[dict[str, Any]] | None, **values: Any) -> None:
    asked = {"group_id": group, "topics": topics}
    for key in ("member_id", "member_epoch"):
        if key in values:
            asked[key] = values.pop(key)
    s.note(label, "OffsetFetch", 9, groups=[asked], **values)


def ready(s: Scenario, what: str = "group") -> str:
    group = s.name(what)
    s.coordinator(group, 0)
    return group


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_of_offset_commit(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic("topic", partitions=2), ready(s)
        where = {"topic_id": s.topic_id(name)} if version >= 10 else {"name": name}
        topics = [{**where, "partitions": [partition(5), partition(7, index=1, metadata=None), partition(1, index=9)]}]
        s.note("commit", "OffsetCommit", version, group_id=group, topics=topics)
        fetch(s, "fetch", group, None)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_of_offset_fetch(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic("topic", partitions=2), ready(s)
        s.ask("OffsetCommit", 9, group_id=group, topics=[{"name": name, "partitions": [partition(5)]}])
        where = {"topic_id": s.topic_id(name)} if version >= 10 else {"name": name}
        topics = [{**where, "partition_indexes": [0, 1, 9]}]

        def asked(topics: Any, of: str = group) -> dict[str, Any]:
            return (
                {"groups": [{"group_id": of, "topics": topics}]} if version >= 8 else {"group_id": of, "topics": topics}
            )

        s.note("some", "OffsetFetch", version, **asked(topics))
        s.note("unknown group", "OffsetFetch", version, **asked(topics, s.name("nobody")))
        if version >= 2:
            s.note("all", "OffsetFetch", version, **asked(None))
            s.note("all of an unknown group", "OffsetFetch", version, **asked(None, s.name("nobody")))

    same_as_kafka(play)


def test_commits_without_membership(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic(), ready(s)
        commit(s, "simple", group, name, partition(3))
        commit(s, "back", group, name, partition(1))
        commit(s, "negative", group, name, partition(-1))
        commit(s, "minus five", group, name, partition(-5))
        commit(s, "unknown topic", group, s.name("unknown"), partition(1))
        commit(s, "unknown member", group, name, partition(9), member_id="nobody", generation_id_or_member_epoch=1)
        commit(s, "generation without member", group, name, partition(9), generation_id_or_member_epoch=4)
        commit(s, "long metadata", group, name, partition(4, metadata="x" * 4096))
        commit(s, "too long metadata", group, name, partition(5, metadata="x" * 4097))
        commit(s, "empty group id", "", name, partition(2))
        fetch(s, "empty group id", "", [{"name": name, "partition_indexes": [0]}])
        commit(s, "with an epoch", group, name, partition(6, committed_leader_epoch=0))
        fetch(s, "fetch", group, None)

    same_as_kafka(play)


def test_commits_of_members_need_their_generation(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic(), Group(s)
        member, generation = group.alone(s.main)
        who = {"member_id": member, "generation_id_or_member_epoch": generation}
        commit(s, "member", group.id, name, partition(1), **who)
        commit(s, "old generation", group.id, name, partition(2), **{**who, "generation_id_or_member_epoch": 0})
        commit(s, "unknown member", group.id, name, partition(3), **{**who, "member_id": "nobody"})
        commit(s, "outsider", group.id, name, partition(4))
        commit(s, "unknown instance", group.id, name, partition(5), **who, group_instance_id="static")
        other = s.connect()
        second = group.member(other)
        group.join(other, second)
        s.until(lambda: group.beat(s.main, member, generation)["error_code"] == 27)
        commit(s, "while rebalancing", group.id, name, partition(6), **who)
        fetch(s, "fetch", group.id, None)

    same_as_kafka(play)


def delete(s: Scenario, label: str, group: str, *topics: tuple[str, list[int]]) -> None:
    asked = [{"name": name, "partitions": [{"partition_index": n} for n in indexes]} for name, indexes in topics]
    s.note(label, "OffsetDelete", group_id=group, topics=asked)


def test_offsets_are_deleted_unless_somebody_reads_the_topic(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, other, group = s.topic("topic", partitions=2), s.topic("other"), Group(s)
        delete(s, "unknown group", group.id, (name, [0]))
        subscription = bytes.fromhex("0000 00000001") + len(name).to_bytes(2, "big") + name.encode() + b"\xff" * 4
        protocols = [{"name": "range", "metadata": subscription}]
        member, generation = group.alone(s.main, protocols=protocols)
        who = {"member_id": member, "generation_id_or_member_epoch": generation}
        for topic in (name, other):
            s.ask("OffsetCommit", 9, group_id=group.id, topics=[{"name": topic, "partitions": [partition(1)]}], **who)
        delete(s, "subscribed and not", group.id, (name, [0]), (other, [0]))
        s.ask("LeaveGroup", group_id=group.id, members=[{"member_id": member}])
        delete(s, "empty group", group.id, (name, [0, 1, 9]), (s.name("unknown"), [0]))
        fetch(s, "afterwards", group.id, None)

    same_as_kafka(play)


def test_positions_of_a_deleted_topic_are_gone(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic(), ready(s)
        commit(s, "commit", group, name, partition(3))
        s.ask("DeleteTopics", topics=[{"name": name}], timeout_ms=60_000)

        def gone() -> bool:
            answer = s.ask("OffsetFetch", 9, groups=[{"group_id": group, "topics": None}])
            return answer["groups"][0]["topics"] == []

        s.until(gone)
        fetch(s, "by name", group, [{"name": name, "partition_indexes": [0]}])

    same_as_kafka(play)


def test_several_groups_in_one_fetch(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, one, two = s.topic(), ready(s, "one"), ready(s, "two")
        for group, offset in ((one, 1), (two, 2)):
            commit(s, "commit", group, name, partition(offset))
        s.note("fetch", "OffsetFetch", 9, groups=[{"group_id": each, "topics": None} for each in (one, two)])

    same_as_kafka(play)
