"""``headrace capture`` as a user types it, on a file of SQLite: registration, status, passwords."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest

from headrace.capture import CaptureOptions
from headrace.capture.passwords import forget_password, keep_password, with_password
from headrace.capture.source import SourceStatus
from headrace.cli.capture_status import lag_of
from headrace.client import StateRecord
from headrace.testing import broker as start_broker
from tests.capture.test_command import COMMAND, Shell, shell  # noqa: F401 the fixture
from tests.capture.world import committed, events
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as session:
        session.execute("create table t (id integer primary key)")
        session.execute("create table other (id integer primary key)")
        session.execute("insert into t values (1)")
    return f"sqlite:///{path}"


@contextmanager
def running(
    shell: Shell,  # noqa: F811 the fixture
    *arguments: str,
    errors: int | TextIO = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [COMMAND, "capture", "run", *arguments], env=shell.environment, stderr=errors, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def status(shell: Shell, name: str, code: int | None) -> dict[str, Any]:  # noqa: F811 the fixture
    (row,) = json.loads(shell("status", name, "--output", "json", status=code).stdout)
    found: dict[str, Any] = row
    return found


def test_a_run_with_a_url_adds_its_name_and_another_url_or_option_is_refused(
    log: str,
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    shell("run", "direct", url, "--tables", "t", "--available-now")
    assert [each["name"] for each in json.loads(shell("list", "--output", "json").stdout) if each["name"] == "direct"]
    shell("run", "direct", url, "--tables", "t", "--available-now")
    refused = shell("run", "direct", url, "--available-now", status=1)
    assert "capture direct was added with another --tables" in refused.stderr
    assert refused.stderr.count("\n") == 1
    moved = shell("run", "direct", f"{url}2", "--tables", "t", "--available-now", status=1)
    assert "another URL" in moved.stderr
    shell("run", "direct", "--available-now")
    assert [each.op for each in events(log, "direct.main.t")] == ["r"]
    assert committed(log, "direct.main.other") == []
    assert "table _headrace_direct" in shell("remove", "direct", "--yes").stderr


def test_a_mistake_that_shows_late_leaves_nothing_of_a_new_capture(
    log: str,
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    """The mask is refused where the table's key is known, after triggers and state were made."""
    failed = shell("run", "late", url, "--mask", "t.id=null", "--available-now", status=1)
    assert "main.t.id is part of the key" in failed.stderr
    assert "late was not added" in failed.stderr
    assert not [each for each in json.loads(shell("list", "--output", "json").stdout) if each["name"] == "late"]
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as session:
        assert session.execute("select name from sqlite_schema where name like '%headrace%'").fetchall() == []
    shell("run", "late", url, "--mask", "t.id=hash", "--available-now")
    assert [each.op for each in events(log, "late.main.t")] == ["r"]
    shell("run", "late", "--available-now")
    failed = shell("run", "late", url, "--mask", "t.id=null", "--available-now", status=1)
    assert "was added with another --mask" in failed.stderr
    assert status(shell, "late", 1)["state"] == "stopped", "a capture that was there stays"


