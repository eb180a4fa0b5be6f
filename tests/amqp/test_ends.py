"""What follows the end of a consumer, a queue or a transaction: as on RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.commands
import pamqp.frame
import pika
import pytest

from tests.amqp.conftest import Play
from tests.amqp.raw import Basic, RawPeer
from tests.amqp.scenario import AmqpScenario

pytestmark = pytest.mark.servers

PlayOn = Callable[[Play], None]
Queue = pamqp.commands.Queue


def test_a_commit_fails_when_a_queue_refuses_one_of_its_messages(play_on: PlayOn) -> None:
    """The others are there, and so is what the transaction has acknowledged."""

    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.queue_declare("short", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.queue_declare("long")
        channel.basic_publish("", "long", b"acknowledged")
        channel.tx_select()
        method, _, _ = channel.basic_get("long")
        assert method is not None
        channel.basic_ack(method.delivery_tag or 0)
        for body in (b"a", b"b"):
            channel.basic_publish("", "short", body)
        scenario.try_("a commit with a message too many", lambda channel: channel.tx_commit())
        scenario.note_messages("what was not refused", "short", 1)
        scenario.note_messages("what was acknowledged", "long", 0)
        for name in ("short", "long"):
            scenario.channel.queue_delete(name)

    play_on(play)


def test_a_message_of_a_transaction_goes_where_it_did_when_it_was_published(play_on: PlayOn) -> None:
    """What happens to the exchange and its bindings until the commit makes no difference to it."""

    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.exchange_declare("way", "fanout")
        for name in ("way-early", "way-late", "way-again", "way-gone"):
            channel.queue_declare(name)
        tx = scenario.connection.channel()
        returned: list[tuple[int, bytes]] = []
        tx.add_on_return_callback(lambda _, method, __, body: returned.append((method.reply_code, body)))
        tx.tx_select()
        tx.basic_publish("way", "", b"nowhere", mandatory=True)
        tx.basic_qos(prefetch_count=1)  # its answer says that what came before it was handled
        channel.queue_bind("way-early", "way")
        tx.basic_publish("way", "", b"one", mandatory=True)
        tx.basic_publish("", "way-again", b"two")
        tx.basic_publish("", "way-gone", b"three", mandatory=True)
        tx.basic_qos(prefetch_count=1)
        channel.queue_bind("way-late", "way")
        channel.queue_unbind("way-early", "way")
        channel.exchange_delete("way")
        for name in ("way-again", "way-gone"):
            channel.queue_delete(name)
        channel.queue_declare("way-again")
        tx.tx_commit()
        scenario.connection.process_data_events(0.2)
        scenario.note("returned", [[code, body.decode()] for code, body in returned])
        for name, count in (("way-early", 1), ("way-late", 0), ("way-again", 1)):
            scenario.note_messages(name, name, count)
            channel.queue_delete(name)

    play_on(play)


def test_a_dead_letter_says_what_its_time_limit_was_whatever_it_died_of(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.queue_declare("limited-dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "limited-dead", "x-max-length": 1}
        channel.queue_declare("limited", arguments=arguments)
        limit = pika.BasicProperties(expiration="600000")
        channel.basic_publish("", "limited", b"rejected", limit)
        method, _, _ = channel.basic_get("limited")
        assert method is not None
        channel.basic_reject(method.delivery_tag or 0, requeue=False)
        scenario.note_messages("rejected", "limited-dead", 1)
        for body in (b"dropped", b"kept"):
            channel.basic_publish("", "limited", body, limit)
        scenario.note_messages("dropped", "limited-dead", 1)
        for name in ("limited", "limited-dead"):
            channel.queue_delete(name)

    play_on(play)


def test_the_next_single_active_consumer_has_the_highest_priority(play_on: PlayOn) -> None:
    """One that comes later does not take the place of the one that is active, whatever its priority."""

    def play(scenario: AmqpScenario) -> None:
        channel = scenario.channel
        channel.queue_declare("active", arguments={"x-single-active-consumer": True})
        got: list[tuple[str, bytes]] = []
        channels = {}
        for priority in (0, 1, 5, 4):
            name = f"priority {priority}"
            channels[name] = scenario.connection.channel()
            channels[name].basic_consume(
                "active",
                lambda *each, name=name: got.append((name, each[3])),
                auto_ack=True,
                arguments={"x-priority": priority},
            )
        for number, name in enumerate(("priority 0", "priority 5", "priority 4", "priority 1")):
            channel.basic_publish("", "active", str(number).encode())
            scenario.until("delivered", lambda number=number: len(got) > number)
            channels[name].close()
        scenario.note("who got what", got)
        channel.queue_delete("active")

    play_on(play)


def test_a_queue_with_a_single_active_consumer_has_no_exclusive_one(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        for kind in ("classic", "quorum"):
            arguments = {"x-single-active-consumer": True, "x-queue-type": kind}
            scenario.channel.queue_declare(f"active-{kind}", durable=True, arguments=arguments)
            scenario.try_(
                f"an exclusive consumer of a {kind} queue",
                lambda channel, kind=kind: channel.basic_consume(
                    f"active-{kind}", lambda *_: None, exclusive=True, consumer_tag="t"
                ),
            )
            scenario.channel.queue_delete(f"active-{kind}")

    play_on(play)


def test_who_does_not_understand_basic_cancel_gets_none(play_on: PlayOn) -> None:
    def play(scenario: AmqpScenario) -> None:
        for understands in (True, False):
            properties = {"capabilities": {"consumer_cancel_notify": understands}}
            connection = pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", scenario.port, client_properties=properties)
            )
            channel = connection.channel()
            channel.queue_declare("ends")
            cancelled: list[object] = []
            channel.add_on_cancel_callback(cancelled.append)
            channel.basic_consume("ends", lambda *_: None, consumer_tag="t")
            scenario.channel.queue_delete("ends")
            connection.sleep(0.5)
            scenario.note(f"cancelled, understands it: {understands}", cancelled)
            connection.close()

    play_on(play)


def test_an_auto_delete_queue_is_gone_when_its_last_consumer_is(play_on: PlayOn) -> None:
    """Also for what has come together with the end of the consumer."""

    def play(scenario: AmqpScenario) -> None:
        peer = RawPeer(scenario.port).opened(1)
        peer.method(1, Queue.Declare(queue="brief", auto_delete=True))
        peer.method(1, Basic.Consume(queue="brief", consumer_tag="t"))
        peer.expect(Basic.ConsumeOk)
        again = (Basic.Cancel(consumer_tag="t"), Queue.Declare(queue="brief", durable=True))
        peer.send(b"".join(pamqp.frame.marshal(each, 1) for each in again))
        scenario.note("declared anew", dict(peer.expect(Queue.DeclareOk)))
        peer.close()
        scenario.note("it stays", scenario.counts("brief"))
        scenario.channel.queue_delete("brief")

    play_on(play)
