"""Named spaces of logs: ``<data>/<space>/<group>/<number>/``.

A *group* is what is created and deleted as one: a topic, a queue, the journal. Its logs are numbered from 0. Each space
has a rule for the names of its groups, so that what is not ours is recognised.

Creating logs takes three steps, so that neither a crash nor an error of the disk leaves half of them:

1. ``make`` creates directories with empty segments, and first the file ``new`` in the group's directory. It syncs them.
2. The owner makes a durable note that the logs exist (the broker: a row of its journal).
3. ``add_made`` makes them logs in memory, and ``confirm`` removes the file ``new``.

At a start ``discard_unconfirmed`` removes logs that the owner has no note of, in groups that have the file ``new``:
they were never promised to anybody. Logs without a note in other groups are somebody's data, and are not touched.

Deleting a group takes two steps: ``forget`` in memory, then ``move_deleted`` renames it to ``<data>/deleted/``, from
where it is removed bit by bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog
from headrace.log.segment import segment_name

if TYPE_CHECKING:
    from headrace.log.store import LogStore

__all__ = ["GROUP_CHARACTERS_MAX", "QUEUES", "SPACES", "STATE", "TOPICS", "LogSpace", "log_name"]

TOPICS: Final = "topics"
STATE: Final = "state"
QUEUES: Final = "queues"

SPACES: Final[Mapping[str, re.Pattern[str]]] = {
    TOPICS: re.compile(r"[A-Za-z0-9._-]{1,200}~[0-9a-f]{32}"),
    STATE: re.compile(r"journal"),
    QUEUES: re.compile(r"[0-9a-f]{32}"),
}
"""The spaces there are, and what their groups are called."""

GROUP_CHARACTERS_MAX: Final = 200
"""What a name may take of a directory's 255 bytes, so that an id fits too. Longer ones are cut; the id tells them
apart."""


_NEW = "new"
_SYNC_TOGETHER_ABOVE = 3
"""From so many directories on, one sync of the filesystem is cheaper than one each."""


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

    # Creating. These methods block and run on another thread, unless they say that they run on the owner's.

    def make(self, wanted: Mapping[str, range]) -> dict[str, OSError]:
        """Make empty logs, group by group, and sync them. Returns the groups that the disk refused; nothing is left of
        those."""
        refused: dict[str, OSError] = {}
        changed = {self.directory}
        for group, numbers in wanted.items():
            assert self.is_group(group), f"{group!r} is not the name of a group in the space {self.name!r}"
            try:
                changed |= self._make(group, numbers)
            except OSError as error:
                refused[group] = error
                self.unmake(group, numbers)
        if len(changed) > _SYNC_TOGETHER_ABOVE:
            self._disk.syncfs(self.directory)
        else:
            for directory in sorted(changed):
                self._disk.sync_dir(directory)
        return refused

    def _make(self, group: str, numbers: range) -> set[str]:
        home = f"{self.directory}/{group}"
        self._disk.mkdir(home)
        self._disk.open(f"{home}/{_NEW}", create=True).close()
        for number in numbers:
            self._disk.mkdir(f"{home}/{number}")
            self._disk.open(f"{home}/{number}/{segment_name(0)}.log", create=True).close()
        return {home, *(f"{home}/{number}" for number in numbers)}

    def unmake(self, group: str, numbers: Iterable[int]) -> None:
        """Remove logs that nobody has used, and their group if it has no others. What the disk does not let go now goes
        at the next start."""
        home = f"{self.directory}/{group}"
        with suppress(OSError):
            for number in numbers:
                self._remove(f"{home}/{number}")
            if not [name for name in self._disk.listdir(home) if name != _NEW]:
                self._remove(home)
            else:
                self._disk.unlink(f"{home}/{_NEW}")

    def _remove(self, directory: str) -> None:
        if self._disk.exists(directory):
            for name in self._disk.listdir(directory):
                self._disk.unlink(f"{directory}/{name}")
            self._disk.rmdir(directory)

    def add_made(self, group: str, number: int, config: LogConfig) -> PartitionLog:
        """The log that ``make`` has made. It touches no disk and runs on the owner's thread."""
        return self._store.add_made(log_name(self.name, group, number), config)

    def confirm(self, groups: Iterable[str]) -> None:
        """The owner has a durable note of all logs of these groups. Nothing is synced: the note decides."""
        for group in groups:
            with suppress(OSError):  # else the next start does it
                self._disk.unlink(f"{self.directory}/{group}/{_NEW}")

    def discard_unconfirmed(self, claimed: Mapping[str, int]) -> None:
        """At a start: remove what a crash has left of logs that nobody claims. ``claimed`` has the number of logs of
        each group."""
        for group in self.groups_on_disk():
            home = f"{self.directory}/{group}"
            names = self._disk.listdir(home)
            if _NEW in names or not names:
                numbers = [int(name) for name in names if name.isdecimal()]
                self.unmake(group, [number for number in numbers if number >= claimed.get(group, 0)])

    # Deleting.

    def forget(self, group: str) -> None:
        """The group is being deleted; ``move_deleted`` follows."""
        for _ in self.forget_in_steps(group):
            pass

    def forget_in_steps(self, group: str) -> Iterator[None]:
        """The same in steps: a group may have thousands of logs."""
        return self._store.forget_group(f"{self.name}/{group}")

    def move_deleted(self, group: str) -> None:
        """Take the group out of the tree in one durable step; ``LogStore.remove_deleted`` frees the space. It syncs, so
        it runs on another thread than the owner's."""
        path = f"{self.directory}/{group}"
        if self._disk.exists(path):
            deleted = f"{self._store.directory}/deleted"
            self._disk.rename(path, f"{deleted}/{self.name}.{group}")
            self._disk.sync_dir(self.directory)
            self._disk.sync_dir(deleted)
