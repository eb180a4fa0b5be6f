"""Streams over AMQP, on RabbitMQ and on headrace: read from any offset, by many, and nothing is taken away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.amqp.scenario import AmqpScenario

PlayOn = Callable[[Callable[[AmqpScenario], None]], None]
STREAM = {"x-queue-type": "stream"}

pytestmark = pytest.mark.servers


def published(s: AmqpScenario, name: str, count: int, first: int = 0) -> None:
    s.channel.confirm_delivery()
    for number in range(first, first + count):
        s.channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(headers={"n": number}))


def read(s: AmqpScenario, name: str, offset: Any, count: int) -> list[Any]:
    """The next messages of a consumer that begins at an offset."""
    got: list[Any] = []
    channel = s.connection.channel()
    channel.basic_qos(prefetch_count=50)
    arguments = {} if offset is None else {"x-stream-offset": offset}

    def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
        got.append([method.redelivered, properties.headers, body.decode()])
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(name, take, arguments=arguments)
    s.until(f"{count} messages", lambda: len(got) >= count)
    s.connection.process_data_events(0.2)
    channel.close()
    return got


def test_a_stream_is_read_again_and_again_from_any_offset(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.queue_declare("stream", durable=True, arguments=STREAM))
        published(s, "stream", 6)
        s.note("first", read(s, "stream", "first", 6))
        s.note("again", read(s, "stream", "first", 6))
        s.note("from 4 on", read(s, "stream", 4, 2))
        s.note("far beyond the end", read(s, "stream", 4_000, 0))
        s.note("next", read(s, "stream", "next", 0))
        s.note("without an offset", read(s, "stream", None, 0))
        s.try_("delete", lambda c: c.queue_delete("stream") and None)

    play_on(play)


def test_readers_of_a_stream_are_told_what_they_need(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("told", durable=True, arguments=STREAM)
        published(s, "told", 1)
        s.try_("no prefetch", lambda c: c.basic_consume("told", print))
        s.try_(
            "no acknowledgements",
            lambda c: (c.basic_qos(prefetch_count=1), c.basic_consume("told", print, auto_ack=True)),
        )
        for offset in (-5,):
            arguments = {"x-stream-offset": offset}
            s.try_(
                f"x-stream-offset={offset}",
                lambda c, a=arguments: (
                    c.basic_qos(prefetch_count=1),
                    c.basic_consume("told", print, arguments=a),
                    "taken",
                )[2],
            )
        s.try_("get", lambda c: c.basic_get("told"))
        s.try_("purge", lambda c: c.queue_purge("told"))
        s.try_("delete", lambda c: c.queue_delete("told") and None)

    play_on(play)


def test_streams_have_their_own_arguments(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        for name, value in (
            ("x-message-ttl", 1000),
            ("x-max-priority", 5),
            ("x-dead-letter-exchange", "dead"),
            ("x-max-length", 5),
            ("x-max-age", 5),
            ("x-max-length-bytes", -1),
        ):
            s.try_(
                f"{name}={value}",
                lambda c, a={**STREAM, name: value}: c.queue_declare("own", durable=True, arguments=a),
            )
        s.try_("not durable", lambda c: c.queue_declare("own", arguments=STREAM))
        s.try_("exclusive", lambda c: c.queue_declare("own", durable=True, exclusive=True, arguments=STREAM))
        s.try_("without a name", lambda c: c.queue_declare("", durable=True, arguments=STREAM))
        kept = {
            **STREAM,
            "x-max-length-bytes": 1_000_000,
            "x-max-age": "7D",
            "x-stream-max-segment-size-bytes": 100_000,
        }
        s.try_("declare", lambda c: c.queue_declare("own", durable=True, arguments=kept))
        s.try_("the same", lambda c: c.queue_declare("own", durable=True, arguments=kept))
        s.try_("another age", lambda c: c.queue_declare("own", durable=True, arguments={**kept, "x-max-age": "8D"}))
        s.try_("as a classic queue", lambda c: c.queue_declare("own", durable=True))
        s.try_("delete", lambda c: c.queue_delete("own") and None)

    play_on(play)


def test_readers_of_a_stream_go_on_with_what_comes(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("on", durable=True, arguments=STREAM)
        got: dict[str, list[str]] = {"one": [], "two": []}
        for tag, found in got.items():
            channel = s.connection.channel()
            channel.basic_qos(prefetch_count=3)

            def take(c: Any, method: Any, _: Any, body: bytes, found: list[str] = found) -> None:
                found.append(body.decode())
                if len(found) > 1 or method.consumer_tag == "two":
                    c.basic_ack(method.delivery_tag)

            channel.basic_consume("on", take, consumer_tag=tag, arguments={"x-stream-offset": "first"})
        time.sleep(0.3)
        published(s, "on", 10)
        s.until("both have all", lambda: all(len(found) == 10 for found in got.values()))
        s.note("both have all", got)
        s.channel.queue_delete("on")

    play_on(play)
