"""Columns taken apart: which function of what a user wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column as SqlColumn
from pyspark.sql.classic.column import Column as ClassicColumn

from headrace.errors import UsageError
from headrace.spark.plan.scala import CLASSIC, sequence

__all__ = ["Argument", "Call", "argument_of", "call_of"]

EXPRESSION_ID = re.compile(r"#\d+L?")
"""In the text of a column that was taken from a frame, ``orders.amount``: another one in every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What a function is called with."""

    column: SqlColumn
    text: str
    name: str | None = None
    """Of a plain column; None for whatever has to be computed."""
    literal: Any = None
    """A number, a text or a list of them."""
    is_star: bool = False
    fields: tuple[Argument, ...] = ()
    """Of a struct that is made of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A Column that is a function: ``F.sum("amount")``."""

    function: str
    arguments: tuple[Argument, ...]
    is_distinct: bool
    text: str


def call_of(column: SqlColumn) -> Call | None:
    """The function that a Column calls, whatever it is called itself; None when it is something else."""
    node = _without_alias(_node_of(column))
    if _kind(node) != "UnresolvedFunction":
        return None
    arguments = tuple(_argument(each) for each in sequence(node.arguments()))
    return Call(
        function=str(node.functionName()).lower(),
        arguments=arguments,
        is_distinct=bool(node.isDistinct()),
        text=_text(node),
    )


def argument_of(column: SqlColumn) -> Argument:
    return _argument(_node_of(column))


def _node_of(column: SqlColumn) -> Any:
    java = getattr(column, "_jc", None)
    if java is None:
        raise UsageError("headrace needs Spark's JVM beside this process, and Spark Connect has none", CLASSIC)
    return java.node()


def _without_alias(node: Any) -> Any:
    while _kind(node) == "Alias":
        node = node.child()
    return node


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _text(node: Any) -> str:
    """As a name: the same in every run, and one that can stand between backquotes."""
    return EXPRESSION_ID.sub("", str(node.sql())).replace("`", "")


def _argument(node: Any) -> Argument:
    plain = _without_alias(node)
    jvm: Any = SparkContext._jvm
    column: Any = ClassicColumn(jvm.org.apache.spark.sql.Column(node))
    is_struct = _kind(plain) == "UnresolvedFunction" and str(plain.functionName()) == "struct"
    return Argument(
        column=column,
        text=_text(plain),
        name=_plain_name(plain),
        literal=_literal(plain),
        is_star=_kind(plain) == "UnresolvedStar",
        fields=tuple(_argument(each) for each in sequence(plain.arguments())) if is_struct else (),
    )


def _plain_name(node: Any) -> str | None:
    if _kind(node) == "UnresolvedAttribute":
        parts = [str(each) for each in sequence(node.nameParts())]
        return parts[0] if len(parts) == 1 else None
    if _kind(node) == "ExpressionColumnNode" and str(node.expression().nodeName()) == "AttributeReference":
        return str(node.expression().name())
    return None


def _literal(node: Any) -> Any:
    if _kind(node) == "Literal":
        return node.value()
    if _kind(node) == "UnresolvedFunction" and str(node.functionName()) == "array":
        found = [_literal(each) for each in sequence(node.arguments())]
        return None if None in found else found
    return None
