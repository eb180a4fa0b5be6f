"""Many byte strings that have most of their bytes in common: what a table's rows are as keys and values of records.

A value of 700 bytes differs from its neighbour in a few dozen of them. So a ``ByteColumn`` holds its strings as parts:
bytes that all of them have, and columns with a part for each. The strings are put together only once, in the batch
that goes onto the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import TypeAlias

__all__ = ["ByteColumn", "Part", "interleaved"]

Part: TypeAlias = bytes | Sequence[bytes]
"""What all strings have at one place, or what each of them has."""


class ByteColumn:
    """``count`` byte strings, each the concatenation of its parts."""

    __slots__ = ("count", "lengths", "parts")

    def __init__(self, parts: Sequence[Part], count: int, lengths: list[int] | None = None) -> None:
        self.parts = parts
        self.count = count
        self.lengths = _lengths(parts, count) if lengths is None else lengths

    def __getitem__(self, place: int) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part[place] for part in self.parts])

    def slice(self, first: int, end: int) -> ByteColumn:
        """The strings from ``first`` up to ``end``."""
        parts = [part if isinstance(part, bytes) else part[first:end] for part in self.parts]
        lengths = self.lengths[first:end]
        return ByteColumn(parts, len(lengths), lengths)

    def strings(self) -> list[bytes]:
        return [self[place] for place in range(self.count)]


def _lengths(parts: Sequence[Part], count: int) -> list[int]:
    """Columns whose parts are all of one length, as numbers often are, count like constants."""
    fixed = 0
    lengths: list[int] | None = None
    for part in parts:
        if isinstance(part, bytes):
            fixed += len(part)
            continue
        each = list(map(len, part))
        assert len(each) == count, "every column has a part for each string"
        if len(set(each)) == 1:
            fixed += each[0]
        else:
            lengths = each if lengths is None else list(map(add, lengths, each))
    return [fixed] * count if lengths is None else [fixed + each for each in lengths]


def interleaved(parts: Sequence[Part], count: int) -> bytes:
    """The first string, the second, and so on: what ``strings`` gives, joined, in one pass."""
    row: list[bytes] = [part if isinstance(part, bytes) else b"" for part in parts]
    flat, width = row * count, len(row)
    for place, part in enumerate(parts):
        if not isinstance(part, bytes):
            flat[place::width] = part
    return b"".join(flat)
