"""A real PostgreSQL into a real log: what is in the topics, and what a database needs for it."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from headrace.capture import Capture, CaptureOptions
from headrace.capture.postgres.events import PostgresEvents
from headrace.capture.postgres.replication import ReplicationStream
from headrace.capture.run import CaptureTakenOver
from headrace.capture.shapes import table_topic
from headrace.capture.source import PositionLost, open_source
from headrace.client import Client, list_transactions
from headrace.errors import UsageError
from tests.capture.conftest import Database, drop_slot
from tests.capture.world import (
    Event,
    all_read,
    catch_up,
    check_numbering,
    check_order,
    committed,
    events,
    fold,
    fold_bag,
    topics,
)
from tests.servers.process import RunningServer

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def options(database: Database, **more: Any) -> CaptureOptions:
    return CaptureOptions(name=database.name, url=database.url, **more)


def ops(changes: list[Event]) -> list[str]:
    return [each.op for each in changes]


def test_rows_that_were_there_come_first_and_then_every_change_once(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, name text)", "insert into t values (1, 'a'), (2, 'b')")
    capture = options(database, chunk_rows=1)
    catch_up(log, capture)
    database.run("insert into t values (3, 'c')", "update t set name = 'B' where id = 2", "delete from t where id = 1")
    catch_up(log, capture)
    catch_up(log, capture)
    found = events(log, f"{database.name}.public.t")
    assert ops(found) == ["r", "r", "c", "u", "d", "tombstone"]
    assert fold(found) == {'{"id": 2}': {"id": 2, "name": "B"}, '{"id": 3}': {"id": 3, "name": "c"}}
    check_numbering(found)
    check_order(found)


def test_what_a_snapshot_reads_and_the_stream_brings_is_told_once_in_its_newest_form(
    log: str, database: Database
) -> None:
    """Changes fall into the snapshot at every place: between chunks, and while transactions are open."""
    database.run(
        "create table t (id int primary key, n int)", "insert into t select i, 0 from generate_series(1, 50) i"
    )
    with database.another() as open_transaction:
        capture = Capture(log, options(database, chunk_rows=7))
        step = iter(range(1, 1000))

        class Disturbed(threading.Event):
            """Asked between any two reads: a good moment to change something."""

            def is_set(self) -> bool:
                number = next(step)
                if number == 2:
                    open_transaction.execute("update t set n = -1 where id % 10 = 0")
                    open_transaction.execute("delete from t where id = 33")
                if number % 2:
                    database.run(f"update t set n = n + 1 where id = {number % 50}")
                if number == 9:
                    open_transaction.commit()
                return False

        capture.run(Disturbed(), until_current=True)
        open_transaction.rollback()
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.t")
    rows = {json.dumps({"id": row[0]}): {"id": row[0], "n": row[1]} for row in database.all("select * from t")}
    assert fold(found) == rows
    assert ops(found).count("r") > 20
    check_numbering(found)


def test_a_table_without_a_key_is_told_as_a_bag_of_rows(log: str, database: Database) -> None:
    database.run("create table bag (a int, b text)", "alter table bag replica identity full")
    database.run("insert into bag values (1, 'x'), (1, 'x'), (2, 'y')")
    catch_up(log, options(database))
    database.run("insert into bag values (3, 'z')", "update bag set b = 'w' where a = 2")
    database.run("delete from bag where a = 3")
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.bag")
    assert [each.key for each in found] == [None] * 6
    expected = [json.dumps({"a": a, "b": b}) for a, b in database.all("select a, b from bag")]
    assert fold_bag(found) == sorted(expected)


def test_publishing_a_table_without_identity_does_not_break_the_applications_own_updates(
    log: str, database: Database
) -> None:
    database.run("create table bag (a int)", "insert into bag values (1)")
    catch_up(log, options(database))
    database.run("insert into bag values (2)", "update bag set a = 5 where a = 1", "delete from bag where a = 2")
    catch_up(log, options(database))
    assert ops(events(log, f"{database.name}.public.bag")) == ["r", "c"]
    source = open_source(options(database), None)
    notes = source.check()
    source.close()
    assert any("ALTER TABLE public.bag REPLICA IDENTITY FULL" in each for each in notes)


def test_a_key_has_the_same_form_from_the_snapshot_and_from_the_stream(log: str, database: Database) -> None:
    """Its columns stand in another order in the key than in the table."""
    database.run("create table t (a int, b text, c int, primary key (c, b))", "insert into t values (1, 'x', 2)")
    catch_up(log, options(database))
    database.run("update t set a = 5", "alter table t replica identity full", "update t set a = 6", "delete from t")
    catch_up(log, options(database))
    keys = {each.key for each in committed(log, f"{database.name}.public.t")}
    assert keys == {b'{"c":2,"b":"x"}'}


def test_a_changed_key_is_a_deletion_and_a_creation_that_name_each_other(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    catch_up(log, options(database))
    database.run("update t set id = 2")
    catch_up(log, options(database))
    _, deleted, tombstone, created = events(log, f"{database.name}.public.t")
    assert (deleted.op, deleted.key, deleted.headers) == ("d", {"id": 1}, {"__debezium.newkey": b'{"id":2}'})
    assert (tombstone.op, tombstone.key) == ("tombstone", {"id": 1})
    assert (created.op, created.key, created.headers) == ("c", {"id": 2}, {"__debezium.oldkey": b'{"id":1}'})


def test_large_values_are_filled_in_and_after_a_restart_stand_in_for_themselves(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n int, body text)")
    database.run("alter table t alter body set storage external")
    catch_up(log, options(database))
    database.run("insert into t values (1, 0, repeat('x', 9000))", "update t set n = 1")
    catch_up(log, options(database))
    database.run("update t set n = 2")
    catch_up(log, options(database))
    after = [each.value["after"] for each in events(log, f"{database.name}.public.t")]
    assert [each["body"] for each in after] == ["x" * 9000, "x" * 9000, "__debezium_unavailable_value"]


def test_rows_of_megabytes_go_into_the_log(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, body text)", "insert into t values (1, repeat('x', 3000000))")
    catch_up(log, options(database))
    database.run("insert into t select 1 + i, repeat(md5(i::text), 30000) from generate_series(1, 5) i")
    catch_up(log, options(database))
    after = [each.value["after"]["body"] for each in events(log, f"{database.name}.public.t")]
    assert [len(each) for each in after] == [3_000_000] + [960_000] * 5


def test_truncations_and_logical_messages_are_events_too(log: str, database: Database) -> None:
    database.run("create table a (id int primary key)", "create table b (id int primary key)")
    catch_up(log, options(database))
    database.run("insert into a values (1)", "truncate a, b")
    database.run("select pg_logical_emit_message(true, 'mine', 'within')")
    database.run("select pg_logical_emit_message(false, 'mine', 'outside')", "insert into a values (2)")
    catch_up(log, options(database))
    catch_up(log, options(database))
    assert ops(events(log, f"{database.name}.public.a")) == ["c", "t", "c"]
    assert ops(events(log, f"{database.name}.public.b")) == ["t"]
    messages = [each.value["message"]["content"] for each in events(log, f"{database.name}.message")]
    assert messages == ["d2l0aGlu", "b3V0c2lkZQ=="]


def test_what_captures_write_into_the_servers_log_for_themselves_is_no_event_of_another_one(
    log: str, database: Database
) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    one, other = options(database), CaptureOptions(name=f"{database.name}_other", url=database.url)
    for each in (one, other, one):
        catch_up(log, each)
    database.run("create table late (id int primary key)", "insert into late values (1)")
    for each in (one, other, one, other):
        catch_up(log, each)
    drop_slot(database, f"headrace_{other.name}")
    assert [each for each in topics(log, database.name) if each.endswith(".message")] == []


def test_a_compacted_topic_is_spared_truncations_and_capture_goes_on_and_says_so(log: str, database: Database) -> None:
    """It takes no records without a key: a single truncation would otherwise stop capture for good."""
    compacted = options(database, topic_config={"cleanup.policy": "compact"})
    database.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, compacted)
    database.run("truncate t", "insert into t values (2)")
    for resnapshot in (False, True):
        said: list[str] = []
        capture = Capture(log, compacted, say=said.append)
        capture.run(threading.Event(), until_current=True, resnapshot=resnapshot)
        assert any("left out" in each for each in said)
    found = events(log, f"{database.name}.public.t")
    assert [(each.op, each.key["id"]) for each in found] == [("r", 1), ("c", 2), ("r", 2)]


def test_a_changed_schema_is_followed_and_announced(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, options(database))
    database.run("alter table t add column name text default 'd'", "insert into t values (2, 'b')")
    database.run("alter table t drop column name", "alter table t add column n numeric(6,2)")
    database.run("insert into t values (3, 1.5)")
    catch_up(log, options(database))
    after = [each.value["after"] for each in events(log, f"{database.name}.public.t")]
    assert after == [{"id": 1}, {"id": 2, "name": "b"}, {"id": 3, "n": "1.50"}]
    announced = [json.loads(each.value or b"")["tableChanges"][0] for each in committed(log, database.name)]
    assert [each["type"] for each in announced] == ["CREATE", "ALTER", "ALTER"]
    assert [[each["name"] for each in one["table"]["columns"]] for one in announced][1] == ["id", "name"]


def test_a_table_added_later_gets_its_snapshot_and_the_others_do_not_get_another(log: str, database: Database) -> None:
    database.run("create table a (id int primary key)", "create table b (id int primary key)")
    database.run("insert into a values (1)", "insert into b values (1)")
    catch_up(log, options(database, tables=("public.a",)))
    database.run("insert into b values (2)")
    catch_up(log, options(database, tables=("public.a", "public.b")))
    database.run("insert into b values (3)")
    catch_up(log, options(database, tables=("public.a", "public.b")))
    assert ops(events(log, f"{database.name}.public.a")) == ["r"]
    assert ops(events(log, f"{database.name}.public.b")) == ["r", "r", "c"]


def test_large_transactions_that_are_streamed_while_open_come_out_as_the_others_do(
    log: str, database: Database
) -> None:
    database.run("create table t (id int primary key, body text)")
    capture = options(database, streaming=True)
    catch_up(log, capture)
    with database.another() as first, database.another() as second:
        for low in (1, 1001, 2001):
            rows = f"from generate_series({low}, {low + 499}) i"
            first.execute(f"insert into t select i, repeat('a', 200) {rows}")
            second.execute(f"insert into t select -i, repeat('b', 200) {rows}")
            second.execute("savepoint s")
            second.execute(f"insert into t select 100000 + i, repeat('c', 200) {rows}")
            second.execute("rollback to s")
        second.commit()
        first.rollback()
    catch_up(log, capture)
    found = events(log, f"{database.name}.public.t")
    assert len(found) == 1500
    slot = f"from pg_stat_replication_slots where slot_name = 'headrace_{database.name}'"
    while database.all(f"select stream_txns > 0 {slot}") != [(True,)]:
        time.sleep(0.05)  # the server tells a moment later that it has streamed at all
    assert {each.value["transaction"]["id"] for each in found} == {found[0].value["transaction"]["id"]}
    assert sorted(each.key["id"] for each in found) == [row[0] for row in database.all("select id from t order by id")]
    check_numbering(found)


def test_the_server_hears_of_capture_while_a_whole_table_or_a_streamed_transaction_is_written(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends a stream from which it hears nothing, and the same work would begin again, for ever."""
    told: list[tuple[str, int]] = []
    send, begin = ReplicationStream.send_status, PostgresEvents.begin
    current: list[PostgresEvents] = []

    def begun(self: PostgresEvents, *place: int) -> None:
        current[:] = [self]
        begin(self, *place)

    def noted(self: ReplicationStream) -> None:
        told.extend((each.transaction.id, each.transaction.index) for each in current)
        send(self)

    database.run(
        "create table bag (a int, body text)",
        "insert into bag select i, repeat('b', 1000) from generate_series(1, 1500) i",
    )
    monkeypatch.setattr(PostgresEvents, "begin", begun)
    monkeypatch.setattr(ReplicationStream, "send_status", noted)
    monkeypatch.setattr("headrace.capture.postgres.replication.STATUS_INTERVAL_S", 0.0)
    catch_up(log, options(database, streaming=True))
    database.run("insert into bag select i, repeat('a', 200) from generate_series(1, 1500) i")
    catch_up(log, options(database, streaming=True))
    found = events(log, f"{database.name}.public.bag")
    assert ops(found) == ["r"] * 1500 + ["c"] * 1500
    for written in (found[0], found[1500]):
        inside = [index for name, index in told if name == written.value["transaction"]["id"] and index < 1500]
        assert len([index for index in inside if index]) >= 5


