"""A real MariaDB into a real log."""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import closing, nullcontext
from typing import Any

import pytest

from headrace.capture import Capture
from headrace.capture.envelope import TableEncoder
from headrace.capture.mariadb import snapshot as mariadb_snapshot
from headrace.capture.mariadb import source as mariadb_source
from headrace.capture.mariadb.catalogue import Catalogue, gtid_text
from headrace.capture.mariadb.tables import is_reached
from headrace.capture.run import COMMIT_AGE_S
from headrace.capture.source import DatabaseGone, PositionLost, Progress, open_source
from headrace.capture.writer import Writer
from headrace.client import Client
from headrace.errors import UsageError
from tests.capture.shop import Shop
from tests.capture.world import all_read, catch_up, check_numbering, committed, events, fold, fold_bag

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_rows_that_were_there_come_first_and_then_every_change_once(log: str, shop: Shop) -> None:
    shop.run(
        "create table t (id int primary key, name varchar(20))", "insert into t values (1, 'a'), (2, 'b'), (3, 'c')"
    )
    capture = shop.options(chunk_rows=2)
    catch_up(log, capture)
    shop.run("insert into t values (4, 'd')", "update t set name = 'B' where id = 2", "delete from t where id = 1")
    shop.run("update t set id = 9 where id = 3")
    catch_up(log, capture)
    catch_up(log, capture)
    found = events(log, f"{shop.name}.{shop.name}.t")
    assert [each.op for each in found] == ["r", "r", "r", "c", "u", "d", "tombstone", "d", "tombstone", "c"]
    assert fold(found) == {json.dumps({"id": each["id"]}): each for each in shop.all("select * from t")}
    assert found[4].value["before"] == {"id": 2, "name": "b"}
    check_numbering(found)


def test_a_snapshot_under_change_gives_the_table(log: str, shop: Shop) -> None:
    shop.run("create table t (a int, b varchar(10), n int, primary key (a, b))", "create table bag (n int)")
    shop.run("insert into t select seq % 7, concat('k', seq), 0 from seq_1_to_60")
    shop.run("insert into bag select seq % 5 from seq_1_to_20")
    step = itertools.count(1)

    class Disturbed(threading.Event):
        def is_set(self) -> bool:
            number = next(step)
            if number > 40:
                return False
            shop.run(f"update t set n = n + 1 where b = 'k{number % 60}'", f"insert into bag values ({number})")
            if number % 5 == 0:
                shop.run(f"delete from t where b = 'k{number}'", f"update t set a = a + 10 where b = 'k{number + 1}'")
            return False

    Capture(log, shop.options(chunk_rows=7)).run(Disturbed(), until_current=True)
    catch_up(log, shop.options())
    found = events(log, f"{shop.name}.{shop.name}.t")
    expected = {json.dumps({"a": each["a"], "b": each["b"]}): each for each in shop.all("select * from t")}
    assert fold(found) == expected
    bag = events(log, f"{shop.name}.{shop.name}.bag")
    assert fold_bag(bag) == sorted(json.dumps(each) for each in shop.all("select * from bag"))
    check_numbering([*found, *bag])


KEYS = {
    "enum('z', 'b', 'a')": ["'z'", "'b'", "'a'"],
    "set('z', 'b', 'a')": ["'z'", "'b'", "'z,b'", "'a'"],
    "bit(9)": ["b'1'", "b'10'", "b'100000000'"],
    "bigint": ["-9007199254740993", "-9007199254740992", "9007199254740992", "9007199254740993"],
    "bigint unsigned": ["18446744073709551613", "18446744073709551614", "18446744073709551615"],
    "decimal(30,10)": ["0.0000000001", "0.0000000002", "12345678901234567890.1", "12345678901234567890.2"],
    "time(3)": ["'-30:00:00.5'", "'-00:00:01'", "'00:00:00'", "'30:00:00.25'", "'300:00:00'"],
    "datetime(6)": ["'2026-01-02 03:04:05'", "'2026-01-02 03:04:05.000001'"],
    "varchar(20)": ["'B'", "'a b'", "'c%s'", "'hex:zz'", "'\u00e9'"],
    "varbinary(4)": ["x''", "x'00'", "x'ff'"],
    "binary(4)": ["x''", "x'0001'", "x'ff00ff00'"],
    "uuid": ["'00000000-0000-0000-0000-000000000001'", "'3951f349-e153-11f1-a1ff-02fc00000001'", "uuid()"],
    "inet6": ["'::1'", "'::2'", "'ffff::'"],
}


