"""The tables of options in docs/cli.md, printed from the commands; the prose around them is written by hand."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import click

from headrace.cli.main import COMMANDS, cli

__all__ = ["commands", "with_options"]

SHARED = ("--bootstrap", "--timeout", "--output", "--management", "--vhost")
"""Options that many commands have; cli.md explains them once."""
SERVED = ("--data", "--kafka", "--amqp", "--metrics", "--http", "--insecure", "--set")
"""Options of ``headrace up`` that ``config`` and ``doctor`` take as well."""
SECTION = r"(^##+ {name}\n(?:(?!^##).)*?^```\n{usage}\n```\n)(.*?)(?=^##+ |\Z)"
OPTIONS = re.compile(r"\n(?:\| option \| \|\n(?:\|.*\n)*)?\n?(?:(?:And|With) `--(?:[^\n]+\n)+)?")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its whole name, without the groups."""
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"headrace {name} {each}", part) for each, part in command.commands.items())
        else:
            yield f"headrace {name}", command


def with_options(document: str) -> str:
    """The document, with the options of each command after its usage."""
    for name, command in commands():
        usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
        section = SECTION.format(name=re.escape(name), usage=re.escape(usage))
        pattern = re.compile(section, re.MULTILINE | re.DOTALL)
        document = pattern.sub(lambda found, command=command, name=name: _section(found, name, command), document)
    return document


def _section(found: re.Match[str], name: str, command: click.Command) -> str:
    rest = OPTIONS.sub("", found[2], count=1).strip("\n")
    parts = [found[1].rstrip("\n"), "\n".join(_options(name, command)), rest]
    end = "\n" if found.end() == len(found.string) else "\n\n"
    return "\n\n".join(part for part in parts if part) + end


def _options(name: str, command: click.Command) -> list[str]:
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    elsewhere = (*SHARED, *SERVED, "--config") if name in ("headrace config", "headrace doctor") else SHARED
    shared = [long for each in options if (long := _long(each)) in elsewhere]
    rows = [_row(each) for each in options if _long(each) not in elsewhere]
    lines = ["| option | |", "|---|---|", *rows] if rows else []
    if shared:
        names = f"{'And' if rows else 'With'} {', '.join(f'`{each}`' for each in shared)}."
        lines += [""] * bool(rows) + textwrap.wrap(names, 100, break_on_hyphens=False)
    return lines


def _long(option: click.Option) -> str:
    return next((each for each in option.opts if each.startswith("--")), option.opts[0])


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{each}`" for each in sorted(option.opts, key=len))
    metavar = "" if option.is_flag else f" `{_plain(_metavar(option))}`"
    text = _plain(" ".join((option.help or "").split()))
    shown = option.show_default and option.default not in (None, "", ()) and not option.is_flag
    default = f" Default: `{_plain(str(option.default))}`." if shown else ""
    variable = f" Also `{option.envvar}`." if isinstance(option.envvar, str) else ""
    return f"| {names}{metavar} | {text}{default}{variable} |"


def _metavar(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    if isinstance(option.type, click.Path):
        return "FILE"
    return "TEXT" if isinstance(option.type, click.types.StringParamType) else "N"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
