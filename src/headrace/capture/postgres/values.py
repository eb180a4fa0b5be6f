"""PostgreSQL's text of a value, as Debezium's JSON.

A *renderer* takes the text of one value and gives JSON; a type whose text is JSON already has none. Renderers are
chosen once per column by ``renderer`` and then called per value, so each does one thing and asks nothing.

Some of Debezium's forms are the same for different values: a ``timetz`` brought to GMT, an ``interval`` in
microseconds, a ``varbit`` filled up to bytes, an array without its bounds. Columns of a key are rendered *exactly*: in
these cases they are PostgreSQL's text, so that different keys have different bytes.

A type is known by its name only where it is the server's or an extension's: a user's type may be called ``money``.

The texts are those of a session with ``DateStyle=ISO``, ``IntervalStyle=iso_8601``, ``TimeZone=UTC``,
``bytea_output=hex``: capture sets these on all its connections, the replication connection included.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, partial
from json.encoder import encode_basestring
from typing import TypeAlias

from headrace.capture.envelope import CannotEncode, json_text
from headrace.capture.options import CaptureOptions
from headrace.vocabulary import UNAVAILABLE

__all__ = ["PgType", "Renderer", "big_integer", "is_text", "json_string", "renderer", "renderer_of_all", "unavailable"]

Renderer: TypeAlias = Callable[[bytes], bytes]
RendererOfAll: TypeAlias = Callable[[Sequence[bytes]], Sequence[bytes]]

SESSION_OPTIONS = (
    "-c datestyle=ISO -c intervalstyle=iso_8601 -c timezone=UTC -c bytea_output=hex -c extra_float_digits=1"
    " -c lc_monetary=C -c quote_all_identifiers=off -c search_path=pg_catalog"
    " -c row_security=off -c statement_timeout=0 -c lock_timeout=0"
    " -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0"
)
"""Besides the form of texts, which show the names of tables and functions with their schema: rows that are hidden from
the user are an error, and no limit of time that a database sets for its applications ends a snapshot."""

DAY_US = 86_400_000_000
INFINITE_TIMESTAMPS = {b"infinity": 9223372036825200000, b"-infinity": -9223372036832400000}
INFINITE_DATES = {b"infinity": 2**31 - 1, b"-infinity": -(2**31)}
DAYS_PER_MONTH = 365.25 / 12
INT_DIGITS_MAX = 640
"""The lowest limit that an environment may set for ``int``."""


@dataclass(frozen=True, slots=True)
class PgType:
    """A row of pg_type, as far as it matters here."""

    oid: int
    name: str
    kind: str  # b(ase), c(omposite), d(omain), e(num), r(ange), m(ultirange), p(seudo)
    category: str
    base: int
    element: int
    modifier: int
    is_builtin: bool = True
    """Of the server or one of its extensions; a type that a user made may have any name."""
    delimiter: str = ","


def json_string(value: bytes) -> bytes:
    try:
        return encode_basestring(value.decode()).encode()
    except UnicodeDecodeError as error:
        raise CannotEncode(f"a text is not UTF-8: {error}") from error


def _exact_string(value: bytes) -> bytes:
    """Of a key: bytes that are no UTF-8 (a database in SQL_ASCII) are an object, which is no text's form."""
    try:
        return encode_basestring(value.decode()).encode()
    except UnicodeDecodeError:
        return b'{"bytes":%b}' % _base64(value)


def _int64(number: int, value: bytes) -> bytes:
    """PostgreSQL's extremes in microseconds exceed 64 bits by a little."""
    if not -(2**63) <= number < 2**63:
        raise CannotEncode(f"{value.decode()} has no form in 64 bits (--times strings writes it as text)")
    return b"%d" % number


def _base64(value: bytes) -> bytes:
    return b'"' + b64encode(value) + b'"'


def boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def binary(value: bytes) -> bytes:
    return _base64(bytes.fromhex(value[2:].decode("ascii")))


