"""The same SQL through real Debezium and through headrace: equal JSON, once times and versions are masked.

What differs on purpose is listed in docs/debezium.md, and only that is masked here.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from headrace.capture import CaptureOptions
from tests.capture.conftest import Database
from tests.capture.world import catch_up, committed
from tests.servers.debezium import debezium, debezium_python
from tests.skips import or_skip

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TYPES = {
    "i2": ("smallint", "-5"),
    "i8": ("bigint", "9223372036854775807"),
    "f4": ("real", "1.1"),
    "f8": ("double precision", "-0.1"),
    "fi": ("double precision", "7"),
    "n": ("numeric", "12345678901234567890.123"),
    "n2": ("numeric(10,2)", "-1.50"),
    "bo": ("boolean", "true"),
    "tx": ("text", "'a\"b\\ \u00e9 \U0001f600'"),
    "vc": ("varchar(10)", "'x'"),
    "ch": ("char(5)", "'x'"),
    "by": ("bytea", "'\\xdeadbeef'"),
    "js": ("json", """'{"a":  1}'"""),
    "jb": ("jsonb", """'{"a":  [1, null]}'"""),
    "uu": ("uuid", "'00000000-0000-0000-0000-000000000001'"),
    "ts": ("timestamp", "'2026-01-02 03:04:05.123456'"),
    "t3": ("timestamp(3)", "'2026-01-02 03:04:05.123'"),
    "t0": ("timestamp(0)", "'1969-12-31 23:59:59'"),
    "tz": ("timestamptz", "'2026-01-02 03:04:05.12+02'"),
    "tw": ("timestamptz", "'2026-01-02 03:04:05+00'"),
    "tx3": ("timestamptz(3)", "'2026-01-02 03:04:05.1+00'"),
    "tx0": ("timestamptz(0)", "'2026-01-02 03:04:05+00'"),
    "tq": ("timetz(0)", "'01:00:00+00'"),
    "da": ("date", "'1969-07-20'"),
    "ti": ("time", "'03:04:05.5'"),
    "tj": ("time(2)", "'03:04:05.25'"),
    "tt": ("timetz", "'01:00:00.5+02'"),
    "iv": ("interval", "'1 year 2 months -3 days 04:05:06.7'"),
    "ia": ("int[]", "'{1,NULL,3}'"),
    "ta": ("text[]", "'{a,\"b c\",NULL}'"),
    "na": ("numeric(6,1)[]", "'{1.5,2.5}'"),
    "en": ("mood", "'sad'"),
    "ra": ("int4range", "'[1,5)'"),
    "ip": ("inet", "'10.0.0.1/8'"),
    "b1": ("bit(1)", "B'1'"),
    "b9": ("bit(9)", "B'100000001'"),
    "vb": ("bit varying(20)", "B'1011'"),
    "mo": ("money", "'1234.5'"),
    "pt": ("point", "'(1.5,-2)'"),
    "dm": ("price", "9.99"),
    "nu": ("int", "null"),
}


def script(database: Database) -> None:
    """Changes of every sort. The last one is in table ``done``, by which both sides know that they are at the end."""
    values = ", ".join(value for _, value in TYPES.values())
    database.run(f"insert into types values (1, {values})", "update types set i2 = 7", "delete from types")
    database.run("insert into pairs values (1, 'a', 1)", "update pairs set n = 2", "update pairs set k = 'b'")
    database.run(
        "insert into pairs select i, 'many', i from generate_series(10, 14) i", "delete from pairs where a = 12"
    )
    database.run("insert into whole values (1, 'x')", "update whole set v = 'y'", "delete from whole")
    database.run("insert into large values (1, 0, repeat(md5('a'), 400))", "update large set n = 1", "truncate pairs")
    database.run("select pg_logical_emit_message(true, 'mine', 'hello')")
    database.run("begin", "insert into pairs values (7, 'c', 1)", "insert into whole values (7, 'c')", "commit")
    database.run("insert into done values (1)")


def masked(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    copy = {name: masked(each) for name, each in value.items()}
    for name in ("ts_ms", "ts_us", "ts_ns", "version"):
        if name in copy:
            copy[name] = "masked"
    if copy.get("transaction"):
        copy["transaction"] = {**copy["transaction"], "id": copy["transaction"]["id"].partition(":")[0]}
    if "sequence" in copy:
        copy["sequence"] = json.loads(copy["sequence"])[1]  # the other is the last commit that the process has seen
    return copy


def by_topic(records: list[tuple[str, str | None, str | None]], prefix: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for topic, key, value in records:
        if topic.startswith((f"{prefix}.public.", f"{prefix}.message")):
            pair = [masked(json.loads(each)) if each is not None else None for each in (key, value)]
            found.setdefault(topic, []).append(pair)
    return found


def differences(ours: Any, theirs: Any, path: str) -> list[str]:
    """Field by field, so that a failure names what differs; the order of fields counts too."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and [*ours] == [*theirs]:
        return [each for name in ours for each in differences(ours[name], theirs[name], f"{path}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [each for at in range(len(ours)) for each in differences(ours[at], theirs[at], f"{path}[{at}]")]
    return [] if ours == theirs and type(ours) is type(theirs) else [f"{path}: {ours!r} instead of {theirs!r}"]


@pytest.mark.timeout(900)  # Debezium is installed on first use
def test_the_same_changes_give_the_same_json_as_debezium(log: str, database: Database) -> None:
    with or_skip():
        debezium_python()
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    database.run("create type mood as enum ('happy', 'sad')", "create domain price as numeric(8,2)")
    database.run("set lc_monetary = 'C'", f"create table types (id int primary key, {columns})")
    database.run(
        "create table pairs (a int, k text, n int, primary key (k, a))", "create table done (id int primary key)"
    )
    database.run("create table whole (id int primary key, v text)", "alter table whole replica identity full")
    database.run(
        "create table large (id int primary key, n int, body text)", "alter table large alter body set storage external"
    )
    name = database.name
    more = {"provide.transaction.metadata": "true", "skipped.operations": "none"}
    capture = CaptureOptions(name=name, url=database.url, snapshot=False, remembered_bytes_max=0)
    catch_up(log, capture)
    with debezium(database.url, name, more=more) as other:
        while not database.all(f"select 1 from pg_replication_slots where slot_name = 'debezium_{name}' and active"):
            assert other.child.poll() is None, "Debezium has ended"
            time.sleep(0.1)
        script(database)
        theirs = other.wait_for(lambda lines: any(line[0] == f"{name}.public.done" for line in lines))
    catch_up(log, capture)
    topics = [f"{name}.public.{table}" for table in ("types", "pairs", "whole", "large", "done")] + [f"{name}.message"]
    ours = [
        (topic, each.key and each.key.decode(), each.value and each.value.decode())
        for topic in topics
        for each in committed(log, topic)
    ]
    expected, found = by_topic(theirs, name), by_topic(ours, name)
    assert differences({name: found[name] for name in topics}, {name: expected[name] for name in topics}, "") == []
