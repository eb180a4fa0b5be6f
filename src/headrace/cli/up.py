"""``headrace up``: the embedded broker."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.settings import load_settings, settings_options

__all__ = ["command"]


@click.command("up")
@settings_options
@click.option("--log-file", metavar="FILE", help="A file for the log of messages, besides the terminal.")
@click.option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR; default: INFO.")
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
) -> int:
    """Serve: the embedded broker, in the foreground.

    Prints one line per listener and then "ready" to stdout, and a log of messages to stderr. Ctrl-C or SIGTERM finishes
    what is in flight and exits 0; a second one ends the process at once. SIGHUP opens the log file
    again; without a log file it stops too, unless nohup started it.

    \b
      headrace up                                        on 127.0.0.1:9092, queues on 5672, data in ./headrace-data
      headrace up --amqp off                             without queues
      headrace up --kafka 127.0.0.1:0 --data /tmp/log    on a port of its choice
      headrace up --set num.partitions=4                 any setting: headrace config lists them
    """
    flags = {"data": data, "kafka": kafka, "amqp": amqp, "metrics": metrics, "http": http, "insecure": insecure}
    settings = load_settings(file, pairs, **flags, **{"log.file": log_file, "log.level": log_level})
    from headrace.node import serve

    return serve(settings, click.echo)
