"""Tables made of tables, kept up to date: ``hr.view``, ``hr.join_tables``, ``hr.deltas``.

All of them take changes (``hr.changes``) and give exact changes: at most one per key and batch, with the row before and
after. So one can follow another in a query, and their results can be written as a compacted topic (``hr.as_records``)
or as a table (``hr.sinks.sql``).

What needs no state is plain Spark: ``hr.deltas`` takes changes apart into rows with a weight, which can be filtered and
computed like any others, and grouped by a view.

No watermark is needed: a change counts when it comes. On a bounded frame all changes are one batch, so the result is
the rows of the view, each as an insert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StructType

from headrace.changes import WEIGHT
from headrace.errors import UsageError
from headrace.spark.aggregates.expressions import requested
from headrace.spark.aggregates.retracting import Average, Count, Distinct, Maximum, Minimum, Sum, Top, Value
from headrace.spark.aggregates.totals import wide
from headrace.spark.arguments import names_of, no_doubles
from headrace.spark.state.kernel import all_nullable, apply_operator, arrow_schema, free_name, key_type, united
from headrace.spark.tables.changelog import (
    CHANGE,
    is_exact,
    is_truncation,
    key_names,
    lane,
    row_type,
    without_truncations,
)
from headrace.spark.tables.grouped import Grouped
from headrace.spark.tables.joins import PREFIX_HINT, On, both_alike, pairs_of, same_types
from headrace.spark.tables.view_operators import Consolidated, JoinHow, JoinSide, Table, TableJoin

__all__ = ["deltas", "join_tables", "view"]


def view(
    rows: DataFrame,
    keys: str | Sequence[str] | None = None,
    values: Mapping[str, Column] | None = None,
    *,
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Group and aggregate changes, as changes; without ``keys`` the table itself, by its key.

    ``rows``: changes, or rows with weights (``hr.deltas``). ``keys``: the grouping columns. ``values``: aggregates by
    the name of the result, ``{"orders": F.count("*"), "revenue": F.sum(F.col("price") * F.col("quantity"))}``; also
    ``F.max_by(F.struct("id", "text"), "at", 10)``, the first rows in an order. A group without rows is deleted.
    """
    if keys is None:
        if values:
            raise UsageError("values are computed per group, and there are no keys", 'for example keys="country"')
        return _exact(rows, buckets, name)
    names = names_of(keys)
    parts = rows if WEIGHT in rows.columns else deltas(rows, buckets=buckets, name=name and f"{name}: rows")
    group = key_type(parts, names)
    wanted = requested(parts, values, retraction=True)
    made = tuple(_value(wanted.rows, each, given) for each, given in wanted.requests.items())
    no_doubles([*names, *(each.name for each in made)])
    needed = dict.fromkeys([*names, *(column for each in made for column in _columns(each))])
    tagged = wanted.rows.select(*[_field(each) for each in needed], _field(WEIGHT).cast("long").alias(WEIGHT))
    found = apply_operator(tagged, Grouped(group, made), keys=names, buckets=buckets, name=name)
    return found.select(*CHANGE)


def deltas(changes: DataFrame, *, buckets: int | None = None, name: str | None = None) -> DataFrame:
    """Changes as rows with a ``_weight``: −1 for a row that went, +1 for a row that came; an update gives both.

    Row-wise operations may follow (``where``, ``withColumn``, ``select``) as long as they keep the weight. The sum of
    weights is the number of rows.
    """
    row = row_type(changes)
    if WEIGHT in row.fieldNames():
        raise UsageError(f"a row has a column {WEIGHT!r} itself", "rename it before")
    exact = _exact(changes, buckets, name)
    both = F.array(
        F.struct(F.lit(-1).alias("weight"), F.col("before").alias("row")),
        F.struct(F.lit(1).alias("weight"), F.col("after").alias("row")),
    )
    parts = exact.select("key", F.explode(both).alias("part")).where("part.row is not null")
    columns = [F.col(f"part.row.`{each.name}`").alias(each.name) for each in row]
    return parts.select(*columns, F.col("part.weight").alias(WEIGHT))


def _exact(changes: DataFrame, buckets: int | None, name: str | None) -> DataFrame:
    """The same changes with the rows that they replace, which takes holding the table."""
    row, names = row_type(changes), key_names(changes)
    if is_exact(changes):
        why = "changes without a position are exact and name every row; keep the columns of hr.changes"
        return without_truncations(changes, why).select(*CHANGE)
    tagged = changes.select(
        *[F.col(f"key.`{each}`").alias(each) for each in names],
        is_truncation().alias("_truncates"),
        lane(changes).alias("_lane"),
        F.col("position").alias("_position"),
        F.col("after").cast(all_nullable(row)).alias("_row"),
    )
    operator = Table(key_type(tagged, names), arrow_schema(tagged.schema).field("_row").type)
    return apply_operator(tagged, operator, keys=names, buckets=buckets, name=name).select(*CHANGE)


# ---- values of groups ----------------------------------------------------------------------------------------------


def _value(rows: DataFrame, name: str, given: tuple[Any, ...]) -> Value:
    function, *arguments = given
    if function == "top":
        return _top(rows, name, *arguments)
    if not arguments:
        return Count(name)
    (column,) = arguments
    kind = _atomic(rows, name, column)
    if function == "count":
        return Count(name, column)
    if function in ("sum", "avg"):
        number = _number(name, column, kind)
        return Sum(name, column, number) if function == "sum" else Average(name, column, number)
    made = {"min": Minimum, "max": Maximum, "distinct": Distinct}[function]
    return made(name, column, kind)