def test_a_capture_that_does_not_run_is_not_healthy_and_status_says_how_to_start_it(
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    shell("add", "idle", url)
    row = status(shell, "idle", 1)
    assert (row["state"], row["health"], row["database"]) == ("never run", "not running", "ok")
    shown = shell("status", "idle", status=1)
    assert "idle: never run; start it: headrace capture run idle" in shown.stderr
    assert " ok " not in shown.stdout
    shell("run", "idle", "--available-now")
    assert "idle: stopped; start it: headrace capture run idle" in shell("status", "idle", status=1).stderr


def test_a_file_that_is_moved_away_is_waited_for_and_named(
    log: str,
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    with running(shell, "moved", url) as child:
        eventually(lambda: committed(log, "moved.main.t"))
        path.rename(path.with_suffix(".away"))
        eventually(lambda: status(shell, "moved", 1)["state"] == "trying again")
        assert "there is no file" in (told := status(shell, "moved", 1)["error"]) or "was moved" in told
        with closing(sqlite3.connect(path.with_suffix(".away"), isolation_level=None)) as session:
            session.execute("insert into t values (2)")
        path.with_suffix(".away").rename(path)
        eventually(lambda: len(committed(log, "moved.main.t")) == 2)
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    path.rename(path.with_suffix(".away"))
    failed = shell("run", "moved", "--available-now", status=1)
    assert "there is no file" in failed.stderr
    assert "headrace capture add" in failed.stderr
    shell("add", "moved", f"{url.removesuffix('.db')}.away")
    shell("run", "moved", "--available-now")
    assert len(committed(log, "moved.main.t")) == 2, "it goes on where it was"


def test_status_says_running_with_its_process_and_not_running_after_a_kill(
    log: str,
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    with running(shell, "mortal", url, "--heartbeat", "0.2") as child:
        while not committed(log, "mortal.main.t"):
            assert child.poll() is None
            time.sleep(0.05)
        row = eventually(lambda: status(shell, "mortal", None), lambda row: row["state"] == "running")
        assert (row["state"], row["health"]) == ("running", "ok")
        assert row["process"].endswith(f":{child.pid}")
        child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while (row := status(shell, "mortal", None))["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert row["state"] == "not running"
    assert "no sign of life for" in row["error"]
    assert status(shell, "mortal", 1)["process"].endswith(f":{child.pid}")


def test_a_capture_that_ended_with_an_error_is_shown_as_failed_with_its_reason(
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    shell("run", "broken", url, "--available-now")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as session:
        session.execute("drop table _headrace_broken")
    shell("run", "broken", "--available-now", status=1)
    row = status(shell, "broken", 1)
    assert row["state"] == "failed"
    assert "its change table is gone" in row["error"]
    Path(url.removeprefix("sqlite:///")).write_text("this is no database")
    shell("run", "broken", "--available-now", status=1)
    assert "give the file of a SQLite database" in status(shell, "broken", 1)["error"], "with what to do about it"


@pytest.mark.parametrize("password", ["p@ss", "p/ss", "a:b", "100%", "p?s#s", "${", "ü"])
def test_a_password_of_any_character_is_kept_in_the_file_and_put_back(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    given = CaptureOptions(name="shop", url=f"postgresql://app:{password}@db.example.com/shop?sslmode=require")
    assert given.database.password() == password
    stored = CaptureOptions.from_stored(json.loads(json.dumps(given.stored())))
    assert stored.url == "postgresql://app@db.example.com/shop?sslmode=require"
    assert stored.database.shown == given.database.shown == "postgresql://app@db.example.com/shop"
    written = given.database.written_password
    assert written is not None
    keep_password("shop", written)
    assert with_password(stored) == given
    forget_password("shop")
    assert with_password(stored) == stored


def test_a_password_by_reference_stays_in_the_address_and_may_have_any_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLANT_PASSWORD", "p@s/s:%41")
    given = CaptureOptions(name="shop", url="postgresql://app:${PLANT_PASSWORD}@db/shop")
    assert given.stored()["url"] == given.url
    assert given.database.password() == "p@s/s:%41"
    assert given.database.parts().hostname == "db"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:se@cret/x@127.0.0.1:1/shop",
        "app:se@cret/x@127.0.0.1/shop",
        "mysql://a:se@cret/x@127.0.0.1:1/d",
    ],
)
def test_no_part_of_a_password_is_in_an_error(url: str, shell: Shell) -> None:  # noqa: F811 the fixture
    failed = shell("add", "wrong", url, status=1 if "://" in url else 2)
    assert "se@" not in failed.stderr
    assert "cret" not in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_a_password_among_the_options_of_an_address_is_refused(shell: Shell) -> None:  # noqa: F811 the fixture
    failed = shell("add", "wrong", "postgresql://app@127.0.0.1:1/shop?password=secret", status=2)
    assert "write it before the @" in failed.stderr
    assert "secret" not in failed.stderr


def test_a_table_is_read_again_on_request(log: str, shell: Shell, url: str) -> None:  # noqa: F811 the fixture
    shell("run", "again", url, "--tables", "t", "--available-now")
    refused = shell("snapshot", "again", "other", status=1)
    assert "other is not captured" in refused.stderr
    asked = shell("snapshot", "again", "t")
    assert "when it runs (headrace capture run again)" in asked.stderr
    shell("run", "again", "--available-now")
    assert [each.op for each in events(log, "again.main.t")] == ["r", "t", "r"]


def folded(log: str, topic: str) -> set[int]:
    """The ids of the rows that a topic stands for."""
    rows: set[int] = set()
    for record in committed(log, topic):
        key, value = record.key, record.value
        operation = None if value is None else json.loads(value)["op"]
        if operation == "t":
            rows.clear()
        elif value is None or operation == "d":
            rows.discard(json.loads(key or b"{}")["id"])
        else:
            rows.add(json.loads(key or b"{}")["id"])
    return rows


def test_a_capture_that_is_removed_and_added_again_forgets_rows_that_were_deleted_meanwhile(
    log: str,
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    shell("run", "readded", url, "--tables", "t", "--available-now")
    shell("remove", "readded", "--yes")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as session:
        session.execute("insert into t values (2)")
        session.execute("delete from t where id = 1")
    shell("run", "readded", url, "--tables", "t", "--available-now")
    assert folded(log, "readded.main.t") == {2}


def test_a_capture_that_is_removed_while_it_runs_ends_and_leaves_nothing(
    log: str,
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    path = url.removeprefix("sqlite:///")
    with running(shell, "leaving", url, "--tables", "t", "--heartbeat", "0.2") as child:
        deadline = time.monotonic() + 30
        while folded(log, "leaving.main.t") != {1}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        shell("remove", "leaving", "--yes")
        assert child.wait(30) == 1
        assert child.stderr is not None
        assert "was removed" in child.stderr.read()
    with sqlite3.connect(path) as session:
        left = session.execute("select name from sqlite_master where name like '\\_headrace%' escape '\\'").fetchall()
    assert left == []
    assert "leaving" not in shell("list").stdout


def test_a_broker_that_is_away_is_named_once_and_once_when_it_is_back(tmp_path: Path, url: str) -> None:
    with start_broker(in_process=False) as broker:
        shell = Shell(broker.bootstrap, tmp_path)
        told = (tmp_path / "errors").read_text
        with (tmp_path / "errors").open("w") as errors, running(shell, "patient", url, errors=errors) as child:
            eventually(lambda: committed(broker.bootstrap, "patient.main.t"))
            broker.kill()
            eventually(lambda: f"broker {broker.bootstrap} is not reachable since " in told())
            broker.start()
            eventually(lambda: f"broker {broker.bootstrap} is back after " in told())
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as session:
                session.execute("insert into t values (2)")
            eventually(lambda: len(committed(broker.bootstrap, "patient.main.t")) == 2)
            child.send_signal(signal.SIGTERM)
            assert child.wait(30) == 0
    assert [told().count(each) for each in ("not reachable", "; waiting", "is back")] == [1, 1, 1]


def test_a_broker_that_takes_connections_and_does_not_answer_is_named_at_the_start(tmp_path: Path, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        failed = Shell(f"127.0.0.1:{silent.getsockname()[1]}", tmp_path)("run", "never", url, status=1)
    assert "did not answer ApiVersionsRequest within 5 s" in failed.stderr


def test_a_run_that_fails_before_its_first_event_does_not_add_its_name(shell: Shell, url: str) -> None:  # noqa: F811
    failed = shell("run", "config", url, "--topic-config", "retention=5", "--available-now", status=1)
    assert "Unknown topic config name" in failed.stderr
    assert "config was not added" in failed.stderr
    assert not [each for each in json.loads(shell("list", "--output", "json").stdout) if each["name"] == "config"]


def test_new_options_of_a_capture_are_told_with_what_they_do_not_change(
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    shell("run", "changed", url, "--tables", "t", "--available-now")
    assert "old" not in shell("add", "changed", url, "--tables", "t").stderr
    refused = shell("add", "changed", url, "--tables", "t", "--prefix", "elsewhere", status=1)
    assert "has written topics changed.*" in refused.stderr
    with running(shell, "changed"):
        eventually(lambda: status(shell, "changed", None)["state"] == "running")
        said = shell("add", "changed", url, "--tables", "t", "--decimals", "double").stderr
    assert "its topics keep records with the old --decimals" in said
    assert "runs it with the old options until it is started again" in said


def test_a_capture_whose_database_cannot_be_reached_is_not_removed_by_halves(
    shell: Shell,  # noqa: F811 the fixture
    url: str,
) -> None:
    file = Path(url.removeprefix("sqlite:///"))
    shell("add", "away", url)
    with running(shell, "away") as child:
        eventually(lambda: status(shell, "away", None)["state"] == "running")
        file.rename(file.with_suffix(".away"))
        refused = shell("remove", "away", "--yes", status=1)
        assert "headrace capture remove away --keep-database" in refused.stderr
        file.with_suffix(".away").rename(file)
        eventually(lambda: status(shell, "away", None)["state"] == "running")
        assert child.poll() is None, "it was not removed, so it goes on"
    assert "table _headrace_away" in shell("remove", "away", "--yes").stderr


def test_a_capture_that_cannot_work_at_the_moment_shows_no_lag_and_no_rate() -> None:
    record = StateRecord(kind="capture", name="x", state="trying again", at_ms=1_000, details={"lag_ms": 0})
    assert lag_of(SourceStatus(), record, 1_001) is None
    assert lag_of(SourceStatus(), replace(record, state="running"), 1_001) == 0
