"""PostgreSQL's texts as Debezium's JSON, type by type."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.envelope import CannotEncode
from headrace.capture.options import CaptureOptions
from headrace.capture.postgres import values
from headrace.capture.postgres.schemas import schema_of
from headrace.capture.postgres.snapshot import Lines, SeenTransactions, copied_columns, copied_fields
from headrace.capture.postgres.values import PgType, json_string, renderer, renderer_of_all, unavailable

OPTIONS = CaptureOptions(name="x", url="postgresql://x/y", decimals="precise", times="numbers")
STRINGS = CaptureOptions(name="x", url="postgresql://x/y")
NAMES = ["int8", "float8", "float4", "numeric", "money", "bool", "bytea", "text", "jsonb", "uuid", "bit", "varbit"]
NAMES += ["timestamp", "timestamptz", "date", "time", "timetz", "interval", "point", "hstore"]
OIDS = {name: number for number, name in enumerate(NAMES, 1000)}
TYPES = {oid: PgType(oid, name, "b", "X", 0, 0, -1) for name, oid in OIDS.items()}
TYPES[2000] = PgType(2000, "_numeric", "b", "A", 0, OIDS["numeric"], -1)
TYPES[2001] = PgType(2001, "_text", "b", "A", 0, OIDS["text"], -1)
TYPES[2002] = PgType(2002, "price", "d", "N", OIDS["numeric"], 0, (8 << 16 | 3) + 4)
TYPES[2003] = PgType(2003, "_timestamp", "b", "A", 0, OIDS["timestamp"], -1)
TYPES[2004] = PgType(2004, "blob", "d", "U", OIDS["bytea"], 0, -1)
TYPES[2005] = PgType(2005, "uuid", "c", "C", 0, 0, -1, is_builtin=False)
OIDS |= {"_numeric": 2000, "_text": 2001, "price": 2002, "_timestamp": 2003, "blob": 2004, "app.uuid": 2005}
OIDS["unknown"] = 9999


def rendered(kind: str, text: str, modifier: int = -1, options: CaptureOptions = OPTIONS) -> Any:
    render = renderer(OIDS[kind], modifier, TYPES, options)
    return json.loads(text if render is None else render(text.encode()))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int8", "-9223372036854775808", -(2**63)),
        ("float8", "1", 1.0),
        ("float8", "-3", -3.0),
        ("float8", "1e+300", 1e300),
        ("float8", "NaN", "NaN"),
        ("float4", "-Infinity", "-Infinity"),
        (
            "numeric",
            "-1.50",
            {"scale": 2, "value": base64.b64encode((-150).to_bytes(2, "big", signed=True)).decode()},
        ),
        ("numeric", "NaN", "NaN"),
        ("money", "$1,234.50", base64.b64encode((123450).to_bytes(3, "big")).decode()),
        ("money", "-$1.00", base64.b64encode((-100).to_bytes(1, "big", signed=True)).decode()),
        ("bool", "f", False),
        ("bytea", "\\x00ff", "AP8="),
        ("text", 'a"b\\c\n\u00e9\U0001f600', 'a"b\\c\n\u00e9\U0001f600'),
        ("jsonb", '{"a": 1}', '{"a": 1}'),
        ("timestamp", "1970-01-01 00:00:00", 0),
        ("timestamp", "1969-12-31 23:59:59.5", -500_000),
        ("timestamp", "20000-01-01 00:00:00", 568_971_820_800_000_000),
        ("timestamp", "0044-03-15 12:00:00 BC", -63_517_780_800_000_000),
        ("timestamp", "infinity", 9223372036825200000),
        ("timestamptz", "2026-01-02 01:04:05.12+00", "2026-01-02T01:04:05.120000Z"),
        ("timestamptz", "2026-01-02 01:04:05+00", "2026-01-02T01:04:05.000000Z"),
        ("timestamptz", "infinity", "infinity"),
        ("date", "1969-12-31", -1),
        ("date", "infinity", 2**31 - 1),
        ("time", "24:00:00", 86_400_000_000),
        ("timetz", "01:00:00.5+02", "23:00:00.5Z"),
        ("timetz", "10:00:00-03:30", "13:30:00Z"),
        ("interval", "P1M2D", 2_802_600_000_000),
        ("interval", "P-1Y2M-3DT-4H5M-6.7S", -26_571_306_700_000),
        ("interval", "PT0S", 0),
        ("varbit", "1000000001", "AQI="),
        ("point", "(1.5,-2)", {"x": 1.5, "y": -2.0, "wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": None}),
        ("hstore", '"a"=>"1", "b\\"c"=>NULL', '{"a":"1","b\\"c":null}'),
        ("unknown", "(1,2)", "(1,2)"),
        ("_text", '{a,"b,\\"c\\\\",NULL,"NULL",""}', ["a", 'b,"c\\', None, "NULL", ""]),
        ("_text", "{{a,b},{c,d}}", [["a", "b"], ["c", "d"]]),
        ("_text", "[0:1]={x,y}", ["x", "y"]),
        ("_text", "{}", []),
        ("_timestamp", '{"1970-01-01 00:00:01"}', [1_000_000]),
        ("price", "1.250", base64.b64encode((1250).to_bytes(2, "big")).decode()),
    ],
)
def test_a_value_becomes_what_debezium_writes(kind: str, text: str, expected: Any) -> None:
    assert rendered(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "modifier", "text", "expected"),
    [
        ("timestamp", 3, "1970-01-01 00:00:01.234", 1234),
        ("time", 0, "00:00:01", 1000),
        ("timestamptz", 0, "2026-01-02 01:04:05+00", "2026-01-02T01:04:05Z"),
        ("bit", 1, "1", True),
        ("bit", 9, "100000001", "AQE="),
        ("numeric", ((10 << 16) | (-2 & 0x7FF)) + 4, "1200", base64.b64encode(b"\x0c").decode()),
    ],
)
def test_declared_precision_decides_the_form(kind: str, modifier: int, text: str, expected: Any) -> None:
    assert rendered(kind, text, modifier) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("numeric", "-1.50", "-1.50"),
        ("timestamp", "2026-01-02 03:04:05.5", "2026-01-02T03:04:05.5"),
        ("date", "2026-01-02", "2026-01-02"),
        ("time", "03:04:05", "03:04:05"),
        ("interval", "P1M2DT3S", "P0Y1M2DT0H0M3S"),
        ("money", "$1,234.50", "1234.50"),
    ],
)
def test_strings_are_for_those_who_want_them(kind: str, text: str, expected: str) -> None:
    assert rendered(kind, text, options=STRINGS) == expected


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12))
def test_a_precise_decimal_is_javas_big_integer(number: Decimal) -> None:
    text = f"{number:f}"
    unscaled = int.from_bytes(
        base64.b64decode(json.loads(values.decimal_precise(3, text.encode()))), "big", signed=True
    )
    assert unscaled == int(number * 1000)
    assert json.loads(values.decimal_variable(text.encode()))["scale"] == 3


@given(st.datetimes())
def test_a_timestamp_is_microseconds_since_1970(moment: datetime) -> None:
    expected = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert values.timestamp_us(str(moment).encode()) == expected
    assert values._days(str(moment).encode()) * values.DAY_US + values._clock_us(str(moment).encode()) == expected


@given(st.dates())
def test_a_date_is_days_since_1970(day: date) -> None:
    assert int(values.date_days(str(day).encode())) == (day - date(1970, 1, 1)).days


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))))
def test_any_text_is_valid_json_that_says_the_same(text: str) -> None:
    assert json.loads(values.json_string(text.encode())) == text


def test_a_value_that_was_not_sent_stands_in_by_its_type() -> None:
    assert unavailable(OIDS["text"], TYPES) == b'"__debezium_unavailable_value"'
    assert unavailable(OIDS["_text"], TYPES) == b'["__debezium_unavailable_value"]'
    for each in ("bytea", "blob"):
        assert base64.b64decode(json.loads(unavailable(OIDS[each], TYPES))) == b"__debezium_unavailable_value"


def test_bits_of_any_number_are_different_keys() -> None:
    """A column that CREATE TABLE AS made of B'1' has no declared length."""
    of_key = renderer(OIDS["bit"], -1, TYPES, OPTIONS, exact=True)
    assert of_key is not None
    assert len({of_key(each) for each in (b"1", b"01", b"001")}) == 3


@pytest.mark.parametrize("kind", ["timetz", "interval", "bit", "varbit"])
def test_the_schema_of_a_key_is_that_of_what_is_written(kind: str) -> None:
    """Of a key these are PostgreSQL's text."""
    render = renderer(OIDS[kind], -1, TYPES, OPTIONS, exact=True)
    assert render is not None
    assert isinstance(json.loads(render(b"P1M" if kind == "interval" else b"101")), str)
    assert schema_of(OIDS[kind], -1, TYPES, OPTIONS, exact=True)["type"] == "string"


