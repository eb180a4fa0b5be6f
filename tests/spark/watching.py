"""A watcher of pipelines that remembers what it was told."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.spark.progress import Snapshot


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last: Sequence[Snapshot] = ()
        self.notes: set[str] = set()

    def say(self, line: str) -> None:
        self.lines.append(line)

    def progressed(self, snapshot: Snapshot) -> None:
        """What is shown is enough."""

    def show(self, snapshots: Sequence[Snapshot]) -> None:
        self.last = snapshots
        self.notes |= {each.note for each in snapshots}