@pytest.mark.parametrize("streaming", [False, True])
def test_a_prepared_transaction_counts_from_its_commit(log: str, database: Database, streaming: bool) -> None:
    capture = options(database, streaming=streaming)
    database.run("create table t (id int primary key)")
    catch_up(log, capture)
    database.run("begin", "insert into t values (1)", "prepare transaction 'p'", "insert into t values (2)")
    catch_up(log, capture)
    assert [each.key["id"] for each in events(log, f"{database.name}.public.t")] == [2]
    database.run("commit prepared 'p'")
    catch_up(log, capture)
    database.run("begin", "insert into t values (3)", "prepare transaction 'q'", "rollback prepared 'q'")
    catch_up(log, capture)
    found = events(log, f"{database.name}.public.t")
    assert [each.key["id"] for each in found] == [2, 1]
    check_order(found)


def test_transactions_are_told_when_asked_for(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)")
    capture = options(database, transactions=True, snapshot=False)
    catch_up(log, capture)
    database.run("insert into t select generate_series(1, 3)")
    catch_up(log, capture)
    begin, end = [json.loads(each.value or b"") for each in committed(log, f"{database.name}.transaction")]
    (transaction,) = {each.value["transaction"]["id"] for each in events(log, f"{database.name}.public.t")}
    assert (begin["status"], begin["id"], end["status"], end["id"]) == ("BEGIN", transaction, "END", transaction)
    assert end["data_collections"] == [{"data_collection": "public.t", "event_count": 3}]


