"""Limits of queues beside consumers, and errors where several things are wrong: as on RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.amqp.conftest import Play
from tests.amqp.raw import Connection, RawPeer
from tests.amqp.scenario import AmqpScenario

pytestmark = pytest.mark.servers

PlayOn = Callable[[Play], None]
LIMITS: list[dict[str, Any]] = [
    {"x-max-length": 0},
    {"x-max-length-bytes": 0},
    {"x-max-length": 2},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-max-length": 0, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 3, "x-overflow": "reject-publish"},
]


def test_what_consumers_take_at_once_is_never_too_much(play_on: PlayOn) -> None:
    """Also of messages that arrive together, more of them than the queue may hold."""

    def play(scenario: AmqpScenario) -> None:
        for number, arguments in enumerate(LIMITS):
            for credit in (0, 1, 3):
                play_limit(scenario, f"limited-{number}-{credit}", arguments, credit)

    play_on(play)


def play_limit(scenario: AmqpScenario, queue: str, arguments: dict[str, Any], credit: int) -> None:
    channel = scenario.channel
    channel.queue_declare(queue, durable=True, arguments=arguments)
    got: list[bytes] = []
    other = scenario.connection.channel()
    other.basic_qos(prefetch_count=credit)
    other.basic_consume(queue, lambda *each: got.append(each[3]), auto_ack=credit == 0)
    for body in (b"a", b"b", b"c", b"d", b"e", b"f"):
        channel.basic_publish("", queue, body)
    scenario.connection.sleep(0.2)
    scenario.note(f"{arguments}, credit {credit}: delivered", got)
    scenario.note_messages(f"{arguments}, credit {credit}: left", queue, scenario.counts(queue)[0])
    other.close()
    channel.queue_delete(queue)


def test_a_channels_limit_is_not_for_consumers_that_do_not_acknowledge(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.queue_declare("shared-limit", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        got: list[bytes] = []
        other = scenario.connection.channel()
        other.basic_qos(prefetch_count=2, global_qos=True)
        other.basic_consume("shared-limit", lambda *each: got.append(each[3]), auto_ack=True)
        for number in range(6):
            channel.basic_publish("", "shared-limit", b"%d" % number)
        scenario.connection.sleep(0.2)
        scenario.note("delivered", got)
        other.close()
        channel.queue_delete("shared-limit")

    play_on(play)


def test_the_first_thing_that_is_wrong_is_the_error(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        scenario.channel.exchange_declare("inside", "fanout", internal=True)
        owner = scenario.connect().channel()
        owner.queue_declare("owned", exclusive=True)
        for queue in ("nowhere", "owned"):
            scenario.try_(f"bind {queue} to nothing", lambda c, queue=queue: c.queue_bind(queue, "no-such", "k"))
        odd = pika.BasicProperties(expiration="odd", user_id="other", headers={"CC": "no list"})
        untimely = pika.BasicProperties(expiration="odd", headers={"CC": "no list"})
        for exchange, properties in (("no-such", odd), ("inside", odd), ("amq.fanout", odd), ("amq.fanout", untimely)):
            scenario.try_(f"publish to {exchange}", lambda c, e=exchange, p=properties: confirmed(c, e, p))
        for expiration in ("", "odd", " 5", "12x", "1.5", "-1", "+5", "99999999999"):
            properties = pika.BasicProperties(expiration=expiration)
            scenario.try_(f"expiration {expiration}", lambda c, p=properties: confirmed(c, "amq.fanout", p))
        for value in ("no list", 5, {"a": 1}, None, [1], []):
            properties = pika.BasicProperties(headers={"BCC": value})
            scenario.try_(f"BCC {value}", lambda c, p=properties: confirmed(c, "amq.fanout", p))
        scenario.channel.exchange_delete("inside")

    play_on(play)


def confirmed(channel: Any, exchange: str, properties: pika.BasicProperties) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, "", b"x", properties)


def test_a_message_that_cannot_be_routed_is_refused_before_the_commit(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        def publish(channel: Any) -> None:
            channel.tx_select()
            channel.basic_publish("", "q", b"x", pika.BasicProperties(headers={"CC": "no list"}))
            channel.queue_declare("after", exclusive=True)

        scenario.try_("in a transaction", publish)

    play_on(play)


def test_hidden_copies_are_not_in_a_message_that_is_returned(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        returned: list[Any] = []
        channel.add_on_return_callback(lambda *each: returned.append(each[2].headers))
        properties = pika.BasicProperties(headers={"CC": ["nowhere"], "BCC": ["hidden"], "h": 1})
        channel.basic_publish("amq.direct", "nowhere", b"x", properties, mandatory=True)
        scenario.until("returned", lambda: bool(returned))
        scenario.note("returned", returned)

    play_on(play)


def test_what_has_expired_after_a_message_that_is_fetched_is_not_counted(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.queue_declare("counted", durable=True)
        channel.confirm_delivery()
        for expiration in (None, "0", "0", None):
            channel.basic_publish("", "counted", b"x", pika.BasicProperties(expiration=expiration, delivery_mode=2))
        scenario.note("before", scenario.counts("counted")[0])
        scenario.note("fetched", scenario.get("counted")[0].message_count)
        channel.queue_delete("counted")

    play_on(play)


def test_the_broker_names_its_capabilities(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        peer = RawPeer(scenario.port)
        scenario.note("capabilities", peer.expect(Connection.Start).server_properties["capabilities"])
        peer.close()

    play_on(play)


def test_a_message_without_time_to_live_is_for_consumers_that_take_it_at_once(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        for queue, arguments, expiration in (("brief", {}, "0"), ("brief-queue", {"x-message-ttl": 0}, None)):
            channel = scenario.channel
            channel.queue_declare(queue, durable=True, arguments=arguments)
            got: list[bytes] = []
            other = scenario.connection.channel()
            other.basic_qos(prefetch_count=2)
            other.basic_consume(queue, lambda *each, got=got: got.append(each[3]))
            for body in (b"a", b"b", b"c"):
                channel.basic_publish("", queue, body, pika.BasicProperties(expiration=expiration))
            scenario.connection.sleep(0.2)
            scenario.note(f"{queue}: delivered", got)
            scenario.note(f"{queue}: left", scenario.counts(queue)[0])
            other.basic_nack(1, requeue=True)
            scenario.connection.sleep(0.2)
            scenario.note(f"{queue}: after one was given back", [got, scenario.counts(queue)[0]])
            other.close()
            channel.queue_delete(queue)

    play_on(play)


def test_an_empty_name_means_the_last_queue_but_not_in_a_passive_declaration(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        scenario.channel.queue_declare("last", exclusive=True)
        scenario.try_("purge", lambda channel: channel.queue_purge(""))
        scenario.try_("passive", lambda channel: channel.queue_declare("", passive=True))

    play_on(play)


def test_consumers_of_one_channel_get_the_messages_of_a_queue_in_order(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.queue_declare("in-order", exclusive=True)
        got: list[list[Any]] = []
        for tag in ("one", "two"):
            channel.basic_consume(
                "in-order", lambda *each: got.append([each[1].consumer_tag, each[3]]), consumer_tag=tag
            )
        other = scenario.connection.channel()
        for number in range(7):
            other.basic_publish("", "in-order", b"%d" % number)
        scenario.until("delivered", lambda: len(got) == 7)
        scenario.note("delivered", got)

    play_on(play)


def test_a_full_queue_with_priorities_drops_its_head(play_on: PlayOn) -> None:
    """So a message of a higher priority makes room for one of a lower: RabbitMQ's documentation warns of it."""

    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.queue_declare("full", durable=True, arguments={"x-max-length": 2, "x-max-priority": 3})
        channel.confirm_delivery()
        for body, priority in ((b"a", 1), (b"b", 3), (b"c", 0), (b"d", 2)):
            channel.basic_publish("", "full", body, pika.BasicProperties(priority=priority, delivery_mode=2))
        scenario.note_messages("left", "full", 2)
        channel.queue_delete("full")

    play_on(play)


