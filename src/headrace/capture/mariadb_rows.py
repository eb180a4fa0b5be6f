"""Rows of the binlog, from their bytes: compiled per shape of a table, since the library's own way is the slowest part.

What is left of a rows event when the library has read its header is one row behind the other: null bits, one per column
(all are present, with binlog_row_image=FULL), then the values that are not null, packed without gaps. An update has two
of these per row, before and after. How a value is packed follows from its type and the metadata of its column. Lengths
are checked against the bytes that remain: a slice that comes out short is an error, never a shorter value.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from struct import Struct
from typing import Any, TypeAlias

from pymysql.charset import charset_by_name
from pymysqlreplication.constants import FIELD_TYPE

from headrace.errors import HeadraceError

__all__ = ["DECIMAL_DIGITS", "MalformedBinlog", "RowDecoder"]

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

_EPOCH = datetime(1970, 1, 1)
DECIMAL_DIGITS = Context(prec=70)
"""MariaDB's decimals have up to 65 digits, where Python's own context rounds to 28."""
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""How many bytes hold so many digits of a decimal; nine take four."""


class MalformedBinlog(HeadraceError):
    """A row does not end where its event does: the binlog is damaged, or has a type that is not known here."""


class RowDecoder:
    """Reads the rows of one shape of a table."""

    def __init__(self, columns: list[Any]) -> None:
        self._readers = [_reader_of(each) for each in columns]
        self._null_bytes = (len(columns) + 7) // 8
        self._bits = [(place // 8, 1 << place % 8) for place in range(len(columns))]

    def rows(self, data: bytes) -> list[list[Any]]:
        """Every row in order; of an update, every row before and after by turns."""
        rows = []
        at, end = 0, len(data)
        while at < end:
            row, at = self._row(data, at)
            rows.append(row)
        if at != end:
            raise MalformedBinlog(f"a row of the binlog ends {at - end} bytes behind its event")
        return rows

    def _row(self, data: bytes, at: int) -> tuple[list[Any], int]:
        nulls = data[at : at + self._null_bytes]
        at += self._null_bytes
        row: list[Any] = []
        try:
            for (byte, bit), read in zip(self._bits, self._readers, strict=True):
                if nulls[byte] & bit:
                    row.append(None)
                else:
                    value, at = read(data, at)
                    row.append(value)
        except (IndexError, ValueError, UnicodeDecodeError) as error:
            raise MalformedBinlog(f"a row of the binlog cannot be read: {error}") from error
        return row, at


def _reader_of(column: Any) -> Reader:
    """By type; what a type needs besides is bound here, once."""
    kind = column.type
    if kind in _INTEGERS:
        return _integer(*_INTEGERS[kind], signed=not column.unsigned)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == FIELD_TYPE.NEWDECIMAL:
        return _decimal(column.precision, column.decimals)
    if kind in _FRACTIONAL:
        return partial(_FRACTIONAL[kind], (column.fsp + 1) // 2)
    if kind in (FIELD_TYPE.VARCHAR, FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING):
        width = 2 if column.max_length > 255 else 1
        is_fixed = kind == FIELD_TYPE.STRING and _encoding(column.character_set_name) is None
        return partial(_padded, width, column.max_length) if is_fixed else _text(width, column)
    if kind in (FIELD_TYPE.BLOB, FIELD_TYPE.GEOMETRY, FIELD_TYPE.JSON):
        return _text(column.length_size, column)
    if kind == FIELD_TYPE.ENUM:
        return partial(_enumerated, column.size, column.enum_values or [])
    if kind == FIELD_TYPE.SET:
        return partial(_set, column.size, column.set_values or [])
    if kind == FIELD_TYPE.BIT:
        return partial(_bytes, column.bytes)
    raise MalformedBinlog(f"column {column.name!r} has type {kind}, which capture does not know")


# ---- numbers --------------------------------------------------------------------------------------------------------

_INTEGERS = {
    FIELD_TYPE.TINY: ("b",),
    FIELD_TYPE.SHORT: ("h",),
    FIELD_TYPE.LONG: ("i",),
    FIELD_TYPE.LONGLONG: ("q",),
    FIELD_TYPE.INT24: ("",),
}


def _integer(code: str, *, signed: bool) -> Reader:
    if not code:
        return partial(_integer_of_three, signed)
    packed = Struct("<" + (code if signed else code.upper()))
    return partial(_unpacked, packed.unpack_from, packed.size)


def _unpacked(unpack: Callable[[bytes, int], tuple[Any, ...]], size: int, data: bytes, at: int) -> tuple[Any, int]:
    if at + size > len(data):
        raise IndexError("it ends inside a number")
    return unpack(data, at)[0], at + size


def _integer_of_three(signed: bool, data: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(_cut(data, at, 3), "little", signed=signed), at + 3


def _cut(data: bytes, at: int, size: int) -> bytes:
    piece = data[at : at + size]
    if len(piece) != size:
        raise IndexError(f"{size} bytes are announced where {len(piece)} remain")
    return piece


def _year(data: bytes, at: int) -> tuple[int, int]:
    return (data[at] + 1900 if data[at] else 0), at + 1


def _decimal(precision: int, scale: int) -> Reader:
    """Nine digits to four bytes, the odd ones in front of the whole part and behind the fraction in fewer."""
    whole_nines, whole_odd = divmod(precision - scale, 9)
    nines, odd = divmod(scale, 9)
    parts = [(_DECIMAL_BYTES[whole_odd], whole_odd)] if whole_odd else []
    parts += [(4, 9)] * (whole_nines + nines)
    parts += [(_DECIMAL_BYTES[odd], odd)] if odd else []
    size = sum(each for each, _ in parts)
    inverted = (1 << 8 * size) - 1
    sign_bit = 1 << (8 * size - 1)

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        number = int.from_bytes(_cut(data, at, size), "big") ^ sign_bit
        negative = bool(number & sign_bit)
        if negative:
            number ^= inverted
        unscaled, left = 0, 8 * size
        for width, digits in parts:
            left -= 8 * width
            unscaled = unscaled * 10**digits + (number >> left & (1 << 8 * width) - 1)
        return Decimal(-unscaled if negative else unscaled).scaleb(-scale, DECIMAL_DIGITS), at + size

    return read


# ---- times ----------------------------------------------------------------------------------------------------------


def _date(data: bytes, at: int) -> tuple[date | None, int]:
    packed = int.from_bytes(_cut(data, at, 3), "little")
    day, month, year = packed & 31, packed >> 5 & 15, packed >> 9
    return (date(year, month, day) if year and month and day else None), at + 3


def _micros(width: int, data: bytes, at: int) -> int:
    """A fraction of one to three bytes counts hundredths, ten thousandths or millionths."""
    return int.from_bytes(_cut(data, at, width), "big") * 100 ** (3 - width) if width else 0


def _datetime(width: int, data: bytes, at: int) -> tuple[datetime | None, int]:
    packed = int.from_bytes(_cut(data, at, 5), "big") - 0x8000000000
    year, month = divmod(packed >> 22 & 0x1FFFF, 13)
    day, hour, minute, second = packed >> 17 & 31, packed >> 12 & 31, packed >> 6 & 63, packed & 63
    micros = _micros(width, data, at + 5)
    whole = bool(year and month and day)
    return (datetime(year, month, day, hour, minute, second, micros) if whole else None), at + 5 + width


def _timestamp(width: int, data: bytes, at: int) -> tuple[datetime | None, int]:
    seconds = int.from_bytes(_cut(data, at, 4), "big")
    micros = _micros(width, data, at + 4)
    return (_EPOCH + timedelta(seconds=seconds, microseconds=micros) if seconds else None), at + 4 + width


def _time(width: int, data: bytes, at: int) -> tuple[timedelta, int]:
    """Whole seconds and fraction are one number, offset so that a negative time sorts before a positive one."""
    size = 3 + width
    packed = int.from_bytes(_cut(data, at, size), "big") - (0x800000 << 8 * width)
    sign, packed = (-1, -packed) if packed < 0 else (1, packed)
    whole, fraction = packed >> 8 * width, packed & (1 << 8 * width) - 1
    micros = fraction * 100 ** (3 - width) if width else 0
    seconds = (whole >> 12 & 0x3FF) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
    return sign * timedelta(seconds=seconds, microseconds=micros), at + size


_FRACTIONAL: dict[int, Callable[[int, bytes, int], tuple[Any, int]]] = {
    FIELD_TYPE.DATETIME2: _datetime,
    FIELD_TYPE.TIMESTAMP2: _timestamp,
    FIELD_TYPE.TIME2: _time,
}
_PLAIN: dict[int, Reader] = {
    FIELD_TYPE.FLOAT: partial(_unpacked, Struct("<f").unpack_from, 4),
    FIELD_TYPE.DOUBLE: partial(_unpacked, Struct("<d").unpack_from, 8),
    FIELD_TYPE.YEAR: _year,
    FIELD_TYPE.DATE: _date,
    FIELD_TYPE.NEWDATE: _date,
}


# ---- texts ----------------------------------------------------------------------------------------------------------


def _text(width: int, column: Any) -> Reader:
    """A counted text in the column's character set; bytes where that is binary."""
    encoding = _encoding(column.character_set_name)
    if encoding is None:
        return partial(_counted, width)

    def read(data: bytes, at: int) -> tuple[str, int]:
        piece, end = _counted(width, data, at)
        return piece.decode(encoding), end

    return read


def _counted(width: int, data: bytes, at: int) -> tuple[bytes, int]:
    start = at + width
    end = start + (data[at] if width == 1 else int.from_bytes(_cut(data, at, width), "little"))
    if end > len(data):
        raise IndexError(f"a text of {end - start} bytes is announced where {len(data) - start} remain")
    return data[start:end], end


def _padded(width: int, size: int, data: bytes, at: int) -> tuple[bytes, int]:
    """BINARY(n) has n bytes everywhere but here, where its last zeros are left out."""
    piece, end = _counted(width, data, at)
    return piece.ljust(size, b"\0"), end


def _encoding(name: str | None) -> str | None:
    if name is None:
        return "utf-8"
    known = charset_by_name(name)
    encoding = known.encoding if known is not None else name
    try:
        return codecs.lookup(encoding).name if encoding else None
    except LookupError:
        return None


def _bytes(size: int, data: bytes, at: int) -> tuple[bytes, int]:
    return _cut(data, at, size), at + size


def _enumerated(size: int, values: list[str], data: bytes, at: int) -> tuple[str, int]:
    return values[int.from_bytes(_cut(data, at, size), "little")], at + size


def _set(size: int, values: list[str], data: bytes, at: int) -> tuple[str, int]:
    chosen = int.from_bytes(_cut(data, at, size), "little")
    return ",".join(each for place, each in enumerate(values) if chosen >> place & 1), at + size
