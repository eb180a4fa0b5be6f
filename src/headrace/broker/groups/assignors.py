"""Server-side assignors: who should have which partition. Pure functions of members, topics and the last target.

*uniform* (the default) gives every member the same number of partitions, one more or less, and moves as few as that
allows. *range* gives each member a contiguous run of every topic, so that equal partitions of different topics meet in
one member, which joins need. Its result depends on the members alone and not on what they had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from headrace.broker.groups.consumer import Target
from headrace.broker.groups.group import TopicIdPartition

__all__ = ["ASSIGNORS", "Counts", "Subscriber", "Subscribers", "assign_range", "assign_uniform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as assignors see it."""

    topics: frozenset[bytes]
    instance_id: str | None = None
    last: Target = field(default_factory=dict)


Subscribers = Mapping[str, Subscriber]
Counts = Mapping[bytes, int]


def assign_uniform(members: Subscribers, counts: Counts) -> dict[str, Target]:
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    shares = _kept(members, counts)
    if len(subscriptions) == 1:
        _fill_alike(members, counts, shares)
    else:
        _fill_unlike(members, counts, shares)
        _even_out(members, counts, shares)
    return {member_id: _as_target(partitions) for member_id, partitions in shares.items()}


def _kept(members: Subscribers, counts: Counts) -> dict[str, set[TopicIdPartition]]:
    """What each member had and may still have."""
    taken: set[TopicIdPartition] = set()
    shares: dict[str, set[TopicIdPartition]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        mine = {
            (topic_id, partition)
            for topic_id, partitions in member.last.items()
            if topic_id in member.topics
            for partition in partitions
            if partition < counts.get(topic_id, 0)
        }
        shares[member_id] = mine - taken
        taken |= mine
    return shares


def _unassigned(
    topics: Iterable[bytes], counts: Counts, shares: Mapping[str, set[TopicIdPartition]]
) -> list[TopicIdPartition]:
    taken = set().union(*shares.values())
    partitions = ((topic_id, partition) for topic_id in sorted(topics) for partition in range(counts.get(topic_id, 0)))
    return [place for place in partitions if place not in taken]


def _fill_alike(members: Subscribers, counts: Counts, shares: dict[str, set[TopicIdPartition]]) -> None:
    """All members subscribe to the same topics: each gets a quota, and those that hold the most get one more if any is
    left over."""
    topics = next(iter(members.values())).topics
    total = sum(counts.get(topic_id, 0) for topic_id in topics)
    quota, odd = divmod(total, len(members))
    wanting: deque[tuple[str, int]] = deque()
    for rank, member_id in enumerate(sorted(shares, key=lambda each: (-len(shares[each]), each))):
        share_max = quota + (rank < odd)
        shares[member_id] = set(sorted(shares[member_id])[:share_max])
        wanting.append((member_id, share_max))
    for place in _unassigned(topics, counts, shares):
        while len(shares[wanting[0][0]]) >= wanting[0][1]:
            wanting.popleft()
        shares[wanting[0][0]].add(place)
        wanting.rotate(-1)


def _fill_unlike(members: Subscribers, counts: Counts, shares: dict[str, set[TopicIdPartition]]) -> None:
    """Topics with the fewest subscribers first; each partition goes to the subscriber that holds the least."""
    takers = _takers(members, counts)
    for topic_id in sorted(takers, key=lambda each: (len(takers[each]), each)):
        heap = [(len(shares[member_id]), member_id) for member_id in takers[topic_id]]
        heapify(heap)
        for place in _unassigned([topic_id], counts, {each: shares[each] for each in takers[topic_id]}):
            held, member_id = heappop(heap)
            shares[member_id].add(place)
            heappush(heap, (held + 1, member_id))


def _even_out(members: Subscribers, counts: Counts, shares: dict[str, set[TopicIdPartition]]) -> None:
    """Move partitions while one member has at least two more than another subscriber of the same topic.

    Each move makes the sum of squared shares smaller, so this ends.
    """
    takers = _takers(members, counts)
    moved = True
    while moved:
        moved = False
        for topic_id, member_ids in takers.items():
            holdings = {each: {place for place in shares[each] if place[0] == topic_id} for each in member_ids}
            while True:
                least = min(member_ids, key=lambda each: (len(shares[each]), each))
                most = max((each for each in member_ids if holdings[each]), key=lambda each: (len(shares[each]), each))
                if len(shares[most]) - len(shares[least]) < 2:
                    break
                place = max(holdings[most])
                for share in (shares, holdings):
                    share[most].discard(place)
                    share[least].add(place)
                moved = True


def _takers(members: Subscribers, counts: Counts) -> dict[bytes, list[str]]:
    takers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            if counts.get(topic_id, 0):
                takers.setdefault(topic_id, []).append(member_id)
    return dict(sorted(takers.items()))


def assign_range(members: Subscribers, counts: Counts) -> dict[str, Target]:
    """Members in a fixed order, static ones by their instance id so that a restart does not move them."""
    order = sorted(members, key=lambda each: (members[each].instance_id is None, members[each].instance_id or "", each))
    shares: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id in sorted({topic_id for member in members.values() for topic_id in member.topics}):
        takers = [member_id for member_id in order if topic_id in members[member_id].topics]
        quota, odd = divmod(counts.get(topic_id, 0), len(takers))
        start = 0
        for rank, member_id in enumerate(takers):
            end = start + quota + (rank < odd)
            if end > start:
                shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return {**shares}


def _as_target(partitions: Iterable[TopicIdPartition]) -> Target:
    target: dict[bytes, set[int]] = {}
    for topic_id, partition in partitions:
        target.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in sorted(target.items())}


ASSIGNORS: dict[str, Callable[[Subscribers, Counts], dict[str, Target]]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
