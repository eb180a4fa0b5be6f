"""JSON values of one shape: without a parser they are read as a parser reads them, and others are left to it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.spark.source import json_columns
from headrace.spark.source.json_columns import MISSES_MAX, UNIFORM_ROWS_MIN, JsonColumns, Parsed
from headrace.spark.source.json_uniform import read_uniform
from headrace.spark.source.pieces import PADDING, Pieces, words_of
from headrace.spark.source.short_numbers import short_numbers

FIELDS = [
    pa.field("id", pa.int64()),
    pa.field("small", pa.int16()),
    pa.field("name", pa.string()),
    pa.field("price", pa.float64()),
    pa.field("share", pa.float32()),
    pa.field("paid", pa.bool_()),
    pa.field("item", pa.struct([("sku", pa.string()), ("n", pa.int32()), ("missing", pa.string())])),
    pa.field("absent", pa.struct([("x", pa.int64())])),
]
ORDER = StructType(
    [
        StructField("id", LongType()),
        StructField("name", StringType()),
        StructField("price", DoubleType()),
        StructField("paid", BooleanType()),
        StructField("at", TimestampType()),
        StructField("item", StructType([StructField("sku", StringType()), StructField("n", IntegerType())])),
    ]
)


def texts_of(*values: bytes) -> Pieces:
    return Pieces.of(pa.array(values, pa.binary()))


def read_by_parser(values: list[bytes]) -> list[pa.Array]:
    table = pyarrow.json.read_json(
        pa.BufferReader(b"\n".join(values)),
        read_options=pyarrow.json.ReadOptions(use_threads=False),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=pa.schema(FIELDS), unexpected_field_behavior="ignore"),
    )
    return [column.combine_chunks() for column in table.columns]


def assert_same(found: list[pa.Array] | None, expected: list[pa.Array]) -> None:
    assert found is not None
    for each, other in zip(found, expected, strict=True):
        each.validate(full=True)
        assert each.type == other.type
        assert each.to_pylist() == other.to_pylist()


# ---- one shape -----------------------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=0x20), max_size=20)
decimals = st.decimals(-(10**9), 10**9, places=3, allow_nan=False).map(lambda each: float(each))
plain_decimals = decimals.filter(lambda each: "e" not in repr(each))
members: dict[str, st.SearchStrategy[Any]] = {
    "id": st.none() | st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-(2**15), 2**15 - 1),
    "name": words,
    "price": st.none() | plain_decimals | st.integers(0, 99_999_999),
    "share": st.integers(0, 1000).map(lambda each: each / 4),
    "paid": st.none() | st.booleans(),
    "other": st.none() | plain_decimals,
    "flag": st.none() | st.booleans(),
    "note": words,
}


@st.composite
def values_of_one_shape(draw: st.DrawFn) -> list[bytes]:
    names = draw(st.permutations([*members, "item"]).flatmap(lambda all_: st.integers(1, 10).map(lambda n: all_[:n])))
    inner = draw(st.permutations(["sku", "n", "x"]))
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" , ", " :  ")]))
    kinds = {"sku": words, "n": st.integers(-(2**31), 2**31 - 1), "x": st.just({})}
    item = st.fixed_dictionaries(kinds).map(lambda drawn: {name: drawn[name] for name in inner})
    row = st.fixed_dictionaries({name: members.get(name, item) for name in names})
    drawn_rows = draw(st.lists(row, min_size=1, max_size=12))
    rows = [{name: drawn[name] for name in names} for drawn in drawn_rows]
    ascii_only = all(json.dumps(each).encode() == json.dumps(each, ensure_ascii=False).encode() for each in rows)
    return [json.dumps(each, separators=separators, ensure_ascii=ascii_only).encode() for each in rows]


@given(values_of_one_shape())
@settings(max_examples=150, deadline=None)
def test_values_of_one_shape_are_read_as_the_parser_reads_them(values: list[bytes]) -> None:
    assert_same(read_uniform(texts_of(*values), FIELDS), read_by_parser(values))


def test_a_piece_of_a_longer_column_is_read_alone() -> None:
    values = [b'{"id": %d, "name": "n%d"}' % (each, each) for each in range(100)]
    assert_same(read_uniform(texts_of(*values)[17:22], FIELDS), read_by_parser(values[17:22]))


@pytest.mark.parametrize("longest", [7, 8, 9, 16, 47, 60, 61, 500])
def test_texts_of_any_length_end_where_they_end(longest: int) -> None:
    source = random.Random(longest)
    names = ["x" * longest, *("é" * source.randrange(longest // 2) for _ in range(50))]
    values = [json.dumps({"name": name, "id": at}, ensure_ascii=False).encode() for at, name in enumerate(names)]
    assert_same(read_uniform(texts_of(*values), FIELDS), read_by_parser(values))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 40, 48, 49, 96, 97, 200])
def test_names_of_members_may_have_any_length(size: int) -> None:
    values = [b'{"id": %d, "%s": 5, "name": "ann"}' % (each, b"n" * size) for each in range(20)]
    assert_same(read_uniform(texts_of(*values), FIELDS), read_by_parser(values))
    other = [*values[:-1], values[-1].replace(b'n": 5', b'm": 5')]
    assert read_uniform(texts_of(*other), FIELDS) is None


@pytest.mark.parametrize("value", [b'\n{"id":\t%d,\r\n "name": "a"}\n', b' { "id" : %d , "name" : "a" } '])
def test_white_space_may_stand_where_json_has_it(value: bytes) -> None:
    values = [value % each for each in range(20)]
    assert_same(read_uniform(texts_of(*values), FIELDS), read_by_parser(values))


@given(
    values_of_one_shape(), st.lists(st.sampled_from([b"", b'"', b"{", b'{"id": 1}', b"\x00\xff", b"5"]), min_size=13)
)
@settings(max_examples=50, deadline=None)
def test_what_stands_between_the_values_makes_no_difference(values: list[bytes], between: list[bytes]) -> None:
    data = bytearray(between[-1])
    starts = []
    for value, after in zip(values, between, strict=False):
        starts.append(len(data))
        data += value + after
    pieces = Pieces(bytes(data) + PADDING, np.array(starts), np.array([len(each) for each in values]))
    assert_same(read_uniform(pieces, FIELDS), read_by_parser(values))


# ---- what is left to the parser ------------------------------------------------------------------------------------

USUAL = (
    b'{"id": 5, "name": "ann", "price": 1.5, "paid": true, "extra": 7, "taste": "mild", "note": "to be left", '
    b'"item": {"sku": "a", "n": 1}}'
)
UNUSUAL = {
    "another order": USUAL.replace(b'"id": 5, "name": "ann"', b'"name": "ann", "id": 5'),
    "another name": USUAL.replace(b'"id"', b'"ix"'),
    "a longer name": USUAL.replace(b'"id"', b'"idx"'),
    "one member more": USUAL.replace(b'"id"', b'"z": 1, "id"'),
    "one member less": USUAL.replace(b'"extra": 7, ', b""),
    "another space": USUAL.replace(b'"id": ', b'"id":  '),
    "a tab": USUAL.replace(b'"id": ', b'"id":\t'),
    "an escape": USUAL.replace(b"ann", b"an\\n"),
    "an escaped quotation mark": USUAL.replace(b"ann", b'a\\"n'),
    "a control character": USUAL.replace(b"ann", b"a\x01n"),
    "a byte that is no UTF-8": USUAL.replace(b"ann", b"an\xff"),
    "a byte that is no UTF-8 in a text that nobody asks for": USUAL.replace(b"mild", b"mil\xff"),
    "a control character in a text that nobody asks for": USUAL.replace(b"mild", b"mil\n"),
    "a control character in a name": USUAL.replace(b"extra", b"ex\x01ra"),
    "a quotation mark in a text of the usual length": USUAL.replace(b"to be left", b'to "e left'),
    "a shorter text and another literal": USUAL.replace(b'to be left"', b'to be", "x"'),
    "two objects": USUAL.replace(b"5, ", b'5}{"id": 5, '),
    "an exponent": USUAL.replace(b"1.5", b"1e5"),
    "a plus": USUAL.replace(b"1.5", b"+15"),
    "a zero in front": USUAL.replace(b"1.5", b"015"),
    "a zero in front of a negative": USUAL.replace(b"1.5", b"-01.5"),
    "no digit before the point": USUAL.replace(b"1.5", b".5"),
    "no digit behind the point": USUAL.replace(b"1.5", b"15."),
    "a minus alone": USUAL.replace(b"1.5", b"-"),
    "a negative point": USUAL.replace(b"1.5", b"-.5"),
    "two points": USUAL.replace(b"1.5", b"1.5.5"),
    "a slash": USUAL.replace(b"1.5", b"1/5"),
    "nothing": USUAL.replace(b"1.5", b""),
    "a hexadecimal number": USUAL.replace(b"5,", b"0x5,", 1),
    "a word that is none": USUAL.replace(b"true", b"trux"),
    "a longer word": USUAL.replace(b"true", b"true1"),
    "a false that is none": USUAL.replace(b"true", b"falsx"),
    "a null that is none": USUAL.replace(b"true", b"nulx"),
    "a fraction in an integer": USUAL.replace(b"5,", b"5.5,", 1),
    "an integer that is too long": USUAL.replace(b"5,", b"9223372036854775808,", 1),
    "an integer that is too long for its column": USUAL.replace(b"1}}", b"2147483648}}"),
    "a string for a number": USUAL.replace(b"1.5", b'"1.5"'),
    "a number for a string": USUAL.replace(b'"ann"', b"5"),
    "a list": USUAL.replace(b"1.5", b"[1]"),
    "an object for a number": USUAL.replace(b"1.5", b'{"a": 1}'),
    "a null for an object": USUAL.replace(b'{"sku": "a", "n": 1}', b"null"),
    "a bad number that nobody asks for": USUAL.replace(b"7", b"07"),
    "a bad word that nobody asks for": USUAL.replace(b"7", b"yes"),
    "no brace": USUAL.replace(b"1}}", b"1} "),
    "a comma at the end": USUAL.replace(b"1}}", b"1},}"),
    "a name twice": USUAL.replace(b'"extra"', b'"id"'),
}


@pytest.mark.parametrize("case", UNUSUAL)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_an_unusual_value_leaves_all_to_the_parser(case: str, place: int) -> None:
    assert read_uniform(texts_of(*[USUAL] * 7), FIELDS) is not None
    values = [USUAL] * 7
    values[place] = UNUSUAL[case]
    assert read_uniform(texts_of(*values), FIELDS) is None


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_values_alone_are_read_as_the_parser_reads_them_or_left_to_it(case: str) -> None:
    values = [UNUSUAL[case]] * 3
    found = read_uniform(texts_of(*values), FIELDS)
    assert found is None or "UTF-8" not in case
    if found is not None:
        assert_same(found, read_by_parser(values))


@pytest.mark.parametrize(
    "value", [b"{}", b'{"a": {}}', b'{"id"}', b"{" * 100_000, b'{"id": 1, }', b'{"a":' * 5000 + b"1"]
)
def test_odd_first_values_are_refused_or_read(value: bytes) -> None:
    found = read_uniform(texts_of(value, value), FIELDS)
    assert found is None or found[0].to_pylist() == [None, None]


def test_what_follows_the_last_literal_is_seen() -> None:
    usual = b'{"id": 5, "name": "ann"}'
    assert read_uniform(texts_of(usual, usual), FIELDS) is not None
    assert read_uniform(texts_of(usual, usual + b"}"), FIELDS) is None
    assert read_uniform(texts_of(usual, usual + b" 7}"), FIELDS) is None


def test_an_object_that_is_there_twice_is_left_to_the_parser() -> None:
    value = b'{"id": 5, "item": {"sku": "a"}, "item": {"n": 1}}'
    assert read_uniform(texts_of(value, value), FIELDS) is None


# ---- in front of the parser ----------------------------------------------------------------------------------------


def orders(count: int, source: random.Random) -> list[bytes]:
    made = [
        {
            "id": source.choice([7, -3, 123456789, 10**15]),
            "name": source.choice(["ann", "", "bért", "x" * 30]),
            "price": source.choice([1, 0.5, -2.25, 1234567.891, 0.1]),
            "paid": source.choice([True, False]),
            "at": source.choice(["2026-03-01T10:00:00Z", "2026-03-01T10:00:00.123456Z"]),
            "item": {"sku": source.choice(["a", "sku-17"]), "n": source.randrange(100)},
        }
        for _ in range(count)
    ]
    return [json.dumps(each, ensure_ascii=False).encode() for each in made]


def changed(value: bytes, source: random.Random) -> bytes:
    """With one byte replaced, put in or taken out."""
    at = source.randrange(1, len(value) - 1)
    byte = bytes([source.choice(b'"{}[],:.-0123456789eE+ntf\\ \t\x00\xc3')])
    return value[:at] + source.choice([byte + value[at + 1 :], byte + value[at:], value[at + 1 :]])


def parse(values: list[bytes]) -> tuple[Parsed, JsonColumns]:
    columns = JsonColumns(ORDER)
    return columns.parse(pa.array(values, pa.binary())), columns


@pytest.mark.parametrize("seed", range(60))
def test_rows_and_reasons_are_the_same_with_and_without_the_short_way(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    values = orders(16, source)
    for _ in range(source.randrange(3)):
        place = source.randrange(len(values))
        values[place] = changed(values[place], source)
    monkeypatch.setattr(json_columns, "UNIFORM_ROWS_MIN", 1)
    short, _ = parse(values)
    monkeypatch.setattr(json_columns, "UNIFORM_ROWS_MIN", 1 << 60)
    slow, _ = parse(values)
    assert short.bad == slow.bad
    assert [each.to_pylist() for each in short.columns] == [each.to_pylist() for each in slow.columns]
    assert [each.type for each in short.columns] == [each.type for each in slow.columns]


def test_after_misses_in_a_row_the_parser_is_asked_at_once_and_a_hit_counts_anew() -> None:
    usual = pa.array(orders(UNIFORM_ROWS_MIN, random.Random(1)), pa.binary())
    mixed = pa.array([*usual.to_pylist(), b"{}"], pa.binary())
    columns = JsonColumns(ORDER)
    for _ in range(MISSES_MAX - 1):
        columns.parse(mixed)
    assert columns._misses == MISSES_MAX - 1
    columns.parse(usual)
    assert columns._misses == 0
    for _ in range(MISSES_MAX):
        columns.parse(mixed)
    assert columns.parse(usual).columns[0].to_pylist() == parse(usual.to_pylist())[0].columns[0].to_pylist()
    assert columns._misses == MISSES_MAX


# ---- numbers -------------------------------------------------------------------------------------------------------


def numbers_in(texts: list[bytes], kind: pa.DataType) -> pa.Array | None:
    sizes = np.array([len(each) for each in texts], np.int64)
    words_ = words_of(b"".join(texts) + bytes(64)).view(np.uint64)
    return short_numbers(words_[np.cumsum(sizes) - sizes], sizes, kind)


@given(
    st.lists(
        st.from_regex(rb"(0|[1-9][0-9]{0,6})(\.[0-9]{1,6})?", fullmatch=True).filter(lambda t: len(t) <= 8), min_size=1
    )
)
@settings(max_examples=200, deadline=None)
def test_short_decimals_are_the_nearest_doubles(texts: list[bytes]) -> None:
    found = numbers_in(texts, pa.float64())
    assert found is not None
    assert found.type == pa.float64()
    assert found.to_pylist() == [float(each) for each in texts]


@given(st.lists(st.integers(0, 99_999_999), min_size=1))
def test_short_integers_are_what_their_digits_say(numbers: list[int]) -> None:
    found = numbers_in([b"%d" % each for each in numbers], pa.int64())
    assert found is not None
    assert found.to_pylist() == numbers


@given(st.binary(min_size=1, max_size=8))
@settings(max_examples=1000, deadline=None)
def test_other_texts_are_no_short_numbers(text: bytes) -> None:
    digits, point, fraction = text.partition(b".")
    good = digits.isdigit() and (digits == b"0" or digits[:1] != b"0") and (fraction.isdigit() if point else True)
    assert (numbers_in([b"5", text], pa.float64()) is not None) == good
