"""MariaDB's values, as two libraries give them, as Debezium's JSON.

Rows come from the binlog (mysql-replication) and from queries (PyMySQL), both as Python values, with small differences:
a SET is a Python set or a string, BIT a string of digits or bytes, FLOAT is widened to a double or not. A ``Kind`` says
what the column is, found from either side, and its renderer takes the values of both.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from socket import AF_INET, AF_INET6, AddressFamily, inet_ntop, inet_pton
from typing import Any, NamedTuple
from uuid import UUID

from pymysqlreplication.constants import FIELD_TYPE

from headrace.capture.envelope import json_text
from headrace.capture.mariadb_rows import DECIMAL_DIGITS
from headrace.capture.options import CaptureOptions
from headrace.capture.postgres_values import big_integer

__all__ = ["Kind", "as_catalogued", "kind_in_binlog", "kind_in_catalogue", "renderer"]

EPOCH = datetime(1970, 1, 1)
EPOCH_DAY = date(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)


class Kind(NamedTuple):
    """``name`` is MariaDB's name of the type; ``detail`` its scale, fractional digits, bits, or values of a SET."""

    name: str
    detail: int = 0
    values: tuple[str, ...] = ()


_BINLOG_NAMES = {
    FIELD_TYPE.TINY: "int",
    FIELD_TYPE.SHORT: "int",
    FIELD_TYPE.INT24: "int",
    FIELD_TYPE.LONG: "int",
    FIELD_TYPE.LONGLONG: "int",
    FIELD_TYPE.YEAR: "int",
    FIELD_TYPE.FLOAT: "float",
    FIELD_TYPE.DOUBLE: "double",
    FIELD_TYPE.DATE: "date",
    FIELD_TYPE.NEWDATE: "date",
    FIELD_TYPE.ENUM: "text",
    FIELD_TYPE.JSON: "json",
    FIELD_TYPE.GEOMETRY: "text",
}
_TIMES = {
    FIELD_TYPE.DATETIME: "datetime",
    FIELD_TYPE.DATETIME2: "datetime",
    FIELD_TYPE.TIMESTAMP: "timestamp",
    FIELD_TYPE.TIMESTAMP2: "timestamp",
    FIELD_TYPE.TIME: "time",
    FIELD_TYPE.TIME2: "time",
}
_CATALOGUE_NAMES = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), "int"),
    **dict.fromkeys(("float", "double", "date", "json", "uuid", "inet4", "inet6"), None),
}


def kind_in_binlog(column: Any) -> Kind:
    if column.type == FIELD_TYPE.NEWDECIMAL:
        return Kind("decimal", column.decimals)
    if column.type in _TIMES:
        return Kind(_TIMES[column.type], getattr(column, "fsp", 0))
    if column.type == FIELD_TYPE.BIT:
        return Kind("bit", column.bits)
    if column.type == FIELD_TYPE.SET:
        return Kind("set", values=tuple(column.set_values or ()))
    return Kind(_BINLOG_NAMES.get(column.type, "text"))


def kind_in_catalogue(data_type: str, column_type: str, scale: int | None, fraction: int | None) -> Kind:
    """From information_schema.columns; must give what ``kind_in_binlog`` gives for the same column."""
    if data_type == "decimal":
        return Kind("decimal", scale or 0)
    if data_type in ("datetime", "timestamp", "time"):
        return Kind(data_type, fraction or 0)
    if data_type == "bit":
        return Kind("bit", int(column_type.partition("(")[2].rstrip(")") or 1))
    if data_type == "set":
        inside = column_type.partition("(")[2].rstrip(")")
        return Kind("set", values=tuple(each[1:-1].replace("''", "'") for each in inside.split(",")))
    return Kind(_CATALOGUE_NAMES.get(data_type, "text") or data_type)


def as_catalogued(kind: Kind, data_type: str) -> Kind:
    """The binlog shows a UUID or an address as bytes and does not say what they are; the catalogue does."""
    return Kind(data_type) if kind.name == "text" and data_type in ("uuid", "inet4", "inet6") else kind


