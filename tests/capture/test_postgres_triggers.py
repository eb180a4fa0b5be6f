"""A real PostgreSQL followed by triggers, as a user without the right to replicate."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture import Capture, CaptureOptions
from headrace.capture.postgres.change_table import ChangeTable, record_fields
from headrace.capture.postgres.triggers import TriggerSource
from headrace.capture.shapes import table_topic
from headrace.capture.source import PositionLost, open_source
from headrace.errors import UsageError
from tests.capture.conftest import Database
from tests.capture.kills_subjects import restarted
from tests.capture.test_postgres import AfterSome, Died
from tests.capture.world import catch_up, check_numbering, check_order, committed, events, fold, fold_bag
from tests.servers.postgres import postgres_server

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture
def user(database: Database) -> Iterator[str]:
    """A role with no right but those that capture by triggers asks for; gives its address."""
    name = f"app_{database.name}"
    database.run(f"create role {name} login", f"grant create on database {database.name} to {name}")
    database.run(f"alter default privileges grant select, trigger on tables to {name}")
    try:
        yield database.url.replace("postgres@", f"{name}@")
    finally:
        database.run(f"drop owned by {name} cascade", f"drop role {name}")


def options(database: Database, url: str, **more: Any) -> CaptureOptions:
    return CaptureOptions(name=database.name, url=url, triggers=True, **more)


def table_of(database: Database, query: str, *key: str) -> dict[str, Any]:
    """Rows by key, as folding a topic gives them."""
    cursor = database.session.execute(query)
    names = [each.name for each in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {json.dumps({name: row[name] for name in key}): row for row in rows}


def waiting(database: Database) -> int:
    ((count,),) = database.all(f"select count(*) from _headrace_{database.name}.changes")
    assert isinstance(count, int)
    return count


def test_rows_that_were_there_come_first_and_then_every_change_once(log: str, database: Database, user: str) -> None:
    database.run("create table t (id int primary key, name text)", "insert into t values (1, 'a'), (2, 'b'), (3, 'c')")
    capture = options(database, user, chunk_rows=2)
    catch_up(log, capture)
    database.run("insert into t values (4, 'd')", "update t set name = 'B' where id = 2", "delete from t where id = 1")
    database.run("update t set id = 9 where id = 3", "begin", "insert into t values (100, 'never')", "rollback")
    catch_up(log, capture)
    catch_up(log, capture)
    found = events(log, f"{database.name}.public.t")
    assert [each.op for each in found] == ["r", "r", "r", "c", "u", "d", "tombstone", "d", "tombstone", "c"]
    assert fold(found) == table_of(database, "select * from t", "id")
    assert found[4].value["before"] == {"id": 2, "name": "b"}, "triggers see the whole row, whatever its identity"
    assert waiting(database) == 0, "what the log has is not kept twice"
    check_numbering(found)
    check_order(found)


def test_a_change_is_not_overtaken_by_a_later_one_of_its_row_while_others_are_open(
    log: str, database: Database, user: str
) -> None:
    """B has the lowest id and changes the row last; A, with the highest, changed it first; C in between stays open.

    Announcing what has lower ids than all open transactions announces B now and A later, and the row stays wrong.
    """
    database.run("create table t (id int primary key, n text)", "insert into t values (1, 'first')")
    catch_up(log, options(database, user))
    with database.another() as a, database.another() as b, database.another() as c:
        for session in (b, c, a):
            session.execute("select pg_current_xact_id()")
        a.execute("update t set n = 'of A' where id = 1")
        a.commit()
        b.execute("update t set n = 'of B' where id = 1")
        b.commit()
        c.execute("insert into t values (2, 'of C')")
        catch_up(log, options(database, user))
        found = events(log, f"{database.name}.public.t")
        told = [each.value["after"]["n"] for each in found]
        assert told == ["first", "of A", "of B"], "an open transaction holds nobody back"
        c.commit()
    catch_up(log, options(database, user))
    found = events(log, f"{database.name}.public.t")
    assert [each.value["after"]["n"] for each in found] == ["first", "of A", "of B", "of C"]
    check_order(found)
    check_numbering(found)


class Workers:
    """Sessions that change few rows in transactions of random length, so that they wait for each other all the time."""

    def __init__(self, url: str, count: int, transactions: int) -> None:
        self._url = url
        self._transactions = transactions
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]
        self.failures: list[BaseException] = []

    def _work(self, seed: int) -> None:
        choose = random.Random(seed)
        try:
            with psycopg.connect(self._url) as session:
                for _ in range(self._transactions):
                    self._transaction(session, choose)
        except BaseException as error:
            self.failures.append(error)

    def _transaction(self, session: psycopg.Connection[Any], choose: random.Random) -> None:
        if choose.random() < 0.5:
            session.execute("select pg_current_xact_id()")  # an id long before the first change
        try:
            for _ in range(choose.randrange(1, 6)):
                key, other = choose.randrange(8), choose.randrange(8)
                statement = choose.choice(
                    [
                        f"insert into t values ({key}, 'w') on conflict (id) do update set n = t.n || 'x'",
                        f"update t set n = right(n || '{choose.randrange(10)}', 20) where id = {key}",
                        f"delete from t where id = {key}",
                        f"update t set id = {other} where id = {key} and not exists (select from t where id = {other})",
                    ]
                )
                session.execute(statement)
            session.rollback() if choose.random() < 0.1 else session.commit()
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            session.rollback()

    def __enter__(self) -> Workers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._threads:
            each.join()

    @property
    def done(self) -> bool:
        return not any(each.is_alive() for each in self._threads)


def test_the_topic_folds_into_the_table_when_sessions_wait_for_each_other_and_capture_dies(
    log: str, database: Database, user: str
) -> None:
    database.run(
        "create table t (id int primary key, n text)", "insert into t select i, '' from generate_series(1, 5) i"
    )
    turn = itertools.count(1)
    with Workers(database.url, count=4, transactions=60) as workers:
        while not workers.done:
            with pytest.raises(Died):
                Capture(log, options(database, user, chunk_rows=2)).run(AfterSome(next(turn) % 7 + 1, Died()))
    assert workers.failures == []
    catch_up(log, options(database, user))
    found = events(log, f"{database.name}.public.t")
    assert fold(found) == table_of(database, "select * from t", "id")
    check_numbering(found)
    check_order(found)


def test_a_snapshot_under_change_gives_the_table_also_without_a_key(log: str, database: Database, user: str) -> None:
    database.run("create table t (a int, b text, n int, primary key (a, b))", "create table bag (n int)")
    database.run("insert into t select i % 7, 'k' || i, 0 from generate_series(1, 60) i")
    database.run("insert into bag select i % 5 from generate_series(1, 20) i")
    step = itertools.count(1)
    with database.another() as long:

        class Disturbed(threading.Event):
            def is_set(self) -> bool:
                number = next(step)
                if number == 2:
                    long.execute("update t set n = -1 where a = 3")
                    long.execute("insert into bag values (77)")
                if number < 30:
                    database.run(f"insert into bag values ({number})", f"delete from bag where n = {number - 3}")
                    database.run(f"update t set n = n + 1 where a <> 3 and b = 'k{number}'")
                    database.run(f"update t set a = a + 10 where a <> 3 and b = 'k{number * 2}'")
                if number == 12:
                    long.commit()
                return False

        Capture(log, options(database, user, chunk_rows=7)).run(Disturbed(), until_current=True)
        long.commit()
    catch_up(log, options(database, user))
    found, bag = events(log, f"{database.name}.public.t"), events(log, f"{database.name}.public.bag")
    assert fold(found) == table_of(database, "select * from t", "a", "b")
    assert fold_bag(bag) == sorted(json.dumps({"n": n}) for (n,) in database.all("select n from bag"))
    check_numbering([*found, *bag])


VALUES = {
    "smallint": "-3",
    "numeric(12,2)": "-1234.50",
    "numeric": "0.00001",
    "float8": "1.5e300",
    "boolean": "true",
    "bytea": r"'\x00ff5c22'",
    "timestamptz": "'2026-01-02 03:04:05.123456+02'",
    "timestamp": "'2026-01-02 03:04:05.5'",
    "date": "'2026-01-02'",
    "interval": "'1 month 2 days 03:04:05.5'",
    "time": "'03:04:05'",
    "money": "'$1,234.50'",
    "text": "e'a \"quoted\", (b) \\\\ c\\t\\n\u00e9'",
    "varchar(5)": "''",
    "text[]": """array['x,y', null, 'a"b', '', 'NULL']""",
    "jsonb": """'{"k": [1, "\u00e9"]}'""",
    "uuid": "'3951f349-e153-11f1-a1ff-02fc00000001'",
    "point": "'(1.5,-2)'",
    "int4range": "'[1,5)'",
    "bit(5)": "b'10110'",
    "int": "null",
}


def test_every_type_is_the_same_from_the_snapshot_and_from_the_triggers_whatever_the_writers_settings(
    log: str, database: Database, user: str
) -> None:
    columns = ", ".join(f'"c {number}" {kind}' for number, kind in enumerate(VALUES))
    database.run(f'create table "Odd Table" (id int primary key, {columns}, g int generated always as (id + 1) stored)')
    names = ", ".join(f'"c {number}"' for number in range(len(VALUES)))
    insert = f'insert into "Odd Table" (id, {names}) values (#, {", ".join(VALUES.values())})'
    database.run(insert.replace("#", "1"))
    catch_up(log, options(database, user))
    database.run("set datestyle = 'German'", "set timezone = 'Asia/Tokyo'", "set intervalstyle = 'sql_standard'")
    database.run("set bytea_output = 'escape'", "set extra_float_digits = -10", insert.replace("#", "2"))
    catch_up(log, options(database, user))
    read, created = [each.value["after"] for each in events(log, table_topic(database.name, "public", "Odd Table"))]
    assert "g" not in read
    assert {**created, "id": 1} == read


def test_a_schema_may_change_between_a_change_and_its_reading(log: str, database: Database, user: str) -> None:
    database.run("create table t (id int primary key, a text, b int)", "insert into t values (1, 'x', 1)")
    catch_up(log, options(database, user))
    database.run("begin", "insert into t values (2, 'y', 2)", "alter table t drop column a", "alter table t add c text")
    database.run(
        "insert into t values (3, 3, 'z')", "commit", "alter table t rename b to n", "delete from t where id = 1"
    )
    database.run("alter table t alter n type text using 'n' || n", "insert into t values (4, 'n4', 'w')")
    catch_up(log, options(database, user))
    found = events(log, f"{database.name}.public.t")
    assert [each.value["after"] for each in found if each.op == "c"] == [
        {"id": 2, "a": "y", "b": 2},
        {"id": 3, "b": 3, "c": "z"},
        {"id": 4, "n": "n4", "c": "w"},
    ]
    assert [each.value["before"] for each in found if each.op == "d"] == [{"id": 1, "n": 1, "c": None}]
    announced = [json.loads(each.value or b"")["tableChanges"][0]["type"] for each in committed(log, database.name)]
    assert announced == ["CREATE", "ALTER", "ALTER", "ALTER"]


def test_what_the_applications_own_triggers_change_comes_behind_what_set_them_off(
    log: str, database: Database, user: str
) -> None:
    database.run("create table t (id int primary key, parent int references t on update cascade, n int)")
    database.run(
        "create function touch() returns trigger language plpgsql as $$ begin "
        "update t set n = 1 where id = new.id; return null; end $$",
        "create trigger a_touch after insert on t for each row execute function touch()",
    )
    catch_up(log, options(database, user))
    database.run("insert into t values (1, 1, 0)", "update t set id = 2 where id = 1")
    catch_up(log, options(database, user))
    found = events(log, f"{database.name}.public.t")
    assert [each.op for each in found][:2] == ["c", "u"]
    assert fold(found) == {'{"id": 2}': {"id": 2, "parent": 2, "n": 1}}


def test_partitions_are_told_as_their_table_and_a_truncation_as_one(log: str, database: Database, user: str) -> None:
    database.run("create table p (id int primary key, n text) partition by range (id)")
    database.run("create table p_low partition of p for values from (0) to (10)", "create table q (id int primary key)")
    database.run("create table p_high (n text, id int not null)")
    catch_up(log, options(database, user))
    database.run("alter table p attach partition p_high for values from (10) to (20)", "insert into q values (1)")
    database.run("insert into p values (1, 'low'), (11, 'high')", "update p set id = 12 where id = 1", "truncate q")
    catch_up(log, options(database, user, tables=("public.p", "public.q")))
    assert fold(events(log, f"{database.name}.public.p")) == table_of(database, "select * from p", "id")
    assert [each.op for each in events(log, f"{database.name}.public.q")] == ["c", "t"]


def test_a_table_that_lost_its_triggers_is_told_anew(log: str, database: Database, user: str) -> None:
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    database.run("create table bag (n int)", "insert into bag values (1)")
    catch_up(log, options(database, user))
    database.run("begin", "create table new_t as select id, n * 10 as n from t", "drop table t")
    database.run("alter table new_t rename to t", "alter table t add primary key (id)", "commit")
    database.run("delete from t where id = 1", "alter table bag disable trigger all", "insert into bag values (2)")
    catch_up(log, options(database, user, chunk_rows=1))
    database.run("update t set n = 21", "insert into bag values (3)")
    catch_up(log, options(database, user))
    found, bag = events(log, f"{database.name}.public.t"), events(log, f"{database.name}.public.bag")
    assert [each.op for each in found] == ["r", "r", "t", "r", "u"]
    assert fold(found) == table_of(database, "select * from t", "id")
    assert fold_bag(bag) == [json.dumps({"n": n}) for n in (1, 2, 3)]
    check_numbering([*found, *bag])


def test_triggers_are_made_again_while_capture_runs(log: str, database: Database, user: str) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    stop = threading.Event()
    worker = threading.Thread(target=Capture(log, options(database, user)).run, args=(stop,))
    worker.start()
    pause = threading.Event()
    try:
        while not events(log, f"{database.name}.public.t"):
            pause.wait(0.05)
        database.run(
            "begin", "drop table t", "create table t (id int primary key)", "commit", "insert into t values (2)"
        )
        while fold(events(log, f"{database.name}.public.t")) != {'{"id": 2}': {"id": 2}}:
            pause.wait(0.05)
    finally:
        stop.set()
        worker.join()


def test_a_table_dropped_in_mid_snapshot_ends_its_snapshot_and_nothing_else(
    log: str, database: Database, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table a (id int primary key)", "insert into a select generate_series(1, 5)")
    database.run("create table b (id int primary key)", "insert into b values (1)")
    take_chunk = TriggerSource._take_chunk

    def dropped_behind_the_first(source: TriggerSource, table: Any) -> None:
        take_chunk(source, table)
        if table.name == "a":
            assert source._reader is not None
            source._reader.execute("COMMIT")
            database.run("drop table if exists a")

    monkeypatch.setattr(TriggerSource, "_take_chunk", dropped_behind_the_first)
    catch_up(log, options(database, user, chunk_rows=2))
    assert [each.op for each in events(log, f"{database.name}.public.b")] == ["r"]
    assert [each.op for each in events(log, f"{database.name}.public.a")] == ["r", "r", "t"]


def test_a_large_transaction_is_cut_and_gone_on_with_after_a_death(
    log: str, database: Database, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("READ_BYTES", 1_000), ("READ_BYTES_MAX", 2_000)):
        monkeypatch.setattr(f"headrace.capture.postgres.triggers.{name}", value)
    monkeypatch.setattr("headrace.capture.run.COMMIT_BYTES_MAX", 5_000)
    database.run("create table t (id int primary key, n int)")
    catch_up(log, options(database, user))
    database.run("begin", "insert into t select i, 0 from generate_series(1, 200) i", "update t set n = id", "commit")
    for often in (30, 30, 30, 2, 2):  # the last two commit their start and nothing else: they must not forget the part
        with pytest.raises(Died):
            Capture(log, options(database, user)).run(AfterSome(often, Died()))
    partly = len(events(log, f"{database.name}.public.t"))
    catch_up(log, options(database, user))
    found = events(log, f"{database.name}.public.t")
    assert 0 < partly < len(found) == 400, "deaths fell into the transaction"
    check_numbering(found)
    check_order(found)
    assert fold(found) == table_of(database, "select * from t", "id")


def test_a_table_without_a_key_is_not_read_newer_than_the_changes_that_were_told(
    log: str, database: Database, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture dies in the middle of a reading. The rest is written as it was; what the table has by now would be in
    its snapshot, and once more in the next reading."""
    for name, value in (("READ_BYTES", 1_000), ("READ_BYTES_MAX", 2_000)):
        monkeypatch.setattr(f"headrace.capture.postgres.triggers.{name}", value)
    monkeypatch.setattr("headrace.capture.run.COMMIT_BYTES_MAX", 5_000)
    database.run("create table t (id int primary key)")
    catch_up(log, options(database, user))
    database.run("insert into t select generate_series(1, 200)")
    database.run("create table bag (n int)", "insert into bag values (1), (2)")
    with pytest.raises(Died):
        Capture(log, options(database, user)).run(AfterSome(30, Died()))
    assert 0 < len(events(log, f"{database.name}.public.t")) < 200, "it died in the middle of a reading"
    database.run("insert into bag values (3)")
    for _ in range(2):
        catch_up(log, options(database, user))
    assert fold_bag(events(log, f"{database.name}.public.bag")) == ['{"n": 1}', '{"n": 2}', '{"n": 3}']


