"""What commands have in common: options, connections, tables and JSON."""

from __future__ import annotations

import base64
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.errors import BadArgument
from headrace.terminal import is_live

if TYPE_CHECKING:
    from headrace.client import Client, TopicPartition

__all__ = [
    "bootstrap_option",
    "complete_groups",
    "complete_topics",
    "confirm",
    "connect",
    "id_text",
    "output_option",
    "partitions_of",
    "say",
    "say_leaderless",
    "settings_of",
    "show",
    "stopping_on_signals",
    "timeout_option",
    "visible",
]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
COMPLETION_TIMEOUT_MS = 500
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
DAMAGE_TIMEOUT_MS = 1_500
"""A person should learn soon that a partition is damaged. A leader that is being elected is there by then."""


def bootstrap_option(command: F) -> F:
    return click.option(
        "-b",
        "--bootstrap",
        envvar="HEADRACE_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The broker to talk to; several are separated by commas.",
    )(command)


def timeout_option(command: F) -> F:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for the broker.",
    )(command)


def output_option(command: F) -> F:
    return click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="A table to read, or JSON for programs.",
    )(command)


def connect(bootstrap: str, timeout: float = 30.0) -> Client:
    from headrace.client import Client, ClientOptions

    timeout_ms = int(timeout * 1000)
    options = ClientOptions(
        client_id="headrace-cli",
        connect_timeout_ms=min(timeout_ms, 10_000),
        request_timeout_ms=timeout_ms,
        retry_timeout_ms=timeout_ms,
        damage_timeout_ms=DAMAGE_TIMEOUT_MS,
    )
    return Client(bootstrap, options)


def say(line: str) -> None:
    """A line for a person; on stderr, so that pipes carry only data."""
    click.echo(line, err=True)


def progress(label: str, total: int) -> Any:
    """A bar on stderr, where it can be drawn."""
    return click.progressbar(length=max(total, 1), label=label, file=sys.stderr, hidden=not is_live(sys.stderr))


def say_leaderless(partitions: Sequence[str]) -> None:
    """A table has no figures for partitions without a leader. Say why, and what to do."""
    if partitions:
        from headrace.cli.failure import DAMAGED

        say(f"headrace: {', '.join(partitions)}: no leader ({DAMAGED})")


def show(rows: Sequence[dict[str, Any]], output: str, *, columns: Sequence[str]) -> None:
    """Rows as a table of the named columns, or as JSON with all their fields."""
    if output == "json":
        click.echo(json.dumps(list(rows), indent=2))
        return
    if rows:
        click.echo("\n".join(table(rows, columns)))


def table(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """Lines with aligned columns: numbers to the right, everything else to the left."""
    titles = [column.replace("_", " ").upper() for column in columns]
    body = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in [titles, *body]) for index in range(len(columns))]
    numeric = [all(_is_number(line[index]) for line in body) for index in range(len(columns))]

    def align(cells: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return [click.style(align(titles), bold=True), *map(align, body)]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return visible(",".join(map(str, value)))
    return visible(str(value))


def visible(text: str) -> str:
    """Names are chosen by clients: what would move the cursor, or turn the text around, is shown by its number."""
    return UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.lstrip("+-").replace(".", "", 1).isdecimal()


def settings_of(pairs: Sequence[str], option: str, example: str = "retention.ms=60000") -> dict[str, str]:
    """``NAME=VALUE`` arguments as a dict."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadArgument(f"{option} {pair!r} is not NAME=VALUE", f"for example {option} {example}")
        found[name.strip()] = value
    return found


def partitions_of(client: Client, topic: str, wanted: str | None = None) -> list[TopicPartition]:
    """A topic's partitions, all or those in a list such as ``0,3,5-7``."""
    from headrace.client import TopicPartition

    count = len(client.topic(topic).partitions)
    if wanted is None:
        return [TopicPartition(topic, index) for index in range(count)]
    indexes: set[int] = set()
    for part in wanted.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise BadArgument(f"{wanted!r} is not a list of partitions", "for example 0 or 0,3,5-7")
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high < count:
            raise BadArgument(f"topic {topic!r} has partitions 0 to {count - 1}, not {part.strip()}")
        indexes.update(range(low, high + 1))
    return [TopicPartition(topic, index) for index in sorted(indexes)]


def confirm(question: str, yes: bool) -> None:
    """Ask a person before something that cannot be undone; a script, which cannot answer, must say --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadArgument(question.rstrip("?") + ": nobody is there to confirm it", "pass --yes")
    click.confirm(question, abort=True, err=True)


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """The first signal asks for a clean stop, the second does not wait for it."""
    stop = threading.Event()

    def asked(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {each: signal.signal(each, asked) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def id_text(topic_id: bytes) -> str:
    """A topic's id as Kafka's own tools write it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _complete(context, incomplete, lambda client: [topic.name for topic in client.topics()])


def complete_groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from headrace.client import Groups

    return _complete(context, incomplete, lambda client: [group.name for group in Groups(client).list_all()])


def _complete(context: click.Context, incomplete: str, names: Callable[[Client], list[str]]) -> list[str]:
    """Names from the broker; a shell must not hang or show errors, so whatever fails completes to nothing."""
    bootstrap = context.params.get("bootstrap") or DEFAULT_BOOTSTRAP
    try:
        with connect(bootstrap, COMPLETION_TIMEOUT_MS / 1000) as client:
            return [name for name in names(client) if name.startswith(incomplete)]
    except Exception:
        return []
