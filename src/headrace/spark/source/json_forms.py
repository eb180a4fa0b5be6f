"""How numbers and texts stand for times and decimals in JSON, and what is refused because it cannot be known.

JSON has no times and no decimals, so producers write them in different forms:

    times       text (ISO 8601), or a number of seconds, milliseconds, microseconds or nanoseconds since 1970
    dates       text, or a number of days since 1970
    decimals    text, a number, base64 of the unscaled number (its scale is the column's), or {"scale", "value"}

In plain JSON a number in a column of timestamps is seconds, as in Spark's ``from_json``. Debezium's numbers have a unit
that depends on the database and the column; it stands in the schema that records may carry. Without a schema the unit
is what the user says (``timeUnit``), and otherwise such a number is refused. A moment after the year 9999 is refused in
any case: it is nearly always a number in another unit.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["DEBEZIUM", "MOMENT_US_MAX", "MOMENT_US_MIN", "PLAIN", "UNITS_NS", "Forms", "forms_in", "unscaled"]

UNITS_NS = {"seconds": 1_000_000_000, "milliseconds": 1_000_000, "microseconds": 1_000, "nanoseconds": 1}
MOMENT_US_MIN, MOMENT_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999."""
_TIME_NAMES = {
    "io.debezium.time.Timestamp": UNITS_NS["milliseconds"],
    "org.apache.kafka.connect.data.Timestamp": UNITS_NS["milliseconds"],
    "io.debezium.time.MicroTimestamp": UNITS_NS["microseconds"],
    "io.debezium.time.NanoTimestamp": UNITS_NS["nanoseconds"],
}
_DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"


@dataclass(frozen=True, slots=True)
class Forms:
    """What is known of the forms in some records. A column's own form comes before the general one."""

    time_ns: int | None = None
    """The unit of numbers in columns of timestamps; None: not known."""
    dates_are_days: bool = False
    decimals_are_bytes: bool = False
    columns_time_ns: Mapping[str, int] = field(default_factory=dict)
    columns_scale: Mapping[str, int] = field(default_factory=dict)

    def unit_ns(self, path: str) -> int | None:
        return self.columns_time_ns.get(path, self.time_ns)

    def scale(self, path: str, of_column: int) -> int | None:
        """Of a decimal in base64; None: decimals of the column are text or numbers."""
        if path in self.columns_scale:
            return self.columns_scale[path]
        return of_column if self.decimals_are_bytes else None

    def chosen(self, time_unit: str | None, decimals: str | None) -> Forms:
        """With what the user says."""
        return replace(
            self,
            time_ns=UNITS_NS[time_unit] if time_unit else self.time_ns,
            decimals_are_bytes=decimals == "base64",
        )


PLAIN = Forms(time_ns=UNITS_NS["seconds"])
DEBEZIUM = Forms(dates_are_days=True)


def forms_in(schema: bytes, general: Forms) -> Forms:
    """The forms that the schema of a record names, by path: ``payload.after.placed_at``."""
    try:
        found = json.loads(schema)
    except ValueError:
        return general
    times: dict[str, int] = {}
    scales: dict[str, int] = {}
    for path, described in _fields(found, "payload"):
        name = described.get("name")
        if name in _TIME_NAMES:
            times[path] = _TIME_NAMES[name]
        elif name == _DECIMAL_NAME:
            scales[path] = int((described.get("parameters") or {}).get("scale", 0))
    return replace(general, columns_time_ns=times, columns_scale=scales)


def _fields(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    yield path, schema
    if schema.get("type") == "array":
        yield from _fields(schema.get("items"), path)
    for each in schema.get("fields") or ():
        yield from _fields(each, f"{path}.{each.get('field')}")


def unscaled(text: str, scale: int) -> decimal.Decimal:
    """The decimal whose unscaled number this is, in base64; ValueError when it is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error
    if not data:
        raise ValueError(text)
    number = int.from_bytes(data, "big", signed=True)
    return decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=400))