def floating(value: bytes) -> bytes:
    if value.isdigit() or (value[1:].isdigit() and value[:1] == b"-"):
        return value + b".0"
    if value[-1:] in (b"N", b"y"):
        return b'"' + value + b'"'
    return value


# ---- decimals -------------------------------------------------------------------------------------------------------


def big_integer(number: int) -> bytes:
    """Two's complement in as few bytes as hold it, as Java's BigInteger."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return _base64(number.to_bytes(size, "big", signed=True))


def _unscaled(value: bytes) -> tuple[int, int]:
    whole, _, fraction = value.partition(b".")
    digits = whole + fraction
    # Python takes no text of more than 4,300 digits for an int, and a numeric may have 130,000 before its point.
    number = int(digits) if len(digits) <= INT_DIGITS_MAX else int(Decimal(digits.decode()))
    return number, len(fraction)


def decimal_precise(scale: int, value: bytes) -> bytes:
    if value[-1:] in (b"N", b"y"):
        return json_string(value)  # NaN has no unscaled number; this is no base64
    number, digits = _unscaled(value)
    if digits == scale:
        return big_integer(number)
    return big_integer(number * 10 ** (scale - digits) if scale >= digits else number // 10 ** (digits - scale))


def decimal_variable(value: bytes) -> bytes:
    if value[-1:] in (b"N", b"y"):
        return json_string(value)
    number, scale = _unscaled(value)
    return b'{"scale":%d,"value":%b}' % (scale, big_integer(number))


def money(value: bytes) -> bytes:
    return value.translate(None, b"$,()").replace(b"--", b"-")


def _money_with(render: Renderer, value: bytes) -> bytes:
    return render(money(value))


def _decimal(scale: int | None, options: CaptureOptions) -> Renderer:
    if options.decimals == "string":
        return json_string
    if options.decimals == "double":
        return floating
    return decimal_variable if scale is None else partial(decimal_precise, scale)


def numeric_scale(modifier: int) -> int | None:
    """The declared scale, which may be negative; None when none was declared."""
    if modifier < 4:
        return None
    scale = (modifier - 4) & 0x7FF
    return scale - 0x800 if scale >= 0x400 else scale


# ---- times ----------------------------------------------------------------------------------------------------------

_DATE = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)")
_CLOCK = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_ZONE = re.compile(rb"([+-])(\d\d)(?::?(\d\d))?(?::?(\d\d))?$")
_EPOCH = datetime(1970, 1, 1)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_CYCLE_DAYS = 146_097
"""Days in 400 years, after which the calendar repeats."""


def _days(text: bytes) -> int:
    """Days since 1970, also for years that Python's own dates do not reach."""
    found = _DATE.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no date")
    year = int(found[1])
    if text.endswith(b" BC"):
        year = 1 - year
    cycles, year_in_cycle = divmod(year, 400)
    within = date(year_in_cycle + 400, int(found[2]), int(found[3])).toordinal()
    return within - _EPOCH_ORDINAL + (cycles - 1) * _CYCLE_DAYS


def _clock_us(text: bytes) -> int:
    found = _CLOCK.search(text)
    if found is None:
        raise ValueError(f"{text!r} is no time of day")
    hours, minutes, seconds, fraction = found.groups()
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + int((fraction or b"0").ljust(6, b"0"))


def timestamp_us(text: bytes) -> int:
    try:
        since = datetime.fromisoformat(text.decode()) - _EPOCH
    except ValueError:
        if text in INFINITE_TIMESTAMPS:
            return INFINITE_TIMESTAMPS[text]
        return _days(text) * DAY_US + _clock_us(text)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def timestamp_micros(value: bytes) -> bytes:
    return _int64(timestamp_us(value), value)


