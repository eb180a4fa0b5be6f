"""``headrace up``: the embedded broker."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.settings import load_settings, settings_options

__all__ = ["command"]


@click.command("up")
@settings_options
def command(
    data: str | None,
    kafka: str | None,
    amqp: str | None,
    metrics: str | None,
    http: str | None,
    file: Path | None,
    insecure: bool | None,
    pairs: tuple[str, ...],
) -> int:
    """Serve: the embedded broker, in the foreground.

    Prints one line per listener and then "ready". Ctrl-C or SIGTERM finishes what is in flight and exits 0.

    \b
      headrace up                                        on 127.0.0.1:9092, data in ./headrace-data
      headrace up --kafka 127.0.0.1:0 --data /tmp/log    on a port of its choice
      headrace up --set num.partitions=4                 any setting: headrace config lists them
    """
    settings = load_settings(
        file, pairs, data=data, kafka=kafka, amqp=amqp, metrics=metrics, http=http, insecure=insecure
    )
    from headrace.node import serve

    return serve(settings, click.echo)
