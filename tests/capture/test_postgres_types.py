"""Every type of PostgreSQL, with its extremes: one encoder, so that snapshot and stream write the same bytes."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from tests.capture.conftest import Database, numbers
from tests.capture.test_postgres import options
from tests.capture.world import catch_up, committed

pytestmark = [pytest.mark.servers, pytest.mark.slow]

MADE = (
    "create schema app",
    "create type app.money as (a int, b text)",
    "create type app.date as enum ('x', 'y''z')",
    'create type app."interval" as (a interval)',
    "create type app.numeric as range (subtype = text)",
    "create domain app.point as int[] check (value is not null or true)",
    "create domain app.price as numeric(8,3)",
    "create domain app.dearer as app.price",
)
VALUES: dict[str, tuple[str, ...]] = {
    "int2": ("-32768", "32767"),
    "int8": ("-9223372036854775808", "9223372036854775807", "0"),
    "oid": ("4294967295",),
    "xid": ("4294967295",),
    "xid8": ("18446744073709551615",),
    "tid": ("(4294967295,65535)",),
    "bool": ("t", "f"),
    "float4": ("NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4e38", "123456.79"),
    "float8": ("NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1", "1e16"),
    "numeric": ("NaN", "Infinity", "-Infinity", "0", "-0.00", "1e-50", "1" + "0" * 300, "-12.3400"),
    "numeric(10,3)": ("NaN", "-1234567.891", "0.001"),
    "numeric(10,-2)": ("1200", "-9999900"),
    "money": ("-92233720368547758.08", "92233720368547758.07", "0"),
    "text": ("", 'a"b\\c\t\n\r\u0001\u2028é\U0001f600', "NULL", "%d %s", "\\N", "{}"),
    "varchar(5)": ("ab",),
    "char(5)": ("ab",),
    '"char"': ("a", ""),
    "name": ("n",),
    "bytea": ("", "\\x00ff5c27"),
    "date": ("infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "0001-01-01", "1970-01-01"),
    "time": ("00:00", "24:00", "23:59:59.999999"),
    "time(3)": ("12:00:00.123",),
    "timetz": ("00:00+15:59:59", "24:00-15:59", "01:00:00.5+02", "23:00:00.5+00", "10:00-03:30"),
    "timestamp": ("infinity", "-infinity", "4713-01-01 BC", "294276-12-31 23:59:59.999999", "1969-12-31 23:59:59.5"),
    "timestamp(3)": ("2026-01-02 03:04:05.678", "294276-12-31"),
    "timestamptz": ("infinity", "-infinity", "4713-01-02 BC", "294276-12-31 23:59:59.999999+00", "2026-01-02 03:04+05"),
    "interval": (
        "infinity",
        "-infinity",
        "178000000 years",
        "-178000000 years",
        "1 mon",
        "30 days",
        "720 hours",
        "-1 year +2 mons -3 days +04:05:06.789",
        "-0.000001 s",
        "0",
        "2562047788:00:54.775807",
    ),
    "bit(1)": ("0", "1"),
    "bit(9)": ("100000001",),
    "varbit": ("", "0", "00", "000000001", "1000000001"),
    "point": ("(Infinity,NaN)", "(-Infinity,1e300)", "(1.5,-2)", "(0,-0)"),
    "line": ("{1,2,3}",),
    "lseg": ("[(0,0),(1,1)]",),
    "box": ("(1,1),(0,0)",),
    "path": ("[(0,0),(1,1)]", "((0,0),(1,1))"),
    "polygon": ("((0,0),(1,1),(2,0))",),
    "circle": ("<(0,0),Infinity>",),
    "cidr": ("10.0.0.0/8", "::/0"),
    "inet": ("10.0.0.1/8", "::1"),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "uuid": ("00000000-0000-0000-0000-000000000000",),
    "json": ('{"a": [1, 2.50, null, "\\u00e9"]}', "1", '"s"', "null"),
    "jsonb": ('{"b": 1e400, "a": {}}',),
    "jsonpath": ('$."a"[*] ? (@ > 1)',),
    "tsvector": ("'a b':1A,2 'c\"d'",),
    "tsquery": ("'a' & !('b' | 'c':*)",),
    "pg_lsn": ("FFFFFFFF/FFFFFFFF",),
    "txid_snapshot": ("10:20:10,14,15",),
    "pg_snapshot": ("10:20:10,14,15",),
    "int2vector": ("", "1 -2 3"),
    "oidvector": ("", "1 4294967295"),
    "regclass": ("pg_class",),
    "int4range": ("empty", "[1,5)", "(,)"),
    "numrange": ("[1.0,2.50]",),
    "tstzrange": ('["2026-01-01 00:00:00+00",infinity)',),
    "int4multirange": ("{}", "{[1,3),[5,7)}"),
    "int4[]": ("{}", "{1,NULL,-3}", "[0:1]={1,2}", "{1,2}", "{{1,2},{3,4}}", "[2:3][0:1]={{1,2},{3,4}}"),
    "text[]": ('{a,"b,\\"c\\\\",NULL,"NULL","","{}"," x "}', "{{a,b},{c,d}}"),
    "numeric(6,2)[]": ("{1.50,NaN,NULL}",),
    "float8[]": ("{NaN,Infinity,1}",),
    "timestamp[]": ('{"2026-01-01 00:00:00",infinity}',),
    "interval[]": ("{1 day,-infinity}",),
    "bytea[]": ('{"\\\\x00ff",NULL}',),
    "bool[]": ("{t,f}",),
    "bit(1)[]": ("{1,0}",),
    "varbit[]": ('{0,00,""}',),
    "box[]": ("{(1,1),(0,0);(2,2),(1,1)}",),
    "point[]": ('{"(1,2)","(NaN,Infinity)"}',),
    "jsonb[]": ('{"{\\"a\\": 1}",null}',),
    "int4range[]": ('{"[1,2)",empty}',),
    "int2vector[]": ('{"1 2",NULL}',),
    "app.money": ('(1,"a,b")', "(,)"),
    "app.date": ("x", "y'z"),
    'app."interval"': ("(1 day)",),
    "app.numeric": ("[a,b)",),
    "app.money[]": ('{"(1,b)",NULL}',),
    "app.date[]": ('{x,"y\'z"}',),
    "app.point": ("{1,2}",),
    "app.price": ("1.250", "NaN"),
    "app.dearer": ("-99999.999",),
    "app.price[]": ("{1.250}",),
}
UNORDERED = [
    *("xid", "point", "line", "lseg", "box", "path", "polygon", "circle", "json", "jsonpath", "txid_snapshot"),
    *("pg_snapshot", "int2vector", "regclass", "box[]", "point[]", "int2vector[]"),
]
"""What cannot be a primary key."""
FORMS: list[dict[str, Any]] = [
    {},
    {"decimals": "precise", "times": "numbers"},
    {"decimals": "double"},
]


def refused(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


def parsed(text: bytes) -> Any:
    """As strict as JSON is: Python's own reader takes NaN and Infinity."""
    return json.loads(text, parse_constant=refused)


