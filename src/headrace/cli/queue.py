"""``headrace queue``: list, describe, peek, purge, move, redrive, restore, create, delete."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.queue_filter import MessageFilter, filter_options
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
from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.client import MoveResult, QueuedMessage, QueueInfo

__all__ = ["command"]

PEEK_COUNT = 10
PREVIEW_BYTES = 60
PROGRESS_EVERY = 10_000


def _source_options(call: Any) -> Any:
    for option in (
        timeout_option,
        click.option("--vhost", default="/", show_default=True, help="The virtual host."),
        click.option(
            "--management",
            metavar="URL",
            envvar="HEADRACE_MANAGEMENT",
            help="RabbitMQ's management API instead of --bootstrap: http://user:password@host:15672",
        ),
        bootstrap_option,
    ):
        call = option(call)
    return call


@contextmanager
def _queues(bootstrap: str, management: str | None, vhost: str, timeout: float) -> Iterator[Any]:
    """``Queues`` or ``RabbitMq``: they have the same calls for looking."""
    if management is not None:
        from headrace.client.rabbitmq import PEEKED_MAX, RabbitMq

        with RabbitMq(management, vhost, timeout_s=timeout) as rabbitmq:
            yield rabbitmq
            if not rabbitmq.has_shown_all:
                say(f"headrace: RabbitMQ shows at most {PEEKED_MAX:,} messages of a queue, and there may be more")
        return
    from headrace.client import Queues

    with connect(bootstrap, timeout) as client:
        yield Queues(client, vhost)


def _headrace_only(management: str | None, what: str) -> None:
    if management is not None:
        raise BadArgument(f"RabbitMQ cannot {what}", "use --bootstrap with a headrace broker")


@click.group("queue")
def command() -> None:
    """List, describe, peek, purge, move, redrive and restore queues."""


@command.command("list")
@_source_options
@output_option
def list_queues(bootstrap: str, management: str | None, vhost: str, timeout: float, output: str) -> None:
    """List queues with what waits in them."""
    with _queues(bootstrap, management, vhost, timeout) as queues:
        rows = [_row(each) for each in queues.list_all()]
    if not rows and output == "table":
        say("no queues yet (make one: headrace queue create NAME)")
    show(rows, output, columns=["name", "ready", "unacknowledged", "consumers", "published", "bytes", "kind"])
    for row in rows:
        if row["error"] and output == "table":
            say(f"headrace: queue {row['name']} cannot be served: {row['error']}")


def _row(queue: QueueInfo) -> dict[str, Any]:
    kinds = {
        "durable": queue.is_durable,
        "auto-delete": queue.is_auto_delete,
        "exclusive": queue.is_exclusive,
        "quorum": queue.arguments.get("x-queue-type") == "quorum",
        "stream": queue.is_stream,
    }
    return {
        "name": queue.name,
        "ready": queue.ready,
        "unacknowledged": queue.unacknowledged,
        "consumers": queue.consumers,
        "published": queue.published if queue.lanes else None,
        "bytes": queue.bytes_on_disk if queue.lanes else None,
        "kind": [name for name, is_so in kinds.items() if is_so],
        "error": queue.error,
    }


@command.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_source_options
@output_option
def describe(
    names: tuple[str, ...], bootstrap: str, management: str | None, vhost: str, timeout: float, output: str
) -> None:
    """Show a queue's counts, arguments, bindings and what its log has."""
    with _queues(bootstrap, management, vhost, timeout) as queues:
        found = [_described(queues.describe(name)) for name in names]
    if output == "json":
        show(found, output, columns=[])
        return
    for queue in found:
        click.echo(click.style(queue["name"], bold=True))
        show(
            [queue], output, columns=["ready", "unacknowledged", "consumers", "published", "retained", "bytes", "kind"]
        )
        show(queue["arguments"], output, columns=["argument", "value"])
        show(queue["bindings"], output, columns=["exchange", "routing_key", "arguments"])
        show(queue["lanes"], output, columns=["priority", "start", "floor", "cursor", "end", "bytes"])


