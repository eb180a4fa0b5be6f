"""Queues of a headrace broker: what waits in them, how messages reach them, and dead letters brought back.

All of it goes through the broker's requests for administration (``headrace.client.Queues``). A broker without queues,
such as Apache Kafka, gives the reason instead.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from headrace.client import BindingInfo, MoveResult, QueuedMessage, Queues
from headrace.console.page import Action, Ask, Page, View, listing
from headrace.console.problems import BadRequest
from headrace.console.watch import QueueFigures

__all__ = ["PAGE"]

RANGE_S = 600
RANGE_S_MAX = 86_400
PEEK_MAX = 200
SCAN_MAX = 100_000
"""Messages that are looked at to find those that were chosen."""
BODY_BYTES = 4 * 1024
EXCHANGES_MAX = 500
BINDINGS_MAX = 2_000


def queues(ask: Ask) -> dict[str, Any]:
    seen = ask.console.watch.look()
    if seen.no_queues:
        return {"unavailable": seen.no_queues, **listing(ask, [], search=(), sort="name")}
    return {
        "unavailable": "",
        "problem": seen.problem,
        **listing(ask, [_row(each) for each in seen.queues.values()], search=("name",), sort="name"),
    }


def _row(figures: QueueFigures) -> dict[str, Any]:
    info = figures.info
    dead_to = info.arguments.get("x-dead-letter-exchange")
    return {
        "name": info.name,
        "ready": info.ready,
        "unacknowledged": info.unacknowledged,
        "consumers": info.consumers,
        "published_per_s": round(figures.published_per_s, 1),
        "delivered_per_s": round(figures.delivered_per_s, 1),
        "bytes": info.bytes_on_disk,
        "kind": info.arguments.get("x-queue-type") or "classic",
        "flags": [
            word
            for word, is_so in (
                ("transient", not info.is_durable),
                ("auto-delete", info.is_auto_delete),
                ("exclusive", info.is_exclusive),
            )
            if is_so
        ],
        "dead_letter_exchange": None if dead_to is None else str(dead_to),
        "error": info.error or "",
    }


def queue(ask: Ask) -> dict[str, Any]:
    """One queue with its bindings and those that lead to them."""
    name = ask.text("name")
    asked = Queues(ask.client)
    info = asked.describe(name)
    seen = ask.console.watch.look().queues.get(name)
    rates = (seen.published_per_s, seen.delivered_per_s) if seen else (0.0, 0.0)
    figures = QueueFigures(info=info, published_per_s=rates[0], delivered_per_s=rates[1])
    return {
        **_row(figures),
        "arguments": {key: _plain(value) for key, value in sorted(info.arguments.items())},
        "published": info.published,
        "retained": info.retained,
        "bindings": [_binding(each) for each in info.bindings[:BINDINGS_MAX]],
        "routes": _routes(asked, info.bindings),
        "charts": _charts(ask, name),
    }


def _binding(binding: BindingInfo) -> dict[str, Any]:
    return {
        "source": binding.source,
        "destination": binding.destination,
        "to_exchange": binding.is_to_exchange,
        "key": binding.routing_key,
        "arguments": {key: _plain(value) for key, value in binding.arguments.items()},
    }


def _routes(asked: Queues, bindings: tuple[BindingInfo, ...]) -> dict[str, Any]:
    """The exchanges from which messages reach a queue, over other exchanges too, and the bindings between them."""
    exchanges = {each.name: each for each in islice(asked.exchanges(), EXCHANGES_MAX)}
    links = [_binding(each) for each in bindings[:BINDINGS_MAX]]
    reached, waiting = set[str](), [each.source for each in bindings]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for exchange in exchanges.values():
            for each in exchange.bindings:
                if each.is_to_exchange and each.destination == name and each.source not in reached:
                    links.append(_binding(each))
                    waiting.append(each.source)
    kinds = {name: exchanges[name].kind if name in exchanges else "direct" for name in reached}
    return {"exchanges": [{"name": name, "kind": kinds[name]} for name in sorted(reached)], "links": links}


def _charts(ask: Ask, name: str) -> dict[str, Any]:
    range_s = ask.integer("range", RANGE_S, least=60, most=RANGE_S_MAX)
    history = ask.console.watch.history
    held = {"ready": f"ready/{name}", "unacknowledged": f"unacknowledged/{name}"}
    rates = {"published": f"published/{name}", "delivered": f"delivered/{name}"}
    return {
        "held": history.chart(held, time.time(), range_s),
        "rates": history.chart(rates, time.time(), range_s),
    }


# ---- messages ------------------------------------------------------------------------------------------------------


def peek(ask: Ask) -> dict[str, Any]:
    """The next messages, in the order in which they would be delivered. None is taken."""
    name = ask.text("name")
    count = ask.integer("count", 50, least=1, most=PEEK_MAX)
    wanted = ask.text("q", "").lower()
    found: list[dict[str, Any]] = []
    looked = 0
    for message in islice(Queues(ask.client).messages(name, body_bytes_max=BODY_BYTES), SCAN_MAX):
        looked += 1
        row = _message(message)
        if wanted in row["text"]:
            found.append(row)
            if len(found) == count:
                break
    return {"messages": [{key: each[key] for key in each if key != "text"} for each in found], "looked": looked}


def _message(message: QueuedMessage) -> dict[str, Any]:
    try:
        body, is_text = message.body.decode(), True
    except UnicodeDecodeError:
        body, is_text = base64.b64encode(message.body).decode(), False
    death = message.death
    properties = {key: _plain(value) for key, value in message.properties.items()}
    return {
        "lane": message.lane,
        "offset": message.offset,
        "state": message.state,
        "enqueued_ms": message.enqueued_ms,
        "exchange": message.exchange,
        "key": message.routing_key,
        "died": {"reason": str(death.get("reason")), "queue": str(death.get("queue"))} if death else None,
        "bytes": message.body_bytes,
        "body": body,
        "is_text": is_text,
        "properties": properties,
        "text": f"{message.exchange} {message.routing_key} {body} {properties}".lower(),
    }


def _chosen(asked: Queues, name: str, body: dict[str, Any]) -> Iterator[QueuedMessage]:
    """The ready messages that were chosen by lane and offset, or all of them, or all that are dead letters."""
    which = body.get("messages")
    ready = (each for each in asked.messages(name, body_bytes_max=0) if each.state == "ready")
    if which == "all":
        return ready
    if which == "dead":
        return (each for each in ready if each.death)
    if not isinstance(which, list) or len(which) > PEEK_MAX:
        raise BadRequest(f"messages are a list of at most {PEEK_MAX} places, or all, or dead")
    wanted = set()
    for each in which:
        match each:
            case [int(lane), int(offset)]:
                wanted.add((lane, offset))
            case _:
                raise BadRequest(f"{each!r} is no place of a message")
    return (each for each in ready if (each.lane, each.offset) in wanted)


def _moving(
    act: Callable[[Queues, str, Iterator[QueuedMessage]], Iterator[MoveResult]],
) -> Callable[[Ask], dict[str, Any]]:
    def moved(ask: Ask) -> dict[str, Any]:
        name = _name(ask)
        asked = Queues(ask.client)
        done = MoveResult()
        for done in act(asked, name, _chosen(asked, name, ask.body)):  # noqa: B007 the last one is the sum
            pass
        ask.console.watch.again()
        return {
            "moved": done.moved,
            "not_ready": done.not_ready,
            "unroutable": done.unroutable,
            "refused": done.refused,
        }

    return moved


def purge(ask: Ask) -> dict[str, Any]:
    name = _name(ask)
    if ask.body.get("confirm") != name:
        raise BadRequest("write the queue's name to confirm")
    purged = Queues(ask.client).purge(name)
    ask.console.watch.again()
    return {"purged": purged}


def _name(ask: Ask) -> str:
    name = ask.body.get("name")
    if not isinstance(name, str):
        raise BadRequest("the queue's name is missing")
    return name


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


PAGE = Page(
    name="queues",
    views=(
        View(name="queues", answer=queues),
        View(name="queue", answer=queue),
        View(name="queue/messages", answer=peek),
    ),
    actions=(
        Action(name="queue/redrive", act=_moving(lambda asked, name, chosen: asked.redrive(name, chosen))),
        Action(name="queue/drop", act=_moving(lambda asked, name, chosen: asked.drop(name, chosen))),
        Action(name="queue/purge", act=purge),
    ),
)