def test_a_queue_that_refuses_messages_when_it_is_full_drops_none_that_come_back(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        for overflow in ("reject-publish", "reject-publish-dlx", "drop-head"):
            queue = f"come-back-{overflow}"
            channel = scenario.channel
            channel.queue_declare(queue, durable=True, arguments={"x-max-length": 1, "x-overflow": overflow})
            channel.confirm_delivery()
            channel.basic_publish("", queue, b"first", pika.BasicProperties(delivery_mode=2))
            method = scenario.get(queue, auto_ack=False)[0]
            channel.basic_publish("", queue, b"second", pika.BasicProperties(delivery_mode=2))
            channel.basic_nack(method.delivery_tag, requeue=True)
            scenario.connection.sleep(0.2)
            scenario.note_messages(f"{overflow}: left", queue, scenario.counts(queue)[0])
            channel.queue_delete(queue)

    play_on(play)


def test_a_limit_for_each_consumer_takes_the_place_of_the_channels(play_on: PlayOn) -> None:
    """In the other order both hold."""

    def play(scenario: AmqpScenario) -> None:
        for first in (True, False):
            channel, other = scenario.connection.channel(), scenario.channel
            other.queue_declare("two-limits", exclusive=True)
            channel.basic_qos(prefetch_count=2 if first else 3, global_qos=first)
            channel.basic_qos(prefetch_count=3 if first else 2, global_qos=not first)
            got: list[bytes] = []
            channel.basic_consume("two-limits", lambda *each, got=got: got.append(each[3]))
            for number in range(5):
                other.basic_publish("", "two-limits", b"%d" % number)
            scenario.connection.sleep(0.3)
            scenario.note(f"the channel's first: {first}", got)
            channel.close()
            other.queue_delete("two-limits")

    play_on(play)
