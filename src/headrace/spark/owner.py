"""Who runs a pipeline, in words that help to find the process.

Fences in targets and locks of checkpoints carry the same text, so a run that is refused can say who is in its way.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

__all__ = ["PipelineRun", "owner_text"]

HOST_CHARACTERS_MAX = 100


def owner_text() -> str:
    """This process, and a number that no other run has."""
    host = socket.gethostname()[:HOST_CHARACTERS_MAX]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {host} since {now}, run {uuid.uuid4().hex[:12]}"


@dataclass(slots=True)
class PipelineRun:
    """One run of a pipeline, over all restarts of its query within this process.

    Only the first batch of a run takes a target over. A query that is started again after a failure does not: another
    run may have taken over meanwhile, and two drivers would take over from each other for ever.
    """

    pipeline: str = ""
    starts_over: bool = False
    owner: str = field(default_factory=owner_text)
    has_written: bool = False
    dead_letters: int = 0
    """Rows that the target refused since this process began; all targets together."""
    part_of: PipelineRun | None = None

    def beside_others(self) -> PipelineRun:
        """The same run for one of several targets: whether it has written is known for each of them."""
        return replace(self, part_of=self)

    def refused(self, rows: int) -> None:
        self.dead_letters += rows
        if self.part_of is not None:
            self.part_of.refused(rows)
