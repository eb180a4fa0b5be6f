"""Checks of numbers that only grow (ends, starts, committed offsets), and of who owns a partition."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.chaos.operations import History, place_of

LATE_S = 2.0
"""What the network held has arrived and is executed after this time."""


class Known(NamedTuple):
    """A number that was known from ``time`` on; a look at it, if it ``began`` at some time."""

    time: float
    number: int
    began: float | None = None


class Late(NamedTuple):
    """A number that may be set once more at ``time`` or soon after."""

    time: float
    number: int


def receding(known: Iterable[Known], late: Iterable[Late] = ()) -> Iterator[tuple[int, int]]:
    """(number seen, highest known before) of every look that shows less than was known when it began.

    What overlaps with a look may or may not show. What is known before a late number is set holds down to that number.
    """
    ended, coming = sorted(known), sorted(late)
    looks = sorted((each for each in ended if each.began is not None), key=lambda each: each.began or 0.0)
    highest, next_ended = -1, 0
    arrived: list[Late] = []
    for look in looks:
        assert look.began is not None
        while coming and coming[0].time <= look.time:
            arrived.append(coming.pop(0))
            highest = min(highest, arrived[-1].number)
        while next_ended < len(ended) and ended[next_ended].time < look.began:
            each = ended[next_ended]
            numbers = [other.number for other in arrived if each.time < other.time + LATE_S]
            highest = max(highest, min([each.number, *numbers]))
            next_ended += 1
        if look.number < highest:
            yield look.number, highest


def receding_offsets(history: History) -> Iterator[str]:
    """A committed offset never goes back: neither behind an acknowledged commit nor behind what was seen before.

    Except that a commit which the network held is executed when it arrives, though its client has given up the
    connection, sent it again on another one, and committed more since then. An OffsetCommit has no sequence number, and
    Apache Kafka does the same (see tests/differential/test_consumer_groups.py). librdkafka gives up a connection when a
    heartbeat of a consumer group is not answered within the interval of heartbeats.
    """
    known: dict[tuple[str, str, int], list[Known]] = defaultdict(list)
    for each in history.operations["commit"]:
        if each["type"] == "ok":
            known[each["group"], each["topic"], each["partition"]].append(Known(each["time"], each["offset"]))
    for each in history.operations["observe"]:
        look = Known(each["time"], each["offset"], each["began"])
        known[each["group"], each["topic"], each["partition"]].append(look)
    late = late_commits(history)
    for (group, topic, partition), numbers in known.items():
        for seen, before in receding(numbers, late[group, topic, partition]):
            yield f"group {group}, {topic}-{partition}: {seen} after {before} had been committed"


def late_commits(history: History) -> dict[tuple[str, str, int], list[Late]]:
    """The commits of each partition that were under way while the network held what goes to the broker."""
    late: dict[tuple[str, str, int], list[Late]] = defaultdict(list)
    for held in history.operations["held"]:
        for each in history.operations["commit"]:
            if each["began"] < held["time"] and each["time"] > held["began"]:
                late[each["group"], each["topic"], each["partition"]].append(Late(held["time"], each["offset"]))
    return late


def receding_ends(history: History) -> Iterator[str]:
    """The end of a partition (high watermark, last stable offset) never goes back, nor behind what was acknowledged or
    read."""
    known: dict[tuple[str, str, int], list[Known]] = defaultdict(list)
    for each in history.operations["ends"]:
        known[each["isolation"], *place_of(each)].append(Known(each["time"], each["high"], each["began"]))
    for read in history.reads:
        if read["records"]:
            known[read["isolation"], *place_of(read)].append(Known(read["time"], read["records"][-1][0] + 1))
    for attempt in history.attempts.values():
        if attempt.type == "ok":
            assert attempt.offset is not None
            known["uncommitted", *attempt.place].append(Known(attempt.time, attempt.offset + 1))
    for (isolation, topic, partition), numbers in known.items():
        for seen, before in receding(numbers):
            yield f"{topic}-{partition} ends at {seen} ({isolation}) after it had reached {before}"


def receding_starts(history: History) -> Iterator[str]:
    """The start of a partition never goes back, nor behind an acknowledged DeleteRecords."""
    known: dict[tuple[str, int], list[Known]] = defaultdict(list)
    for each in history.operations["ends"]:
        known[place_of(each)].append(Known(each["time"], each["low"], each["began"]))
    for each in history.operations["trim"]:
        if each["type"] == "ok":
            known[place_of(each)].append(Known(each["time"], each["offset"]))
    for (topic, partition), numbers in known.items():
        for seen, before in receding(numbers):
            yield f"{topic}-{partition} begins at {seen} after it had begun at {before}"


def two_owners(history: History) -> Iterator[str]:
    """In one group a partition has one owner at a time.

    A member that hears nothing from the broker may be removed and cannot know it, so it does not count as an owner when
    it has heard nothing for as long as the broker has to keep it. Only members that write down what they hear are
    excused.
    """
    heartbeats = Heartbeats(history)
    owners: dict[tuple[str, str, int], str] = {}
    for each in sorted(history.operations["ownership"], key=lambda each: each["time"]):
        for topic, partition in each["partitions"]:
            key = (each["group"], topic, partition)
            owner = owners.get(key)
            if each["op"] == "own":
                if owner is not None and owner != each["member"] and not heartbeats.may_be_removed(owner, each["time"]):
                    yield f"group {each['group']}: {topic}-{partition} of {owner} was given to {each['member']}"
                owners[key] = each["member"]
            elif owner == each["member"]:
                del owners[key]


class Heartbeats:
    """When members heard that they are members and that nothing has changed.

    The broker said so after the request was sent. A rebalance that the member does not know of began later still, and
    waits for it for the rebalance timeout; its session is counted from the request.
    """

    def __init__(self, history: History) -> None:
        self._began: dict[str, list[float]] = defaultdict(list)
        self._kept_s: dict[str, float] = {}
        for each in sorted(history.operations["beat"], key=lambda each: each["began"]):
            self._began[each["member"]].append(each["began"])
            self._kept_s[each["member"]] = each["kept_s"]

    def may_be_removed(self, member: str, time: float) -> bool:
        began = self._began.get(member, [])
        seen = bisect_right(began, time)
        return seen > 0 and time - began[seen - 1] >= self._kept_s[member]
