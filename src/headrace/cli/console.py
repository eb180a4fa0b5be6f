"""``headrace console``: the web console in front of any Kafka broker."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from headrace.cli.shared import bootstrap_option
from headrace.errors import BadArgument, UsageError

__all__ = ["command"]

DEFAULT_HTTP = "127.0.0.1:8080"


@click.command("console")
@bootstrap_option
@click.option(
    "--http", default=DEFAULT_HTTP, show_default=True, metavar="HOST:PORT", help="Where to serve; port 0 chooses one."
)
@click.option("--read-only", is_flag=True, help="Look at everything, change nothing.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name by which browsers reach it; repeatable.")
@click.option(
    "--client-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Client settings by Kafka's names, NAME=VALUE a line: security.protocol, sasl.password and so on.",
)
@click.option("--insecure", is_flag=True, help="Allow a public address: the token is then sent unencrypted.")
def command(
    bootstrap: str,
    http: str,
    read_only: bool,
    hosts: tuple[str, ...],
    client_config: Path | None,
    insecure: bool,
) -> int:
    """Serve the web console in front of any Kafka broker.

    Prints its address with a token and then "ready". The token is a new one at every start; the browser keeps it as a
    cookie. A broker that is not there yet is waited for. Ctrl-C or SIGTERM ends it.

    \b
      headrace console                                   in front of 127.0.0.1:9092
      headrace console -b kafka-1:9092,kafka-2:9092 --read-only
      headrace up --http 127.0.0.1:8080                  the same, as a child of the broker
    """
    from headrace.client.connection import parse_addresses
    from headrace.console.serving import serve_console
    from headrace.server import bind, parse_address, refuse_public

    parse_addresses(bootstrap)
    settings = {} if client_config is None else read_properties(client_config)
    host, port = parse_address(http, "http")
    refuse_public(host, insecure=insecure)
    sockets = bind(host, port)
    token = secrets.token_urlsafe(24)
    shown, chosen = sockets[0].getsockname()[:2]
    place = f"[{shown}]:{chosen}" if ":" in shown else f"{shown}:{chosen}"

    def ready() -> None:
        click.echo(f"console http://{place}/?token={token}")
        click.echo("ready")

    serve_console(
        bootstrap,
        sockets,
        token=token,
        read_only=read_only,
        hosts=hosts,
        client_settings=settings,
        on_ready=ready,
    )
    return 0


def read_properties(file: Path) -> dict[str, str]:
    """The lines of a properties file as Kafka's tools take them, without continuations; values are never printed."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise BadArgument(f"line {number} of {file} is not NAME=VALUE", "for example security.protocol=SASL_SSL")
        found[name.strip()] = value.strip()
    return found
