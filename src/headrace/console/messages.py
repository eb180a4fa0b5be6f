"""The message browser: pages of messages, one message, live tail, search, export, produce."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.client import (
    Client,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Producer,
    ProducerOptions,
    TopicPartition,
    end_offsets,
)
from headrace.console.app import Console
from headrace.console.limits import (
    EXPORT_RECORDS_MAX,
    EXPORTS_MAX,
    MESSAGES_MAX,
    PREVIEW_BYTES_MAX,
    PRODUCE_COUNT_MAX,
    RECORD_BYTES_MAX,
    SEARCH_RECORDS_MAX,
    SEARCH_S,
    SEARCHES_MAX,
    TAIL_POLL_S,
    TAIL_RECORDS_PER_S_MAX,
    TAILS_MAX,
)
from headrace.console.matching import Matcher
from headrace.console.message_json import bytes_from, csv_line, export_line, found_json
from headrace.console.page import Action, Ask, Page, View
from headrace.console.problems import BadRequest, ConsoleError, problem_of
from headrace.console.scanning import Found, Progress, Selection, newest, oldest, scan, select
from headrace.console.streams import Emit

__all__ = ["PAGE"]

PROGRESS_S = 0.2
VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


# ---- what was asked for ---------------------------------------------------------------------------------------------


def _matcher(ask: Ask) -> Matcher:
    return Matcher(
        ask.text("q", ""),
        where=ask.text("where", "any"),
        pattern=ask.flag("regex"),
        ignore_case=ask.flag("ignore_case"),
    )


def _partitions(ask: Ask) -> list[int] | None:
    given = ask.text("partitions", "")
    if not given:
        return None
    try:
        return sorted({int(each) for each in given.split(",")})
    except ValueError:
        raise BadRequest(f"partitions={given!r} is not a list of numbers") from None


def _selection(ask: Ask) -> Selection:
    """``from`` and ``to`` are places; ``ranges`` (``partition:low:high,…``) goes on where a search has ended."""
    topic = ask.text("topic")
    committed = not ask.flag("uncommitted")
    ranges = ask.text("ranges", "")
    if not ranges:
        return select(
            ask.client,
            topic,
            partitions=_partitions(ask),
            start=ask.text("from", "beginning") or "beginning",
            until=ask.text("to", "end") or "end",
            committed=committed,
        )
    try:
        parts = [tuple(map(int, each.split(":"))) for each in ranges.split(",")]
        asked = {index: (low, high) for index, low, high in parts}
    except ValueError:
        raise BadRequest(f"ranges={ranges!r} is not partition:low:high,…") from None
    there = select(ask.client, topic, partitions=sorted(asked), committed=committed)
    return Selection(
        ranges={each: _within(asked[each.partition], there.ranges[each]) for each in there.ranges}, committed=committed
    )


def _ranges_text(ranges: Mapping[TopicPartition, tuple[int, int]]) -> str:
    return ",".join(f"{each.partition}:{low}:{high}" for each, (low, high) in ranges.items() if low < high)


def _within(asked: tuple[int, int], there: tuple[int, int]) -> tuple[int, int]:
    """The part of a range that exists: a walk through offsets that nobody wrote would take forever."""
    low, high = max(asked[0], there[0]), min(asked[1], there[1])
    return low, max(low, high)


# ---- pages of messages ----------------------------------------------------------------------------------------------


def messages(ask: Ask) -> dict[str, Any]:
    """Newest first, or from a place on, oldest first. ``left`` goes on; ``why`` says why the page ended."""
    count = ask.integer("count", 50, least=1, most=MESSAGES_MAX)
    is_newest = ask.text("order", "newest") == "newest"
    selection = _selection(ask)
    page = (newest if is_newest else oldest)(ask.client, selection, count)
    return {
        "messages": [found_json(each, PREVIEW_BYTES_MAX) for each in page.found],
        "why": "time" if page.is_late else "count" if page.left else "end",
        "left": _ranges_text(page.left),
        "looked": selection.offsets - sum(high - low for low, high in page.left.values()),
        "ranges": {each.partition: list(bounds) for each, bounds in selection.ranges.items()},
        "offsets": selection.offsets,
    }


def message(ask: Ask) -> dict[str, Any]:
    """One message with all its bytes, up to a limit."""
    partition = TopicPartition(ask.text("topic"), ask.integer("partition"))
    offset = ask.integer("offset")
    selection = Selection(ranges={partition: (offset, offset + 1)}, committed=False)
    for part in scan(ask.client, selection, Matcher(), newest_first=False):
        for found in part:
            return found_json(found, RECORD_BYTES_MAX)
    raise BadRequest(f"{partition} has no message at offset {offset}", "compaction or retention has removed it")


# ---- streams --------------------------------------------------------------------------------------------------------


async def _stream(
    console: Console, kind: str, most: int, work: Callable[[Ask, Emit], None], request: Request
) -> Response:
    parameters = dict(request.query_params)

    def run(emit: Emit) -> None:
        with console.pool.lent() as client:
            work(Ask(console=console, client=client, parameters=parameters), emit)

    try:
        return console.streams.threaded(kind, most, run)
    except ConsoleError as error:
        status, problem = problem_of(error)
        return JSONResponse(problem, status)


def tail(ask: Ask, emit: Emit) -> None:
    """Messages as they come. More than a person can read are counted and not shown."""
    topic = ask.text("topic")
    matcher = _matcher(ask)
    count = len(ask.client.topic(topic).partitions)
    chosen = _partitions(ask)
    asked = [TopicPartition(topic, index) for index in (range(count) if chosen is None else chosen)]
    fetch = FetchOptions(read_committed=not ask.flag("uncommitted"), bytes_max=1 << 20, partition_bytes_max=256 << 10)
    consumer = Consumer(ask.client, ConsumerOptions(reset="latest", fetch=fetch))
    consumer.assign(end_offsets(ask.client, asked))
    emit.event("began", {"partitions": len(asked)})
    room = RateBudget(TAIL_RECORDS_PER_S_MAX)
    while True:
        began_s = time.monotonic()
        emit.check()
        polled = consumer.poll(int(TAIL_POLL_S * 1000))
        found = [
            Found(partition, record, False)
            for partition, records in polled.items()
            for record in records
            if matcher.matches(record)
        ]
        found.sort(key=lambda each: each.record.timestamp)
        kept = found[-room.left(began_s) :] if room.left(began_s) else []
        room.take(len(kept))
        skipped = len(found) - len(kept) + (_catch_up(consumer) if matcher.is_everything else 0)
        if kept or skipped:
            shown = [found_json(each, PREVIEW_BYTES_MAX) for each in kept]
            emit.event("messages", {"messages": shown, "skipped": skipped})
        if polled:  # a busy topic is looked at some times a second, not all the time
            emit.gone.wait(max(0.0, TAIL_POLL_S - (time.monotonic() - began_s)))


def _catch_up(consumer: Consumer) -> int:
    """Jump to the end where a tail is far behind it; how many messages that leaves out."""
    skipped = 0
    for partition, end in consumer.ends.items():
        behind = end - consumer.positions[partition]
        if behind > TAIL_RECORDS_PER_S_MAX:
            consumer.seek(partition, end - TAIL_RECORDS_PER_S_MAX // 4)
            skipped += behind - TAIL_RECORDS_PER_S_MAX // 4
    return skipped


class RateBudget:
    """How many messages may be shown in this second."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = 0
        self._taken = 0

    def left(self, now_s: float) -> int:
        if int(now_s) != self._second:
            self._second, self._taken = int(now_s), 0
        return self._per_s - self._taken

    def take(self, count: int) -> None:
        self._taken += count


