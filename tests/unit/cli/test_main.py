"""The root of the command line: what it loads, what it says, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import headrace
from headrace.cli.failure import HINTS, explain
from headrace.cli.main import COMMANDS, cli, run
from headrace.cli.shared import confirm, settings_of, show, table
from headrace.client.connection import Address, BrokerUnreachable
from headrace.errors import ErrorCode, HeadraceError, KafkaError, UsageError


def all_commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {each}", part) for each, part in command.commands.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_in_the_table_is_the_commands_own(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert (command.help or "").split("\n\n")[0] == COMMANDS[name][1]
    assert command.name == name


def test_every_command_and_every_option_explains_itself() -> None:
    for name, command in all_commands():
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_every_command_that_talks_to_a_broker_takes_bootstrap_and_those_that_list_take_output() -> None:
    for name, command in all_commands():
        options = {option for parameter in command.params for option in parameter.opts}
        if name.split()[0] in ("produce", "consume") or name.startswith(("topic ", "group ")):
            assert "--bootstrap" in options, name
        if name.endswith((" list", " describe")) or name in ("config", "doctor"):
            assert "--output" in options, name


def test_help_loads_neither_client_nor_broker() -> None:
    program = (
        "import json, sys; from headrace.cli.main import run; run(['--help'])\n"
        "print(json.dumps([name for name in sys.modules if name.startswith(('headrace', 'asyncio', 'socket'))]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded == {"headrace", "headrace.cli", "headrace.cli.main", "headrace.errors", "headrace.terminal"}


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert headrace.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["topci"], "there is no command 'topci'; did you mean 'topic'?"),
        (["frobnicate"], "there is no command 'frobnicate'; see: headrace --help"),
        (["topic", "create"], "missing argument 'NAME...' (see: headrace topic create --help)"),
        (["topic", "list", "--output", "yaml"], "--help)"),
        (["consume"], "missing argument"),
    ],
)
def test_a_usage_mistake_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("headrace: ")
    assert line in printed.err
    assert printed.err.count("\n") == 1


def test_an_unreachable_broker_is_one_line_that_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert "start one: headrace up" in capsys.readouterr().err


def test_a_bug_of_ours_is_one_line_too_and_a_traceback_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of course")

    monkeypatch.setattr("headrace.cli.config.load_settings", broken)
    assert run(["config"]) == 70
    told = capsys.readouterr().err
    assert "internal error" in told
    assert "HEADRACE_DEBUG=1" in told
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["config"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_HEADRACE_COMPLETE" in script
    assert "headrace" in script


# ---- failures -------------------------------------------------------------------------------------------------------


def test_an_error_with_a_known_code_gets_its_hint_and_another_its_code() -> None:
    assert explain(KafkaError(ErrorCode.NON_EMPTY_GROUP, "no.")) == f"no ({HINTS[ErrorCode.NON_EMPTY_GROUP]})"
    assert explain(KafkaError(ErrorCode.POLICY_VIOLATION, "no")) == "no (error code 44, POLICY_VIOLATION)"


def test_other_failures_are_told_in_their_own_words() -> None:
    assert explain(UsageError("a", "b")) == "a (b)"
    assert explain(HeadraceError("two\nlines")) == "two lines"
    assert explain(PermissionError(13, "Permission denied", "/x")) == "/x: Permission denied"
    assert "headrace up" in explain(BrokerUnreachable(Address("h", 1), "gone"))


# ---- shared parts ---------------------------------------------------------------------------------------------------


def test_a_table_aligns_numbers_to_the_right_and_words_to_the_left() -> None:
    rows = [{"name": "a", "count": 5}, {"name": "long", "count": 1000}, {"name": "none", "count": None}]
    lines = [click.unstyle(line) for line in table(rows, ["name", "count"])]
    assert lines == ["NAME  COUNT", "a         5", "long   1000", "none      -"]


def test_json_has_fields_that_the_table_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"a": 1, "b": [1, 2]}], "json", columns=["a"])
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "b": [1, 2]}]
    show([{"a": True, "b": [1, 2]}], "table", columns=["a", "b"])
    assert capsys.readouterr().out.splitlines()[1].split() == ["yes", "1,2"]


def test_settings_are_name_and_value() -> None:
    assert settings_of(["a=1", "b=x=y", "c="], "--config") == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageError, match="is not NAME=VALUE"):
        settings_of(["a"], "--config")
    with pytest.raises(UsageError, match=r"--conf '4g' is not NAME=VALUE.*--conf spark.driver.memory=4g"):
        settings_of(["4g"], "--conf", "spark.driver.memory=4g")


def test_what_cannot_be_undone_needs_a_yes_from_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("sure?", yes=True)
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        with pytest.raises(UsageError, match="--yes"):
            confirm("sure?", yes=False)


def pieces_of(terminal: int) -> Iterator[bytes]:
    """What was printed to the other side, which is closed: the system hands it over piece by piece."""
    while True:
        try:
            yield os.read(terminal, 10_000)
        except OSError:
            return


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_and_no_color_turns_them_off(no_color: str, coloured: bool) -> None:
    reading, terminal = os.openpty()
    environment = {**os.environ, "NO_COLOR": no_color}
    command = [sys.executable, "-c", "from headrace.cli import main; main(['config', 'num.partitions'])"]
    try:
        try:
            subprocess.run(command, stdout=terminal, env=environment, timeout=60, check=True)
        finally:
            os.close(terminal)
        printed = b"".join(pieces_of(reading))
    finally:
        os.close(reading)
    assert b"num.partitions" in printed
    assert (b"\x1b[" in printed) is coloured
