"""The same SQL on MariaDB through real Debezium and through headrace: equal keys, values and headers.

Debezium for MariaDB is 3.5.0, the newest that Maven Central has: see ``tests/servers/debezium.py``.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.capture import CaptureOptions
from tests.capture.shop import Shop
from tests.capture.test_debezium_oracle import (
    MODES,
    MORE,
    by_topic,
    captured,
    differences,
    judge,
    transactions,
    without_zones,
)
from tests.capture.world import catch_up
from tests.servers.debezium import Debezium, debezium, debezium_python, mariadb_jars
from tests.skips import or_skip

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TYPES = {
    "i1": ("tinyint", "-5"),
    "u1": ("tinyint unsigned", "250"),
    "i2": ("smallint", "-300"),
    "i3": ("mediumint", "-70000"),
    "i4": ("int", "-5"),
    "u4": ("int unsigned", "4294967295"),
    "i8": ("bigint", "9223372036854775807"),
    "f4": ("float", "1.5"),
    "f8": ("double", "-0.1"),
    "n2": ("decimal(10,2)", "-1.50"),
    "bo": ("boolean", "true"),
    "tx": ("text", "'a\"b\\\\ \u00e9 \U0001f600'"),
    "vc": ("varchar(10)", "'x'"),
    "ch": ("char(5)", "'x'"),
    "vb": ("varbinary(10)", "x'deadbeef'"),
    "bl": ("blob", "x'00ff'"),
    "js": ("json", """'{"a":  1}'"""),
    "ts": ("datetime", "'2026-01-02 03:04:05'"),
    "t3": ("datetime(3)", "'2026-01-02 03:04:05.123'"),
    "d6": ("datetime(6)", "'2026-01-02 03:04:05.123456'"),
    "tz": ("timestamp(6) null", "'2026-01-02 03:04:05.123456'"),
    "da": ("date", "'1969-07-20'"),
    "ti": ("time", "'03:04:05'"),
    "tj": ("time(3)", "'03:04:05.25'"),
    "y": ("year", "2026"),
    "en": ("enum('happy', 'sad')", "'sad'"),
    "se": ("set('a', 'b', 'c')", "'a,c'"),
    "b1": ("bit(1)", "b'1'"),
    "b9": ("bit(9)", "b'100000001'"),
    "nu": ("int", "null"),
}
TABLES = ("types", "pairs", "bag", "done")


def script(shop: Shop) -> None:
    values = ", ".join(value for _, value in TYPES.values())
    shop.run(f"insert into types values (1, {values})", "update types set i2 = 7", "delete from types")
    shop.run("insert into pairs values (1, 'a', 1)", "update pairs set n = 2", "update pairs set k = 'b'")
    shop.run("insert into pairs values (10, 'm', 1), (11, 'm', 2), (12, 'm', 3)", "delete from pairs where a = 12")
    shop.run("insert into bag values (1, 'x')", "update bag set v = 'y'", "delete from bag")
    shop.run("begin", "insert into pairs values (7, 'c', 1)", "insert into bag values (7, 'c')", "commit")
    shop.run("truncate table pairs", "insert into done values (1)")


def readers(shop: Shop) -> set[int]:
    """Those to whom the server sends its binlog; it notices late that one has gone."""
    found = shop.all("select id from information_schema.processlist where command like 'Binlog Dump%'")
    return {each["id"] for each in found}


def wait_for_reader(shop: Shop, before: set[int], other: Debezium) -> None:
    while not readers(shop) - before:
        assert other.child.poll() is None, "Debezium has ended"
        time.sleep(0.1)


def with_ends(told: list[Any], truncated: str) -> list[Any]:
    """Debezium begins a transaction for a truncation and does not end it; the order of its counts is by chance."""
    whole: list[Any] = []
    for each in told:
        if each["status"] == "BEGIN" and whole and whole[-1]["status"] == "BEGIN":
            counts = [{"data_collection": truncated, "event_count": 1}]
            whole.append({**each, "status": "END", "event_count": 1, "data_collections": counts})
        (each["data_collections"] or []).sort(key=lambda count: count["data_collection"])
        whole.append(each)
    return whole


UNFIXED: dict[str, tuple[str, ...]] = {"numbers": (), "strings": ()}
"""Differences that are known defects; one that is gone must leave this list."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_the_same_changes_of_mariadb_give_the_same_records_as_debezium(log: str, shop: Shop, mode: str) -> None:
    with or_skip():
        debezium_python()
        mariadb_jars()
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    shop.run(f"create table types (id int primary key, {columns}) character set utf8mb4")
    shop.run("create table pairs (a int, k varchar(9), n int, primary key (k, a))", "create table bag (id int, v text)")
    shop.run("create table done (id int primary key)")
    ours_options, their_options = MODES[mode]
    name = shop.name
    url = shop.options().url
    capture = CaptureOptions(name=name, url=url, snapshot=False, transactions=True, **ours_options)
    catch_up(log, capture)
    before = readers(shop)
    with debezium(url, name, more={**MORE, **their_options}) as other:
        wait_for_reader(shop, before, other)
        script(shop)
        theirs = other.wait_for(lambda lines: any(line[0] == f"{name}.{name}.done" for line in lines))
    catch_up(log, capture)
    topics = [f"{name}.{name}.{table}" for table in TABLES]
    ours = captured(log, [*topics, f"{name}.transaction"])
    expected = by_topic(theirs, topics)
    found = differences(by_topic(ours, topics), without_zones(expected) if mode == "strings" else expected, "")
    both = [with_ends(transactions(each, f"{name}.transaction"), f"{name}.pairs") for each in (ours, theirs)]
    found += differences(both[0][: len(both[1])], both[1], "transaction")
    judge(found, UNFIXED[mode])
