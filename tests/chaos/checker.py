"""Judges a history of what clients saw while the broker was being killed. Pure functions over ``operations``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.chaos import checks_positions, checks_records, checks_topics, checks_transactions
from tests.chaos.operations import History, Operation

__all__ = ["CHECKS", "Problem", "check"]

PROBLEMS_PER_CHECK_MAX = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """A property that does not hold, and where."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


CHECKS: dict[str, Callable[[History], Iterator[str]]] = {
    "altered value": checks_records.checksums,
    "altered key or header": checks_records.odd_attributes,
    "phantom": checks_records.phantoms,
    "lost": checks_records.lost,
    "duplicate": checks_records.duplicates,
    "out of order": checks_records.order,
    "offset changed": checks_records.stable_offsets,
    "read and gone": checks_records.vanished,
    "skipped": checks_records.skipped,
    "uncommitted read": checks_transactions.uncommitted_reads,
    "half a transaction": checks_transactions.half_transactions,
    "transformed not exactly once": checks_transactions.transformations,
    "committed offset went back": checks_positions.receding_offsets,
    "end went back": checks_positions.receding_ends,
    "start went back": checks_positions.receding_starts,
    "two owners": checks_positions.two_owners,
    "deleted records came back": checks_topics.deleted_records,
    "older value of a key": checks_topics.older_values,
    "key went back": checks_topics.keys_that_go_back,
    "deleted topic came back": checks_topics.earlier_lives,
    "lost of a new topic": checks_topics.last_life,
    "broken harness": checks_records.harness,
}


NEED_ALL = frozenset(
    {
        "phantom",
        "lost",
        "read and gone",
        "skipped",
        "half a transaction",
        "transformed not exactly once",
        "lost of a new topic",
    }
)
"""Checks that make sense only if everybody came to an end and everything was drained."""


def check(operations: Iterable[Operation], *, complete: bool = True) -> list[Problem]:
    """Everything that is wrong, the first few of each kind. Not ``complete``: the run broke off."""
    history = History.of(operations)
    problems: list[Problem] = []
    for kind, property_ in CHECKS.items():
        if kind in NEED_ALL and not complete:
            continue
        for found, detail in enumerate(property_(history)):
            if found == PROBLEMS_PER_CHECK_MAX:
                problems.append(Problem(kind, "… and more"))
                break
            problems.append(Problem(kind, detail))
    return problems
