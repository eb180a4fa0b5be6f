"""JSON to typed columns: Arrow's parser and reading one by one agree, and odd values do not leak into others."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from headrace.errors import UsageError
from headrace.spark.source.json_columns import ONE_BY_ONE_ROWS, JsonColumns, Parsed
from headrace.spark.source.json_forms import DEBEZIUM, PLAIN, Forms
from headrace.spark.source.pieces import Pieces

UTC = datetime.UTC


def struct(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def parse(schema: StructType, *texts: str | bytes | None, zone: str = "UTC") -> Parsed:
    values = [text.encode() if isinstance(text, str) else text for text in texts]
    return JsonColumns(schema, time_zone=zone).parse(pa.array(values, pa.binary()))


def column(kind: DataType, *texts: str, zone: str = "UTC") -> list[Any]:
    """One column ``a`` of these JSON texts, none of them bad."""
    parsed = parse(struct(a=kind), *[f'{{"a":{text}}}' for text in texts], zone=zone)
    assert parsed.bad == {}
    return list(parsed.columns[0].to_pylist())


def reason(kind: DataType, text: str) -> str:
    parsed = parse(struct(a=kind), f'{{"a":{text}}}', '{"a":null}')
    assert list(parsed.bad) == [0]
    assert parsed.columns[0].to_pylist() == [None, None]
    return parsed.bad[0]


SCHEMA = struct(
    flag=BooleanType(),
    small=ByteType(),
    number=LongType(),
    real=DoubleType(),
    price=DecimalType(12, 2),
    text=StringType(),
    day=DateType(),
    when=TimestampType(),
    local=TimestampNTZType(),
    tags=ArrayType(StringType()),
    times=ArrayType(TimestampType()),
    inner=struct(n=LongType(), day=DateType()),
)
members = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.one_of(st.none(), st.booleans()),
        "small": st.integers(-130, 130),
        "number": st.integers(-(2**64), 2**64),
        "real": st.one_of(st.integers(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False)),
        "price": st.one_of(
            st.decimals(-1000, 1000, places=2).map(str), st.integers(-(10**13), 10**13), st.floats(-9, 9)
        ),
        "text": st.one_of(st.none(), st.text(max_size=20), st.integers()),
        "day": st.one_of(st.dates().map(str), st.just("2024-02-30")),
        "when": st.one_of(
            st.datetimes(datetime.datetime(1900, 1, 1), timezones=st.just(UTC)).map(lambda when: when.isoformat()),
            st.datetimes(datetime.datetime(1900, 1, 1)).map(str),
            st.integers(0, 2**40),
        ),
        "local": st.datetimes(datetime.datetime(1900, 1, 1)).map(str),
        "tags": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=3)),
        "times": st.lists(st.one_of(st.none(), st.just("2024-01-02T03:04:05Z")), max_size=3),
        "inner": st.one_of(
            st.none(), st.fixed_dictionaries({}, optional={"n": st.integers(-5, 5), "day": st.dates().map(str)})
        ),
        "other": st.lists(st.integers(), max_size=2),
    },
)


@settings(deadline=None, max_examples=200)
@given(st.lists(members, min_size=1, max_size=5))
def test_what_arrows_parser_reads_is_what_reading_one_by_one_gives(objects: list[dict[str, Any]]) -> None:
    columns = JsonColumns(SCHEMA)
    values = pa.array([json.dumps(each).encode() for each in objects], pa.binary())
    natively = columns._parse_natively(Pieces.of(values))
    bad: dict[int, str] = {}
    singly = columns._parse_one_by_one(values, 0, bad)
    if natively is not None:
        assert bad == {}
        assert [each.to_pylist() for each in natively] == [each.to_pylist() for each in singly]
        assert [each.type for each in natively] == [each.type for each in singly]
        for each in natively:
            each.validate(full=True)


def test_the_usual_types_are_read_by_arrows_parser_and_not_one_by_one() -> None:
    text = json.dumps(
        {
            "flag": True,
            "small": 1,
            "number": 5,
            "real": 2.5,
            "price": "12.34",
            "text": "é",
            "day": "2024-01-02",
            "when": "2024-01-02T03:04:05.123456+02:00",
            "local": "2024-01-02 03:04:05",
            "tags": ["a", None],
            "times": ["2024-01-02T03:04:05Z"],
            "inner": {"n": 1, "day": "2024-01-02"},
            "unknown": {"deep": [1, {}]},
        }
    )
    found = JsonColumns(SCHEMA)._parse_natively(Pieces.of(pa.array([text.encode()] * 2, pa.binary())))
    assert found is not None
    row = {name: each[1].as_py() for name, each in zip(SCHEMA.fieldNames(), found, strict=True)}
    assert row["price"] == Decimal("12.34")
    assert row["when"] == datetime.datetime(2024, 1, 2, 1, 4, 5, 123456, tzinfo=UTC)
    assert row["inner"] == {"n": 1, "day": datetime.date(2024, 1, 2)}
    assert row["times"] == [datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)]


def test_two_objects_in_one_value_are_one_bad_row_and_shift_no_other() -> None:
    parsed = parse(struct(a=LongType()), '{"a":1}', '{"a":2}{"a":3}', '{"a":4}')
    assert list(parsed.bad) == [1]
    assert "not JSON" in parsed.bad[1]
    assert parsed.columns[0].to_pylist() == [1, None, 4]


@settings(deadline=None)
@given(st.lists(st.sampled_from(['{"a":1}', '{"a":', '{"a":1}{"a":2}', "}", '"x}', '{"a":"x}', '{"a":{"b":1}', "1}"])))
def test_pieces_of_json_never_join_with_their_neighbours(texts: list[str]) -> None:
    parsed = parse(struct(a=LongType()), *texts)
    assert parsed.columns[0].to_pylist() == [1 if text == '{"a":1}' else None for text in texts]
    assert sorted(parsed.bad) == [row for row, text in enumerate(texts) if text != '{"a":1}']


@pytest.mark.parametrize("place", [0, 1, 500, 998, 999])
def test_one_bad_value_among_a_thousand_is_found_and_the_others_are_read(place: int) -> None:
    assert ONE_BY_ONE_ROWS < 100
    texts = [f'{{"a":{index}}}' for index in range(1000)]
    texts[place] = '{"a":"no number"}'
    parsed = parse(struct(a=LongType()), *texts)
    assert parsed.bad == {place: 'a is "no number", which is no bigint'}
    assert parsed.columns[0].to_pylist() == [None if index == place else index for index in range(1000)]


def test_null_values_are_null_rows_and_bad_rows_keep_their_place_behind_them() -> None:
    parsed = parse(struct(a=LongType()), None, '{"a":1}', None, "[]", '{"a":2}')
    assert parsed.columns[0].to_pylist() == [None, 1, None, None, 2]
    assert parsed.bad == {3: "it is JSON but not an object"}


def test_white_space_around_and_inside_values_does_not_matter() -> None:
    parsed = parse(struct(a=LongType()), '{"a":1}\n', ' \r\n{\n "a" :\n 2 }\t', '{"a":3}')
    assert parsed.columns[0].to_pylist() == [1, 2, 3]
    assert parsed.bad == {}


def test_no_rows_and_only_null_rows_give_columns_of_the_right_type() -> None:
    assert parse(SCHEMA).columns[7].type == pa.timestamp("us", tz="UTC")
    assert parse(SCHEMA, None, None).columns[9].to_pylist() == [None, None]


def test_a_number_in_a_string_column_keeps_its_digits() -> None:
    assert column(StringType(), "1.50", "1e3", '"x"', '{"b":[1.0,"y"]}', "true") == [
        "1.50",
        "1e3",
        "x",
        '{"b":[1.0,"y"]}',
        "true",
    ]


def test_digits_behind_the_scale_are_rounded_and_too_many_in_front_do_not_fit() -> None:
    assert column(DecimalType(5, 2), "1.005", '"-1.005"', "999.99") == [
        Decimal("1.01"),
        Decimal("-1.01"),
        Decimal("999.99"),
    ]
    assert reason(DecimalType(5, 2), "1000") == "a is 1000, which is no decimal(5,2)"
    assert "decimal" in reason(DecimalType(5, 2), "999.999")
    assert "a[0] is 1000" in reason(ArrayType(DecimalType(5, 2)), "[1000]")
    assert "a.b is 1000" in reason(struct(b=DecimalType(5, 2)), '{"b":1000}')


def test_times_without_a_zone_are_in_the_zone_of_the_option() -> None:
    expected = datetime.datetime(2024, 7, 1, 10, 0, tzinfo=UTC)
    assert column(TimestampType(), '"2024-07-01T12:00:00"', zone="Europe/Berlin") == [expected]
    mixed = column(TimestampType(), '"2024-07-01T12:00:00"', '"2024-07-01T12:00:00+02:00"', zone="Europe/Berlin")
    assert mixed == [expected, expected]


def test_a_number_in_a_timestamp_column_is_seconds() -> None:
    assert column(TimestampType(), "1700000000") == [datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)]


def test_maps_and_bytes_are_read_one_by_one() -> None:
    assert column(MapType(StringType(), LongType()), '{"x":1,"y":null}') == [[("x", 1), ("y", None)]]
    assert column(BinaryType(), '"aGk="') == [b"hi"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LongType(), "1.5"),
        (LongType(), "9223372036854775808"),
        (LongType(), "true"),
        (ByteType(), "128"),
        (BooleanType(), "1"),
        (DoubleType(), '"1.5"'),
        (DateType(), '"2024-02-30"'),
        (TimestampType(), '"yesterday"'),
        (ArrayType(LongType()), "{}"),
        (ArrayType(LongType()), '[1,"x"]'),
        (struct(b=LongType()), "[]"),
        (MapType(StringType(), LongType()), "[]"),
        (BinaryType(), '"*"'),
    ],
    ids=str,
)
def test_what_does_not_fit_is_bad_and_says_where(kind: DataType, text: str) -> None:
    assert reason(kind, text).startswith("a")


def test_bytes_that_are_no_text_are_bad() -> None:
    parsed = parse(struct(a=StringType()), b'{"a":"\xff"}', b'{"a":"ok"}', b'{"a":"\\ud800"}')
    assert sorted(parsed.bad) == [0, 2]
    assert parsed.columns[0].to_pylist() == [None, "ok", None]


def test_a_value_nested_a_hundred_thousand_deep_is_bad_and_nothing_worse() -> None:
    parsed = parse(struct(a=LongType()), '{"a":1}', '{"b":' * 100_000 + "1" + "}" * 100_000)
    assert parsed.columns[0].to_pylist()[0] == 1


def test_a_type_that_json_does_not_have_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError, match=r"a\.b: JSON has no variant"):
        JsonColumns(struct(a=struct(b=VariantType())))


# ---- forms of times and decimals -----------------------------------------------------------------------------------


def read(schema: StructType, forms: Forms, text: str, copies: int = 1) -> tuple[Any, str | None]:
    """What a value becomes, natively where that is possible, and why it is bad."""
    parsed = JsonColumns(schema, forms=forms).parse(pa.array([f'{{"a":{text}}}'.encode()] * copies, pa.binary()))
    return parsed.columns[0].to_pylist()[-1], parsed.bad.get(copies - 1)


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "number"),
    [("milliseconds", 1767323045678), ("microseconds", 1767323045678000), ("nanoseconds", 1767323045678000000)],
)
def test_a_number_in_a_timestamp_column_counts_what_the_user_says(unit: str, number: int) -> None:
    assert read(struct(a=TimestampType()), DEBEZIUM.chosen(unit, "text"), str(number)) == (MOMENT, None)


def test_a_number_whose_unit_is_not_known_is_refused_with_what_to_do() -> None:
    found, why = read(struct(a=TimestampType()), DEBEZIUM, "1767323045678")
    assert found is None
    assert why is not None
    assert "unit is not known" in why
    assert "timeUnit=" in why
    assert "--times strings" in why


def test_milliseconds_are_not_taken_for_seconds() -> None:
    found, why = read(struct(a=TimestampType()), PLAIN, "1767323045678")
    assert found is None
    assert why is not None
    assert "outside of the years 1 to 9999 when it counts seconds" in why


def test_days_are_dates_in_debezium_and_nowhere_else() -> None:
    assert read(struct(a=DateType()), DEBEZIUM, "20455") == (datetime.date(2026, 1, 2), None)
    assert read(struct(a=DateType()), PLAIN, "20455")[1] == "a is 20455, which is no date"
    assert read(struct(a=DateType()), DEBEZIUM, "2147483647")[1] == "a is 2147483647, which is no date"


@pytest.mark.parametrize("copies", [1, 200])
def test_decimals_in_base64_are_read_where_that_is_said_and_refused_elsewhere(copies: int) -> None:
    schema, base64 = struct(a=DecimalType(12, 2)), DEBEZIUM.chosen(None, "base64")
    assert read(schema, base64, '"BOI="', copies) == (Decimal("12.50"), None)
    assert read(schema, base64, '"/w=="', copies) == (Decimal("-0.01"), None)
    assert read(schema, DEBEZIUM, '{"scale":3,"value":"MNQ="}', copies) == (Decimal("12.50"), None)
    assert read(schema, DEBEZIUM, '"12.50"', copies) == (Decimal("12.50"), None)
    found, why = read(schema, DEBEZIUM, '"BOI="', copies)
    assert found is None
    assert why is not None
    assert "decimalFormat=base64" in why
    assert "--decimals string" in why
    assert read(schema, base64, '"?"', copies)[0] is None
