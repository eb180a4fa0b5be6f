"""The consumer protocol of KIP-848: heartbeats, assignments, epochs and its errors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.differential.client import Answer
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario
from tests.differential.test_group_offsets import commit, fetch, partition

pytestmark = pytest.mark.servers


class Member:
    """One member; it names itself, as clients since Kafka 4.0 do."""

    def __init__(self, s: Scenario, group: str) -> None:
        self.s = s
        self.group = group
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.held: list[dict[str, Any]] = []
        s.symbol("member", self.id)

    def beat(self, label: str = "", **values: Any) -> Answer:
        asked = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, **values}
        answer = self.s.ask("ConsumerGroupHeartbeat", **asked)
        if answer["error_code"] == 0 and answer["member_epoch"] > 0:
            self.s.epoch(answer["member_epoch"])
        if label:
            self.s.write(label, answer)
        if answer["error_code"] == 0:
            self.epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                self.held = answer["assignment"]["topic_partitions"]
        return answer

    def join(self, label: str, *topics: str, **values: Any) -> Answer:
        defaults = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
        return self.beat(label, **{**defaults, **values})

    def until_assigned(self, count: int) -> list[dict[str, Any]]:
        """Beat, owning what was given, until this many partitions are held and the broker knows it."""

        def settled() -> bool:
            self.beat(topic_partitions=self.held)
            return sum(len(each["partitions"]) for each in self.held) == count

        self.s.until(settled)
        self.beat(topic_partitions=self.held)
        return self.held


def ready(s: Scenario) -> str:
    group = s.name("group")
    s.coordinator(group, 0)
    return group


def test_a_commit_that_arrives_late_is_executed_though_its_member_has_committed_more(same_as_kafka: Compare) -> None:
    """A network may hold it for so long; its client has sent it again meanwhile, on another connection. A request has
    nothing that says which of them was first. An older epoch will do, because the partition was the member's since."""

    def play(s: Scenario) -> None:
        name, member = s.topic(), Member(s, ready(s))
        member.join("join", name)
        member.until_assigned(1)
        who = {"member_id": member.id, "generation_id_or_member_epoch": member.epoch}
        topics = [{"name": name, "partitions": [partition(5)]}]
        for label in ("the copy that was held", "one more, in a newer epoch"):
            now = {**who, "generation_id_or_member_epoch": member.epoch}
            commit(s, "the copy that was sent again", member.group, name, partition(5), **now)
            commit(s, "more", member.group, name, partition(9), **now)
            held = s.connect()
            late = held.send("OffsetCommit", 9, group_id=member.group, topics=topics, **who)
            s.note_answer(label, held, late)
            fetch(s, "fetch", member.group, None)
            Member(s, member.group).join("another joins", name)
            s.until(lambda: member.beat()["member_epoch"] > who["generation_id_or_member_epoch"])

    same_as_kafka(play)


def test_one_member_gets_everything_and_leaves(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, member = s.topic("topic", partitions=3), Member(s, ready(s))
        answer = member.join("join", name)
        held = answer["assignment"]["topic_partitions"]
        member.beat("owning it", topic_partitions=held)
        member.beat("quiet beat")
        s.note("described", "ConsumerGroupDescribe", group_ids=[member.group])
        s.note("described as classic", "DescribeGroups", groups=[member.group])
        member.beat("leave", member_epoch=-1)
        s.note("empty", "ConsumerGroupDescribe", group_ids=[member.group])
        member.beat("after leaving")

    same_as_kafka(play)


@pytest.mark.parametrize(
    "values",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"rebalance_timeout_ms": -1},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
        {"topic_partitions": None},
        {"topic_partitions": [{"topic_id": b"\x03" * 16, "partitions": [0]}]},
        {"server_assignor": "nonsense"},
        {"server_assignor": "range"},
        {"server_assignor": "uniform"},
        {"server_assignor": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rack_id": "rack"},
        {"member_epoch": 1},
        {"member_epoch": 5},
        {"member_epoch": -1},
        {"member_epoch": -2},
        {"member_epoch": -3},
        {"subscribed_topic_regex": "("},
        {"subscribed_topic_regex": ""},
    ],
    ids=lambda values: "-".join(f"{key}-{value!r}" for key, value in values.items()),
)
def test_first_heartbeats_that_are_refused_or_not(same_as_kafka: Compare, values: dict[str, Any]) -> None:
    def play(s: Scenario) -> None:
        member = Member(s, ready(s))
        member.join("join", s.topic("topic", partitions=2), **values)

    same_as_kafka(play)


