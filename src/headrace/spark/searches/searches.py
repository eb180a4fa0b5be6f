"""Stored searches on streams: ``hr.match_searches`` and ``hr.check_search``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StringType, StructType

from headrace.errors import UsageError
from headrace.spark.arguments import names_of, no_doubles, plain_columns, without_weights
from headrace.spark.searches.analysis import Field, fields_in
from headrace.spark.searches.compiling import compile_search
from headrace.spark.searches.search_operator import EVENT, KEYLESS, QUERY, SEARCH, TRUNCATES, MatchSearches
from headrace.spark.state.kernel import apply_operator, arrow_schema, key_type, united
from headrace.spark.tables.changelog import is_exact, is_truncation, key_names, lane, row_type
from headrace.spark.tables.joins import both_alike

__all__ = ["check_search", "match_searches"]

KEY = "_key_"


def match_searches(
    rows: DataFrame,
    searches: DataFrame,
    *,
    query: str = "query",
    default: str | Sequence[str] = (),
    fields: Sequence[str] | None = None,
    exact: str | Sequence[str] = (),
    columns: str | Sequence[str] = (),
    prefix: str = "search_",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Each event beside each stored search that it matches: a row for every such pair.

    ``searches``: changes of a table (``hr.changes``) whose rows have the text of a search, or its JSON, in the column
    ``query``. They may come and go while the stream runs: a search counts for the events of the micro-batch in which it
    is read and of all later ones, until it is replaced or deleted. ``default``: the columns that a word without a field
    asks for. ``fields``: the columns that may be searched, without it all of a type that can be. ``exact``: columns of
    text that are one word as they are. The result has the event's columns and, with ``prefix`` before their names, the
    key of the search and those of its ``columns``. A search that cannot be read matches nothing; the progress counts
    such, and those that have to be tested against every event: ``observedMetrics["state match_searches"]``.
    """
    without_weights(rows, MatchSearches.name)
    row, keys, also = row_type(searches), key_names(searches), names_of(columns)
    both_alike(rows, searches, MatchSearches.name)
    _check_columns(row, query, also)
    searched = _searched(rows, fields, names_of(exact), names_of(default))
    names = [prefix + each for each in (*keys, *also)]
    no_doubles([*rows.columns, *names])
    key_columns = {each: f"{KEY}{number}" for number, each in enumerate(keys)}
    tagged = united(
        {EVENT: _events(rows, searches, key_columns), SEARCH: _changes(searches, key_columns, query, also)},
        [*key_columns.values(), KEYLESS, TRUNCATES],
    )
    types = arrow_schema(tagged.schema)
    operator = MatchSearches(
        events=types.field(EVENT).type.field("row").type,
        keys=key_type(tagged, list(key_columns.values())),
        row=types.field(SEARCH).type.field("row").type,
        names=tuple(names),
        fields=tuple(searched),
        exact=tuple(names_of(exact)),
        defaults=tuple(names_of(default)),
    )
    return apply_operator(
        tagged, operator, keys=list(key_columns.values()), buckets=buckets, name=name or operator.name
    )


def check_search(
    search: str | Mapping[str, Any],
    rows: DataFrame | StructType,
    *,
    default: str | Sequence[str] = (),
    fields: Sequence[str] | None = None,
    exact: str | Sequence[str] = (),
) -> None:
    """Raise an error that points at the character, if ``match_searches`` with these arguments could not read this
    search. For a program that registers searches, so that a mistake is shown to the one who made it."""
    compile_search(search, _searched(rows, fields, names_of(exact), names_of(default)), names_of(default))


def _searched(
    rows: DataFrame | StructType, fields: Sequence[str] | None, exact: list[str], default: list[str]
) -> dict[str, Field]:
    schema: pa.Schema = arrow_schema(rows if isinstance(rows, StructType) else rows.schema)
    found = fields_in(schema, exact, fields)
    for each in default:
        if each not in found or found[each].is_numeric:
            texts = [name for name, field in found.items() if not field.is_numeric]
            raise UsageError(
                f"default={each!r} is no column of text that can be searched",
                f"such columns: {', '.join(texts) or 'none'}",
            )
    if not found:
        raise UsageError("there is no column that could be searched", f"the columns are {', '.join(schema.names)}")
    return found


def _check_columns(row: StructType, query: str, columns: Sequence[str]) -> None:
    for each in (query, *columns):
        if each not in row.fieldNames():
            raise UsageError(
                f"the table of searches has no column {each!r}", f"its columns are {', '.join(row.fieldNames())}"
            )
    if not isinstance(row[query].dataType, StringType):
        raise UsageError(
            f"query={query!r} is {row[query].dataType.simpleString()}, and a search is text", "F.to_json(…) makes text"
        )


def _events(rows: DataFrame, searches: DataFrame, keys: Mapping[str, str]) -> DataFrame:
    kinds = searches.schema["key"].dataType
    assert isinstance(kinds, StructType), kinds
    nothing = [F.lit(None).cast(kinds[each].dataType).alias(column) for each, column in keys.items()]
    whole = F.struct(*plain_columns(rows.columns)).alias("row")
    return rows.select(*nothing, F.lit(True).alias(KEYLESS), F.lit(False).alias(TRUNCATES), whole)


def _changes(searches: DataFrame, keys: Mapping[str, str], query: str, columns: Sequence[str]) -> DataFrame:
    exact = is_exact(searches)
    wanted = {QUERY: query, **{each: each for each in columns}}
    row = F.struct(*[F.col(f"after.`{each}`").alias(name) for name, each in wanted.items()])
    return searches.select(
        *[F.col(f"key.`{each}`").alias(column) for each, column in keys.items()],
        F.lit(False).alias(KEYLESS),
        is_truncation().alias(TRUNCATES),
        (F.lit(0).cast("long") if exact else F.col("position")).alias("position"),
        (F.lit(0).cast("long") if exact else lane(searches)).alias("lane"),
        F.when(F.col("after").isNotNull(), row).alias("row"),
    )