def test_a_prepared_transaction_counts_from_its_commit_on(log: str, database: Database, user: str) -> None:
    database.run("create table t (id int primary key)")
    catch_up(log, options(database, user))
    database.run("begin", "insert into t values (1)", "prepare transaction 'p'", "insert into t values (2)")
    catch_up(log, options(database, user))
    database.run("commit prepared 'p'")
    catch_up(log, options(database, user))
    assert [each.key["id"] for each in events(log, f"{database.name}.public.t")] == [2, 1]


def test_missing_rights_are_named_with_the_statement_that_gives_them(log: str, database: Database, user: str) -> None:
    name = f"app_{database.name}"
    database.run("create table t (id int primary key)")
    database.run(f"revoke trigger on t from {name}", f"revoke create on database {database.name} from {name}")
    with pytest.raises(UsageError, match=rf"CREATE SCHEMA _headrace_{database.name} AUTHORIZATION {name}"):
        catch_up(log, options(database, user))
    database.run(f"create schema _headrace_{database.name} authorization {name}")
    with pytest.raises(UsageError, match=rf"GRANT TRIGGER ON public.t TO {name}"):
        catch_up(log, options(database, user))
    database.run(f"grant trigger on t to {name}")
    catch_up(log, options(database, user))
    with pytest.raises(UsageError, match=r"no right to replicate.*--triggers"):
        catch_up(log, CaptureOptions(name=f"{database.name}_log", url=user))