@pytest.mark.parametrize("kind", KEYS)
def test_no_row_is_left_out_between_two_chunks(log: str, shop: Shop, kind: str) -> None:
    """Whatever the key is, alone and in front of another column, and with a bound behind each single row."""
    shop.run(f"create table alone (k {kind} primary key)", f"create table pair (k {kind}, n int, primary key (k, n))")
    for value in KEYS[kind]:
        shop.run(f"insert into alone values ({value})", f"insert into pair values ({value}, 2), ({value}, 10)")
    catch_up(log, shop.options(chunk_rows=1))
    assert len(events(log, f"{shop.name}.{shop.name}.alone")) == len(KEYS[kind])
    pair = events(log, f"{shop.name}.{shop.name}.pair")
    assert len({json.dumps(each.key) for each in pair}) == len(pair) == 2 * len(KEYS[kind])


def test_a_chunk_ends_when_it_holds_enough_bytes_and_no_row_is_left_out(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mariadb_snapshot, "CHUNK_BYTES_MAX", 10_000)
    shop.run("create table t (id int primary key, body text)")
    shop.run("insert into t select seq, repeat('x', if(seq between 10 and 30, 4000, 1)) from seq_1_to_60")
    catch_up(log, shop.options(chunk_rows=50))
    found = events(log, f"{shop.name}.{shop.name}.t")
    assert [each.key["id"] for each in found] == list(range(1, 61))
    chunks: dict[str, list[int]] = {}
    for each in found:
        chunks.setdefault(each.value["transaction"]["id"], []).append(len(each.value["after"]["body"]))
    assert max(sum(sizes) for sizes in chunks.values()) < 10_000 + 4_000


TYPES = {
    "i": ("bigint unsigned", "18446744073709551615", 18446744073709551615),
    "d": ("decimal(8,2)", "-12.50", "+x4="),
    "f": ("float", "1.1", 1.1),
    "g": ("double", "2.5", 2.5),
    "dt": ("datetime", "'2026-01-02 03:04:05'", 1767323045000),
    "dt6": ("datetime(6)", "'2026-01-02 03:04:05.123456'", 1767323045123456),
    "ts": ("timestamp(3) null", "'2026-01-02 03:04:05.120'", "2026-01-02T03:04:05.120Z"),
    "da": ("date", "'2026-01-02'", 20455),
    "ti": ("time(1)", "'-01:00:00.5'", -3600500000),
    "y": ("year", "2026", 2026),
    "c": ("varchar(20)", "'\u00e9\U0001f600'", "\u00e9\U0001f600"),
    "tx": ("text", "'long'", "long"),
    "b": ("varbinary(4)", "x'00ff'", "AP8="),
    "bz": ("binary(4)", "x'01ff0000'", "Af8AAA=="),
    "bl0": ("binary(3)", "x''", "AAAA"),
    "vz": ("varbinary(4)", "x'0100'", "AQA="),
    "bl": ("blob", "x'dead'", "3q0="),
    "e": ("enum('one', 'two')", "'two'", "two"),
    "s": ("set('a', 'b', 'c')", "'a,c'", "a,c"),
    "b1": ("bit(1)", "b'1'", True),
    "b9": ("bit(9)", "b'100000001'", "AQE="),
    "j": ("json", """'{"k": 1}'""", '{"k": 1}'),
    "n": ("int", "null", None),
    "m1": ("mediumint", "-8388608", -8388608),
    "m2": ("mediumint unsigned", "16777215", 16777215),
    "t1": ("tinyint", "-128", -128),
    "d0": ("decimal(9,0)", "-999999999", "xGU2AQ=="),
    "dl": ("decimal(20,10)", "-1234567890.0123456789", "/1SrVnNXGyrr"),
    "d65": (
        "decimal(65,30)",
        "-99999999999999999999999999999999999.999999999999999999999999999997",
        "/wzp2OOAPG91dBC5sca6EIXayfYAAAAAAAAAAw==",
    ),
    "ds": ("decimal(5,5)", "0.00001", "AQ=="),
    "dt1": ("datetime(1)", "'2026-01-02 03:04:05.5'", 1767323045500),
    "dt4": ("datetime(4)", "'2026-01-02 03:04:05.1234'", 1767323045123400),
    "tm0": ("time", "'838:59:59'", 3020399000000),
    "tm3": ("time(3)", "'-00:00:00.001'", -1000),
    "tm6": ("time(6)", "'-12:34:56.789012'", -45296789012),
    "la": ("char(5) character set latin1", "'\u00e9'", "\u00e9"),
    "vl": ("varchar(300)", "'v'", "v"),
    "lt": ("longtext", "'l'", "l"),
    "es": ("set('a', 'b')", "''", ""),
    "z": ("date", "'0000-00-00'", None),
}


