"""Chunks of a snapshot of PostgreSQL leave out no row, whatever type the key has and wherever its operators are."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.capture import Capture
from headrace.capture.postgres import copying
from headrace.capture.postgres.key_order import KeyOrder, key_order
from tests.capture.conftest import Database
from tests.capture.test_postgres import options
from tests.capture.world import catch_up, events, fold

pytestmark = [pytest.mark.servers, pytest.mark.slow]

LETTERS = ["a", "B", "c", "D", "e", "F"]


def column(log: str, database: Database, name: str) -> list[Any]:
    return sorted(row[name] for row in fold(events(log, f"{database.name}.public.t")).values())


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("kind", ["hidden.citext", "hidden.ltree", "mail"])
@pytest.mark.parametrize("key", ["n", "n, m", "m, n"])
def test_a_key_of_an_extensions_type_is_read_in_its_own_order(
    log: str, database: Database, kind: str, key: str, triggers: bool
) -> None:
    """The extension is in a schema that is not searched: by its name, another operator or none would be found."""
    database.run("create schema hidden", "create extension citext schema hidden")
    database.run("create extension ltree schema hidden", "create domain mail as hidden.citext")
    database.run(f"create table t (n {kind}, m int, primary key ({key}))")
    database.run(*[f"insert into t values ('{each}', {place // 2})" for place, each in enumerate(LETTERS)])
    catch_up(log, options(database, triggers=triggers, chunk_rows=1))
    assert column(log, database, "n") == sorted(LETTERS)


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("kind", ["citext", "mail"])
@pytest.mark.parametrize("key", ["n text_ops", "n text_ops, m", "m, n text_ops"])
def test_rows_whose_keys_only_the_index_tells_apart_are_all_read(
    log: str, database: Database, kind: str, key: str, triggers: bool
) -> None:
    """The column takes ``a`` and ``A`` for equal, and its unique index does not. Sorted as equal, one would be passed
    over where a chunk ends between them."""
    database.run("create extension citext", "create domain mail as citext")
    database.run(f"create table t (n {kind} not null, m int not null)", f"create unique index i on t ({key})")
    database.run("alter table t replica identity using index i")
    database.run("insert into t select n, 1 from unnest(array['a', 'A', 'b', 'B', 'c', 'C']) n")
    catch_up(log, options(database, triggers=triggers, chunk_rows=1))
    assert column(log, database, "n") == ["A", "B", "C", "a", "b", "c"]


def test_a_key_is_read_in_the_order_of_an_index_with_another_collation(log: str, database: Database) -> None:
    """It may tell apart what the column's own collation takes for equal, such as one without case of ICU."""
    database.run('create table t (n text collate "C" not null)', "create unique index i on t (n collate ucs_basic)")
    database.run("alter table t replica identity using index i")
    database.run("insert into t select n from unnest(array['a', 'A', 'b', 'B', 'c', 'C']) n")
    orders: list[str] = []

    def noted(*given: Any) -> KeyOrder:
        order = key_order(*given)
        orders.append(order.order_by.as_string())
        return order

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "key_order", noted)
        catch_up(log, options(database, chunk_rows=1))
    assert column(log, database, "n") == ["A", "B", "C", "a", "b", "c"]
    assert set(orders) == {'"n" COLLATE pg_catalog.ucs_basic'}


def test_a_key_of_a_domain_is_not_checked_when_it_is_read_on_from(log: str, database: Database) -> None:
    """Its condition may call functions of the application, and old values need not fulfil it."""
    database.run("create domain even as int", "create table t (n even primary key)")
    database.run("insert into t values (1), (2), (3), (4)")
    database.run("alter domain even add check (value % 2 = 0) not valid")
    catch_up(log, options(database, chunk_rows=1))
    assert column(log, database, "n") == [1, 2, 3, 4]


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_a_value_of_the_key_that_is_renamed_in_mid_snapshot_ends_nothing(
    log: str, database: Database, triggers: bool
) -> None:
    database.run("create type mood as enum ('a', 'b', 'c', 'd', 'e')", "create table t (n mood primary key)")
    database.run("insert into t select * from unnest(enum_range(null::mood))")
    capture = Capture(log, options(database, triggers=triggers, chunk_rows=1))

    class Renaming(threading.Event):
        """Asked between any two reads."""

        done = False

        def is_set(self) -> bool:
            if not self.done and any(each.after == ["c"] for each in capture.snapshots().values()):
                database.run("alter type mood rename value 'c' to 'see'")
                self.done = True
            return False

    renaming = Renaming()
    capture.run(renaming, until_current=True)
    assert renaming.done
    assert column(log, database, "n") == ["a", "b", "d", "e", "see"]


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_names_are_written_with_their_schema_by_snapshot_and_stream(
    log: str, database: Database, triggers: bool
) -> None:
    database.run("create table t (id int primary key, n regclass, k regtype)", "insert into t values (1, 't', 't')")
    capture = options(database, triggers=triggers)
    catch_up(log, capture)
    database.run("insert into t values (2, 't', 't')")
    catch_up(log, capture)
    assert column(log, database, "n") == ["public.t", "public.t"]
    assert column(log, database, "k") == ["public.t", "public.t"]
