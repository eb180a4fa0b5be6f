"""``headrace capture``: databases into the log."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
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
    stopping_on_signals,
    timeout_option,
)
from headrace.errors import BadArgument, HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.capture.options import CaptureOptions
    from headrace.capture.run import Capture
    from headrace.capture.source import Progress
    from headrace.capture.state import Registry
    from headrace.client import Client

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])
SHOWN_EVERY_S = 1.0
START_S = 5.0
"""How long the broker may take for its first answer; later it is waited for."""
FORM = (
    *("unwrap", "decimals", "times", "schemas", "masks"),
    *("include_columns", "exclude_columns", "key_columns"),
)
"""Options that decide what a record looks like."""


@click.group("capture")
def command() -> None:
    """Capture the changes of databases into topics."""


def capture_options(command: F) -> F:
    """What ``add`` and ``run`` both take."""
    options = [
        click.option(
            "--tables", metavar="SCHEMA.TABLE,…", help="Tables to capture; default: all that the user may read."
        ),
        click.option(
            "--exclude-tables", metavar="SCHEMA.TABLE,…", help="Tables not to capture. Both take patterns: public.log_*"
        ),
        click.option("--include-columns", metavar="SCHEMA.TABLE.COLUMN,…", help="Only these columns, in every table."),
        click.option("--exclude-columns", metavar="SCHEMA.TABLE.COLUMN,…", help="Columns to remove from rows."),
        click.option(
            "--mask",
            "masks",
            multiple=True,
            metavar="SCHEMA.TABLE.COLUMN=HOW",
            help="Hide values: hash, hash:SALT, null, truncate:N or ****. Repeatable.",
        ),
        click.option(
            "--key-columns",
            multiple=True,
            metavar="SCHEMA.TABLE:COL,COL",
            help="The message key of a table, instead of its primary key. Repeatable.",
        ),
        click.option("--prefix", metavar="P", help="Topics are P.SCHEMA.TABLE; default: the capture's name."),
        click.option(
            "--partitions", type=click.IntRange(min=1), help="Partitions of topics that capture creates; default: 1."
        ),
        click.option("--topic-config", multiple=True, metavar="K=V", help="A setting of topics that capture creates."),
        click.option("--unwrap", is_flag=True, help="Values are plain rows instead of Debezium's envelope."),
        click.option(
            "--decimals",
            type=click.Choice(["precise", "string", "double"]),
            help="Form of decimals; default: string. Debezium's: precise.",
        ),
        click.option(
            "--times",
            type=click.Choice(["numbers", "strings"]),
            help="Form of times; default: strings. Debezium's: numbers.",
        ),
        click.option("--transactions", is_flag=True, help="Write begin and end of transactions to P.transaction."),
        click.option(
            "--outbox", metavar="SCHEMA.TABLE", help="A table whose rows are events, routed by aggregatetype."
        ),
        click.option("--schemas", is_flag=True, help="Keys and values carry their schema, as in Kafka Connect."),
        click.option(
            "--on-replaced",
            type=click.Choice(["resnapshot", "stop"]),
            help="When a table was dropped and created again, or swapped; default: resnapshot.",
        ),
        click.option("--no-snapshot", is_flag=True, help="Only changes from now on."),
        click.option(
            "--triggers", is_flag=True, help="Capture PostgreSQL by triggers, without the right to replicate."
        ),
        click.option("--streaming", is_flag=True, help="Let PostgreSQL send large transactions before they commit."),
        click.option(
            "--heartbeat",
            type=click.FloatRange(min=0.1),
            metavar="SECONDS",
            help="Interval of heartbeats; default: 10.",
        ),
        click.option("--chunk-rows", type=click.IntRange(min=1), help="Rows in a chunk of a snapshot."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def options_of(name: str, url: str, given: dict[str, Any]) -> CaptureOptions:
    from headrace.capture.options import CaptureOptions

    values: dict[str, Any] = {"name": name, "url": url}
    for each in ("prefix", "partitions", "decimals", "times", "outbox", "chunk_rows", "on_replaced"):
        if given[each] is not None:
            values[each] = given[each]
    for each in ("tables", "exclude_tables", "include_columns", "exclude_columns"):
        values[each] = _listed(given[each] or "")
        if given[each] is not None and not values[each]:
            raise BadArgument(f"--{each.replace('_', '-')} is empty", "name something, or leave the option out")
    if given["heartbeat"] is not None:
        values["heartbeat_ms"] = int(given["heartbeat"] * 1000)
    values["masks"] = settings_of(given["masks"], "--mask")
    values["key_columns"] = dict(map(_key_columns, given["key_columns"]))
    flags = {each: given[each] for each in ("unwrap", "transactions", "triggers", "streaming", "schemas")}
    config = settings_of(given["topic_config"], "--topic-config")
    return CaptureOptions(**values, **flags, topic_config=config, snapshot=not given["no_snapshot"])


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _key_columns(text: str) -> tuple[str, tuple[str, ...]]:
    table, colon, columns = text.partition(":")
    if not colon or not table.strip() or not _listed(columns):
        raise BadArgument(f"--key-columns {text} names no table and columns", "write SCHEMA.TABLE:COLUMN,COLUMN")
    return table.strip(), _listed(columns)


# ---- add, list, remove ----------------------------------------------------------------------------------------------


@command.command("add")
@click.argument("name")
@click.argument("url")
@capture_options
@bootstrap_option
@timeout_option
def add(name: str, url: str, bootstrap: str, timeout: float, **given: Any) -> None:
    """Check a database and remember it as a capture, for ``run``. Adding a name again changes it."""
    from headrace.capture.state import Registry

    options = options_of(name, url, given)
    notes = _checked(options)
    with connect(bootstrap, timeout) as client:
        registry = Registry(client)
        notes += _changes(client, registry.find(name), options)
        registry.put(options)
    _keep_password(options)
    say(f"added {name}: {'; '.join(notes)} (start it: headrace capture run {name})")


def _changes(client: Client, before: CaptureOptions | None, now: CaptureOptions) -> list[str]:
    """What new options of a known capture mean for its process and its topics; notes for the user."""
    from headrace.capture.report import KIND
    from headrace.capture.state import read_state
    from headrace.client import read_state_records

    if before is None or before.stored() == now.stored():
        return []
    changed = [_option(each) for each in FORM if getattr(before, each) != getattr(now, each)]
    has_run = "position" in read_state(client, now.name)
    if has_run and before.topic_prefix != now.topic_prefix:
        raise UsageError(
            f"{now.name} has written topics {before.topic_prefix}.*; with another --prefix the rows so far would be "
            "missing in the new ones",
            f"add it under another name; or first: headrace capture remove {now.name}",
        )
    notes = []
    if has_run and changed:
        notes.append(
            f"its topics keep records with the old {', '.join(changed)} (to replace them, run it once with "
            "--resnapshot)"
        )
    report = read_state_records(client, KIND).get(now.name)
    if report is not None and report.is_alive():
        notes.append(f"process {report.pid} on {report.host} runs it with the old options until it is started again")
    return notes


def _checked(options: CaptureOptions) -> list[str]:
    """Ask the database for everything that capture needs; notes for the user come back."""
    from headrace.capture.hidden import check_columns
    from headrace.capture.outbox import check_outbox
    from headrace.capture.source import hiding_passwords, open_source

    with hiding_passwords(options), contextlib.closing(open_source(options, None)) as source:
        notes = source.check()
        if not options.chooses_columns and not options.outbox:
            return notes
        columns = source.columns()
        if options.outbox:
            check_outbox(source.options.outbox, columns.get(source.options.outbox, ()))
        return notes + check_columns(source.options, columns)


def _keep_password(options: CaptureOptions) -> None:
    from headrace.capture.passwords import keep_password

    written = options.database.written_password
    if written is not None:
        say(f"the password is kept in {keep_password(options.name, written)}, not in the log")


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
    from headrace.capture.passwords import with_password
    from headrace.capture.run import REFRESH_S, end_running
    from headrace.capture.state import Registry

    with connect(bootstrap, timeout) as client:
        registry = Registry(client)
        options = registry.get(name)
        confirm(f"Remove capture {name} of {options.database.shown}?", yes)
        if not keep_database:
            _reached(with_password(options))
        if end_running(client, options) and not keep_database:
            time.sleep(2 * REFRESH_S)  # a process that still runs it notices that within one look at its tables
        removed = _forgotten(registry, with_password(options), keep_database=keep_database)
    say(f"removed {name}" + (f" with {', '.join(removed)}" if removed else "") + "; its topics are still there")


def _reached(options: CaptureOptions) -> None:
    """What capture has left in a database that cannot be reached would stay there, so nothing is removed at all."""
    from headrace.capture.source import hiding_passwords, open_source

    try:
        with hiding_passwords(options):
            open_source(options, None).close()
    except HeadraceError as error:
        raise UsageError(
            error.message,
            f"correct its address with 'headrace capture add {options.name} URL …'; or leave the database as it is: "
            f"headrace capture remove {options.name} --keep-database",
        ) from error


def _forgotten(registry: Registry, options: CaptureOptions, *, keep_database: bool = False) -> list[str]:
    """Take a capture out of its database and out of the log; gives what the database had of it."""
    from headrace.capture.passwords import forget_password
    from headrace.capture.source import hiding_passwords, open_source

    removed: list[str] = []
    if not keep_database:
        with hiding_passwords(options), contextlib.closing(open_source(options, None)) as source:
            removed = source.remove()
    registry.remove(options.name)
    forget_password(options.name)
    return removed


# ---- status ---------------------------------------------------------------------------------------------------------


@command.command("status")
@click.argument("name", required=False)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C; in a pipe, a line per change.")
@bootstrap_option
@timeout_option
@output_option
def status(name: str | None, watch: bool, bootstrap: str, timeout: float, output: str) -> None:
    """Show whether captures run and how far they are. Exits 1 when one does not run or is not well."""
    from headrace.cli.capture_status import is_well, shown, status_rows, watched

    with connect(bootstrap, timeout) as client:
        if watch:
            watched(client, name, output)
            return
        rows = status_rows(client, name)
    if not rows and output == "table":
        say("no captures yet (make one: headrace capture add NAME URL)")
    shown(rows, output)
    if not all(map(is_well, rows)):
        sys.exit(1)


# ---- snapshot -------------------------------------------------------------------------------------------------------


@command.command("snapshot")
@click.argument("name")
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@bootstrap_option
@timeout_option
def snapshot(name: str, tables: tuple[str, ...], bootstrap: str, timeout: float) -> None:
    """Ask a capture to read tables again: a truncation, then all rows, while changes go on."""
    from headrace.capture.report import KIND
    from headrace.capture.signals import SIGNALS_CONFIG, signal_topic, snapshot_signal
    from headrace.capture.state import Registry, read_state
    from headrace.client import Producer, read_state_records
    from headrace.client.positioned import ensure_topic

    with connect(bootstrap, timeout) as client:
        options = Registry(client).get(name)
        state = read_state(client, name)
        report = read_state_records(client, KIND).get(name)
        asked = _captured(tables, list(state.get("snapshots", {})))
        topic = signal_topic(options.topic_prefix)
        ensure_topic(client, topic, partitions=1, config=SIGNALS_CONFIG)
        with Producer(client) as producer:
            producer.send(topic, snapshot_signal(asked), key=options.topic_prefix.encode(), partition=0)
    runs = report is not None and report.is_alive()
    later = "" if runs else f" when it runs (headrace capture run {name})"
    say(f"{name} reads {', '.join(asked)} again{later}")


def _captured(tables: tuple[str, ...], captured: list[str]) -> list[str]:
    """The names in full; a table that is not captured is refused, as far as the capture's state says."""
    from headrace.capture.patterns import is_pattern, matches

    found = []
    for table in tables:
        same = [each for each in captured if each == table or each.endswith(f".{table}")]
        if not same and not (is_pattern(table) and any(matches(table, each) for each in captured)):
            known = ", ".join(captured) or "none yet, it has never run"
            raise UsageError(f"{table} is not captured", f"captured: {known}")
        found.append(same[0] if same else table)
    return found


