"""Columns that users gave: found by name without regard to case, refused where two would have one name, and hashed."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.errors import UsageError

__all__ = ["hashable", "null_places", "refuse_reserved", "refuse_twice", "resolved"]

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


def null_places(columns: Sequence[tuple[Column, DataType]]) -> list[Column]:
    """To be hashed beside the columns: Spark's hash passes over nulls, so (1, null) and (null, 1) would be the same.
    Null where the columns have no null, so that the hash is then that of the columns alone."""
    flags = [flag for column, kind in columns for flag in _null_flags(column, kind)]
    found = [F.when(functools.reduce(operator.or_, flags), F.array(*flags))] if flags else []
    lists = [column for column, kind in columns if isinstance(kind, ArrayType)]
    return found + [F.when(F.exists(each, F.isnull), F.transform(each, F.isnull)) for each in lists]


def _null_flags(column: Column, kind: DataType) -> Iterator[Column]:
    yield F.isnull(column)
    for field in kind if isinstance(kind, StructType) else ():
        yield from _null_flags(column[field.name], field.dataType)