def test_a_users_type_with_the_name_of_a_builtin_one_is_a_text_without_a_meaning() -> None:
    assert schema_of(OIDS["app.uuid"], -1, TYPES, OPTIONS) == {"type": "string"}


# ---- the snapshot's own texts ---------------------------------------------------------------------------------------

_COPY = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}


plain_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
copied_texts = st.one_of(st.none(), plain_texts, st.text("\\\t\nntNb"))


def copied_line(row: list[str | None]) -> bytes:
    fields = ["\\N" if each is None else "".join(_COPY.get(letter, letter) for letter in each) for each in row]
    return "\t".join(fields).encode() + b"\n"


@pytest.mark.parametrize("sign", [",", ";", ":", "^", "]", "-"])
def test_an_array_of_a_type_with_any_delimiter_is_an_array(sign: str) -> None:
    """PostGIS separates geometries by a colon."""
    types = {
        3000: PgType(3000, "_geometry", "b", "A", 0, 3001, -1),
        3001: PgType(3001, "geometry", "b", "U", 0, 0, -1, delimiter=sign),
    }
    render = renderer(3000, -1, types, STRINGS)
    assert render is not None
    assert json.loads(render(f'{{a.b{sign}NULL{sign}"c{sign}d"}}'.encode())) == ["a.b", None, f"c{sign}d"]