# ---- run ------------------------------------------------------------------------------------------------------------


@command.command("run")
@click.argument("name")
@click.argument("url", required=False)
@click.option("--available-now", is_flag=True, help="End when everything that is committed now is in the log.")
@click.option("--resnapshot", is_flag=True, help="Start again after a lost slot: a truncation, then all rows.")
@capture_options
@bootstrap_option
@output_option
def run(
    name: str, url: str | None, available_now: bool, resnapshot: bool, bootstrap: str, output: str, **given: Any
) -> None:
    """Capture, in the foreground, until Ctrl-C.

    NAME is one that was added; with a URL, a new NAME is added first.
    """
    from headrace.capture.options import counted
    from headrace.capture.run import Capture, CaptureTakenOver
    from headrace.capture.state import Registry
    from headrace.client import ClientOptions, StatePublisher
    from headrace.client.broker_watch import BrokerWatch

    with connect(bootstrap, START_S) as client:
        client.brokers()  # a wrong address is reported at once, not tried for ever
    with connect(bootstrap) as client:
        registry = Registry(client)
        is_new = url is not None and registry.find(name) is None
        options = _stored(registry, name, given) if url is None else _registered(registry, options_of(name, url, given))
    watch = BrokerWatch(bootstrap, ClientOptions(client_id="headrace-capture-watch"), say)
    publisher = StatePublisher(bootstrap, trouble=lambda line: None if watch.is_away else say(line))
    capture = Capture(bootstrap, options, say=say, publisher=publisher)
    try:
        with stopping_on_signals() as stop, publisher, watch, _Screen(capture, output):
            say(f"capturing {options.database.shown} into {options.topic_prefix}.*")
            capture.run(stop, until_current=available_now, resnapshot=resnapshot)
    except HeadraceError as error:
        if is_new and not capture.figures.events and not isinstance(error, CaptureTakenOver):
            _withdraw(bootstrap, options)
        raise
    say(f"stopped; {counted(capture.figures.events, 'event')} in {counted(capture.figures.commits, 'commit')}")


