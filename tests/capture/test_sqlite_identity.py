"""Whether a SQLite file and its tables are those that the log knows: replaced ones are noticed, and read again."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.capture import Capture, CaptureOptions
from headrace.capture.source import PositionLost, TableReplaced
from headrace.errors import UsageError
from tests.capture.conftest import File
from tests.capture.world import catch_up, check_numbering, events, fold, fold_bag

pytestmark = pytest.mark.slow


def said_by(log: str, options: CaptureOptions, *, resnapshot: bool = False) -> list[str]:
    """Catch up; what capture said meanwhile."""
    said: list[str] = []
    Capture(log, options, say=said.append).run(threading.Event(), until_current=True, resnapshot=resnapshot)
    return said


def assert_same(log: str, file: File, table: str = "t") -> None:
    found = events(log, f"{file.name}.main.{table}")
    assert fold(found) == {json.dumps({"id": each["id"]}): each for each in file.all(f"select * from {table}")}
    check_numbering(found)


class UntilSaid(threading.Event):
    """Ends a capture when something holds, or after ten seconds."""

    def __init__(self, is_there: Any, *steps: Any) -> None:
        super().__init__()
        self._is_there = is_there
        self._steps = list(steps)
        self._deadline_s = time.monotonic() + 10

    def is_set(self) -> bool:
        if self._steps and self._steps[0]():
            self._steps.pop(0)
        return bool(self._is_there()) or time.monotonic() > self._deadline_s


# ---- the file -------------------------------------------------------------------------------------------------------


def test_a_restored_backup_is_refused_even_when_it_has_made_more_changes_than_the_log_knows(
    log: str, file: File
) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    catch_up(log, file.options())
    file.run("insert into t values (2)")
    file.session.close()
    backup = file.path.with_name("backup.db")
    shutil.copy(file.path, backup)
    file.session = sqlite3.connect(file.path, isolation_level=None)
    file.run("insert into t values (3)")
    catch_up(log, file.options())
    file.session.close()
    shutil.copy(backup, file.path)
    file.session = sqlite3.connect(file.path, isolation_level=None)
    file.session.row_factory = sqlite3.Row
    file.run("insert into t values (4)", "insert into t values (5)", "insert into t values (6)")
    with pytest.raises(PositionLost, match=r"older copy.*--resnapshot"):
        catch_up(log, file.options())
    catch_up(log, file.options(), resnapshot=True)
    catch_up(log, file.options())
    assert_same(log, file)


@pytest.mark.parametrize("is_older", [False, True])
def test_topics_of_tables_that_a_restored_file_does_not_have_are_emptied(log: str, file: File, is_older: bool) -> None:
    file.run("create table t (id integer primary key)")
    catch_up(log, file.options())
    shutil.copyfile(file.path, f"{file.path}.backup")
    file.run("create table u (id integer primary key, n)", "insert into u values (1, 1)")
    if is_older:
        file.run("insert into t values (1)")
    catch_up(log, file.options())
    file.session.close()
    os.replace(f"{file.path}.backup", file.path)
    if is_older:
        with pytest.raises(PositionLost):
            catch_up(log, file.options())
    said = said_by(log, file.options(), resnapshot=is_older)
    assert [each for each in said if "u is gone: its topic gets a truncation" in each] == said
    assert len(said) == 1
    catch_up(log, file.options())
    found = events(log, f"{file.name}.main.u")
    check_numbering(found)
    assert [each.op for each in found] == ["r", "t"]


def test_a_copy_that_has_all_that_the_log_has_is_followed_from_there(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    catch_up(log, file.options())
    file.run("insert into t values (2)")
    copy = file.path.with_name("copy.db")
    file.run(f"vacuum into '{copy}'")
    moved = File(copy, file.name)
    moved.run("insert into t values (3)")
    catch_up(log, moved.options())
    assert [each.op for each in events(log, f"{file.name}.main.t")] == ["r", "c", "c"]
    moved.session.close()


def test_a_file_that_is_moved_to_the_path_while_capture_runs_is_noticed(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    other = File(file.path.with_name("other.db"), file.name)
    other.run("create table t (id integer primary key)", "insert into t values (7)")
    other.session.close()

    def replace() -> bool:
        if not events(log, f"{file.name}.main.t"):
            return False
        os.replace(other.path, file.path)
        return True

    with pytest.raises(PositionLost, match="its change table is gone"):
        Capture(log, file.options()).run(UntilSaid(lambda: False, replace))


def test_a_change_table_that_was_dropped_is_noticed(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)")
    catch_up(log, file.options())
    file.run(
        *(
            f"drop trigger '{each['name']}'"
            for each in file.all("select name from sqlite_schema where type = 'trigger'")
        )
    )
    file.run(f"drop table _headrace_{file.name}")
    with pytest.raises(PositionLost, match="its change table is gone"):
        catch_up(log, file.options())


def test_a_file_that_may_not_be_written_is_refused_with_the_reason(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)", "pragma journal_mode = wal")
    source = CaptureOptions(name=file.name, url=f"sqlite:///{file.path}")
    with pytest.MonkeyPatch.context() as patch:
        connect = sqlite3.connect

        def read_only(path: Path, **how: Any) -> sqlite3.Connection:
            return connect(f"file:{path}?mode=ro", uri=True, **how)

        patch.setattr(sqlite3, "connect", read_only)
        with pytest.raises(UsageError, match=r"readonly database.*allowed to write"):
            catch_up(log, source)


def test_a_file_that_is_no_database_is_refused(log: str, tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is no database, but it is long enough to look like the header of one; " * 20)
    with pytest.raises(UsageError, match="not a database"):
        catch_up(log, CaptureOptions(name="no_database", url=f"sqlite:///{path}"))


# ---- tables ---------------------------------------------------------------------------------------------------------

REPLACEMENTS = {
    "dropped and made again": [
        "drop table t",
        "create table t (id integer primary key, n)",
        "insert into t values (8, 8)",
    ],
    "swapped by a migration": [
        "create table new_t (id integer primary key, n)",
        "insert into new_t select id + 1, n * 10 from t",
        "drop table t",
        "alter table new_t rename to t",
    ],
    "exchanged with another": [
        "alter table t rename to swap",
        "alter table other rename to t",
        "alter table swap rename to other",
    ],
}


@pytest.mark.parametrize("how", REPLACEMENTS)
def test_a_replaced_table_is_truncated_and_read_again(log: str, file: File, how: str) -> None:
    file.run("create table t (id integer primary key, n)", "insert into t values (1, 1), (2, 2)")
    file.run("create table other (id integer primary key, n)", "insert into other values (1, 5), (4, 4)")
    catch_up(log, file.options())
    file.run("delete from t where id = 1", *REPLACEMENTS[how], "update t set n = n + 100")
    said = said_by(log, file.options())
    assert any("t was made again" in each for each in said)
    file.run("update t set n = n + 1")
    catch_up(log, file.options())
    assert_same(log, file)
    assert_same(log, file, "other")


@pytest.mark.parametrize("how", REPLACEMENTS)
def test_a_replaced_table_stops_capture_where_that_is_wanted(log: str, file: File, how: str) -> None:
    file.run("create table t (id integer primary key, n)", "insert into t values (1, 1), (2, 2)")
    file.run("create table other (id integer primary key, n)", "insert into other values (1, 5), (4, 4)")
    catch_up(log, file.options(on_replaced="stop"))
    file.run(*REPLACEMENTS[how])
    for _ in range(2):
        with pytest.raises(TableReplaced, match=r"(t|other) was made again.*--on-replaced resnapshot"):
            catch_up(log, file.options(on_replaced="stop"))
    catch_up(log, file.options())
    assert_same(log, file)


@pytest.mark.parametrize("key", ["integer primary key", "integer"])
def test_triggers_that_were_dropped_and_put_back_are_noticed(log: str, file: File, key: str) -> None:
    """SQLite's own recommendation for changing a table: remember its triggers, and make them again at the end."""
    file.run(f"create table t (id {key}, n)", "insert into t values (1, 1), (2, 2)")
    catch_up(log, file.options())
    file.run("vacuum")
    catch_up(log, file.options())
    assert [each.op for each in events(log, f"{file.name}.main.t")] == ["r", "r"], "a VACUUM is not taken for it"
    triggers = file.all("select name, sql from sqlite_schema where type = 'trigger' and tbl_name = 't'")
    file.run("begin", *(f'drop trigger "{each["name"]}"' for each in triggers), "update t set n = n + 1")
    file.run(*(each["sql"] for each in triggers), "commit")
    catch_up(log, file.options())
    rows = sorted(json.dumps(each) for each in file.all("select * from t"))
    assert fold_bag(events(log, f"{file.name}.main.t")) == rows


