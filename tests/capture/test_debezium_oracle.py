"""The same SQL through real Debezium and through headrace: equal keys, values and headers.

What differs on purpose is listed in docs/debezium.md, and only that is masked here. Times of the database are the same
for both and are compared; times of the process must be of this hour in their unit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.capture import CaptureOptions
from tests.capture.conftest import Database
from tests.capture.test_debezium_samples import AS_DEBEZIUM
from tests.capture.world import catch_up, committed
from tests.servers.debezium import Debezium, debezium, debezium_python
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


# An index as the identity beside a primary key is left out: Debezium then writes 0 as the key of a deleted row.
IDENTITIES = {
    "key_with_more": ["create table {t} (id int, v text, primary key (id) include (v))"],
    "only_index": [
        "create table {t} (id int, v text not null unique)",
        "alter table {t} replica identity using index {t}_v_key",
    ],
    "whole": ["create table {t} (id int primary key, v text)", "alter table {t} replica identity full"],
    "whole_without_key": ["create table {t} (id int, v text)", "alter table {t} replica identity full"],
}
TABLES = ("types", "pairs", "large", "done", *IDENTITIES)


def make_tables(database: Database) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    database.run("create type mood as enum ('happy', 'sad')", "create domain price as numeric(8,2)")
    database.run("set lc_monetary = 'C'", f"create table types (id int primary key, {columns})")
    database.run("create table pairs (a int, k text, n int, primary key (k, a))")
    database.run("create table done (id int primary key)", "create table large (id int primary key, n int, body text)")
    database.run("alter table large alter body set storage external")
    for name, statements in IDENTITIES.items():
        database.run(*(each.format(t=name) for each in statements))


def script(database: Database) -> None:
    """Changes of every sort. The last one is in table ``done``, by which both sides know that they are at the end."""
    values = ", ".join(value for _, value in TYPES.values())
    database.run(f"insert into types values (1, {values})", "update types set i2 = 7", "delete from types")
    database.run("insert into pairs values (1, 'a', 1)", "update pairs set n = 2", "update pairs set k = 'b'")
    database.run(
        "insert into pairs select i, 'many', i from generate_series(10, 14) i", "delete from pairs where a = 12"
    )
    for table in IDENTITIES:
        database.run(
            f"insert into {table} values (1, 'x')", f"update {table} set v = 'y'", f"update {table} set id = 2"
        )
        database.run(f"delete from {table}")
    database.run("insert into large values (1, 0, repeat(md5('a'), 400))", "update large set n = 1", "truncate pairs")
    database.run("select pg_logical_emit_message(true, 'mine', 'hello')")
    database.run("begin", "insert into pairs values (7, 'c', 1)", "insert into whole values (7, 'c')", "commit")
    database.run("insert into done values (1)")


UNITS = {"ts_ms": 1_000, "ts_us": 1_000_000, "ts_ns": 1_000_000_000}
HOUR_S = 3600


def masked(value: Any) -> Any:
    """Without what differs on purpose, and with process times as words."""
    if not isinstance(value, dict):
        return value
    copy = {name: each if name == "source" else masked(each) for name, each in value.items()}
    for name, unit in UNITS.items():
        if name in copy and abs(copy[name] / unit - time.time()) < HOUR_S:
            copy[name] = f"now in {unit} parts of a second"
    if copy.get("transaction"):
        copy["transaction"] = {**copy["transaction"], "id": "masked"}  # the name of one event, and of a transaction
    if "source" in copy:
        copy["source"] = masked_source(copy["source"])
    return copy


def masked_source(source: dict[str, Any]) -> dict[str, Any]:
    copy = {**source, "version": "masked"}
    if copy.get("sequence"):
        copy["sequence"] = json.loads(copy["sequence"])[1]  # the other is the last commit that the process has seen
    if "pos" in copy:
        copy["pos"] = "masked"  # where the rows begin in the binlog, and where they end
    return copy


Line = tuple[str, str | None, str | None, dict[str, str]]


def by_topic(records: list[Line], topics: list[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {topic: [] for topic in topics}
    for topic, key, value, headers in records:
        if topic in found:
            pair = [masked(json.loads(each)) if each is not None else None for each in (key, value)]
            if pair == [None, None]:
                continue  # Debezium's tombstone of a row without a key
            found[topic].append([*pair, {name: json.loads(each) for name, each in headers.items() if is_ours(name)}])
    return found


def is_ours(header: str) -> bool:
    """Others name the connector and its run, for tracing it."""
    return not header.startswith("__debezium.context.")


def differences(ours: Any, theirs: Any, path: str) -> list[str]:
    """Field by field, so that a failure names what differs; the order of fields counts too."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and [*ours] == [*theirs]:
        return [each for name in ours for each in differences(ours[name], theirs[name], f"{path}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [each for at in range(len(ours)) for each in differences(ours[at], theirs[at], f"{path}[{at}]")]
    if isinstance(ours, list) and isinstance(theirs, list):
        return [f"{path}: {len(ours)} records instead of {len(theirs)}: {brief(ours)} instead of {brief(theirs)}"]
    return [] if ours == theirs and type(ours) is type(theirs) else [f"{path}: {ours!r} instead of {theirs!r}"]


def brief(records: list[Any]) -> str:
    return str([(each[0], each[1] and each[1]["op"], each[2]) if isinstance(each, list) else each for each in records])


def captured(log: str, topics: list[str]) -> list[Line]:
    return [
        (
            topic,
            each.key and each.key.decode(),
            each.value and each.value.decode(),
            {name: (value or b"").decode() for name, value in each.headers},
        )
        for topic in topics
        for each in committed(log, topic)
    ]


def transactions(records: list[Line], topic: str) -> list[Any]:
    """Begin and end of transactions, without their names; docs/debezium.md says how messages are counted."""
    found = []
    for at, _, value, _ in records:
        if at == topic and value is not None:
            told = {**masked(json.loads(value)), "id": "masked"}
            for each in told["data_collections"] or []:
                if "." not in each["data_collection"] or "@" in each["data_collection"]:
                    each["data_collection"] = "message"
            found.append(told)
    return found


def without_zones(records: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Debezium's text of times without a zone ends in Z all the same."""
    for _, value, _ in (each for of_topic in records.values() for each in of_topic):
        for row in (value[part] for part in ("before", "after") if value and value.get(part)):
            for name in row.keys() & {"ts", "t3", "t0", "da", "ti", "tj", "d6", "y"}:
                row[name] = row[name].removesuffix("Z") if isinstance(row[name], str) else row[name]
    return records


UNFIXED: tuple[str, ...] = ()
"""Differences that are known defects; one that is gone must leave this list."""


def judge(found: list[str], unfixed: Sequence[str]) -> None:
    new = [each for each in found if not any(known in each for known in unfixed)]
    assert not new, "\n".join(new)
    gone = [known for known in unfixed if not any(known in each for each in found)]
    assert not gone, f"no longer different, so take them from the list: {gone}"


MODES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "numbers": (AS_DEBEZIUM, {}),
    "strings": (
        {},
        {"decimal.handling.mode": "string", "time.precision.mode": "isostring", "interval.handling.mode": "string"},
    ),
}
MORE = {"provide.transaction.metadata": "true", "skipped.operations": "none"}


def wait_for_slot(database: Database, other: Debezium) -> None:
    name = f"debezium_{database.name}"
    while not database.all(f"select 1 from pg_replication_slots where slot_name = '{name}' and active"):
        assert other.child.poll() is None, "Debezium has ended"
        time.sleep(0.1)


@pytest.mark.timeout(900)  # Debezium is installed on first use
@pytest.mark.parametrize("mode", MODES)
def test_the_same_changes_give_the_same_records_as_debezium(log: str, database: Database, mode: str) -> None:
    with or_skip():
        debezium_python()
    ours_options, their_options = MODES[mode]
    make_tables(database)
    name = database.name
    capture = CaptureOptions(
        name=name, url=database.url, snapshot=False, remembered_bytes_max=0, transactions=True, **ours_options
    )
    catch_up(log, capture)
    with debezium(database.url, name, more={**MORE, **their_options}) as other:
        wait_for_slot(database, other)
        script(database)
        theirs = other.wait_for(lambda lines: any(line[0] == f"{name}.public.done" for line in lines))
    catch_up(log, capture)
    topics = [*(f"{name}.public.{table}" for table in TABLES), f"{name}.message"]
    ours = captured(log, [*topics, f"{name}.transaction"])
    expected = by_topic(theirs, topics)
    found = differences(by_topic(ours, topics), without_zones(expected) if mode == "strings" else expected, "")
    both = [transactions(each, f"{name}.transaction") for each in (ours, theirs)]
    judge(found + differences(both[0][: len(both[1])], both[1], "transaction"), UNFIXED)
