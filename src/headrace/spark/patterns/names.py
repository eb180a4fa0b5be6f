"""Names of columns that users gave: found without regard to case, and refused where two columns would have one name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.errors import UsageError

__all__ = ["hashable", "refuse_reserved", "refuse_twice", "resolved"]

RESERVED = re.compile(r"_v\d+|_a\d+|_matches(_\d+)?|_given_up|_place|_all|_start_place|_end_place", re.IGNORECASE)
"""Columns that are there between the rows and the matches."""


def resolved(name: str, columns: Sequence[str], what: str) -> str:
    """The column as the rows call it: SQL does not distinguish case."""
    found = [each for each in columns if each == name] or [each for each in columns if each.lower() == name.lower()]
    if len(found) != 1:
        raise UsageError(f"there is no column {name!r} {what}", f"the columns are {', '.join(columns)}")
    return found[0]


def refuse_reserved(names: Iterable[str], also: Iterable[str]) -> None:
    """``also``: what the result says of every match."""
    taken = {each.lower() for each in also}
    for name in names:
        if RESERVED.fullmatch(name) or name.lower() in taken:
            raise UsageError(
                f"a column called {name!r} would be mixed up with what is said of matches",
                f"rows.withColumnRenamed({name!r}, …) gives it another name",
            )


def refuse_twice(names: Sequence[str]) -> None:
    """The result has each name once."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise UsageError(f"the result would have two columns called {name!r}", "give the measure another name")
        seen.add(name.lower())


def hashable(kind: DataType) -> bool:
    """Whether Spark can hash values of the type: it hashes no maps, wherever they are."""
    if isinstance(kind, StructType):
        return all(hashable(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return hashable(kind.elementType)
    return not isinstance(kind, MapType)
