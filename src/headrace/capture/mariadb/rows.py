"""Columns and rows of the binlog, from their bytes: compiled per shape of a table.

A ``TableMap`` event describes the columns: a type each, two bytes of details at most, and in a list of tagged fields
(``binlog_row_metadata=FULL``) their names, character sets, values of ENUM and SET, which are unsigned, and the primary
key.

The rows of an event follow one another: null bits, one per column (all are present, with ``binlog_row_image=FULL``),
then the values that are not null, packed without gaps. An update has two of these per row, before and after. How a
value is packed follows from its type and details. Lengths are checked against the bytes that remain: a slice that comes
out short is an error, never a shorter value.

A value that MariaDB holds and that is no text or date (bytes outside of the character set, the 31st of February) comes
as ``Unreadable``: its row still differs from others, and the next one can be read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from functools import partial
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from headrace.capture.mariadb.charsets import Charsets, Unreadable
from headrace.capture.mariadb.events import MalformedBinlog, Rows, length_coded
from headrace.errors import UsageError

__all__ = ["DECIMAL_DIGITS", "BinlogColumn", "FieldType", "RowDecoder", "ZeroDate", "columns_of"]

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

_EPOCH = datetime(1970, 1, 1)
DECIMAL_DIGITS = Context(prec=70)
"""MariaDB's decimals have up to 65 digits, where Python's own context rounds to 28."""
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""How many bytes hold so many digits of a decimal; nine take four."""


class FieldType:
    """MariaDB's numbers of types, as they stand in the binlog."""

    TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DATE, YEAR, NEWDATE = 1, 2, 3, 4, 5, 8, 9, 10, 13, 14
    TIMESTAMP, TIME, DATETIME = 7, 11, 12
    VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 15, 16, 17, 18, 19
    BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
    NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 246, 247, 248, 252, 253, 254, 255


_T = FieldType
DETAIL_BYTES = {
    **dict.fromkeys((_T.FLOAT, _T.DOUBLE, _T.BLOB, _T.GEOMETRY, _T.BLOB_COMPRESSED), 1),
    **dict.fromkeys((_T.TIMESTAMP2, _T.DATETIME2, _T.TIME2, 249, 250, 251), 1),
    **dict.fromkeys((_T.VARCHAR, _T.VARCHAR_COMPRESSED, _T.BIT, _T.NEWDECIMAL, _T.VAR_STRING, _T.STRING), 2),
    **dict.fromkeys((_T.ENUM, _T.SET), 2),
}
NUMERIC = frozenset((_T.TINY, _T.SHORT, _T.INT24, _T.LONG, _T.LONGLONG, _T.NEWDECIMAL, _T.FLOAT, _T.DOUBLE, _T.YEAR))
CHARACTER = frozenset(
    (_T.STRING, _T.VAR_STRING, _T.VARCHAR, _T.BLOB, _T.GEOMETRY, _T.VARCHAR_COMPRESSED, _T.BLOB_COMPRESSED)
)
SIGNEDNESS, DEFAULT_CHARSET, COLUMN_CHARSET, COLUMN_NAME, SET_VALUES, ENUM_VALUES = 1, 2, 3, 4, 5, 6
PRIMARY_KEY, PRIMARY_KEY_PREFIX, ENUM_SET_DEFAULT_CHARSET, ENUM_SET_COLUMN_CHARSET = 8, 9, 10, 11


class BinlogColumn(NamedTuple):
    """A column as a ``TableMap`` event describes it; ``collation`` is 0 where there is none."""

    name: str
    type: int
    detail: int = 0
    unsigned: bool = False
    collation: int = 0
    values: tuple[bytes, ...] = ()
    key: bool = False


