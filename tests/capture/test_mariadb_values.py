"""Every value of a real MariaDB has the same bytes from the snapshot and from the binlog, whatever it is."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from headrace.capture.options import CaptureOptions
from tests.capture.shop import Shop
from tests.capture.world import catch_up, committed, events, fold

pytestmark = [pytest.mark.servers, pytest.mark.slow]

WHOLE = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
TEXTS = ["''", "'a'", "'quote \" and \\\\ and \\n'", "'tab\\t \\0 \\Z'", "' spaces  '", "'%s %d'", "'/'", "null"]
MOMENTS = ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'2026-02-28 23:59:59'", "'1969-12-31 23:59:59'"]


def literals(seed: int) -> dict[str, list[str]]:
    """Types and values of each, extreme ones and some at random."""
    chance = random.Random(seed)
    found: dict[str, list[str]] = {}
    for kind, bits in WHOLE.items():
        half = 1 << bits - 1
        found[kind] = [str(each) for each in (-half, half - 1, 0, -1, chance.randrange(-half, half))]
        found[f"{kind} unsigned"] = [str(each) for each in (0, 2 * half - 1, chance.randrange(2 * half))]
        found[f"{kind}(9) zerofill"] = ["0", "7", "42"]
    floats = [struct.unpack("<f", chance.randbytes(4))[0] for _ in range(8)]
    plain = [each for each in floats if each == each and abs(each) < 3e38]
    found["float"] = [repr(each) for each in (*plain, 123456.79, 16777217.0, 3.4e38, -1.17549435e-38, 0.1, -0.0)]
    doubles = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(8)]
    finite = [each for each in doubles if each == each and 1e-300 < abs(each) < 1e300]
    found["double"] = [repr(each) for each in (*finite, 1.7976931348623157e308, 5e-300, 0.1, 1e22, 9007199254740993.0)]
    found["float(10,3)"] = ["1234.567", "-0.001", "9999.999"]
    found["double(20,4)"] = ["1234567890.1234", "-0.0001"]
    for digits, scale in ((65, 30), (65, 0), (5, 5), (20, 10), (9, 9), (1, 0)):
        whole, part = "9" * (digits - scale), "9" * scale
        most = f"{whole or '0'}.{part or '0'}"
        found[f"decimal({digits},{scale})"] = [most, f"-{most}", "0", "0." + "0" * max(scale - 1, 0) + "1"]
    found["decimal(12,3) zerofill"] = ["0", "1.5", "999999999.999"]
    found["date"] = ["'1000-01-01'", "'9999-12-31'", "'1969-12-31'", "'2024-02-29'", "'0000-00-00'", "'2026-00-00'"]
    for digits in (0, 1, 3, 4, 6):
        fraction = "".join(chance.choice("0123456789") for _ in range(digits))
        end = f".{fraction}" if digits else ""
        moments = [f"{each[:-1]}{end}'" for each in MOMENTS] + ["'0000-00-00 00:00:00'", "'2026-01-02 03:04:05'"]
        found[f"datetime({digits})"] = moments
        found[f"timestamp({digits}) null"] = ["'1970-01-01 00:00:01'", f"'2038-01-19 03:14:07{end}'", "0", "null"]
        found[f"time({digits})"] = [f"'838:59:59{end}'", f"'-838:59:59{end}'", "'00:00:00'", f"'-00:00:01{end}'"]
    found["year"] = ["1901", "2155", "0", "2026"]
    found["bit(1)"] = ["b'0'", "b'1'"]
    found["bit(7)"] = ["b'0'", "b'1111111'"]
    found["bit(64)"] = ["0", "18446744073709551615", "b'1'"]
    found["enum('a', 'b,c', 'it''s', '\u00e9')"] = ["'a'", "'b,c'", "'it''s'", "'\u00e9'", "0"]
    found["set('a', 'it''s', '\u00e9')"] = ["''", "'a'", "'a,it''s,\u00e9'", "7"]
    for kind in ("char(30)", "varchar(30)", "varchar(300)", "tinytext", "text", "mediumtext", "longtext"):
        found[kind] = TEXTS
    for kind in ("varchar(500) compressed", "text compressed", "mediumtext compressed"):
        found[kind] = [*TEXTS, "repeat('compress me ', 30)"]
    for kind in ("binary(9)", "varbinary(9)", "tinyblob", "blob", "longblob"):
        found[kind] = ["x''", "x'00'", "x'ff00'", f"x'{chance.randbytes(8).hex()}'", "null"]
    found["blob compressed"] = ["x''", "repeat('b', 900)"]
    found["json"] = ["""'{"k": [1, 2.50, "\\\\u00e9", null]}'""", "'[]'"]
    found["uuid"] = ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "uuid()"]
    found["inet6"] = ["'::'", "'::ffff:10.0.0.1'", "'2001:db8:0:1:1:1:1:0'", "'ffff::'"]
    found["inet4"] = ["'0.0.0.0'", "'255.255.255.255'", "'10.0.0.0'"]
    found["geometry"] = ["ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1.5 -2)', 4326)", "null"]
    found["point"] = ["POINT(0.1, -7)"]
    return found


FORMS: list[dict[str, Any]] = [{}, {"decimals": "precise", "times": "numbers"}, {"decimals": "double"}]


@pytest.mark.parametrize("form", FORMS, ids=["default", "debezium", "double"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_value_has_the_same_bytes_from_the_snapshot_and_from_the_binlog(
    log: str, shop: Shop, form: dict[str, Any], seed: int
) -> None:
    """A table that is filled before capture begins, and its copy that is filled while it runs."""
    shop.run("set time_zone = '+00:00', sql_mode = ''", f"alter database {shop.name} character set utf8mb4")
    kinds = literals(seed)
    columns = ", ".join(f"v{number} {kind}" for number, kind in enumerate(kinds))
    count = max(map(len, kinds.values()))
    for table in ("s", "b"):
        shop.run(f"create table {table} (id int primary key, {columns})")
    for place in range(count):
        row = ", ".join(values[place % len(values)] for values in kinds.values())
        shop.run(f"insert into s values ({place}, {row})")
    catch_up(log, shop.options(**form))
    shop.run("insert into b select * from s")
    catch_up(log, shop.options(**form))
    assert events(log, f"{shop.name}.dead-letters") == []
    read, streamed = afters(log, shop, "s"), afters(log, shop, "b")
    assert len(read) == count
    for first, second in zip(read, streamed, strict=True):
        names = list(kinds)
        parsed = [json.loads(each.partition(b":")[2]) for each in (first, second)]
        differ = {names[int(name[1:])] for name in parsed[0] if parsed[0][name] != parsed[1][name]}
        assert differ == set()
        assert first == second


def afters(log: str, shop: Shop, table: str) -> list[bytes]:
    """The rows of a topic as they were written, byte by byte."""
    found = []
    for record in committed(log, shop.topic(table)):
        value = record.value or b""
        json.loads(value)
        found.append(value[value.index(b'"after":') : value.index(b',"source":')])
    return found


def test_floats_have_all_their_digits(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key, f float, d double)")
    shop.run("insert into t values (1, 123456.79, 0.1), (2, 16777216, 1e300)")
    catch_up(log, shop.options())
    found = [each.value["after"] for each in events(log, shop.topic("t"))]
    assert found == [{"id": 1, "f": 123456.79, "d": 0.1}, {"id": 2, "f": 16777216.0, "d": 1e300}]


DAY = "2026-01-01"
ZEROS = ["0000-00-00", "2026-00-00", "2026-01-00", "2026-00-01"]


@pytest.mark.parametrize("filled_first", [True, False])
def test_different_dates_with_a_zero_in_a_key_are_different_keys(log: str, shop: Shop, filled_first: bool) -> None:
    shop.run("set sql_mode = ''", "create table t (d date, m datetime(3), other date, primary key (d, m))")
    if not filled_first:
        catch_up(log, shop.options())
    for day in (*ZEROS, DAY):
        shop.run(f"insert into t values ('{day}', '{day} 03:04:05.120', '{day}')")
    catch_up(log, shop.options(chunk_rows=1))
    shop.run("update t set d = '2026-02-00' where d = '2026-00-01'", "delete from t where d = '2026-01-00'")
    catch_up(log, shop.options())
    assert events(log, f"{shop.name}.dead-letters") == []
    left = [("0000-00-00", "0000-00-00"), ("2026-00-00", "2026-00-00"), ("2026-02-00", "2026-00-01"), (DAY, DAY)]
    expected = {}
    for day, other in left:
        key = {"d": day, "m": f"{other}T03:04:05.12"}
        expected[json.dumps(key)] = {**key, "other": DAY if other == DAY else None}
    assert fold(events(log, shop.topic("t"))) == expected


@pytest.mark.parametrize("filled_first", [True, False])
def test_a_date_with_a_zero_in_a_key_that_has_no_number_is_a_dead_letter(
    log: str, shop: Shop, filled_first: bool
) -> None:
    options = shop.options(times="numbers")
    shop.run("set sql_mode = ''", "create table t (d date primary key)")
    if not filled_first:
        catch_up(log, options)
    for day in (*ZEROS, DAY):
        shop.run(f"insert into t values ('{day}')")
    catch_up(log, options)
    assert [each.value["after"] for each in events(log, shop.topic("t"))] == [{"d": 20454}]
    letters = events(log, f"{shop.name}.dead-letters")
    assert sorted(each.value["reason"] for each in letters) == [
        f"{day} is part of the key and no day of the calendar, so it has no number" for day in sorted(ZEROS)
    ]


SAMPLES = {
    "latin1": "\u00e9\u20ac\x81",
    "utf16": "\u00e9\U0001f600",
    "utf16le": "\u00e9\U0001f600",
    "utf32": "\u00e9\U0001f600",
    "utf8mb3": "\u00e9\u20ac",
    "ucs2": "\u00e9\u4e00",
    "sjis": "\u65e5\u672c\uff71",
    "cp932": "\u65e5\u2460\u30bd",
    "ujis": "\u65e5\u672c\u4e02",
    "eucjpms": "\u65e5\u2460\u4e02",
    "big5": "\u4e00\u570b",
    "gbk": "\u4e00\u56fd",
    "gb2312": "\u4e00\u56fd",
    "euckr": "\ud55c\uad6d",
    "tis620": "\u0e01",
    "koi8r": "\u0416",
    "cp1251": "\u0416",
    "greek": "\u03a9",
    "hebrew": "\u05d0",
    "swe7": "\u00c5",
    "dec8": "\u00e9",
    "hp8": "\u00e9",
    "macce": "\u010d",
    "macroman": "\u00e9",
    "keybcs2": "\u010d",
    "geostd8": "\u10d0",
    "armscii8": "\u0561",
    "cp1256": "\u0628",
    "binary": "",
}


def test_texts_of_every_character_set_are_the_same_from_the_snapshot_and_from_the_binlog(log: str, shop: Shop) -> None:
    sets = [
        each["character_set_name"]
        for each in shop.all("select character_set_name from information_schema.character_sets")
    ]
    with_texts = [each for each in sets if each != "binary"]
    chosen = {each: SAMPLES.get(each, "y") for each in with_texts}
    columns = ", ".join(
        f"`{each}` varchar(20) character set {each}, `e_{each}` enum('x', '{chosen[each]}') character set {each}"
        for each in with_texts
    )
    shop.run(f"create table t (id int primary key, {columns}) engine=InnoDB row_format=dynamic")
    samples = [SAMPLES.get(each, "ab") for each in with_texts]
    values = ", ".join(f"'{each}', 2" for each in samples)
    shop.run(f"insert into t values (1, {values})")
    catch_up(log, shop.options())
    shop.run(f"insert into t values (2, {values})", "delete from t where id = 1")
    catch_up(log, shop.options())
    read, created, deleted, _ = events(log, shop.topic("t"))
    expected = dict(zip(with_texts, samples, strict=True))
    for found in (read.value["after"], created.value["after"], deleted.value["before"]):
        assert {name: found[name] for name in with_texts} == expected
        assert {name: found[f"e_{name}"] for name in with_texts} == chosen


def test_generated_and_invisible_columns_and_added_and_dropped_ones_are_followed(log: str, shop: Shop) -> None:
    shop.run(
        "create table t (id int primary key, v int as (id + 1) virtual, s int as (id * 2) stored, h int invisible)"
    )
    shop.run("insert into t (id, h) values (1, 5)")
    catch_up(log, shop.options())
    shop.run("insert into t (id, h) values (2, 6)", "update t set h = 7 where id = 1", "delete from t where id = 2")
    shop.run("alter table t add column a int first", "insert into t (id) values (3)")
    shop.run("alter table t drop column h", "insert into t (id) values (4)")
    catch_up(log, shop.options())
    found = [each.value for each in events(log, shop.topic("t")) if each.op != "tombstone"]
    assert [each["op"] for each in found] == ["r", "c", "u", "d", "c", "c"]
    assert found[0]["after"] == {"id": 1, "v": 2, "s": 2, "h": 5}
    assert found[1]["after"] == {"id": 2, "v": 3, "s": 4, "h": 6}
    assert (found[2]["before"], found[2]["after"]) == (found[0]["after"], {"id": 1, "v": 2, "s": 2, "h": 7})
    assert found[4]["after"] == {"a": None, "id": 3, "v": 4, "s": 6, "h": None}
    assert found[5]["after"] == {"a": None, "id": 4, "v": 5, "s": 8}


@pytest.mark.parametrize(
    "change",
    [
        "alter table t add column a varchar(5) default 'old' first, algorithm=instant",
        "alter table t modify n smallint unsigned",
        "alter table t modify n varchar(9) not null",
        "alter table t rename column n to m",
        "alter table t change n m bigint",
        "alter table t add column a int generated always as (id + 1) stored",
    ],
)
def test_values_that_an_alteration_gives_to_old_rows_are_written(log: str, shop: Shop, change: str) -> None:
    shop.run("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    catch_up(log, shop.options())
    shop.run("insert into t (id) values (3)" if "not null" not in change else "do 0", change)
    shop.run("insert into t (id) values (4)" if "not null" not in change else "insert into t (id, n) values (4, 'x')")
    catch_up(log, shop.options())
    assert [each.op for each in events(log, shop.topic("t"))].count("t") == 1
    shop.check(log, "t")


def test_a_timestamp_is_the_same_moment_whatever_the_zone_of_session_and_server(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key, m timestamp(3) null)", "set time_zone = '+05:30'")
    shop.run("insert into t values (1, '2026-01-02 08:34:05.120')")
    catch_up(log, CaptureOptions(name=shop.name, url=shop.server.url(shop.name)))
    shop.run("set time_zone = '-08:00'", "insert into t values (2, '2026-01-01 19:04:05.120')")
    catch_up(log, shop.options())
    found = [each.value["after"]["m"] for each in events(log, shop.topic("t"))]
    assert found == ["2026-01-02T03:04:05.120Z"] * 2
