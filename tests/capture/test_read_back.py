"""What capture writes, the source of Spark reads: with defaults on both sides every value is that of the database.

Records of a real database go through the source's own reader of values; no JVM is needed for that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, StructType

from headrace.batch import build_batch, parse_header
from headrace.capture import CaptureOptions
from headrace.client import RawBatch
from headrace.spark.source.decode import decode
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import OffsetRange
from headrace.spark.source.values import BadRecord, TypedMaker
from tests.capture.conftest import Database
from tests.capture.shop import Shop
from tests.capture.world import catch_up, committed

NAMES = {"int": "integer", "smallint": "short"}
pytestmark = [pytest.mark.servers, pytest.mark.slow]


def columns_of(schema: str) -> StructType:
    """``id long, tags array<string>``; Spark's own parser needs a JVM."""
    found = StructType()
    for name, kind in (each.split(" ") for each in schema.split(", ")):
        inner = kind.removeprefix("array<").removesuffix(">")
        one: Any = StructType().add("one", NAMES.get(inner, inner))["one"].dataType
        found.add(name, one if inner == kind else ArrayType(one))
    return found


def rows_of(bootstrap: str, topic: str, schema: str, **options: str) -> list[dict[str, Any]]:
    """The rows of a captured topic, as ``hr.stream(…, value_format="debezium")`` gives them."""
    records = committed(bootstrap, topic)
    data = build_batch(records).data
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "valueFormat": "debezium", **options}
    chosen = SourceOptions.parse({name.lower(): text for name, text in given.items()}, streaming=False)
    columns = StructType().add("op", "string").add("after", columns_of(schema))
    make = TypedMaker(chosen, columns, OffsetRange(topic, 0, 0, len(records)), lambda: 1)
    made = make(decode([RawBatch(parse_header(data), data)]))
    return [row["after"] for batch in made for row in batch.to_pylist()]


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
POSTGRES = {
    "s smallint": ("s smallint", 7),
    "i integer": ("i int", -7),
    "l bigint": ("l long", 2**62),
    "r real": ("r float", 1.5),
    "d double precision": ("d double", 0.1),
    "b boolean": ("b boolean", True),
    "n numeric(12,2)": ("n decimal(12,2)", Decimal("12.50")),
    "m numeric(12,2)": ("m decimal(12,2)", Decimal("-0.01")),
    "z numeric(10,0)": ("z decimal(10,0)", Decimal("1234")),
    "v numeric": ("v decimal(20,4)", Decimal("1.5000")),
    "t text": ("t string", "naïve ☃"),
    "y bytea": ("y binary", b"\x00\xff"),
    "t0 timestamp(0)": ("t0 timestamp_ntz", MOMENT.replace(microsecond=0, tzinfo=None)),
    "t3 timestamp(3)": ("t3 timestamp_ntz", MOMENT.replace(microsecond=678_000, tzinfo=None)),
    "t6 timestamp": ("t6 timestamp_ntz", MOMENT.replace(tzinfo=None)),
    "tu timestamp(3)": ("tu timestamp", MOMENT.replace(microsecond=678_000)),
    "tz timestamptz": ("tz timestamp", MOMENT),
    "tz3 timestamptz(3)": ("tz3 timestamp", MOMENT.replace(microsecond=678_000)),
    "day date": ("day date", date(2026, 1, 2)),
    "clock time": ("clock string", "03:04:05.678901"),
    "u uuid": ("u string", "123e4567-e89b-12d3-a456-426614174000"),
    "j jsonb": ("j string", '{"a": 1}'),
    "ns numeric(12,2)[]": ("ns array<decimal(12,2)>", [Decimal("1.00"), None]),
    "ts timestamp(3)[]": ("ts array<timestamp_ntz>", [MOMENT.replace(microsecond=678_000, tzinfo=None)]),
    "days date[]": ("days array<date>", [date(2026, 1, 2)]),
}
SCHEMA = ", ".join(["id long", *(schema for schema, _ in POSTGRES.values())])
EXPECTED = {schema.partition(" ")[0]: value for schema, value in POSTGRES.values()}