def test_version_zero_hands_out_member_ids(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, name = ready(s), s.topic("topic", partitions=2)
        asked = {
            "group_id": group,
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_names": [name],
            "topic_partitions": [],
        }
        s.note("join", "ConsumerGroupHeartbeat", 0, **asked)

    same_as_kafka(play)


def test_epochs_fence_members(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, member = s.topic("topic", partitions=2), Member(s, ready(s))
        member.join("join", name)
        held = member.until_assigned(2)
        member.beat("future epoch", member_epoch=member.epoch + 1, topic_partitions=held)
        member.beat("unknown member", member_id="nobody")
        member.beat("unknown member in a new group", group_id=s.name("other"))
        member.beat(
            "epoch zero joins again",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[name],
            topic_partitions=[],
        )

    same_as_kafka(play)


def test_two_members_share_the_partitions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic("topic", partitions=4), ready(s)
        one, two = Member(s, group), Member(s, group)
        one.join("one joins", name)
        one.until_assigned(4)
        two.join("two joins", name)
        one.until_assigned(2)
        two.until_assigned(2)
        answer = s.ask("ConsumerGroupDescribe", group_ids=[group])["groups"][0]
        shares = [[len(t["partitions"]) for t in each["assignment"]["topic_partitions"]] for each in answer["members"]]
        s.notes.append(
            [answer["group_state"], answer["group_epoch"], answer["assignment_epoch"], answer["assignor_name"], shares]
        )
        two.beat("two leaves", member_epoch=-1)
        one.until_assigned(4)
        s.notes.append(["one's epoch", s.epoch(one.epoch)])

    same_as_kafka(play)


def test_partitions_move_only_when_they_are_let_go(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic("topic", partitions=2), ready(s)
        one, two = Member(s, group), Member(s, group)
        one.join("one joins", name)
        held = one.until_assigned(2)
        two.join("two joins and gets nothing yet", name)
        two.beat("two waits")
        answer = one.beat(topic_partitions=held)
        kept = answer["assignment"]["topic_partitions"]
        s.notes.append(["one is asked to let go", [len(each["partitions"]) for each in kept], s.epoch(one.epoch)])
        two.beat("two still waits")
        one.beat(topic_partitions=kept)
        s.notes.append(["one has let go", s.epoch(one.epoch)])
        answer = two.beat()
        given = answer["assignment"]["topic_partitions"]
        s.notes.append(["two is given its share", [len(each["partitions"]) for each in given], s.epoch(two.epoch)])

    same_as_kafka(play)


def test_a_subscription_changes(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        one, two = s.topic("one", partitions=2), s.topic("two", partitions=1)
        member = Member(s, ready(s))
        member.join("join", one)
        held = member.until_assigned(2)
        member.beat("both topics", subscribed_topic_names=[one, two], topic_partitions=held)
        member.until_assigned(3)
        member.beat("the same again", subscribed_topic_names=[two, one])
        member.beat("none", subscribed_topic_names=[])
        member.until_assigned(0)
        member.beat("a topic that does not exist", subscribed_topic_names=[s.name("unknown")])

    same_as_kafka(play)


def test_a_subscription_by_pattern(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        s.topic("orders-a", partitions=2)
        s.topic("orders-b", partitions=1)
        s.topic("other", partitions=1)
        member = Member(s, ready(s))
        # Apache Kafka resolves patterns in the background, so the first answer is not compared.
        member.join("", subscribed_topic_names=[], subscribed_topic_regex=f"orders-.*-{s.run}")
        held = member.until_assigned(3)
        answer = s.ask("ConsumerGroupDescribe", group_ids=[member.group])["groups"][0]
        described = answer["members"][0]
        s.notes.append([answer["group_state"], described["subscribed_topic_names"], len(held)])
        s.write("pattern", {"subscribed_topic_regex": described["subscribed_topic_regex"]})
        member.beat("a broken pattern", subscribed_topic_regex="[")
        member.beat("a back reference, which RE2 does not know", subscribed_topic_regex=r"(a)\1")

    same_as_kafka(play)


def test_a_pattern_together_with_topics_by_name(same_as_kafka: Compare) -> None:
    """The member is given the union, and a topic that both name once. An empty pattern ends the one by pattern."""

    def play(s: Scenario) -> None:
        both = s.topic("orders-a", partitions=2)
        s.topic("orders-b", partitions=1)
        named = s.topic("other", partitions=1)
        member = Member(s, ready(s))

        def describe(label: str) -> None:
            described = s.ask("ConsumerGroupDescribe", group_ids=[member.group])["groups"][0]["members"][0]
            kept = ("subscribed_topic_names", "subscribed_topic_regex", "assignment", "target_assignment")
            subscribed = {key: described[key] for key in kept}
            subscribed["subscribed_topic_names"] = sorted(subscribed["subscribed_topic_names"])
            s.write(label, subscribed)

        member.join("", named, both, subscribed_topic_regex=f"orders-.*-{s.run}")
        member.until_assigned(4)
        describe("both")
        member.beat(subscribed_topic_regex="", topic_partitions=member.held)
        member.until_assigned(3)
        describe("names only")
        member.beat(subscribed_topic_names=[], subscribed_topic_regex=f"orders-.*-{s.run}")
        member.until_assigned(3)
        s.until(lambda: len(member.held) == 2 and member.beat(topic_partitions=member.held) is not None)
        describe("pattern only")
        s.notes.append(["neither", member.beat(subscribed_topic_regex="")["error_code"]])

    same_as_kafka(play)


def test_static_members_keep_their_place(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic("topic", partitions=2), ready(s)
        first, second = Member(s, group), Member(s, group)
        first.join("first", name, instance_id="static")
        first.until_assigned(2)
        second.join("the place is taken", name, instance_id="static")
        first.beat("leaves for a while", member_epoch=-2, instance_id="static")
        s.note("described", "ConsumerGroupDescribe", group_ids=[group])
        second.join("takes over", name, instance_id="static")
        first.epoch = second.epoch
        first.beat("the first is fenced", instance_id="static")
        second.beat("unknown instance", instance_id="other")
        second.beat("leaves for good", member_epoch=-1, instance_id="static")

    same_as_kafka(play)


def test_commits_need_the_members_epoch(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, member = s.topic("topic", partitions=2), Member(s, ready(s))
        member.join("join", name)
        member.until_assigned(2)
        who = {"member_id": member.id, "generation_id_or_member_epoch": member.epoch}
        commit(s, "current", member.group, name, partition(1), **who)
        commit(s, "stale epoch", member.group, name, partition(2), **{**who, "generation_id_or_member_epoch": 0})
        commit(s, "future epoch", member.group, name, partition(3), **{**who, "generation_id_or_member_epoch": 99})
        commit(s, "unknown member", member.group, name, partition(4), **{**who, "member_id": "nobody"})
        commit(s, "outsider", member.group, name, partition(5))
        topics = [{"name": name, "partition_indexes": [0, 1]}]
        fetch(s, "fetch as a member", member.group, topics, member_id=member.id, member_epoch=member.epoch)
        fetch(s, "fetch with a stale epoch", member.group, topics, member_id=member.id, member_epoch=0)
        fetch(s, "fetch as nobody", member.group, topics, member_id="nobody", member_epoch=member.epoch)
        fetch(s, "fetch as an outsider", member.group, topics)
        s.note("delete while in use", "DeleteGroups", groups_names=[member.group])
        s.note(
            "delete offsets while subscribed",
            "OffsetDelete",
            group_id=member.group,
            topics=[{"name": name, "partitions": [{"partition_index": 0}]}],
        )
        member.beat("leave", member_epoch=-1)
        s.note("delete", "DeleteGroups", groups_names=[member.group])

    same_as_kafka(play)


def test_the_two_protocols_do_not_mix_in_one_group(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, member = s.topic("topic", partitions=2), Member(s, ready(s))
        member.join("join", name)
        held = member.until_assigned(2)
        classic = {"group_id": member.group, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 10_000}
        protocols = [{"name": "range", "metadata": b"meta"}]
        s.note("classic member, other type", "JoinGroup", **classic, protocol_type="connect", protocols=protocols)
        s.note("classic heartbeat", "Heartbeat", group_id=member.group, member_id=member.id, generation_id=member.epoch)
        s.note("classic sync", "SyncGroup", group_id=member.group, member_id=member.id, generation_id=member.epoch)
        member.beat("goes on", topic_partitions=held)

    same_as_kafka(play)


def test_groups_that_are_not_consumer_groups_are_not_described_as_such(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group = ready(s)
        s.note("unknown", "ConsumerGroupDescribe", group_ids=[group, ""])
        commit(s, "a simple group", group, s.topic("topic"), partition(1))
        s.note("simple", "ConsumerGroupDescribe", group_ids=[group])
        s.note("operations", "ConsumerGroupDescribe", group_ids=[group], include_authorized_operations=True)

    same_as_kafka(play)


def test_new_partitions_are_assigned(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, member = s.topic("topic", partitions=1), Member(s, ready(s))
        member.join("join", name)
        member.until_assigned(1)
        s.ask("CreatePartitions", topics=[{"name": name, "count": 3, "assignments": None}], timeout_ms=60_000)
        held = member.until_assigned(3)
        s.notes.append(["held", sum(len(each["partitions"]) for each in held), s.epoch(member.epoch)])

    same_as_kafka(play)


def subscription(*topics: str) -> bytes:
    """What a classic consumer says it wants, version 0."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return bytes(2) + len(topics).to_bytes(4, "big") + names + b"\xff" * 4


def classic_join(s: Scenario, label: str, group: str, member: str, name: str) -> Answer:
    return s.note(
        label,
        "JoinGroup",
        group_id=group,
        member_id=member,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": subscription(name)}],
    )


def test_a_classic_member_may_live_in_a_consumer_group(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic("topic", partitions=2), ready(s)
        member = Member(s, group)
        member.join("a member of the new kind", name)
        member.until_assigned(2)
        given = classic_join(s, "a classic one asks for its id", group, "", name)
        joined = classic_join(s, "and joins", group, given["member_id"], name)
        s.notes.append([joined["error_code"], joined["protocol_name"]])
        answer = s.ask("ConsumerGroupDescribe", group_ids=[group])["groups"][0]
        s.notes.append([answer["error_code"], sorted(each["member_type"] for each in answer["members"])])

    def compare_without_epochs(s: Scenario) -> None:
        play(s)
        for note in s.notes:
            if isinstance(note[1], dict):
                note[1].pop("generation_id", None)

    same_as_kafka(compare_without_epochs)


def test_an_empty_classic_group_becomes_a_consumer_group(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, group = s.topic("topic", partitions=2), ready(s)
        commit(s, "a classic commit", group, name, partition(7))
        member = Member(s, group)
        member.join("join", name)
        member.until_assigned(2)
        s.note("described", "ConsumerGroupDescribe", group_ids=[group])
        fetch(s, "the position is kept", group, None)

    same_as_kafka(play)
