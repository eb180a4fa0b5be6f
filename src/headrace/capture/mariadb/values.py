"""MariaDB's values as JSON, as Debezium writes them.

Values come from the binlog as Python values (``rows``), and from the snapshot as the text that the server sends. A
``Kind`` says what a column is, found from either side. Each kind has a renderer for both, and both give the same bytes
for the same value, which a property test holds them to. The snapshot has its own because much of the server's text is
JSON already: a whole number needs no parsing at all.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from socket import AF_INET, AF_INET6, AddressFamily, inet_ntop, inet_pton
from typing import Any, NamedTuple
from uuid import UUID

from headrace.capture.envelope import CannotEncode, json_text
from headrace.capture.mariadb.charsets import Unreadable, utf8
from headrace.capture.mariadb.rows import DECIMAL_DIGITS, BinlogColumn, FieldType, ZeroDate
from headrace.capture.options import CaptureOptions
from headrace.capture.postgres.values import big_integer

__all__ = ["Kind", "as_catalogued", "kind_in_binlog", "kind_in_catalogue", "renderer", "text_renderer"]

EPOCH = datetime(1970, 1, 1)
EPOCH_DAY = date(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)
ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
"""Bytes that stand for themselves nowhere in a JSON string."""


class Kind(NamedTuple):
    """``name`` is MariaDB's name of the type; ``detail`` its scale, fractional digits or bits."""

    name: str
    detail: int = 0


_BINLOG_NAMES = {
    **dict.fromkeys((FieldType.TINY, FieldType.SHORT, FieldType.INT24, FieldType.LONG, FieldType.LONGLONG), "int"),
    FieldType.YEAR: "int",
    FieldType.FLOAT: "float",
    FieldType.DOUBLE: "double",
    FieldType.DATE: "date",
    FieldType.NEWDATE: "date",
}
_TIMES = {FieldType.DATETIME2: "datetime", FieldType.TIMESTAMP2: "timestamp", FieldType.TIME2: "time"}
_CATALOGUE_NAMES = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), "int"),
    **dict.fromkeys(("float", "double", "date", "uuid", "inet4", "inet6"), None),
}


def kind_in_binlog(column: BinlogColumn) -> Kind:
    if column.type == FieldType.NEWDECIMAL:
        return Kind("decimal", column.detail & 0xFF)
    if column.type in _TIMES:
        return Kind(_TIMES[column.type], column.detail)
    if column.type == FieldType.BIT:
        return Kind("bit", (column.detail & 0xFF) * 8 + (column.detail >> 8))
    return Kind(_BINLOG_NAMES.get(column.type, "text"))


def kind_in_catalogue(data_type: str, column_type: str, scale: int | None, fraction: int | None) -> Kind:
    """From information_schema.columns; must give what ``kind_in_binlog`` gives for the same column."""
    if data_type == "decimal":
        return Kind("decimal", scale or 0)
    if data_type in ("datetime", "timestamp", "time"):
        return Kind(data_type, fraction or 0)
    if data_type == "bit":
        return Kind("bit", int(column_type.partition("(")[2].rstrip(")") or 1))
    return Kind(_CATALOGUE_NAMES.get(data_type, "text") or data_type)


def as_catalogued(kind: Kind, data_type: str) -> Kind:
    """The binlog shows a UUID or an address as bytes and does not say what they are; the catalogue does."""
    return Kind(data_type) if kind.name == "text" and data_type in ("uuid", "inet4", "inet6") else kind


# ---- from the binlog ------------------------------------------------------------------------------------------------


def renderer(kind: Kind, options: CaptureOptions, *, in_key: bool = False) -> Callable[[Any], bytes]:
    render = _renderer(kind, options)
    if kind.name not in ("date", "datetime"):
        return render
    zero = _zero_renderer(options, in_key)
    return lambda value: zero(value.text) if isinstance(value, ZeroDate) else render(value)


