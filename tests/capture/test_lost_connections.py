"""A database that goes away is tried again, whatever capture was asking it at that moment."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest

from headrace.capture.mariadb.charsets import Charsets
from tests.capture.conftest import Database
from tests.capture.shop import Shop
from tests.capture.test_postgres import options
from tests.capture.world import catch_up, check_numbering, events, fold, fold_bag

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.capture.run.RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr("headrace.capture.run.RETRY_PAUSE_S_MAX", 0.01)


class Losing:
    """The first time that a question is asked, the session that asks it is ended by the server."""

    def __init__(self, end: Callable[[int], None]) -> None:
        self._end = end
        self.asked: list[str] = []
        self.ends = True

    def lose(self, question: str, session: int) -> None:
        question = re.sub(r"'[^']*'|\d+", "?", question)[:80]
        if self.ends and question not in self.asked:
            self.asked.append(question)
            self._end(session)


def lost_once_each(log: str, capture: Any, losing: Losing) -> None:
    """Every question loses its connection once, so it takes as many sessions as there are questions."""
    said: list[str] = []
    before = len(losing.asked)
    catch_up(log, capture, said.append)
    again = [each for each in said if "trying again" in each]
    assert before < len(losing.asked), "nothing was asked"
    assert len(again) <= len(losing.asked) - before


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_postgresql(log: str, database: Database, monkeypatch: pytest.MonkeyPatch, triggers: bool) -> None:
    database.run("create type mood as enum ('a', 'b')", "create table t (id int primary key, m mood)")
    database.run("create table bag (v text)", "insert into bag values ('x')")
    database.run("insert into t select i, 'a' from generate_series(1, 10) i")
    admin = database.another()
    admin.autocommit = True

    def end(session: int) -> None:
        admin.execute("select pg_terminate_backend(%s, 5000)", (session,))

    losing = Losing(end)
    execute = psycopg.Connection.execute

    def asked(self: psycopg.Connection[Any], query: Any, *given: Any, **more: Any) -> Any:
        if self.info.get_parameters().get("application_name", "").startswith("headrace-capture"):
            losing.lose(query if isinstance(query, str) else query.as_string(), self.info.backend_pid)
        return execute(self, query, *given, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", asked)
    capture = options(database, triggers=triggers, chunk_rows=4, tables=("t", "bag"), heartbeat_ms=100)
    lost_once_each(log, capture, losing)
    database.run(
        "alter table t add column n int default 5", "update t set m = 'b' where id < 4", "delete from t where id = 9"
    )
    database.run(
        "create type size as enum ('s')", "alter table t add column s size", "insert into t values (11, 'a', 1, 's')"
    )
    lost_once_each(log, capture, losing)
    losing.ends = False
    catch_up(log, capture)
    admin.close()
    found = events(log, f"{database.name}.public.t")
    bag = events(log, f"{database.name}.public.bag")
    assert fold_bag(bag) == ['{"v": "x"}']
    rows = {f'{{"id": {row[0]}}}': row[1] for row in database.all("select id, to_jsonb(t) from t")}
    assert fold(found) == rows
    check_numbering([*found, *bag])


def test_mariadb_when_it_is_asked_for_character_sets(log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked for apart from everything else, when the first statement comes or the first text."""
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, shop.options())
    shop.run("alter table t add column m int")
    ask, connect = Charsets._all_collations, pymysql.connect
    lost: list[bool] = []

    def asked(self: Charsets) -> dict[int, str]:
        if lost:
            return ask(self)
        lost.append(True)
        monkeypatch.setattr(pymysql, "connect", gone)
        try:
            return ask(self)
        finally:
            monkeypatch.setattr(pymysql, "connect", connect)

    def gone(**settings: Any) -> Any:
        raise pymysql.OperationalError(2013, "Lost connection to MySQL server during query")

    monkeypatch.setattr(Charsets, "_all_collations", asked)
    said: list[str] = []
    catch_up(log, shop.options(), said.append)
    assert lost
    assert [each for each in said if "Lost connection" in each and "trying again" in each]
