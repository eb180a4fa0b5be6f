"""``headrace produce``: lines, or JSON, from a pipe into a topic."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from headrace.cli.record_text import Draft, parse_json_line, unescape
from headrace.cli.shared import bootstrap_option, complete_topics, connect, say, timeout_option
from headrace.errors import BadArgument, UsageError

if TYPE_CHECKING:
    from headrace.client import Client, Delivery, Producer, ProducerOptions

__all__ = ["command"]

CHUNK_BYTES = 256 * 1024
IDLE_S = 0.05
"""When nothing comes for this long, what was read goes out: a slow pipe is not held back by batching."""


@click.command("produce")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="[FILE]...")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Each line is KEY, this, and VALUE.")
@click.option(
    "-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="The text that ends a record."
)
@click.option("-k", "--key", metavar="KEY", help="The same key for all records.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition; default: chosen by the key.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeatable.")
@click.option(
    "-t", "--timestamp", metavar="TIME", help="The records' time: ISO 8601, milliseconds, or -15m; default: now."
)
@click.option(
    "-z",
    "--compress",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="The codec of the batches.",
)
@click.option("-J", "--json", "as_json", is_flag=True, help="Each line is a JSON object with value, key, headers …")
@click.option("--keep-partitions", is_flag=True, help="With --json: use each line's partition.")
@click.option("-Z", "--null", is_flag=True, help="An empty value is sent as null, a tombstone.")
@click.option("-w", "--whole", is_flag=True, help="Each FILE is one record.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Which acknowledgement to wait for.",
)
@click.option("--record-bytes-max", type=click.IntRange(min=1), default=64 << 20, help="A longer line is an error.")
@click.option("-v", "--verbose", is_flag=True, help="Print where each batch went, on stderr.")
@bootstrap_option
@timeout_option
def command(
    topic: str,
    files: tuple[str, ...],
    key_delimiter: str | None,
    delimiter: str,
    key: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    timestamp: str | None,
    compress: str,
    as_json: bool,
    keep_partitions: bool,
    null: bool,
    whole: bool,
    count: int | None,
    acks: str,
    record_bytes_max: int,
    verbose: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Send lines or JSON to a topic.

    Reads FILEs, or standard input, and sends each line as a record. Returns when the broker has acknowledged all.

    \b
      echo hello | headrace produce greetings
      headrace produce orders -K : < orders.txt
      headrace consume a -e --json | headrace produce b --json
    """
    from headrace.client import Producer

    if whole and as_json:
        raise BadArgument("--whole and --json exclude each other")
    if key_delimiter == "":
        raise BadArgument("--key-delimiter is empty", "leave it out, or give what stands between key and value")
    given = _given(key, headers, partition, timestamp)
    between = None if key_delimiter is None else unescape(key_delimiter)
    shape = LineShape(as_json=as_json, key_delimiter=between, keep_partitions=keep_partitions, null=null)
    with connect(bootstrap, timeout) as client:
        producer = Producer(client, _options(acks, compress, timeout), on_delivery=_tell if verbose else None)
        is_there = _is_there(client, topic)
        if whole:
            pieces = _whole_files(files, record_bytes_max)
        else:
            pieces = _pieces(files, unescape(delimiter), record_bytes_max, producer.flush)
        drafts = _drafts(pieces, shape, count)
        if not is_there:
            drafts = _creating(client, topic, drafts)
        try:
            for draft in drafts:
                _send(producer, topic, draft, given)
        finally:
            # The lines before a bad one are good: they are delivered before the bad one is reported.
            producer.flush()


def _is_there(client: Client, topic: str) -> bool:
    """Asked before any input is read, so that a broker that is away and a name that cannot be are reported at once."""
    from headrace.errors import ErrorCode

    (found,) = client.retrying(lambda: client.refresh([topic])).topics
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    client.topic(topic)
    return True


def _creating(client: Client, topic: str, drafts: Iterator[Draft]) -> Iterator[Draft]:
    """The topic is made when there is a record for it: a mistake in the first line makes none.

    A misspelt name makes a topic too, where the broker allows that. It does not do so in silence.
    """
    for first in drafts:
        info = client.topic(topic, create=True)
        say(f"headrace: topic {topic} is new; partitions: {len(info.partitions)}")
        yield first
        yield from drafts


