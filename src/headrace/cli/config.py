"""``headrace config``: every setting, its value and where it came from."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.settings import load_settings, settings_options
from headrace.cli.shared import output_option, show
from headrace.errors import BadArgument

__all__ = ["command"]


@click.command("config")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--changed", is_flag=True, help="Only settings that do not have their default.")
@settings_options
@output_option
def command(
    names: tuple[str, ...],
    changed: bool,
    data: str | None,
    kafka: str | None,
    amqp: str | None,
    metrics: str | None,
    http: str | None,
    file: Path | None,
    insecure: bool | None,
    pairs: tuple[str, ...],
    output: str,
) -> None:
    """Show every setting and where its value came from.

    Takes the same options as "headrace up", and reads the same file and environment: what it shows is what "up" would
    use. NAME may be the beginning of names: "headrace config group." shows those of groups.
    """
    settings = load_settings(
        file, pairs, data=data, kafka=kafka, amqp=amqp, metrics=metrics, http=http, insecure=insecure
    )
    from headrace.config import BROKER_SETTINGS, show_value

    rows = [
        {
            "setting": name,
            "value": show_value(settings.get(name)),
            "from": settings.origin(name),
            "default": show_value(declared.default),
            "meaning": declared.doc,
        }
        for name, declared in BROKER_SETTINGS.items()
        if (not names or name.startswith(names)) and not (changed and settings.origin(name) == "default")
    ]
    if names and not rows and not changed:
        raise BadArgument(f"no setting begins with {' or '.join(names)}", "list all: headrace config")
    show(rows, output, columns=["setting", "value", "from"])
