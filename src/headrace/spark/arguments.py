"""What users write as arguments of functions on DataFrames, checked before a query starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import TimestampType

from headrace.changes import WEIGHT
from headrace.errors import UsageError

__all__ = [
    "duration_of",
    "given_names",
    "micros_of",
    "names_of",
    "no_doubles",
    "plain_columns",
    "pointed_at",
    "time_column",
    "topic_name",
    "with_dots",
    "without_dots",
    "without_weights",
]

UNITS_US = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
"""No months and years: they differ in length."""
MICROS_MAX = 3_660_000 * UNITS_US["day"]
"""Of a duration, so that it can be added to every time that Spark has."""
PART = re.compile(rf"(\d+) +({'|'.join(UNITS_US)})s?")
DURATION = re.compile(rf"(interval +)?{PART.pattern}( +{PART.pattern})*")
LINE_MAX = 200
"""Characters of a line that an error shows."""
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


def topic_name(given: object, where: str = "") -> str:
    """The name, unless no broker takes it. ``where`` begins the message."""
    if not isinstance(given, str) or not TOPIC.fullmatch(given):
        raise UsageError(
            f"{where}{given!r} cannot be the name of a topic", "1 to 249 letters of A-Z and a-z, digits, '.', '_', '-'"
        )
    return given


def names_of(keys: str | Sequence[str]) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys)


def given_names(what: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name or several, each once; none where nothing is given."""
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"{what}={given!r} is no name and no list of names, each once", f"{what}=['a', 'b']")
    return names


def plain_columns(names: Iterable[str]) -> list[Column]:
    """Columns by name, each once; a dot in a name is part of the name."""
    return [F.col(f"`{name}`") for name in dict.fromkeys(names)]


def without_dots(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """With other names for those that have a dot: PySpark takes the columns of a frame by name for its functions of
    Arrow batches, and takes the dot for a field of a struct."""
    renamed = _dotted(names)
    return rows.withColumnsRenamed(renamed) if renamed else rows


def with_dots(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows of such a frame with their own names again."""
    renamed = {other: name for name, other in _dotted(names).items()}
    return table.rename_columns([renamed.get(name, name) for name in table.column_names]) if renamed else table


def _dotted(names: Sequence[str]) -> dict[str, str]:
    return {name: f"_column_{number}" for number, name in enumerate(names) if "." in name}


def no_doubles(names: Sequence[str], hint: str = "give one of them another name") -> None:
    """Refuse a result with two columns of one name."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(f"two columns of the result would be called {doubled[0]!r}", hint)


def time_column(rows: DataFrame, column: str | None, argument: str) -> str:
    times = [each.name for each in rows.schema if isinstance(each.dataType, TimestampType)]
    if column is None or column not in times:
        what = f"{argument} is not given" if column is None else f"{argument}: {column!r} is no column with a timestamp"
        hint = f"columns with timestamps: {', '.join(times) or 'none'}"
        if column in rows.columns:
            hint += f'; rows.withColumn("{column}", F.col("{column}").cast("timestamp")) makes one'
        raise UsageError(what, hint)
    return column


def without_weights(rows: DataFrame, what: str) -> None:
    """Refuse the rows of ``hr.deltas`` where a row that went would count as one that came."""
    if WEIGHT in rows.columns:
        raise UsageError(
            f"{what} would count the rows that went ({WEIGHT} = −1) as rows that came",
            "hr.view(…) adds and subtracts them; or hr.changes(rows, key=…), written to a topic and read from there",
        )


def micros_of(duration: str, argument: str) -> int:
    """A duration as Spark writes them: '10 minutes', '1 hour 30 seconds'."""
    parts = DURATION.fullmatch(str(duration).strip().lower()) and PART.findall(str(duration).lower())
    if not parts:
        raise UsageError(
            f"{argument}={duration!r} is no duration",
            f"'10 minutes', '1 hour 30 seconds'; units: {', '.join(UNITS_US)}",
        )
    # Python refuses to read numbers of thousands of digits; one of 30 is too long in any unit.
    found = sum(int(number.lstrip("0")[:30] or 0) * UNITS_US[unit] for number, unit in parts)
    if found <= 0:
        raise UsageError(f"{argument}={duration!r} is not longer than nothing", "'10 minutes', say")
    if found > MICROS_MAX:
        raise UsageError(f"{argument}={duration!r} is longer than 10,000 years", "times and durations have 64 bits")
    return found


def duration_of(micros: int) -> str:
    """The opposite, in the largest unit that gives a whole number."""
    unit = max((each for each, of in UNITS_US.items() if micros % of == 0), key=lambda each: UNITS_US[each])
    return f"{micros // UNITS_US[unit]} {unit}s"


def pointed_at(text: str, at: int) -> str:
    """The line of the text that a place is in, and a mark under the place; of a long line, what is around it."""
    start = text.rfind("\n", 0, at) + 1
    line = text[start:].split("\n", 1)[0]
    place = at - start
    cut = max(place - LINE_MAX // 2, 0) if len(line) > LINE_MAX else 0
    before, after = "…" if cut else "", "…" if len(line) > cut + LINE_MAX else ""
    return f"  {before}{line[cut : cut + LINE_MAX]}{after}\n  {' ' * (place - cut + len(before))}^"
