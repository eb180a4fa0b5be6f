"""Events with their position: what is sent when."""

from __future__ import annotations

import os

from headrace.client import Client, Consumer, PositionedProducer, TopicPartition, end_offsets
from headrace.client.byte_column import ByteColumn
from headrace.testing import broker
from tests.waiting import eventually


def test_while_a_producer_holds_back_nothing_is_sent_and_afterwards_all_of_it() -> None:
    place = TopicPartition("events", 0)
    with broker() as running, Client(running.bootstrap) as client:
        producer = PositionedProducer(client, "holder", "holder-state")
        producer.start()

        def sent() -> int:
            return int(end_offsets(client, [place])[place])

        with producer.holding():
            for _ in range(10):
                producer.add("events", None, os.urandom(300_000))
            assert sent() == 0
        eventually(lambda: sent() > 0)
        for _ in range(10):
            producer.add("events", None, os.urandom(300_000))
        producer.commit({"position": 20})
        assert sent() == 21, "twenty records and the mark of their commit"


def test_records_of_many_batches_are_those_that_were_added_whatever_memory_they_take() -> None:
    place = TopicPartition("events", 0)
    texts = [b"%d" % number for number in range(30_000)]
    expected: list[tuple[bytes | None, bytes | None]] = []
    with broker() as running, Client(running.bootstrap) as client:
        producer = PositionedProducer(client, "adder", "adder-state")
        producer.start()
        for turn, filler in enumerate((b"wide " * 100, b"narrow ", b"")):
            producer.add_many("events", ByteColumn([b"k", texts], 30_000), ByteColumn([filler, texts], 30_000))
            for number in range(9_000):
                producer.add("events", None, b"%d" % number)
            producer.commit({"position": turn})
            expected += [(b"k" + each, filler + each) for each in texts]
            expected += [(None, each) for each in texts[:9_000]]
        consumer = Consumer(client)
        consumer.assign({place: 0})
        found: list[tuple[bytes | None, bytes | None]] = []
        while len(found) < len(expected):
            found += [(each.key, each.value) for each in consumer.poll(timeout_ms=1_000).get(place, [])]
    assert found == expected
