"""What PostgreSQL's snapshots read while the stream goes on: told once, in its place, and within bounds of memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from headrace.capture import Capture
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.setup import TableInfo
from headrace.capture.postgres.snapshot import Chunk, Lines, SeenTransactions, Snapshots
from headrace.client import Admin
from tests.capture.conftest import Database
from tests.capture.test_postgres import AfterSome, Died, options
from tests.capture.world import catch_up, events, fold, fold_bag

pytestmark = [pytest.mark.servers, pytest.mark.slow]


class Disturbed(threading.Event):
    """Does something whenever it is asked: capture asks once before a session and then before every read."""

    def __init__(self, disturb: Callable[[int], None]) -> None:
        super().__init__()
        self.asked = 0
        self.disturb = disturb

    def is_set(self) -> bool:
        self.asked += 1
        self.disturb(self.asked)
        return False


def bag_rows(database: Database) -> list[str]:
    return sorted(json.dumps({"a": row[0]}) for row in database.all("select a from bag"))


def test_a_row_that_is_seen_before_its_commit_is_written_is_told_once(log: str, database: Database) -> None:
    """Without a key the rows are read in one piece, and a commit that does not wait is seen before it is written."""
    database.run("create table bag (a int)", "insert into bag values (0)", "set synchronous_commit = off")
    rows = Disturbed(lambda asked: database.run(f"insert into bag values ({asked})"))
    Capture(log, options(database)).run(rows, until_current=True)
    database.run("set synchronous_commit = on", "insert into bag values (-1)")
    catch_up(log, options(database))
    assert fold_bag(events(log, f"{database.name}.public.bag")) == bag_rows(database)


def test_a_truncation_that_the_snapshot_of_a_table_without_a_key_has_seen_does_not_empty_it_again(
    log: str, database: Database
) -> None:
    """It stands in the server's log behind the first watermark, and passes after the rows have been read."""
    database.run("create table bag (a int)", "insert into bag values (1), (2)")

    def truncate(asked: int) -> None:
        if asked == 2:
            database.run("truncate bag", "insert into bag values (3)")

    Capture(log, options(database)).run(Disturbed(truncate), until_current=True)
    database.run("insert into bag values (4)")
    catch_up(log, options(database))
    assert fold_bag(events(log, f"{database.name}.public.bag")) == bag_rows(database) == ['{"a": 3}', '{"a": 4}']
    database.run("truncate bag")
    catch_up(log, options(database))
    assert fold_bag(events(log, f"{database.name}.public.bag")) == []


def test_rows_of_a_chunk_that_are_truncated_before_its_watermark_are_not_told(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1), (2), (3)")
    watermark = Snapshots._watermark

    def truncating(self: Snapshots) -> int:
        if self._number == 1:  # the first chunk has been read, and its watermark is written now
            database.run("truncate t", "insert into t values (100)")
        return watermark(self)

    monkeypatch.setattr(Snapshots, "_watermark", truncating)
    catch_up(log, options(database, chunk_rows=2))
    assert list(fold(events(log, f"{database.name}.public.t"))) == ['{"id": 100}']


