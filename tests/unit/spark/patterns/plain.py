"""Row patterns in plain loops, from the words of the standard: what the matcher is compared with.

Every way to match a node from a row on is listed, the preferred one first. The first is SQL's match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.spark.patterns.syntax import Anchor, Choice, Exclusion, Node, Repeat, Sequence, Variable

Path = tuple[tuple[int, str], ...]
Test = Callable[[str, int, Path], bool]
"""Whether a variable takes a row, after the rows of a path."""


def ways(node: Node, at: int, path: Path, count: int, test: Test) -> Iterator[tuple[int, Path]]:
    match node:
        case Variable(name=name):
            if at < count and test(name, at, path):
                yield at + 1, (*path, (at, name))
        case Sequence(parts=parts):
            if not parts:
                yield at, path
                return
            for after, longer in ways(parts[0], at, path, count, test):
                yield from ways(Sequence(parts[1:]), after, longer, count, test)
        case Choice(options=options):
            for each in options:
                yield from ways(each, at, path, count, test)
        case Exclusion(part=part):
            yield from ways(part, at, path, count, test)
        case Anchor(at=where):
            if at == (0 if where == "start" else count):
                yield at, path
        case Repeat(part=part, least=least, most=most, greedy=greedy):
            yield from loop(part, least, most, greedy, at, path, count, test)


def loop(
    part: Node, least: int, most: int | None, greedy: bool, at: int, path: Path, count: int, test: Test
) -> Iterator[tuple[int, Path]]:
    def again() -> Iterator[tuple[int, Path]]:
        if most == 0:
            return
        for after, longer in ways(part, at, path, count, test):
            if after == at and least <= 0 and most is None:
                yield after, longer  # a round without a row ends the loop
                continue
            yield from loop(part, least - 1, None if most is None else most - 1, greedy, after, longer, count, test)

    if least > 0:
        yield from again()
    elif greedy:
        yield from again()
        yield at, path
    else:
        yield at, path
        yield from again()


def matches(
    node: Node, count: int, test: Test, skip: Callable[[int, int, Path], int] | None = None
) -> list[tuple[int, int, Path]]:
    """The matches of a partition of ``count`` rows: first row, end, and which variable took which row.

    ``skip``: from where the next may begin, given the first row, the end and the rows. Past the last row without.
    """
    found: list[tuple[int, int, Path]] = []
    at = 0
    while at < count:
        best: Any = next(ways(node, at, (), count, test), None)
        if best is None:
            at += 1
            continue
        end, path = best
        found.append((at, end, path))
        at = max(end if skip is None else skip(at, end, path), at + 1)
    return found
