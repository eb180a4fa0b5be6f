"""The same scenarios on RabbitMQ and on headrace: the same answers, error codes and texts included."""

from __future__ import annotations

import time
from collections.abc import Callable

import pika
import pytest
from pika.exceptions import NackError, UnroutableError

from tests.amqp.scenario import AmqpScenario

PlayOn = Callable[[Callable[[AmqpScenario], None]], None]
PERSISTENT = pika.BasicProperties(delivery_mode=2)

pytestmark = pytest.mark.servers


def test_queues_are_declared_once_and_must_stay_the_same(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.queue_declare("d1", durable=True))
        s.try_("the same", lambda c: c.queue_declare("d1", durable=True))
        s.try_("not durable", lambda c: c.queue_declare("d1"))
        s.try_("auto-delete", lambda c: c.queue_declare("d1", durable=True, auto_delete=True))
        s.try_("a time to live", lambda c: c.queue_declare("d1", durable=True, arguments={"x-message-ttl": 5}))
        s.try_("passive", lambda c: c.queue_declare("d1", passive=True))
        s.try_("passive, missing", lambda c: c.queue_declare("nobody", passive=True))
        s.try_("reserved", lambda c: c.queue_declare("amq.mine"))
        s.try_("delete", lambda c: c.queue_delete("d1"))
        s.try_("delete again", lambda c: c.queue_delete("d1"))

    play_on(play)