def test_a_table_that_is_gone_is_truncated_and_one_of_its_name_is_read_later(log: str, file: File) -> None:
    file.run("create table t (id integer primary key, n)", "insert into t values (1, 1)")
    catch_up(log, file.options())
    file.run("update t set n = 2", "alter table t rename to u", "update u set n = 3")
    assert any("t is gone" in each for each in said_by(log, file.options()))
    file.run("insert into u values (2, 2)")
    catch_up(log, file.options())
    found = events(log, f"{file.name}.main.t")
    assert [each.op for each in found][:2] == ["r", "u"]
    assert fold(found) == {}
    assert_same(log, file, "u")
    file.run("create table t (id integer primary key)", "insert into t values (9)")
    catch_up(log, file.options())
    assert_same(log, file)
    assert said_by(log, file.options()) == []


@pytest.mark.parametrize("resnapshot", [False, True])
def test_capture_goes_on_when_it_ended_between_noting_that_a_table_is_gone_and_reading_the_note(
    log: str, file: File, resnapshot: bool
) -> None:
    file.run("create table t (id integer primary key)", "create table u (id integer primary key)")
    file.run("insert into u values (1)")
    catch_up(log, file.options())
    file.run("drop table u")
    noted = threading.Event()
    Capture(log, file.options(), say=lambda line: noted.set()).run(noted, resnapshot=resnapshot)
    assert [each.op for each in events(log, f"{file.name}.main.u")] == ["r"], "the note was not read"
    catch_up(log, file.options())
    assert fold(events(log, f"{file.name}.main.u")) == {}
    file.run("insert into t values (1)")
    catch_up(log, file.options())
    assert_same(log, file)