def _options(acks: str, compress: str, timeout: float) -> ProducerOptions:
    from headrace.client import ProducerOptions
    from headrace.record import Codec

    return ProducerOptions(
        acks={"all": -1, "1": 1, "0": 0}[acks],
        codec=Codec[compress.upper()],
        delivery_timeout_ms=int(timeout * 1000),
        idempotent=acks == "all",
    )


def _given(key: str | None, headers: tuple[str, ...], partition: int | None, timestamp: str | None) -> Draft:
    """What the options say about every record."""
    from headrace.client.places import parse_time_ms

    return Draft(
        value=None,
        key=None if key is None else key.encode(),
        headers=[_header(pair) for pair in headers],
        partition=partition,
        timestamp=None if timestamp is None else parse_time_ms(timestamp, int(time.time() * 1000)),
    )


class LineShape:
    """How a line becomes a record."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        key_delimiter: bytes | None = None,
        keep_partitions: bool = False,
        null: bool = False,
    ) -> None:
        self.as_json = as_json
        self.key_delimiter = key_delimiter
        self.keep_partitions = keep_partitions
        self.null = null

    def read(self, line: bytes, number: int) -> Draft | None:
        """The record in a line; None for an empty line, which is none unless --null makes it a tombstone."""
        if self.as_json:
            return self._read_json(line, number)
        key = None
        value: bytes | None = line
        if self.key_delimiter is not None:
            found, middle, rest = line.partition(self.key_delimiter)
            if middle:
                key, value = found, rest
        if not value and key is None and not self.null:
            return None
        return Draft(key=key, value=None if self.null and not value else value)

    def _read_json(self, line: bytes, number: int) -> Draft | None:
        if not line.strip():
            return None
        draft = parse_json_line(line, number)
        if not self.keep_partitions:
            draft.partition = None
        if self.null and draft.value == b"":
            draft.value = None
        return draft


def _drafts(pieces: Iterator[bytes], shape: LineShape, count: int | None) -> Iterator[Draft]:
    """The records of the input, no more than ``count``."""
    found = (shape.read(piece, number) for number, piece in enumerate(pieces, 1))
    return islice((each for each in found if each is not None), count)


def _send(producer: Producer, topic: str, draft: Draft, given: Draft) -> None:
    producer.send(
        topic,
        draft.value,
        key=draft.key if draft.key is not None else given.key,
        partition=draft.partition if draft.partition is not None else given.partition,
        headers=[*draft.headers, *given.headers] if given.headers else draft.headers,
        timestamp=draft.timestamp if draft.timestamp is not None else given.timestamp,
    )


def _header(pair: str) -> tuple[str, bytes | None]:
    """``name=value``; a name alone has a null value."""
    name, equals, value = pair.partition("=")
    return name, value.encode() if equals else None


def _tell(delivery: Delivery) -> None:
    if delivery.error is None:
        say(f"{delivery.partition} offset {delivery.base_offset}: {delivery.count} records")


def _whole_files(files: tuple[str, ...], record_bytes_max: int) -> Iterator[bytes]:
    for name in files or ("-",):
        stream = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115
        with stream:
            data = stream.read(record_bytes_max + 1)
        if len(data) > record_bytes_max:
            raise UsageError(f"{name} is longer than {record_bytes_max} bytes", "raise --record-bytes-max")
        yield data


def _pieces(
    files: tuple[str, ...], delimiter: bytes, record_bytes_max: int, idle: Callable[[], None]
) -> Iterator[bytes]:
    if not delimiter:
        raise BadArgument("--delimiter is empty", "use --whole for one record per file")
    for name in files or ("-",):
        descriptor = sys.stdin.fileno() if name == "-" else os.open(name, os.O_RDONLY)
        try:
            yield from _split(descriptor, delimiter, record_bytes_max, idle)
        finally:
            if name != "-":
                os.close(descriptor)


def _split(descriptor: int, delimiter: bytes, record_bytes_max: int, idle: Callable[[], None]) -> Iterator[bytes]:
    """Whole records as they arrive; ``idle`` is called once each time the pipe runs dry."""
    rest = b""
    settled = True
    while True:
        if not select.select([descriptor], [], [], None if settled else IDLE_S)[0]:
            idle()
            settled = True
            continue
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            break
        settled = False
        *whole, rest = (rest + chunk).split(delimiter)
        yield from whole
        if len(rest) > record_bytes_max:
            raise UsageError(f"a record is longer than {record_bytes_max} bytes", "raise --record-bytes-max")
    if rest:
        yield rest
