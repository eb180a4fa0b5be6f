"""Where a chunk of a snapshot meets the stream: no row is written that is older than what was written before it.

A chunk shows the table at one place of the stream, and is written at one place of the topic. A change that commits
between the two must come after the chunk's row, or the row must not come at all. Every test here makes such a change at
each step of the hand-over of its source, and looks at every event: ``n`` of a row only grows, so a row that comes with
a smaller ``n`` than before was too old, also where a later event hides it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from headrace.capture import Capture
from headrace.capture.mariadb import source as mariadb_source
from headrace.capture.mariadb.binlog import BinlogReader
from headrace.capture.mariadb.events import Xid
from headrace.capture.mariadb.snapshot import SnapshotReader
from headrace.capture.mariadb.source import MariadbSource
from headrace.capture.postgres.snapshot import Snapshots
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.postgres.triggers import TriggerSource
from headrace.capture.signals import signal_topic, snapshot_signal
from headrace.capture.sqlite.source import SqliteSource
from headrace.client import Client, Producer
from headrace.client.positioned import ensure_topic
from tests.capture.conftest import Database, File
from tests.capture.shop import Shop
from tests.capture.test_postgres import Died, options
from tests.capture.test_postgres_snapshot import Disturbed
from tests.capture.world import Event, catch_up, events, fold, fold_bag
from tests.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROWS = 6
CHUNK_ROWS = 2
CHANGES_MAX = 20
SEEN_S = 3.0
"""How long capture may read rows while a change of them is invisible."""
CREATE = ("create table t (id int primary key, n int)", "create table bag (id int, n int)")
CHANGE = ("begin", "update t set n = n + 1", "update bag set n = n + 1", "commit")
"""Every row, those that were read and those that are still to be read, in one transaction: where the stream stands at
the place of a chunk, the next transaction is one that concerns it."""


def filled(table: str) -> list[str]:
    return [f"insert into {table} values ({number}, 0)" for number in range(ROWS)]


class Changes:
    """Changes all rows whenever it is called, some times."""

    def __init__(self, run: Callable[..., None], then: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._run = run
        self._then = then

    def __call__(self) -> None:
        if self.count < CHANGES_MAX:
            self.count += 1
            self._run(*CHANGE)
            self._then()


@contextmanager
def changing(monkeypatch: pytest.MonkeyPatch, of: type, name: str, change: Changes, when: str) -> Iterator[None]:
    """While a method of a source is called, a change comes just before it or just after it."""
    method = getattr(of, name)

    def changed(self: Any, *given: Any, **more: Any) -> Any:
        if when == "before":
            change()
        result = method(self, *given, **more)
        if when == "after":
            change()
        return result

    with monkeypatch.context() as patched:
        patched.setattr(of, name, changed)
        yield


def check_never_older(found: list[Event]) -> None:
    told: Counter[int] = Counter()
    for each in found:
        row = each.value["after"]
        assert row["n"] >= told[row["id"]], f"{each.op} of {row} comes after n = {told[row['id']]} was told"
        told[row["id"]] = row["n"]


def check(log: str, prefix: str, t: list[dict[str, Any]], bag: list[dict[str, Any]], change: Changes) -> None:
    assert change.count > 1, "the step was not passed, so nothing was tested"
    found, found_bag = events(log, f"{prefix}.t"), events(log, f"{prefix}.bag")
    check_never_older(found)
    check_never_older(found_bag)
    assert fold(found) == {json.dumps({"id": each["id"]}): each for each in t}
    assert fold_bag(found_bag) == sorted(map(json.dumps, bag))


def rows(database: Database, table: str) -> list[dict[str, Any]]:
    return [{"id": row[0], "n": row[1]} for row in database.all(f"select id, n from {table}")]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("of", "step"),
    [
        (Snapshots, "_read_chunk"),
        (Snapshots, "_read_whole"),
        (Snapshots, "_copied"),
        (Snapshots, "_watermark"),
        (Snapshots, "passed"),
        (PostgresSource, "_emit_chunks"),
        (PostgresSource, "_emit_whole"),
    ],
)
def test_postgresql(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, of: type, step: str, when: str
) -> None:
    database.run(*CREATE, "alter table bag replica identity full", *filled("t"), *filled("bag"))
    change = Changes(database.run)
    with changing(monkeypatch, of, step, change, when):
        catch_up(log, options(database, chunk_rows=CHUNK_ROWS))
    change()
    catch_up(log, options(database))
    check(log, f"{database.name}.public", rows(database, "t"), rows(database, "bag"), change)


class AfterEvent(threading.Event):
    """A capture that asks for it dies as soon as a topic has an event of some kind."""

    def __init__(self, log: str, topic: str, op: str) -> None:
        super().__init__()
        self._look = lambda: any(each.op == op for each in events(log, topic))

    def is_set(self) -> bool:
        if self._look():
            raise Died
        return False


@contextmanager
def an_invisible_commit(database: Database, statement: str) -> Iterator[Callable[[], None]]:
    """A transaction that is in the server's log and that nobody sees: it waits for a standby that does not answer.
    Gives what ends the waiting. Capture itself does not wait for the standby."""
    database.run(f"alter database {database.name} set synchronous_commit = local", "set synchronous_commit = local")
    database.run("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
    probe, session = database.another(), database.another()
    for each in (probe, session):
        each.autocommit = True
        each.execute("set synchronous_commit = on")
    ended = threading.Event()

    def commit_until_one_waits() -> None:
        """The setting takes effect some time after the reload. A commit before that waits for nobody."""
        while not ended.is_set():
            probe.execute("select txid_current()")

    threads = [
        threading.Thread(target=commit_until_one_waits),
        threading.Thread(target=session.execute, args=(statement,)),
    ]

    def end() -> None:
        ended.set()
        database.run("alter system reset synchronous_standby_names", "select pg_reload_conf()")
        for thread in threads:
            if thread.ident is not None:
                thread.join()

    def waiting() -> int:
        return len(database.all("select 1 from pg_stat_activity where wait_event = 'SyncRep'"))

    try:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            eventually(lambda number=number: waiting() == number)  # type: ignore[misc]
        yield end
    finally:
        end()
        probe.close()
        session.close()


def test_postgresql_without_a_key_and_with_a_change_that_nobody_sees_yet(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change was left out because the rows would show it; so they are not read before they do."""
    database.run(CREATE[1], "alter table bag replica identity full", *filled("bag"))
    watermark = Snapshots._watermark
    with ExitStack() as stack:
        ends: list[Callable[[], None]] = []

        def after_a_change(self: Snapshots) -> int:
            if not ends:
                ends.append(stack.enter_context(an_invisible_commit(database, "insert into bag values (7, 7)")))
            return watermark(self)

        monkeypatch.setattr(Snapshots, "_watermark", after_a_change)
        database.run(f"alter database {database.name} set synchronous_commit = local")
        end_at = Disturbed(lambda asked: ends[0]() if asked == 8 else None)
        Capture(log, options(database)).run(end_at, until_current=True)
    catch_up(log, options(database))
    assert ends
    told = fold_bag(events(log, f"{database.name}.public.bag"))
    assert told == sorted(map(json.dumps, rows(database, "bag")))