def test_rows_of_a_chunk_that_change_before_its_watermark_are_told_in_their_newest_form(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk has been read and waits; its row is older than what has passed of it by the time it is written."""
    database.run("create table t (id int primary key, n int)", "insert into t select i, 0 from generate_series(1, 8) i")
    watermark = Snapshots._watermark

    def changing(self: Snapshots) -> int:
        if self.progress["public.t"].rows == 0 and self._number == 1:
            database.run("update t set n = 1 where id = 1", "delete from t where id = 2")
            database.run("update t set id = 20 where id = 3", "insert into t values (2, 5), (40, 0)")
            database.run("delete from t where id = 4")
        return watermark(self)

    monkeypatch.setattr(Snapshots, "_watermark", changing)
    catch_up(log, options(database, chunk_rows=4))
    found = events(log, f"{database.name}.public.t")
    rows = {json.dumps({"id": row[0]}): {"id": row[0], "n": row[1]} for row in database.all("select * from t")}
    assert fold(found) == rows
    read = [each.key["id"] for each in found if each.op == "r"]
    assert not {1, 2, 3, 4} & set(read), "the changes are newer than these rows"


def test_small_tables_wait_for_one_watermark_and_changes_before_it_are_newer_than_their_rows(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        database.run(
            f"create table t{number} (id int primary key, n int)", f"insert into t{number} values (1, 0), (2, 0)"
        )
    watermark, create_topics = Snapshots._watermark, Admin.create_topics
    written: list[int] = []
    requests: list[Sequence[str]] = []

    def changing(self: Snapshots) -> int:
        written.append(len(self.chunks))
        if self.chunks and max(written[:-1], default=0) == 0:
            database.run("update t1 set n = 1 where id = 1", "delete from t5 where id = 2", "truncate t11")
            database.run("update t7 set id = 3 where id = 1", "insert into t9 values (3, 0)")
        return watermark(self)

    def counted(self: Admin, names: Sequence[str], **given: Any) -> None:
        requests.append(names)
        create_topics(self, names, **given)

    monkeypatch.setattr(Snapshots, "_watermark", changing)
    monkeypatch.setattr(Admin, "create_topics", counted)
    catch_up(log, options(database))
    assert max(written) == 12
    assert len(written) <= 3
    assert max(map(len, requests)) == 7, "topics are made together, but for those of the five that changed"
    for number in range(12):
        rows = {
            json.dumps({"id": row[0]}): {"id": row[0], "n": row[1]} for row in database.all(f"select * from t{number}")
        }
        assert fold(events(log, f"{database.name}.public.t{number}")) == rows


def test_a_change_that_passed_before_a_chunk_could_see_it_is_not_overwritten_by_the_chunk(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is in the stream before other sessions see it. Here the chunk's snapshot is older than the stream."""
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 0), (2, 0), (3, 0)")
    with pytest.raises(Died):
        Capture(log, options(database)).run(AfterSome(2, Died()))
    old = SeenTransactions(str(database.all("select pg_current_snapshot()::text")[0][0]))
    before = [[b"1", b"0"], [b"2", b"0"], [b"3", b"0"]]
    database.run("update t set n = 1 where id = 1", "delete from t where id = 2", "update t set id = 9 where id = 3")
    read_chunk, calls = Snapshots._read_chunk, []

    def late(self: Snapshots, table: TableInfo, columns: list[RelationColumn], seen: SeenTransactions) -> Chunk | None:
        calls.append(seen)
        lines = Lines(b"".join(b"\t".join(row) + b"\n" for row in before), len(before), 4)
        monkeypatch.setattr(Snapshots, "_copied", lambda *_: (each for each in [lines]))
        return read_chunk(self, table, columns, old)

    monkeypatch.setattr(Snapshots, "_forget_seen", lambda self, seen: None)
    monkeypatch.setattr(Snapshots, "_read_chunk", late)
    catch_up(log, options(database))
    assert calls
    rows = {json.dumps({"id": row[0]}): {"id": row[0], "n": row[1]} for row in database.all("select * from t")}
    assert fold(events(log, f"{database.name}.public.t")) == rows


