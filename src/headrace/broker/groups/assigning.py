"""Where assignors run: small assignments at once, large ones on a thread.

An assignor is a pure function. With 10,000 partitions, or hundreds of members with different subscriptions, it takes a
tenth of a second and more. A heartbeat that needs such an assignment raises ``AssignmentWanted`` before it has changed
anything. Its handler lets a thread compute, and then repeats the heartbeat. If the members or topics have changed
meanwhile, the inputs differ from those that were computed for, and it is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.broker.groups.assignors import ASSIGNORS, Counts, Subscribers
from headrace.broker.groups.consumer import Target

__all__ = ["AssignmentInputs", "AssignmentWanted", "Assignments"]

AT_ONCE_MAX = 1000
"""Partitions, and ten times the members, of an assignment that is computed on the loop."""


class AssignmentInputs(NamedTuple):
    assignor: str
    members: Subscribers
    counts: Counts

    @property
    def size(self) -> int:
        return sum(self.counts.values()) + 10 * len(self.members)

    def compute(self) -> dict[str, Target]:
        return ASSIGNORS[self.assignor](self.members, self.counts)


class AssignmentWanted(Exception):
    """A large assignment is needed. It never leaves the coordinator."""

    def __init__(self, inputs: AssignmentInputs) -> None:
        super().__init__(f"an assignment of {sum(inputs.counts.values())} partitions is wanted")
        self.inputs = inputs


class Assignments:
    """Computes assignments, or asks for them to be computed."""

    def __init__(self) -> None:
        self._may_ask = False
        self._known: tuple[AssignmentInputs, dict[str, Target]] | None = None

    @contextmanager
    def asking(self, known: tuple[AssignmentInputs, dict[str, Target]] | None) -> Iterator[None]:
        """Within this context, a large assignment that is not ``known`` raises AssignmentWanted."""
        self._may_ask, self._known = True, known
        try:
            yield
        finally:
            self._may_ask, self._known = False, None

    def assign(self, inputs: AssignmentInputs) -> dict[str, Target]:
        """Raises AssignmentWanted, with nothing changed."""
        if self._known is not None and self._known[0] == inputs:
            return self._known[1]
        if self._may_ask and inputs.size > AT_ONCE_MAX:
            raise AssignmentWanted(inputs)
        return inputs.compute()
