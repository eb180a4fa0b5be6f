"""Queues as a source and exchanges as a sink, without a JVM: what is planned, read, acknowledged and published."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace import testing
from headrace.client import Admin, Client, Consumer, Queues, TopicPartition
from headrace.client.bridge import bridge
from headrace.errors import HeadraceError, UsageError
from headrace.spark import sinks
from headrace.spark.sinks.exchange import publish_rows
from headrace.spark.source.queue_acknowledgements import AcknowledgementListener
from headrace.spark.source.queue_source import QueueBatchReader, QueueOptions, QueueStreamReader
from headrace.spark.source.tasks import DataLost
from headrace.testing import TestBroker
from tests.waiting import eventually


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with testing.broker(amqp=True) as running:
        yield running


@contextmanager
def channel_of(broker: TestBroker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    yield connection.channel()
    connection.close()


def publish(broker: TestBroker, queue: str, *bodies: str, arguments: dict[str, Any] | None = None) -> None:
    with channel_of(broker) as channel:
        channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.confirm_delivery()
        for body in bodies:
            properties = pika.BasicProperties(message_id=body, headers={"n": 1}, priority=int(body[-1]))
            channel.basic_publish("", queue, body.encode(), properties)


def options(broker: TestBroker, queue: str, **more: str) -> QueueOptions:
    return QueueOptions.parse({"bootstrap": broker.bootstrap, "queue": queue, **more})


def rows_of(reader: QueueStreamReader | QueueBatchReader, parts: Any) -> list[dict[str, Any]]:
    return [row for part in parts for block in reader.read(part) for row in block.to_pylist()]


def without_id(offsets: dict[str, Any]) -> dict[str, Any]:
    return {lane: offset for lane, offset in offsets.items() if lane != "id"}


def test_a_queue_is_read_by_offsets_and_a_batch_can_be_read_again(broker: TestBroker) -> None:
    publish(broker, "read", "a0", "b0", "c0")
    reader = QueueStreamReader(options(broker, "read"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (without_id(start), without_id(end)) == ({"0": 0}, {"0": 3})
    for _ in range(2):
        found = rows_of(reader, reader.partitions(start, end))
        assert [(row["offset"], row["body"], row["message_id"]) for row in found] == [
            (0, b"a0", "a0"),
            (1, b"b0", "b0"),
            (2, b"c0", "c0"),
        ]
    assert found[0]["headers"] == [("n", "1")]
    with Client(broker.bootstrap) as client:
        assert Queues(client).describe("read").ready == 3


def test_a_limit_takes_the_highest_priorities_first_and_reaches_the_end(broker: TestBroker) -> None:
    publish(broker, "ranked", "a0", "b1", "c1", "d0", arguments={"x-max-priority": 1})
    reader = QueueStreamReader(options(broker, "ranked", maxMessagesPerTrigger="3"))
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert without_id(first) == {"0": 1, "1": 2}
    assert without_id(reader.latestOffset(first, limit)) == {"0": 2, "1": 2}


def test_what_is_there_now_is_all_that_a_bounded_run_reads(broker: TestBroker) -> None:
    publish(broker, "bounded", "a0")
    reader = QueueStreamReader(options(broker, "bounded"))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    publish(broker, "bounded", "b0")
    assert without_id(reader.latestOffset(start, ReadAllAvailable())) == {"0": 1}
    batch = QueueBatchReader(options(broker, "bounded"))
    assert [row["body"] for row in rows_of(batch, batch.partitions())] == [b"a0", b"b0"]


def test_messages_that_others_have_acknowledged_are_missed_aloud(broker: TestBroker) -> None:
    publish(broker, "lossy", "a0", "b0")
    reader = QueueStreamReader(options(broker, "lossy"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    with Client(broker.bootstrap) as client:
        assert Queues(client).acknowledge("lossy", 0, 0, 1) == 1
        Queues(client).describe("lossy")
    with pytest.raises(DataLost, match=r"headrace\.queue\.retention\.ms"):
        rows_of(reader, reader.partitions(start, end))
    careless = QueueStreamReader(options(broker, "lossy", failOnDataLoss="false"))
    assert [row["body"] for row in rows_of(careless, careless.partitions(start, end))] == [b"b0"]


def test_what_a_query_has_committed_is_acknowledged_and_nothing_else(broker: TestBroker) -> None:
    publish(broker, "acked", "a0", "b0", "c0")
    listener = AcknowledgementListener(SimpleNamespace(get=lambda _: None))  # type: ignore[arg-type]
    listener._options["run"] = [options(broker, "acked", acknowledge="true"), None]
    report = {"runId": "run", "id": "query", "sources": [{"endOffset": {"0": 2}}, {"endOffset": {"0": 3}}]}
    listener.progressed(json.dumps(report))
    with Client(broker.bootstrap) as client:
        found = Queues(client).describe("acked")
        assert (found.ready, found.lanes[0].floor) == (1, 2)


def test_a_queue_that_was_made_anew_is_not_taken_for_the_one_that_was_read(broker: TestBroker) -> None:
    """Its first messages were passed over, and acknowledged with the first batch that came after them."""
    publish(broker, "again", "a0", "b0", "c0")
    reader = QueueStreamReader(options(broker, "again"))
    start = reader.initialOffset()
    before = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, before)
    with channel_of(broker) as channel:
        channel.queue_delete("again")
    publish(broker, "again", *(f"{name}1" for name in "defgh"))
    for ask in (lambda: reader.latestOffset(before, ReadAllAvailable()), lambda: rows_of(reader, parts)):
        with pytest.raises(DataLost, match="queue 'again' was deleted and declared again"):
            ask()
    listener = AcknowledgementListener(SimpleNamespace(get=lambda _: None))  # type: ignore[arg-type]
    listener._options["run"] = [options(broker, "again", acknowledge="true")]
    listener.progressed(json.dumps({"runId": "run", "id": "query", "sources": [{"endOffset": before}]}))
    with Client(broker.bootstrap) as client:
        assert Queues(client).describe("again").ready == 5
    careless = QueueStreamReader(options(broker, "again", failOnDataLoss="false"))
    after = careless.latestOffset(before, ReadAllAvailable())
    found = rows_of(careless, careless.partitions(before, after))
    assert [row["body"] for row in found] == [b"d1", b"e1", b"f1", b"g1", b"h1"]
    assert rows_of(careless, parts) == []


def test_a_checkpoint_of_before_queues_had_ids_goes_on(broker: TestBroker) -> None:
    publish(broker, "old", "a0", "b0")
    reader = QueueStreamReader(options(broker, "old"))
    after = reader.latestOffset({"0": 1}, ReadAllAvailable())
    assert after["id"]
    assert [row["body"] for row in rows_of(reader, reader.partitions({"0": 1}, after))] == [b"b0"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "no queue is named"),
        ({"queue": "q", "queues": "x"}, "unknown options"),
        ({"queue": "q", "startingOffsets": "latest"}, "must be ready or earliest"),
        ({"queue": "q", "maxMessagesPerTrigger": "0"}, "no number above 0"),
    ],
)
def test_a_wrong_option_is_one_clear_line(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        QueueOptions.parse(given)


def test_rows_are_published_with_the_same_ids_each_time(broker: TestBroker) -> None:
    publish(broker, "out")
    rows = [Row(body="x", message_id=None), Row(body=b"y", message_id="mine")]
    for _ in range(2):
        publish_rows(iter(rows), url=broker.amqp_url, exchange="", routing_key="out", prefix="query/7")
    with channel_of(broker) as channel:
        found = [channel.basic_get("out", auto_ack=True) for _ in range(4)]
    assert [(got[1].message_id, got[2], got[1].delivery_mode) for got in found] == [
        ("query/7/0/0", b"x", 2),
        ("mine", b"y", 2),
    ] * 2


def test_a_message_that_no_queue_takes_fails_its_batch(broker: TestBroker) -> None:
    rows = [Row(body="x")]
    with pytest.raises(HeadraceError, match="has no queue for routing key 'nowhere'"):
        publish_rows(iter(rows), url=broker.amqp_url, exchange="", routing_key="nowhere", prefix="q/0")
    with pytest.raises(UsageError, match="amqp://"):
        sinks.exchange("127.0.0.1:5672")
    assert "guest" not in repr(sinks.exchange(broker.amqp_url))


def test_a_broker_that_is_away_or_full_is_worth_a_restart_and_what_the_user_has_to_mend_is_not(
    broker: TestBroker,
) -> None:
    publish(broker, "narrow", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with socket.socket() as unused:  # bound, and nobody listens
        unused.bind(("127.0.0.1", 0))
        away = f"amqp://guest:guest@127.0.0.1:{unused.getsockname()[1]}/"
        for url, exchange, key, reason, may_help in (
            (away, "", "narrow", "cannot be reached: Connection refused", True),
            (broker.amqp_url, "", "narrow", "does not take a message now", True),
            (broker.amqp_url, "nowhere", "", "no exchange 'nowhere'", False),
            (broker.amqp_url.replace("guest@", "wrong@"), "", "narrow", "Login was refused", False),
            (broker.amqp_url.rpartition("/")[0] + "/none", "", "narrow", "vhost none not found", False),
        ):
            rows = [Row(body="x"), Row(body="y")]
            with pytest.raises(
                HeadraceError, match=f"publishing to exchange '{exchange}' failed: .*{reason}"
            ) as caught:
                publish_rows(iter(rows), url=url, exchange=exchange, routing_key=key, prefix="q/0")
            assert (reason, caught.value.retriable) == (reason, may_help)
            assert "guest" not in str(caught.value)


def test_a_bridge_says_that_its_queue_was_deleted(broker: TestBroker) -> None:
    publish(broker, "short-lived", "m1", "m2")
    with Client(broker.bootstrap) as client, ThreadPoolExecutor() as pool:
        Admin(client).create_topic("short-lived", partitions=1)
        task = pool.submit(bridge, broker.amqp_url, "short-lived", client, "short-lived")
        with Client(broker.bootstrap) as other:
            eventually(lambda: Queues(other).describe("short-lived"), lambda each: each.consumers and not each.ready)
            eventually(lambda: Queues(other).describe("short-lived").unacknowledged, lambda count: count == 0)
            Queues(other).delete_queue("short-lived")
        with pytest.raises(HeadraceError, match="queue 'short-lived' was deleted; 2 of its messages are in topic"):
            task.result(60)


def test_a_bridge_from_a_broker_that_is_away_is_one_clear_line(broker: TestBroker) -> None:
    with Client(broker.bootstrap) as client:
        Admin(client).create_topic("from-nowhere", partitions=1)
        for url, reason in (
            ("amqp://guest:guest@127.0.0.1:1/", "queue 'q': 127.0.0.1:1 cannot be reached: Connection refused"),
            ("amqp://guest:guest@no.such.host.invalid:5672/", "no.such.host.invalid:5672 is no address that is known"),
            ("127.0.0.1:5672", "queue 'q': the address of an AMQP broker begins with amqp:// or amqps://"),
            ("http://127.0.0.1:5672", "queue 'q': the address of an AMQP broker begins with amqp:// or amqps://"),
            (f"amqp://guest:guest@{broker.bootstrap}/", "ended the connection at once: does it speak AMQP 0-9-1?"),
            (f"{broker.amqp_url}?heartbeat=often", "the address of the AMQP broker cannot be read"),
            (broker.amqp_url, "NOT_FOUND - no queue 'q' in vhost '/'"),
        ):
            with pytest.raises(HeadraceError, match=re.escape(reason)):
                bridge(url, "q", client, "from-nowhere")


def test_a_bridge_writes_and_then_acknowledges(broker: TestBroker) -> None:
    publish(broker, "bridged", *(f"m{number}" for number in range(1_200)))
    with Client(broker.bootstrap) as client:
        Admin(client).create_topic("bridged", partitions=1)
        assert bridge(broker.amqp_url, "bridged", client, "bridged", idle_s=0.2) == 1_200
        assert Queues(client).describe("bridged").ready == 0
        consumer = Consumer(client)
        consumer.assign({TopicPartition("bridged", 0): 0})
        found: list[Any] = []
        while polled := consumer.poll(timeout_ms=200):
            found += [record for records in polled.values() for record in records]
    assert [record.value for record in found] == [b"m%d" % number for number in range(1_200)]
    assert dict(found[0].headers) == {
        "n": b"1",
        "exchange": b"",
        "routing-key": b"bridged",
        "message-id": b"m0",
    }
    with pytest.raises(HeadraceError, match="no queue 'none'"), Client(broker.bootstrap) as client:
        bridge(broker.amqp_url, "none", client, "bridged", idle_s=0.2)