@pytest.mark.parametrize("text", ["9" * 5_000, "-0." + "1" * 6_000, "1" + "0" * 20_000])
def test_a_decimal_of_any_length_is_its_unscaled_number(text: str) -> None:
    found = rendered("numeric", text)
    number = int.from_bytes(base64.b64decode(found["value"]), "big", signed=True)
    assert (Decimal(number), found["scale"]) == (Decimal(text.replace(".", "")), len(text.partition(".")[2]))


@given(st.lists(copied_texts, min_size=1))
def test_a_line_of_copy_gives_the_values_that_went_into_it(row: list[str | None]) -> None:
    assert copied_fields(copied_line(row)) == [None if each is None else each.encode() for each in row]


@given(st.integers(1, 4).flatmap(lambda count: st.lists(st.lists(copied_texts, min_size=count, max_size=count))))
def test_lines_of_copy_as_columns_have_the_values_of_the_lines(rows: list[list[str | None]]) -> None:
    lines = [copied_line(row) for row in rows]
    columns = copied_columns(b"".join(lines), len(rows[0]) if rows else 2)
    assert [list(each) for each in zip(*columns, strict=True)] == [copied_fields(each) for each in lines]


likely_plain = st.one_of(st.text("aé\x7f\u2028😀 "), copied_texts)


@given(
    st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(likely_plain, min_size=n, max_size=n), min_size=1)),
)
def test_lines_are_plain_when_every_value_stands_in_json_as_copy_gives_it(rows: list[list[str | None]]) -> None:
    made = [copied_line(row) for row in rows]
    lines = Lines(b"".join(made), len(made), max(map(len, made)))
    is_plain = all(
        each is not None and json_string(each.encode()) == b'"%b"' % each.encode() for row in rows for each in row
    )
    assert lines.is_plain(len(rows[0])) == is_plain
    assert lines.last == made[-1]