def make(database: Database, values: dict[str, tuple[str | None, ...]], prefix: str = "t") -> None:
    for number, (kind, texts) in enumerate(values.items()):
        database.run(f"create table {prefix}{number} (id int primary key, v {kind})")
        for place, text in enumerate(texts):
            literal = sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(kind)).as_string(database.session)
            database.run(f"insert into {prefix}{number} values ({place}, {literal})")


def check(
    log: str, database: Database, values: dict[str, tuple[str | None, ...]], form: dict[str, Any], prefix: str = "t"
) -> None:
    """Rows that the snapshot reads are inserted once more; both must be the same, but for what is a dead letter."""
    catch_up(log, options(database, **form))
    for number in range(len(values)):
        database.run(f"insert into {prefix}{number} select id + 1000, v from {prefix}{number}")
    catch_up(log, options(database, **form))
    letters = [parsed(each.value or b"") for each in committed(log, f"{database.name}.dead-letters")]
    for number, (kind, texts) in enumerate(values.items()):
        found: dict[int, bytes] = {}
        for each in committed(log, f"{database.name}.public.{prefix}{number}"):
            value = each.value or b""
            parsed(value)
            row = value[value.index(b'"after":') : value.index(b',"source":')]
            found[parsed(each.key or b"")["id"]] = row.partition(b'"v":')[2]
        missing = {each["key"]["id"] for each in letters if each["table"] == f"public.{prefix}{number}"}
        assert found.keys() | missing == {*range(len(texts)), *range(1000, 1000 + len(texts))}, kind
        assert {each % 1000 for each in missing} == {each for each in missing if each < 1000}, kind
        assert [found.get(each) for each in range(len(texts))] == [
            found.get(each + 1000) for each in range(len(texts))
        ], kind


