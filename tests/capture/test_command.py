"""``headrace capture`` as a user types it, against a real PostgreSQL and a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from headrace.capture import CaptureOptions
from headrace.capture.postgres.setup import explained_error
from headrace.errors import UsageError
from tests.capture.conftest import Database
from tests.capture.world import committed, events

pytestmark = [pytest.mark.servers, pytest.mark.slow]

COMMAND = str(Path(sys.executable).with_name("headrace"))


class Shell:
    def __init__(self, bootstrap: str, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PG"))}
        self.environment = {**kept, "HEADRACE_BOOTSTRAP": bootstrap, "XDG_CONFIG_HOME": str(home)}

    def __call__(self, *arguments: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [COMMAND, "capture", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert status in (None, done.returncode), f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture
def shell(log: str, tmp_path: Path) -> Shell:
    return Shell(log, tmp_path)


def test_a_capture_is_added_listed_run_shown_and_removed(log: str, database: Database, shell: Shell) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1), (2)", "create table other (id int)")
    name = database.name
    added = shell("add", name, database.url, "--tables", "public.t", "--prefix", f"p.{name}")
    assert f"headrace capture run {name}" in added.stderr
    listed = {each["name"]: each for each in json.loads(shell("list", "--output", "json").stdout)}
    assert listed[name]["tables"] == ["public.t"]
    (before,) = json.loads(shell("status", name, "--output", "json", status=1).stdout)
    assert (before["snapshot"], before["state"]) == ("not begun", "never run")
    assert before["advice"] == f"start it: headrace capture run {name}", "there is no slot to be lost yet"
    done = shell("run", name, "--available-now")
    assert "stopped; 3 events" in done.stderr, "two rows and the shape of their table"
    assert [each.op for each in events(log, f"p.{name}.public.t")] == ["r", "r"]
    (status,) = json.loads(shell("status", name, "--output", "json", status=1).stdout)
    assert (status["state"], status["health"], status["snapshot"], status["rows"]) == (
        "stopped",
        "not running",
        "done",
        2,
    )
    assert status["tables"]["public.t"]["done"]
    removed = shell("remove", name, "--yes")
    assert f"slot headrace_{name}" in removed.stderr
    assert database.all("select slot_name from pg_replication_slots where database = current_database()") == []
    assert name not in {each["name"] for each in json.loads(shell("list", "--output", "json").stdout)}


def test_a_capture_by_triggers_is_added_run_shown_and_removed(log: str, database: Database, shell: Shell) -> None:
    name = database.name
    database.run(
        "create table t (id int primary key)", "create table events (id int, aggregatetype text, aggregateid text)"
    )
    database.run("alter table events add payload text", "insert into t values (1)")
    added = shell("add", name, database.url, "--triggers", "--outbox", "events")
    assert "2 tables, followed by triggers" in added.stderr
    assert json.loads(shell("status", name, "--output", "json", status=1).stdout)[0]["database"] == "ok"
    shell("run", name, "--available-now")
    database.run(f"insert into events values (7, '{name}', 'k', 'payload')")
    shell("run", name, "--available-now")
    assert [each.op for each in events(log, f"{name}.public.t")] == ["r"]
    (event,) = committed(log, f"outbox.event.{name}")
    assert (event.key, event.value) == (b"k", b"payload")
    (status,) = json.loads(shell("status", name, "--output", "json", status=1).stdout)
    assert (status["database"], status["snapshot"]) == ("ok", "done")
    assert f"schema _headrace_{name}" in shell("remove", name, "--yes").stderr
    assert database.all("select tgname from pg_trigger where not tgisinternal") == []


def test_run_takes_the_arguments_of_add_and_ends_well_on_sigterm(log: str, database: Database, shell: Shell) -> None:
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    arguments = [COMMAND, "capture", "run", database.name, database.url, "--unwrap", "--tables", "public.t"]
    with subprocess.Popen(arguments, env=shell.environment, stderr=subprocess.PIPE, text=True) as child:
        try:
            while not committed(log, f"{database.name}.public.t"):
                assert child.poll() is None
                time.sleep(0.05)
            database.run("update t set n = 2")
            while len(found := committed(log, f"{database.name}.public.t")) < 2:
                assert child.poll() is None
                time.sleep(0.05)
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.stderr is not None
        said = child.stderr.read()
        assert child.wait() == 0, said
    assert [each.value for each in found] == [b'{"id":1,"n":1}', b'{"id":1,"n":2}']
    assert "stopped;" in said


def test_a_password_reaches_neither_the_log_nor_the_screen(
    log: str, database: Database, shell: Shell, tmp_path: Path
) -> None:
    secret = "s3cret/word"
    database.run("create table t (id int primary key)")
    url = database.url.replace("postgres@", "postgres:s3cret%2Fword@")
    said = [shell("add", database.name, url), shell("list"), shell("run", database.name, "--available-now")]
    said += [shell("status", database.name, status=1), shell("remove", "--yes", database.name)]
    assert all("s3cret" not in each.stdout + each.stderr for each in said)
    records = [each for topic in ("__headrace_captures", database.name) for each in committed(log, topic)]
    assert all(b"s3cret" not in (each.value or b"") for each in records)
    (file,) = tmp_path.glob("headrace/*.json")
    assert file.stat().st_mode & 0o077 == 0
    assert secret not in file.read_text(), "removed with its capture"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "nobody"], "there is no capture 'nobody'; there are: "),
        (["add", "a", "postgresql://nobody@127.0.0.1:1/x"], "postgresql://nobody@127.0.0.1:1/x: connection"),
        (
            ["add", "a", "postgresql://u:${HEADRACE_NOT_SET}@127.0.0.1:1/x"],
            "needs the environment variable HEADRACE_NOT_SET",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments: list[str], line: str, shell: Shell) -> None:
    failed = shell(*arguments, status=1)
    assert line in failed.stderr
    assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["add", "Bad Name", "postgresql://x/y"], "'Bad Name' is no name of a capture"),
        (["add", "a", "oracle://x/y"], "oracle://x/y is no database that capture knows"),
        (["add", "a", "mysql://u@h:23x6/y"], "mysql://u@h:23x6/y has no port that is a number"),
        (["add", "a", "sqlite:///."], "give the file of a SQLite database"),
        (["add", "a", "postgresql://x/y", "--tables", ""], "--tables is empty"),
        (["run", "a", "postgresql://x/y", "--exclude-columns", ","], "--exclude-columns is empty"),
    ],
)
def test_a_mistake_in_the_command_ends_with_2(arguments: list[str], line: str, shell: Shell) -> None:
    failed = shell(*arguments, status=2)
    assert line in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_a_password_that_a_run_gives_for_a_known_capture_is_kept(
    database: Database, shell: Shell, tmp_path: Path
) -> None:
    database.run("create table t (id int primary key)")
    shell("run", database.name, database.url, "--available-now")
    url = database.url.replace("postgres@", "postgres:later@")
    assert "the password is kept in" in shell("run", database.name, url, "--available-now").stderr
    (file,) = tmp_path.glob("headrace/*.json")
    assert json.loads(file.read_text())[database.name] == "later"
    assert "is kept" not in shell("run", database.name, url, "--available-now").stderr
    shell("remove", "--yes", database.name)


def test_an_outbox_without_its_columns_is_refused_when_it_is_added(database: Database, shell: Shell) -> None:
    database.run("create table t (id int primary key, payload text)")
    failed = shell("add", database.name, database.url, "--outbox", "t", status=1)
    assert "the outbox public.t has no column aggregatetype, aggregateid" in failed.stderr


def test_a_role_with_any_name_is_quoted_in_the_statement_that_helps(database: Database, shell: Shell) -> None:
    database.run('drop role if exists "App User"', """create role "App User" login password 'x'""")
    failed = shell("add", database.name, database.url.replace("postgres@", "App%20User:x@"), status=1)
    assert 'ALTER ROLE "App User" REPLICATION' in failed.stderr
    database.run('drop role "App User"')


def test_a_missing_password_is_a_mistake_and_not_waited_for() -> None:
    options = CaptureOptions(name="x", url="postgresql://app@127.0.0.1/shop")
    error = psycopg.OperationalError("connection to server failed: fe_sendauth: no password supplied")
    explained = explained_error(error, options)
    assert isinstance(explained, UsageError)
    assert "${NAME}" in str(explained)
