"""Classic consumer groups: joining, syncing, beating, leaving, and every way to do it wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.client import Answer, Asked, RawClient
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers

PROTOCOLS = [{"name": "range", "metadata": b"meta"}]


class Group:
    """A group of this run and its members, each on its own connection."""

    def __init__(self, s: Scenario, what: str = "group") -> None:
        self.s = s
        self.id = s.name(what)
        s.coordinator(self.id, 0)

    def join(self, connection: RawClient, member_id: str = "", *, version: int = 9, **values: Any) -> Asked:
        defaults = {
            "session_timeout_ms": 120_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": PROTOCOLS,
        }
        return connection.send(
            "JoinGroup", version, **{**defaults, "group_id": self.id, "member_id": member_id, **values}
        )

    def member(self, connection: RawClient, **values: Any) -> str:
        """A member id, as the broker hands it out before a first join."""
        answer = connection.receive(self.join(connection, **values))
        assert answer["error_code"] == 79, answer
        identifier: str = answer["member_id"]
        return identifier

    def alone(self, connection: RawClient, **values: Any) -> tuple[str, int]:
        """A stable group of one: joined and synced."""
        member = self.member(connection, **values)
        answer = connection.receive(self.join(connection, member, **values))
        assert answer["error_code"] == 0, answer
        generation: int = answer["generation_id"]
        self.sync(connection, member, generation, [{"member_id": member, "assignment": b"all"}])
        return member, generation

    def sync(self, connection: RawClient, member: str, generation: int, assignments: Any = (), **values: Any) -> Answer:
        defaults = {"protocol_type": "consumer", "protocol_name": "range"}
        return connection.ask(
            "SyncGroup",
            **{**defaults, "group_id": self.id, "member_id": member, "generation_id": generation, **values},
            assignments=list(assignments),
        )

    def beat(self, connection: RawClient, member: str, generation: int, **values: Any) -> Answer:
        asked = {"group_id": self.id, "member_id": member, "generation_id": generation, **values}
        return connection.ask("Heartbeat", **asked)

    def describe(self, label: str) -> None:
        self.s.note(label, "DescribeGroups", groups=[self.id])


def test_one_member_joins_syncs_beats_and_leaves(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        s.write("a first join must take its id", c.receive(group.join(c)))
        member = group.member(c)
        group.describe("before joining")
        joined = s.note_answer("join", c, group.join(c, member))
        generation = joined["generation_id"]
        group.describe("joined")
        s.write("beat while syncing", group.beat(c, member, generation))
        s.write("sync", group.sync(c, member, generation, [{"member_id": member, "assignment": b"all"}]))
        group.describe("stable")
        s.write("beat", group.beat(c, member, generation))
        s.write("sync again", group.sync(c, member, generation))
        s.note("leave", "LeaveGroup", group_id=group.id, members=[{"member_id": member}])
        # An id was handed out that nobody came back with: Apache Kafka looks for its owner for a moment.
        s.until(lambda: expired(group))
        group.describe("left")
        s.write("beat after leaving", group.beat(c, member, generation))

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_join_group(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        answer = s.note_answer("join", c, group.join(c, version=version))
        if answer["error_code"] == 79:
            s.note_answer("join with the id", c, group.join(c, answer["member_id"], version=version))

    same_as_kafka(play)


@pytest.mark.parametrize(
    "values",
    [
        {"group_id": ""},
        {"session_timeout_ms": 10},
        {"session_timeout_ms": 10_000_000},
        {"session_timeout_ms": 6000},
        {"session_timeout_ms": 1_800_000},
        {"protocols": []},
        {"protocol_type": ""},
        {"protocol_type": "connect"},
        {"member_id": "nobody"},
        {"group_instance_id": "static", "member_id": "nobody"},
        {"rebalance_timeout_ms": -1},
    ],
    ids=lambda values: "-".join(f"{key}-{value}" for key, value in values.items()),
)
def test_joins_that_are_refused_or_not(same_as_kafka: Compare, values: dict[str, Any]) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        s.note_answer("join", c, group.join(c, **values))

    same_as_kafka(play)


def test_a_second_member_must_share_the_protocol(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        group.alone(c)
        other = s.connect()
        s.note_answer("other type", other, group.join(other, protocol_type="connect"))
        unshared = [{"name": "roundrobin", "metadata": b""}]
        s.note_answer("other protocol", other, group.join(other, protocols=unshared))
        group.describe("unchanged")

    same_as_kafka(play)


def test_two_members_rebalance_and_share(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, one, two = Group(s), s.main, s.connect("second")
        first, generation = group.alone(one)
        second = group.member(two)
        waiting = group.join(two, second)
        s.until(lambda: group.beat(one, first, generation)["error_code"] == 27)
        s.write("the first is told to rejoin", group.beat(one, first, generation))
        s.write("syncing in the old generation", group.sync(one, first, generation))
        rejoined = s.note_answer("the first rejoins", one, group.join(one, first))
        s.note_answer("the second is in", two, waiting)
        generation = rejoined["generation_id"]
        asked = two.send(
            "SyncGroup",
            group_id=group.id,
            member_id=second,
            generation_id=generation,
            protocol_type="consumer",
            protocol_name="range",
        )
        shares = [{"member_id": first, "assignment": b"one"}, {"member_id": second, "assignment": b"two"}]
        s.write("the leader's share", group.sync(one, first, generation, shares))
        s.note_answer("the follower's share", two, asked)
        s.write("old generation", group.beat(one, first, generation - 1))
        s.write("future generation", group.beat(one, first, generation + 1))
        s.note("the second leaves", "LeaveGroup", group_id=group.id, members=[{"member_id": second}])
        s.write("the first hears of it", group.beat(one, first, generation))

    same_as_kafka(play)


def test_requests_of_strangers_are_refused(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        s.write("beat, no such group", group.beat(c, "nobody", 1))
        s.write("sync, no such group", group.sync(c, "nobody", 1))
        s.note("leave, no such group", "LeaveGroup", group_id=group.id, members=[{"member_id": "nobody"}])
        member, generation = group.alone(c)
        s.write("beat, unknown member", group.beat(c, "nobody", generation))
        s.write("sync, unknown member", group.sync(c, "nobody", generation))
        s.write("sync, old generation", group.sync(c, member, generation - 1))
        s.write("sync, other type", group.sync(c, member, generation, protocol_type="connect"))
        s.write("sync, other protocol", group.sync(c, member, generation, protocol_name="sticky"))
        s.write("beat, empty group id", group.beat(c, member, generation, group_id=""))
        s.write("sync, empty group id", group.sync(c, member, generation, group_id=""))
        members = [{"member_id": "nobody"}, {"member_id": member}]
        s.note("leave, one known", "LeaveGroup", group_id=group.id, members=members)
        s.note("leave, empty group id", "LeaveGroup", group_id="", members=members)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_leave_group(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        member, _ = group.alone(c)
        who = {"members": [{"member_id": member}]} if version >= 3 else {"member_id": member}
        s.note("leave", "LeaveGroup", version, group_id=group.id, **who)
        s.note("leave again", "LeaveGroup", version, group_id=group.id, **who)

    same_as_kafka(play)


def test_a_static_member_returns_without_a_rebalance(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        joined = s.note_answer("join", c, group.join(c, group_instance_id="static"))
        first, generation = joined["member_id"], joined["generation_id"]
        synced = group.sync(
            c, first, generation, [{"member_id": first, "assignment": b"all"}], group_instance_id="static"
        )
        s.write("sync", synced)
        group.describe("stable")
        again = s.note_answer("comes back", c, group.join(c, group_instance_id="static"))
        s.write("sync as before", group.sync(c, again["member_id"], again["generation_id"], group_instance_id="static"))
        fenced = {"group_instance_id": "static"}
        s.write("the old incarnation beats", group.beat(c, first, generation, **fenced))
        s.write("the old incarnation syncs", group.sync(c, first, generation, **fenced))
        s.note_answer("the old incarnation joins", c, group.join(c, first, **fenced))
        s.write("an unknown instance beats", group.beat(c, again["member_id"], generation, group_instance_id="other"))
        members = [{"member_id": first, "group_instance_id": "static"}, {"group_instance_id": "unknown"}]
        s.note("the old incarnation leaves", "LeaveGroup", group_id=group.id, members=members)
        removed = [{"group_instance_id": "static"}]
        s.note("an admin removes it", "LeaveGroup", group_id=group.id, members=removed)
        group.describe("empty")

    same_as_kafka(play)


def test_the_leader_rejoining_starts_a_rebalance_and_a_follower_does_not(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        member, _ = group.alone(c)
        s.note_answer("the leader joins again", c, group.join(c, member))
        group.describe("completing")

    same_as_kafka(play)


def test_groups_are_listed_by_state_and_type(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        group.alone(c)
        mine = {group.id}
        for version, values in (
            (0, {}),
            (3, {}),
            (4, {"states_filter": ["Stable"]}),
            (4, {"states_filter": ["Empty", "Dead"]}),
            (4, {"states_filter": ["stable"]}),
            (4, {"states_filter": ["Nonsense"]}),
            (5, {"types_filter": ["classic"]}),
            (5, {"types_filter": ["Classic"]}),
            (5, {"types_filter": ["consumer"]}),
            (5, {"types_filter": ["nonsense"]}),
        ):
            answer = s.ask("ListGroups", version, **values)
            answer["groups"] = [each for each in answer["groups"] if each["group_id"] in mine]
            s.write(f"version {version} {values}", answer)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(7))
def test_every_version_of_describe_groups(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        group.alone(c)
        s.note("known and unknown", "DescribeGroups", version, groups=[group.id, s.name("unknown")])
        if version >= 3:
            s.note("operations", "DescribeGroups", version, groups=[group.id], include_authorized_operations=True)

    same_as_kafka(play)


def test_groups_are_deleted_when_they_are_empty(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        member, _ = group.alone(c)
        s.note("not empty", "DeleteGroups", groups_names=[group.id, s.name("unknown")])
        s.ask("LeaveGroup", group_id=group.id, members=[{"member_id": member}])
        s.note("empty", "DeleteGroups", groups_names=[group.id])
        group.describe("gone")
        s.note("again", "DeleteGroups", groups_names=[group.id])

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(7))
def test_every_version_of_find_coordinator(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        def find(label: str, key: str, key_type: int = 0) -> None:
            who = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
            s.note(label, "FindCoordinator", version, **who, **({"key_type": key_type} if version >= 1 else {}))

        find("group", "some-group")
        find("empty group id", "")
        if version >= 1:
            find("transaction", "some-transaction", 1)
            find("empty transactional id", "", 1)
            find("unknown type", "key", 9)

    same_as_kafka(play)


def expired(group: Group) -> bool:
    answer = group.s.ask("DescribeGroups", groups=[group.id])["groups"][0]
    return answer["members"] == [] and answer["group_state"] == "Empty"


def test_a_member_that_falls_silent_is_removed(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, c = Group(s), s.main
        member, generation = group.alone(c, session_timeout_ms=6000)
        s.until(lambda: expired(group))
        s.write("beat", group.beat(c, member, generation))
        group.describe("empty")

    same_as_kafka(play)


def test_members_who_do_not_rejoin_in_time_are_left_behind(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group, one, two = Group(s), s.main, s.connect("second")
        first, generation = group.alone(one, rebalance_timeout_ms=5000)
        second = group.member(two, rebalance_timeout_ms=5000)
        joined = s.note_answer("the second joins alone", two, group.join(two, second, rebalance_timeout_ms=5000))
        s.write("the first is a stranger", group.beat(one, first, generation))
        s.notes.append(["generation", joined["generation_id"] - generation])

    same_as_kafka(play)
