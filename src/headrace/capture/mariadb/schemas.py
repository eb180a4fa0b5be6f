"""MariaDB's types in Kafka Connect's and Debezium's names; each says what ``values.renderer`` writes."""

from __future__ import annotations

from headrace.capture.mariadb.values import Kind
from headrace.capture.options import CaptureOptions
from headrace.capture.schemas import STRING, Type, named

__all__ = ["schema_of"]

_PLAIN: dict[str, Type] = {
    "int": {"type": "int64"},
    "float": {"type": "float"},
    "double": {"type": "double"},
    "timestamp": named("string", "io.debezium.time.ZonedTimestamp"),
}


def schema_of(kind: Kind, options: CaptureOptions) -> Type:
    """The type of a column's values. Integers of every size are of 64 bits: the binlog does not tell their sign."""
    if kind.name == "decimal" and options.decimals == "precise":
        return named("bytes", "org.apache.kafka.connect.data.Decimal", {"scale": str(kind.detail)})
    if kind.name == "decimal":
        return STRING if options.decimals == "string" else {"type": "double"}
    if kind.name == "bit":
        length = {"length": str(kind.detail)}
        return {"type": "boolean"} if kind.detail == 1 else named("bytes", "io.debezium.data.Bits", length)
    if kind.name in ("date", "datetime", "time") and options.times == "numbers":
        fine = named("int64", "io.debezium.time.MicroTimestamp")
        return {
            "date": named("int32", "io.debezium.time.Date"),
            "datetime": named("int64", "io.debezium.time.Timestamp") if kind.detail <= 3 else fine,
            "time": named("int64", "io.debezium.time.MicroTime"),
        }[kind.name]
    return _PLAIN.get(kind.name, STRING)