def timestamp_millis(value: bytes) -> bytes:
    return b"%d" % (timestamp_us(value) // 1000)


def timestamp_string(value: bytes) -> bytes:
    return b'"' + value.replace(b" ", b"T", 1) + b'"'


def timestamp_zoned(digits: int, value: bytes) -> bytes:
    """Sessions run in UTC, so the text ends in +00. As many digits after the second as the type has."""
    if not value.endswith(b"+00"):
        return json_string(value)
    whole, _, fraction = value[:-3].replace(b" ", b"T", 1).partition(b".")
    return b'"' + whole + (b"." + fraction.ljust(digits, b"0") if digits else b"") + b'Z"'


def date_days(value: bytes) -> bytes:
    return b"%d" % (INFINITE_DATES[value] if value in INFINITE_DATES else _days(value))


def time_micros(value: bytes) -> bytes:
    return b"%d" % _clock_us(value)


def time_millis(value: bytes) -> bytes:
    return b"%d" % (_clock_us(value) // 1000)


def time_zoned(value: bytes) -> bytes:
    """A time of day with its offset, brought to GMT."""
    zone = _ZONE.search(value)
    if zone is None:
        return json_string(value)
    sign, hours, minutes, seconds = zone.groups(b"0")
    offset_us = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000
    clock_us = (_clock_us(value[: zone.start()]) + (offset_us if sign == b"-" else -offset_us)) % DAY_US
    whole_s, fraction_us = divmod(clock_us, 1_000_000)
    text = datetime.fromtimestamp(whole_s, UTC).strftime("%H:%M:%S")
    fraction = f".{fraction_us:06d}".rstrip("0") if fraction_us else ""
    return json_text(f"{text}{fraction}Z")


_INTERVAL = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)


def _interval(value: bytes) -> tuple[list[int], str]:
    found = _INTERVAL.fullmatch(value.decode())
    if found is None:
        raise ValueError(f"{value!r} is no interval")
    years, months, weeks, days, hours, minutes, seconds = found.groups("0")
    return [int(years), int(months), int(weeks) * 7 + int(days), int(hours), int(minutes)], seconds


def interval_micros(value: bytes) -> bytes:
    """A month counts as a twelfth of 365.25 days, as in Debezium."""
    if value in (b"infinity", b"-infinity"):
        return b"%d" % (2**63 - 1 if value[:1] == b"i" else -(2**63))
    (years, months, days, hours, minutes), seconds = _interval(value)
    all_days = (years * 12 + months) * DAYS_PER_MONTH + days
    return _int64(int((((all_days * 24 + hours) * 60 + minutes) * 60 + float(seconds)) * 1_000_000), value)


def interval_string(value: bytes) -> bytes:
    if value in (b"infinity", b"-infinity"):
        return json_string(value)
    (years, months, days, hours, minutes), seconds = _interval(value)
    return json_text(f"P{years}Y{months}M{days}DT{hours}H{minutes}M{seconds}S")


# ---- the rest -------------------------------------------------------------------------------------------------------


def bits(value: bytes) -> bytes:
    """Little endian, as java.util.BitSet."""
    number = int(value or b"0", 2)
    return _base64(number.to_bytes((len(value) + 7) // 8, "little"))


def one_bit(value: bytes) -> bytes:
    return b"true" if value == b"1" else b"false"


def point(value: bytes) -> bytes:
    x, y = value.strip(b"()").split(b",")
    wkb = _base64(struct.pack("<BIdd", 1, 1, float(x), float(y)))
    return b'{"x":%b,"y":%b,"wkb":%b,"srid":null}' % (floating(x), floating(y), wkb)


def vector(value: bytes) -> bytes:
    """int2vector and oidvector: arrays in the catalogue, with their own form of text."""
    return b"[" + value.replace(b" ", b",") + b"]"


_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)', re.DOTALL)

_BACKSLASH = re.compile(r"\\(.)", re.DOTALL)


def hstore(value: bytes) -> bytes:
    """A string that holds JSON, which is Debezium's default for it."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise CannotEncode(f"a text is not UTF-8: {error}") from error
    pairs = {}
    for found in _PAIR.finditer(text):
        key, held = found.groups()
        pairs[_BACKSLASH.sub(r"\1", key)] = None if held is None else _BACKSLASH.sub(r"\1", held)
    return json_text(json.dumps(pairs, separators=(",", ":"), ensure_ascii=False))


_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


@cache
def _elements(delimiter: bytes) -> re.Pattern[bytes]:
    """The tokens of an array. A type may have any delimiter: PostGIS's have a colon."""
    own = re.escape(delimiter)
    return re.compile(rb'[{}%b]|"(?:[^"\\]|\\.)*"|[^{}%b"]+' % (own, own), re.DOTALL)


def array(render: Renderer | None, delimiter: bytes, value: bytes) -> bytes:
    """An array's text has JSON's nesting: braces become brackets, and elements are rendered one by one."""
    if value[:1] == b"[":  # subscripts that do not begin with 1 stand before the array
        value = value.partition(b"=")[2]
    out = []
    for token in _elements(delimiter).findall(value):
        if token == b"{":
            out.append(b"[")
        elif token == b"}":
            out.append(b"]")
        elif token == delimiter:
            out.append(b",")
        elif token == b"NULL":
            out.append(b"null")
        else:
            text = _ESCAPED.sub(rb"\1", token[1:-1]) if token[:1] == b'"' else token
            out.append(text if render is None else render(text))
    return b"".join(out)


def _exact_array(render: Renderer | None, delimiter: bytes, value: bytes) -> bytes:
    return json_string(value) if value[:1] == b"[" else array(render, delimiter, value)


def _exact_timestamp(render: Renderer, value: bytes) -> bytes:
    """Where a number could not tell it from another one, its text."""
    try:
        return json_string(value) if value in INFINITE_TIMESTAMPS else render(value)
    except CannotEncode:
        return json_string(value)


_PLAIN: dict[str, Renderer | None] = {
    "int2": None,
    "int4": None,
    "int8": None,
    "oid": None,
    "xid": None,
    "bool": boolean,
    "bytea": binary,
    "float4": floating,
    "float8": floating,
    "point": point,
    "hstore": hstore,
    "int2vector": vector,
    "oidvector": vector,
}


def renderer(
    oid: int, modifier: int, types: dict[int, PgType], options: CaptureOptions, *, exact: bool = False
) -> Renderer | None:
    """The renderer of a column by its type; None when the text is JSON as it is. Unknown types are strings.

    ``exact``: different values have different bytes, whatever Debezium does.
    """
    kind = types.get(oid)
    if kind is None:
        return _exact_string if exact else json_string
    if kind.kind == "d":
        return renderer(kind.base, kind.modifier, types, options, exact=exact)
    if not kind.is_builtin and kind.category != "A":
        return _exact_string if exact else json_string
    if kind.name in _PLAIN and kind.is_builtin:
        return _PLAIN[kind.name]
    if kind.category == "A" and kind.element:
        element = types.get(kind.element)
        delimiter = b"," if element is None else element.delimiter.encode()
        of_element = renderer(kind.element, modifier, types, options, exact=exact)
        return partial(_exact_array if exact else array, of_element, delimiter)
    return _exact(kind.name, modifier, options) if exact else _parametric(kind.name, modifier, options)


def _exact(name: str, modifier: int, options: CaptureOptions) -> Renderer:
    if name == "timestamp":
        return partial(_exact_timestamp, _parametric(name, modifier, options))
    if name in ("numeric", "money", "timestamptz", "date", "time") or (name == "bit" and modifier > 0):
        return _parametric(name, modifier, options)
    return interval_string if name == "interval" else _exact_string


def _parametric(name: str, modifier: int, options: CaptureOptions) -> Renderer:
    """Types whose form depends on their declared precision or on the options."""
    as_text = options.times == "strings"
    coarse = 0 <= modifier <= 3
    if name == "numeric":
        return _decimal(numeric_scale(modifier), options)
    if name == "money":
        return partial(_money_with, _decimal(2, options))
    if name == "timestamp":
        return timestamp_string if as_text else timestamp_millis if coarse else timestamp_micros
    if name == "timestamptz":
        return partial(timestamp_zoned, modifier if modifier >= 0 else 6)
    if name == "date":
        return json_string if as_text else date_days
    if name == "time":
        return json_string if as_text else time_millis if coarse else time_micros
    if name == "timetz":
        return time_zoned
    if name == "interval":
        return interval_string if as_text else interval_micros
    if name in ("bit", "varbit"):
        return one_bit if name == "bit" and modifier == 1 else bits
    return json_string


# ---- many values at once --------------------------------------------------------------------------------------------


def _all_strings(render: Renderer, values: Sequence[bytes]) -> Sequence[bytes]:
    """One text is escaped whose parts are the values, between zero bytes: no value of PostgreSQL has one.

    What stands for a zero byte then, a value may have written itself. So there are too many parts, and the values
    are rendered one by one; so they are where one of them is not UTF-8.
    """
    try:
        escaped = encode_basestring(b"\0".join(values).decode()).encode()
    except UnicodeDecodeError:
        return list(map(render, values))
    found = escaped.replace(b"\\u0000", b'"\0"').split(b"\0")
    return found if len(found) == len(values) else list(map(render, values))


def _all_timestamp_strings(values: Sequence[bytes]) -> Sequence[bytes]:
    joined = b"\0".join(values)
    if b"BC" in joined:  # with a second space, which stays
        return list(map(timestamp_string, values))
    return (b'"' + joined.replace(b" ", b"T").replace(b"\0", b'"\0"') + b'"').split(b"\0")


def _all_timestamps_zoned(digits: int, values: Sequence[bytes]) -> Sequence[bytes]:
    """Those of the usual length are turned together; a fraction that ends with zeros is shorter, and is filled up."""
    length = len("2026-01-01 00:00:00+00") + (digits + 1 if digits else 0)
    joined = b"\0".join(values) + b"\0"
    if digits and len(joined) != (length + 1) * len(values):
        values = [each if len(each) == length else _filled_up(each, length) for each in values]
        joined = b"\0".join(values) + b"\0"
    places = {10: b" ", 19: b"." if digits else b"+", length: b"\0"}  # a year has four digits, or more
    is_usual = len(joined) == (length + 1) * len(values) and joined.count(b"+00\0") == len(values)
    if not is_usual or any(joined[at :: length + 1] != sign * len(values) for at, sign in places.items()):
        return list(map(partial(timestamp_zoned, digits), values))
    return (b'"' + joined.replace(b" ", b"T").replace(b"+00\0", b'Z"\0"')).split(b"\0")[:-1]


def _filled_up(value: bytes, length: int) -> bytes:
    """A moment of UTC with all digits of its type; anything else as it is."""
    whole, zone = value[:-3], value[-3:]
    if zone != b"+00" or len(value) > length:
        return value
    return (whole if b"." in whole else whole + b".").ljust(length - 3, b"0") + zone


_OF_ALL: dict[Renderer, RendererOfAll] = {
    json_string: partial(_all_strings, json_string),
    _exact_string: partial(_all_strings, _exact_string),
    timestamp_string: _all_timestamp_strings,
    boolean: lambda values: list(map({b"t": b"true", b"f": b"false"}.__getitem__, values)),
}


def renderer_of_all(render: Renderer | None) -> RendererOfAll | None:
    """What renders many values at once, to the same bytes; None: nothing is faster than one by one."""
    if isinstance(render, partial) and render.func is timestamp_zoned:
        return partial(_all_timestamps_zoned, *render.args)
    return None if render is None else _OF_ALL.get(render)


def is_text(render: Renderer | None) -> bool:
    """Whether a renderer gives a text of UTF-8 between quotes, escaped."""
    return render is json_string or render is _exact_string


def unavailable(oid: int, types: dict[int, PgType]) -> bytes:
    """Debezium's stand-in for a value that was not sent, in the form of its type."""
    kind = types.get(oid)
    if kind is not None and kind.kind == "d":
        return unavailable(kind.base, types)
    if kind is not None and kind.name == "bytea" and kind.is_builtin:
        return _base64(UNAVAILABLE.encode())
    if kind is not None and kind.category == "A":
        return b'["' + UNAVAILABLE.encode() + b'"]'
    return b'"' + UNAVAILABLE.encode() + b'"'