def test_an_outbox_is_routed_by_what_its_events_are_about(log: str, database: Database) -> None:
    database.run(
        "create table outbox (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb)"
    )
    capture = options(database, outbox="outbox", tables=("outbox",))
    catch_up(log, capture)
    name = "00000000-0000-0000-0000-000000000001"
    kind = f"order-{database.name}"
    database.run(f"insert into outbox values ('{name}', '{kind}', '7', 'placed', '{{\"a\": 1}}')", "delete from outbox")
    catch_up(log, capture)
    (record,) = committed(log, f"outbox.event.{kind}")
    assert (record.key, record.value) == (b"7", b'{"a": 1}')
    assert dict(record.headers) == {"id": name.encode(), "eventType": b"placed"}
    assert topics(log, f"{database.name}.public") == []


def test_the_trace_context_of_an_outbox_row_becomes_headers(log: str, database: Database) -> None:
    database.run(
        "create table outbox (id int primary key, aggregatetype text, aggregateid text, payload text, traceparent text,"
        " tracestate text)"
    )
    capture = options(database, outbox="outbox", tables=("outbox",))
    catch_up(log, capture)
    kind = f"order-{database.name}"
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    database.run(
        f"insert into outbox values (1, '{kind}', '7', 'x', '{trace}', 'vendor=1')",
        f"insert into outbox values (2, '{kind}', '7', 'y', '{trace}', null)",
    )
    catch_up(log, capture)
    first, second = committed(log, f"outbox.event.{kind}")
    assert dict(first.headers) == {"id": b"1", "traceparent": trace.encode(), "tracestate": b"vendor=1"}
    assert dict(second.headers) == {"id": b"2", "traceparent": trace.encode()}