def renderer(kind: Kind, options: CaptureOptions) -> Callable[[Any], bytes]:
    strings = options.times == "strings"
    simple: dict[str, Callable[[Any], bytes]] = {
        "int": _integer,
        "float": _float,
        "double": _double,
        "text": _text,
        "json": _json,
        "uuid": _uuid,
        "inet4": partial(_address, AF_INET, 4),
        "inet6": partial(_address, AF_INET6, 16),
        "date": _plain_string if strings else _date,
        "timestamp": partial(_timestamp, kind.detail),
        "time": _plain_string if strings else _time,
        "set": partial(_set, kind.values),
        "bit": _one_bit if kind.detail == 1 else partial(_bits, (kind.detail + 7) // 8),
    }
    if kind.name == "decimal" and options.decimals == "precise":
        return partial(_decimal, kind.detail)
    if kind.name == "decimal":
        return _plain_decimal if options.decimals == "string" else _double
    if kind.name == "datetime":
        return _iso if strings else partial(_datetime, 1000 if kind.detail <= 3 else 1)
    return simple[kind.name]


def _integer(value: int) -> bytes:
    return b"%d" % value


def _double(value: Any) -> bytes:
    return repr(float(value)).encode()


def _float(value: float) -> bytes:
    """The shortest text that is this 32-bit number: the binlog gives it widened to 64 bits."""
    packed = struct.pack("f", value)
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("f", float(text)) == packed:
            return repr(float(text)).encode()
    return repr(value).encode()


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b'"' + b64encode(value) + b'"'
    return json_text(str(value))


def _uuid(value: Any) -> bytes:
    return _text(str(UUID(bytes=value.ljust(16, b"\0"))) if isinstance(value, bytes) and len(value) <= 16 else value)


def _address(family: AddressFamily, size: int, value: Any) -> bytes:
    """In one form from either side: MariaDB's own text shortens a single zero too, which nobody else does."""
    try:
        packed = value.ljust(size, b"\0") if isinstance(value, bytes) else inet_pton(family, value)
        return _text(inet_ntop(family, packed))
    except (OSError, ValueError):  # the column was of another type when this was written
        return _text(value)


def _plain_string(value: Any) -> bytes:
    return json_text(str(value))


def _json(value: Any) -> bytes:
    return json_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _plain_decimal(value: Decimal) -> bytes:
    """Every digit that the column has and no exponent, which Python writes for numbers near zero."""
    return f'"{value:f}"'.encode()


def _decimal(scale: int, value: Decimal) -> bytes:
    return big_integer(int(value.scaleb(scale, DECIMAL_DIGITS)))


def _date(value: Any) -> bytes:
    """What is no date of the calendar, such as 0000-00-00, is null, as in Debezium."""
    return b"%d" % (value - EPOCH_DAY).days if isinstance(value, date) else b"null"


def _datetime(unit_us: int, value: Any) -> bytes:
    return b"%d" % ((value - EPOCH) // MICROSECOND // unit_us) if isinstance(value, datetime) else b"null"


def _iso(value: Any) -> bytes:
    return b'"' + value.isoformat().encode() + b'"' if isinstance(value, datetime) else b"null"


def _timestamp(digits: int, value: Any) -> bytes:
    if not isinstance(value, datetime):
        return b"null"
    fraction = f".{value.microsecond:06d}"[: digits + 1] if digits else ""
    return f'"{value:%Y-%m-%dT%H:%M:%S}{fraction}Z"'.encode()


def _time(value: Any) -> bytes:
    return b"%d" % (value // MICROSECOND) if isinstance(value, timedelta) else b"null"


def _set(values: tuple[str, ...], value: Any) -> bytes:
    if isinstance(value, str):
        return json_text(value)
    return json_text(",".join(each for each in values if each in value))


def _bit_number(value: Any) -> int:
    return int.from_bytes(value, "big") if isinstance(value, bytes) else int(value or "0", 2)


def _one_bit(value: Any) -> bytes:
    return b"true" if _bit_number(value) else b"false"


def _bits(size: int, value: Any) -> bytes:
    return b'"' + b64encode(_bit_number(value).to_bytes(size, "little")) + b'"'
