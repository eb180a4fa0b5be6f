"""Tables that follow, on each database: upserts, deletes, fences, types, names, and rows that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Refused, UsageError
from headrace.targets.changes import JSON_FIELD, Changes
from headrace.targets.target import Delivery, RefusedRows, Unavailable
from headrace.vocabulary import UNAVAILABLE
from tests.sinks.world import SCHEMA, Base, Refusals, changes_of, deliver, fence

HOSTILE_NAMES = [
    'or"der',
    "or`der",
    "or'der; DROP TABLE orders; --",
    "select",
    "100% %s",
    "naïve ☃",
    "a.b",
    "with space",
]
HOSTILE_TEXTS = [
    "",
    "'",
    '"',
    "\\",
    "\\N",
    "\\.",
    "NULL",
    "a,b",
    "line\nline",
    "\r\n",
    "tab\t",
    "☃ 😀",
    "%s",
    "${HOME}",
]


def test_rows_are_inserted_updated_and_deleted_by_their_key(base: Base) -> None:
    target = base.target()
    deliver(target, [(1, "a", Decimal(1)), (2, "b", Decimal(2)), (3, "c", None)], at=fence(0))
    deliver(target, [(2, "B", Decimal(5)), ("-", 3), (4, "d", Decimal(4))], at=fence(1))
    assert base.rows() == [(1, "a"), (2, "B"), (4, "d")]


def test_of_several_changes_to_a_key_in_a_batch_the_last_counts(base: Base) -> None:
    rows = [(1, "first"), ("-", 1), (2, "x"), (1, "last"), ("-", 2)]
    deliver(base.target(), rows, at=fence(0))
    assert base.rows() == [(1, "last")]


def test_chunks_of_a_batch_follow_one_another_and_count_together(base: Base) -> None:
    outcome = deliver(base.target(), [(1, "a"), (2, "b")], [(1, "c"), ("-", 2)], at=fence(0))
    assert (base.rows(), outcome.rows) == ([(1, "c")], 4)


def test_a_change_of_the_key_is_a_deletion_and_an_insertion(base: Base) -> None:
    deliver(base.target(), [(1, "anna")], at=fence(0))
    deliver(base.target(), [("-", 1), (7, "anna")], at=fence(1))
    assert base.rows() == [(7, "anna")]


def test_a_value_that_was_not_sent_leaves_what_the_table_has(base: Base) -> None:
    deliver(base.target(), [(1, "large", Decimal(1)), (2, "b", Decimal(2))], at=fence(0))
    deliver(base.target(), [(1, UNAVAILABLE, Decimal(7)), (9, UNAVAILABLE, Decimal(9)), ("-", 2)], at=fence(1))
    assert base.rows(columns="id, name") == [(1, "large")]
    assert [Decimal(each) for (each,) in base.rows(columns="amount")] == [Decimal(7)]


def test_a_value_that_was_not_sent_is_taken_from_an_earlier_change_of_the_batch(base: Base) -> None:
    deliver(base.target(), [(1, "old")], at=fence(0))
    rows = [(1, "new"), (2, "two"), (1, UNAVAILABLE, Decimal(5)), (2, UNAVAILABLE), ("-", 3), (3, UNAVAILABLE)]
    deliver(base.target(), rows, at=fence(1))
    assert base.rows() == [(1, "new"), (2, "two")]


def test_a_value_that_was_not_sent_is_never_that_of_a_row_that_was_deleted(base: Base) -> None:
    """However the changes are cut into batches: the row is not there until it comes whole."""
    changes = [(1, "new"), ("-", 1), (1, UNAVAILABLE), (2, UNAVAILABLE), ("-", 2), (2, "whole"), (2, UNAVAILABLE)]
    for number, batches in enumerate(([changes], [[each] for each in changes])):
        deliver(base.target(), [(1, "old"), (2, "old")], at=fence(number * 10))
        for later, batch in enumerate(batches, 1):
            deliver(base.target(), batch, at=fence(number * 10 + later))
        assert base.rows() == [(2, "whole")]


def test_an_older_version_that_lacks_a_value_does_not_replace_a_newer_row(base: Base) -> None:
    target = base.target(version_column="amount")
    deliver(target, [(1, "large", Decimal(5)), (2, "other", Decimal(5))], at=fence(0))
    schema = pa.schema([*SCHEMA, ("city", pa.string())])
    base.run(f"ALTER TABLE {base.quote('orders')} ADD COLUMN city varchar(20)")
    rows = [(1, UNAVAILABLE, Decimal(4), "Oslo"), (2, UNAVAILABLE, Decimal(6), "Rome")]
    deliver(target, rows, at=fence(1), schema=schema)
    assert base.rows(columns="id, name, city") == [(1, "large", None), (2, "other", "Rome")]


def test_without_a_key_a_row_that_lacks_a_value_is_refused(base: Base) -> None:
    with pytest.raises(Refused, match="did not send a large value"):
        deliver(base.target(key=()), [(1, UNAVAILABLE)], at=fence(0))


def test_a_truncation_empties_the_table_where_it_stands_among_the_changes(base: Base) -> None:
    deliver(base.target(), [(1, "a"), (2, "b")], at=fence(0))
    after = replace(changes_of([(4, "d")]), truncates=True)
    deliver(base.target(), changes_of([(3, "c")]), after, at=fence(1))
    assert base.rows() == [(4, "d")]


def test_a_truncation_is_refused_where_another_pipeline_writes_into_the_table_too(base: Base) -> None:
    deliver(base.target(), [(1, "mine")], at=fence(0))
    deliver(base.target(), [(2, "theirs")], at=fence(0, query="other", pipeline="other"))
    with pytest.raises(Refused, match=r"other pipelines have written into the table too \(other\)"):
        deliver(base.target(), replace(changes_of([]), truncates=True), at=fence(1))
    with pytest.raises(Refused, match=r"other pipelines have written into the table too \((other, p|p, other)\)"):
        deliver(base.target(), replace(changes_of([]), truncates=True))  # bounded: it has no fence
    assert base.rows() == [(1, "mine"), (2, "theirs")]


def test_a_pipeline_that_has_written_nothing_yet_is_in_the_way_of_no_truncation(base: Base) -> None:
    deliver(base.target(), [(1, "mine")], at=fence(0))
    with pytest.raises(Refused, match="its key"):
        deliver(base.target(), [(None, "bad")], at=fence(0, query="other", pipeline="other"))
    deliver(base.target(), replace(changes_of([]), truncates=True), at=fence(1))
    assert base.rows() == []


def test_rows_before_a_refused_one_are_added_once(base: Base) -> None:
    base.run(f"CREATE TABLE {base.quote('orders')} (id int, name varchar(20) NOT NULL)")
    schema, refusals = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")]), Refusals()
    rows = [(1, "a"), (2, "b"), (3, None), (4, "d"), (5, None)]
    deliver(base.target(key=(), create=False), rows, at=fence(0), schema=schema, refusals=refusals)
    assert base.rows() == [(1, "a"), (2, "b"), (4, "d")]
    assert [row["id"] for row, _ in refusals.rows] == [3, 5]


def test_a_batch_that_fails_sends_no_refused_row_and_sends_it_when_it_comes_again(base: Base) -> None:
    base.run(f"CREATE TABLE {base.quote('orders')} (id int, name varchar(20) NOT NULL)")
    schema, refusals = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")]), Refusals()
    target = base.target(key=(), create=False)

    def cut_off() -> Iterator[Changes]:
        yield changes_of([(1, "a"), (2, None)], schema)
        raise ConnectionError("a task was lost")

    session = target.open()
    with closing(session), pytest.raises(ConnectionError):
        session.write(Delivery(schema, cut_off(), RefusedRows(target.shown, refusals.send), fence(0)))
    assert (base.rows(), refusals.rows) == ([], [])
    deliver(target, [(1, "a"), (2, None)], at=fence(0), schema=schema, refusals=refusals)
    assert base.rows() == [(1, "a")]
    assert [row["id"] for row, _ in refusals.rows] == [2]


def test_a_truncation_in_a_bounded_write_empties_a_table_that_nobody_follows(base: Base) -> None:
    deliver(base.target(), [(1, "before")])
    deliver(base.target(), replace(changes_of([(2, "after")]), truncates=True))
    assert base.rows() == [(2, "after")]


def test_a_key_may_have_several_columns(base: Base) -> None:
    target = base.target(key=("id", "name"))
    deliver(target, [(1, "a", Decimal(1)), (1, "b", Decimal(2)), (2, "a", Decimal(3))], at=fence(0))
    deliver(target, [("-", 1, "b"), (2, "a", Decimal(9))], at=fence(1))
    assert base.rows(columns="id, name, amount") in (
        [(1, "a", Decimal("1.00")), (2, "a", Decimal("9.00"))],
        [(1, "a", "1.00"), (2, "a", "9.00")],
    )


def test_a_table_of_nothing_but_its_key_follows(base: Base) -> None:
    schema = pa.schema([("id", pa.int64())])
    deliver(base.target(), [(1,), (2,)], at=fence(0), schema=schema)
    deliver(base.target(), [(2,), ("-", 1)], at=fence(1), schema=schema)
    assert base.rows(columns="id") == [(2,)]


def test_without_a_key_rows_are_added_and_a_replay_adds_none(base: Base) -> None:
    target = base.target(key=())
    deliver(target, [(1, "a"), (1, "a")], at=fence(0))
    assert deliver(target, [(1, "a"), (1, "a")], at=fence(0)).replayed
    deliver(target, [(1, "b")], at=fence(1))
    assert base.rows() == [(1, "a"), (1, "a"), (1, "b")]


def test_a_replayed_batch_has_no_effect(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(0))
    base.run(f"UPDATE {base.quote('orders')} SET name = 'changed since'")
    assert deliver(base.target(), [(1, "a")], at=fence(0)).replayed
    assert base.rows() == [(1, "changed since")]


def test_a_run_whose_first_batch_is_a_replay_has_taken_over_and_goes_on(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(0, owner="first run"))
    assert deliver(base.target(), [(1, "a")], at=fence(0, owner="second run")).replayed
    deliver(base.target(), [(1, "b")], at=fence(1, owner="second run", first=False))
    assert base.rows() == [(1, "b")]
    with pytest.raises(Refused, match="another run"):
        deliver(base.target(), [(1, "stale")], at=fence(1, "other", owner="first run", first=False))


def test_a_run_stops_when_its_table_was_rebuilt_meanwhile(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(0))
    base.run("DELETE FROM headrace_fences")
    with pytest.raises(Refused, match="emptied or rebuilt meanwhile"):
        deliver(base.target(), [(1, "b")], at=fence(1, first=False))


def test_a_batch_planned_anew_with_another_end_is_written_by_key_and_refused_without(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(0, "old"))
    assert not deliver(base.target(), [(1, "a"), (2, "b")], at=fence(0, "new")).replayed
    assert base.rows() == [(1, "a"), (2, "b")]
    added = base.target("events", key=())
    deliver(added, [(1, "a")], at=fence(0, "old"))
    with pytest.raises(Refused, match="would double"):
        deliver(added, [(1, "a"), (2, "b")], at=fence(0, "new"))
    assert base.rows("events") == [(1, "a")]


def test_pipelines_into_one_table_have_separate_fences(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(5, query="one", pipeline="first"))
    assert not deliver(base.target(), [(2, "b")], at=fence(0, query="two", pipeline="second")).replayed
    assert base.rows() == [(1, "a"), (2, "b")]


def test_a_run_that_another_has_taken_over_from_stops(base: Base) -> None:
    deliver(base.target(), [(1, "old")], at=fence(0, owner="first run"))
    deliver(base.target(), [(1, "new")], at=fence(1, owner="second run"))
    with pytest.raises(Refused, match="another run of pipeline p has taken over: second run"):
        deliver(base.target(), [(1, "stale")], at=fence(2, owner="first run", first=False))
    assert base.rows() == [(1, "new")]


def test_a_batch_that_fails_half_way_leaves_nothing_behind(base: Base) -> None:
    def chunks() -> Any:
        yield changes_of([(2, "b")])
        raise RuntimeError("a task was lost")

    deliver(base.target(), [(1, "a")], at=fence(0))
    session = base.target().open()
    try:
        from headrace.targets.target import Delivery, RefusedRows

        with pytest.raises(RuntimeError, match="a task was lost"):
            session.write(Delivery(SCHEMA, chunks(), RefusedRows("x"), fence(1)))
    finally:
        session.close()
    assert base.rows() == [(1, "a")]
    assert not deliver(base.target(), [(2, "b")], at=fence(1)).replayed
    assert base.rows() == [(1, "a"), (2, "b")]


# ---- types, names and values ---------------------------------------------------------------------------------------

MOMENT = datetime(2026, 1, 31, 10, 0, 5, 123456, tzinfo=UTC)
EVERY_TYPE: list[tuple[pa.Field, Any]] = [
    (pa.field("id", pa.int64()), 2**63 - 1),
    (pa.field("yes", pa.bool_()), True),
    (pa.field("tiny", pa.int8()), -128),
    (pa.field("small", pa.int16()), -(2**15)),
    (pa.field("plain", pa.int32()), 2**31 - 1),
    (pa.field("single", pa.float32()), 0.5),
    (pa.field("wide", pa.float64()), 1.7976931348623157e308),
    (pa.field("exact", pa.decimal128(38, 10)), Decimal("1234567890123456789012345678.0123456789")),
    (pa.field("words", pa.string()), "naïve ☃ 😀 'quoted' \"twice\" \\ back"),
    (pa.field("raw", pa.binary()), b"\x00\xff\\'\n"),
    (pa.field("day", pa.date32()), date(1582, 10, 15)),
    (pa.field("hour", pa.time64("us")), time(23, 59, 59, 999999)),
    (pa.field("moment", pa.timestamp("us", tz="UTC")), MOMENT),
    (pa.field("elsewhere", pa.timestamp("us", tz="Asia/Tokyo")), MOMENT),
    (pa.field("local", pa.timestamp("us")), MOMENT.replace(tzinfo=None)),
    (pa.field("nested", pa.string(), metadata=JSON_FIELD), '{"a": [1, null, "x"]}'),
]


def as_seen(kind: str, name: str, value: Any) -> Any:
    """How a value comes back from the database's own driver."""
    if kind == "postgresql":
        return json.loads(value) if name == "nested" else value
    if kind == "sqlite":
        texts = {"day": "1582-10-15", "hour": "23:59:59.999999", "local": "2026-01-31 10:00:05.123456"}
        texts |= dict.fromkeys(("moment", "elsewhere"), "2026-01-31 10:00:05.123456Z")
        return str(value) if name == "exact" else int(value) if name == "yes" else texts.get(name, value)
    if name in ("moment", "elsewhere"):
        return value.replace(tzinfo=None)
    if name == "hour":
        return datetime.combine(date.min, value) - datetime.min
    return int(value) if name == "yes" else value