def _zero_renderer(options: CaptureOptions, in_key: bool) -> Callable[[str], bytes]:
    """Dates with a zero are null, but for those of a key: as null, different ones would be the same row."""
    if not in_key:
        return lambda text: b"null"
    return json_text if options.times == "strings" else _zero_in_key


def _zero_in_key(text: str) -> bytes:
    raise CannotEncode(f"{text} is part of the key and no day of the calendar, so it has no number")


def _renderer(kind: Kind, options: CaptureOptions) -> Callable[[Any], bytes]:
    strings = options.times == "strings"
    simple: dict[str, Callable[[Any], bytes]] = {
        "int": _integer,
        "float": _float,
        "double": _double,
        "text": _text,
        "uuid": _uuid,
        "inet4": partial(_address, AF_INET, 4),
        "inet6": partial(_address, AF_INET6, 16),
        "date": _iso_date if strings else _date,
        "timestamp": partial(_timestamp, kind.detail),
        "time": _clock if strings else _time,
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
    if isinstance(value, str):
        return json_text(value)
    if isinstance(value, bytes):
        return b'"' + b64encode(value) + b'"'
    raise _cannot(value)


def _cannot(value: Unreadable) -> CannotEncode:
    return CannotEncode(value.reason)


def _uuid(value: Any) -> bytes:
    return _text(str(UUID(bytes=value.ljust(16, b"\0"))) if isinstance(value, bytes) and len(value) <= 16 else value)


def _address(family: AddressFamily, size: int, value: Any) -> bytes:
    """In one form from either side: MariaDB's own text shortens a single zero too, which nobody else does."""
    try:
        packed = value.ljust(size, b"\0") if isinstance(value, bytes) else inet_pton(family, value)
        return _text(inet_ntop(family, packed))
    except (OSError, ValueError):  # the column was of another type when this was written
        return _text(value)


def _plain_decimal(value: Decimal) -> bytes:
    """Every digit that the column has and no exponent, which Python writes for numbers near zero."""
    return f'"{value:f}"'.encode()


def _decimal(scale: int, value: Decimal) -> bytes:
    return big_integer(int(value.scaleb(scale, DECIMAL_DIGITS)))


def _date(value: date | Unreadable) -> bytes:
    if isinstance(value, Unreadable):
        raise _cannot(value)
    return b"%d" % (value - EPOCH_DAY).days


def _iso_date(value: date | Unreadable) -> bytes:
    if isinstance(value, Unreadable):
        raise _cannot(value)
    return b'"' + value.isoformat().encode() + b'"'


def _datetime(unit_us: int, value: datetime | Unreadable) -> bytes:
    if isinstance(value, Unreadable):
        raise _cannot(value)
    return b"%d" % ((value - EPOCH) // MICROSECOND // unit_us)


def _iso(value: datetime | Unreadable) -> bytes:
    """No more digits after the second than the value needs, as Debezium and PostgreSQL write it."""
    if isinstance(value, Unreadable):
        raise _cannot(value)
    text = value.isoformat()
    return f'"{text.rstrip("0") if value.microsecond else text}"'.encode()


def _timestamp(digits: int, value: datetime) -> bytes:
    fraction = f".{value.microsecond:06d}"[: digits + 1] if digits else ""
    return f'"{value.isoformat(timespec="seconds")}{fraction}Z"'.encode()


def _clock(value: timedelta) -> bytes:
    """Hours beyond a day and below zero are hours, as MariaDB writes them: ``-26:03:04.5``."""
    seconds, fraction_us = divmod(abs(value) // MICROSECOND, 1_000_000)
    sign = "-" if value < timedelta(0) else ""
    fraction = f".{fraction_us:06d}".rstrip("0") if fraction_us else ""
    return f'"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"'.encode()


def _time(value: timedelta) -> bytes:
    return b"%d" % (value // MICROSECOND)


def _one_bit(value: bytes) -> bytes:
    return b"true" if any(value) else b"false"


def _bits(size: int, value: bytes) -> bytes:
    return b'"' + b64encode(int.from_bytes(value, "big").to_bytes(size, "little")) + b'"'


# ---- from the server's text -----------------------------------------------------------------------------------------


def text_renderer(
    kind: Kind,
    column_type: str,
    decode: Callable[[bytes], Any] | None,
    options: CaptureOptions,
    *,
    in_key: bool = False,
) -> Callable[[bytes], bytes] | None:
    """As ``renderer``, for what a query shows; None: that is JSON already."""
    binlog = renderer(kind, options, in_key=in_key)
    if kind.name == "int":
        return _whole if "zerofill" in column_type or column_type.startswith("year") else None
    if kind.name in ("float", "double"):
        return lambda text: binlog(float(text))
    if kind.name == "decimal":
        plain = options.decimals == "string" and "zerofill" not in column_type
        return _in_quotes if plain else lambda text: binlog(Decimal(text.decode()))
    if kind.name == "text":
        return _text if decode is None else _utf8 if decode is utf8 else partial(_decoded, decode)
    if kind.name in ("uuid", "inet4", "inet6"):
        return lambda text: binlog(text.decode())
    if kind.name == "bit":
        return binlog
    if kind.name == "time":
        return lambda text: binlog(_duration(text))
    if kind.name == "timestamp":
        return _zoned
    if options.times == "strings":
        zero = _zero_renderer(options, in_key)
        return partial(_date_text if kind.name == "date" else _moment_text, zero)
    return partial(_read_date if kind.name == "date" else _read_moment, binlog)


def _whole(text: bytes) -> bytes:
    return b"%d" % int(text)


def _in_quotes(text: bytes) -> bytes:
    return b'"' + text + b'"'


def _utf8(text: bytes) -> bytes:
    if text.isascii() and ESCAPED.search(text) is None:
        return b'"' + text + b'"'
    return _text(utf8(text))


def _decoded(decode: Callable[[bytes], Any], text: bytes) -> bytes:
    return _text(decode(text))


def _is_calendar(text: bytes) -> bool:
    """Whether a date has no zero in it. Raises CannotEncode if it has none and is no day of the calendar."""
    year, month, day = text[:4], text[5:7], text[8:10]
    if year == b"0000" or month == b"00" or day == b"00":
        return False
    if day > b"28":
        try:
            date(int(year), int(month), int(day))
        except ValueError:
            raise CannotEncode(f"{text[:10].decode()} is no date of the calendar") from None
    return True


def _date_text(zero: Callable[[str], bytes], text: bytes) -> bytes:
    return b'"' + text + b'"' if _is_calendar(text) else zero(text.decode())


def _iso_moment(text: bytes) -> bytes:
    whole, point, fraction = text.replace(b" ", b"T").partition(b".")
    return whole + (point + fraction).rstrip(b"0").rstrip(b".")


def _moment_text(zero: Callable[[str], bytes], text: bytes) -> bytes:
    moment = _iso_moment(text)
    return b'"' + moment + b'"' if _is_calendar(text) else zero(moment.decode())


def _zoned(text: bytes) -> bytes:
    return b'"' + text.replace(b" ", b"T") + b'Z"' if not text.startswith(b"0000") else b"null"


def _read_date(binlog: Callable[[Any], bytes], text: bytes) -> bytes:
    shown = text.decode()
    return binlog(date.fromisoformat(shown) if _is_calendar(text) else ZeroDate(shown))


def _read_moment(binlog: Callable[[Any], bytes], text: bytes) -> bytes:
    if not _is_calendar(text):
        return binlog(ZeroDate(_iso_moment(text).decode()))
    whole, _, fraction = text.decode().partition(".")
    moment = datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0")))
    return binlog(moment)


def _duration(text: bytes) -> timedelta:
    sign = -1 if text.startswith(b"-") else 1
    whole, _, fraction = text.lstrip(b"-").decode().partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    micros = int(fraction.ljust(6, "0"))
    return sign * timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
