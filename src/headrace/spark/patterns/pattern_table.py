"""The patterns of a table that changes, by time: each version counts from one time of the events to another.

A change counts from its time on, or from the watermark, if that is later: what is settled stays as it is. Changes of
one pattern count in the order in which they were written, so a later one counts no earlier. Until the watermark passes
the time at which a version ended, the version is needed for the rows before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.spark.state.bucket import NEVER

__all__ = ["TABLE_TYPE", "Change", "Table", "Version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A text that a pattern has for some time."""

    pattern: str
    number: int
    """Names the version for good."""
    lane: int
    begin_us: int
    end_us: int
    text: str | None
    error: str | None = None

    @property
    def is_open(self) -> bool:
        return self.end_us == NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A pattern gets a text; or is removed; or, without a name, all patterns of the lane are."""

    pattern: str | None
    at_us: int | None
    lane: int
    position: int
    text: str | None
    removed: bool


VERSION_TYPE = pa.struct(
    [
        ("pattern", pa.string()),
        ("number", pa.int64()),
        ("lane", pa.int64()),
        ("begin_us", pa.int64()),
        ("end_us", pa.int64()),
        ("text", pa.string()),
        ("error", pa.string()),
    ]
)
TABLE_TYPE = pa.struct([("next", pa.int64()), ("versions", pa.list_(VERSION_TYPE))])


@dataclass(slots=True)
class Table:
    next: int = 0
    versions: list[Version] = field(default_factory=list)
    refused: int = 0
    """Patterns that were one too many, in the last batch."""
    late: int = 0
    """Changes that came after the watermark had passed their time, in the last batch."""

    @classmethod
    def of(cls, held: dict[str, Any] | None) -> Table:
        return cls() if held is None else cls(held["next"], [Version(**each) for each in held["versions"]])

    def as_document(self) -> dict[str, Any]:
        names = [each.name for each in VERSION_TYPE]
        return {
            "next": self.next,
            "versions": [{name: getattr(each, name) for name in names} for each in self.versions],
        }

    def needed(self, before_us: int) -> Table:
        """Without versions that no row asks for any more."""
        return Table(self.next, [each for each in self.versions if each.is_open or each.end_us > before_us])

    def apply(self, changes: Iterable[Change], now_us: int, patterns_max: int) -> None:
        for change in sorted(changes, key=lambda each: (each.lane, each.position)):
            given = now_us if change.at_us is None else change.at_us
            self.late += given < now_us
            if change.pattern is None:
                self._end([each for each in self.versions if each.lane == change.lane], max(given, now_us))
            else:
                self._set(change.pattern, change, max(given, now_us), patterns_max)

    def _set(self, pattern: str, change: Change, at_us: int, patterns_max: int) -> None:
        current = next((each for each in self.versions if each.pattern == pattern and each.is_open), None)
        if current is not None and not change.removed and current.text == change.text:
            return
        last = max((_last(each) for each in self.versions if each.pattern == pattern), default=at_us)
        at_us = max(at_us, last)
        if current is not None:
            self._end([current], at_us)
        if change.removed:
            return
        if sum(each.is_open for each in self.versions) >= patterns_max:
            self.refused += 1
            return
        self.versions.append(
            Version(
                pattern=pattern,
                number=self.next,
                lane=change.lane,
                begin_us=at_us,
                end_us=NEVER,
                text=change.text,
            )
        )
        self.next += 1

    def _end(self, versions: Sequence[Version], at_us: int) -> None:
        """A version that never counted is not kept."""
        ending = {each.number: max(at_us, each.begin_us) for each in versions if each.is_open}
        kept = [each for each in self.versions if ending.get(each.number) != each.begin_us]
        self.versions = [replace(each, end_us=ending[each.number]) if each.number in ending else each for each in kept]


def _last(version: Version) -> int:
    """The time of the last change of a version."""
    return version.begin_us if version.is_open else version.end_us
