"""Mistakes that people make at the command line, each answered with one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli.failure import explain
from headrace.cli.main import VARIABLES, run
from headrace.client import Admin, Client, Producer
from headrace.config import BROKER_SETTINGS, refuse_misspelt
from headrace.errors import ErrorCode, KafkaError, UsageError


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with testing.broker() as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=2)
        yield broker.bootstrap


@pytest.mark.parametrize("arguments", [[], ["topic"], ["log"]])
def test_a_command_without_its_subcommand_prints_its_help_in_lines(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("Usage: headrace")
    assert err.count("\n") > 5


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("produce orders -K=", "--key-delimiter is empty"),
        ("produce orders -D=", "--delimiter is empty"),
        ("produce orders --whole --json", "exclude each other"),
        ("consume orders -o nowhere", "is not a place in a topic"),
        ("consume orders -p x", "is not a list of partitions"),
        ("consume orders -f %y", "is not known"),
        ("consume orders -G g --until 5", "a group divides partitions itself"),
        ("topic alter orders", "nothing to alter"),
        ("topic alter orders -d retention.mss", "did you mean retention.ms"),
        ("topic create x -c retention.ms", "is not NAME=VALUE"),
        ("group reset g", "say where to"),
    ],
)
def test_an_option_that_cannot_be_read_exits_2(
    bootstrap: str, command: str, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [each.removesuffix("=") if each.endswith("=") else each for each in command.split()]
    if command.endswith("="):
        arguments.append("")
    assert run([*arguments, "--bootstrap", bootstrap]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--data", ""], "the value is empty"),
        (["--kafka", "off"], "nothing would be served"),
        (["--kafka", "nonsense"], "is no address"),
        (["--set", "kafka="], "is no address"),
        (["--kafka", "127.0.0.1:9099", "--metrics", "127.0.0.1:9099"], "cannot share 127.0.0.1:9099"),
        (["--set", "num.partition=4"], "did you mean num.partitions"),
        (["--set", "num.partitions=x"], "is not of type int"),
    ],
)
def test_a_setting_that_cannot_be_used_exits_2_and_leaves_nothing(
    options: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["up", *options]) == 2
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_variable_is_refused_and_a_strange_one_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_SERVICE_HOST", "10.0.0.1")
    assert run(["config", "num.partitions"]) == 0
    monkeypatch.setenv("HEADRACE_NUM_PARTITION", "4")
    assert run(["config", "num.partitions"]) == 2
    assert "did you mean HEADRACE_NUM_PARTITIONS?" in capsys.readouterr().err


def test_a_misspelt_variable_of_every_command_is_refused_and_a_setting_is_none(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in BROKER_SETTINGS:
        refuse_misspelt("HEADRACE_" + name.upper().replace(".", "_"), VARIABLES, likeness=0.8)
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("HEADRACE_SERVICE_HOST", "10.0.0.1")
    assert run(["topic", "list"]) == 0
    monkeypatch.setenv("HEADRACE_BOOTSRAP", "nowhere:1")
    assert run(["topic", "list"]) == 2
    assert "did you mean HEADRACE_BOOTSTRAP?" in capsys.readouterr().err


def test_if_not_exists_says_when_the_topic_that_exists_is_another(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--if-not-exists", "--bootstrap", bootstrap]
    assert run(["topic", "create", "orders", "-p", "2", *options]) == 0
    assert capsys.readouterr().err == ""
    assert run(["topic", "create", "orders", "-p", "6", *options]) == 0
    assert "topic orders exists with 2 partitions" in capsys.readouterr().err


def test_topics_that_headrace_keeps_for_itself_are_listed_when_asked_for(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(bootstrap) as client:
        Admin(client).create_topic("__headrace_sink")
    assert run(["topic", "list", "--bootstrap", bootstrap]) == 0
    assert "__headrace_sink" not in capsys.readouterr().out
    assert run(["topic", "list", "--internal", "--bootstrap", bootstrap]) == 0
    assert "__headrace_sink" in capsys.readouterr().out


def test_dump_of_a_topic_that_is_not_there_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with testing.broker(data=tmp_path) as broker, Client(broker.bootstrap) as client, Producer(client) as producer:
        producer.send("orders", b"x", partition=0)
    assert run(["log", "dump", str(tmp_path), "--topic", "nope"]) == 1
    assert "has no nope (it has orders[0]" in capsys.readouterr().err
    assert run(["log", "dump", str(tmp_path), "--topic", "orders", "--partition", "7"]) == 1
    assert "has no orders[7]" in capsys.readouterr().err


def test_hints_fit_what_is_wrong(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "create", "many", "-p", "100000", "--bootstrap", bootstrap]) == 1
    assert "1 to 10000 partitions" in capsys.readouterr().err
    assert run(["topic", "create", "a.b", "--bootstrap", bootstrap]) == 0
    assert run(["topic", "create", "a_b", "--bootstrap", bootstrap]) == 1
    assert "choose another name" in capsys.readouterr().err
    bad = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid")
    assert "1 to 249 letters" in explain(bad)


def test_a_full_disk_is_not_taken_for_damage() -> None:
    full = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space for 9 bytes in x; free space or lower retention")
    assert "repair" not in explain(full)
    assert "repair" in explain(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "y is corrupt"))


def test_a_setting_that_has_a_flag_can_be_given_by_set_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "kafka", "data", "--set", "kafka=127.0.0.1:7", "--set", "data=x", "--data", "y"]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["kafka", "127.0.0.1:7"] in rows
    assert ["data", "y"] in rows


def test_what_points_at_a_place_in_a_text_keeps_the_line_it_points_into() -> None:
    error = UsageError(
        "shop.py:6: pipeline 'a':\n there is no\ncolumn x\n  PATTERN (A) DEFINE A AS x > 1\n" + " " * 26 + "^"
    )
    assert explain(error).split("\n") == [
        "shop.py:6: pipeline 'a': there is no column x",
        "  PATTERN (A) DEFINE A AS x > 1",
        " " * 26 + "^",
    ]
