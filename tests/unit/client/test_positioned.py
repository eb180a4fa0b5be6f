"""Events with their position: what is sent when."""

from __future__ import annotations

import os

from headrace.client import Client, PositionedProducer, TopicPartition, end_offsets
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