def _withdraw(bootstrap: str, options: CaptureOptions) -> None:
    """A new capture fails before its first event: it is not added, so it can be corrected."""
    from headrace.capture.state import Registry

    try:
        with connect(bootstrap) as client:
            _forgotten(Registry(client), options)
    except HeadraceError as error:
        say(f"{options.name} stays added ({error}); to take it away: headrace capture remove {options.name}")
    else:
        say(f"{options.name} was not added; correct this and run it again:")


def _stored(registry: Registry, name: str, given: dict[str, Any]) -> CaptureOptions:
    """What was added; what to do about replaced tables may be decided for one run."""
    from dataclasses import replace

    from headrace.capture.passwords import with_password

    decided = given.pop("on_replaced")
    used = [f"--{option.replace('_', '-')}" for option, value in given.items() if value]
    if used:
        raise UsageError(
            f"{', '.join(used)} cannot change a capture that was added", "add it again with the new options"
        )
    options = with_password(registry.get(name))
    return replace(options, on_replaced=decided) if decided else options


def _registered(registry: Registry, options: CaptureOptions) -> CaptureOptions:
    """A new name is added, so that ``list``, ``status`` and ``remove`` know it; a known one must mean the same."""
    from headrace.capture.passwords import with_password
    from headrace.capture.source import DatabaseGone

    known = registry.find(options.name)
    if known is None:
        with contextlib.suppress(DatabaseGone):  # which is waited for, as by every run
            _checked(options)
        registry.put(options)
        _keep_password(options)
        return options
    before, now = known.stored(), options.stored()
    different = sorted(each for each in before.keys() | now.keys() if before.get(each) != now.get(each))
    if different:
        raise UsageError(
            f"capture {options.name} was added with another {', '.join(_option(each) for each in different)}",
            f"run what was added: headrace capture run {options.name}; or change it: "
            f"headrace capture add {options.name} URL …, with all options that it is to have",
        )
    if with_password(known).url != options.url and options.database.written_password is not None:
        with contextlib.suppress(DatabaseGone):
            _checked(options)  # a wrong password is not kept
            _keep_password(options)
    return with_password(options)


