"""Groups from inside and from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from headrace.client import (
    Admin,
    Client,
    ConsumerOptions,
    GroupConsumer,
    GroupOptions,
    Groups,
    PartitionLag,
    Producer,
    ResourceKind,
    TopicPartition,
)
from headrace.client.group_consumer import JOINING
from headrace.errors import ErrorCode, KafkaError
from tests.unit.client.conftest import PATIENCE
from tests.waiting import PATIENCE_S, eventually

MakeTopic = Callable[..., list[TopicPartition]]
FROM_START = GroupOptions(consumer=ConsumerOptions(reset="earliest"))
BY_HAND = GroupOptions(consumer=ConsumerOptions(reset="earliest"), commit_interval_ms=None)


def produce(client: Client, partitions: list[TopicPartition], count: int) -> None:
    with Producer(client) as producer:
        for index in range(count):
            each = partitions[index % len(partitions)]
            producer.send(each.topic, b"%d" % index, partition=each.partition)


def read(member: GroupConsumer, count: int) -> list[bytes]:
    values: list[bytes] = []

    def polled() -> list[bytes]:
        values.extend(record.value or b"" for records in member.poll(100).values() for record in records)
        return values

    return eventually(polled, lambda found: len(found) >= count, pause_s=0)


def test_a_member_reads_everything_and_commits_when_it_leaves(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(3), unique("g")
    produce(client, partitions, 30)
    with GroupConsumer(client, group, [partitions[0].topic], FROM_START) as member:
        assert len(read(member, 30)) == 30
        assert member.assignment == set(partitions)
        assert member.at_end()
    assert Groups(client).committed(group) == dict.fromkeys(partitions, 10)
    assert Groups(client).describe(group).state == "Empty"


def test_the_next_member_goes_on_where_the_last_one_stopped(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(), unique("g")
    produce(client, partitions, 5)
    with GroupConsumer(client, group, [partitions[0].topic], FROM_START) as member:
        read(member, 5)
    produce(client, partitions, 3)
    with GroupConsumer(client, group, [partitions[0].topic], FROM_START) as member:
        assert read(member, 3) == [b"0", b"1", b"2"]


def test_without_automatic_commits_leaving_commits_nothing(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(), unique("g")
    produce(client, partitions, 5)
    with GroupConsumer(client, group, [partitions[0].topic], BY_HAND) as member:
        read(member, 5)
    assert Groups(client).committed(group) == {}
    with GroupConsumer(client, group, [partitions[0].topic], BY_HAND) as member:
        read(member, 5)
        member.seek(partitions[0], 2)
        member.commit()
    assert Groups(client).committed(group) == {partitions[0]: 2}


def test_two_members_share_the_partitions_and_take_over_when_one_leaves(
    client: Client, bootstrap: str, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(4), unique("g")
    topic = partitions[0].topic
    with Client(bootstrap, PATIENCE) as second_client:
        first, second = (GroupConsumer(each, group, [topic], FROM_START) for each in (client, second_client))
        with first:
            with second:
                eventually(lambda: shares(first, second), lambda sizes: sizes == [2, 2], pause_s=0)
                assert first.assignment | second.assignment == set(partitions)
                assert not first.assignment & second.assignment
            eventually(lambda: shares(first), lambda sizes: sizes == [4], pause_s=0)
            assert first.assignment == set(partitions)


def test_what_a_member_lets_go_is_committed_first_so_that_the_next_one_reads_nothing_twice(
    client: Client, bootstrap: str, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(4), unique("g")
    produce(client, partitions, 8)
    options = GroupOptions(consumer=ConsumerOptions(reset="earliest"), commit_interval_ms=3_600_000)
    with Client(bootstrap, PATIENCE) as second_client:
        first, second = (GroupConsumer(each, group, [partitions[0].topic], options) for each in (client, second_client))
        with first:
            read(first, 8)
            with second:
                found: list[TopicPartition] = []

                def sizes() -> list[int]:
                    first.poll(5)
                    found.extend(second.poll(5))
                    return [len(each.assignment) for each in (first, second)]

                eventually(sizes, lambda each: each == [2, 2], pause_s=0)
                found.extend(second.poll(100))
                assert found == []
                assert set(second.positions.values()) == {2}


def shares(*members: GroupConsumer) -> list[int]:
    """How many partitions each has, once all have heard what is new."""
    for member in members:
        member.poll(5)
    return [len(member.assignment) for member in members]


def test_a_member_that_was_given_up_joins_again_and_drops_what_it_held(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(), unique("g")
    produce(client, partitions, 3)
    member = GroupConsumer(client, group, [partitions[0].topic], BY_HAND)
    read(member, 3)
    member.member_epoch = 9999  # a newer epoch than the coordinator ever gave: it fences us
    member._heartbeat_at = 0
    assert len(read(member, 3)) == 3, "nothing was committed, so all is read again"
    assert member.member_epoch != 9999
    assert member.assignment == set(partitions)
    member.close()


def test_a_member_reads_on_when_one_of_its_topics_is_deleted(
    client: Client, bootstrap: str, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    gone, (kept,) = make_topic(2), make_topic()
    produce(client, [*gone, kept], 6)
    with GroupConsumer(client, unique("g"), [gone[0].topic, kept.topic], FROM_START) as member:
        assert len(read(member, 6)) == 6
        with Client(bootstrap) as other:
            Admin(other).delete_topic(gone[0].topic)
            produce(other, [kept], 1)
            assert read(member, 1) == [b"0"]
            assert eventually(lambda: member.poll(10) or member.assignment, lambda found: found == {kept}) == {kept}
            produce(other, [kept], 2)
        assert read(member, 2) == [b"0", b"1"]


def test_an_assignment_that_could_not_be_taken_over_is_tried_again_at_the_next_poll(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(), unique("g")
    with GroupConsumer(client, group, [partitions[0].topic], GroupOptions(commit_interval_ms=None)) as member:
        member.options = GroupOptions(consumer=ConsumerOptions(reset="error"), commit_interval_ms=None)
        for _ in range(3):
            with pytest.raises(KafkaError, match="has no committed offset"):
                member.poll(0)
        member.options = BY_HAND
        member.poll(0)
        assert member.assignment == set(partitions)


def test_lag_counts_what_is_still_to_be_read() -> None:
    lag = PartitionLag(partition=TopicPartition("t", 0), committed=30, start=50, end=60)
    assert lag.lag == 10
    assert PartitionLag(partition=lag.partition, committed=None, start=50, end=60).lag == 10
    assert PartitionLag(partition=lag.partition, committed=55, start=50, end=60).lag == 5
    assert PartitionLag(partition=lag.partition, committed=70, start=50, end=60).lag == 0


def test_lag_names_the_member_that_is_behind(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partitions, group = make_topic(2), unique("g")
    with GroupConsumer(client, group, [partitions[0].topic], FROM_START) as member:
        while not member.assignment:
            member.poll(20)
        member.commit()
        produce(client, partitions, 10)
        lags = Groups(client).lag(group)
        assert [(each.partition, each.lag) for each in lags] == [(partitions[0], 5), (partitions[1], 5)]
        assert {each.member.member_id for each in lags if each.member} == {member.member_id}


def test_offsets_of_a_group_without_members_can_be_set(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    (partition,), group = make_topic(), unique("g")
    produce(client, [partition], 10)
    groups = Groups(client)
    groups.commit(group, {partition: 4})
    assert groups.committed(group, [partition]) == {partition: 4}
    assert groups.describe(group).kind == "classic"
    assert [each.name for each in groups.list_all() if each.name == group] == [group]


def test_offsets_of_a_topic_that_was_deleted_are_no_lag(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    (kept,), (deleted,), group = make_topic(), make_topic(), unique("g")
    Groups(client).commit(group, {kept: 0, deleted: 0})
    Admin(client).delete_topic(deleted.topic)
    assert [each.partition for each in Groups(client).lag(group)] == [kept]


def test_a_group_that_is_not_there_is_told_by_its_code(client: Client) -> None:
    for look in (Groups(client).describe, Groups(client).delete):
        with pytest.raises(KafkaError, match="no-such-group") as caught:
            look("no-such-group")
        assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_members_can_be_neither_moved_nor_deleted(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    (partition,), group = make_topic(), unique("g")
    with GroupConsumer(client, group, [partition.topic], FROM_START) as member:
        member.poll(50)
        with pytest.raises(KafkaError) as caught:
            Groups(client).delete(group)
        assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
        with pytest.raises(KafkaError) as caught:
            Groups(client).commit(group, {partition: 0})
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    Groups(client).delete(group)


def test_a_member_that_never_joined_leaves_nothing_to_close(client: Client) -> None:
    member = GroupConsumer(client, "unused", ["t"])
    member.close()
    assert member.member_epoch == JOINING


def test_settings_of_a_group_can_be_altered(client: Client, unique: Callable[[str], str]) -> None:
    group, admin = unique("g"), Admin(client)
    admin.alter_config(ResourceKind.GROUP, group, put={"consumer.session.timeout.ms": "50000"})
    found = {each.name: each.value for each in admin.describe_config(ResourceKind.GROUP, group)}
    assert found["consumer.session.timeout.ms"] == "50000"
    with pytest.raises(KafkaError, match=r"must be greater than consumer.heartbeat.interval.ms \(50000\)"):
        admin.alter_config(ResourceKind.GROUP, group, put={"consumer.heartbeat.interval.ms": "50000"})


def test_a_slow_poll_of_one_client_does_not_hold_another(client: Client, bootstrap: str, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    with (
        Client(bootstrap, PATIENCE) as other,
        GroupConsumer(other, partition.topic, [partition.topic], FROM_START) as member,
    ):
        produce(client, [partition], 1)
        read(member, 1)
        polling = threading.Thread(target=member.poll, args=(60_000,))
        polling.start()
        try:
            assert Groups(client).lag(partition.topic) is not None
            assert polling.is_alive()
        finally:
            produce(client, [partition], 1)
            polling.join(PATIENCE_S)
        assert not polling.is_alive()
