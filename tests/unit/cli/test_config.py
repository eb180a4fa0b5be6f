"""What ``headrace config`` shows is what ``headrace up`` would use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import run
from headrace.config import BROKER_SETTINGS


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_AMQP")  # which other tests need
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert run(["config", "--output", "json", *arguments]) == 0
    return {row["setting"]: row for row in json.loads(capsys.readouterr().out)}


def test_every_setting_is_shown_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys)
    assert set(found) == set(BROKER_SETTINGS)
    assert found["num.partitions"]["value"] == "1"
    assert {row["from"] for row in found.values()} == {"default"}


def test_a_flag_beats_the_environment_which_beats_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "headrace.toml").write_text('num.partitions = 2\nbroker.id = 2\ndata = "d"\n')
    monkeypatch.setenv("HEADRACE_NUM_PARTITIONS", "3")
    monkeypatch.setenv("HEADRACE_BROKER_ID", "3")
    found = shown(capsys, "--changed", "--set", "num.partitions=4", "--kafka", "127.0.0.1:0")
    assert {name: (row["value"], row["from"]) for name, row in found.items()} == {
        "num.partitions": ("4", "flag"),
        "broker.id": ("3", "environment HEADRACE_BROKER_ID"),
        "data": ("d", "file headrace.toml"),
        "kafka": ("127.0.0.1:0", "flag"),
    }


def test_another_file_may_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("num.partitions = 2")
    (tmp_path / "other.toml").write_text("num.partitions = 7")
    assert shown(capsys, "num.partitions", "--config", "other.toml")["num.partitions"]["value"] == "7"


def test_names_may_be_beginnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(name.startswith(("group.", "num.")) for name in shown(capsys, "group.", "num."))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--set", "num.partitons=4"], "did you mean num.partitions"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--config", "missing.toml"], "cannot read missing.toml"),
        (["nothing.like.it"], "no setting begins with"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", *arguments]) == 2
    told = capsys.readouterr().err
    assert reason in told
    assert told.count("\n") == 1
