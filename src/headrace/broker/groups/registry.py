"""All groups by id. The coordinator changes it; requests see it through the access gate."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.groups.classic import ClassicGroup
from headrace.broker.groups.consumer import ConsumerGroup

__all__ = ["Group", "Groups"]

Group = ClassicGroup | ConsumerGroup


class Groups(dict[str, Group]):
    """Groups without a row in the state exist too: those that only ever committed offsets."""

    def find(self, group_id: str) -> Group | None:
        return self.get(group_id)

    def all(self) -> Iterable[Group]:
        return self.values()