def test_a_writer_needs_no_right_on_what_capture_made(log: str, database: Database, user: str) -> None:
    writer = f"writer_{database.name}"
    database.run("create table t (id int primary key)", f"create role {writer}", f"grant all on t to {writer}")
    try:
        catch_up(log, options(database, user))
        database.run(f"set role {writer}", "insert into t values (1)", "reset role")
        catch_up(log, options(database, user))
        assert [each.op for each in events(log, f"{database.name}.public.t")] == ["c"]
    finally:
        database.run("reset role", f"drop owned by {writer}", f"drop role {writer}")


def test_a_change_table_that_is_gone_is_said_loudly_and_mended_on_request(
    log: str, database: Database, user: str
) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1), (2)")
    catch_up(log, options(database, user))
    database.run(f"drop schema _headrace_{database.name} cascade", "delete from t where id = 1")
    with pytest.raises(PositionLost, match=r"change table .* is gone.*--resnapshot"):
        catch_up(log, options(database, user))
    catch_up(log, options(database, user), resnapshot=True)
    found = events(log, f"{database.name}.public.t")
    assert fold(found) == {'{"id": 2}': {"id": 2}}
    check_numbering(found)
    check_order(found)


def test_from_one_way_to_the_other_goes_only_through_a_new_snapshot(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    by_log = CaptureOptions(name=database.name, url=database.url)
    by_triggers = options(database, database.url)
    catch_up(log, by_log)
    for other in (by_triggers, by_log):
        with pytest.raises(PositionLost, match="--resnapshot"):
            catch_up(log, other)
        catch_up(log, other, resnapshot=True)
    found = events(log, f"{database.name}.public.t")
    assert [each.op for each in found] == ["r", "t", "r", "t", "r"]
    check_numbering(found)


def test_a_cast_that_the_owner_of_a_table_made_does_not_run_with_the_rights_of_capture(
    log: str, database: Database, user: str
) -> None:
    database.run(
        "create table t (id int primary key)", "create table ran_as (who text)", "grant all on ran_as to public"
    )
    database.run(
        "create function cast_of_t(t) returns text language plpgsql as "
        "$$ begin insert into public.ran_as values (current_user); return 'cast'; end $$",
        "create cast (t as text) with function cast_of_t(t) as implicit",
    )
    catch_up(log, options(database, user, tables=("public.t",)))
    database.run("insert into t values (1)")
    catch_up(log, options(database, user, tables=("public.t",)))
    assert [each.value["after"] for each in events(log, f"{database.name}.public.t")] == [{"id": 1}]
    assert database.all("select who from ran_as") == []


def test_removing_a_capture_leaves_nothing_in_the_database(log: str, database: Database, user: str) -> None:
    database.run("create table t (id int primary key)")
    catch_up(log, options(database, user))
    with closing(open_source(options(database, user), None)) as source:
        assert source.status().health == "ok"
        assert len(source.remove()) == 1
        assert source.remove() == []
    assert database.all("select tgname from pg_trigger where tgname like '%headrace%'") == []
    assert database.all("select nspname from pg_namespace where nspname like '%headrace%'") == []


def test_a_trigger_waits_for_a_long_writer_only_for_a_time(
    log: str, database: Database, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.change_table.LOCK_TIMEOUT", "20ms")
    database.run("create table t (id int primary key)")
    said: list[str] = []
    with database.another() as long:
        long.execute("insert into t values (1)")

        def say(line: str) -> None:
            said.append(line)
            long.commit()

        Capture(log, options(database, user), say=say).run(threading.Event(), until_current=True)
    assert "is being written to by a transaction that does not end" in said[0]
    assert len(events(log, f"{database.name}.public.t")) == 1


def test_what_the_log_has_is_not_lost_by_a_server_that_dies(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that does not wait for the disk is seen by others before it would survive the server's death."""
    with postgres_server({"wal_writer_delay": "10s"}) as server:
        capture = CaptureOptions(name="dies", url=server.url(), triggers=True)
        with psycopg.connect(server.url(), autocommit=True) as session:
            session.execute("create table t (id int primary key)")
            catch_up(log, capture)
            session.execute("set synchronous_commit = off")
            session.execute("insert into t values (1)")

            def died(table: ChangeTable, seen: str) -> None:
                if events(log, "dies.public.t"):
                    raise Died

            with monkeypatch.context() as patch, pytest.raises(Died):
                patch.setattr(ChangeTable, "forget", died)
                patch.setattr(TriggerSource, "caught_up", lambda source: False)
                catch_up(log, capture)
            server.kill()
        restarted(server)
        with psycopg.connect(server.url(), autocommit=True) as session:
            session.execute("insert into t values (2)")
        catch_up(log, capture)
        with psycopg.connect(server.url()) as session:
            assert session.execute("select id from t order by id").fetchall() == [(1,), (2,)]
    assert [each.key["id"] for each in events(log, "dies.public.t")] == [1, 2]


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))))
def test_the_text_of_a_record_is_read_as_postgresql_writes_it(values: list[str | None]) -> None:
    assert record_fields(as_record(values or [None])) == [
        None if each is None else each.encode() for each in values or [None]
    ]


def as_record(values: list[str | None]) -> bytes:
    """What the server's record_out does."""

    def field(value: str | None) -> str:
        if value is None:
            return ""
        if value and not any(each in '"\\(),' or each.isspace() for each in value):
            return value
        return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'

    return f"({','.join(map(field, values))})".encode()


def test_an_older_copy_of_the_database_is_refused(
    log: str, database: Database, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table t (id int primary key)")
    place = ChangeTable.number

    def from_the_future(source: TriggerSource, number: int) -> dict[str, Any]:
        return {"format": 1, "table": place(source._table), "seen": f"{10**9}:{10**9}:", "number": number}

    with monkeypatch.context() as patch:
        patch.setattr(TriggerSource, "_first_place", from_the_future)
        Capture(log, options(database, user)).run(AfterSome(2))
    with pytest.raises(PositionLost, match="older copy"):
        catch_up(log, options(database, user))