def test_every_type_is_the_same_from_the_snapshot_and_from_the_binlog(log: str, shop: Shop) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items())
    values = ", ".join(value for _, value, _ in TYPES.values())
    shop.run(
        "set time_zone = '+00:00', sql_mode = ''",
        f"create table t (id int primary key, {columns}) character set utf8mb4",
    )
    shop.run(f"insert into t values (1, {values})")
    catch_up(log, shop.options(decimals="precise", times="numbers"))
    shop.run(f"insert into t values (2, {values})")
    catch_up(log, shop.options(decimals="precise", times="numbers"))
    read, created = [each.value["after"] for each in events(log, f"{shop.name}.{shop.name}.t")]
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    assert read == {"id": 1, **expected}
    assert created == {"id": 2, **expected}


def test_decimals_as_text_have_every_digit_from_the_snapshot_and_from_the_binlog(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key, d decimal(65,30), near decimal(20,10))")
    long, near = f"-{'9' * 35}.{'9' * 29}7", "0.0000000001"
    shop.run(f"insert into t values (1, {long}, {near})")
    capture = shop.options(decimals="string")
    catch_up(log, capture)
    shop.run(f"insert into t values (2, {long}, {near})")
    catch_up(log, capture)
    found = [each.value["after"] for each in events(log, f"{shop.name}.{shop.name}.t")]
    assert found == [{"id": number, "d": long, "near": near} for number in (1, 2)]


def test_a_key_has_the_same_form_from_the_snapshot_and_from_the_binlog(log: str, shop: Shop) -> None:
    """Its columns stand in another order in the key than in the table."""
    shop.run("create table t (a int, b varchar(5), c int, primary key (c, b))", "insert into t values (1, 'x', 2)")
    catch_up(log, shop.options())
    shop.run("update t set a = 5", "delete from t")
    catch_up(log, shop.options())
    assert {each.key for each in committed(log, f"{shop.name}.{shop.name}.t")} == {b'{"c":2,"b":"x"}'}


ADDRESSES = {
    "uuid": [
        "00000000-0000-0000-0000-000000000000",
        "3951f349-e153-11f1-a1ff-02fc00000000",
        "20202020-2020-4020-a020-202020202020",
    ],
    "inet6": ["::", "::1", "2001:db8:0:1:1:1:1:0", "2001:db8::1:0:0:1", "::ffff:10.0.0.1", "ffff::"],
}


@pytest.mark.parametrize("kind", ADDRESSES)
def test_identifiers_and_addresses_are_the_same_text_from_the_snapshot_and_from_the_binlog(
    log: str, shop: Shop, kind: str
) -> None:
    shop.run(f"create table t (k {kind} primary key, n int)")
    for value in ADDRESSES[kind]:
        shop.run(f"insert into t values ('{value}', 1)")
    catch_up(log, shop.options())
    shop.run("update t set n = 2")
    catch_up(log, shop.options())
    found = events(log, f"{shop.name}.{shop.name}.t")
    keys = {op: sorted(each.key["k"] for each in found if each.op == op) for op in ("r", "u")}
    assert keys["r"] == keys["u"] == sorted(ADDRESSES[kind])