def _top(rows: DataFrame, name: str, count: int, by: list[str], largest: bool, shown: list[str]) -> Top:
    if count < 1:
        raise UsageError(f"{name}: the first {count} rows are none", "at least 1")
    others = [each for each in shown if each not in by]
    orders = (*("descending" if largest else "ascending" for _ in by), *("ascending" for _ in others))
    kinds = tuple((each, _atomic(rows, name, each)) for each in [*dict.fromkeys(by), *others])
    return Top(name, count, kinds, orders, tuple(shown))


def _atomic(rows: DataFrame, name: str, column: str) -> pa.DataType:
    if column not in rows.columns:
        known = [each for each in rows.columns if each != WEIGHT]
        raise UsageError(f"{name}: there is no column {column!r}", f"the columns are {', '.join(known)}")
    found = arrow_schema(rows.schema).field(column).type
    if pa.types.is_nested(found):
        raise UsageError(f"{name}: {column!r} is {rows.schema[column].dataType.simpleString()}", "take a part of it")
    return found


def _number(name: str, column: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return wide(kind)
    raise UsageError(f"{name}: {column!r} is {kind} and cannot be added up", "cast it to a number")


def _columns(value: Value) -> list[str]:
    if isinstance(value, Top):
        return [name for name, _ in value.columns]
    column = getattr(value, "column", None)
    return [column] if column else []


# ---- two tables ----------------------------------------------------------------------------------------------------


def join_tables(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    how: JoinHow = "inner",
    prefix: str = "",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join two changing tables and keep the result up to date: changes of both in, changes of the joined rows out.

    ``on`` names columns of the rows, the same on both sides or left to right. If they are the right table's key (a
    foreign key), the result has the left table's key, and a row that gets another partner is an update; otherwise its
    key is that of both. ``how``: inner, left or full; a row without a partner has nulls. A null equals nothing.
    ``prefix``: for the names of the right table's columns; join columns appear once, under the left name.
    """
    if how not in ("inner", "left", "full"):
        raise UsageError(f"how={how!r} is none of 'inner', 'left', 'full'")
    pairs = pairs_of(on)
    rows = (row_type(left), row_type(right))
    both_alike(left, right, TableJoin.name)
    same_types(*rows, pairs)
    renamed = {other: mine for mine, other in pairs.items()}
    left_key, right_key = key_names(left), [renamed.get(each, prefix + each) for each in key_names(right)]
    foreign = set(key_names(right)) == set(pairs.values()) and how != "full"
    shared = [each for each in left_key if each in pairs and pairs[each] in key_names(right)]
    name = name or free_name(f"{TableJoin.name}({', '.join(pairs)})", left, right)
    tagged = _union(_exact(left, buckets, f"{name}: left"), _exact(right, buckets, f"{name}: right"), pairs)
    types = arrow_schema(tagged.schema)
    left_side = _side(
        "left", types, {each: each for each in left_key if each not in shared}, _taken(rows[0], pairs, "")
    )
    theirs = {} if foreign else dict(zip(key_names(right), right_key, strict=True))
    right_side = _side(
        "right", types, {old: new for old, new in theirs.items() if new not in shared}, _taken(rows[1], renamed, prefix)
    )
    key_on = tuple((each, each) for each in shared)
    row_on = tuple((each, each) for each in pairs)
    operator = TableJoin(key_type(tagged, list(pairs)), left_side, right_side, how, key_on, row_on)
    no_doubles([each.name for each in operator.row_type], PREFIX_HINT)
    no_doubles([each.name for each in operator.key_type], PREFIX_HINT)
    joined = apply_operator(tagged, operator, keys=list(pairs), buckets=buckets, name=name)
    keys = [each.name for each in operator.key_type]
    flat = joined.select(
        *[F.col(f"key.`{each}`").alias(each) for each in keys],
        F.col("before").alias("_before"),
        F.col("after").alias("_after"),
    )
    last = Consolidated(key_type(flat, keys), arrow_schema(flat.schema).field("_after").type)
    return apply_operator(flat, last, keys=keys, buckets=buckets, name=f"{name}: by key").select(*CHANGE)


def _taken(row: StructType, without: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {each.name: prefix + each.name for each in row if each.name not in without}


def _side(name: str, types: pa.Schema, key: Mapping[str, str], row: Mapping[str, str]) -> JoinSide:
    entry = types.field(f"_{name}").type
    return JoinSide(name, entry.field("key").type, entry.field("row").type, tuple(key.items()), tuple(row.items()))


def _union(left: DataFrame, right: DataFrame, pairs: Mapping[str, str]) -> DataFrame:
    """Both tables' rows with their weights, under the columns of the join."""
    parts = {}
    for side, changes, columns in (("_left", left, pairs.keys()), ("_right", right, pairs.values())):
        weighed = [
            F.struct(F.lit(weight).cast("long").alias("weight"), F.col(when).alias("row"))
            for when, weight in (("before", -1), ("after", 1))
        ]
        exploded = changes.select("key", F.explode(F.array(*weighed)).alias("part")).where("part.row is not null")
        parts[side] = exploded.select(
            *[F.col(f"part.row.`{column}`").alias(mine) for column, mine in zip(columns, pairs, strict=True)],
            F.col("part.weight").alias(WEIGHT),
            F.col("key"),
            F.col("part.row").alias("row"),
        )
    return united(parts, [*pairs, WEIGHT])


def _field(name: str) -> Column:
    return F.col(f"`{name}`")