def test_a_large_value_of_a_row_that_changes_while_its_chunk_waits_is_not_lost(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change takes the place of the row, and PostgreSQL does not send with it what it did not touch."""
    database.run("create table t (id int primary key, n int, body text)")
    database.run(
        "insert into t select i, 0, string_agg(md5(j::text), '') from generate_series(1, 4) i, "
        "generate_series(1, 400) j group by i"
    )
    watermark = Snapshots._watermark

    def changing(self: Snapshots) -> int:
        database.run("update t set n = n + 1")
        return watermark(self)

    monkeypatch.setattr(Snapshots, "_watermark", changing)
    catch_up(log, options(database, chunk_rows=2, remembered_bytes_max=0))
    rows = {
        json.dumps({"id": row[0]}): {"id": row[0], "n": row[1], "body": row[2]}
        for row in database.all("select * from t")
    }
    assert fold(events(log, f"{database.name}.public.t")) == rows


def test_a_large_value_is_not_lost_where_a_change_passes_before_a_chunk_can_see_it(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is in the stream a moment before other sessions see it; here the first chunk sees none of them."""
    database.run("create table t (id int primary key, n int, body text)")
    database.run(
        "insert into t select i, 0, string_agg(md5(j::text), '') from generate_series(1, 4) i, "
        "generate_series(1, 400) j group by i"
    )
    with pytest.raises(Died):
        Capture(log, options(database)).run(AfterSome(2, Died()))
    database.run("update t set n = 1 where id < 3")
    forget, calls = Snapshots._forget_seen, []

    def late(self: Snapshots, seen: SeenTransactions) -> None:
        calls.append(seen)
        if len(calls) > 1:
            forget(self, seen)

    monkeypatch.setattr(Snapshots, "_forget_seen", late)
    catch_up(log, options(database, remembered_bytes_max=0))
    rows = {
        json.dumps({"id": row[0]}): {"id": row[0], "n": row[1], "body": row[2]}
        for row in database.all("select * from t")
    }
    assert fold(events(log, f"{database.name}.public.t")) == rows


def test_what_is_noted_of_changes_while_a_snapshot_waits_is_bounded(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture had made its slot and ended before it read anything: all that came since passes before it reads."""
    database.run("create table t (id int primary key, n int)", "create table bag (a int)")
    with pytest.raises(Died):
        Capture(log, options(database)).run(AfterSome(2, Died()))
    database.run("insert into t select i, 0 from generate_series(1, 300) i")
    for number in range(30):
        database.run(f"update t set n = 1 where id = {number}", f"insert into bag values ({number})")
    noted: list[int] = []
    changed = Snapshots.changed

    def measured(self: Snapshots, table: str, key: bytes | None, xid: int, commit_lsn: int) -> bool:
        wanted = changed(self, table, key, xid, commit_lsn)
        noted.append(len(self._touched.get(table, ())) + len(self._touched_without_key.get(table, ())))
        return wanted

    monkeypatch.setattr(Snapshots, "changed", measured)
    monkeypatch.setattr("headrace.capture.postgres.snapshot.TOUCHED_MAX", 10)
    catch_up(log, options(database))
    assert 5 < max(noted) <= 10
    rows = {json.dumps({"id": row[0]}): {"id": row[0], "n": row[1]} for row in database.all("select * from t")}
    assert fold(events(log, f"{database.name}.public.t")) == rows
    assert fold_bag(events(log, f"{database.name}.public.bag")) == bag_rows(database)


def test_a_chunk_of_a_snapshot_is_bounded_by_its_bytes(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows grow suddenly: those of the second half are a hundred times as large as the others."""
    database.run("create table t (id int primary key, body text)")
    body = "repeat('x', case when i > 100 then 1000 else 10 end)"
    database.run(f"insert into t select i, {body} from generate_series(1, 200) i")
    monkeypatch.setattr("headrace.capture.postgres.snapshot.CHUNK_BYTES_MAX", 5_000)
    monkeypatch.setattr("headrace.capture.postgres.copying.BLOCK_BYTES", 500)
    chunks: list[Chunk] = []
    read_chunk = Snapshots._read_chunk

    def noted(self: Snapshots, table: TableInfo, columns: list[RelationColumn], seen: SeenTransactions) -> Chunk:
        chunk = read_chunk(self, table, columns, seen)
        assert chunk is not None
        chunks.append(chunk)
        return chunk

    monkeypatch.setattr(Snapshots, "_read_chunk", noted)
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.t")
    assert [each.key["id"] for each in found] == [*range(1, 201)]
    sizes = [sum(len(value or b"") for column in each.values for value in column) for each in chunks]
    assert max(sizes) < 5_000 + 500 + 1_010
    assert max(each.rows_read for each in chunks) > 50, "small rows are read many at a time"


def test_a_table_dropped_in_mid_snapshot_ends_its_snapshot_and_nothing_else(log: str, database: Database) -> None:
    database.run("create table a (id int primary key)", "insert into a select generate_series(1, 50)")
    database.run("create table b (id int primary key)", "insert into b values (1)")

    def drop(asked: int) -> None:
        if asked == 2:
            database.run("drop table a")

    Capture(log, options(database, chunk_rows=1)).run(Disturbed(drop), until_current=True)
    assert len(events(log, f"{database.name}.public.a")) < 50
    assert [each.op for each in events(log, f"{database.name}.public.b")] == ["r"]
    database.run("create table a (id int primary key)", "insert into a values (7)")
    catch_up(log, options(database))
    assert [each.key for each in events(log, f"{database.name}.public.a")][-1] == {"id": 7}, "another table, read again"


def test_a_table_that_is_written_anew_while_a_chunk_is_read_is_not_taken_for_empty(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ALTER that rewrites a table makes all of its rows younger than any snapshot that was taken before."""
    database.run(
        "create table t (id int primary key, n int)", "insert into t select i, i from generate_series(1, 20) i"
    )
    database.run("set lock_timeout = '100ms'")
    read_chunk = Snapshots._read_chunk
    refused: list[bool] = []

    def altered(self: Snapshots, table: TableInfo, columns: list[RelationColumn], seen: SeenTransactions) -> Chunk:
        if not refused:
            try:
                database.run("alter table t alter n type bigint using n + 1")
            except psycopg.errors.LockNotAvailable:
                refused.append(True)
        return read_chunk(self, table, columns, seen)

    monkeypatch.setattr(Snapshots, "_read_chunk", altered)
    catch_up(log, options(database))
    assert len(fold(events(log, f"{database.name}.public.t"))) == 20
    assert refused == [True], "the chunk's lock was there before its snapshot"