@pytest.mark.parametrize("form", FORMS, ids=["strings", "Debezium's", "doubles"])
def test_snapshot_and_stream_write_the_same_bytes_for_every_type(
    log: str, database: Database, form: dict[str, Any]
) -> None:
    database.run(*MADE)
    values = {kind: (*texts, None) for kind, texts in VALUES.items()}
    make(database, values)
    check(log, database, values, form)


@pytest.mark.parametrize("form", FORMS, ids=["strings", "Debezium's", "doubles"])
def test_rows_without_nulls_and_escapes_have_the_same_bytes_in_snapshot_and_stream(
    log: str, database: Database, form: dict[str, Any]
) -> None:
    """Of these the snapshot renders no text."""
    database.run(*MADE)
    plain = {
        kind: tuple(each for each in texts if not re.search(r'["\\\0-\x1f]', each)) for kind, texts in VALUES.items()
    }
    make(database, plain)
    check(log, database, plain, form)


@pytest.mark.parametrize("form", FORMS, ids=["strings", "Debezium's", "doubles"])
def test_different_keys_have_different_bytes_for_every_type(log: str, database: Database, form: dict[str, Any]) -> None:
    database.run(*MADE)
    kinds = [each for each in VALUES if each not in UNORDERED]
    for number, kind in enumerate(kinds):
        database.run(f"create table k{number} (v {kind} primary key, n int)")
        for place, text in enumerate(VALUES[kind]):
            literal = sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(kind)).as_string(database.session)
            database.run(f"insert into k{number} values ({literal}, {place}) on conflict do nothing")
    catch_up(log, options(database, chunk_rows=2, **form))
    for number in range(len(kinds)):
        database.run(f"update k{number} set n = n + 100")
    catch_up(log, options(database, **form))
    for number, kind in enumerate(kinds):
        newest = {each.key: parsed(each.value or b"") for each in committed(log, f"{database.name}.public.k{number}")}
        held = {row[0] for row in database.all(f"select n from k{number}")}
        assert {each["after"]["n"] for each in newest.values()} == held, kind
        assert len(newest) == len(held), kind


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=30)
DRAWN = st.fixed_dictionaries(
    {
        "text": st.lists(TEXTS, max_size=8).map(tuple),
        "numeric": st.lists(
            st.one_of(
                st.decimals(-(10**60), 10**60, allow_nan=False), st.sampled_from([Decimal("NaN"), Decimal("-Infinity")])
            ),
            max_size=8,
        ).map(lambda many: tuple(f"{each:f}" for each in many)),
        "float8": st.lists(st.floats(), max_size=8).map(lambda many: tuple(map(repr, many))),
        "bytea": st.lists(st.binary(max_size=20), max_size=8).map(lambda many: tuple("\\x" + x.hex() for x in many)),
        "timestamp": st.lists(st.datetimes(), max_size=8).map(lambda many: tuple(map(str, many))),
        "text[]": st.lists(st.lists(TEXTS, max_size=4), max_size=8).map(
            lambda many: tuple(
                "{" + ",".join('"' + x.replace("\\", "\\\\").replace('"', '\\"') + '"' for x in each) + "}"
                for each in many
            )
        ),
        "interval": st.lists(st.integers(-(2**30), 2**30), max_size=8).map(
            lambda many: tuple(f"{each} mons {-each} days {each * 7}.{abs(each)} s" for each in many)
        ),
        "numeric(20,5)": st.lists(st.decimals(-(10**14), 10**14, places=5).map(Decimal), max_size=8).map(
            lambda many: tuple(f"{each:f}" for each in many)
        ),
    }
)


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(values=DRAWN, form=st.sampled_from(FORMS))
def test_snapshot_and_stream_write_the_same_bytes_for_any_value(
    log: str, database: Database, values: dict[str, tuple[str, ...]], form: dict[str, Any]
) -> None:
    prefix = f"example{next(numbers)}_"
    with_nulls = {kind: (*texts, None) for kind, texts in values.items()}
    make(database, with_nulls, prefix)
    check(log, database, with_nulls, form, prefix)
