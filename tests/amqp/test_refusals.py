"""Requests that are refused, on RabbitMQ and on headrace: the same codes and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.amqp.scenario import AmqpScenario

PlayOn = Callable[[Callable[[AmqpScenario], None]], None]

pytestmark = pytest.mark.servers


def declare(
    name: str, arguments: Mapping[str, Any] | None = None, **properties: Any
) -> Callable[[BlockingChannel], Any]:
    return lambda channel: channel.queue_declare(name, arguments=dict(arguments or {}), **properties)


def test_every_argument_of_a_queue_must_be_of_its_kind(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        for name, values in {
            "x-message-ttl": [-1, "soon", 2**50, True],
            "x-expires": [0, -1, "x"],
            "x-max-length": [-5, "x"],
            "x-max-length-bytes": [-5],
            "x-max-priority": [256, -1, "x"],
            "x-overflow": ["explode", 1],
            "x-dead-letter-exchange": [5],
            "x-dead-letter-routing-key": ["k"],
            "x-queue-type": ["mystery", 3],
            "x-single-active-consumer": ["yes"],
        }.items():
            for value in values:
                s.try_(f"{name}={value}", declare("bad", {name: value}, durable=True))
        s.try_("an argument nobody knows", declare("odd", {"x-mystery": 1, "plain": 2}, durable=True))
        s.try_("delete", lambda c: c.queue_delete("odd"))

    play_on(play)


def test_every_argument_must_stay_the_same(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        first = {
            "x-message-ttl": 1000,
            "x-max-length": 5,
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "dead",
            "x-max-priority": 3,
        }
        s.try_("declare", declare("eq", first, durable=True))
        for name, value in {
            "x-message-ttl": 2000,
            "x-max-length": 6,
            "x-overflow": "drop-head",
            "x-dead-letter-exchange": "dread",
            "x-max-priority": 4,
        }.items():
            s.try_(f"{name}={value}", declare("eq", {**first, name: value}, durable=True))
            without = {each: kept for each, kept in first.items() if each != name}
            s.try_(f"without {name}", declare("eq", without, durable=True))
        s.try_("with one more", declare("eq", {**first, "x-expires": 10_000}, durable=True))
        s.try_("with one nobody knows", declare("eq", {**first, "x-mystery": 1, "plain": "p"}, durable=True))
        s.try_("as another type", declare("eq", {**first, "x-queue-type": "quorum"}, durable=True))
        s.try_("as its own type", declare("eq", {**first, "x-queue-type": "classic"}, durable=True))
        s.try_("exclusively", declare("eq", first, durable=True, exclusive=True))
        s.try_("delete", lambda c: c.queue_delete("eq"))

    play_on(play)


def test_what_is_declared_again_is_compared_by_the_type_of_queue(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        for kind, first in {
            "quorum": {"x-max-length": 3, "x-overflow": "drop-head", "x-dead-letter-exchange": "d"},
            "stream": {"x-max-length-bytes": 1000, "x-max-age": "1h"},
        }.items():
            name, typed = f"again-{kind}", {"x-queue-type": kind, **first}
            s.try_(kind, declare(name, typed, durable=True))
            s.try_(f"{kind}: the same", declare(name, typed, durable=True))
            s.try_(f"{kind}: without a type", declare(name, first, durable=True))
            for each in first:
                s.try_(
                    f"{kind}: without {each}",
                    declare(name, {k: v for k, v in typed.items() if k != each}, durable=True),
                )
            for each, value in {
                "x-expires": 10_000,
                "x-message-ttl": 1_000,
                "x-max-length-bytes": 7,
                "x-max-age": "2h",
                "x-queue-mode": "lazy",
                "x-queue-leader-locator": "client-local",
                "x-quorum-initial-group-size": 1,
                "x-initial-cluster-size": 1,
            }.items():
                s.try_(f"{kind}: {each}", declare(name, {**typed, each: value}, durable=True))
                s.try_(f"{kind}: {each} and no type", declare(name, {**first, each: value}, durable=True))
            s.try_(f"delete {kind}", lambda c, name=name: c.queue_delete(name))

    play_on(play)


def test_an_argument_of_another_type_of_queue_is_refused(play_on: PlayOn) -> None:
    """A stream whose type was forgotten would be a queue that keeps nothing for ``x-max-age``."""

    def play(s: AmqpScenario) -> None:
        of_one_type = {
            "x-max-age": "7D",
            "x-stream-max-segment-size-bytes": 1_000_000,
            "x-initial-cluster-size": 1,
            "x-quorum-initial-group-size": 1,
            "x-max-in-memory-length": 5,
            "x-max-in-memory-bytes": 5,
            "x-dead-letter-strategy": "at-most-once",
            "x-queue-mode": "lazy",
            "x-queue-version": 2,
        }
        for kind in ("classic", "quorum", "stream"):
            for name, value in of_one_type.items():
                s.try_(f"{kind}: {name}", declare("other", {"x-queue-type": kind, name: value}, durable=True))
                s.try_("delete", lambda c: c.queue_delete("other"))
        s.try_("without a type", declare("other", {"x-max-age": "7D"}, durable=True))

    play_on(play)


def test_a_name_that_the_server_gave_is_not_declared_again(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        name = s.channel.queue_declare("", exclusive=True).method.queue
        s.note("passive", s.channel.queue_declare(name, passive=True).method.message_count)
        try:
            s.channel.queue_declare(name, exclusive=True)
        except ChannelClosedByBroker as error:
            s.note("again", [error.reply_code, error.reply_text.replace(name, "NAME")])

    play_on(play)


def test_a_limit_of_deliveries_that_is_given_again_must_be_the_same(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        quorum = {"x-queue-type": "quorum", "x-delivery-limit": 3}
        s.try_("declare", declare("limited-again", quorum, durable=True))
        s.try_("the same", declare("limited-again", quorum, durable=True))
        s.try_("another", declare("limited-again", {**quorum, "x-delivery-limit": 4}, durable=True))
        s.try_("delete", lambda c: c.queue_delete("limited-again"))

    play_on(play)


def test_quorum_queues_have_their_rules(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        quorum = {"x-queue-type": "quorum"}
        s.try_("not durable", declare("quorum", quorum))
        s.try_("exclusive", declare("quorum", quorum, durable=True, exclusive=True))
        s.try_("auto-delete", declare("quorum-auto", quorum, durable=True, auto_delete=True))
        s.try_("without a name", declare("", quorum, durable=True))
        s.try_("declare", declare("quorum", {**quorum, "x-delivery-limit": 2}, durable=True))
        s.try_("as a classic one", declare("quorum", {"x-delivery-limit": 2}, durable=True))
        s.try_("delete", lambda c: c.queue_delete("quorum"))
        s.try_("a limit of a classic queue", declare("classic", {"x-delivery-limit": 2}, durable=True))

    play_on(play)


def test_quorum_queues_count_deliveries_and_give_up(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.queue_declare("given-up", durable=True)
        arguments = {
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "given-up",
        }
        c.queue_declare("limited", durable=True, arguments=arguments)
        c.confirm_delivery()
        c.basic_publish("", "limited", b"poison", pika.BasicProperties(delivery_mode=2))
        for turn in range(3):
            method, properties, body = s.get("limited", auto_ack=False)
            s.note(f"turn {turn}", [method.redelivered, properties, body])
            c.basic_nack(method.delivery_tag, requeue=True)
        s.note("given up", s.get("given-up"))
        s.channel.queue_delete("limited")
        s.channel.queue_delete("given-up")

    play_on(play)


def test_settling_what_was_not_delivered(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        def then_look(call: Callable[[BlockingChannel], Any]) -> Callable[[BlockingChannel], Any]:
            return lambda c: (call(c), c.queue_declare("amq.direct-is-no-queue", passive=True))

        s.try_("ack", then_look(lambda c: c.basic_ack(1)))
        s.try_("ack up to", then_look(lambda c: c.basic_ack(7, multiple=True)))
        s.try_("ack everything", then_look(lambda c: c.basic_ack(0, multiple=True)))
        s.try_("ack 0", then_look(lambda c: c.basic_ack(0)))
        s.try_("nack", then_look(lambda c: c.basic_nack(1)))
        s.try_("nack everything", then_look(lambda c: c.basic_nack(0, multiple=True)))
        s.try_("reject", then_look(lambda c: c.basic_reject(1)))
        s.try_("recover", lambda c: type(c.basic_recover(requeue=True)).__name__)
        s.try_("recover without requeue", lambda c: c.basic_recover(requeue=False))

    play_on(play)


def test_ack_up_to_a_tag_that_is_settled(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.queue_declare("tags", exclusive=True)
        for number in range(6):
            c.basic_publish("", "tags", b"%d" % number)
        for _ in range(5):
            s.get("tags", auto_ack=False)
        c.basic_ack(2)
        c.basic_ack(4, multiple=True)
        s.note("left", s.counts("tags"))
        s.try_("once more", lambda c: (c.basic_ack(4, multiple=True), c.queue_declare("tags", passive=True)))

    play_on(play)


def test_an_unknown_tag_settles_nothing_that_was_delivered_before_it(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("counted", durable=True)
        for settle in (
            lambda c: c.basic_ack(900, multiple=True),
            lambda c: c.basic_nack(900, multiple=True, requeue=False),
            lambda c: (c.basic_ack(2), c.basic_ack(2, multiple=True)),
        ):
            s.channel.confirm_delivery()
            for number in range(3):
                s.channel.basic_publish("", "counted", b"%d" % number)
            for _ in range(3):
                s.get("counted", auto_ack=False)
            s.try_("settle", lambda c, settle=settle: (settle(c), c.queue_declare("counted", passive=True)))
            s.note("still there", s.counts("counted"))
            s.channel.queue_purge("counted")
        s.channel.queue_delete("counted")

    play_on(play)


def test_exchanges_are_used_as_they_were_declared(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.exchange_declare("inner", "fanout", internal=True)
        s.try_("publish to an internal one", lambda c: (c.basic_publish("inner", "", b""), c.queue_delete("none")))
        s.try_("publish to none", lambda c: (c.basic_publish("nobody", "", b""), c.queue_delete("none")))
        s.channel.exchange_declare("with", "direct", arguments={"alternate-exchange": "inner"})
        s.try_(
            "another alternate", lambda c: c.exchange_declare("with", "direct", arguments={"alternate-exchange": "x"})
        )
        s.try_("no alternate", lambda c: c.exchange_declare("with", "direct"))
        s.try_(
            "auto-delete",
            lambda c: c.exchange_declare("with", "direct", auto_delete=True, arguments={"alternate-exchange": "inner"}),
        )
        s.try_(
            "internal",
            lambda c: c.exchange_declare("with", "direct", internal=True, arguments={"alternate-exchange": "inner"}),
        )
        s.try_("passive with another type", lambda c: c.exchange_declare("with", "topic", passive=True))
        s.try_("an odd alternate", lambda c: c.exchange_declare("odd", "direct", arguments={"alternate-exchange": 5}))
        s.channel.queue_declare("bound", exclusive=True)
        s.channel.queue_bind("bound", "with", "k")
        s.try_("delete while used", lambda c: c.exchange_delete("with", if_unused=True))
        s.try_("bind from none", lambda c: c.exchange_bind("with", "nobody", ""))
        s.try_("bind to none", lambda c: c.exchange_bind("nobody", "with", ""))
        s.try_("bind from the default", lambda c: c.exchange_bind("with", "", ""))
        s.try_("unbind from none", lambda c: c.exchange_unbind("with", "nobody", ""))
        s.try_("unbind a queue from none", lambda c: c.queue_unbind("bound", "nobody", ""))
        s.try_("unbind no queue", lambda c: c.queue_unbind("nobody", "with", ""))
        s.try_("unbind from the default", lambda c: c.queue_unbind("bound", "", "bound"))
        s.try_("delete an internal one", lambda c: c.exchange_delete("inner"))
        s.try_("delete", lambda c: c.exchange_delete("with"))

    play_on(play)


def test_headers_exchanges_refuse_odd_matches(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("match", exclusive=True)
        s.try_("x-match=most", lambda c: c.queue_bind("match", "amq.headers", "", {"x-match": "most", "a": 1}))
        s.try_("x-match=5", lambda c: c.queue_bind("match", "amq.headers", "", {"x-match": 5, "a": 1}))
        s.try_("no match", lambda c: c.queue_bind("match", "amq.headers", "", {"a": 1}))

    play_on(play)


def test_a_binding_is_looked_at_before_whose_queue_it_is(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("mine", exclusive=True)
        other = s.connect().channel()
        for what, arguments in (("a wrong match", {"x-match": "odd"}), ("a match", {"x-match": "any"})):
            try:
                other.queue_bind("mine", "amq.headers", "", arguments)
            except ChannelClosedByBroker as error:
                s.note(what, [error.reply_code, error.reply_text.partition("<")[0]])
                other = other.connection.channel()

    play_on(play)


def test_consumers_are_told_why_not(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("asked", exclusive=True)
        s.try_("get from none", lambda c: c.basic_get("nobody"))
        s.try_("an odd priority", lambda c: c.basic_consume("asked", print, arguments={"x-priority": "high"}))
        s.try_("cancel nobody", lambda c: c.basic_cancel("nobody"))
        s.try_("purge nothing", lambda c: c.queue_purge("asked"))
        s.try_(
            "exclusive twice",
            lambda c: (c.basic_consume("asked", print, exclusive=True), c.basic_consume("asked", print)),
        )
        s.try_("delete a queue of none", lambda c: c.queue_delete("nobody", if_unused=True))

    play_on(play)


def test_consumers_have_the_arguments_of_their_type_of_queue(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("classic", declare("consumed-classic", durable=True))
        for kind in ("quorum", "stream"):
            s.try_(kind, declare(f"consumed-{kind}", {"x-queue-type": kind}, durable=True))
        for kind in ("classic", "quorum", "stream"):
            for name, value in {
                "x-stream-offset": "first",
                "x-priority": 1,
                "x-cancel-on-ha-failover": True,
                "x-mystery": 1,
            }.items():

                def consume(c: BlockingChannel, kind: str = kind, name: str = name, value: Any = value) -> Any:
                    c.basic_qos(prefetch_count=1)
                    return c.basic_consume(
                        f"consumed-{kind}", lambda *_: None, False, consumer_tag="t", arguments={name: value}
                    )

                s.try_(f"{name} of {kind}", consume)
                s.channel.close()
            s.try_(f"delete {kind}", lambda c, kind=kind: c.queue_delete(f"consumed-{kind}"))

    play_on(play)


def test_an_argument_of_a_consumer_is_looked_at_before_who_else_consumes(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("taken", exclusive=True)
        s.channel.basic_consume("taken", lambda *_: None, exclusive=True)
        s.channel = s.connection.channel()
        s.try_("a wrong priority", lambda c: c.basic_consume("taken", lambda *_: None, arguments={"x-priority": "x"}))
        s.try_("a second consumer", lambda c: c.basic_consume("taken", lambda *_: None))

    play_on(play)


def test_a_stream_has_no_nack_and_no_reject(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        def take_and(settle: Callable[[BlockingChannel, int], Any]) -> Callable[[BlockingChannel], Any]:
            def play_it(c: BlockingChannel) -> Any:
                c.basic_qos(prefetch_count=10)
                got: list[int] = []
                c.basic_consume(
                    "no-nack", lambda _c, m, _p, _b: got.append(m.delivery_tag), arguments={"x-stream-offset": "first"}
                )
                s.until("a message", lambda: bool(got))
                settle(c, got[0])
                return c.queue_declare("no-nack", passive=True).method.queue

            return play_it

        s.channel.queue_declare("no-nack", durable=True, arguments={"x-queue-type": "stream"})
        s.channel.confirm_delivery()
        s.channel.basic_publish("", "no-nack", b"x")
        s.try_("ack", take_and(lambda c, tag: c.basic_ack(tag)))
        s.try_("nack", take_and(lambda c, tag: c.basic_nack(tag, requeue=False)))
        s.try_("nack and requeue", take_and(lambda c, tag: c.basic_nack(tag)))
        s.try_("reject", take_and(lambda c, tag: c.basic_reject(tag, requeue=False)))
        s.try_("delete", lambda c: type(c.queue_delete("no-nack").method).__name__)
        s.try_("again", declare("no-nack", {"x-queue-type": "stream"}, durable=True))
        c = s.channel
        c.basic_qos(prefetch_count=10)
        c.basic_consume("no-nack", lambda *_: None, exclusive=True)
        s.channel = s.connection.channel()
        s.try_("a second consumer without a prefetch", lambda c: c.basic_consume("no-nack", lambda *_: None))
        s.try_("delete again", lambda c: type(c.queue_delete("no-nack").method).__name__)

    play_on(play)


def test_what_quorum_queues_do_not_do(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", declare("conditions", {"x-queue-type": "quorum"}, durable=True))
        s.try_("if unused", lambda c: c.queue_delete("conditions", if_unused=True))
        s.try_("if empty", lambda c: c.queue_delete("conditions", if_empty=True))
        s.try_("delete", lambda c: c.queue_delete("conditions"))
        single = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        s.try_("with a single active consumer", declare("conditions", single, durable=True))
        s.try_("fetch", lambda c: c.basic_get("conditions"))
        s.try_("delete it", lambda c: c.queue_delete("conditions"))

    play_on(play)


def test_a_client_may_not_stop_what_it_consumes_but_by_its_prefetch(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("go on", lambda c: c.flow(True))
        s.try_("stop", lambda c: c.flow(False))

    play_on(play)


def test_transactions_and_confirms_do_not_mix(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("rollback without select", lambda c: c.tx_rollback())
        s.try_("tx after confirms", lambda c: (c.confirm_delivery(), c.tx_select()))
        s.try_("select twice", lambda c: (c.tx_select(), type(c.tx_select()).__name__)[1])

    play_on(play)


def test_acknowledgements_of_a_transaction_are_undone(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("tx-acks", exclusive=True)
        for number in range(3):
            s.channel.basic_publish("", "tx-acks", b"%d" % number)
        tx = s.connection.channel()
        tx.tx_select()
        for _ in range(3):
            method = tx.basic_get("tx-acks")[0]
            tx.basic_ack(method.delivery_tag)
        tx.tx_rollback()
        s.note("nothing is ready", s.counts("tx-acks"))
        tx.basic_ack(1)
        tx.tx_commit()
        tx.basic_ack(2)
        tx.close()
        s.until("two come back", lambda: s.counts("tx-acks")[0] == 2)
        s.note_messages("what was not committed", "tx-acks", 2)

    play_on(play)
