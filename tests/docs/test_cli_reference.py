"""docs/cli.md has every command, every option and every argument, and none that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from headrace.cli.main import COMMANDS, cli
from headrace.cli.record_text import _tokens

PAGE = (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text()
SECTIONS = {
    found[1].strip(): found[2] for found in re.finditer(r"^##+ (headrace .*?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
}


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"headrace {name} {each}", part) for each, part in command.commands.items())
        else:
            yield f"headrace {name}", command


ALL = dict(commands())


def options_of(command: click.Command) -> set[str]:
    return {name for each in command.params if isinstance(each, click.Option) for name in each.opts}


@pytest.mark.parametrize("name", ALL)
def test_a_command_is_documented_with_every_option_by_its_long_name(name: str) -> None:
    assert name in SECTIONS, f"docs/cli.md has no section '{name}'"
    long_names = {option for option in options_of(ALL[name]) if option.startswith("--")}
    assert {option for option in long_names if f"`{option}`" not in SECTIONS[name]} == set()


@pytest.mark.parametrize("name", ALL)
def test_a_command_is_documented_with_its_arguments(name: str) -> None:
    usage = ALL[name].collect_usage_pieces(click.Context(ALL[name]))
    assert f"{name} {' '.join(usage)}\n" in SECTIONS[name]


@pytest.mark.parametrize("name", SECTIONS)
def test_no_command_and_no_option_is_documented_that_is_gone(name: str) -> None:
    groups = {f"headrace {each}" for each in COMMANDS}
    assert name in ALL or name in groups
    if name in ALL:
        table = [line for line in SECTIONS[name].splitlines() if line.startswith("| `-")]
        documented = {option for line in table for option in re.findall(r"`(--?[\w-]+)`", line.split(" | ")[0])}
        assert documented - options_of(ALL[name]) == set()


def test_every_letter_of_a_format_is_explained() -> None:
    explained = set(re.findall(r"`%(\w)`", SECTIONS["headrace consume"]))
    assert explained == set(_tokens(b""))
