"""What can go wrong while rows of a table are read: the connection, the table, the reader, and how long it takes."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from headrace.capture import Capture
from headrace.capture.postgres import copying
from headrace.capture.postgres.copying import Lines
from headrace.capture.postgres.replication import ReplicationStream
from headrace.capture.postgres.setup import connect
from headrace.capture.postgres.snapshot import Snapshots
from headrace.capture.postgres.triggers import TriggerSource
from headrace.capture.writer import Writer
from headrace.client import TransactionLost
from headrace.client.transactions import ProducerIdentity
from headrace.errors import ErrorCode, HeadraceError
from tests.capture.conftest import Database
from tests.capture.test_postgres import options
from tests.capture.world import catch_up, check_numbering, events, fold

pytestmark = [pytest.mark.servers, pytest.mark.slow]

KEYED = "create table t (id int primary key, v text)"
WITHOUT_KEY = "create table t (id int, v text)"
ROWS = "insert into t select i, repeat('x', 1000) from generate_series(1, 3000) i"
LARGE_ROWS = "insert into t select i, repeat('x', 100000) from generate_series(1, 400) i"
"""More than the buffers between server and client hold: the server is in the middle of them."""
ODD = '\\"é'
OUR_SESSION = "application_name like 'headrace-capture%' and backend_type = 'client backend' and state = 'active'"


def interrupting(database: Database, monkeypatch: pytest.MonkeyPatch, statements: dict[int, str]) -> list[int]:
    """In the middle of a COPY, at the block of this number in all, something happens; gives the blocks that came."""
    blocks: list[int] = []
    made = Lines.columns

    def columns(self: Lines, count: int) -> Any:
        blocks.append(self.count)
        if statement := statements.get(len(blocks)):
            database.run(statement)
        return made(self, count)

    monkeypatch.setattr(Lines, "columns", columns)
    return blocks


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
@pytest.mark.parametrize("table", [KEYED, WITHOUT_KEY], ids=["keyed", "without a key"])
def test_a_connection_that_is_lost_in_the_middle_of_a_copy_loses_and_repeats_nothing(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, how: str, table: str, triggers: bool
) -> None:
    database.run(table, LARGE_ROWS)
    ended = f"select {how}(pid) from pg_stat_activity where {OUR_SESSION}"
    blocks = interrupting(database, monkeypatch, {3: ended, 230: ended})
    said: list[str] = []
    catch_up(log, options(database, triggers=triggers), said.append)
    assert len(blocks) > 230
    assert len([each for each in said if "trying again" in each]) == 2
    found = events(log, f"{database.name}.public.t")
    assert sorted(each.value["after"]["id"] for each in found) == [*range(1, 401)]
    check_numbering(found)


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("table", [KEYED, WITHOUT_KEY], ids=["keyed", "without a key"])
def test_an_error_in_the_middle_of_a_copy_is_the_one_that_is_reported(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, table: str, triggers: bool
) -> None:
    """The connection has rows on their way, and refuses everything else until they have come: that is no reason."""

    class Refused(HeadraceError):
        pass

    def refused(self: Writer, *given: Any) -> None:
        raise Refused("the broker takes no more")

    database.run(table, ROWS)
    monkeypatch.setattr(Writer, "add_many", refused)
    said: list[str] = []
    with pytest.raises(Refused):
        catch_up(log, options(database, triggers=triggers), said.append)
    assert not [each for each in said if "trying again" in each]


def test_an_error_that_passes_in_the_middle_of_a_copy_is_tried_again(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run(WITHOUT_KEY, ROWS)
    add, asked = Writer.add_many, [0]

    def lost(self: Writer, *given: Any) -> None:
        asked[0] += 1
        if asked[0] == 3:
            identity = ProducerIdentity("t", 1, 1)
            raise TransactionLost(ErrorCode.PRODUCER_FENCED, identity, "another one has the name")
        add(self, *given)

    monkeypatch.setattr(Writer, "add_many", lost)
    said: list[str] = []
    catch_up(log, options(database), said.append)
    assert [each for each in said if "another one has the name" in each and "trying again" in each]
    assert len(events(log, f"{database.name}.public.t")) == 3000


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_a_schema_that_is_dropped_in_mid_snapshot_ends_its_tables_and_nothing_else(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, triggers: bool
) -> None:
    database.run("create schema gone", "create table gone.t (id int primary key)")
    database.run("create table z (id int primary key)")
    database.run("insert into gone.t select generate_series(1, 10)", "insert into z values (1)")
    watermark, take = Snapshots._watermark, TriggerSource._take_chunk
    dropped: list[bool] = []

    def drop() -> None:
        if not dropped:
            database.run("drop schema gone cascade")
            dropped.append(True)

    def marking(self: Snapshots) -> int:
        number = watermark(self)
        drop()
        return number

    def taking(self: TriggerSource, table: Any) -> None:
        take(self, table)
        assert self._reader is not None
        self._reader.execute("COMMIT")  # or the table would be locked
        drop()

    monkeypatch.setattr(Snapshots, "_watermark", marking)
    monkeypatch.setattr(TriggerSource, "_take_chunk", taking)
    catch_up(log, options(database, triggers=triggers, tables=("*.*",), chunk_rows=3))
    database.run("insert into z values (2)")
    catch_up(log, options(database, triggers=triggers, tables=("*.*",), chunk_rows=3))
    assert fold(events(log, f"{database.name}.gone.t")) == {}
    assert len(fold(events(log, f"{database.name}.public.z"))) == 2


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_rows_larger_than_a_block_and_than_a_chunk_are_read_one_by_one(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, triggers: bool
) -> None:
    for name in ("snapshot", "triggers"):
        monkeypatch.setattr(f"headrace.capture.postgres.{name}.CHUNK_BYTES_MAX", 100_000)
    database.run(KEYED, f"insert into t select i, repeat(chr(1) || '{ODD}', 50000) from generate_series(1, 7) i")
    catch_up(log, options(database, triggers=triggers))
    found = events(log, f"{database.name}.public.t")
    assert [each.key["id"] for each in found] == [*range(1, 8)]
    assert {each.value["after"]["v"] for each in found} == {f"\x01{ODD}" * 50_000}


def test_the_server_hears_of_capture_while_a_chunk_is_read(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of large rows may take longer than the server waits (wal_sender_timeout). It would end the stream, and
    the same chunk would be read again, for ever."""
    database.run(KEYED, "insert into t select i, repeat('x', 1000) from generate_series(1, 400) i")
    reading: list[bool] = []
    heard: list[bool] = []
    read, send = Snapshots._read_chunk, ReplicationStream.send_status

    def noted(self: Snapshots, *given: Any) -> Any:
        reading.append(True)
        try:
            return read(self, *given)
        finally:
            reading.clear()

    def sent(self: ReplicationStream) -> None:
        heard.extend(reading)
        send(self)

    monkeypatch.setattr(Snapshots, "_read_chunk", noted)
    monkeypatch.setattr(ReplicationStream, "send_status", sent)
    monkeypatch.setattr("headrace.capture.postgres.replication.STATUS_INTERVAL_S", 0.0)
    catch_up(log, options(database))
    assert len(heard) >= 5