def test_queues_get_names_and_the_last_one_needs_none(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("no name", lambda c: c.queue_declare("", exclusive=True))
        s.try_("bind the last", lambda c: c.queue_bind("", "amq.direct", "key"))
        s.try_("publish", lambda c: c.basic_publish("amq.direct", "key", b"one"))
        s.note("get", s.get(""))
        other = s.connection.channel()
        s.channel = other
        s.try_("no last queue on another channel", lambda c: c.queue_purge(""))

    play_on(play)


def test_bad_arguments_are_refused(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        for arguments in ({"x-message-ttl": -1}, {"x-expires": 0}, {"x-max-length": -5}, {"x-overflow": "explode"}):
            s.try_(f"{arguments}", lambda c, a=arguments: _closed(lambda: c.queue_declare("bad", arguments=a)))

    play_on(play)


def _closed(call: Callable[[], object]) -> object:
    """Only the code: texts about arguments are our own."""
    try:
        return call()
    except pika.exceptions.ChannelClosedByBroker as error:
        return error.reply_code


def test_exclusive_queues_belong_to_one_connection(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.queue_declare("mine", exclusive=True))
        other = s.connect()
        mine, s.connection, s.channel = s.connection, other, other.channel()
        s.try_("passive from elsewhere", lambda c: c.queue_declare("mine", passive=True))
        s.try_("consume from elsewhere", lambda c: c.basic_get("mine"))
        mine.close()
        time.sleep(0.5)
        s.try_("gone with its connection", lambda c: c.queue_declare("mine", passive=True))

    play_on(play)


def test_auto_delete_queues_go_with_their_last_consumer(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.queue_declare("auto", auto_delete=True))
        tag = s.channel.basic_consume("auto", lambda *_: None)
        s.note("counts", s.counts("auto"))
        s.channel.basic_cancel(tag)
        time.sleep(0.5)
        s.try_("gone", lambda c: c.queue_declare("auto", passive=True))

    play_on(play)


def test_deleting_and_purging_look_at_users_and_messages(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.queue_declare("del"))
        s.channel.confirm_delivery()
        for number in range(3):
            s.channel.basic_publish("", "del", b"%d" % number)
        s.try_("not empty", lambda c: c.queue_delete("del", if_empty=True))
        s.channel.basic_consume("del", lambda *_: None, consumer_tag="c")
        s.try_("in use", lambda c: c.queue_delete("del", if_unused=True))
        s.try_("purge", lambda c: c.queue_purge("del"))
        s.try_("purge, missing", lambda c: c.queue_purge("nobody"))
        s.try_("delete", lambda c: c.queue_delete("del"))

    play_on(play)


def test_exchanges_are_declared_once_and_must_stay_the_same(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.exchange_declare("e1", "topic"))
        s.try_("again", lambda c: c.exchange_declare("e1", "topic"))
        s.try_("another type", lambda c: c.exchange_declare("e1", "direct"))
        s.try_("durable", lambda c: c.exchange_declare("e1", "topic", durable=True))
        s.try_("unknown type", lambda c: c.exchange_declare("e2", "mystery"))
        s.try_("passive, missing", lambda c: c.exchange_declare("nobody", passive=True))
        s.try_("reserved", lambda c: c.exchange_declare("amq.mine", "direct"))
        s.try_("the default", lambda c: c.exchange_declare("", "direct"))
        s.try_("delete the default", lambda c: c.exchange_delete(""))
        s.try_("delete a reserved one", lambda c: c.exchange_delete("amq.direct"))
        s.try_("delete, missing", lambda c: c.exchange_delete("nobody"))
        s.try_("predeclared", lambda c: c.exchange_declare("amq.topic", "topic", durable=True))
        s.try_("delete", lambda c: c.exchange_delete("e1"))

    play_on(play)


def test_binding_needs_both_ends(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.queue_declare("b1"))
        s.try_("no exchange", lambda c: c.queue_bind("b1", "nobody", "k"))
        s.try_("no queue", lambda c: c.queue_bind("nobody", "amq.direct", "k"))
        s.try_("the default exchange", lambda c: c.queue_bind("b1", "", "k"))
        s.try_("bind", lambda c: c.queue_bind("b1", "amq.direct", "k"))
        s.try_("bind twice", lambda c: c.queue_bind("b1", "amq.direct", "k"))
        s.channel.basic_publish("amq.direct", "k", b"once")
        s.note_messages("comes once", "b1", 1)
        s.try_("unbind", lambda c: c.queue_unbind("b1", "amq.direct", "k"))
        s.try_("unbind again", lambda c: c.queue_unbind("b1", "amq.direct", "k"))
        s.try_("delete", lambda c: c.queue_delete("b1"))

    play_on(play)


def test_topic_patterns(play_on: PlayOn) -> None:
    patterns = ["a.b.c", "a.*.c", "a.#", "#", "*", "#.c", "a.#.c", "*.*", "a.b.#.c", "#.#", "*.#", "", "a..c"]
    keys = ["a.b.c", "a.c", "a", "", "x", "a.b", "a.b.x.c", "x.y.c", "a..c", "a.b.c.d", "."]

    def play(s: AmqpScenario) -> None:
        s.channel.exchange_declare("patterns", "topic")
        for number, pattern in enumerate(patterns):
            s.channel.queue_declare(f"p{number}", exclusive=True)
            s.channel.queue_bind(f"p{number}", "patterns", pattern)
        s.channel.confirm_delivery()
        for key in keys:
            try:
                s.channel.basic_publish("patterns", key, key.encode(), mandatory=True)
            except UnroutableError:
                s.note("unroutable", key)
        for number, pattern in enumerate(patterns):
            found = []
            while (message := s.get(f"p{number}", wait_s=0.0)) is not None:
                found.append(message[2].decode())
            s.note(pattern, found)
        s.channel.exchange_delete("patterns")

    play_on(play)


def test_headers_and_fanout_and_exchanges_bound_to_exchanges(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.exchange_declare("h", "headers")
        c.exchange_declare("f", "fanout")
        c.exchange_bind("f", "h", "", {"x-match": "any", "colour": "red", "size": 3})
        for name in ("h-all", "h-any", "h-there", "f-1", "f-2"):
            c.queue_declare(name, exclusive=True)
        c.queue_bind("h-all", "h", "", {"x-match": "all", "colour": "red", "size": 3})
        c.queue_bind("h-any", "h", "", {"x-match": "any", "colour": "red", "size": 3})
        c.queue_bind("h-there", "h", "", {"x-match": "all", "colour": None})
        c.queue_bind("f-1", "f", "ignored")
        c.queue_bind("f-2", "f", "")
        c.confirm_delivery()
        for number, headers in enumerate(({"colour": "red", "size": 3}, {"colour": "blue"}, {"size": 3}, {}, None)):
            c.basic_publish("h", "any", b"%d" % number, pika.BasicProperties(headers=headers))
        for name in ("h-all", "h-any", "h-there", "f-1", "f-2"):
            found = []
            while (message := s.get(name, wait_s=0.0)) is not None:
                found.append(message[2].decode())
            s.note(name, found)
        c.exchange_delete("h")
        c.exchange_delete("f")

    play_on(play)


def test_what_no_queue_takes_goes_to_the_alternate_exchange_or_back(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.exchange_declare("spare", "fanout")
        c.exchange_declare("main", "direct", arguments={"alternate-exchange": "spare"})
        c.queue_declare("spare-q", exclusive=True)
        c.queue_bind("spare-q", "spare", "")
        c.confirm_delivery()
        c.basic_publish("main", "nowhere", b"alternate", mandatory=True)
        s.note_messages("alternate", "spare-q", 1)
        try:
            c.basic_publish("amq.direct", "nowhere", b"back", PERSISTENT, mandatory=True)
        except UnroutableError as error:
            s.note("returned", [[m.method, m.properties, m.body] for m in error.messages])
        s.try_("no exchange", lambda c: c.basic_publish("nobody", "k", b""))
        s.channel = s.connection.channel()
        s.channel.exchange_delete("main")
        s.channel.exchange_delete("spare")

    play_on(play)


def test_properties_and_bodies_arrive_as_they_were(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        properties = pika.BasicProperties(
            content_type="text/plain",
            content_encoding="utf-8",
            headers={
                "n": 1,
                "big": 2**40,
                "t": True,
                "s": "ä",
                "none": None,
                "list": [1, "a", {"x": 1}],
                "b": b"\xff",
            },
            delivery_mode=2,
            priority=7,
            correlation_id="c",
            reply_to="r",
            expiration="60000",
            message_id="m",
            timestamp=1_700_000_000,
            type="t",
            user_id="guest",
            app_id="a",
        )
        s.channel.queue_declare("props", exclusive=True)
        s.channel.basic_publish("", "props", b"", properties)
        s.channel.basic_publish("", "props", bytes(range(256)), PERSISTENT)
        s.channel.basic_publish("", "props", b"x" * 300_000)
        s.note("all of them", s.get("props"))
        s.note("bytes", s.get("props"))
        s.note("in several frames", len(s.get("props")[2]))
        wrong = pika.BasicProperties(user_id="somebody")
        s.try_("another user", lambda c: (c.confirm_delivery(), c.basic_publish("", "props", b"", wrong)))
        odd = pika.BasicProperties(expiration="soon")
        s.try_(
            "an odd expiration",
            lambda c: _closed(lambda: (c.confirm_delivery(), c.basic_publish("", "props", b"", odd))),
        )

    play_on(play)


def test_messages_are_acknowledged_given_back_and_rejected(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.queue_declare("acks", exclusive=True)
        for number in range(6):
            c.basic_publish("", "acks", b"%d" % number)
        first = s.get("acks", auto_ack=False)
        second = s.get("acks", auto_ack=False)
        s.get("acks", auto_ack=False)
        c.basic_nack(first[0].delivery_tag, requeue=True)
        s.note("it comes again, at its place", s.get("acks", auto_ack=False))
        c.basic_reject(second[0].delivery_tag, requeue=False)
        c.basic_ack(0, multiple=True)
        s.note_messages("the rest", "acks", 3)
        s.try_("an unknown tag", lambda c: (c.basic_ack(99), c.queue_declare("acks", passive=True)))
        s.try_("acknowledged twice", _twice)

    play_on(play)


def _twice(channel: pika.adapters.blocking_connection.BlockingChannel) -> object:
    channel.queue_declare("twice", exclusive=True)
    channel.basic_publish("", "twice", b"1")
    method = channel.basic_get("twice")[0]
    channel.basic_ack(method.delivery_tag)
    channel.basic_ack(method.delivery_tag)
    return channel.queue_declare("twice", passive=True)


def test_a_closed_channel_gives_back_what_it_has(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("back", exclusive=True)
        for number in range(4):
            s.channel.basic_publish("", "back", b"%d" % number)
        other = s.connection.channel()
        for _ in range(3):
            other.basic_get("back")
        s.note("taken", s.counts("back"))
        other.close()
        s.until("they are back", lambda: s.counts("back")[0] == 4)
        s.note_messages("in order, marked", "back", 4)

    play_on(play)


def test_consumers_get_as_much_as_they_may_have(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.queue_declare("prefetch", exclusive=True)
        got: list[list[object]] = []
        c.basic_qos(prefetch_count=2)
        c.basic_consume("prefetch", lambda _, m, p, b: got.append([m, b]), consumer_tag="one")
        for number in range(5):
            c.basic_publish("", "prefetch", b"%d" % number)
        s.until("two came", lambda: len(got) == 2)
        s.connection.process_data_events(0.3)
        s.note("two and no more", got)
        s.note("counts", s.counts("prefetch"))
        c.basic_ack(1)
        s.until("one more", lambda: len(got) == 3)
        s.connection.process_data_events(0.3)
        s.note("one for one", len(got))
        c.basic_ack(0, multiple=True)
        s.until("the rest", lambda: len(got) == 5)
        s.try_("the tag again", lambda c: c.basic_consume("prefetch", lambda *_: None, consumer_tag="two"))
        s.try_("qos by size", lambda c: c.basic_qos(prefetch_size=10))

    play_on(play)


def test_exclusive_and_cancelled_consumers(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("only")
        s.channel.basic_consume("only", lambda *_: None, exclusive=True, consumer_tag="x")
        other = s.connection.channel()
        first, s.channel = s.channel, other
        s.try_("a second consumer", lambda c: c.basic_consume("only", lambda *_: None))
        cancelled: list[object] = []
        first.add_on_cancel_callback(cancelled.append)
        s.channel = s.connection.channel()
        s.channel.queue_delete("only")
        s.until("cancelled", lambda: bool(cancelled))
        s.note("cancelled", cancelled)
        s.try_("consume, missing", lambda c: c.basic_consume("nobody", lambda *_: None))

    play_on(play)


def test_consumers_take_turns_and_priorities_go_first(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.queue_declare("turns", exclusive=True)
        got: list[str] = []
        for tag, priority in (("low", 1), ("high-1", 5), ("high-2", 5)):
            c.basic_consume(
                "turns",
                lambda _, m, p, b: got.append(m.consumer_tag),
                consumer_tag=tag,
                arguments={"x-priority": priority},
            )
        for number in range(4):
            c.basic_publish("", "turns", b"%d" % number)
        s.until("all came", lambda: len(got) == 4)
        s.note("only the high ones", sorted(got))

    play_on(play)


def test_a_single_active_consumer_is_followed_by_the_next(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.queue_declare("single", arguments={"x-single-active-consumer": True})
        got: list[str] = []
        for tag in ("first", "second"):
            c.basic_consume("single", lambda _, m, p, b: got.append(m.consumer_tag), auto_ack=True, consumer_tag=tag)
        for number in range(3):
            c.basic_publish("", "single", b"%d" % number)
        s.until("three", lambda: len(got) == 3)
        c.basic_cancel("first")
        c.basic_publish("", "single", b"3")
        s.until("four", lambda: len(got) == 4)
        s.note("who got them", got)
        c.queue_delete("single")

    play_on(play)


def test_dead_letters_tell_their_history(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.queue_declare("dead", exclusive=True)
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        c.queue_declare("rejecting", exclusive=True, arguments=to_dead)
        c.queue_declare("expiring", exclusive=True, arguments={**to_dead, "x-message-ttl": 50})
        c.queue_declare("short", exclusive=True, arguments={**to_dead, "x-max-length": 1})
        c.basic_publish("", "rejecting", b"rejected", pika.BasicProperties(headers={"mine": 1}))
        c.basic_reject(s.get("rejecting", auto_ack=False)[0].delivery_tag, requeue=False)
        s.note("rejected", s.get("dead"))
        c.basic_publish("", "expiring", b"expired")
        s.note("expired", s.get("dead"))
        c.queue_declare("expiring-too", exclusive=True, arguments=to_dead)
        c.basic_publish("", "expiring-too", b"expired", pika.BasicProperties(expiration="30"))
        s.note("expired by its own limit", s.get("dead"))
        for body in (b"first", b"second"):
            c.basic_publish("", "short", body)
        s.note("pushed out", s.get("dead"))
        s.note("still there", s.get("short"))

    play_on(play)


def test_dead_letters_count_how_often(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        loop = {"x-dead-letter-exchange": ""}
        c.queue_declare("work", exclusive=True, arguments={**loop, "x-dead-letter-routing-key": "wait"})
        c.queue_declare(
            "wait", exclusive=True, arguments={**loop, "x-dead-letter-routing-key": "work", "x-message-ttl": 30}
        )
        c.basic_publish("", "work", b"again and again")
        for turn in range(3):
            message = s.get("work", auto_ack=False)
            s.note(f"turn {turn}", message)
            c.basic_reject(message[0].delivery_tag, requeue=False)

    play_on(play)


def test_a_message_that_was_rejected_once_does_not_go_round_for_ever(play_on: PlayOn) -> None:
    """Two messages that push each other out of a queue whose dead letters come back to it."""

    def play(s: AmqpScenario) -> None:
        arguments = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "circle"}
        s.channel.queue_declare("circle", durable=True, arguments=arguments)
        taken = []
        for body in (b"first", b"second"):
            s.channel.basic_publish("", "circle", body)
            taken.append(s.get("circle", auto_ack=False))
        for method, _, _ in taken:
            s.channel.basic_reject(method.delivery_tag, requeue=False)
        s.until("one is left", lambda: s.counts("circle")[0] == 1)
        s.connection.process_data_events(0.3)
        s.note_messages("what is left", "circle", 1)
        s.channel.queue_delete("circle")

    play_on(play)


def test_an_exclusive_queue_is_never_durable(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("durable", lambda c: c.queue_declare("own", durable=True, exclusive=True))
        s.try_("not durable", lambda c: c.queue_declare("own", exclusive=True))

    play_on(play)


def test_a_full_queue_drops_or_refuses(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.confirm_delivery()
        c.queue_declare("drop", exclusive=True, arguments={"x-max-length": 2})
        c.queue_declare("bytes", exclusive=True, arguments={"x-max-length-bytes": 5})
        c.queue_declare("refuse", exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        for queue in ("drop", "bytes", "refuse"):
            for number in range(4):
                try:
                    c.basic_publish("", queue, b"%d%d" % (number, number))
                except NackError:
                    s.note("refused", [queue, number])
            s.note_messages(queue, queue, 2)

    play_on(play)


def test_priorities_are_served_from_the_highest(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.confirm_delivery()
        c.queue_declare("prio", exclusive=True, arguments={"x-max-priority": 5})
        for number, priority in enumerate((None, 1, 5, 3, 5, 9, 0)):
            c.basic_publish("", "prio", b"%d" % number, pika.BasicProperties(priority=priority))
        s.note("in which order", [s.get("prio")[2].decode() for _ in range(7)])

    play_on(play)


def test_transactions_are_done_whole_or_not_at_all(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.channel.queue_declare("tx", exclusive=True)
        tx = s.connection.channel()
        tx.tx_select()
        tx.basic_publish("", "tx", b"one")
        tx.basic_publish("", "tx", b"two")
        time.sleep(0.2)
        s.note("not yet", s.counts("tx"))
        tx.tx_commit()
        s.until("two", lambda: s.counts("tx")[0] == 2)
        tx.basic_publish("", "tx", b"three")
        tx.tx_rollback()
        s.note_messages("committed", "tx", 2)
        s.channel = s.connection.channel()
        s.try_("commit without select", lambda c: c.tx_commit())
        s.try_("confirms in a transaction", lambda c: (c.tx_select(), c.confirm_delivery()))

    play_on(play)


def test_copies_by_header(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        for name in ("to", "cc", "bcc"):
            c.queue_declare(name, exclusive=True)
        headers = {"CC": ["cc"], "BCC": ["bcc"]}
        c.basic_publish("", "to", b"x", pika.BasicProperties(headers=headers))
        for name in ("to", "cc", "bcc"):
            s.note_messages(name, name, 1)

    play_on(play)


def test_a_queue_that_nobody_uses_expires(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        s.try_("declare", lambda c: c.queue_declare("unused", arguments={"x-expires": 400}))
        s.try_("and one with a consumer", lambda c: c.queue_declare("used", arguments={"x-expires": 400}))
        s.channel.basic_consume("used", lambda *_: None, consumer_tag="c")
        time.sleep(1.2)
        s.note("used", s.counts("used"))
        s.try_("unused", lambda c: c.queue_declare("unused", passive=True))
        s.channel.queue_delete("used")

    play_on(play)


def test_a_limit_for_the_channel_counts_all_its_consumers(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        got: list[str] = []
        c.basic_qos(prefetch_count=3, global_qos=True)
        for queue in ("g1", "g2"):
            c.queue_declare(queue, exclusive=True)
            c.basic_consume(queue, lambda _, m, p, b: got.append(b.decode()), consumer_tag=queue)
            for number in range(3):
                c.basic_publish("", queue, b"%d" % number)
        s.until("three", lambda: len(got) == 3)
        s.connection.process_data_events(0.3)
        s.note("three and no more", len(got))
        c.basic_qos(prefetch_count=5, global_qos=True)
        s.until("five", lambda: len(got) == 5)
        s.connection.process_data_events(0.3)
        s.note("five and no more", len(got))

    play_on(play)


def test_what_is_fetched_does_not_count_for_the_limit_of_a_channel(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        c = s.channel
        got: list[list[object]] = []
        for queue, count in (("fetched", 3), ("consumed", 4)):
            c.queue_declare(queue, exclusive=True)
            for number in range(count):
                c.basic_publish("", queue, b"%d" % number)
        c.basic_qos(prefetch_count=2, global_qos=True)
        s.note("three fetched, with a limit of two", [s.get("fetched", auto_ack=False)[2] for _ in range(3)])
        c.basic_consume("consumed", lambda _, m, p, b: got.append([m.delivery_tag, b]), consumer_tag="c")
        s.until("two of the consumer", lambda: len(got) >= 2)
        s.connection.process_data_events(0.3)
        s.note("two of the consumer beside them", got)
        c.basic_ack(1)
        s.connection.process_data_events(0.3)
        s.note("one fetched less makes no room", got)
        c.basic_ack(4)
        s.until("a third", lambda: len(got) >= 3)
        s.connection.process_data_events(0.3)
        s.note("one consumed less does", got)

    play_on(play)


def test_dead_letters_of_messages_with_copies(play_on: PlayOn) -> None:
    """A routing key of the queue takes the place of all that a message was published with."""

    def play(s: AmqpScenario) -> None:
        c = s.channel
        c.exchange_declare("cc-dlx", "direct")
        for key in ("source", "copied", "renamed"):
            c.queue_declare(f"cc-dead-{key}", exclusive=True)
            c.queue_bind(f"cc-dead-{key}", "cc-dlx", key)
        for place, more in enumerate(({}, {"x-dead-letter-routing-key": "renamed"})):
            c.queue_declare("source", exclusive=True, arguments={"x-dead-letter-exchange": "cc-dlx", **more})
            c.basic_publish("", "source", b"%d" % place, pika.BasicProperties(headers={"CC": ["copied"]}))
            method = s.get("source", auto_ack=False)[0]
            c.basic_reject(method.delivery_tag, requeue=False)
            first = "renamed" if more else "source"
            s.note(f"{more}", s.get(f"cc-dead-{first}"))
            for key in ("source", "copied", "renamed"):
                s.note(f"{more} {key}", s.get(f"cc-dead-{key}", wait_s=0.2))
            c.queue_delete("source")
        c.exchange_delete("cc-dlx")

    play_on(play)