def _described(queue: QueueInfo) -> dict[str, Any]:
    return {
        **_row(queue),
        "retained": queue.retained if queue.lanes else None,
        "arguments": [{"argument": name, "value": _plain(value)} for name, value in sorted(queue.arguments.items())],
        "bindings": [
            {"exchange": each.source, "routing_key": each.routing_key, "arguments": _plain(each.arguments) or None}
            for each in queue.bindings
        ],
        "lanes": [
            {
                "priority": number,
                "start": lane.start,
                "floor": lane.floor,
                "cursor": lane.cursor,
                "end": lane.end,
                "bytes": lane.bytes_on_disk,
            }
            for number, lane in enumerate(queue.lanes)
        ],
    }


@command.command("peek")
@click.argument("name")
@filter_options
@click.option("--gone", is_flag=True, help="Also messages that are acknowledged and still kept.")
@_source_options
@output_option
def peek(
    name: str,
    wanted: MessageFilter,
    gone: bool,
    bootstrap: str,
    management: str | None,
    vhost: str,
    timeout: float,
    output: str,
) -> None:
    """Look at the next messages without taking them."""
    wanted = wanted if wanted.count is not None else replace(wanted, count=PEEK_COUNT)
    body_bytes = PREVIEW_BYTES if output == "table" else -1
    with _queues(bootstrap, management, vhost, timeout) as queues:
        if gone:
            _headrace_only(management, "show acknowledged messages: it does not keep them")
        found = list(wanted.chosen(queues.messages(name, body_bytes_max=body_bytes, with_gone=gone)))
    now_ms = int(time.time() * 1000)
    if not found and output == "table":
        say(f"no such messages in queue {name}")
    columns = ["offset", "state", "age", "exchange", "routing_key", "died", "bytes", "body"]
    show([_shown(each, now_ms, output) for each in found], output, columns=columns)


def _shown(message: QueuedMessage, now_ms: int, output: str) -> dict[str, Any]:
    death = message.death
    text: str | None
    row: dict[str, Any] = {
        "lane": message.lane,
        "offset": message.offset,
        "state": message.state,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "died": f"{death.get('reason')} in {death.get('queue')}" if death else None,
        "bytes": message.body_bytes,
    }
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
        text = None if output == "json" else repr(message.body)
    if output == "table":
        age_s = None if message.enqueued_ms is None else max(0, now_ms - message.enqueued_ms) // 1000
        assert text is not None
        return {**row, "age": f"{age_s}s" if age_s is not None else None, "body": text.replace("\n", " ")}
    return {**row, "enqueued_ms": message.enqueued_ms, "body": text, "properties": _plain(message.properties)}


@command.command("purge")
@click.argument("name")
@filter_options
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_source_options
def purge(
    name: str,
    wanted: MessageFilter,
    dry_run: bool,
    yes: bool,
    bootstrap: str,
    management: str | None,
    vhost: str,
    timeout: float,
) -> None:
    """Remove messages that are ready; with filters, only those that fit."""
    with _queues(bootstrap, management, vhost, timeout) as queues:
        if dry_run:
            _say_dry(queues, name, wanted, "remove")
            return
        which = "all" if wanted.is_everything else "the chosen"
        confirm(f"remove {which} messages of queue {name}?", yes)
        if wanted.is_everything:
            say(f"removed {queues.purge(name)} messages")
        elif management is not None:
            _report(queues.drop(name, wanted.fits, count=wanted.count), "removed")
        else:
            _report(queues.drop(name, _ready(queues, name, wanted)), "removed")


def _ready(queues: Any, name: str, wanted: MessageFilter) -> Iterator[QueuedMessage]:
    return wanted.chosen(each for each in queues.messages(name, body_bytes_max=0) if each.state == "ready")