def test_plain_rows_and_tombstones_instead_of_envelopes(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n numeric(5,2), d date)")
    capture = options(database, unwrap=True, decimals="string", times="strings")
    database.run("insert into t values (1, 2.5, '2026-01-02')")
    catch_up(log, capture)
    database.run("update t set n = 3", "delete from t")
    catch_up(log, capture)
    values = [each.value for each in committed(log, f"{database.name}.public.t")]
    assert values == [b'{"id":1,"n":"2.50","d":"2026-01-02"}', b'{"id":1,"n":"3.00","d":"2026-01-02"}', None]


def test_the_slot_of_a_quiet_table_does_not_stay_behind(log: str, database: Database) -> None:
    """Another table fills the server's log; the slot follows with the keep-alives."""
    database.run("create table quiet (id int primary key)", "create table busy (id int, body text)")
    capture = options(database, tables=("public.quiet",), heartbeat_ms=100)
    catch_up(log, capture)
    database.run("insert into busy select i, repeat('x', 500) from generate_series(1, 4000) i")
    (target,) = database.all("select pg_current_wal_lsn()")[0]
    stop = threading.Event()
    worker = threading.Thread(target=Capture(log, capture).run, args=(stop,))
    worker.start()
    try:
        slot = f"from pg_replication_slots where slot_name = 'headrace_{database.name}'"
        query = f"select confirmed_flush_lsn >= '{target}' {slot}"
        deadline = threading.Event()
        while database.all(query) != [(True,)]:
            assert not deadline.wait(0.05)
            assert worker.is_alive()
    finally:
        stop.set()
        worker.join()
    assert events(log, f"{database.name}.public.quiet") == []


