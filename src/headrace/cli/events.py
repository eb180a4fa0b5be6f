"""``headrace events``: event stores at the command line."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.address import Address
from headrace.cli.shared import (
    bootstrap_option,
    confirm,
    output_option,
    progress,
    say,
    settings_of,
    show,
    stopping_on_signals,
    visible,
)
from headrace.client.places import parse_time_ms
from headrace.errors import BadArgument, HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.sourcing import Decider, Event, EventStore, Projection, Query, RecordedEvent

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])
NUMBER = click.IntRange(min=0, max=2**62)


class Name(click.ParamType[str]):
    """What is compared with names in a store, so it must be Unicode: a terminal may send other bytes."""

    name = "text"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        try:
            str(value).encode()
        except UnicodeEncodeError:
            self.fail(f"{value!r} is no UTF-8", parameter, context)
        return str(value)


NAME = Name()
FIELDS = ("type", "data", "tags", "event_id", "correlation_id", "causation_id", "actor", "schema_version", "personal")


@click.group("events")
def command() -> None:
    """Append to event stores, read, replay and forget."""


def keys_options(command: F) -> F:
    command = click.option("--master", type=click.Path(path_type=Path), help="The master key; default: FILE.master.")(
        command
    )
    return click.option("--keys", type=click.Path(path_type=Path), help="The file with the keys of subjects.")(command)


@contextlib.contextmanager
def opened(store: str, keys: Path | None, master: Path | None, *, must_exist: bool = True) -> Iterator[EventStore]:
    """A store by its address. One that is only read must be there: a typing error should not make one."""
    from headrace.sourcing import open_store
    from headrace.sourcing.opening import sqlite_path

    is_file = "://" not in store or store.startswith("sqlite:")
    if must_exist and is_file and not (path := sqlite_path(store if "://" in store else f"sqlite:///{store}")).exists():
        shown = Address(store).shown if "@" in store else path  # somebody may have meant an address with a password
        raise UsageError(f"there is no store {shown}", "headrace events append makes one")
    if must_exist and keys is not None and not keys.exists():
        raise UsageError(f"there is no key file {keys}", "headrace events append --personal … --keys FILE makes one")
    found = None
    if keys is not None:
        from headrace.sourcing.keys import KeyStore

        is_new = not keys.exists()
        found = KeyStore(keys, master_file=master)
        if is_new:  # one that was mistyped too: what it encrypts, the other file cannot decrypt
            say(f"made the key file {keys} and its master key {found.master_file}: keep both, apart from the store")
    with open_store(store, keys=found, create=not must_exist) as events:
        yield events


# ---- append ---------------------------------------------------------------------------------------------------------


@command.command("append")
@click.argument("store")
@click.argument("stream")
@click.option("--type", "kind", metavar="TYPE", help="The type of one event; without it, lines of JSON are read.")
@click.option("--data", default="{}", metavar="JSON", help="Its data, an object.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag; repeatable.")
@click.option("--personal", multiple=True, metavar="FIELD=SUBJECT", help="A field that is encrypted for a subject.")
@click.option("--id", "event_id", metavar="ID", help="Its id; a second append with it changes nothing.")
@click.option("--expected", default="any", metavar="VERSION", help="any, none, exists or the version of the stream.")
@click.option("--command-id", metavar="ID", help="All events of one command; a second append with it changes nothing.")
@click.option("--actor", metavar="NAME", help="Who did it.")
@keys_options
def append(
    store: str, stream: str, kind: str | None, expected: str, command_id: str | None, actor: str | None, **given: Any
) -> None:
    """Append one event, or the events on standard input, all or none.

    STORE is a file, sqlite:///FILE, postgresql://… or kafka://HOST:PORT/TOPIC. Each line of standard input is an object
    with type, data and, if wanted, tags, event_id, correlation_id, causation_id, actor, schema_version and personal.
    """
    if kind is None:
        events = [_event_of(line, number) for number, line in enumerate(sys.stdin, 1) if line.strip()]
    else:
        tags, personal = list(given["tags"]), settings_of(given["personal"], "--personal", "name=customer-7")
        fields = {"type": kind, "data": _object(given["data"], "--data"), "tags": tags, "personal": personal}
        events = [_made({**fields, "event_id": given["event_id"]}, "the event")]
    if not events:
        say("standard input has no event: nothing is appended")
    with opened(store, given["keys"], given["master"], must_exist=False) as found, saying_warnings():
        done = found.append(
            stream,
            [event.caused_by(None, actor) for event in events],
            expected=_expected(expected),
            command_id=command_id,
        )
    again = " (they were there already)" if done.repeated else ""
    click.echo(f"{stream} is at version {done.version}, the store at position {done.position}{again}")


@contextlib.contextmanager
def saying_warnings() -> Iterator[None]:
    """Warnings as lines for a person, without the place in our code."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    for each in dict.fromkeys(str(warning.message) for warning in seen):
        say(f"warning: {each}")


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"{where} is no JSON: {error}", """for example '{"amount": 5}'""") from None
    if not isinstance(found, dict):
        raise BadArgument(f"{where} is no object", """for example '{"amount": 5}'""")
    return found


