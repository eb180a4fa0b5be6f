"""PostgreSQL's types in Kafka Connect's and Debezium's names; each says what ``values.renderer`` writes."""

from __future__ import annotations

from headrace.capture.options import CaptureOptions
from headrace.capture.postgres.values import PgType, numeric_scale
from headrace.capture.schemas import STRING, Type, named, struct

__all__ = ["schema_of"]

_BYTES: Type = {"type": "bytes"}
_POINT = struct(
    "io.debezium.data.geometry.Point",
    [
        ("x", {"type": "double"}, False),
        ("y", {"type": "double"}, False),
        ("wkb", _BYTES, True),
        ("srid", {"type": "int32"}, True),
    ],
)
_VARIABLE_SCALE = struct(
    "io.debezium.data.VariableScaleDecimal", [("scale", {"type": "int32"}, False), ("value", _BYTES, False)]
)
_PLAIN: dict[str, Type] = {
    "int2": {"type": "int16"},
    "int4": {"type": "int32"},
    "int8": {"type": "int64"},
    "oid": {"type": "int64"},
    "xid": {"type": "int64"},
    "bool": {"type": "boolean"},
    "bytea": _BYTES,
    "float4": {"type": "float"},
    "float8": {"type": "double"},
    "point": _POINT,
    "hstore": named("string", "io.debezium.data.Json"),
    "json": named("string", "io.debezium.data.Json"),
    "jsonb": named("string", "io.debezium.data.Json"),
    "uuid": named("string", "io.debezium.data.Uuid"),
    "xml": named("string", "io.debezium.data.Xml"),
    "timestamptz": named("string", "io.debezium.time.ZonedTimestamp"),
    "timetz": named("string", "io.debezium.time.ZonedTime"),
}


def schema_of(
    oid: int, modifier: int, types: dict[int, PgType], options: CaptureOptions, *, exact: bool = False
) -> Type:
    """The type of a column's values. ``exact``: of a key, where some values are PostgreSQL's text."""
    kind = types.get(oid)
    if kind is None:
        return STRING
    if kind.kind == "d":
        return schema_of(kind.base, kind.modifier, types, options, exact=exact)
    if kind.kind == "e":
        return named("string", "io.debezium.data.Enum")
    if kind.category == "A" and kind.element:
        items = schema_of(kind.element, modifier, types, options, exact=exact)
        return {"type": "array", "items": {**items, "optional": True}}
    if not kind.is_builtin:
        return STRING
    if exact and (kind.name in ("timetz", "interval", "varbit") or (kind.name == "bit" and modifier < 0)):
        return named("string", "io.debezium.time.Interval") if kind.name == "interval" else STRING
    if kind.name in _PLAIN:
        return _PLAIN[kind.name]
    if kind.name in ("numeric", "money"):
        return _decimal(2 if kind.name == "money" else numeric_scale(modifier), options)
    if kind.name == "bit" and modifier == 1:
        return {"type": "boolean"}
    if kind.name in ("bit", "varbit"):
        return named("bytes", "io.debezium.data.Bits", {"length": str(max(modifier, 0))})
    return _time(kind.name, modifier, options)


def _decimal(scale: int | None, options: CaptureOptions) -> Type:
    if options.decimals != "precise":
        return STRING if options.decimals == "string" else {"type": "double"}
    if scale is None:
        return _VARIABLE_SCALE
    return named("bytes", "org.apache.kafka.connect.data.Decimal", {"scale": str(scale)})


def _time(name: str, modifier: int, options: CaptureOptions) -> Type:
    if options.times == "strings":
        return named("string", "io.debezium.time.Interval") if name == "interval" else STRING
    is_coarse = 0 <= modifier <= 3
    numbers = {
        "timestamp": named("int64", "io.debezium.time.Timestamp" if is_coarse else "io.debezium.time.MicroTimestamp"),
        "date": named("int32", "io.debezium.time.Date"),
        "time": named("int32", "io.debezium.time.Time") if is_coarse else named("int64", "io.debezium.time.MicroTime"),
        "interval": named("int64", "io.debezium.time.MicroDuration"),
    }
    return numbers.get(name, STRING)