def test_a_changed_schema_is_followed_in_mid_stream_and_announced(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)")
    catch_up(log, shop.options())
    shop.run(
        "insert into t values (1)",
        "alter table t add name varchar(5) first",
        "insert into t values ('b', 2)",
    )
    shop.run("truncate table t", "insert into t values ('c', 3)")
    catch_up(log, shop.options())
    found = events(log, f"{shop.name}.{shop.name}.t")
    assert [each.value["after"] for each in found] == [{"id": 1}, {"name": "b", "id": 2}, None, {"name": "c", "id": 3}]
    assert [each.op for each in found] == ["c", "c", "t", "c"]
    announced = [json.loads(each.value or b"")["tableChanges"][0]["type"] for each in committed(log, shop.name)]
    assert announced == ["CREATE", "ALTER"]


def test_rolled_back_work_is_not_told_and_a_transaction_is_numbered_through(log: str, shop: Shop) -> None:
    shop.run("create table a (id int primary key)", "create table b (id int primary key)")
    catch_up(log, shop.options())
    shop.run("begin", "insert into a values (1)", "rollback", "begin", "insert into a values (2)", "savepoint s")
    shop.run("insert into a values (3)", "rollback to s", "insert into b select seq from seq_1_to_5", "commit")
    catch_up(log, shop.options())
    first = events(log, f"{shop.name}.{shop.name}.a")
    second = events(log, f"{shop.name}.{shop.name}.b")
    assert [each.key["id"] for each in first] == [2]
    assert [each.value["transaction"]["total_order"] for each in [*first, *second]] == [1, 2, 3, 4, 5, 6]
    assert len({each.value["transaction"]["id"] for each in [*first, *second]}) == 1


def test_a_killed_database_is_waited_for(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)")
    capture = Capture(log, shop.options())
    stop = threading.Event()
    worker = threading.Thread(target=capture.run, args=(stop,))
    worker.start()
    pause = threading.Event()
    try:
        while not all_read(log, shop.name):
            pause.wait(0.02)
        shop.run("insert into t values (1)")
        shop.session.close()
        shop.server.kill()
        shop.server.start()
        shop.session = shop.server.connect(shop.name)
        shop.run("insert into t values (2)")
        while len(events(log, f"{shop.name}.{shop.name}.t")) < 2:
            pause.wait(0.05)
    finally:
        stop.set()
        worker.join()
    found = events(log, f"{shop.name}.{shop.name}.t")
    assert [each.key["id"] for each in found] == [1, 2]


def test_a_binlog_that_was_purged_is_said_loudly(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)")
    catch_up(log, shop.options())
    shop.run("insert into t values (1)", "flush logs", "insert into t values (2)", "flush logs")
    (newest,) = shop.all("show master status")
    while len(shop.all("show binary logs")) > 1:  # the server lets go of a file a moment after its last reader
        shop.run(f"purge binary logs to '{newest['File']}'")
    with pytest.raises(PositionLost):
        catch_up(log, shop.options())


def test_a_setting_that_is_missing_is_named_with_the_statement_that_mends_it(shop: Shop) -> None:
    shop.run("set global binlog_row_metadata = 'NO_LOG'")
    try:
        source = open_source(shop.options(), None)
        with pytest.raises(UsageError) as missing:
            source.check()
        source.close()
        assert missing.value.hint == "SET GLOBAL binlog_row_metadata = 'FULL'"
    finally:
        shop.run("set global binlog_row_metadata = 'FULL'")