@pytest.mark.parametrize("again", ["after a restart", "as a signal asked"])
def test_postgresql_with_a_change_that_passed_and_that_nobody_sees_yet(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The change is in the topic. A chunk that is read after it still shows the row from before."""
    monkeypatch.setattr("headrace.capture.run.COMMIT_AGE_S", 0.0)
    many, topic = 100, f"{database.name}.public.t"
    database.run(CREATE[0], f"insert into t select i, 0 from generate_series(1, {many}) i")
    capture = Capture(log, options(database, chunk_rows=1))

    def die(asked: int) -> None:
        if any(each.rows > 2 for each in capture.snapshots().values()):
            raise Died

    if again == "after a restart":
        with pytest.raises(Died):
            capture.run(Disturbed(die))
    else:
        catch_up(log, options(database))
    with an_invisible_commit(database, f"update t set n = 1 where id = {many}") as end:
        with pytest.raises(Died):
            Capture(log, options(database, chunk_rows=1)).run(AfterEvent(log, topic, "u"))
        if again == "as a signal asked":
            with Client(log) as client, Producer(client) as producer:
                ensure_topic(client, signal_topic(database.name), partitions=1, config={})
                signal = snapshot_signal(["public.t"])
                producer.send(signal_topic(database.name), signal, key=database.name.encode(), partition=0)
        following = threading.Thread(target=catch_up, args=(log, options(database, chunk_rows=50)))
        following.start()
        following.join(SEEN_S)
        end()
        following.join()
    check_never_older([each for each in events(log, topic) if each.op != "t"])
    assert fold(events(log, topic)) == {json.dumps({"id": each["id"]}): each for each in rows(database, "t")}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["_open_batch", "_take_chunk", "_close_batch"])
def test_postgresql_by_triggers(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    database.run(*CREATE, *filled("t"), *filled("bag"))
    change = Changes(database.run)
    with changing(monkeypatch, TriggerSource, step, change, when):
        catch_up(log, options(database, triggers=True, chunk_rows=CHUNK_ROWS))
    change()
    catch_up(log, options(database, triggers=True))
    check(log, f"{database.name}.public", rows(database, "t"), rows(database, "bag"), change)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["_take", "_take_changes", "_take_chunk"])
def test_sqlite(log: str, file: File, monkeypatch: pytest.MonkeyPatch, step: str, when: str) -> None:
    """In WAL mode others write while capture reads."""
    file.run("pragma journal_mode = wal", *CREATE, *filled("t"), *filled("bag"))
    change = Changes(file.run)
    with changing(monkeypatch, SqliteSource, step, change, when):
        catch_up(log, file.options(chunk_rows=CHUNK_ROWS))
    change()
    catch_up(log, file.options())
    check(log, f"{file.name}.main", file.all("select * from t"), file.all("select * from bag"), change)


class Streams:
    """The readers of the binlog that capture opens."""

    def __init__(self) -> None:
        self.opened: list[BinlogReader] = []

    def open(self, *given: Any) -> BinlogReader:
        self.opened.append(BinlogReader(*given))
        return self.opened[-1]

    def wait_for_transaction(self) -> None:
        """Until the stream holds a whole transaction that capture has not taken."""
        reader = self.opened[-1]
        while not any(isinstance(getattr(each, "what", None), Xid) for each in list(reader._events.queue)):
            time.sleep(0.01)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("of", "step"), [(SnapshotReader, "read"), (MariadbSource, "_snapshot_step"), (MariadbSource, "_emit")]
)
def test_mariadb(log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch, of: type, step: str, when: str) -> None:
    """The stream has the change before capture looks at it the next time."""
    shop.run(*CREATE, *filled("t"), *filled("bag"))
    streams = Streams()
    monkeypatch.setattr(mariadb_source, "BinlogReader", streams.open)
    change = Changes(shop.run, streams.wait_for_transaction)
    with changing(monkeypatch, of, step, change, when):
        catch_up(log, shop.options(chunk_rows=CHUNK_ROWS))
    shop.run(*CHANGE)
    catch_up(log, shop.options())
    check(log, f"{shop.name}.{shop.name}", shop.all("select * from t"), shop.all("select * from bag"), change)