def _event_of(line: str, number: int) -> Event:
    return _made(_object(line, f"line {number}"), f"line {number}")


def _made(fields: dict[str, Any], where: str) -> Event:
    from headrace.sourcing import Event

    unknown = sorted(set(fields) - set(FIELDS))
    if unknown or "type" not in fields:
        what = f"has unknown fields: {', '.join(unknown)}" if unknown else "has no type"
        raise BadArgument(f"{where} {what}", f"an event has {', '.join(FIELDS)}")
    try:
        return Event(**fields)
    except UsageError as error:
        raise BadArgument(f"{where}: {error.message}", error.hint) from None


def _expected(text: str) -> Any:
    if text in ("any", "none", "exists"):
        return text
    if not text.isdecimal():
        raise BadArgument(f"--expected {text} is no version", "use any, none, exists or a number")
    return int(text)


# ---- read -----------------------------------------------------------------------------------------------------------


@command.command("read")
@click.argument("store")
@click.argument("stream", required=False, type=NAME)
@click.option(
    "--category", "categories", multiple=True, type=NAME, metavar="NAME", help="Streams whose names begin with NAME-."
)
@click.option("--type", "types", multiple=True, type=NAME, metavar="TYPE", help="Only these types.")
@click.option("--tag", "tags", multiple=True, type=NAME, metavar="TAG", help="Only events with all of these tags.")
@click.option("--after", type=NUMBER, default=0, help="Begin after this version, or position.")
@click.option("--until", type=NUMBER, help="End with this version, or position.")
@click.option("--at", metavar="TIME", help="Only what was recorded until then: 2026-01-31T12:00Z, -15m.")
@click.option("--limit", type=click.IntRange(min=1), help="At most N.")
@click.option("--backwards", is_flag=True, help="The newest first.")
@click.option("-f", "--follow", is_flag=True, help="Then wait for new events.")
@keys_options
@output_option
def read(store: str, stream: str | None, at: str | None, output: str, follow: bool, **given: Any) -> None:
    """Print the events of a stream, or of all streams, as a table or as a JSON object per line."""
    query = _query(given, stream)
    with opened(store, given["keys"], given["master"]) as found:
        if follow:
            _check_follow(stream, at, given)
            with stopping_on_signals() as stop:
                _print(found.subscribe(query, after=given["after"], stop=stop), output)
            return
        _say_unknown(found, stream)
        is_filtered = given["types"] or given["tags"] or given["categories"]
        if not _print(_selected(found, stream, query, at, given), output) and is_filtered:
            say("no event matches; types, tags and categories are compared exactly")


def _say_unknown(store: EventStore, stream: str | None) -> None:
    if stream is not None and not store.version(stream):
        say(f"{store.shown} has no stream {stream}; see: headrace events streams STORE")


def _query(given: dict[str, Any], stream: str | None) -> Query:
    from headrace.sourcing import Query

    streams = [] if stream is None else [stream]
    return Query.of(types=given["types"], tags=given["tags"], categories=given["categories"], streams=streams)


def _selected(
    store: EventStore, stream: str | None, query: Query, at: str | None, given: dict[str, Any]
) -> Iterator[RecordedEvent]:
    """By version where a stream is named, and by position where it is not. The limit counts what is printed."""
    last = None if at is None else store.position_at(_moment(at))
    after, until, limit, backwards = (given[name] for name in ("after", "until", "limit", "backwards"))
    if stream is None:
        ends = [each for each in (until, last) if each is not None]
        return store.read_all(query, after=after, until=min(ends, default=None), limit=limit, backwards=backwards)
    found = store.read(stream, after=after, until=until, backwards=backwards)
    matching = (event for event in found if query.matches(event) and (last is None or event.position <= last))
    return islice(matching, limit)


