"""A rebuilt table has new rows and is otherwise the table that it was."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import UsageError
from headrace.targets.sql.table import SqlTarget
from tests.sinks.world import SCHEMA, Base, Refusals, deliver, fence

TRIGGER = """
CREATE TABLE seen (op text, id bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO seen VALUES (TG_OP, coalesce(new.id, old.id)); RETURN NULL; END$$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION note();"""
EVERYTHING = (
    """
CREATE ROLE reader{number} NOLOGIN;
CREATE TABLE names (name text PRIMARY KEY);
INSERT INTO names VALUES ('same'), ('old'), ('new'), ('gone');
CREATE UNLOGGED TABLE orders (
    serial bigserial, id bigint PRIMARY KEY, name text REFERENCES names, amount numeric(12,2) CHECK (amount > 0),
    doubled numeric GENERATED ALWAYS AS (amount * 2) STORED, about json DEFAULT '{{"kept": true}}');
CREATE UNLOGGED TABLE items (order_id bigint REFERENCES orders);
CREATE INDEX by_name ON orders (name);
CREATE VIEW names_of_orders AS SELECT name FROM orders;
COMMENT ON TABLE orders IS 'ours';
COMMENT ON COLUMN orders.name IS 'theirs';
GRANT SELECT ON orders TO reader{number};
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY only_small ON orders FOR SELECT USING (amount < 100);"""
    + TRIGGER
)
SHAPE = """
SELECT 'orders'::regclass::oid, relpersistence, relrowsecurity, relacl::text, obj_description(oid),
    (SELECT array_agg(conname || ' ' || pg_get_constraintdef(oid) ORDER BY conname) FROM pg_constraint
     WHERE conrelid = c.oid OR confrelid = c.oid),
    (SELECT array_agg(indexdef ORDER BY indexname) FROM pg_indexes WHERE tablename = 'orders'),
    (SELECT array_agg(tgname::text ORDER BY 1) FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal),
    (SELECT array_agg(polname::text) FROM pg_policy WHERE polrelid = c.oid),
    pg_get_serial_sequence('orders', 'serial'),
    (SELECT array_agg(attname || ' ' || format_type(atttypid, atttypmod) || col_description(c.oid, attnum))
     FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0)
FROM pg_class AS c WHERE oid = 'orders'::regclass"""


def rebuilt(target: SqlTarget, *rows: tuple[Any, ...], schema: pa.Schema = SCHEMA, query: str = "new") -> None:
    version = target.version()
    version.begin("p")
    deliver(version.target, list(rows), at=fence(0, query=query), schema=schema)
    version.switch()


def tables(base: Base) -> list[str]:
    queries = {
        "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
        "mariadb": "SHOW TABLES",
        "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table'",
    }
    return sorted(str(name) for (name,) in base.run(queries[base.kind]))


@pytest.mark.servers
def test_a_rebuilt_table_is_the_same_table_with_all_that_belongs_to_it(postgres_base: Base) -> None:
    base = postgres_base
    base.run(EVERYTHING.format(number=base.url.rsplit("sinks", 1)[1]))
    target = base.target(create=False)
    before = [(1, "same", Decimal(1)), (2, "old", Decimal(2)), (3, "gone", Decimal(3))]
    deliver(target, before, at=fence(4, query="old"))
    base.run("INSERT INTO items VALUES (1), (2)")
    base.run("UPDATE orders SET about = '{\"by hand\": 1}' WHERE id = 2")
    base.run("TRUNCATE seen")
    shape, serials = base.run(SHAPE), base.run("SELECT id, serial FROM orders ORDER BY 1")
    rebuilt(target, (1, "same", Decimal(1)), (2, "new", Decimal(2)), (4, "new", Decimal(4)))
    assert base.rows(columns="id, name, doubled") == [(1, "same", 2), (2, "new", 4), (4, "new", 8)]
    assert base.run(SHAPE) == shape
    assert base.run("SELECT id, serial FROM orders ORDER BY 1")[:2] == serials[:2]
    assert base.run("SELECT about FROM orders WHERE id = 2") == [({"by hand": 1},)]
    assert base.run("SELECT * FROM seen ORDER BY 2") == [("UPDATE", 2), ("DELETE", 3), ("INSERT", 4)]
    assert base.run("SELECT name FROM names_of_orders ORDER BY 1") == [("new",), ("new",), ("same",)]
    assert tables(base) == ["headrace_fences", "items", "names", "orders", "seen"]
    deliver(target, [(5, "new", Decimal(5))], at=fence(1, query="new"))


@pytest.mark.servers
def test_rows_that_break_a_foreign_key_are_refused_while_the_new_version_is_filled(postgres_base: Base) -> None:
    base = postgres_base
    base.run(EVERYTHING.format(number=base.url.rsplit("sinks", 1)[1]))
    version, refusals = base.target().version(), Refusals()
    version.begin("p")
    rows = [(1, "new", Decimal(1)), (2, "nobody", Decimal(1)), (3, "new", Decimal(-1))]
    deliver(version.target, rows, at=fence(0), refusals=refusals)
    assert [row["id"] for row, _ in refusals.rows] == [2, 3]
    version.switch()
    assert [row[0] for row in base.rows()] == [1]


@pytest.mark.servers
def test_a_partitioned_table_keeps_its_partitions(postgres_base: Base) -> None:
    base = postgres_base
    base.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name text, amount numeric(12,2)) PARTITION BY RANGE (id); "
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10); "
        "CREATE TABLE high PARTITION OF orders FOR VALUES FROM (10) TO (100)"
    )
    deliver(base.target(), [(1, "a"), (11, "b")], at=fence(0))
    rebuilt(base.target(), (2, "c"), (11, "b"), (12, "d"))
    assert base.rows("low") == [(2, "c")]
    assert base.rows("high") == [(11, "b"), (12, "d")]


@pytest.mark.servers
def test_values_of_a_type_without_equality_are_replaced(postgres_base: Base) -> None:
    base = postgres_base
    base.run("CREATE TABLE orders (id bigint PRIMARY KEY, name json, amount numeric)")
    deliver(base.target(), [(1, '{"a": 1}'), (2, '{"b": 2}')], at=fence(0))
    rebuilt(base.target(), (1, '{"a": 3}'), (2, '{"b": 2}'))
    assert base.rows() == [(1, {"a": 3}), (2, {"b": 2})]


@pytest.mark.servers
def test_an_exchange_of_unique_values_that_cannot_be_is_told_and_nothing_is_changed(postgres_base: Base) -> None:
    base = postgres_base
    base.run("CREATE TABLE orders (id bigint PRIMARY KEY, name text UNIQUE, amount numeric)")
    deliver(base.target(), [(1, "a"), (2, "b")], at=fence(0))
    with pytest.raises(UsageError, match=r"table orders at .* does not take the new rows: .*unique"):
        rebuilt(base.target(), (1, "b"), (2, "a"))
    assert base.rows() == [(1, "a"), (2, "b")]


def test_texts_that_differ_in_case_or_nulls_are_replaced(base: Base) -> None:
    kind = {"sqlite": "TEXT COLLATE NOCASE", "mariadb": "varchar(20) COLLATE utf8mb4_general_ci", "postgresql": "text"}
    base.run(f"CREATE TABLE orders (id bigint PRIMARY KEY, name {kind[base.kind]}, amount decimal(12,2))")
    deliver(base.target(), [(1, "a"), (2, None), (3, "c"), (4, None)], at=fence(0))
    rebuilt(base.target(), (1, "A"), (2, "b"), (3, None), (4, None))
    assert base.rows() == [(1, "A"), (2, "b"), (3, None), (4, None)]


def test_triggers_of_a_table_stay_and_see_only_rows_that_differ(base: Base) -> None:
    deliver(base.target(), [(1, "same"), (2, "old"), (3, "gone")], at=fence(0))
    if base.kind == "postgresql":
        base.run(TRIGGER)
    else:
        base.run("CREATE TABLE seen (op varchar(10), id bigint)")
        for op, row in (("insert", "new"), ("update", "new"), ("delete", "old")):
            body = f"INSERT INTO seen VALUES ('{op.upper()}', {row}.id)"
            body = body if base.kind == "mariadb" else f"BEGIN {body}; END"
            base.run(f"CREATE TRIGGER on_{op} AFTER {op} ON orders FOR EACH ROW {body}")
    rebuilt(base.target(), (1, "same"), (2, "new"), (4, "new"))
    assert base.run("SELECT * FROM seen ORDER BY 2") == [("UPDATE", 2), ("DELETE", 3), ("INSERT", 4)]
    assert base.rows() == [(1, "same"), (2, "new"), (4, "new")]


def test_columns_that_the_rows_do_not_have_keep_their_values(base: Base) -> None:
    columns = "id bigint PRIMARY KEY, name varchar(9), amount decimal(12,2), mine varchar(9) DEFAULT 'new'"
    base.run(f"CREATE TABLE orders ({columns})")
    deliver(base.target(), [(1, "a"), (2, "b")], at=fence(0))
    base.run("UPDATE orders SET mine = 'by hand' WHERE id = 1")
    rebuilt(base.target(), (1, "x"), (3, "c"))
    assert base.rows(columns="id, name, mine") == [(1, "x", "by hand"), (3, "c", "new")]


def test_a_table_that_another_pipeline_writes_is_not_rebuilt_and_nothing_is_read(base: Base) -> None:
    deliver(base.target(), [(1, "mine")], at=fence(0))
    deliver(base.target(), [(2, "theirs")], at=fence(0, query="other", pipeline="others"))
    version = base.target().version()
    with pytest.raises(UsageError, match=r"orders at .* has rows of other pipelines too \(others\)"):
        version.begin("p")
    assert base.rows() == [(1, "mine"), (2, "theirs")]
    assert tables(base) == ["headrace_fences", "orders"]


@pytest.mark.parametrize("name", ["orders", "o" * 60])
def test_an_abandoned_version_leaves_nothing(base: Base, name: str) -> None:
    target = base.target(name)
    deliver(target, [(1, "a")], at=fence(0))
    version = target.version()
    version.begin("p")
    deliver(version.target, [(2, "b")], at=fence(0, query="new"))
    assert len(tables(base)) == 3
    version.abandon()
    version.abandon()
    assert tables(base) == ["headrace_fences", name]
    assert base.run("SELECT target, query FROM headrace_fences") == [(name, "q")]
    assert not deliver(target, [(1, "on")], at=fence(1)).replayed


def test_messages_name_the_table_and_not_the_one_beside_it(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(0))
    version = base.target().version()
    version.begin("p")
    schema = pa.schema([*SCHEMA, pa.field("more", pa.string())])
    with pytest.raises(UsageError, match=r"table orders at .* has no column 'more'"):
        deliver(version.target, [(1, "a", Decimal(1), "x")], at=fence(0, query="new"), schema=schema)
    wider = base.target(widen=True)
    rebuilt(wider, (1, "a", Decimal(1), "x"), schema=schema)
    assert base.rows(columns="id, more") == [(1, "x")]


def test_a_table_that_is_not_there_is_made_by_the_switch_or_refused_at_the_beginning(base: Base) -> None:
    with pytest.raises(UsageError, match="there is no table orders"):
        base.target(create=False).version().begin("p")
    rebuilt(base.target(), (1, "a"))
    deliver(base.target(), [(1, "b"), (2, "c")], at=fence(1, query="new"))
    assert base.rows() == [(1, "b"), (2, "c")]


def test_without_a_key_all_rows_are_replaced(base: Base) -> None:
    target = base.target(key=())
    deliver(target, [(1, "a"), (1, "a")], at=fence(0))
    rebuilt(target, (1, "a"), (2, "b"), (2, "b"))
    assert base.rows() == [(1, "a"), (2, "b"), (2, "b")]


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["postgres_base", "mariadb_base"])
def test_without_a_key_a_table_that_others_refer_to_is_refused_before_anything_is_read(
    kind: str, request: pytest.FixtureRequest
) -> None:
    base: Base = request.getfixturevalue(kind)
    base.run("CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(9), amount decimal(12,2))")
    base.run("CREATE TABLE items (id bigint, FOREIGN KEY (id) REFERENCES orders (id) ON DELETE CASCADE)")
    deliver(base.target(key=()), [(1, "a")], at=fence(0))
    base.run("INSERT INTO items VALUES (1)")
    with pytest.raises(UsageError, match="items refers to its rows by a foreign key; give the sink a key"):
        base.target(key=()).version().begin("p")
    rebuilt(base.target(), (1, "b"), (2, "c"))
    assert base.rows("items", "id") == [(1,)]


def test_a_view_is_not_rebuilt(base: Base) -> None:
    base.run("CREATE TABLE real_orders (id bigint PRIMARY KEY, name varchar(9), amount decimal(12,2))")
    base.run("CREATE VIEW orders AS SELECT * FROM real_orders")
    with pytest.raises(UsageError, match="cannot be rebuilt: it is no table"):
        base.target().version().begin("p")


def test_a_rebuild_of_an_empty_topic_empties_the_table_and_the_pipeline_goes_on(base: Base) -> None:
    deliver(base.target(), [(1, "a")], at=fence(0))
    version = base.target().version()
    version.begin("p")
    version.switch()
    assert base.rows() == []
    deliver(base.target(), [(2, "b")], at=fence(1))
    assert base.rows() == [(2, "b")]
