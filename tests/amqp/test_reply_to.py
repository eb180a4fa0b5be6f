"""Direct reply-to, and who gets what: on RabbitMQ and on headrace."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.amqp.scenario import AmqpScenario

PlayOn = Callable[[Callable[[AmqpScenario], None]], None]
REPLY_TO = "amq.rabbitmq.reply-to"

pytestmark = pytest.mark.servers


def test_answers_go_straight_to_the_channel_that_asked(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("questions", exclusive=True)
        asking = s.connection.channel()
        answers: list[Any] = []
        asking.basic_consume(REPLY_TO, lambda _, m, p, b: answers.append([m, p, b]), auto_ack=True, consumer_tag="me")
        ask = pika.BasicProperties(reply_to=REPLY_TO, correlation_id="1")
        asking.basic_publish("", "questions", b"how much?", ask)
        _, properties, body = s.get("questions")
        s.note(
            "the question", [body, properties.correlation_id, bool(re.match(f"{REPLY_TO}\\..+", properties.reply_to))]
        )
        name = properties.reply_to
        s.try_("somebody waits there", lambda c: c.queue_declare(name, passive=True).method.consumer_count)
        s.channel.basic_publish("", name, b"that much", pika.BasicProperties(correlation_id="1"), mandatory=True)
        s.until("the answer", lambda: bool(answers))
        method, properties, body = answers[0]
        s.note("the answer", [method.redelivered, method.exchange, method.routing_key == name, properties, body])
        asking.basic_cancel("me")
        s.try_("nobody waits any more", lambda c: _code(lambda: c.queue_declare(name, passive=True)))

    play_on(play)


def _code(call: Callable[[], object]) -> object:
    try:
        return call()
    except pika.exceptions.ChannelClosedByBroker as error:
        return error.reply_code


def test_direct_reply_to_has_its_rules(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("with acknowledgements", lambda c: c.basic_consume(REPLY_TO, print))
        s.try_(
            "twice on a channel",
            lambda c: (
                c.basic_consume(REPLY_TO, print, auto_ack=True),
                c.basic_consume(REPLY_TO, print, auto_ack=True),
            ),
        )
        ask = pika.BasicProperties(reply_to=REPLY_TO)
        s.try_("asked without waiting", lambda c: (c.basic_publish("", "x", b"", ask), c.queue_delete("none")))

    play_on(play)


def test_each_queue_of_a_fanout_shares_its_copy_among_its_consumers(play_on: PlayOn) -> None:
    """Load balancing and fan-out together: every queue gets every message, and one of its consumers each."""

    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.exchange_declare("news", "fanout", auto_delete=True)
        got: dict[str, list[int]] = {}
        for queue in ("mail", "archive"):
            c.queue_declare(queue, exclusive=True)
            c.queue_bind(queue, "news")
            for number in range(2):
                tag = f"{queue}-{number}"
                got[tag] = []
                consuming = s.connection.channel()
                consuming.basic_qos(prefetch_count=10)
                consuming.basic_consume(queue, lambda _, m, p, b: got[m.consumer_tag].append(int(b)), consumer_tag=tag)
        for number in range(12):
            c.basic_publish("news", "", b"%d" % number)
        s.until("all copies", lambda: sum(map(len, got.values())) == 24)
        for queue in ("mail", "archive"):
            shares = [got[f"{queue}-0"], got[f"{queue}-1"]]
            s.note(f"{queue} has every message once", sorted(shares[0] + shares[1]))
            s.note(f"{queue} shares them equally", [len(share) for share in shares])
            s.note(f"{queue} keeps their order", [share == sorted(share) for share in shares])

    play_on(play)


def test_what_a_consumer_gives_back_goes_before_younger_messages(play_on: PlayOn) -> None:
    """The order within a queue, and what redelivery does to it."""

    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("order", exclusive=True)
        for number in range(6):
            s.channel.basic_publish("", "order", b"%d" % number)
        other = s.connection.channel()
        tags = [other.basic_get("order")[0].delivery_tag for _ in range(4)]
        other.basic_nack(tags[2], requeue=True)
        s.until("one is back", lambda: s.counts("order")[0] == 3)
        other.basic_nack(tags[0], requeue=True)
        s.until("two are back", lambda: s.counts("order")[0] == 4)
        other.close()
        s.until("all are back", lambda: s.counts("order")[0] == 6)
        s.note_messages("in order, the old ones marked", "order", 6)

    play_on(play)
