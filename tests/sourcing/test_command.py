"""``headrace events`` as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.events import command
from headrace.errors import UsageError
from headrace.sourcing import Event, open_store

Events = Callable[..., Result]

BANK = """
from typing import ClassVar
from headrace.sourcing import Aggregate, Decider, Projection, on

def evolve(cents, event):
    return cents + event.data.get("cents", 0)

account = Decider(decide=lambda state, command: [], evolve=evolve, initial=int)

class Purse(Aggregate):
    def __init__(self):
        self.cents = 0

    @on("Deposited")
    def deposited(self, event):
        self.cents += event.data["cents"]

class Sums(Projection):
    tables: ClassVar = {"sums": "account text, cents integer"}
    personal = False

    @on("Deposited")
    def deposited(self, view, event):
        view.execute(f"insert into {view.table('sums')} values (?, ?)", event.stream, event.data["cents"])
"""


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.py").write_text(BANK)
    runner = CliRunner()

    def run(*arguments: str, fails: bool = False, lines: str = "") -> Result:
        done = runner.invoke(command, arguments, input=lines)
        assert (done.exit_code != 0) == fails, (done.output, done.exception)
        return done

    return run


def deposit(events: Events, *cents: int) -> None:
    for each in cents:
        events("append", "bank.db", "account-1", "--type", "Deposited", "--data", f'{{"cents": {each}}}')


def test_events_are_appended_and_read_back(events: Events) -> None:
    done = events("append", "bank.db", "account-1", "--type", "Deposited", "--data", '{"cents": 5}', "--tag", "x")
    assert done.output == "account-1 is at version 1, the store at position 1\n"
    lines = '{"type": "Deposited", "data": {"cents": 6}, "event_id": "e-1"}\n{"type": "Closed", "actor": "ada"}\n'
    for _ in range(2):
        done = events("append", "bank.db", "account-1", "--command-id", "c", "--expected", "1", lines=lines)
        assert "version 3" in done.output
    assert "they were there already" in done.output
    found = [
        json.loads(line) for line in events("read", "bank.db", "account-1", "--output", "json").output.splitlines()
    ]
    assert [(each["type"], each["data"], each["actor"]) for each in found] == [
        ("Deposited", {"cents": 5}, None),
        ("Deposited", {"cents": 6}, None),
        ("Closed", {}, "ada"),
    ]
    assert found[0]["tags"] == ["x"]
    text = events("read", "bank.db", "--type", "Closed").output
    assert "account-1 3  Closed  {}" in text
    assert events("read", "bank.db", "--tag", "x").output.count("\n") == 1
    assert events("read", "bank.db", "--backwards", "--limit", "1").output.startswith("3 ")
    assert events("read", "bank.db", "--at", "1970-01-01T00:00Z").output == ""
    rows = json.loads(events("streams", "bank.db", "--output", "json").output)
    assert rows == [{"stream": "account-1", "version": 3, "first_position": 1, "last_position": 3}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("append", "bank.db", "a", "--type", "T", "--data", "[]"), "--data is no object"),
        (("append", "bank.db", "a", "--type", "T", "--data", "{"), "--data is no JSON"),
        (("append", "bank.db", "a", "--type", "T", "--expected", "first"), "is no version"),
        (("append", "bank.db", "a", "--type", "T", "--expected", "3"), "has no event"),
        (("append", "bank.db", "a", "--type", "T", "--personal", "name=u1"), "no field name"),
        (("read", "missing.db"), "there is no store missing.db"),
        (("read", "."), ". is a folder"),
        (("append", ".", "a", "--type", "T"), ". is a folder"),
        (("read", "bank.db", "--keys", "typo.keys"), "there is no key file typo.keys"),
        (("read", "bank.db", "--follow", "--limit", "1"), "--follow has no end"),
        (("read", "kafka://127.0.0.1:1/t?lease=soon"), "?lease=soon is no number of seconds"),
        (("read", "kafka://127.0.0.1:1/t?lease=nan"), "?lease=nan is no number of seconds"),
        (("streams", "ftp://x/y"), "is no address of an event store"),
        (("replay", "bank.db", "bank.py", "nothing"), "has no nothing"),
        (("replay", "bank.db", "bank.py", "account"), "is replayed over a stream"),
        (("replay", "bank.db", "bank.py", "Sums"), "is rebuilt in a database"),
        (("replay", "bank.db", "bank.py", "evolve"), "is no Decider"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(events: Events, arguments: tuple[str, ...], says: str) -> None:
    deposit(events, 1)
    done = events(*arguments, fails=True)
    assert says in str(done.exception)
    assert says in str(done.exception)


def test_lines_that_are_no_events_are_refused_whole(events: Events) -> None:
    for line, says in (
        ("nothing", "line 2 is no JSON"),
        ('{"data": {}}', "line 2 has no type"),
        ('{"typ": 1}', "unknown"),
        ('{"type": 5}', "line 2: 5 is no type"),
        ('{"type": "T", "tags": null}', "line 2: the tags"),
        ('{"type": "T", "data": ' + "[" * 100_000, "line 2 is no JSON"),
    ):
        done = events("append", "bank.db", "a", fails=True, lines='{"type": "T"}\n' + line)
        assert says in str(done.exception)
    assert not Path("bank.db").exists()


@pytest.mark.parametrize(
    "address",
    [
        "kafka://ada:s3cret@127.0.0.1:1/t",
        "kafka://ada:s3cret@127.0.0.1:1/",
        "postgresql://ada:s3cret@127.0.0.1:1/db",
        "postgresql://ada:s3cret@127.0.0.1:port/db",
        "postgres//ada:s3cret@127.0.0.1/db",
        "mysql://ada:s3cret@127.0.0.1/db",
    ],
)
def test_no_message_has_the_password_of_an_address(events: Events, address: str) -> None:
    done = events("read", address, fails=True)
    assert "ada" in str(done.exception)
    assert "s3cret" not in f"{done.exception} {done.output}"


def test_the_limit_counts_what_is_printed(events: Events) -> None:
    deposit(events, 1)
    time.sleep(0.01)
    between = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    deposit(events, 2)
    events("append", "bank.db", "account-1", "--type", "Closed")
    assert "Closed" in events("read", "bank.db", "account-1", "--type", "Closed", "--limit", "1").output
    for arguments in (("bank.db",), ("bank.db", "account-1")):
        shown = events("read", *arguments, "--at", between, "--backwards", "--limit", "1").output
        assert shown.startswith("1 ")


def test_a_number_that_no_store_reaches_is_refused_by_the_option(events: Events) -> None:
    deposit(events, 1)
    assert "is not in the range" in events("read", "bank.db", "--after", "9" * 30, fails=True).output


def test_a_name_that_the_store_does_not_know_is_pointed_out(events: Events) -> None:
    append = ("append", "bank.db", "a-1", "--type", "Opened", "--data", '{"name": "Ada"}')
    events(*append, "--personal", "name=u1", "--keys", "k.keys")
    before = events("forget", "bank.db", "u11", "--keys", "k.keys", fails=True)  # nobody has confirmed it yet
    assert "is that the right name?" in before.output
    assert "SubjectForgotten" not in events("read", "bank.db").output
    assert "is that the right name?" in events("forget", "bank.db", "u11", "--keys", "k.keys", "--yes").output
    assert "is that the right name?" not in events("forget", "bank.db", "u1", "--keys", "k.keys", "--yes").output


@pytest.mark.parametrize("arguments", [("read", "bank.db", "account-2"), ("replay", "bank.db", "bank.py", "account")])
def test_a_stream_that_the_store_does_not_have_is_pointed_out(events: Events, arguments: tuple[str, ...]) -> None:
    deposit(events, 1)
    named = arguments if arguments[0] == "read" else (*arguments, "--stream", "account-2")
    assert events(*named).stderr == "sqlite:///bank.db has no stream account-2; see: headrace events streams STORE\n"
    assert "account-2" not in events("read", "bank.db", "account-1").stderr


@pytest.mark.parametrize("filters", [("--type", "Depositted"), ("--tag", "x"), ("--category", "acount")])
def test_a_filter_that_no_event_matches_is_pointed_out(events: Events, filters: tuple[str, str]) -> None:
    deposit(events, 1)
    done = events("read", "bank.db", *filters)
    assert (done.stdout, done.stderr) == ("", "no event matches; types, tags and categories are compared exactly\n")
    assert events("read", "bank.db", "--type", "Deposited").stderr == ""


def test_a_new_key_file_is_pointed_out_since_a_mistyped_one_would_be_new_too(events: Events) -> None:
    append = ("append", "bank.db", "a-1", "--type", "Opened", "--data", '{"name": "Ada"}', "--personal", "name=u1")
    first = events(*append, "--keys", "k.keys").stderr
    assert first == "made the key file k.keys and its master key k.keys.master: keep both, apart from the store\n"
    assert events(*append, "--keys", "k.keys").stderr == ""


def test_a_publisher_that_reached_no_broker_does_not_say_how_far_the_topic_is(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank.db") as store:
        store.append("a-1", Event("First"))
    program = str(Path(sys.executable).with_name("headrace"))
    command = [program, "events", "publish", "bank.db", "bank.events", "--bootstrap", "127.0.0.1:1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        while "trying again" not in child.stderr.readline():
            assert child.poll() is None
        child.terminate()
        assert child.stderr.read().splitlines()[-1] == "stopped; this run has published nothing to bank.events"
        assert child.wait(60) == 0


def test_an_input_without_events_is_pointed_out(events: Events) -> None:
    assert "no event: nothing is appended" in events("append", "bank.db", "account-1", lines="\n").stderr


def test_a_personal_value_in_the_open_is_a_line_for_a_person(events: Events) -> None:
    append = ("append", "bank.db", "a-1", "--type", "Opened", "--data", '{"name": "Ada Lovelace"}')
    done = events(*append, "--personal", "name=u1", "--keys", "k.keys", "--tag", "name:Ada Lovelace")
    _, warning = done.stderr.splitlines()  # the first line is about the new key file
    assert warning.startswith("warning: the personal field name of Opened is also in a tag, which")


BROKEN = {
    "evolve": (
        "a = Decider(decide=None, evolve=lambda s, e: e.data['x'], initial=int)",
        "'x', at version 1, Deposited",
    ),
    "initial": (
        "a = Decider(decide=None, evolve=None, initial=lambda: 1 / 0)",
        "division by zero, in the state without",
    ),
    "syntax": ("a = (", "SyntaxError"),
    "import": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_error_in_the_code_of_a_replay_is_reported_with_its_line(events: Events, tmp_path: Path, kind: str) -> None:
    """Where a bug begins is what a replay is for: it is no internal error of ours."""
    code, says = BROKEN[kind]
    (tmp_path / "broken.py").write_text(f"from headrace.sourcing import Decider\n{code}\n")
    deposit(events, 1)
    done = events("replay", "bank.db", "broken.py", "a", "--stream", "account-1", fails=True)
    assert isinstance(done.exception, UsageError)
    assert done.exception.message.startswith("broken.py line 2: ")
    assert says in done.exception.message


def test_an_error_of_a_projection_is_reported_with_its_line(events: Events, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BANK.replace('event.data["cents"])\n', 'event.data["x"])\n'))
    deposit(events, 1)
    done = events("replay", "bank.db", "broken.py", "Sums", "--view", "sqlite:///v.db", fails=True)
    assert isinstance(done.exception, UsageError)
    assert re.match(r"broken.py line 2\d: KeyError: 'x', while Sums is rebuilt", done.exception.message)


def test_a_statement_of_a_projection_that_the_database_does_not_take_is_reported_with_its_line(
    events: Events, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BANK.replace("values (?, ?)", "values (?, ?, 3)"))
    deposit(events, 1)
    done = events("replay", "bank.db", "broken.py", "Sums", "--view", "sqlite:///v.db", fails=True)
    assert isinstance(done.exception, UsageError)
    assert re.match(r"broken.py line 2\d: OperationalError: table sums__g1 has 2 columns", done.exception.message)


def test_a_view_in_a_folder_that_is_not_there_is_no_mistake_in_the_code(events: Events, tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(BANK)
    deposit(events, 1)
    done = events("replay", "bank.db", "bank.py", "Sums", "--view", "sqlite:///nowhere/v.db", fails=True)
    assert isinstance(done.exception, UsageError)
    assert done.exception.message == "there is no folder nowhere"


def test_names_reach_a_terminal_without_what_would_move_its_cursor(events: Events) -> None:
    data = '{"name": "\u009b31m"}'
    events("append", "bank.db", "account-\x1b[31m", "--type", "Named\x07", "--tag", "x", "--data", data)
    shown = events("read", "bank.db").stdout
    assert "account-[U+001B][31m 1  Named[U+0007]" in shown
    assert '{"name": "[U+009B]31m"}' in shown
    (written,) = events("read", "bank.db", "--output", "json").stdout.splitlines()
    assert json.loads(written)["stream"] == "account-\x1b[31m"


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "bank.db", "\udcff"),
        ("read", "bank.db", "--tag", "\udcff"),
        ("read", "bank.db", "--type", "\udcff"),
        ("read", "bank.db", "--category", "\udcff"),
        ("streams", "bank.db", "--category", "\udcff"),
        ("streams", "bank.db", "--after", "\udcff"),
        ("replay", "bank.db", "bank.py", "account", "--stream", "\udcff"),
        ("forget", "bank.db", "\udcff", "--keys", "bank.py"),
    ],
)
def test_a_name_that_is_no_unicode_is_refused_in_words(events: Events, arguments: tuple[str, ...]) -> None:
    deposit(events, 1)
    done = events(*arguments, fails=True)
    assert done.exit_code == 2
    assert "'\\udcff' is no UTF-8" in done.stderr


def test_a_replay_shows_the_state_after_each_event(events: Events) -> None:
    deposit(events, 5, 6, 7)
    assert events("replay", "bank.db", "bank.py", "account", "--stream", "account-1").output == (
        '1  Deposited  {"cents": 5}  ->  5\n2  Deposited  {"cents": 6}  ->  11\n3  Deposited  {"cents": 7}  ->  18\n'
    )
    shown = events("replay", "bank.db", "bank.py", "Purse", "--stream", "account-1", "--until", "2", "--output", "json")
    assert [json.loads(line)["state"] for line in shown.output.splitlines()] == [{"cents": 5}, {"cents": 11}]


def test_a_replay_rebuilds_a_view(events: Events) -> None:
    deposit(events, 5, 6)
    for _ in range(2):
        done = events("replay", "bank.db", "bank.py", "Sums", "--view", "sqlite:///views.db")
        assert "sums is rebuilt up to position 2" in done.output
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect("views.db")) as session:
        assert session.execute("select * from sums").fetchall() == [("account-1", 5), ("account-1", 6)]


def test_a_subject_is_forgotten(events: Events) -> None:
    append = ("append", "bank.db", "a-1", "--type", "Opened", "--data", '{"name": "Ada Lovelace"}')
    events(*append, "--personal", "name=u1", "--keys", "k.keys")
    assert "Ada" not in events("read", "bank.db").output
    assert "Ada" in events("read", "bank.db", "--keys", "k.keys").output
    refused = events("forget", "bank.db", "u1", "--keys", "k.keys", fails=True)
    assert "nobody is there to confirm it" in str(refused.exception)
    assert "u1 is forgotten" in events("forget", "bank.db", "u1", "--keys", "k.keys", "--yes").output
    assert '"$forgotten": "u1"' in events("read", "bank.db", "--keys", "k.keys").output


def test_follow_prints_what_comes_and_ends_in_order_when_it_is_asked_to(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank.db") as store:
        store.append("a-1", Event("First"))
        program = str(Path(sys.executable).with_name("headrace"))
        with subprocess.Popen(
            [program, "events", "read", "bank.db", "--follow", "--output", "json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert json.loads(child.stdout.readline())["type"] == "First"
            store.append("a-1", Event("Second"))
            assert json.loads(child.stdout.readline())["type"] == "Second"
            child.terminate()
            assert child.wait(60) == 0
