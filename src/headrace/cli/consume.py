"""``headrace consume``: records from topics to standard output."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, Literal

import click

from headrace.cli.record_text import Formatter, compile_format, json_line, unescape
from headrace.cli.shared import (
    bootstrap_option,
    complete_groups,
    complete_topics,
    connect,
    partitions_of,
    timeout_option,
)
from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.client import Client, Polled, TopicPartition

__all__ = ["command"]

POLL_MS = 500

RESETS: dict[str, Literal["earliest", "latest"]] = {
    "beginning": "earliest",
    "earliest": "earliest",
    "end": "latest",
    "latest": "latest",
}


@click.command("consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option(
    "-o",
    "--offset",
    default="beginning",
    show_default=True,
    metavar="PLACE",
    help="Where to start: beginning, end, an offset, -N before the end, @TIME. With --group: where a new group starts.",
)
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="Stop at the end that the topic has now.")
@click.option("--until", metavar="PLACE", help="Stop before this place, written as for --offset.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("-p", "--partition", metavar="N,N-M", help="Only these partitions.")
@click.option("-G", "--group", metavar="GROUP", shell_complete=complete_groups, help="Read as a member of a group.")
@click.option("-f", "--format", "text", metavar="FORMAT", help=r"Print with %k %v %o %p %t %T %D %h %K %S and \n \t.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Print KEY, this, and VALUE.")
@click.option("-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="The text after each record.")
@click.option("-J", "--json", "as_json", is_flag=True, help="Print JSON lines.")
@click.option("-Z", "--null", metavar="TEXT", default="", help="The text for null.")
@click.option(
    "-i",
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    show_default=True,
    help="committed: without open and aborted transactions.",
)
@bootstrap_option
@timeout_option
def command(
    topics: tuple[str, ...],
    offset: str,
    exit_at_end: bool,
    until: str | None,
    count: int | None,
    partition: str | None,
    group: str | None,
    text: str | None,
    key_delimiter: str | None,
    delimiter: str,
    as_json: bool,
    null: str,
    isolation: str,
    bootstrap: str,
    timeout: float,
) -> None:
    """Print the records of topics.

    \b
      headrace consume orders -e                   all there is, then stop
      headrace consume orders -o -5                the last five of each partition, then wait for more
      headrace consume orders -o @-15m --json      the last quarter of an hour, as JSON
      headrace consume orders -G billing           as a member of the group 'billing', which remembers

    Format: %v value, %k key, %o offset, %p partition, %t topic, %T time in ms, %D time as a date, %h headers,
    %S and %K the sizes of value and key.
    """
    if as_json and (text is not None or key_delimiter is not None):
        raise BadArgument("--json has its own format", "leave --format and --key-delimiter out")
    render = _formatter(text, key_delimiter, delimiter, null, as_json)
    writer = Writer(render, count)
    committed = isolation == "committed"
    with connect(bootstrap, timeout) as client:
        if group is None:
            stops = (["end"] if exit_at_end else []) + ([until] if until is not None else [])
            places = _places(client, topics, partition, offset, stops, committed)
            _read(client, *places, writer, committed)
        elif partition is not None or until is not None:
            raise BadArgument("a group divides partitions itself", "leave --partition and --until out, or --group")
        else:
            _read_as_member(client, group, topics, offset, exit_at_end, writer, committed)


class Writer:
    """Prints records, no more than ``count``; each round is flushed, so a reader of a pipe sees it at once."""

    def __init__(self, render: Formatter, count: int | None, out: BinaryIO | None = None) -> None:
        self._render = render
        self._left = count
        self._out = out or sys.stdout.buffer

    def write(self, polled: Polled, last: Mapping[TopicPartition, int] | None = None) -> dict[TopicPartition, int]:
        """Print records before their partition's ``last`` offset; gives how many of each were printed."""
        printed = {}
        for partition, records in polled.items():
            end = None if last is None else last[partition]
            shown = [each for each in records if end is None or each.offset < end]
            if self._left is not None:
                shown = shown[: self._left]
                self._left -= len(shown)
            self._out.writelines(self._render(partition, each) for each in shown)
            printed[partition] = len(shown)
        self._out.flush()
        return printed

    @property
    def done(self) -> bool:
        return self._left == 0


def _formatter(text: str | None, key_delimiter: str | None, delimiter: str, null: str, as_json: bool) -> Formatter:
    if as_json:
        return json_line
    nothing = null.encode()
    if text is not None:
        return compile_format(text, nothing)
    end = unescape(delimiter)
    between = None if key_delimiter is None else unescape(key_delimiter)
    if between is None:
        return lambda _, record: (nothing if record.value is None else record.value) + end
    return lambda _, record: b"".join(
        (
            nothing if record.key is None else record.key,
            between,
            nothing if record.value is None else record.value,
            end,
        )
    )


