"""Single values of JSON as values of a column's type, under the rules of Arrow's parser and, beyond it, of Spark's.

What does not fit raises ValueError, or what the conversion itself raises.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from headrace.spark.source.json_forms import Forms, unscaled

__all__ = ["SIMPLE", "NumberText", "as_decimal", "shown"]

_INT_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_EPOCH_DATE = datetime.date(1970, 1, 1)
_SCALED = {"scale", "value"}
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class NumberText(str):
    """A number as it stood in the text, so that nothing of it is lost before its column's type is known."""

    __slots__ = ()


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, NumberText) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _raw_text(value: Any) -> str:
    """A value in a string column: a string as it is, everything else as its JSON text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_inner_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_inner_text, value)) + "]"
    return json.dumps(value)


def _inner_text(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, NumberText):
        return json.dumps(value, ensure_ascii=False)
    return _raw_text(value)


def _string(value: Any, kind: DataType) -> str:
    text = _raw_text(value)
    text.encode()  # half a surrogate pair is no text
    return text


def _boolean(value: Any, kind: DataType) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _integer(value: Any, kind: DataType) -> int:
    if not isinstance(value, NumberText):
        raise ValueError
    number = int(value)
    bits = _INT_BITS[type(kind)]
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError
    return number


def _floating(value: Any, kind: DataType) -> float:
    if isinstance(value, str) and str(value) in _NOT_FINITE:
        return _NOT_FINITE[str(value)]
    if not isinstance(value, NumberText):
        raise ValueError
    return float(value)


def as_decimal(value: Any, kind: DecimalType, forms: Forms, path: str) -> decimal.Decimal | None:
    """A decimal in any of its forms: text or a number, base64, or an object with its scale."""
    if value is None:
        return None
    if isinstance(value, dict):
        if set(value) != _SCALED:
            raise ValueError
        return _rounded(unscaled(str(value["value"]), int(value["scale"])), kind)
    scale = forms.scale(path, kind.scale)
    if scale is not None and isinstance(value, str) and not isinstance(value, NumberText):
        return _rounded(unscaled(value, scale), kind)
    return _decimal(value, kind)


def _decimal(value: Any, kind: DataType) -> decimal.Decimal:
    assert isinstance(kind, DecimalType)
    if not isinstance(value, str):
        raise ValueError
    return _rounded(decimal.Decimal(str(value)), kind)


def _rounded(number: decimal.Decimal, kind: DecimalType) -> decimal.Decimal:
    """Digits after the scale are rounded, as Spark does; more in front than the precision allows do not fit."""
    with decimal.localcontext(decimal.Context(prec=400)):
        if not number.is_finite():
            raise ValueError
        rounded = number.quantize(decimal.Decimal(1).scaleb(-kind.scale), decimal.ROUND_HALF_UP)
        if abs(rounded) >= decimal.Decimal(10) ** (kind.precision - kind.scale):
            raise ValueError
    return rounded


def _date(value: Any, kind: DataType) -> int:
    if not isinstance(value, str) or isinstance(value, NumberText):
        raise ValueError
    return (datetime.date.fromisoformat(value) - _EPOCH_DATE).days


def _binary(value: Any, kind: DataType) -> bytes:
    if not isinstance(value, str) or isinstance(value, NumberText):
        raise ValueError
    return base64.b64decode(value, validate=True)


SIMPLE: dict[type[DataType], Callable[[Any, Any], Any]] = {
    StringType: _string,
    BooleanType: _boolean,
    ByteType: _integer,
    ShortType: _integer,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _floating,
    DoubleType: _floating,
    DecimalType: _decimal,
    DateType: _date,
    BinaryType: _binary,
}
