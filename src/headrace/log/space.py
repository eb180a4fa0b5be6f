"""Named spaces of logs: ``<data>/<space>/<group>/<number>/``.

A *group* is what is created and deleted as one: a topic, a queue, the journal. Its logs are numbered from 0. Each space
has a rule for the names of its groups, so that what is not ours is recognised.

Deleting a group takes two steps: ``forget`` in memory, then ``move_deleted`` renames it to ``<data>/deleted/``, from
where it is removed bit by bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog

if TYPE_CHECKING:
    from headrace.log.store import LogStore

__all__ = ["GROUP_CHARACTERS_MAX", "SPACES", "STATE", "TOPICS", "LogSpace", "log_name"]

TOPICS: Final = "topics"
STATE: Final = "state"

SPACES: Final[Mapping[str, re.Pattern[str]]] = {
    TOPICS: re.compile(r"[A-Za-z0-9._-]{1,200}~[0-9a-f]{32}"),
    STATE: re.compile(r"journal"),
}
"""The spaces there are, and what their groups are called."""

GROUP_CHARACTERS_MAX: Final = 200
"""What a name may take of a directory's 255 bytes, so that an id fits too. Longer ones are cut; the id tells them
apart."""


def log_name(space: str, group: str, number: int) -> str:
    """What a log is called in the checkpoint: its path below the data directory."""
    return f"{space}/{group}/{number}"


class LogSpace:
    """One space of a store: ``store.space("topics")``."""

    def __init__(self, store: LogStore, name: str) -> None:
        self._store = store
        self._disk = store.disk
        self.name = name
        self.directory = f"{store.directory}/{name}"
        self._rule = SPACES[name]

    def path(self, group: str, number: int) -> str:
        return f"{self.directory}/{group}/{number}"

    def is_group(self, name: str) -> bool:
        return self._rule.fullmatch(name) is not None

    def groups_on_disk(self) -> list[str]:
        return [name for name in self._disk.listdir(self.directory) if self.is_group(name)]

    def strangers(self) -> list[str]:
        """The paths of what is not a group of this space."""
        return [f"{self.directory}/{name}" for name in self._disk.listdir(self.directory) if not self.is_group(name)]

    def open_log(self, group: str, number: int, config: LogConfig, *, sync: bool = True) -> PartitionLog:
        """Open a log that is there, or create it. With ``sync=False``, call ``LogStore.sync_recovered`` after the last
        one: one sync then serves all of them."""
        assert self.is_group(group), f"{group!r} is not the name of a group in the space {self.name!r}"
        return self._store.open_log(log_name(self.name, group, number), config, sync=sync)

    def forget(self, group: str) -> None:
        """The group is being deleted; ``move_deleted`` follows."""
        self._store.forget_under(f"{self.name}/{group}/")

    def move_deleted(self, group: str) -> None:
        """Take the group out of the tree in one durable step; ``LogStore.remove_deleted`` frees the space. It syncs, so
        it runs on another thread than the owner's."""
        path = f"{self.directory}/{group}"
        if self._disk.exists(path):
            deleted = f"{self._store.directory}/deleted"
            self._disk.rename(path, f"{deleted}/{self.name}.{group}")
            self._disk.sync_dir(self.directory)
            self._disk.sync_dir(deleted)