def _option(stored: str) -> str:
    """The option of the command line that a stored one comes from."""
    others = {"url": "URL", "masks": "--mask", "snapshot": "--no-snapshot", "heartbeat_ms": "--heartbeat"}
    return others.get(stored, f"--{stored.replace('_', '-')}")


class _Screen:
    """Shows from a separate thread what the run does: a line for people, JSON lines for programs."""

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
        from headrace.capture.options import counted

        figures = self._capture.figures
        progress = self._capture.snapshots()
        if self._json:
            tables = {name: each.as_json() for name, each in progress.items()}
            return json.dumps({"events": figures.events, "commits": figures.commits, "snapshots": tables})
        reading = [self._table(name, each) for name, each in progress.items() if not each.done and each.rows]
        return "; ".join([counted(figures.events, "event"), *reading])

    def _table(self, name: str, progress: Progress) -> str:
        began_s, rows = self._rates.setdefault(name, (time.monotonic(), progress.rows))
        rate = (progress.rows - rows) / max(0.001, time.monotonic() - began_s)
        left = max(0, progress.rows_expected - progress.rows)
        remaining = f", {left / rate:.0f} s left" if rate and left else ""
        return f"snapshot of {name}: {progress.rows} of about {progress.rows_expected} rows, {rate:.0f}/s{remaining}"