def test_every_type_arrives_as_it_was_and_so_does_null(base: Base) -> None:
    schema = pa.schema([each for each, _ in EVERY_TYPE])
    full = tuple(value for _, value in EVERY_TYPE)
    deliver(base.target(), [full, (1,)], at=fence(0), schema=schema)
    names = ", ".join(schema.names)
    empty, seen = base.rows(columns=names)
    assert empty == (1, *[None] * (len(schema) - 1))
    wanted = {name: as_seen(base.kind, name, value) for name, value in zip(schema.names, full, strict=True)}
    assert dict(zip(schema.names, seen, strict=True)) == wanted


def test_a_number_that_is_none_arrives_or_is_told(base: Base) -> None:
    """PostgreSQL keeps NaN and infinity, SQLite has no NaN, MariaDB neither."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64())])
    refusals = Refusals()
    deliver(
        base.target(), [(1, float("nan")), (2, float("inf")), (3, 1.5)], at=fence(0), schema=schema, refusals=refusals
    )
    seen = {row[0]: str(row[1]) for row in base.rows(columns="id, value")}
    expected = {
        "postgresql": {1: "nan", 2: "inf", 3: "1.5"},
        "sqlite": {1: "None", 2: "inf", 3: "1.5"},
        "mariadb": {3: "1.5"},
    }
    assert seen == expected[base.kind]
    assert len(seen) + len(refusals.rows) == 3


def test_hostile_names_of_tables_and_columns_are_only_names(base: Base) -> None:
    for number, name in enumerate(HOSTILE_NAMES):
        schema = pa.schema([("id", pa.int64()), (name, pa.string())])
        target = base.target((name,), widen=True)
        deliver(target, [(1, "one"), (2, "two")], at=fence(0, query=name), schema=schema)
        deliver(target, [("-", 1), (2, str(number))], at=fence(1, query=name), schema=schema)
        wider = schema.append(pa.field(name + "2", pa.string()))
        deliver(target, [(3, "three", "more")], at=fence(2, query=name), schema=wider)
        found = base.rows(name, f"id, {base.quote(name)}, {base.quote(name + '2')}")
        assert found == [(2, str(number), None), (3, "three", "more")]


def test_hostile_texts_are_only_texts_in_keys_and_values(base: Base) -> None:
    schema = pa.schema([("id", pa.string()), ("name", pa.string())])
    deliver(base.target(), [(text, text) for text in HOSTILE_TEXTS], at=fence(0), schema=schema)
    assert sorted(base.rows()) == sorted((text, text) for text in HOSTILE_TEXTS)
    deliver(base.target(), [("-", text) for text in HOSTILE_TEXTS], at=fence(1), schema=schema)
    assert base.rows() == []


def test_keys_that_differ_in_case_or_trailing_space_are_different_rows(base: Base) -> None:
    schema = pa.schema([("id", pa.string()), ("name", pa.string())])
    keys = ["a", "A", "a ", "ä", "Ä"]
    deliver(base.target(), [(key, key) for key in keys], at=fence(0), schema=schema)
    assert {row[0] for row in base.rows()} == set(keys)


@pytest.mark.servers
def test_a_name_that_the_database_would_cut_is_refused(postgres_base: Base) -> None:
    schema = pa.schema([("id", pa.int64()), ("x" * 64, pa.string())])
    with pytest.raises(UsageError, match="cannot be a name here"):
        deliver(postgres_base.target(), [(1, "a")], at=fence(0), schema=schema)


# ---- tables --------------------------------------------------------------------------------------------------------


def test_a_table_that_is_not_there_is_made_only_on_request(base: Base) -> None:
    with pytest.raises(UsageError, match="create=True"):
        deliver(base.target(create=False), [(1, "a")], at=fence(0))
    deliver(base.target(create=True), [(1, "a")], at=fence(0))
    assert base.rows() == [(1, "a")]


def test_columns_are_added_only_on_request_and_old_rows_have_nulls_there(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(0))
    wider = SCHEMA.append(pa.field("city", pa.string()))
    with pytest.raises(UsageError, match=r"has no column 'city' \(add it, or let the sink: widen=True\)"):
        deliver(base.target(), [(2, "b", None, "Bern")], at=fence(1), schema=wider)
    deliver(base.target(widen=True), [(2, "b", None, "Bern")], at=fence(1), schema=wider)
    assert base.rows(columns="id, city") == [(1, None), (2, "Bern")]


def test_a_narrower_frame_leaves_the_other_columns_as_they_are(base: Base) -> None:
    deliver(base.target(), [(1, "a", Decimal(7))], at=fence(0))
    deliver(base.target(), [(1, "b")], at=fence(1), schema=pa.schema([SCHEMA.field("id"), SCHEMA.field("name")]))
    (row,) = base.rows(columns="id, name, amount")
    assert (row[0], row[1], Decimal(row[2])) == (1, "b", Decimal(7))


def test_numbers_grow_wider_on_request(base: Base) -> None:
    narrow = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.decimal128(5, 2)), ("c", pa.float32())])
    wide = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.decimal128(12, 4)), ("c", pa.float64())])
    deliver(base.target(), [(1, 1, Decimal("1.25"), 0.5)], at=fence(0), schema=narrow)
    large = (2, 2**40, Decimal("12345678.1234"), 1e300)
    deliver(base.target(widen=True), [large], at=fence(1), schema=wide)
    seen = [(row[0], row[1], Decimal(row[2]), row[3]) for row in base.rows(columns="id, a, b, c")]
    assert seen == [(1, 1, Decimal("1.25"), 0.5), large]


def test_a_key_that_the_rows_do_not_have_is_told_with_what_they_have(base: Base) -> None:
    with pytest.raises(UsageError, match=r"no column 'nr' .*there are: id, name, amount"):
        deliver(base.target(key=("nr",)), [(1, "a")], at=fence(0))


@pytest.mark.servers
def test_values_are_read_by_the_types_that_a_postgresql_table_has(postgres_base: Base) -> None:
    postgres_base.run("CREATE TYPE mood AS ENUM ('good', 'bad')")
    postgres_base.run("CREATE TABLE orders (id uuid PRIMARY KEY, name mood, tags text[], doc jsonb, at timestamptz)")
    schema = pa.schema([(name, pa.string()) for name in ("id", "name", "tags", "doc", "at")])
    row = ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "good", "{a,b}", '{"x":1}', "2026-01-31T10:00:00Z")
    refusals = Refusals()
    deliver(postgres_base.target(create=False), [row, ("no uuid",)], at=fence(0), schema=schema, refusals=refusals)
    ((id_, mood, tags, doc, at),) = postgres_base.rows(columns="id::text, name::text, tags, doc, at")
    assert (id_, mood, tags, doc, at) == (row[0], "good", ["a", "b"], {"x": 1}, datetime(2026, 1, 31, 10, tzinfo=UTC))
    assert "invalid input syntax for type uuid" in refusals.rows[0][1]


# ---- rows that are refused -----------------------------------------------------------------------------------------


def strict_table(base: Base) -> None:
    kind = "varchar(255)" if base.kind == "mariadb" else "text"
    base.run(
        f"CREATE TABLE orders (id bigint PRIMARY KEY, name {kind} NOT NULL, amount decimal(12,2) CHECK (amount > 0))"
    )


def test_rows_that_the_database_refuses_are_found_and_the_others_written(base: Base) -> None:
    strict_table(base)
    refusals = Refusals()
    rows: list[tuple[Any, ...]] = [(number, f"n{number}", Decimal(1)) for number in range(500)]
    rows[123] = (123, None, Decimal(1))
    rows[124] = (124, "negative", Decimal(-1))
    rows[499] = (499, None, Decimal(1))
    outcome = deliver(base.target(), rows, at=fence(0), refusals=refusals)
    assert {row["id"] for row, _ in refusals.rows} == {123, 124, 499}
    assert all(reason for _, reason in refusals.rows)
    assert outcome.refused == 3
    assert {row[0] for row in base.rows()} == set(range(500)) - {123, 124, 499}


def test_a_refused_row_ends_the_batch_where_no_topic_takes_it(base: Base) -> None:
    strict_table(base)
    with pytest.raises(Refused, match=r"does not take a row: .*dead_letters='TOPIC'"):
        deliver(base.target(), [(1, "a", Decimal(1)), (2, None, Decimal(1))], at=fence(0))
    assert base.rows() == []


def test_a_row_without_its_key_is_refused(base: Base) -> None:
    refusals = Refusals()
    deliver(base.target(), [(None, "nobody"), (1, "a")], at=fence(0), refusals=refusals)
    assert base.rows() == [(1, "a")]
    assert refusals.rows == [({"id": None, "name": "nobody", "amount": None}, "its key (id) is null")]


def test_a_target_that_refuses_everything_ends_the_batch_instead_of_emptying_it(base: Base) -> None:
    strict_table(base)
    rows = [(number, None, None) for number in range(1500)]
    with pytest.raises(Refused, match=r"refused 1,001 rows of one batch"):
        deliver(base.target(), rows, at=fence(0), refusals=Refusals())


@pytest.mark.servers
def test_a_text_with_a_zero_byte_which_postgresql_cannot_hold_is_refused_alone(postgres_base: Base) -> None:
    refusals = Refusals()
    deliver(postgres_base.target(), [(1, "a\0b"), (2, "fine")], at=fence(0), refusals=refusals)
    assert postgres_base.rows() == [(2, "fine")]
    assert [row["id"] for row, _ in refusals.rows] == [1]


# ---- versions of rows ----------------------------------------------------------------------------------------------

VERSIONED = pa.schema([("id", pa.int64()), ("name", pa.string()), ("version", pa.int64())])


def test_an_older_change_that_comes_late_does_not_replace_a_newer_one(base: Base) -> None:
    target = base.target(version_column="version")
    deliver(target, [(1, "new", 5), (2, "old", 1), (3, "kept", 9)], at=fence(0), schema=VERSIONED)
    late = [(1, "late", 4), (2, "newer", 2), (2, "older", 1), ("-", 3, None, 8), (4, "first", 1)]
    deliver(target, late, at=fence(1), schema=VERSIONED)
    assert base.rows() == [(1, "new"), (2, "newer"), (3, "kept"), (4, "first")]
    deliver(target, [("-", 3, None, 9), ("-", 1, None, 5)], at=fence(2), schema=VERSIONED)
    assert base.rows() == [(2, "newer"), (4, "first")]


def test_a_deletion_without_a_version_counts_where_it_stands(base: Base) -> None:
    """A tombstone has no row, and a database that logs keys only does not say which version was deleted."""
    target = base.target(version_column="version")
    deliver(target, [(1, "a", 5), (2, "b", 5), (3, "c", 5)], at=fence(0), schema=VERSIONED)
    deliver(target, [("-", 1)], at=fence(1), schema=VERSIONED)
    assert base.rows() == [(2, "b"), (3, "c")]
    cut = [(2, "B", 6), ("-", 2), (3, "C", 9), ("-", 3), (3, "back", 1), (3, "older", 0), (4, "x", 7), ("-", 4)]
    deliver(target, [*cut, ("-", 5), (5, "new", 2)], at=fence(2), schema=VERSIONED)
    assert base.rows() == [(3, "back"), (5, "new")]


def test_a_row_without_a_version_replaces_none_that_has_one(base: Base) -> None:
    target = base.target(version_column="version")
    deliver(target, [(1, "known", 5), (2, "unknown", None)], at=fence(0), schema=VERSIONED)
    deliver(target, [(1, "unknown", None), (2, "later", None), (3, "first", None)], at=fence(1), schema=VERSIONED)
    assert base.rows() == [(1, "known"), (2, "later"), (3, "first")]


# ---- away ----------------------------------------------------------------------------------------------------------


def test_an_address_where_nobody_answers_is_told_without_the_password() -> None:
    for url in ("postgresql://me:secret@127.0.0.1:1/db", "mysql://me:secret@127.0.0.1:1/db"):
        with pytest.raises(Unavailable, match="cannot be reached") as told:
            deliver(Base("", url).target(), [(1, "a")], at=fence(0))
        assert "secret" not in str(told.value)


def test_a_scheme_that_is_no_database_is_told_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="no database that this sink knows"):
        deliver(Base("", "oracle://x").target(), [(1, "a")])


# ---- versions of the table -----------------------------------------------------------------------------------------


def test_a_new_version_takes_the_place_of_the_table_with_its_fence(base: Base) -> None:
    target = base.target()
    deliver(target, [(1, "wrong"), (2, "left over")], at=fence(9, query="old"))
    version = target.version()
    version.begin("p")
    deliver(version.target, [(1, "right")], at=fence(3, query="new"))
    assert base.rows() == [(1, "wrong"), (2, "left over")]
    version.switch()
    version.switch()
    assert base.rows() == [(1, "right")]
    assert deliver(target, [(1, "again")], at=fence(3, query="new")).replayed
    deliver(target, [(1, "on"), (1, "on")], at=fence(4, query="new"))
    assert base.rows() == [(1, "on")]


def test_a_checkpoint_from_before_a_rebuild_adds_no_row_a_second_time(base: Base) -> None:
    """As when the rebuild dies behind its switch: the pipeline then comes with what it had read before."""
    target = base.target(key=())
    deliver(target, [(1, "a")], at=fence(0, query="old"))
    version = target.version()
    version.begin("p")
    deliver(version.target, [(1, "a"), (2, "b")], at=fence(0, query="new"))
    version.switch()
    with pytest.raises(Refused, match="Give headrace rebuild again"):
        deliver(target, [(2, "b")], at=fence(1, query="old"))
    assert base.rows() == [(1, "a"), (2, "b")]


def test_a_new_version_has_the_indexes_of_the_old_one(base: Base) -> None:
    target = base.target()
    deliver(target, [(1, "a")], at=fence(0))
    base.run(f"CREATE UNIQUE INDEX by_amount ON {base.quote('orders')} (amount)")
    version = target.version()
    version.begin("p")
    deliver(version.target, [(1, "a", Decimal(1))], at=fence(0, query="new"))
    version.switch()
    refusals = Refusals()
    if base.kind != "mariadb":  # which takes a row with the same value of a unique index for the same row
        deliver(target, [(2, "b", Decimal(1))], at=fence(1, query="new"), refusals=refusals)
        assert [row["id"] for row, _ in refusals.rows] == [2]
    assert base.rows() == [(1, "a")]


def test_an_attempt_at_a_new_version_that_was_given_up_leaves_nothing_to_the_next(base: Base) -> None:
    target = base.target()
    for rows in ([(1, "given up")], [(2, "good")]):
        version = target.version()
        version.begin("p")
        deliver(version.target, rows, at=fence(0, query="new"))
    version.switch()
    assert base.rows() == [(2, "good")]


def test_changes_of_no_rows_write_nothing_and_move_the_fence(base: Base) -> None:
    deliver(base.target(), at=fence(0))
    deliver(base.target(), Changes(SCHEMA.empty_table()), at=fence(1))
    assert deliver(base.target(), [(1, "a")], at=fence(1)).replayed
