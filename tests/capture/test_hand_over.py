"""Where a chunk of a snapshot meets the stream: no row is told that is older than what was told of it before.

A chunk shows the table at one place of the stream, and is told at one place of the topic. A change that commits between
the two must come after the chunk's row, or the row must not come at all. Every test here makes such a change at each
step of the hand-over of its source, and looks at every event: ``n`` of a row only grows, so a row that is told with a
smaller ``n`` than before was too old, also where a later event hides it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.capture.mariadb import source as mariadb_source
from headrace.capture.mariadb.binlog import BinlogReader
from headrace.capture.mariadb.events import Xid
from headrace.capture.mariadb.snapshot import SnapshotReader
from headrace.capture.mariadb.source import MariadbSource
from headrace.capture.postgres.snapshot import Snapshots
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.postgres.triggers import TriggerSource
from headrace.capture.sqlite.source import SqliteSource
from tests.capture.conftest import Database, File
from tests.capture.shop import Shop
from tests.capture.test_postgres import options
from tests.capture.world import Event, catch_up, events, fold, fold_bag

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROWS = 6
CHUNK_ROWS = 2
CHANGES_MAX = 20
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