def test_a_table_that_is_gone_stops_capture_where_that_is_wanted(log: str, file: File) -> None:
    file.run("create table t (id integer primary key, n)")
    catch_up(log, file.options(on_replaced="stop"))
    file.run("drop table t")
    with pytest.raises(TableReplaced, match="t is gone"):
        catch_up(log, file.options(on_replaced="stop"))


def test_a_new_table_is_followed_while_capture_runs(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)")
    topic = f"{file.name}.main.order_2"

    def make() -> bool:
        file.run("create table order_2 (id integer primary key)", "insert into order_2 values (1)")
        file.run("create table other (id integer primary key)")
        return True

    def write() -> bool:
        if not events(log, topic):
            return False
        file.run("insert into order_2 values (2)")
        return True

    stop = UntilSaid(lambda: len(events(log, topic)) == 2, make, write)
    Capture(log, file.options(tables=("main.t", "main.order_*"))).run(stop)
    assert [each.op for each in events(log, topic)] == ["r", "c"]
    assert events(log, f"{file.name}.main.other") == []


def test_virtual_tables_are_left_out_with_a_note(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)", "create virtual table words using fts5(body)")
    file.run("insert into t values (1)", "insert into words values ('a b')")
    assert any("virtual tables" in each and "words" in each for each in said_by(log, file.options()))
    file.run("insert into words values ('c')", "insert into t values (2)")
    catch_up(log, file.options())
    assert_same(log, file)


def test_a_vacuum_in_mid_snapshot_leaves_no_row_out(log: str, file: File) -> None:
    file.run("create table t (id text primary key, n)")
    for number in range(40):
        file.run(f"insert into t values ('k{number}', {number})")
    file.run("delete from t where n < 10")
    steps = iter(range(100))

    class Vacuumed(threading.Event):
        def is_set(self) -> bool:
            if next(steps) == 6:
                file.run("vacuum")
            return False

    Capture(log, file.options(chunk_rows=4)).run(Vacuumed(), until_current=True)
    assert_same(log, file)


# ---- the application ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_writer_that_stays_in_its_transaction_holds_capture_up_and_nothing_else(
    log: str, file: File, mode: str
) -> None:
    file.run(f"pragma journal_mode = {mode}", "create table t (id integer primary key)")
    catch_up(log, file.options())
    file.run("insert into t values (1)", "begin immediate", "insert into t values (2)")

    def end() -> bool:
        if not events(log, f"{file.name}.main.t"):
            return False
        file.run("commit")
        return True

    Capture(log, file.options()).run(UntilSaid(lambda: len(events(log, f"{file.name}.main.t")) == 2, end))
    assert_same(log, file)


def test_two_captures_of_one_file_do_not_disturb_each_other(log: str, file: File) -> None:
    file.run("create table t (id integer primary key, n)", "insert into t values (1, 1)")
    second = CaptureOptions(name=f"{file.name}_2", url=f"sqlite:///{file.path}")
    for options in (file.options(), second) * 2:
        catch_up(log, options)
    version = file.all("pragma schema_version")
    for options in (file.options(), second) * 2:
        file.run("update t set n = n + 1")
        catch_up(log, options)
    assert file.all("pragma schema_version") == version, "neither makes its triggers again because of the other"
    for name in (file.name, second.name):
        found = events(log, f"{name}.main.t")
        assert found[0].op == "r"
        assert "t" not in [each.op for each in found]


def test_a_table_of_many_columns_is_followed(log: str, file: File) -> None:
    names = [f"c{number}" for number in range(600)]
    file.run(f"create table t (id integer primary key, {', '.join(names)})", "insert into t (id) values (1)")
    catch_up(log, file.options())
    file.run("update t set c599 = 'x'", "insert into t (id, c0) values (2, 'y')")
    catch_up(log, file.options())
    assert_same(log, file)