def _say_dry(queues: Any, name: str, wanted: MessageFilter, verb: str) -> None:
    say(f"would {verb} {sum(1 for _ in _ready(queues, name, wanted))} messages")


def _report(steps: Iterator[MoveResult], verb: str) -> None:
    """Say how far it is now and then, and at the end what was not done and why."""
    done, told = None, 0
    for done in steps:
        if done.moved - told >= PROGRESS_EVERY:
            told = done.moved
            say(f"{verb} {told} messages so far")
    if done is None:
        say(f"{verb} 0 messages")
        return
    say(f"{verb} {done.moved} messages")
    for number, why in (
        (done.not_ready, "were taken by a consumer or gone by then"),
        (done.unroutable, "have no queue to go to, and stay"),
        (done.refused, "were refused by a queue that is full, and stay"),
    ):
        if number:
            say(f"headrace: {number} {why}")


@command.command("move")
@click.argument("name")
@click.argument("target", required=False)
@click.option("--exchange", metavar="NAME", help="Publish to this exchange instead of moving to a queue.")
@click.option("--with-key", metavar="KEY", help="The routing key for it; default: each message's.")
@filter_options
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_source_options
def move(
    name: str,
    target: str | None,
    exchange: str | None,
    with_key: str | None,
    wanted: MessageFilter,
    dry_run: bool,
    yes: bool,
    bootstrap: str,
    management: str | None,
    vhost: str,
    timeout: float,
) -> None:
    """Move messages that are ready to another queue, or publish them to an exchange.

    A message is written and flushed there before it goes here. If the broker is killed in between it is in both:
    marked as redelivered here, and with the header x-headrace-moved-from there.
    """
    if (target is None) == (exchange is None):
        raise BadArgument("say where the messages go", "give a queue, or --exchange NAME")
    where = f"queue {target}" if target is not None else f"exchange {exchange}"
    with _queues(bootstrap, management, vhost, timeout) as queues:
        if dry_run:
            _say_dry(queues, name, wanted, f"move to {where}")
            return
        confirm(f"move messages of queue {name} to {where}?", yes)
        if target is not None:
            queues.describe(target)  # which says that it does not exist, also when there is nothing to move
        place = {"exchange": exchange or "", "routing_key": target if target is not None else with_key}
        if management is not None:
            _report(queues.move(name, wanted.fits, count=wanted.count, **place), "moved")
        else:
            _report(queues.move(name, _ready(queues, name, wanted), **place), "moved")


@command.command("redrive")
@click.argument("name")
@filter_options
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_source_options
def redrive(
    name: str,
    wanted: MessageFilter,
    dry_run: bool,
    yes: bool,
    bootstrap: str,
    management: str | None,
    vhost: str,
    timeout: float,
) -> None:
    """Bring dead letters back to the queues they came from."""
    with _queues(bootstrap, management, vhost, timeout) as queues:
        if dry_run:
            _say_origins(queues, name, wanted)
            return
        confirm(f"bring the dead letters in queue {name} back?", yes)
        if management is not None:
            _report(queues.redrive(name, wanted.fits, count=wanted.count), "brought back")
        else:
            _report(queues.redrive(name, _ready(queues, name, wanted)), "brought back")


def _say_origins(queues: Any, name: str, wanted: MessageFilter) -> None:
    counts: dict[str, int] = {}
    for each in _ready(queues, name, wanted):
        origin = str(each.death.get("queue", ""))
        counts[origin] = counts.get(origin, 0) + 1
    for origin, number in sorted(counts.items()):
        say(f"would bring {number} back to queue {origin}" if origin else f"{number} are no dead letters, and stay")
    if not counts:
        say("would bring back 0 messages")