def test_a_capture_that_is_far_behind_says_so_while_it_runs(log: str, database: Database) -> None:
    """An open transaction of another writer does not hold it back; what it has not confirmed does."""
    database.run("create table t (id int primary key)")
    said: list[str] = []
    capture = Capture(log, options(database, heartbeat_ms=100, lag_alarm_bytes=1), say=said.append)
    stop = threading.Event()
    worker = threading.Thread(target=capture.run, args=(stop,))
    worker.start()
    try:
        while not any("behind by more than 1 bytes" in each for each in said):
            assert worker.is_alive()
            database.run("select pg_logical_emit_message(false, 'other', repeat('x', 10000))")
            time.sleep(0.02)
    finally:
        stop.set()
        worker.join()


def test_a_second_capture_of_the_same_name_takes_over_and_the_first_ends(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)")
    first = Capture(log, options(database))
    failures: list[BaseException] = []

    def run_first() -> None:
        try:
            first.run(threading.Event())
        except CaptureTakenOver as error:
            failures.append(error)

    worker = threading.Thread(target=run_first, daemon=True)
    worker.start()
    pause = threading.Event()
    while not all_read(log, database.name):
        pause.wait(0.02)
    database.run("insert into t values (1)")
    catch_up(log, options(database))
    worker.join(60)
    assert not worker.is_alive()
    assert "taken over" in str(failures[0])
    database.run("insert into t values (2)")
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.t")
    assert [each.key["id"] for each in found] == [1, 2]


def test_a_lost_slot_is_said_loudly_and_mended_by_a_snapshot_on_request(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1), (2)")
    catch_up(log, options(database))
    drop_slot(database, f"headrace_{database.name}")
    database.run("delete from t where id = 1")
    with pytest.raises(PositionLost, match=r"is gone.*--resnapshot"):
        catch_up(log, options(database))
    catch_up(log, options(database), resnapshot=True)
    found = events(log, f"{database.name}.public.t")
    assert ops(found) == ["r", "r", "t", "r"]
    assert list(fold(found)) == ['{"id": 2}']