def search(ask: Ask, emit: Emit) -> None:
    """Matches as they are found, progress some times a second, and at the end what was not looked at."""
    limit = ask.integer("limit", 100, least=1, most=MESSAGES_MAX)
    matcher = _matcher(ask)
    selection = _selection(ask)
    progress = Progress()
    began_s = time.monotonic()
    reported_s = began_s
    matches = 0

    def report(event: str, **more: Any) -> None:
        emit.event(
            event,
            {
                "offsets": progress.offsets,
                "total": selection.offsets,
                "records": progress.records,
                "bytes": progress.size,
                "unreadable": progress.unreadable,
                "matches": matches,
                "seconds": round(time.monotonic() - began_s, 3),
                **more,
            },
        )

    report("progress")
    why = "end"
    newest_first = ask.text("order", "newest") == "newest"
    parts = scan(
        ask.client,
        selection,
        matcher,
        newest_first=newest_first,
        progress=progress,
        until_s=began_s + SEARCH_S,
        check=emit.check,
    )
    for part in parts:
        if part:
            kept = part[: limit - matches]
            matches += len(kept)
            if matches >= limit:
                progress.left |= _left(kept[-1], part[len(kept) :], selection, newest_first)
            emit.event("matches", [found_json(each, PREVIEW_BYTES_MAX) for each in kept])
        # Between two chunks, where it is known what is left.
        if matches >= limit or (not part and progress.records >= SEARCH_RECORDS_MAX):
            why = "matches" if matches >= limit else "records"
            break
        if time.monotonic() - reported_s > PROGRESS_S:
            reported_s = time.monotonic()
            report("progress")
    else:
        why = "time" if progress.left else "end"
    report("done", why=why, left=_ranges_text(progress.left))


def _left(
    last: Found, dropped: list[Found], selection: Selection, newest_first: bool
) -> dict[TopicPartition, tuple[int, int]]:
    """What is still to be searched when ``last`` was shown and ``dropped`` was not, besides chunks not read yet."""
    left = {}
    if not newest_first:  # the chunk of the last match may have been left in the middle
        left[last.partition] = last.record.offset + 1, selection.ranges[last.partition][1]
    for each in reversed(dropped):  # the first one dropped of a partition counts
        low, high = selection.ranges[each.partition]
        left[each.partition] = (low, each.record.offset + 1) if newest_first else (each.record.offset, high)
    return left


