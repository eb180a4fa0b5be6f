"""What MariaDB does in its own way when a table is rebuilt: it has no transactions for tables."""

from __future__ import annotations

from typing import Any

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
