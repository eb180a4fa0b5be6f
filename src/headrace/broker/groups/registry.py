"""All groups by id. The coordinator changes it; requests see it through the access gate."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.groups.group import Group
from headrace.broker.limits import GROUP_ID_CHARS_MAX, GROUPS_MAX
from headrace.errors import ErrorCode

__all__ = ["Groups"]


class Groups(dict[str, Group]):
    """Groups without a row in the state exist too: those that only ever committed offsets."""

    def find(self, group_id: str) -> Group | None:
        return self.get(group_id)

    def all(self) -> Iterable[Group]:
        return self.values()

    def has_members(self, group_id: str) -> bool:
        group = self.get(group_id)
        return group is not None and not group.is_empty()

    def growth_refusal(self, group_id: str) -> ErrorCode:
        """Why there may be no group with this id: ids and the number of groups have a limit."""
        if len(group_id) > GROUP_ID_CHARS_MAX:
            return ErrorCode.INVALID_GROUP_ID
        full = group_id not in self and len(self) >= GROUPS_MAX
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if full else ErrorCode.NONE