def _places(
    client: Client, topics: tuple[str, ...], partition: str | None, offset: str, stops: list[str], committed: bool
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int] | None]:
    from headrace.client.places import parse_place, resolve

    now_ms = int(time.time() * 1000)
    wanted = [each for topic in topics for each in partitions_of(client, topic, partition)]
    place = parse_place(offset, now_ms)
    starts = resolve(client, wanted, place, read_committed=committed)
    if place.kind == "before_end":
        starts = _of_last_records(client, starts, place.number, committed)
    if not stops:
        return starts, None
    places = [resolve(client, wanted, parse_place(stop, now_ms), read_committed=committed) for stop in stops]
    return starts, {each: min(place[each] for place in places) for each in wanted}


def _of_last_records(
    client: Client, starts: dict[TopicPartition, int], count: int, committed: bool
) -> dict[TopicPartition, int]:
    """Where the last ``count`` records of each partition begin.

    Markers of transactions have offsets as records do, and so have records that were aborted or that compaction has
    removed. So what lies after the start is counted, and the start is moved back until there are enough.
    """
    from headrace.client import end_offsets, start_offsets

    first = start_offsets(client, list(starts))
    ends = end_offsets(client, list(starts), read_committed=committed)
    found, reach = dict(starts), count
    waiting = {each for each in starts if starts[each] < ends[each]}
    while waiting:
        offsets = _offsets_between(client, {each: found[each] for each in waiting}, ends, committed)
        for each in list(waiting):
            if len(offsets[each]) >= count or found[each] <= first[each]:
                found[each] = offsets[each][-count] if len(offsets[each]) >= count > 0 else found[each]
                waiting.remove(each)
        reach *= 4
        found |= {each: max(first[each], ends[each] - reach) for each in waiting}
    return found


def _offsets_between(
    client: Client, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int], committed: bool
) -> dict[TopicPartition, list[int]]:
    """Of the records that a consumer gets."""
    offsets: dict[TopicPartition, list[int]] = {each: [] for each in starts}
    for polled in _polled(client, starts, ends, committed):
        for each, records in polled.items():
            offsets[each] += [record.offset for record in records if record.offset < ends[each]]
    return offsets


def _polled(
    client: Client, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int] | None, committed: bool
) -> Iterator[Polled]:
    """What comes until every partition has reached its end, if it has one."""
    from headrace.client import Consumer, ConsumerOptions, FetchOptions

    consumer = Consumer(client, ConsumerOptions(reset="earliest", fetch=FetchOptions(read_committed=committed)))
    consumer.assign(starts)
    while True:
        if ends is not None:
            unread = {each: at for each, at in consumer.positions.items() if at < ends[each]}
            if not unread:
                return
            if len(unread) < len(consumer.positions):
                consumer.assign(unread)
        yield consumer.poll(POLL_MS)


def _read(
    client: Client,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int] | None,
    writer: Writer,
    committed: bool,
) -> None:
    """Read until every partition has reached its end, if it has one, or enough is printed."""
    rounds = _polled(client, starts, ends, committed)
    while not writer.done:
        polled = next(rounds, None)
        if polled is None:
            return
        writer.write(polled, ends)


def _read_as_member(
    client: Client,
    group: str,
    topics: tuple[str, ...],
    offset: str,
    exit_at_end: bool,
    writer: Writer,
    committed: bool,
) -> None:
    """Records count as done when they are printed: the group's offsets follow what left this process."""
    from headrace.client import ConsumerOptions, FetchOptions, GroupConsumer, GroupOptions

    if offset not in RESETS:
        raise BadArgument(
            f"a group starts at its own offsets, not at {offset!r}", "use -o beginning or end; or headrace group reset"
        )
    for topic in topics:
        client.topic(topic)
    options = GroupOptions(
        consumer=ConsumerOptions(reset=RESETS[offset], fetch=FetchOptions(read_committed=committed)),
        commit_interval_ms=None,
    )
    # A member that is ended leaves the group, so that the others do not wait for its session to time out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with GroupConsumer(client, group, topics, options) as member:
        while not writer.done:
            polled = member.poll(POLL_MS)
            printed = writer.write(polled)
            for partition, records in polled.items():
                if printed[partition] < len(records):
                    member.seek(partition, records[printed[partition]].offset)
            if polled:
                member.commit()
            if exit_at_end and member.assignment and member.at_end():
                return
