"""``headrace capture``: databases into the log."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.shared import (
    bootstrap_option,
    confirm,
    connect,
    output_option,
    say,
    settings_of,
    show,
    timeout_option,
)
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.capture.options import CaptureOptions
    from headrace.capture.run import Capture
    from headrace.capture.source import Progress

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])
SHOWN_EVERY_S = 1.0


@click.group("capture")
def command() -> None:
    """Capture the changes of databases into topics."""


def capture_options(command: F) -> F:
    """What ``add`` and ``run`` both take."""
    options = [
        click.option("--tables", metavar="SCHEMA.TABLE,…", help="Which tables; default: all that the user may read."),
        click.option("--prefix", metavar="P", help="Topics are P.SCHEMA.TABLE; default: the capture's name."),
        click.option("--partitions", type=click.IntRange(min=1), help="Of topics that capture makes; default: 1."),
        click.option("--topic-config", multiple=True, metavar="K=V", help="A setting of topics that capture makes."),
        click.option("--unwrap", is_flag=True, help="Values are plain rows instead of Debezium's envelope."),
        click.option("--decimals", type=click.Choice(["precise", "string", "double"]), help="Default: precise."),
        click.option("--times", type=click.Choice(["numbers", "strings"]), help="Default: numbers, as Debezium."),
        click.option("--transactions", is_flag=True, help="Begin and end of transactions into P.transaction."),
        click.option(
            "--outbox", metavar="SCHEMA.TABLE", help="A table whose rows are events, routed by aggregatetype."
        ),
        click.option("--no-snapshot", is_flag=True, help="Only changes from now on."),
        click.option("--triggers", is_flag=True, help="Follow PostgreSQL without the right to replicate."),
        click.option("--streaming", is_flag=True, help="Let PostgreSQL send large transactions before they commit."),
        click.option("--heartbeat", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Default: 10."),
        click.option("--chunk-rows", type=click.IntRange(min=1), help="Rows of a snapshot read at once."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def options_of(name: str, url: str, given: dict[str, Any]) -> CaptureOptions:
    from headrace.capture.options import CaptureOptions

    values: dict[str, Any] = {"name": name, "url": url}
    for each in ("prefix", "partitions", "decimals", "times", "outbox", "chunk_rows"):
        if given[each] is not None:
            values[each] = given[each]
    if given["tables"]:
        values["tables"] = tuple(each.strip() for each in given["tables"].split(",") if each.strip())
    if given["heartbeat"] is not None:
        values["heartbeat_ms"] = int(given["heartbeat"] * 1000)
    flags = {each: given[each] for each in ("unwrap", "transactions", "triggers", "streaming")}
    config = settings_of(given["topic_config"], "--topic-config")
    return CaptureOptions(**values, **flags, topic_config=config, snapshot=not given["no_snapshot"])


# ---- add, list, remove ----------------------------------------------------------------------------------------------


@command.command("add")
@click.argument("name")
@click.argument("url")
@capture_options
@bootstrap_option
@timeout_option
def add(name: str, url: str, bootstrap: str, timeout: float, **given: Any) -> None:
    """Check a database and remember it as a capture, for ``run``. Adding a name again changes it."""
    from headrace.capture.passwords import keep_password
    from headrace.capture.source import open_source
    from headrace.capture.state import Registry

    options = options_of(name, url, given)
    source = open_source(options, None)
    with contextlib.closing(source):
        notes = source.check()
    with connect(bootstrap, timeout) as client:
        Registry(client).put(options)
    if options.database.password is not None:
        say(f"the password is kept in {keep_password(name, options.database.password)}, not in the log")
    say(f"added {name}: {'; '.join(notes)} (start it: headrace capture run {name})")


@command.command("list")
@bootstrap_option
@timeout_option
@output_option
def list_captures(bootstrap: str, timeout: float, output: str) -> None:
    """List the captures that were added."""
    from headrace.capture.state import Registry

    with connect(bootstrap, timeout) as client:
        rows = [
            {
                "name": each.name,
                "database": each.database.shown,
                "prefix": each.topic_prefix,
                "tables": list(each.tables) or ["all"],
            }
            for each in Registry(client).all().values()
        ]
    if not rows and output == "table":
        say("no captures yet (make one: headrace capture add NAME URL)")
    show(rows, output, columns=["name", "database", "prefix", "tables"])


@command.command("remove")
@click.argument("name")
@click.option(
    "--keep-database", is_flag=True, help="Leave slot, publications and triggers; also when the database is gone."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@timeout_option
def remove(name: str, keep_database: bool, yes: bool, bootstrap: str, timeout: float) -> None:
    """Forget a capture and take away what it left in the database. Its topics stay."""
    from headrace.capture.passwords import forget_password, with_password
    from headrace.capture.source import open_source
    from headrace.capture.state import Registry

    with connect(bootstrap, timeout) as client:
        registry = Registry(client)
        options = registry.get(name)
        confirm(f"Remove capture {name} of {options.database.shown}?", yes)
        removed: list[str] = []
        if not keep_database:
            with contextlib.closing(open_source(with_password(options), None)) as source:
                removed = source.remove()
        registry.remove(name)
    forget_password(name)
    say(f"removed {name}" + (f" with {', '.join(removed)}" if removed else "") + "; its topics are still there")


# ---- status ---------------------------------------------------------------------------------------------------------


@command.command("status")
@click.argument("name", required=False)
@bootstrap_option
@timeout_option
@output_option
def status(name: str | None, bootstrap: str, timeout: float, output: str) -> None:
    """Show how far captures are: position, lag, snapshots. Exits 1 when one is not well."""
    from headrace.capture.state import Registry

    with connect(bootstrap, timeout) as client:
        registry = Registry(client)
        captures = [registry.get(name)] if name else list(registry.all().values())
        rows = [row for each in captures for row in _status_rows(client, each)]
    if not rows and output == "table":
        say("no captures yet (make one: headrace capture add NAME URL)")
    show(rows, output, columns=["name", "health", "position", "lag_bytes", "retained_bytes", "snapshot", "rows"])
    if any(row["health"] != "ok" for row in rows):
        sys.exit(1)


def _status_rows(client: Any, options: CaptureOptions) -> list[dict[str, Any]]:
    from headrace.capture.passwords import with_password
    from headrace.capture.source import Progress, SourceStatus, open_source
    from headrace.capture.state import read_state
    from headrace.errors import HeadraceError

    state = read_state(client, options.name)
    try:
        with contextlib.closing(open_source(with_password(options), None)) as source:
            found = source.status()
    except HeadraceError as error:
        found = SourceStatus(health=f"unreachable: {error}")
    if not state.get("position") and found.health in ("no slot", "no change table"):
        found.health = "ok"  # it has never run
    progress = {name: Progress.from_json(each) for name, each in state.get("snapshots", {}).items()}
    return [
        {
            "name": options.name,
            "health": found.health,
            "position": found.position or None,
            "lag_bytes": found.lag_bytes,
            "retained_bytes": found.retained_bytes,
            "snapshot": _snapshot_text(progress),
            "rows": sum(each.rows for each in progress.values()),
            "tables": {name: each.as_json() for name, each in progress.items()},
        }
    ]


def _snapshot_text(progress: dict[str, Progress]) -> str:
    if not progress:
        return "not begun"
    done = sum(each.done for each in progress.values())
    return "done" if done == len(progress) else f"{done} of {len(progress)} tables"


# ---- run ------------------------------------------------------------------------------------------------------------


@command.command("run")
@click.argument("name")
@click.argument("url", required=False)
@click.option("--available-now", is_flag=True, help="End when everything that is committed now is in the log.")
@click.option("--resnapshot", is_flag=True, help="Begin anew after a lost slot: a truncation, then all rows again.")
@capture_options
@bootstrap_option
@output_option
def run(
    name: str, url: str | None, available_now: bool, resnapshot: bool, bootstrap: str, output: str, **given: Any
) -> None:
    """Capture, in the foreground, until Ctrl-C.

    NAME is one that was added; with a URL nothing needs to have been added.
    """
    from headrace.capture.passwords import with_password
    from headrace.capture.run import Capture
    from headrace.capture.state import Registry

    with connect(bootstrap) as client:
        client.brokers()  # a wrong address is told at once, not tried for ever
        if url is None:
            _refuse_options(given)
            options = with_password(Registry(client).get(name))
        else:
            options = options_of(name, url, given)
    capture = Capture(bootstrap, options, say=say)
    with _stopping_on_signals() as stop, _Screen(capture, output):
        say(f"capturing {options.database.shown} into {options.topic_prefix}.*")
        capture.run(stop, until_current=available_now, resnapshot=resnapshot)
    say(f"stopped; {capture.figures.events} events in {capture.figures.commits} transactions")


def _refuse_options(given: dict[str, Any]) -> None:
    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if used:
        raise UsageError(
            f"{', '.join(used)} cannot change a capture that was added", "add it again with the new options"
        )


@contextlib.contextmanager
def _stopping_on_signals() -> Iterator[threading.Event]:
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


class _Screen:
    """Shows from a thread of its own what the run does: a line for people, JSON lines for programs."""

    def __init__(self, capture: Capture, output: str) -> None:
        self._capture = capture
        self._json = output == "json"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="headrace-capture-screen", daemon=True)
        self._rates: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> _Screen:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        shown = ""
        while not self._ended.wait(SHOWN_EVERY_S):
            line = self._line()
            if line != shown:
                shown = line
                click.echo(line, err=not self._json)

    def _line(self) -> str:
        figures = self._capture.figures
        progress = self._capture.snapshots()
        if self._json:
            tables = {name: each.as_json() for name, each in progress.items()}
            return json.dumps({"events": figures.events, "commits": figures.commits, "snapshots": tables})
        reading = [self._table(name, each) for name, each in progress.items() if not each.done and each.rows]
        return "; ".join([f"{figures.events} events", *reading])

    def _table(self, name: str, progress: Progress) -> str:
        began_s, rows = self._rates.setdefault(name, (time.monotonic(), progress.rows))
        rate = (progress.rows - rows) / max(0.001, time.monotonic() - began_s)
        left = max(0, progress.rows_expected - progress.rows)
        remaining = f", {left / rate:.0f} s left" if rate and left else ""
        return f"snapshot of {name}: {progress.rows} of about {progress.rows_expected} rows, {rate:.0f}/s{remaining}"
