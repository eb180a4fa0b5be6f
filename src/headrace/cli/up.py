"""``headrace up``: the embedded broker."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.settings import load_settings, settings_file, settings_options

if TYPE_CHECKING:
    from headrace.config import Settings

__all__ = ["command"]

PATHS = ("log.file", "http.token.file", "amqp.users.file")


@click.command("up")
@settings_options
@click.option("--log-file", metavar="FILE", help="A file for the log of messages, besides the terminal.")
@click.option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR; default: INFO.")
@click.option("--log-format", metavar="FORMAT", help="text or json; default: text.")
@click.option("--print-unit", is_flag=True, help="Print a systemd unit that starts this, and exit.")
def command(
    data: str | None,
    kafka: str | None,
    amqp: str | None,
    metrics: str | None,
    http: str | None,
    file: Path | None,
    insecure: bool | None,
    pairs: tuple[str, ...],
    log_file: str | None,
    log_level: str | None,
    log_format: str | None,
    print_unit: bool,
) -> int:
    """Serve: the embedded broker, in the foreground.

    Prints one line per listener and then "ready" to stdout, and a log of messages to stderr. Ctrl-C or SIGTERM finishes
    what is in flight and exits 0; a second one ends the process at once. SIGHUP opens the log file
    again; without a log file it stops too, unless nohup started it.

    \b
      headrace up                                        on 127.0.0.1:9092, queues on 5672, data in ./headrace-data
      headrace up --http 127.0.0.1:8080                  with the web console; its address is printed
      headrace up --amqp off                             without queues
      headrace up --kafka 127.0.0.1:0 --data /tmp/log    on a port of its choice
      headrace up --set num.partitions=4                 any setting: headrace config lists them
      headrace up --data /var/lib/headrace --print-unit > /etc/systemd/system/headrace.service
    """
    flags = {"data": data, "kafka": kafka, "amqp": amqp, "metrics": metrics, "http": http, "insecure": insecure}
    logging = {"log.file": log_file, "log.level": log_level, "log.format": log_format}
    settings = load_settings(file, pairs, **flags, **logging)
    if print_unit:
        click.echo(_unit(settings, file, pairs, flags | logging), nl=False)
        return 0
    from headrace.node import serve

    return serve(settings, click.echo)


def _unit(settings: Settings, file: Path | None, pairs: tuple[str, ...], flags: dict[str, Any]) -> str:
    """A unit that starts what these options start here, from any directory and without this environment. It runs as
    the user who asks, or as headrace if that is root."""
    from headrace.systemd import unit

    data = os.path.abspath(settings.text("data"))
    command = [str(Path(sys.executable).with_name("headrace")), "up", "--data", data]
    used_file = settings_file(file)
    if used_file is not None:
        command += ["--config", str(used_file.absolute())]
    for name, value in flags.items():
        if name == "insecure" and value:
            command.append("--insecure")
        elif name not in ("data", "insecure", *PATHS) and value is not None:
            command += [f"--{name.replace('.', '-')}", str(value)]
    for pair in pairs:
        command += ["--set", pair]
    for name, text in _of_this_place(settings).items():
        command += ["--set", f"{name}={text}"]
    user = "headrace" if os.getuid() == 0 else getpass.getuser()
    log_file = settings.text("log.file")
    return unit(command, user=user, data=data, log_file=os.path.abspath(log_file) if log_file else "")


def _of_this_place(settings: Settings) -> dict[str, str]:
    """Settings that mean something else elsewhere: those from the environment, and paths, as absolute ones."""
    from headrace.config import BROKER_SETTINGS, show_value

    found = {
        name: show_value(settings.get(name))
        for name in BROKER_SETTINGS
        if settings.origin(name).startswith("environment ") and name != "data"
    }
    return found | {name: os.path.abspath(settings.text(name)) for name in PATHS if settings.text(name)}
