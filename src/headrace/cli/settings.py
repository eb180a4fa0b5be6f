"""The settings of a broker as the command line gives them: flags, environment, file, defaults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.shared import settings_of

if TYPE_CHECKING:
    from headrace.config import Settings

__all__ = ["load_settings", "settings_options"]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_FILE = Path("headrace.toml")

_OPTIONS = [
    click.option("--data", metavar="DIR", help="Where everything is kept."),
    click.option("--kafka", metavar="HOST:PORT", help="Where to listen for Kafka clients; port 0 chooses one."),
    click.option(
        "--amqp", metavar="HOST:PORT", help="Where to listen for AMQP clients; default: 127.0.0.1:5672; off: no queues."
    ),
    click.option("--metrics", metavar="HOST:PORT", help="Where to serve /metrics, /health and /ready; default: off."),
    click.option("--http", metavar="HOST:PORT", help="Where to serve the web console; default: off."),
    click.option(
        "--config",
        "file",
        envvar="HEADRACE_CONFIG",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The settings file; default: headrace.toml in this folder, where there is one.",
    ),
    click.option("--insecure", is_flag=True, default=None, help="Allow a public address without authentication."),
    click.option("-s", "--set", "pairs", multiple=True, metavar="NAME=VALUE", help="Any other setting; repeatable."),
]


def settings_options(command: F) -> F:
    """The options that change settings, in the order in which help shows them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings_file(given: Path | None) -> Path | None:
    """The file that is read: the one that was named, or the one in this folder, if there is one."""
    return given or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)


def load_settings(file: Path | None, pairs: tuple[str, ...], **flags: Any) -> Settings:
    from headrace.config import Settings

    given = {name: value for name, value in flags.items() if value is not None}
    return Settings.load(file=settings_file(file), flags={**settings_of(pairs, "--set"), **given})