def fill(database: Database) -> None:
    database.run(f"create table t (id bigint primary key, {', '.join(POSTGRES)})")
    row = (
        "7, -7, 4611686018427387904, 1.5, 0.1, true, 12.5, -0.01, 1234, 1.5, 'naïve ☃', '\\x00ff', "
        + "'2026-01-02 03:04:05', '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901', '2026-01-02 03:04:05.678', "
        + "'2026-01-02 03:04:05.678901+00', '2026-01-02 03:04:05.678+00', '2026-01-02', '03:04:05.678901', "
        + "'123e4567-e89b-12d3-a456-426614174000', '{\"a\": 1}', '{1.00,null}', '{\"2026-01-02 03:04:05.678\"}', "
        + "'{2026-01-02}'"
    )
    database.run(f"insert into t values (1, {row})")


def test_with_defaults_on_both_sides_every_value_is_that_of_the_database(log: str, database: Database) -> None:
    fill(database)
    catch_up(log, CaptureOptions(name=database.name, url=database.url))
    database.run("update t set i = i")
    catch_up(log, CaptureOptions(name=database.name, url=database.url))
    rows = rows_of(log, f"{database.name}.public.t", SCHEMA)
    assert rows == [{"id": 1, **EXPECTED}] * 2


def test_as_debezium_writes_them_numbers_without_a_schema_are_refused_and_never_guessed(
    log: str, database: Database
) -> None:
    fill(database)
    catch_up(log, CaptureOptions(name=database.name, url=database.url, decimals="precise", times="numbers"))
    topic = f"{database.name}.public.t"
    with pytest.raises(BadRecord, match=r"n is \"BOI=\".*decimalFormat=base64.*--decimals string"):
        rows_of(log, topic, "n decimal(12,2)")
    with pytest.raises(BadRecord, match=r"t3 is 1767323045678, a number whose unit is not known.*timeUnit"):
        rows_of(log, topic, "t3 timestamp")
    exact = "n decimal(12,2), m decimal(12,2), z decimal(10,0), v decimal(20,4), ns array<decimal(12,2)>, day date"
    (row,) = rows_of(log, topic, exact, decimalFormat="base64")
    assert row == {name: EXPECTED[name] for name in row}
    (row,) = rows_of(log, topic, "t3 timestamp_ntz", timeUnit="milliseconds")
    assert row == {"t3": EXPECTED["t3"]}
    (row,) = rows_of(log, topic, "t6 timestamp_ntz", timeUnit="microseconds")
    assert row == {"t6": EXPECTED["t6"]}


@pytest.mark.parametrize("as_debezium", [True, False])
def test_with_schemas_numbers_and_base64_are_read_without_being_told_their_units(
    log: str, database: Database, as_debezium: bool
) -> None:
    forms: dict[str, Any] = {"decimals": "precise", "times": "numbers"} if as_debezium else {}
    fill(database)
    options = CaptureOptions(name=database.name, url=database.url, schemas=True, **forms)
    catch_up(log, options)
    database.run("update t set i = i")
    catch_up(log, options)
    clock = {} if not as_debezium else {"clock": 11045678901}
    schema = SCHEMA.replace("clock string", "clock long") if as_debezium else SCHEMA
    rows = rows_of(log, f"{database.name}.public.t", schema)
    assert rows == [{"id": 1, **EXPECTED, **clock}] * 2
    keys = {record.key for record in committed(log, f"{database.name}.public.t")}
    assert [json.loads(key or b"")["payload"] for key in keys] == [{"id": 1}]