# ---- export ---------------------------------------------------------------------------------------------------------

FORMATS = {"jsonl": ("application/x-ndjson", export_line), "csv": ("text/csv; charset=utf-8", csv_line)}


async def _export(console: Console, request: Request) -> Response:
    """A file that is made while it is downloaded."""
    parameters = dict(request.query_params)
    kind = parameters.get("format", "jsonl")
    if kind not in FORMATS:
        return JSONResponse({"error": f"{kind!r} is none of {', '.join(FORMATS)}", "hint": ""}, 400)
    media_type, line = FORMATS[kind]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", parameters.get("topic", "messages"))[:100]

    def run(emit: Emit) -> None:
        with console.pool.lent() as client:
            _write_export(Ask(console=console, client=client, parameters=parameters), emit, line)

    try:
        await console.pool.run(partial(_check_export, console, parameters))
        headers = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
        return console.streams.threaded("exports", EXPORTS_MAX, run, media_type=media_type, headers=headers)
    except Exception as error:
        status, problem = problem_of(error)
        return JSONResponse(problem, status)


def _check_export(console: Console, parameters: dict[str, str], client: Client) -> None:
    """Refuse a wrong request before the file begins."""
    ask = Ask(console=console, client=client, parameters=parameters)
    _matcher(ask)
    _selection(ask)


def _write_export(ask: Ask, emit: Emit, line: Callable[[Found], bytes]) -> None:
    limit = ask.integer("limit", EXPORT_RECORDS_MAX, least=1, most=EXPORT_RECORDS_MAX)
    if line is csv_line:
        emit.data(csv_line(None))
    written = 0
    parts = scan(
        ask.client,
        _selection(ask),
        _matcher(ask),
        newest_first=ask.text("order", "oldest") == "newest",
        check=emit.check,
    )
    for part in parts:
        kept = part[: limit - written]
        written += len(kept)
        if kept:
            emit.data(b"".join(map(line, kept)))
        if written >= limit:
            return


# ---- produce --------------------------------------------------------------------------------------------------------


def produce(ask: Ask) -> dict[str, Any]:
    """Send a message, or ``count`` of a template whose ``{{n}}``, ``{{uuid}}``, ``{{now}}`` differ."""
    body = ask.body
    topic = body.get("topic")
    if not isinstance(topic, str) or not topic:
        raise BadRequest("no topic is named")
    count = body.get("count", 1)
    if not isinstance(count, int) or not 1 <= count <= PRODUCE_COUNT_MAX:
        raise BadRequest(f"count is a number from 1 to {PRODUCE_COUNT_MAX}")
    partition = body.get("partition")
    known = len(ask.client.topic(topic).partitions)
    if partition is not None and not (isinstance(partition, int) and 0 <= partition < known):
        raise BadRequest(f"topic {topic!r} has partitions 0 to {known - 1}")
    headers = _headers(body.get("headers") or [])
    sent: list[tuple[int, int]] = []
    options = ProducerOptions(linger_ms=0, delivery_timeout_ms=10_000, create_topics=False)
    with Producer(ask.client, options, lambda each: sent.append((each.partition.partition, each.base_offset))) as out:
        for number in range(1, count + 1):
            key, value = body.get("key"), body.get("value")
            if body.get("template"):
                key, value = _filled(key, number), _filled(value, number)
            out.send(
                topic,
                bytes_from(value, "value"),
                key=bytes_from(key, "key"),
                partition=partition,
                headers=headers,
            )
    return {"sent": count, "at": [{"partition": index, "offset": offset} for index, offset in sent]}


def _headers(given: Any) -> list[tuple[str, bytes | None]]:
    match given:
        case [*pairs] if all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in pairs):
            return [(name, bytes_from(value, "header")) for name, value in pairs]
    raise BadRequest("headers are a list of pairs: a name and a value")


def _filled(value: Any, number: int) -> Any:
    if not isinstance(value, str):
        return value
    now = datetime.now(UTC)
    words: dict[str, Callable[[], str]] = {
        "n": lambda: str(number),
        "uuid": lambda: str(uuid.uuid4()),
        "now": lambda: now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "now_ms": lambda: str(int(now.timestamp() * 1000)),
    }
    return VARIABLE.sub(lambda found: words[found[1]]() if found[1] in words else found[0], value)


def _routes(console: Console) -> list[Route]:
    return [
        Route("/live/tail", partial(_stream, console, "tails", TAILS_MAX, tail)),
        Route("/live/search", partial(_stream, console, "searches", SEARCHES_MAX, search)),
        Route("/api/export", partial(_export, console)),
    ]


PAGE = Page(
    name="messages",
    views=[View(name="messages", answer=messages), View(name="message", answer=message)],
    actions=[Action(name="produce", act=produce)],
    routes=_routes,
)
