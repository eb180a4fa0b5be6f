"""Which topics match the patterns that members of consumer groups subscribe with.

A pattern may take a step of each of its thousands of instructions for each character of a name, there may be thousands
of topics, and every member may have another pattern. So the handler of a heartbeat first matches in slices what the
heartbeat will ask for, and then runs it with the result. Little is matched at once.

A heartbeat that asks for more than was matched, because topics have come or gone meanwhile, goes on with what the group
has matched before. ``ConsumerGroup.topics_version`` then stays as it is, and a later heartbeat sees the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.access import Access, AccessDenied, Operation
from headrace.broker.groups.group import Group
from headrace.broker.groups.heartbeat_checks import SUBSCRIBED_PATTERN
from headrace.broker.patterns import MATCHED_CHARS_PER_UNIT, compile_pattern
from headrace.broker.slices import Steps
from headrace.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.groups.consumer import ConsumerGroup
    from headrace.broker.topics import Topic, Topics

__all__ = ["Matched", "Matching", "matching"]

AT_ONCE_MAX = 20
"""Topics that one pattern is matched with on the spot."""

TRIED_MAX = 3
UNITS_PER_STEP = 10
COMPILE_UNITS = 50
"""The cost of compiling a pattern, in units of ``slices``."""


class Matched(NamedTuple):
    """The names that each pattern matches, of the topics there were at a version of ``Topics``."""

    version: int
    names: dict[str, frozenset[str]]


NOTHING = Matched(-1, {})


class Matching:
    """Matches patterns, in slices before a heartbeat or on the spot."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known = NOTHING

    @contextmanager
    def knowing(self, known: Matched) -> Iterator[None]:
        """Within this context, ``known`` is used instead of matching again."""
        self._known = known
        try:
            yield
        finally:
            self._known = NOTHING

    def in_steps(self, access: Access, group_id: str, pattern: str | None) -> Steps[Matched]:
        """Match what the heartbeat of a member of this group, with this pattern, will ask for."""
        try:
            group = access.group(group_id, Operation.READ)
        except AccessDenied:  # and so is the heartbeat
            return NOTHING
        for _ in range(TRIED_MAX):
            known = Matched(self._topics.version, {})
            for each in self._wanted(group, pattern):
                with suppress(KafkaError):  # the heartbeat is refused with it
                    known.names[each] = yield from _matched(each, access.visible_topics())
            if known.version == self._topics.version:
                break
        return known

    def _wanted(self, group: Group | None, pattern: str | None) -> list[str]:
        matches: dict[str, frozenset[str]] = getattr(group, "matches", {})
        wanted = [pattern] if pattern and pattern not in matches else []
        if group is not None and matches and not self.is_current(group):
            wanted += matches
        return [] if len(wanted) == 1 and len(self._topics) <= AT_ONCE_MAX else wanted

    def is_current(self, group: Group) -> bool:
        """Whether the group has seen all topics there are."""
        return getattr(group, "topics_version", None) == self._topics.version

    def names(self, access: Access, pattern: str) -> frozenset[str]:
        """The topics that a pattern matches."""
        found = self._known.names.get(pattern)
        return matching(pattern, access.visible_topics()) if found is None else found

    def version(self, pattern: str) -> int:
        """Of the topics that ``names`` would look at."""
        return self._known.version if pattern in self._known.names else self._topics.version

    def may_look_again(self, group: ConsumerGroup) -> bool:
        """Whether all patterns of the group can be matched again now."""
        if self._known.version == self._topics.version and group.matches.keys() <= self._known.names.keys():
            return True
        return not group.matches or (len(group.matches) == 1 and len(self._topics) <= AT_ONCE_MAX)


def matching(pattern: str, topics: Iterable[Topic]) -> frozenset[str]:
    """Without slices."""
    steps = _matched(pattern, topics)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            names: frozenset[str] = done.value
            return names


def _matched(pattern: str, topics: Iterable[Topic]) -> Steps[frozenset[str]]:
    compiled = compile_pattern(pattern, SUBSCRIBED_PATTERN)
    yield COMPILE_UNITS
    names = []
    units = 0
    for topic in topics:
        if compiled.fullmatch(topic.name) and not topic.internal:
            names.append(topic.name)
        units += 1 + len(topic.name) // MATCHED_CHARS_PER_UNIT
        if units >= UNITS_PER_STEP:
            yield units
            units = 0
    return frozenset(names)