@command.command("restore")
@click.argument("name")
@filter_options
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_source_options
def restore(
    name: str,
    wanted: MessageFilter,
    dry_run: bool,
    yes: bool,
    bootstrap: str,
    management: str | None,
    vhost: str,
    timeout: float,
) -> None:
    """Bring back messages that were acknowledged, expired or dropped, and are still kept.

    A queue keeps them if headrace.queue.retention.ms, or its argument x-headrace-retention-ms, says so.
    """
    _headrace_only(management, "restore messages: it does not keep what was acknowledged")
    with _queues(bootstrap, None, vhost, timeout) as queues:
        gone = (each for each in queues.messages(name, body_bytes_max=0, with_gone=True) if _is_gone(each))
        chosen = wanted.chosen(gone)
        if dry_run:
            say(f"would restore {sum(1 for _ in chosen)} messages")
            return
        which = "all that are kept" if wanted.is_everything else "the chosen"
        confirm(f"restore acknowledged messages of queue {name}, {which}?", yes)
        restored = 0
        for restored in queues.restore(name, chosen):
            if restored >= PROGRESS_EVERY:
                say(f"restored {restored} messages so far")
        say(f"restored {restored} messages")


def _is_gone(message: QueuedMessage) -> bool:
    return message.state == "acknowledged"


@command.command("create")
@click.argument("name")
@click.option(
    "-a",
    "--argument",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument such as x-max-length=10; repeatable.",
)
@click.option("--bind", "binding", metavar="EXCHANGE[:KEY]", help="Bind it to an exchange.")
@_source_options
def create(
    name: str,
    pairs: tuple[str, ...],
    binding: str | None,
    bootstrap: str,
    management: str | None,
    vhost: str,
    timeout: float,
) -> None:
    """Make a durable queue; one that exists must be the same."""
    _headrace_only(management, "be asked for that here: use rabbitmqadmin")
    from headrace.client import BindingInfo

    arguments = {
        key: _number_or_text(value) for key, value in settings_of(pairs, "--argument", "x-max-length=10").items()
    }
    exchange, _, key = (binding or "").partition(":")
    with _queues(bootstrap, None, vhost, timeout) as queues:
        if binding is not None and all(each.name != exchange for each in queues.exchanges()):
            raise BadArgument(
                f"no exchange {exchange!r} in vhost {vhost!r}", "declare it before a queue is bound to it"
            )
        queues.create_queue(name, arguments)
        if binding is not None:
            queues.bind(BindingInfo(source=exchange, destination=name, routing_key=key))


def _number_or_text(value: str) -> int | bool | str:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.lstrip("-").isdecimal() else value


@command.command("delete")
@click.argument("name")
@click.option("--if-empty", is_flag=True, help="Only if it has no messages.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_source_options
def delete(
    name: str, if_empty: bool, yes: bool, bootstrap: str, management: str | None, vhost: str, timeout: float
) -> None:
    """Delete a queue with its messages."""
    _headrace_only(management, "be asked for that here: use rabbitmqadmin")
    confirm(f"delete queue {name} and its messages?", yes)
    with _queues(bootstrap, None, vhost, timeout) as queues:
        count = queues.delete_queue(name, if_empty=if_empty)
    say(f"deleted; {count} messages were ready")


@command.command("bridge")
@click.argument("url", metavar="AMQP_URL")
@click.argument("name", metavar="QUEUE")
@click.argument("topic")
@click.option(
    "--until-idle",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="End when no message has come for this long.",
)
@bootstrap_option
@timeout_option
def bridge(url: str, name: str, topic: str, until_idle: float | None, bootstrap: str, timeout: float) -> None:
    """Move the messages of any AMQP broker's queue into a topic: written, then acknowledged."""
    from headrace.client.bridge import bridge as run

    with connect(bootstrap, timeout) as client:
        say(f"bridged {run(url, name, client, topic, idle_s=until_idle)} messages")


def _plain(value: Any) -> Any:
    """What of AMQP's values JSON has, and the others as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return json.loads(json.dumps(value, default=str)) if isinstance(value, dict | list | tuple) else value