def _check_follow(stream: str | None, at: str | None, given: dict[str, Any]) -> None:
    if stream is not None and given["after"]:
        raise BadArgument("--follow goes by positions of the whole store", "leave --after out, or the stream")
    if at is not None or given["until"] is not None or given["limit"] is not None or given["backwards"]:
        raise BadArgument("--follow has no end", "leave out --at, --until, --limit and --backwards")


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(parse_time_ms(text, time.time_ns() // 1_000_000) / 1000, UTC)


def _print(events: Iterator[RecordedEvent], output: str) -> int:
    """Line by line: a store may be long. Gives how many there were."""
    count = 0
    for event in events:
        count += 1
        if output == "json":
            click.echo(json.dumps(event.as_dict(), ensure_ascii=False))
        else:
            where = f"{event.stream} {event.version}" if event.stream else "-"
            data = json.dumps(event.as_dict()["data"], ensure_ascii=False)
            line = f"{event.position}  {event.recorded_at:%Y-%m-%d %H:%M:%S}  {where}  {event.type}  {data}"
            click.echo(visible(line))
        sys.stdout.flush()
    return count


@command.command("streams")
@click.argument("store")
@click.option("--category", type=NAME, metavar="NAME", help="Streams whose names begin with NAME-.")
@click.option("--after", default="", type=NAME, metavar="NAME", help="Begin after this name.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most N.")
@output_option
def streams(store: str, category: str | None, after: str, limit: int, output: str) -> None:
    """List the streams of a store with their versions."""
    with opened(store, None, None) as found:
        rows = [each._asdict() for each in found.streams(category, after=after, limit=limit)]
    show(rows, output, columns=["stream", "version", "first_position", "last_position"])


# ---- replay ---------------------------------------------------------------------------------------------------------


@command.command("replay")
@click.argument("store")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("name")
@click.option(
    "--stream", type=NAME, metavar="STREAM", help="The stream that a decider or an aggregate is replayed over."
)
@click.option("--until", type=NUMBER, help="End with this version.")
@click.option("--at", metavar="TIME", help="End with what was recorded until then: 2026-01-31T12:00Z, -15m.")
@click.option("--view", metavar="URL", help="The database whose view a projection is rebuilt in.")
@keys_options
@output_option
def replay(store: str, file: Path, name: str, stream: str | None, view: str | None, output: str, **given: Any) -> None:
    """Run events again through the code in FILE: see each state, or rebuild a view.

    NAME is a Decider or an Aggregate in FILE: the state after each event of --stream is printed, which shows where a
    bug began. Or it is a Projection: its view in --view is derived again beside the one in use, which it then replaces.
    """
    from headrace.sourcing import Aggregate, Decider, Projection

    thing = _named(file, name)
    with opened(store, given["keys"], given["master"]) as found:
        if isinstance(thing, type) and issubclass(thing, Projection):
            thing = thing()
        if isinstance(thing, Projection):
            with code_of_user(file, f", while {name} is rebuilt"):
                _rebuild(found, thing, view)
        elif isinstance(thing, Decider) or (isinstance(thing, type) and issubclass(thing, Aggregate)):
            if stream is None:
                raise BadArgument(f"{name} is replayed over a stream", "name it: --stream account-1")
            _say_unknown(found, stream)
            last = None if given["at"] is None else found.position_at(_moment(given["at"]))
            _show_states(found, thing, file, stream, given["until"], last, output)
        else:
            raise UsageError(f"{name} in {file} is no Decider, Aggregate or Projection", "name one of these")


def _named(file: Path, name: str) -> Any:
    import runpy

    sys.path.insert(0, str(file.parent))
    with code_of_user(file, ""):
        names = runpy.run_path(str(file), run_name="headrace_events")
    if name not in names:
        raise UsageError(f"{file} has no {name}", "name a Decider, an Aggregate or a Projection in it")
    return names[name]


@contextlib.contextmanager
def code_of_user(file: Path, when: str) -> Iterator[None]:
    """What the code in a file raises is reported with its line: it is the user's to correct, and no error of ours."""
    try:
        yield
    except Exception as error:
        is_ours = isinstance(error, HeadraceError)
        raised = error.__cause__ or error if is_ours else error  # a statement that the database does not take
        lines = [each.lineno for each in traceback.extract_tb(raised.__traceback__) if each.filename == str(file)]
        if is_ours and (getattr(error, "retriable", False) or not lines):
            raise
        line = raised.lineno if isinstance(raised, SyntaxError) else (lines or [None])[-1]
        where = f"{file} line {line}" if line else str(file)
        raise UsageError(
            f"{where}: {type(raised).__name__}: {raised}{when}", "the traceback: HEADRACE_DEBUG=1"
        ) from error


def _rebuild(store: EventStore, projection: Projection, view: str | None) -> None:
    from headrace.sourcing import ProjectionRunner

    if view is None:
        raise BadArgument(f"{projection.name} is rebuilt in a database", "name it: --view sqlite:///views.db")
    runner = ProjectionRunner(store, view, projection)
    try:
        head = store.head()
        with progress(projection.name, head) as bar:
            position = runner.rebuild(lambda reached: bar.update(reached - bar.pos))
    finally:
        runner.close()
    click.echo(f"{projection.name} is rebuilt up to position {position}")


def _show_states(
    store: EventStore,
    thing: Decider[Any, Any] | type,
    file: Path,
    stream: str,
    until: int | None,
    last: int | None,
    output: str,
) -> None:
    with code_of_user(file, ", in the state without events"):
        state, evolve = _folding(thing)
    for event in store.read(stream, until=until):
        if last is not None and event.position > last:
            break
        with code_of_user(file, f", at version {event.version}, {event.type}"):
            state = evolve(state, event)
        shown = vars(state) if hasattr(state, "__dict__") else state
        if output == "json":
            click.echo(json.dumps({"event": event.as_dict(), "state": shown}, default=str, ensure_ascii=False))
        else:
            text = shown if isinstance(shown, str) else json.dumps(shown, default=str, ensure_ascii=False)
            data = json.dumps(event.as_dict()["data"], ensure_ascii=False)
            click.echo(visible(f"{event.version}  {event.type}  {data}  ->  {text}"))


def _folding(thing: Decider[Any, Any] | type) -> tuple[Any, Callable[[Any, Any], Any]]:
    from headrace.sourcing import Decider

    if isinstance(thing, Decider):
        return thing.initial(), thing.evolve

    def evolve(aggregate: Any, event: RecordedEvent) -> Any:
        aggregate.evolve(event)
        return aggregate

    return thing(), evolve


# ---- forget, publish ------------------------------------------------------------------------------------------------


@command.command("forget")
@click.argument("store")
@click.argument("subject", type=NAME)
@click.option("--keys", type=click.Path(exists=True, path_type=Path), required=True, help="The file with the keys.")
@click.option("--master", type=click.Path(path_type=Path), help="The master key; default: FILE.master.")
@click.option("--actor", metavar="NAME", help="Who asked for it.")
@click.option("--no-purge", is_flag=True, help="Leave deleted snapshots in the files until the next purge.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def forget(
    store: str, subject: str, keys: Path, master: Path | None, actor: str | None, no_purge: bool, yes: bool
) -> None:
    """Destroy a subject's key, so that nobody can read its fields any more. This cannot be undone."""
    with opened(store, keys, master) as found:
        if not found.has_events_of(subject):
            say(f"{found.shown} has no event of {subject}: is that the right name?")
        confirm(f"Destroy the key of {subject} for good?", yes)
        done = found.forget(subject, actor=actor)
        again = "was forgotten already" if done.repeated else "is forgotten"
        click.echo(f"{subject} {again}; views follow the event at position {done.position}, then purge their files")
        if not no_purge:
            found.purge()


@command.command("publish")
@click.argument("store")
@click.argument("topic")
@click.option(
    "--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="Partitions of a new topic."
)
@click.option("--available-now", is_flag=True, help="End when everything that is stored now is in the topic.")
@bootstrap_option
def publish(store: str, topic: str, partitions: int, available_now: bool, bootstrap: str) -> None:
    """Follow a store into a topic: each event once, in order, until Ctrl-C."""
    from headrace.sourcing.publishing import publish as follow

    with opened(store, None, None) as found, stopping_on_signals() as stop:
        say(f"publishing {found.shown} to {topic}")
        reached = follow(
            found, bootstrap, topic, partitions=partitions, stop=stop, until_current=available_now, say=say
        )
    if reached:
        say(f"stopped; {topic} has the store up to position {reached}")
    else:
        say(f"stopped; this run has published nothing to {topic}")