def test_compressed_changes_are_followed(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key, name varchar(2000))")
    catch_up(log, shop.options())
    shop.run("set global log_bin_compress = 'ON'")
    try:
        with closing(shop.server.connect(shop.name)) as session, session.cursor() as cursor:
            cursor.execute("insert into t values (1, repeat('x', 1500)), (2, 'b')")
            cursor.execute("update t set name = repeat('y', 1500)")
            cursor.execute("delete from t where name = repeat('y', 1500) and id = 2")
            cursor.execute(f"alter table t add column n int /* {'long' * 200} */")
            cursor.execute(f"truncate table t /* {'long' * 200} */")
            cursor.execute("insert into t values (3, repeat('z', 1500), 7)")
    finally:
        shop.run("set global log_bin_compress = 'OFF'")
    catch_up(log, shop.options())
    found = events(log, f"{shop.name}.{shop.name}.t")
    assert [each.op for each in found] == ["c", "c", "u", "u", "d", "tombstone", "t", "c"]
    assert fold(found) == {'{"id": 3}': {"id": 3, "name": "z" * 1500, "n": 7}}


@pytest.mark.parametrize("fate", ["commit", "rollback"])
def test_rows_of_a_prepared_transaction_stop_capture_before_they_are_told(log: str, shop: Shop, fate: str) -> None:
    shop.run("create table t (id int primary key)")
    catch_up(log, shop.options())
    shop.run("xa start 'x'", "insert into t values (1)", "xa end 'x'", "xa prepare 'x'")
    try:
        with pytest.raises(UsageError, match="XA PREPARE"):
            catch_up(log, shop.options())
        with pytest.raises(UsageError, match="1 XA transactions are prepared"):
            catch_up(log, shop.options(), resnapshot=True)
    finally:
        shop.run(f"xa {fate} 'x'")
    assert events(log, f"{shop.name}.{shop.name}.t") == []
    catch_up(log, shop.options(), resnapshot=True)
    shop.run("insert into t values (2)")
    catch_up(log, shop.options())
    found = events(log, f"{shop.name}.{shop.name}.t")
    assert [each.op for each in found] == (["t", "r", "c"] if fate == "commit" else ["t", "c"])


def test_prepared_transactions_of_other_tables_are_passed_over_and_one_phase_ones_are_told(
    log: str, shop: Shop
) -> None:
    shop.run("create table t (id int primary key)", "create table other (id int primary key)")
    capture = shop.options(tables=(f"{shop.name}.t",))
    catch_up(log, capture)
    shop.run("xa start 'x'", "insert into other values (1)", "xa end 'x'", "xa prepare 'x'", "xa commit 'x'")
    shop.run("xa start 'y'", "insert into t values (1)", "xa end 'y'", "xa commit 'y' one phase")
    catch_up(log, capture)
    assert [each.key["id"] for each in events(log, f"{shop.name}.{shop.name}.t")] == [1]


def test_names_with_signs_of_all_kinds_are_read_in_every_chunk(log: str, shop: Shop) -> None:
    for table, key in (("t%s", ", primary key (`100%`)"), ("bag%d", "")):
        shop.run(
            f"create table `{table}` (`100%` int, `a``b` int{key})", f"insert into `{table}` values (1, 1), (2, 2)"
        )
    catch_up(log, shop.options(chunk_rows=1))
    for table in ("t%s", "bag%d"):
        found = [each.value["after"] for each in events(log, shop.topic(table))]
        assert found == [{"100%": 1, "a`b": 1}, {"100%": 2, "a`b": 2}]


@pytest.mark.parametrize("key", [" primary key", ""])
def test_a_table_dropped_in_mid_snapshot_ends_its_snapshot_and_nothing_else(log: str, shop: Shop, key: str) -> None:
    shop.run(f"create table a (id int{key})", "insert into a select seq from seq_1_to_5")
    shop.run("create table b (id int primary key)", "insert into b values (1)")
    turn = itertools.count(1)

    class Dropped(threading.Event):
        def is_set(self) -> bool:
            if next(turn) == 2:
                shop.run("drop table a")
            return False

    Capture(log, shop.options(chunk_rows=2)).run(Dropped(), until_current=True)
    assert len(events(log, f"{shop.name}.{shop.name}.a")) < 5
    assert [each.op for each in events(log, f"{shop.name}.{shop.name}.b")] == ["r"]
    shapes = [json.loads(each.value or b"")["tableChanges"][0]["table"] for each in committed(log, shop.name)]
    assert all(each["columns"] for each in shapes), "what is gone is not announced"