MARIADB = {
    "i1 tinyint": ("i1 int", "-5", -5),
    "u1 tinyint unsigned": ("u1 int", "250", 250),
    "i2 smallint": ("i2 smallint", "-300", -300),
    "i3 mediumint": ("i3 int", "-70000", -70000),
    "i4 int(6) zerofill": ("i4 long", "42", 42),
    "u8 bigint unsigned": ("u8 decimal(20,0)", "18446744073709551615", Decimal(2**64 - 1)),
    "i8 bigint": ("i8 long", "4611686018427387904", 2**62),
    "yr year": ("yr int", "2026", 2026),
    "r float": ("r float", "1.5", 1.5),
    "d double": ("d double", "0.1", 0.1),
    "n decimal(12,2)": ("n decimal(12,2)", "12.5", Decimal("12.50")),
    "z decimal(10,0)": ("z decimal(10,0)", "1234", Decimal("1234")),
    "bo boolean": ("bo int", "true", 1),
    "b1 bit(1)": ("b1 boolean", "b'1'", True),
    "b9 bit(9)": ("b9 binary", "b'100000001'", b"\x01\x01"),
    "ch char(9)": ("ch string", "'x'", "x"),
    "tx text": ("tx string", "'naïve ☃'", "naïve ☃"),
    "la varchar(9) character set latin1": ("la string", "'naïve'", "naïve"),
    "bi binary(2)": ("bi binary", "x'00ff'", b"\x00\xff"),
    "bl blob": ("bl binary", "x'00ff'", b"\x00\xff"),
    "t0 datetime": ("t0 timestamp_ntz", "'2026-01-02 03:04:05'", MOMENT.replace(microsecond=0, tzinfo=None)),
    "t3 datetime(3)": ("t3 timestamp_ntz", "'2026-01-02 03:04:05.678'", EXPECTED["t3"]),
    "t6 datetime(6)": ("t6 timestamp_ntz", "'2026-01-02 03:04:05.678901'", EXPECTED["t6"]),
    "tz timestamp(6) null": ("tz timestamp", "'2026-01-02 03:04:05.678901'", MOMENT),
    "ts timestamp null": ("ts timestamp", "'2026-01-02 03:04:05'", MOMENT.replace(microsecond=0)),
    "day date": ("day date", "'2026-01-02'", date(2026, 1, 2)),
    "none date": ("none date", "'0000-00-00'", None),
    "clock time": ("clock string", "'26:03:04'", "26:03:04"),
    "en enum('happy', 'sad')": ("en string", "'sad'", "sad"),
    "se set('a', 'b', 'c')": ("se string", "'a,c'", "a,c"),
    "js json": ("js string", """'{"a": 1}'""", '{"a": 1}'),
    "u uuid": ("u string", "'123e4567-e89b-12d3-a456-426614174000'", "123e4567-e89b-12d3-a456-426614174000"),
    "a4 inet4": ("a4 string", "'10.0.0.1'", "10.0.0.1"),
    "a6 inet6": ("a6 string", "'2001:db8::1'", "2001:db8::1"),
    "nu int": ("nu int", "null", None),
}


def test_with_defaults_every_value_of_mariadb_is_that_of_the_database(log: str, shop: Shop) -> None:
    shop.run(
        "set time_zone = '+00:00', sql_mode = '', names utf8mb4",
        f"create table t (id bigint primary key, {', '.join(MARIADB)}) character set utf8mb4",
    )
    shop.run(f"insert into t values (1, {', '.join(text for _, text, _ in MARIADB.values())})")
    catch_up(log, shop.options())
    shop.run("update t set i8 = i8 + 1", "update t set i8 = i8 - 1")
    catch_up(log, shop.options())
    schema = ", ".join(["id long", *(schema for schema, _, _ in MARIADB.values())])
    expected = {"id": 1, **{name.partition(" ")[0]: value for name, (_, _, value) in MARIADB.items()}}
    first, changed, last = rows_of(log, shop.topic("t"), schema)
    assert [first, last] == [expected] * 2
    assert changed == {**expected, "i8": 2**62 + 1}


def test_values_of_mariadb_are_read_back_too(log: str, shop: Shop) -> None:
    shop.run(
        "create table t (id bigint primary key, n decimal(12,2), t0 datetime, t6 datetime(6), tz timestamp(3), "
        "day date, clock time)",
        "insert into t values (1, 12.5, '2026-01-02 03:04:05', '2026-01-02 03:04:05.678901', "
        "'2026-01-02 03:04:05.678', '2026-01-02', '26:03:04')",
    )
    catch_up(log, shop.options())
    schema = "n decimal(12,2), t0 timestamp_ntz, t6 timestamp_ntz, day date, clock string"
    (row,) = rows_of(log, f"{shop.name}.{shop.name}.t", schema)
    assert row == {name: EXPECTED[name] for name in ("n", "t0", "t6", "day")} | {"clock": "26:03:04"}
    forms: dict[str, Any] = {"schemas": True, "decimals": "precise", "times": "numbers"}
    catch_up(log, replace(shop.options(**forms), name=f"{shop.name}_typed"))
    (row,) = rows_of(log, f"{shop.name}_typed.{shop.name}.t", schema.replace("clock string", "clock long"))
    clock_us = (26 * 3600 + 3 * 60 + 4) * 1_000_000
    assert row == {name: EXPECTED[name] for name in ("n", "t0", "t6", "day")} | {"clock": clock_us}