def test_a_slot_that_somebody_else_moved_is_refused(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)")
    catch_up(log, options(database))
    database.run("insert into t values (1)")
    slot = f"headrace_{database.name}"
    while database.all(f"select 1 from pg_replication_slots where slot_name = '{slot}' and active_pid is not null"):
        time.sleep(0.02)  # the server has not noticed yet that capture has ended
    database.run(f"select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    with pytest.raises(PositionLost, match=r"moved .* by somebody else"):
        catch_up(log, options(database))


def test_removing_a_capture_leaves_nothing_in_the_database(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)")
    catch_up(log, options(database))
    source = open_source(options(database), None)
    removed = source.remove()
    source.close()
    assert removed[0] == f"slot headrace_{database.name}"
    assert database.all("select pubname from pg_publication") == []


def test_what_is_missing_is_named_with_the_statement_that_mends_it(database: Database) -> None:
    role = f"poor_{database.name}"
    database.run("create table t (id int primary key)", f"create role {role} login")
    try:
        url = database.url.replace("postgres@", f"{role}@")
        poor = CaptureOptions(name=database.name, url=url)
        source = open_source(poor, None)
        with pytest.raises(UsageError) as missing:
            source.check()
        source.close()
        assert missing.value.hint == f"ALTER ROLE {role} REPLICATION; or capture without it, with --triggers"
        source = open_source(options(database, tables=("public.nothing",)), None)
        with pytest.raises(UsageError, match=r"no table public\.nothing"):
            source.check()
        source.close()
    finally:
        database.run(f"drop role {role}")


def test_names_that_need_quoting_are_captured_as_they_are(log: str, database: Database) -> None:
    database.run('create schema "my schema"', 'create table "my schema"."a%b" ("Id" int primary key, "per%cent" text)')
    database.run("""insert into "my schema"."a%b" values (1, E'tab\\there\\\\n "quoted" \\n')""")
    catch_up(log, options(database))
    database.run("""update "my schema"."a%b" set "per%cent" = '100%d' """)
    catch_up(log, options(database))
    found = events(log, table_topic(database.name, "my schema", "a%b"))
    assert [each.value["after"]["per%cent"] for each in found] == ['tab\there\\n "quoted" \n', "100%d"]
    assert found[1].value["source"]["table"] == "a%b"


class AfterSome(threading.Event):
    """Is set, or raises, when it has been asked so often: capture asks between any two reads."""

    def __init__(self, often: int, error: Exception | None = None) -> None:
        super().__init__()
        self.left = often
        self.error = error

    def is_set(self) -> bool:
        self.left -= 1
        if self.left > 0:
            return False
        if self.error is not None:
            raise self.error
        return True


class Died(Exception):
    pass


def test_a_stop_inside_a_transaction_leaves_nothing_of_it_in_the_log(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table t (id int primary key)")
    catch_up(log, options(database))
    database.run("insert into t select generate_series(1, 5000)")
    monkeypatch.setattr("headrace.capture.postgres.source.READ_BYTES", 10_000)
    monkeypatch.setattr("headrace.capture.postgres.source.READ_BYTES_MAX", 20_000)
    capture = Capture(log, options(database))
    capture.run(AfterSome(12))
    assert capture.figures.commits == 1, "the one with which a session begins"
    assert committed(log, f"{database.name}.public.t") == []
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.t")
    assert len(found) == 5000
    check_numbering(found)


def test_a_capture_that_fails_inside_a_transaction_takes_back_what_it_had_sent(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left open, it would hold back every reader of committed records until it times out."""
    database.run("create table t (id int primary key)")
    catch_up(log, options(database))
    database.run("insert into t select generate_series(1, 5000)")
    monkeypatch.setattr("headrace.capture.postgres.source.READ_BYTES", 10_000)
    monkeypatch.setattr("headrace.capture.postgres.source.READ_BYTES_MAX", 20_000)
    monkeypatch.setattr("headrace.client.positioned.BATCH_BYTES_MAX", 5_000)
    with Client(log) as client:

        def is_open() -> bool:
            return f"headrace-capture-{database.name}" in list_transactions(client, states=["Ongoing"])

        class DiesInside(threading.Event):
            def is_set(self) -> bool:
                if is_open():
                    raise Died
                return False

        with pytest.raises(Died):
            Capture(log, options(database)).run(DiesInside(), until_current=True)
        assert not is_open()
        assert committed(log, f"{database.name}.public.t") == []


def test_a_transaction_too_large_for_one_write_is_cut_and_resumed_inside(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table t (id int primary key)")
    catch_up(log, options(database))
    database.run("insert into t select generate_series(1, 5000)")
    monkeypatch.setattr("headrace.capture.postgres.source.READ_BYTES", 10_000)
    monkeypatch.setattr("headrace.capture.postgres.source.READ_BYTES_MAX", 20_000)
    monkeypatch.setattr("headrace.capture.run.COMMIT_BYTES_MAX", 50_000)
    topic = f"{database.name}.public.t"
    sizes = [0]
    often = 12
    while len(sizes) < 4:
        with pytest.raises(Died):
            Capture(log, options(database)).run(AfterSome(often, Died()))
        often += 4
        if (size := len(committed(log, topic))) > sizes[-1]:
            sizes.append(size)
    assert sizes[-1] < 5000
    with pytest.raises(Died):  # a session that commits its start and nothing else must not forget the part
        Capture(log, options(database)).run(AfterSome(2, Died()))
    catch_up(log, options(database))
    found = events(log, topic)
    assert [each.key["id"] for each in found] == [*range(1, 5001)]
    check_numbering(found)


def test_both_rows_of_a_partitioned_table_go_to_its_own_topic(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n int) partition by range (id)")
    database.run("create table t1 partition of t for values from (0) to (10)")
    database.run("create table t2 partition of t for values from (10) to (20)", "insert into t values (1, 1)")
    catch_up(log, options(database))
    database.run("insert into t values (11, 1)", "update t set id = 12 where id = 1")
    catch_up(log, options(database))
    assert sorted(fold(events(log, f"{database.name}.public.t"))) == ['{"id": 11}', '{"id": 12}']
    assert topics(log, f"{database.name}.public") == [f"{database.name}.public.t"]


def test_a_database_that_goes_away_is_waited_for(log: str, database: Database) -> None:
    """The server ends all sessions; capture comes back by itself."""
    database.run("create table t (id int primary key)")
    said: list[str] = []
    capture = Capture(log, options(database), say=said.append)
    stop = threading.Event()
    worker = threading.Thread(target=capture.run, args=(stop,))
    worker.start()
    pause = threading.Event()
    try:
        while not all_read(log, database.name):
            pause.wait(0.02)
        with psycopg.connect(database.url, autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'headrace-%%'"
            )
        while capture.figures.sessions < 2:
            pause.wait(0.02)
        database.run("insert into t values (1)")
        while not events(log, f"{database.name}.public.t"):
            pause.wait(0.05)
    finally:
        stop.set()
        worker.join()
    assert "trying again" in said[0]


def test_on_apache_kafka_events_and_position_are_committed_together_too(
    apache_kafka: RunningServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table t (id int primary key)", "insert into t select generate_series(1, 100)")
    monkeypatch.setattr("headrace.capture.postgres.source.READ_BYTES", 10_000)
    for often in (2, 4, 6):
        with pytest.raises(Died):
            Capture(apache_kafka.bootstrap, options(database, chunk_rows=20)).run(AfterSome(often, Died()))
        database.run(
            f"insert into t select generate_series({often}00, {often}00 + 50)", "delete from t where id % 10 = 0"
        )
    catch_up(apache_kafka.bootstrap, options(database))
    found = events(apache_kafka.bootstrap, f"{database.name}.public.t")
    assert [*map(json.loads, sorted(fold(found)))] == sorted(
        ({"id": row[0]} for row in database.all("select id from t")), key=json.dumps
    )
    check_numbering(found)


def test_a_user_who_may_not_publish_is_given_the_grants_and_the_statement(log: str, database: Database) -> None:
    role = f"{database.name}_reader"
    database.run("create table t (id int primary key)", f"create role {role} login replication")
    try:
        capture = CaptureOptions(name=database.name, url=database.url.replace("postgres@", f"{role}@"), tables=("t",))
        with pytest.raises(UsageError, match=rf"no table public.t .*GRANT SELECT ON public.t TO {role}"):
            catch_up(log, capture)
        database.run(f"grant select on t to {role}")
        granted = rf"GRANT CREATE ON DATABASE {database.name} TO {role}.*superuser run: CREATE PUBLICATION"
        with pytest.raises(UsageError, match=granted):
            catch_up(log, capture)
        database.run(f"create publication headrace_{database.name}")
        with closing(open_source(capture, None)) as source, pytest.raises(UsageError, match="DROP PUBLICATION"):
            source.remove()
    finally:
        database.run(f"drop owned by {role}", f"drop role {role}")


def test_the_rights_to_publish_are_asked_for_before_a_capture_is_added(log: str, database: Database) -> None:
    role, name = f"{database.name}_publisher", f"headrace_{database.name}"
    database.run("create table t (id int primary key)", "create table u (id int primary key)")
    database.run(f"create role {role} login replication", f"grant select on t, u to {role}")
    capture = CaptureOptions(name=database.name, url=database.url.replace("postgres@", f"{role}@"), tables=("t",))

    def refusal() -> str:
        with closing(open_source(capture, None)) as source:
            try:
                source.check()
            except UsageError as error:
                return str(error)
        return ""

    try:
        assert f"GRANT CREATE ON DATABASE {database.name} TO {role}" in refusal()
        database.run(f"grant create on database {database.name} to {role}")
        assert f"{role} does not own public.t" in refusal()
        assert "member of the role that owns them (postgres)" in refusal()
        database.run(f"create publication {name} for table t", f"create publication {name}_inserts")
        database.run(f"revoke create on database {database.name} from {role}")
        assert refusal() == "", "a superuser has published all that is wanted"
        database.run(f"alter publication {name} drop table t", f"alter publication {name} add table u")
        assert f"{role} does not own public.t" in refusal()
        database.run(f"alter table t owner to {role}")
        assert refusal() == ""
    finally:
        database.run("alter table t owner to postgres", f"drop publication if exists {name}, {name}_inserts")
        database.run(f"drop owned by {role}", f"drop role {role}")