@pytest.mark.parametrize("value", [b"\xff", b"\x01", b"\x1f", b'"', b"\\\\", b"\\N", b"a\\tb"])
def test_one_value_that_json_or_copy_escapes_makes_lines_not_plain(value: bytes) -> None:
    assert Lines(b"a\tb\nc\td\n", 2, 4).is_plain(2)
    assert not Lines(b"a\tb\nc\t" + value + b"\n", 2, 4).is_plain(2)
    assert not Lines(b"\n\n", 2, 1).is_plain(0)


@pytest.mark.parametrize(("kind", "exact"), [("text", False), ("text", True), ("timestamp", False), ("bool", False)])
@given(data=st.data())
def test_values_rendered_together_are_those_rendered_one_by_one(kind: str, exact: bool, data: st.DataObject) -> None:
    days = [b"2024-02-29 12:00:00", b"infinity", b"-infinity", b"0044-03-15 00:00:00 BC", b"1969-12-31 23:59:59.5"]
    likely = [b"", b"\\", b"\\u0000", b'"', b'\\"', b"u0000", b"\n", b"\x01", "é😀".encode()]
    strategies = {
        "text": st.one_of(st.lists(st.sampled_from(likely)).map(b"".join), plain_texts.map(str.encode)),
        "timestamp": st.sampled_from(days),
        "bool": st.sampled_from([b"t", b"f"]),
    }
    given_values = data.draw(st.lists(strategies[kind], min_size=1, max_size=6))
    render = renderer(OIDS[kind], -1, TYPES, STRINGS, exact=exact)
    together = renderer_of_all(render)
    assert render is not None
    assert together is not None
    assert list(together(given_values)) == [render(each) for each in given_values]


ZONED = st.builds(
    lambda year, fraction, zone: f"{year}-02-28 12:34:56{fraction}{zone}".encode(),
    st.sampled_from(["2024", "0001", "12024", "294276"]),
    st.integers(0, 999_999).map(lambda each: f".{each:06d}".rstrip("0").rstrip(".")) | st.just(".12345"),
    st.sampled_from(["+00", "+00", "+00 BC", "+01", "+05:30"]),
)


@given(st.lists(ZONED | st.sampled_from([b"infinity", b"-infinity"]), min_size=1, max_size=6), st.integers(0, 6))
def test_moments_rendered_together_are_those_rendered_one_by_one(given_values: list[bytes], digits: int) -> None:
    shorter = [each for each in given_values if len(each.partition(b".")[2].partition(b"+")[0]) <= digits]
    render = renderer(OIDS["timestamptz"], digits, TYPES, STRINGS)
    together = renderer_of_all(render)
    assert render is not None
    assert together is not None
    assert list(together(shorter)) == [render(each) for each in shorter]


def test_a_text_that_is_not_utf_8_is_refused_among_others_too() -> None:
    render = renderer(OIDS["text"], -1, TYPES, STRINGS)
    together, together_exactly = renderer_of_all(render), renderer_of_all(values._exact_string)
    assert together is not None
    assert together_exactly is not None
    with pytest.raises(CannotEncode, match="not UTF-8"):
        together([b"fine", b"\xff"])
    assert together_exactly([b"fine", b"\xff"]) == [b'"fine"', b'{"bytes":"/w=="}']


def test_what_a_snapshot_has_seen_is_known_by_32_bits_of_a_transaction() -> None:
    seen = SeenTransactions("100:110:103,107")
    assert [xid for xid in range(98, 113) if seen.sees(xid)] == [98, 99, 100, 101, 102, 104, 105, 106, 108, 109]
    epoch = 3 << 32
    around = SeenTransactions(f"{epoch - 5}:{epoch + 5}:{epoch - 2}")
    ids = [2**32 - 6, 2**32 - 5, 2**32 - 2, 2**32 - 1, 0, 4, 5]
    assert [around.sees(each) for each in ids] == [True, True, False, True, True, True, False]
