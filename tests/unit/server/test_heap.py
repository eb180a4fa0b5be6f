"""When the heap is frozen, and that nothing a client leaves there needs the cycle collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.server.heap import OLDEST_GENERATION, Heap
from headrace.testing import broker
from tests.unit.server.harness import Client
from tests.waiting import PATIENCE_S, eventually


def test_the_heap_is_frozen_after_every_full_collection_and_after_no_other() -> None:
    frozen: list[int] = []
    heap = Heap(lambda: frozen.append(generation))
    for generation in (0, 1, OLDEST_GENERATION, 1, OLDEST_GENERATION):
        heap.collecting("start", {"generation": generation})
        heap.collecting("stop", {"generation": generation})
    assert frozen == [OLDEST_GENERATION, OLDEST_GENERATION]


@contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.set_debug(0)
        gc.garbage.clear()


def cycles() -> Counter[str]:
    """The kinds of objects that only the collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    gc.garbage.clear()
    return Counter({kind: count for kind, count in kinds.items() if kind.startswith(("headrace.", "uvloop."))})


def test_what_clients_leave_behind_is_freed_without_the_collector() -> None:
    with broker() as server, collector_off():
        host, _, port = server.bootstrap.partition(":")
        with Client((host, int(port))) as stranger:
            stranger.socket.sendall(b"\x00\x00\x00\x10not a request...")
            assert stranger.socket.recv(1) == b""
        use(server.bootstrap)
        eventually(lambda: sum(each.connections for each in server._node._listeners) == 0)
        assert not cycles()


def use(bootstrap: str) -> None:
    """Topics, a refused request, transactions that end both ways, both kinds of groups, and all of it gone again."""
    server = {"bootstrap.servers": bootstrap}
    admin = AdminClient(server)
    admin.create_topics([NewTopic("t", 2, 1)])["t"].result(PATIENCE_S)
    with suppress(KafkaException):
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(PATIENCE_S)
    producer = Producer({**server, "transactional.id": "id"})
    producer.init_transactions(PATIENCE_S)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("t", b"value", partition=0)
        end(PATIENCE_S)
    for protocol in ("classic", "consumer"):
        group = {"group.id": protocol, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        consumer = Consumer({**server, **group})
        consumer.subscribe(["t"])
        assert consumer.poll(PATIENCE_S).error() is None
        consumer.poll(0.6)  # a fetch that waits, and whose time runs out
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        consumer.close()
    admin.delete_topics(["t"])["t"].result(PATIENCE_S)
