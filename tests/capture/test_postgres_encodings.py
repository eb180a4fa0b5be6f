"""Databases in other character sets than UTF-8, and in none."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headrace.capture import CaptureOptions
from headrace.errors import UsageError
from tests.capture.conftest import Database, drop, numbers
from tests.capture.world import catch_up, events, fold
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TRIGGERS = pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])


@pytest.fixture
def encoded(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database in the character set of the test's parameter."""
    name = f"encoded{next(numbers)}"
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(
            f"create database {name} encoding '{request.param}' template template0 lc_collate 'C' lc_ctype 'C'"
        )
        made = Database(postgres.url(name), name)
        try:
            yield made
        finally:
            made.session.close()
            drop(admin, name)


@TRIGGERS
@pytest.mark.parametrize("encoded", ["SQL_ASCII"], indirect=True)
def test_bytes_that_are_no_text_concern_their_row_alone(log: str, encoded: Database, triggers: bool) -> None:
    """As a value they are a dead letter. In a key they are an object, which no text is."""
    capture = CaptureOptions(name=encoded.name, url=encoded.url, triggers=triggers, chunk_rows=1)
    encoded.run("create table t (id int primary key, a text, b text[])", "create table k (id text primary key, n int)")
    encoded.run(r"insert into t values (1, E'\xff', null), (2, 'ok', array[E'\xfe']), (3, E'gr\303\274n', null)")
    encoded.run(r"insert into k values (E'a\xff', 1), (E'\xff', 2), (E'\\xff', 3), ('z', 4)")
    catch_up(log, capture)
    encoded.run(r"insert into t values (4, E'\xf0', null), (5, 'new', null)", "delete from t where id = 1")
    encoded.run(r"update k set n = n + 10", r"insert into k values (E'\xf1', 5)", r"delete from k where id = E'a\xff'")
    catch_up(log, capture)
    letters = events(log, f"{encoded.name}.dead-letters")
    assert [(each.key, each.value["op"]) for each in letters] == [({"id": 1}, "r"), ({"id": 2}, "r"), ({"id": 4}, "c")]
    assert all("not UTF-8" in each.value["reason"] for each in letters)
    assert [each["a"] for each in fold(events(log, f"{encoded.name}.public.t")).values()] == ["grün", "new"]
    keyed = fold(events(log, f"{encoded.name}.public.k"))
    assert {str(each["id"]): each["n"] for each in keyed.values()} == {
        "{'bytes': '/w=='}": 12,
        "\\xff": 13,
        "z": 14,
        "{'bytes': '8Q=='}": 5,
    }


@pytest.mark.parametrize("encoded", ["SQL_ASCII"], indirect=True)
def test_a_name_that_is_no_text_is_refused_with_what_to_do(log: str, encoded: Database) -> None:
    encoded.run(r"""do $$ begin execute 'create table '||E'"t\xff"'||' (id int primary key)'; end $$""")
    with pytest.raises(UsageError, match=r"a name that is not UTF-8.*RENAME"):
        catch_up(log, CaptureOptions(name=encoded.name, url=encoded.url))


@TRIGGERS
@pytest.mark.parametrize("encoded", ["WIN1252"], indirect=True)
def test_a_character_that_utf_8_does_not_have_stops_capture_and_is_named(
    log: str, encoded: Database, triggers: bool
) -> None:
    """The server refuses to show the row at all, so nothing of it can be in a dead letter."""
    capture = CaptureOptions(name=encoded.name, url=encoded.url, triggers=triggers)
    encoded.run("create table t (id int primary key, a text)", r"insert into t values (1, E'\x80')")
    catch_up(log, capture)
    assert [each["a"] for each in fold(events(log, f"{encoded.name}.public.t")).values()] == ["€"]
    encoded.run(r"insert into t values (2, E'\x81')")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"0x81.*--resnapshot"):
            catch_up(log, capture)
    with pytest.raises(UsageError, match=r"0x81.*--resnapshot"):
        catch_up(log, capture, resnapshot=True)
    encoded.run("update t set a = 'b' where id = 2")
    catch_up(log, capture, resnapshot=True)
    assert [each["a"] for each in fold(events(log, f"{encoded.name}.public.t")).values()] == ["€", "b"]