def columns_of(details: bytes) -> tuple[BinlogColumn, ...]:
    """The columns of a table, from the end of its ``TableMap`` event."""
    try:
        return _columns_of(details)
    except (IndexError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise MalformedBinlog(f"a table of the binlog cannot be read: {error}") from error


def _columns_of(details: bytes) -> tuple[BinlogColumn, ...]:
    count, at = length_coded(details, 0)
    types = list(_cut(details, at, count))
    size, at = length_coded(details, at + count)
    packed, at = _cut(details, at, size), at + size + (count + 7) // 8
    fields = dict(_fields(details, at))
    details_of = list(_details(types, packed))
    for place, (kind, detail) in enumerate(zip(types, details_of, strict=True)):
        if kind == _T.STRING and detail >> 8 in (_T.ENUM, _T.SET):  # they hide as strings
            types[place], details_of[place] = detail >> 8, detail & 0xFF
    names = [each.decode() for each in _strings(fields.get(COLUMN_NAME, b""))]
    if len(names) != count:
        raise UsageError(
            "the binlog has changes without the names of columns", "SET GLOBAL binlog_row_metadata = 'FULL'"
        )
    keys = set(_numbers(fields.get(PRIMARY_KEY, b""))) | set(_numbers(fields.get(PRIMARY_KEY_PREFIX, b""))[::2])
    unsigned = _spread(types, NUMERIC, _bits(fields.get(SIGNEDNESS, b"")))
    collations = _collations(types, CHARACTER, fields.get(DEFAULT_CHARSET), fields.get(COLUMN_CHARSET))
    chosen = frozenset((_T.ENUM, _T.SET))
    collations |= _collations(types, chosen, fields.get(ENUM_SET_DEFAULT_CHARSET), fields.get(ENUM_SET_COLUMN_CHARSET))
    values = _spread(types, {_T.SET}, _lists(fields.get(SET_VALUES, b"")))
    values |= _spread(types, {_T.ENUM}, _lists(fields.get(ENUM_VALUES, b"")))
    return tuple(
        BinlogColumn(
            names[place],
            types[place],
            details_of[place],
            unsigned.get(place, False),
            collations.get(place, 0),
            values.get(place, ()),
            place in keys,
        )
        for place in range(count)
    )


def _fields(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(data):
        tag = data[at]
        size, at = length_coded(data, at + 1)
        yield tag, _cut(data, at, size)
        at += size


def _details(types: Sequence[int], packed: bytes) -> Iterator[int]:
    """As they are packed: strings, and decimals and bits, which are two numbers, with the first byte in front."""
    at = 0
    for kind in types:
        size = DETAIL_BYTES.get(kind, 0)
        first_in_front = kind in (_T.STRING, _T.NEWDECIMAL, _T.BIT, _T.ENUM, _T.SET)
        yield int.from_bytes(_cut(packed, at, size), "big" if first_in_front else "little")
        at += size


def _spread(types: Sequence[int], chosen: Any, found: Sequence[Any]) -> dict[int, Any]:
    """What was listed for the columns of some types only, by the place of the column."""
    places = [place for place, kind in enumerate(types) if kind in chosen]
    return dict(zip(places, found, strict=False))


def _collations(types: Sequence[int], chosen: Any, default: bytes | None, each: bytes | None) -> dict[int, int]:
    places = [place for place, kind in enumerate(types) if kind in chosen]
    if each is not None:
        return dict(zip(places, _numbers(each), strict=True))
    if default is None:
        return {}
    usual, *others = _numbers(default)
    found = dict.fromkeys(places, usual)
    for number, collation in zip(others[::2], others[1::2], strict=True):
        found[places[number]] = collation
    return found


def _bits(data: bytes) -> list[bool]:
    return [bool(byte & (0x80 >> bit)) for byte in data for bit in range(8)]


def _numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = length_coded(data, at)
        found.append(number)
    return found


def _strings(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, at = length_coded(data, at)
        found.append(_cut(data, at, size))
        at += size
    return found


def _lists(data: bytes) -> list[tuple[bytes, ...]]:
    found, at = [], 0
    while at < len(data):
        count, at = length_coded(data, at)
        values = []
        for _ in range(count):
            size, at = length_coded(data, at)
            values.append(_cut(data, at, size))
            at += size
        found.append(tuple(values))
    return found


class RowDecoder:
    """Reads the rows of one shape of a table."""

    def __init__(self, columns: Sequence[BinlogColumn], charsets: Charsets) -> None:
        self._readers = [_reader_of(each, charsets) for each in columns]
        self._null_bytes = (len(columns) + 7) // 8
        self._bits = [(place // 8, 1 << place % 8) for place in range(len(columns))]
        self._all = (1 << len(columns)) - 1

    def rows(self, event: Rows) -> list[list[Any]]:
        """Every row in order; of an update, every row before and after by turns."""
        for present in event.present:
            if event.column_count != len(self._bits) or int.from_bytes(present, "little") & self._all != self._all:
                raise UsageError("a row of the binlog lacks columns", "SET GLOBAL binlog_row_image = 'FULL'")
        data = event.data
        rows = []
        at, end = 0, len(data)
        while at < end:
            row, at = self._row(data, at)
            rows.append(row)
        if at != end:
            raise MalformedBinlog(f"a row of the binlog ends {at - end} bytes after its event")
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
        except (IndexError, ValueError, zlib.error) as error:
            raise MalformedBinlog(f"a row of the binlog cannot be read: {error}") from error
        return row, at


def _reader_of(column: BinlogColumn, charsets: Charsets) -> Reader:
    """By type; what a type needs besides is bound here, once."""
    kind, detail = column.type, column.detail
    decode = charsets.decoder(column.collation)
    if kind in _INTEGERS:
        return _integer(*_INTEGERS[kind], signed=not column.unsigned)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == _T.NEWDECIMAL:
        return _decimal(detail >> 8, detail & 0xFF)
    if kind in _FRACTIONAL:
        return partial(_FRACTIONAL[kind], (detail + 1) // 2)
    if kind == _T.STRING:
        size = ((detail >> 4 & 0x300) ^ 0x300) + (detail & 0xFF)
        width = 2 if size > 255 else 1
        return partial(_padded, width, size) if decode is None else _text(width, decode)
    if kind in (_T.VARCHAR, _T.VAR_STRING):
        return _text(2 if detail > 255 else 1, decode)
    if kind in (_T.BLOB, _T.GEOMETRY):
        return _text(detail, decode)
    if kind == _T.VARCHAR_COMPRESSED:
        return _compressed(2 if detail > 255 else 1, decode)
    if kind == _T.BLOB_COMPRESSED:
        return _compressed(detail, decode)
    if kind in (_T.ENUM, _T.SET):
        values = [each if decode is None else decode(each) for each in column.values]
        return partial(_enumerated, detail, ["", *values]) if kind == _T.ENUM else partial(_set, detail, values)
    if kind == _T.BIT:
        return partial(_bytes, (detail & 0xFF) + bool(detail >> 8))
    if kind in (_T.TIMESTAMP, _T.TIME, _T.DATETIME):
        raise UsageError(
            f"column {column.name!r} has the form of times of MariaDB 5", "ALTER TABLE … FORCE rewrites it"
        )
    raise MalformedBinlog(f"column {column.name!r} has type {kind}, which capture does not know")


# ---- numbers --------------------------------------------------------------------------------------------------------

_INTEGERS = {
    _T.TINY: ("b",),
    _T.SHORT: ("h",),
    _T.LONG: ("i",),
    _T.LONGLONG: ("q",),
    _T.INT24: ("",),
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
    """Nine digits to four bytes; the odd ones, before the whole part and after the fraction, in fewer."""
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


class ZeroDate(NamedTuple):
    """A date or moment with a zero in its date, which is no day of the calendar, as ISO 8601 would write it."""

    text: str


def _date(data: bytes, at: int) -> tuple[date | Unreadable | ZeroDate, int]:
    packed = int.from_bytes(_cut(data, at, 3), "little")
    day, month, year = packed & 31, packed >> 5 & 15, packed >> 9
    if not (year and month and day):
        return ZeroDate(f"{year:04}-{month:02}-{day:02}"), at + 3
    try:
        return date(year, month, day), at + 3
    except ValueError:
        return Unreadable(f"{year:04}-{month:02}-{day:02} is no date of the calendar"), at + 3


def _micros(width: int, data: bytes, at: int) -> int:
    """A fraction of one to three bytes counts hundredths, ten thousandths or millionths."""
    return int.from_bytes(_cut(data, at, width), "big") * 100 ** (3 - width) if width else 0


def _datetime(width: int, data: bytes, at: int) -> tuple[datetime | Unreadable | ZeroDate, int]:
    packed = int.from_bytes(_cut(data, at, 5), "big") - 0x8000000000
    year, month = divmod(packed >> 22 & 0x1FFFF, 13)
    day, hour, minute, second = packed >> 17 & 31, packed >> 12 & 31, packed >> 6 & 63, packed & 63
    micros = _micros(width, data, at + 5)
    if not (year and month and day):
        fraction = f".{micros:06}".rstrip("0") if micros else ""
        text = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}"
        return ZeroDate(text), at + 5 + width
    try:
        return datetime(year, month, day, hour, minute, second, micros), at + 5 + width
    except ValueError:
        return Unreadable(f"{year:04}-{month:02}-{day:02} is no date of the calendar"), at + 5 + width


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
    _T.DATETIME2: _datetime,
    _T.TIMESTAMP2: _timestamp,
    _T.TIME2: _time,
}
_PLAIN: dict[int, Reader] = {
    _T.FLOAT: partial(_unpacked, Struct("<f").unpack_from, 4),
    _T.DOUBLE: partial(_unpacked, Struct("<d").unpack_from, 8),
    _T.YEAR: _year,
    _T.DATE: _date,
    _T.NEWDATE: _date,
}


# ---- texts ----------------------------------------------------------------------------------------------------------


def _text(width: int, decode: Callable[[bytes], Any] | None) -> Reader:
    """A counted text in the column's character set; bytes where that is binary."""
    if decode is None:
        return partial(_counted, width)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        piece, end = _counted(width, data, at)
        return decode(piece), end

    return read


def _compressed(width: int, decode: Callable[[bytes], Any] | None) -> Reader:
    """Of a column that is COMPRESSED: a byte that tells how, the length, then zlib's; or nothing but the text."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        piece, end = _counted(width, data, at)
        if not piece:
            plain = b""
        elif piece[0] == 0:
            plain = piece[1:]
        else:
            wrapped = -zlib.MAX_WBITS if piece[0] & 8 else zlib.MAX_WBITS
            plain = zlib.decompress(piece[1 + (piece[0] & 7) :], wrapped)
        return (plain if decode is None else decode(plain)), end

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


def _bytes(size: int, data: bytes, at: int) -> tuple[bytes, int]:
    return _cut(data, at, size), at + size


def _enumerated(size: int, values: list[Any], data: bytes, at: int) -> tuple[Any, int]:
    return values[int.from_bytes(_cut(data, at, size), "little")], at + size


def _set(size: int, values: list[Any], data: bytes, at: int) -> tuple[Any, int]:
    chosen = int.from_bytes(_cut(data, at, size), "little")
    found = [each for place, each in enumerate(values) if chosen >> place & 1]
    unreadable = [each for each in found if isinstance(each, Unreadable)]
    return (unreadable[0] if unreadable else ",".join(found)), at + size
