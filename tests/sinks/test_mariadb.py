"""What MariaDB does in its own way when a table is rebuilt: it has no transactions for tables."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from tests.sinks.world import Base, deliver, fence

pytestmark = pytest.mark.servers


def indexes(base: Base) -> list[tuple[Any, ...]]:
    return base.run(
        "SELECT index_name, non_unique, seq_in_index, column_name, sub_part, index_type "
        "FROM information_schema.statistics WHERE table_schema = database() AND table_name = 'orders' ORDER BY 1, 3"
    )


def test_a_rebuilt_table_has_the_indexes_collations_and_options_of_the_old_one(mariadb_base: Base) -> None:
    base, target = mariadb_base, mariadb_base.target()
    deliver(target, [(1, "a")], at=fence(0))
    base.run("ALTER TABLE orders ADD UNIQUE INDEX by_amount (amount), ADD INDEX by_name (name(20), amount)")
    base.run(
        "ALTER TABLE orders ADD FULLTEXT INDEX words (name), COMMENT = 'ours', MODIFY amount decimal(12,2) DEFAULT 7"
    )
    shape = "SELECT table_collation, table_comment, engine FROM information_schema.tables WHERE table_name = 'orders' "
    shape += "AND table_schema = database()"
    before = indexes(base), base.run(shape), base.run("SHOW COLUMNS FROM orders")
    assert {row[0] for row in before[0]} == {"PRIMARY", "by_amount", "by_name", "words"}
    version = target.version()
    version.begin("p")
    deliver(version.target, [(1, "rebuilt")], at=fence(0, query="new"))
    version.switch()
    assert (indexes(base), base.run(shape), base.run("SHOW COLUMNS FROM orders")) == before
    assert base.rows() == [(1, "rebuilt")]
    assert base.run("SELECT id FROM orders WHERE MATCH (name) AGAINST ('rebuilt')") == [(1,)]


def test_a_rebuild_that_died_is_given_again_and_leaves_no_other_table(mariadb_base: Base) -> None:
    base, target = mariadb_base, mariadb_base.target()
    deliver(target, [(1, "old")], at=fence(0))
    first = target.version()
    first.begin("p")
    deliver(first.target, [(1, "given up")], at=fence(0, query="first"))
    again = target.version()
    again.begin("p")
    deliver(again.target, [(2, "good")], at=fence(0, query="second"))
    again.switch()
    assert base.rows() == [(2, "good")]
    assert sorted(name for (name,) in base.run("SHOW TABLES")) == ["headrace_fences", "orders"]
    assert base.run("SELECT query, replaced FROM headrace_fences") == [("second", "q")]


def test_a_column_that_grows_wider_keeps_all_that_is_said_of_it(mariadb_base: Base) -> None:
    base = mariadb_base
    base.run(
        "CREATE TABLE orders (id int unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'the key', name text, "
        "amount decimal(5,2) NOT NULL DEFAULT 7 COMMENT 'it''s `amount` decimal(5,2), new', "
        "n smallint(6) CHECK (n > 0))"
    )
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.decimal128(12, 4)), ("n", pa.int32())])
    deliver(
        base.target(create=False, widen=True), [(1, "a", Decimal("12345678.1234"), 70_000)], at=fence(0), schema=schema
    )
    shown = "column_name, column_type, is_nullable, column_default, extra, column_comment"
    found = base.run(
        f"SELECT {shown} FROM information_schema.columns WHERE table_name = 'orders' AND table_schema = database() "
        "AND column_name <> 'name' ORDER BY ordinal_position"
    )
    assert [each[:3] for each in found] == [
        ("id", "bigint(20)", "NO"),
        ("amount", "decimal(12,4)", "NO"),
        ("n", "int(11)", "YES"),
    ]
    assert [float(each[3]) if each[0] == "amount" else each[4] for each in found] == ["auto_increment", 7, ""]
    assert [each[5] for each in found] == ["the key", "it's `amount` decimal(5,2), new", ""]
    with pytest.raises(pymysql.Error, match="CONSTRAINT"):
        base.run("INSERT INTO orders (n) VALUES (-1)")
