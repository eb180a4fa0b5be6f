"""Directories in ``<data>/topics`` that belong to no topic.

The rows of the journal say which topics there are. When rows are lost, the records of their topics are still in their
directories, but nobody can read them. Such a directory is never changed by the broker: it is reported at every start
and by ``headrace log verify``, and ``headrace log repair --adopt`` makes a topic of it. A directory with the file
``new`` is not meant: its topic was never confirmed to anybody, and the next start removes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.broker.limits import PARTITIONS_PER_TOPIC_MAX
from headrace.broker.topics import deleted_group, group_name, metric_name
from headrace.log.findings import Finding, Severity
from headrace.log.segment import segment_bases, segment_name
from headrace.log.space import SPACES, TOPICS
from headrace.ports import Disk

__all__ = ["Unclaimed", "find_unclaimed"]

_PARTITION = re.compile(r"0|[1-9][0-9]*")
"""The names of partitions. A copy that somebody has called ``20261101`` or ``02`` is none: it would give the topic
twenty million partitions, or be looked for elsewhere."""

Rows = Mapping[str, Mapping[str, Any]]
"""The tables of the journal by name."""


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A directory with partitions that no row names."""

    path: str
    """The directory of the topic."""
    group: str
    topic: str
    """The name that it gets when it is adopted."""
    is_taken: bool
    """The name in the directory is that of another topic, so it gets another one."""
    numbers: tuple[int, ...]
    """The partitions that no row names."""
    partitions: int
    """How many partitions the topic has when they are adopted."""
    size_bytes: int
    """Of the records of these partitions."""
    config: Mapping[str, str]
    """The settings of the topic, where it has a row."""

    @property
    def topic_id(self) -> str:
        return self.group.rpartition("~")[2]

    def finding(self, directory: str) -> Finding:
        """What verify, repair and the start of a broker say about it."""
        whose = f"the topic '{self.topic}'" if not self.is_taken else f"a topic '{self.topic}', as its name is taken"
        numbers = ", ".join(map(str, self.numbers[:5])) + (", …" if len(self.numbers) > 5 else "")
        message = (
            f"partitions {numbers} with {self.size_bytes} bytes of records belong to no topic, and nobody can read "
            f"them: with the broker stopped, 'headrace log repair {directory} --adopt --yes' makes them {whose}"
        )
        return Finding(Severity.ERROR if self.size_bytes else Severity.WARNING, self.path, message)


def find_unclaimed(disk: Disk, directory: str, rows: Rows) -> list[Unclaimed]:
    """The directories below ``directory`` that hold partitions which no row names, by their names."""
    home = f"{directory}/{TOPICS}"
    topics = rows.get("topics", {})
    claimed = {group_name(name, bytes.fromhex(row["id"])): name for name, row in topics.items()}
    deleted = {deleted_group(key) for key in rows.get("deleted", {})}
    taken = {metric_name(name) for name in topics}
    found = []
    for group in sorted(disk.listdir(home)) if disk.is_directory(home) else []:
        if not SPACES[TOPICS].fullmatch(group) or group in deleted or not disk.is_directory(f"{home}/{group}"):
            continue
        owner = claimed.get(group)
        each = _unclaimed(disk, f"{home}/{group}", owner, topics[owner] if owner is not None else None, taken)
        if each is not None:
            taken.add(metric_name(each.topic))
            found.append(each)
    return found


def _unclaimed(
    disk: Disk, path: str, owner: str | None, row: Mapping[str, Any] | None, taken: set[str]
) -> Unclaimed | None:
    names = disk.listdir(path)
    numbers = sorted(int(name) for name in names if _PARTITION.fullmatch(name))
    first = 0 if row is None else row["partitions"]
    numbers = [number for number in numbers if first <= number < PARTITIONS_PER_TOPIC_MAX]
    if not numbers or "new" in names:
        return None
    group = path.rpartition("/")[2]
    called = group.rpartition("~")[0]
    name = owner or _free_name(called, taken)
    return Unclaimed(
        path=path,
        group=group,
        topic=name,
        is_taken=owner is None and name != called,
        numbers=tuple(numbers),
        partitions=numbers[-1] + 1,
        size_bytes=sum(_record_bytes(disk, f"{path}/{number}") for number in numbers),
        config=row["config"] if row is not None else {},
    )


def _free_name(name: str, taken: set[str]) -> str:
    """``orders``, or ``orders-recovered`` when there is a topic of that name."""
    free, count = name, 1
    while metric_name(free) in taken:
        free = f"{name[:180]}-recovered" + (f"-{count}" if count > 1 else "")
        count += 1
    return free


def _record_bytes(disk: Disk, directory: str) -> int:
    files = disk.list_files(directory)
    return sum(files[f"{segment_name(base)}.log"] for base in segment_bases(files))