def test_the_server_hears_of_capture_while_the_first_row_is_looked_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "WAIT_S", 0.01)
    heard: list[bool] = []
    with closing(connect(options(database))) as connection:
        query = "COPY (SELECT 1 FROM pg_sleep(0.5)) TO STDOUT"
        found = list(copying._copied(connection, query, lambda: heard.append(True)))
    assert [each.data for each in found] == [b"1\n"]
    assert len(heard) >= 5


def test_no_limit_of_time_ends_a_stream_or_a_snapshot(log: str, database: Database) -> None:
    """A large transaction may take longer to be sent than a database lets transactions of its applications take."""
    limits = ("transaction_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout")
    for limit in limits:
        database.run(f"alter database {database.name} set {limit} = '50ms'")
    with closing(ReplicationStream(options(database))) as stream, closing(connect(options(database))) as connection:
        for limit in limits:
            assert stream._asked(f"show {limit}") == [b"0"]
            assert connection.execute(f"show {limit}").fetchone() == ("0",)


def test_a_stop_while_a_chunk_waits_leaves_it_to_the_next_run(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run(KEYED, ROWS)
    stop = threading.Event()
    watermark = Snapshots._watermark

    def stopping(self: Snapshots) -> int:
        if self.chunks:
            stop.set()
        return watermark(self)

    monkeypatch.setattr(Snapshots, "_watermark", stopping)
    Capture(log, options(database)).run(stop)
    monkeypatch.undo()
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.t")
    assert [each.key["id"] for each in found] == [*range(1, 3001)]
    check_numbering(found)