def test_rows_that_were_read_are_told_though_their_table_is_dropped_before(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("create table a (id int primary key)", "insert into a values (1), (2)")
    emit = mariadb_source.MariadbSource._emit

    def dropped(source: Any, chunk: mariadb_snapshot.Chunk) -> None:
        shop.run("drop table a")
        emit(source, chunk)

    monkeypatch.setattr(mariadb_source.MariadbSource, "_emit", dropped)
    catch_up(log, shop.options())
    catch_up(log, shop.options())
    assert [each.op for each in events(log, f"{shop.name}.{shop.name}.a")] == ["r", "r", "t"]


def test_a_table_without_a_key_is_not_held_in_memory(log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are fetched a few at a time, and each block is emitted before the next is fetched."""
    shop.run("create table bag (n int, body text)", "insert into bag select seq, repeat('x', 1000) from seq_1_to_500")
    monkeypatch.setattr(mariadb_snapshot, "BLOCK_ROWS", 7)
    emit = mariadb_source.MariadbSource._emit
    blocks: list[int] = []

    def watched(source: Any, chunk: mariadb_snapshot.Chunk) -> None:
        shop.run("insert into bag values (501, 'after')", "delete from bag where n = 1")
        emit(source, chunk)

    read_all = TableEncoder.read_all

    def counted(encoder: Any, out: Any, transaction: Any, source: bytes, rows: Any) -> None:
        blocks.append(len(rows))
        read_all(encoder, out, transaction, source, rows)

    monkeypatch.setattr(mariadb_source.MariadbSource, "_emit", watched)
    monkeypatch.setattr(TableEncoder, "read_all", counted)
    catch_up(log, shop.options())
    catch_up(log, shop.options())
    found = events(log, f"{shop.name}.{shop.name}.bag")
    assert (sum(blocks), max(blocks)) == (500, 7)
    assert [each.op for each in found] == ["r"] * 500 + ["c", "d"]
    assert fold_bag(found) == sorted(json.dumps(each) for each in shop.all("select * from bag"))


def test_everything_read_anew_at_the_same_place_has_names_of_its_own(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1), (2)")
    catch_up(log, shop.options())
    catch_up(log, shop.options(), resnapshot=True)
    found = events(log, f"{shop.name}.{shop.name}.t")
    assert [each.op for each in found] == ["r", "r", "t", "r", "r"]
    check_numbering(found)


def test_many_tables_share_commits(log: str, shop: Shop) -> None:
    """A commit costs a round of the broker's disk: what is read within a moment is committed together."""
    for number in range(40):
        shop.run(f"create table t{number} (id int primary key)", f"insert into t{number} values (1)")
    began_s = time.monotonic()
    capture = catch_up(log, shop.options())
    took_s = time.monotonic() - began_s
    assert capture.figures.commits <= 6 + took_s / COMMIT_AGE_S
    assert all(fold(events(log, shop.topic(f"t{number}"))) for number in range(40))


def test_status_tells_how_old_the_oldest_change_is_that_was_not_read(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)")
    catch_up(log, shop.options())
    with Client(log) as client:
        writer = Writer(client, shop.options())
        state = writer.start()
        source = open_source(shop.options(), writer)
        assert source.status().lag_ms is None
        with closing(source):
            source.start(state)
            shop.run("insert into t values (1)")
            while source.status().lag_ms != 0:
                source.read(0.2)
            shop.run("insert into t values (2)")
            while (source.status().lag_ms or 0) < 1500:
                time.sleep(0.1)
            while source.status().lag_ms != 0:
                source.read(0.2)
        writer.abandon()


def test_a_transaction_too_large_for_one_write_is_cut_and_resumed_inside(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("create table t (id int primary key)")
    options = shop.options(transactions=True)
    catch_up(log, options)
    shop.run("insert into t select seq from seq_1_to_20000")
    monkeypatch.setattr("headrace.capture.mariadb.source.READ_BYTES", 10_000)
    monkeypatch.setattr("headrace.capture.mariadb.source.READ_BYTES_MAX", 20_000)
    monkeypatch.setattr("headrace.capture.run.COMMIT_BYTES_MAX", 50_000)
    stop = threading.Event()
    capture = Capture(log, options)
    monkeypatch.setattr(stop, "is_set", lambda: capture.figures.commits > 4)
    capture.run(stop)
    assert 0 < len(committed(log, shop.topic("t"))) < 20_000
    for _ in range(2):  # a session that commits its start and nothing else must not forget the part
        short, begun = threading.Event(), Capture(log, options)
        monkeypatch.setattr(short, "is_set", lambda begun=begun: begun.figures.commits > 0)
        begun.run(short)
    catch_up(log, options)
    found = events(log, shop.topic("t"))
    assert [each.key["id"] for each in found] == [*range(1, 20_001)]
    check_numbering(found)
    told = [each.value["status"] for each in events(log, f"{shop.name}.transaction")]
    assert told == ["BEGIN", "END"]


def test_a_new_snapshot_that_is_interrupted_is_not_begun_again(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first session has committed its truncations when the database is away for a moment."""
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, shop.options())
    read, turn = mariadb_source.MariadbSource.read, itertools.count(1)

    def interrupted(source: Any, wait_s: float) -> bool:
        if next(turn) == 1:
            raise DatabaseGone("away for a moment")
        return read(source, wait_s)

    monkeypatch.setattr(mariadb_source.MariadbSource, "read", interrupted)
    catch_up(log, shop.options(), resnapshot=True)
    assert [each.op for each in events(log, shop.topic("t"))] == ["r", "t", "r"]


def test_a_transaction_becomes_visible_as_a_whole(log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is read from in between, and however old what was read is."""
    shop.run("create table t (id int primary key)")
    catch_up(log, shop.options())
    monkeypatch.setattr("headrace.capture.mariadb.source.READ_BYTES", 10_000)
    monkeypatch.setattr("headrace.capture.mariadb.source.READ_BYTES_MAX", 20_000)
    monkeypatch.setattr("headrace.capture.run.COMMIT_AGE_S", 0.0)
    shop.run("insert into t select seq from seq_1_to_3000")
    commit, reads = Capture._commit, []

    def noted(capture: Capture, source: Any, writer: Writer) -> None:
        if writer.events_pending:
            reads.append(writer.events_pending)
        commit(capture, source, writer)

    monkeypatch.setattr(Capture, "_commit", noted)
    catch_up(log, shop.options())
    assert reads == [3000]


def test_no_chunk_is_read_before_the_stream_has_passed_a_transaction_that_the_log_has_in_part(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part is not told again: a chunk that does not show the transaction yet would be older than it."""
    shop.run("create table t (id int primary key)")
    catch_up(log, shop.options())
    shop.run("insert into t select seq from seq_1_to_20000")
    (told,) = shop.all("select @@gtid_binlog_pos as gtid")
    with monkeypatch.context() as patched:
        patched.setattr("headrace.capture.mariadb.source.READ_BYTES", 10_000)
        patched.setattr("headrace.capture.mariadb.source.READ_BYTES_MAX", 20_000)
        patched.setattr("headrace.capture.run.COMMIT_BYTES_MAX", 50_000)
        stop, capture = threading.Event(), Capture(log, shop.options())
        patched.setattr(stop, "is_set", lambda: capture.figures.commits > 4)
        capture.run(stop)
    reached, read = [], mariadb_snapshot.SnapshotReader.read

    def noted(snapshots: Any, name: str, progress: Progress, stands: Any) -> Any:
        reached.append(gtid_text(stands))
        return read(snapshots, name, progress, stands)

    monkeypatch.setattr(mariadb_snapshot.SnapshotReader, "read", noted)
    with Client(log) as client:
        writer = Writer(client, shop.options())
        state = writer.start()
        assert state["position"]["index"] > 0
        with closing(open_source(shop.options(), writer)) as source:
            source.start(state)
            source.resnapshot([f"{shop.name}.t"])
            while not reached:
                source.read(0.2)
        writer.abandon()
    assert reached[0] == told["gtid"]


def test_a_reading_that_shows_less_than_the_stream_has_passed_is_not_used(log: str, shop: Shop) -> None:
    """A transaction is in the binlog, and so in the stream, a moment before readings show it; in any domain."""
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    with closing(Catalogue(shop.options())) as catalogue:
        stands = catalogue.gtids()
        reader = mariadb_snapshot.SnapshotReader(catalogue, shop.options())
        ((domain, (server, number)),) = stands.items()
        ahead = [{domain: (server, number + 1)}, stands | {domain + 1: (server, 1)}]
        assert [reader.read(f"{shop.name}.t", Progress(), each) for each in ahead] == [None, None]
        chunk = reader.read(f"{shop.name}.t", Progress(), stands)
        assert chunk is not None
        assert chunk.place == {domain: number}
        reader.close()


@pytest.mark.parametrize("alteration", ["add column c int", "drop primary key, add primary key (n)"])
def test_a_chunk_is_not_read_in_a_shape_that_its_table_does_not_have_any_more(shop: Shop, alteration: str) -> None:
    """Rows without a new column would come after changes that have it."""
    shop.run("create table t (id int primary key, n int not null)", "insert into t values (1, 1)")
    with closing(Catalogue(shop.options())) as catalogue:
        reader = mariadb_snapshot.SnapshotReader(catalogue, shop.options())
        reader.expect(catalogue.tables())
        shop.run(f"alter table t {alteration}", "update t set n = 2")
        assert reader.read(f"{shop.name}.t", Progress(), {}) is None
        chunk = reader.read(f"{shop.name}.t", Progress(), {})
        assert chunk is not None
        assert (chunk.table.columns, chunk.table.key) == catalogue.shape(f"{shop.name}.t", None)
        reader.close()


class SharedStatus:
    """A server whose status another session has just asked for: the first answer is that one's place."""

    def __init__(self, *positions: int) -> None:
        self.positions = iter(positions)

    def cursor(self) -> Any:
        return nullcontext(self)

    def execute(self, query: str) -> None:
        pass

    def fetchall(self) -> list[tuple[bytes, bytes]]:
        position = b"%d" % next(self.positions)
        return [(b"Binlog_snapshot_file", b"binlog.000001"), (b"Binlog_snapshot_position", position)]


def test_the_place_of_a_reading_is_what_the_server_shows_several_times() -> None:
    connection: Any = SharedStatus(900, 500, 500, 500, 500, 500)
    assert mariadb_snapshot._begin_reading(connection) == ("binlog.000001", 500)


def test_a_place_is_reached_when_every_domain_has_reached_it() -> None:
    wanted = {0: 5, 7: 2}
    assert is_reached({0: (1, 5), 7: (1, 2), 9: (1, 1)}, wanted)
    assert not is_reached({0: (1, 5), 7: (1, 1)}, wanted)
    assert not is_reached({0: (1, 9)}, wanted)


def test_a_row_is_not_read_older_than_the_stream_while_a_file_of_the_binlog_begins(log: str, shop: Shop) -> None:
    """A commit that is held between binlog and table, and a new file meanwhile: readings say too late a place."""
    shop.run("create table t (id int primary key, n int)", "insert into t values (1, 0)")
    held = {"timeout": "3000", "wait_no_slave": "on", "wait_point": "'AFTER_SYNC'", "enabled": "on"}
    shop.run(*(f"set global rpl_semi_sync_master_{name} = {value}" for name, value in held.items()))
    sessions = [Shop(shop.server, shop.name) for _ in range(2)]
    work = zip(sessions, ("update t set n = 1", "flush binary logs"), strict=True)
    threads = [threading.Thread(target=session.run, args=(statement,)) for session, statement in work]
    try:
        for each in threads:
            each.start()
            time.sleep(0.5)
        assert shop.all("select n from t") == [{"n": 0}]
        with closing(Catalogue(shop.options())) as catalogue:
            reader = mariadb_snapshot.SnapshotReader(catalogue, shop.options())
            assert reader.read(f"{shop.name}.t", Progress(), {}) is None
            reader.close()
    finally:
        for thread, session in zip(threads, sessions, strict=True):
            thread.join()
            session.session.close()
        shop.run("set global rpl_semi_sync_master_enabled = off")
    catch_up(log, shop.options())
    shop.check(log, "t")
