"""PostgreSQL's short way: rows that may all be new are copied into the table itself, and only time can tell."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.targets.sql.dialect import BACKOFF_LOADS_MAX, InsertBackoff
from headrace.targets.sql.table import SqlTarget
from tests.sinks.world import Base, Refusals, deliver, fence

pytestmark = pytest.mark.servers

NEVER = 10**9


def new_rows(start: int, count: int) -> list[tuple[Any, ...]]:
    return [(number, f"new {number}", Decimal(1)) for number in range(start, start + count)]


def test_rows_that_are_all_new_take_the_short_way_and_the_next_ones_too(postgres_base: Base) -> None:
    target = postgres_base.target(insert_backoff=InsertBackoff(put_off_loads=8))
    deliver(target, new_rows(0, 20_000), new_rows(20_000, 10), at=fence(0))
    assert target.insert_backoff == InsertBackoff(put_off_loads=2)  # halved by each
    assert postgres_base.rows(columns="count(*), min(id), max(id)") == [(20_010, 0, 20_009)]


def test_a_row_that_is_there_already_in_the_middle_of_a_chunk_is_updated_and_the_others_added(
    postgres_base: Base,
) -> None:
    target = postgres_base.target()
    deliver(target, [(15_000, "old", Decimal(7))], at=fence(0))
    deliver(target, new_rows(0, 30_000), at=fence(1))
    assert target.insert_backoff.put_off_loads == 2
    assert postgres_base.rows(columns="count(*), min(id), max(id)") == [(30_000, 0, 29_999)]
    assert postgres_base.run("SELECT name, amount FROM orders WHERE id = 15000") == [("new 15000", Decimal(1))]


def test_a_stream_of_updates_tries_the_short_way_ever_more_seldom_and_new_rows_bring_it_back(
    postgres_base: Base,
) -> None:
    target = postgres_base.target()
    for number in range(41):
        deliver(target, [(1, f"after {number}"), (2, "x")], at=fence(number))
    assert postgres_base.rows() == [(1, "after 40"), (2, "x")]
    assert (
        target.insert_backoff.put_off_loads == 32
    )  # so five tries have failed: the 2nd, 4th, 8th, 16th and 32nd batch
    number = 41
    while target.insert_backoff.loads_left > 0:
        deliver(target, [(number, "new")], at=fence(number))
        number += 1
    assert target.insert_backoff.put_off_loads == 16


def test_no_hope_is_put_off_for_ever() -> None:
    insert_backoff = InsertBackoff()
    for _ in range(30):
        insert_backoff.failed()
    assert insert_backoff.put_off_loads == BACKOFF_LOADS_MAX
    assert [insert_backoff.is_worth_a_try() for _ in range(BACKOFF_LOADS_MAX)].index(True) == BACKOFF_LOADS_MAX - 1


def test_without_a_unique_index_on_the_key_nothing_is_written_and_the_reason_told(postgres_base: Base) -> None:
    postgres_base.run("CREATE TABLE orders (id bigint, name text, amount numeric)")
    postgres_base.run("CREATE INDEX ON orders (id)")
    postgres_base.run("CREATE UNIQUE INDEX ON orders (id) WHERE amount > 100")
    with pytest.raises(UsageError, match="no unique or exclusion constraint matching the ON CONFLICT"):
        deliver(postgres_base.target(), new_rows(0, 3), at=fence(0))
    assert postgres_base.rows() == []


PLAIN = "id bigint PRIMARY KEY, name text NOT NULL, amount numeric(12,2) CHECK (amount > 0)"
TRIGGER = """
CREATE FUNCTION {table}_changes() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO {table}_seen VALUES (TG_OP); RETURN NULL; END$$;
CREATE TABLE {table}_seen (op text);
CREATE TRIGGER seen AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_changes()"""
TABLES = {
    "plain": (f"CREATE TABLE {{table}} ({PLAIN})", True),
    "another unique index": (f"CREATE TABLE {{table}} ({PLAIN}, UNIQUE (name))", True),
    "an exclusion": (f"CREATE TABLE {{table}} ({PLAIN}, EXCLUDE USING btree (name WITH =))", True),
    "a foreign key": (
        "CREATE TABLE {table}_names (name text PRIMARY KEY); "
        "INSERT INTO {table}_names VALUES ('a'), ('b'), ('c'), ('d'), ('B'), ('h'); "
        f"CREATE TABLE {{table}} ({PLAIN}, FOREIGN KEY (name) REFERENCES {{table}}_names)",
        True,
    ),
    "a check at the end": (
        "CREATE TABLE {table} (id bigint PRIMARY KEY, name text UNIQUE DEFERRABLE INITIALLY IMMEDIATE, amount numeric)",
        True,
    ),
    "a trigger": (f"CREATE TABLE {{table}} ({PLAIN}); " + TRIGGER, False),
    "a rule": (
        f"CREATE TABLE {{table}} ({PLAIN}); CREATE RULE no_e AS ON INSERT TO {{table}} WHERE new.name = 'e' "
        "DO INSTEAD NOTHING",
        False,
    ),
    "an identity": (
        "CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, amount numeric)",
        False,
    ),
    "a generated column": (
        f"CREATE TABLE {{table}} ({PLAIN}, loud text GENERATED ALWAYS AS (upper(name)) STORED)",
        False,
    ),
    "row security": (f"CREATE TABLE {{table}} ({PLAIN}); ALTER TABLE {{table}} ENABLE ROW LEVEL SECURITY", False),
    "partitions": (
        f"CREATE TABLE {{table}} ({PLAIN}) PARTITION BY RANGE (id); "
        "CREATE TABLE {table}_low PARTITION OF {table} FOR VALUES FROM (0) TO (5); "
        "CREATE TABLE {table}_high PARTITION OF {table} FOR VALUES FROM (5) TO (8)",
        False,
    ),
    "a view": (
        f"CREATE TABLE {{table}}_under ({PLAIN}); CREATE VIEW {{table}} AS SELECT * FROM {{table}}_under",
        False,
    ),
}
BATCHES: list[list[tuple[Any, ...]]] = [
    [(1, "a", Decimal(1)), (2, "b", Decimal(2)), (3, "c", None)],
    [(4, "d", Decimal(4)), (2, "B", Decimal(5)), (5, "e", Decimal(5)), (3, "c", Decimal(3))],
    [(6, None, Decimal(6)), (7, "negative", Decimal(-1)), (8, "h", Decimal(8)), (9, "a", Decimal(9))],
    [("-", 1), (10, "j", Decimal(1))],
]


def told(base: Base, target: SqlTarget, rows: list[tuple[Any, ...]], number: int) -> list[Any]:
    """What becomes of a batch: what is refused and why, or how it ends."""
    refusals = Refusals()
    try:
        deliver(target, rows, at=fence(number, query=target.name.name), refusals=refusals)
    except UsageError as error:
        return [str(error).replace(target.name.name, "TABLE")]
    return sorted((row["id"], reason.replace(target.name.name, "TABLE")) for row, reason in refusals.rows)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_any_kind_ends_the_same_whichever_way_its_rows_take(postgres_base: Base, kind: str) -> None:
    statements, is_short = TABLES[kind]
    ways = {"short": InsertBackoff(put_off_loads=BACKOFF_LOADS_MAX), "long": InsertBackoff(loads_left=NEVER)}
    seen: dict[str, list[Any]] = {}
    for name, insert_backoff in ways.items():
        postgres_base.run(statements.format(table=name))
        target = postgres_base.target(name, create=False, insert_backoff=insert_backoff)
        seen[name] = [told(postgres_base, target, rows, number) for number, rows in enumerate(BATCHES)]
        seen[name] += postgres_base.rows(name, "id, name, amount")
        if kind == "a trigger":
            seen[name] += postgres_base.run(f"SELECT op, count(*) FROM {name}_seen GROUP BY op ORDER BY op")
    assert seen["short"] == seen["long"]
    assert (ways["short"] != InsertBackoff(put_off_loads=BACKOFF_LOADS_MAX)) is is_short
