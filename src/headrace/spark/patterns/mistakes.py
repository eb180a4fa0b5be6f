"""What Spark and Arrow say of a condition or a measure, in the words of patterns and at its place in the text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import BooleanType

from headrace.errors import UsageError
from headrace.spark.patterns.clauses import Piece
from headrace.spark.patterns.condition_types import ConditionProblem
from headrace.spark.patterns.expressions import Columns
from headrace.spark.patterns.syntax import PatternSyntaxError

__all__ = ["Written", "pointing"]

SPARK_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Where PySpark writes the trace of an error, as JSON, before it raises it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A condition or a measure as it stands in a text."""

    name: str
    """The variable, in capitals, or the measure."""
    text: str
    """The whole text that ``piece`` is part of."""
    piece: Piece
    bit: int | None = None
    """Of what a condition says of a row alone."""


@contextlib.contextmanager
def pointing(rows: DataFrame, columns: Columns, written: Sequence[Written], variables: Sequence[str]) -> Iterator[None]:
    """What cannot be computed is shown where it stands."""
    loggers = [PySparkLogger.getLogger(each) for each in SPARK_LOGGERS]
    before = [each.disabled for each in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    except ConditionProblem as problem:
        raise _at(written, problem.variable, str(problem)) from None
    except AnalysisException as error:
        raise (
            _not_boolean(rows, columns, written, error)
            or _unknown(rows, written, variables, error)
            or UsageError(str(error).strip().split(";\n", 1)[0])  # without the plan
        ) from None
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _at(written: Sequence[Written], name: str, problem: str) -> Exception:
    found = next((each for each in written if each.name == name and each.piece.text), None)
    return UsageError(problem) if found is None else PatternSyntaxError(found.text, found.piece.at, problem)


def _not_boolean(
    rows: DataFrame, columns: Columns, written: Sequence[Written], error: AnalysisException
) -> Exception | None:
    """A condition on a row alone that is neither true nor false, if there is one."""
    if not (error.getCondition() or "").startswith("DATATYPE_MISMATCH"):
        return None
    for sql, bit in columns.conditions.items():
        with contextlib.suppress(AnalysisException):
            kind = rows.select(columns.given[sql] if sql in columns.given else F.expr(sql)).schema[0].dataType
            if not isinstance(kind, BooleanType):
                names = [each.name for each in written if each.bit == bit]
                said = f"the condition of {names[0]}" if names and sql in columns.given else "the condition"
                problem = f"{said} is {kind.simpleString()} and not true or false"
                return _at(written, names[0], problem) if names else None
    return None


def _unknown(
    rows: DataFrame, written: Sequence[Written], variables: Sequence[str], error: AnalysisException
) -> Exception | None:
    """A name of a column, a field or a function that Spark does not know."""
    condition, said = error.getCondition() or "", error.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = said.get("objectName", "").replace("`", "")
        known = f"the columns are {', '.join(rows.columns)}, and the variables {', '.join(variables)}"
        problem = f"there is no column {name}; {known}"
        if name.upper() in (each.upper() for each in variables):
            problem = f"{name} is a variable; {name}.x is the column x of its last row, COUNT({name}.*) counts its rows"
    elif condition.startswith("FIELD_NOT_FOUND"):
        name = said.get("fieldName", "").replace("`", "")
        problem = f"there is no field {name}; the fields are {said.get('fields', '')}"
    elif condition.startswith("UNRESOLVED_ROUTINE"):
        name = said.get("routineName", "").replace("`", "")
        problem = f"there is no function {name}"
    elif condition.startswith("MISSING_GROUP_BY"):
        known = "COUNT, SUM, AVG, MIN, MAX and ARRAY_AGG"
        return UsageError(f"a measure has an aggregate that is not known over matched rows; there are {known}")
    else:
        return None
    for each in written if name else ():
        found = re.search(rf"(?<!\w){re.escape(name)}(?![\w.])", each.piece.text, re.IGNORECASE)
        if found:
            return PatternSyntaxError(each.text, each.piece.at + found.start(), problem)
    return UsageError(problem)  # of a Column
