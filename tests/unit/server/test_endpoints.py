"""/metrics, /health and /ready of a broker that runs."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace import testing
from headrace.broker.queues.message import Message
from headrace.client import (
    STATE_TOPIC,
    Admin,
    Client,
    Groups,
    Producer,
    Queues,
    StateRecord,
    TopicPartition,
    init_producer_id,
)
from headrace.client.positioned import STATE_CONFIG, ensure_topic
from headrace.config import Settings
from headrace.errors import UsageError
from headrace.log.errors import CorruptLog
from headrace.metrics.families import FAMILIES, Kind
from headrace.node import Node
from headrace.testing import TestBroker
from headrace.testing.disk import SimulatedDisk
from headrace.wire.amqp.properties import NO_PROPERTIES
from tests.waiting import PATIENCE_S, eventually_on_loop

METRICS = {"metrics": "127.0.0.1:0"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "operations.md"


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


class Samples:
    """Every sample by name and labels, read by Prometheus' own parser."""

    def __init__(self, broker: TestBroker) -> None:
        status, text = get(broker.addresses["metrics"], "/metrics")
        assert status == 200
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, /, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for each, labels in self._values if each == name}


def test_a_broker_that_serves_is_healthy_and_ready() -> None:
    with testing.broker(settings=METRICS) as broker:
        status, text = get(broker.addresses["metrics"], "/health")
        assert (status, json.loads(text)["status"]) == (200, "ok")
        assert get(broker.addresses["metrics"], "/ready") == (200, '{"status": "ready"}\n')
        assert get(broker.addresses["metrics"], "/elsewhere")[0] == 404


def test_metrics_tell_what_the_broker_did() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=3)
        with Producer(client) as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number, partition=number % 3)
        of = Samples(broker)
    assert of("headrace_topics") == 1
    assert of("headrace_topic_partitions", topic="orders") == 3
    assert of("headrace_topic_high_watermark", topic="orders") == 10
    assert of("headrace_topic_log_start", topic="orders") == 0
    assert of("headrace_topic_bytes", topic="orders") > 0
    assert of("headrace_request_seconds_count", api="CreateTopics") == 1
    assert of("headrace_request_bytes_total", api="Produce") > 0
    assert of("headrace_connections", listener="kafka") >= 1
    assert of("headrace_connections_accepted_total", listener="kafka") >= 1
    assert of("headrace_sync_seconds_count") >= 2
    assert of("headrace_ready") == 1
    assert of("headrace_storage_failed") == 0
    assert of("headrace_disk_free_bytes") > 0
    assert of("process_open_fds") > 0


def test_an_error_in_an_answer_is_counted_by_its_name() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=1)
        with pytest.raises(Exception, match="already exists"):
            Admin(client).create_topic("orders", partitions=1)
        of = Samples(broker)
    assert of("headrace_response_errors_total", api="CreateTopics", error="TOPIC_ALREADY_EXISTS") == 1


def test_metrics_tell_how_far_groups_are_behind_and_which_transactions_are_open() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=2)
        with Producer(client) as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number, partition=number % 2)
        Groups(client).commit("readers", {TopicPartition("orders", 0): 2, TopicPartition("orders", 1): 4})
        init_producer_id(client, "writer", timeout_ms=60_000)
        of = Samples(broker)
    assert of("headrace_groups") == 1
    assert of("headrace_group_members", group="readers") == 0
    assert of("headrace_group_lag_records", group="readers", topic="orders") == 4
    assert of("headrace_transactions", state="Empty") == 1


def test_metrics_tell_what_waits_in_queues() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Queues(client).create_queue("work")
        on_loop(broker, _publish_three_and_take_two)
        Queues(client).acknowledge("work", 0, 2, 3)
        of = Samples(broker)
    assert of("headrace_queues") == 1
    assert of("headrace_queue_messages_ready", vhost="/", queue="work") == 0
    assert of("headrace_queue_messages_unacked", vhost="/", queue="work") == 2
    assert of("headrace_queue_messages_published_total", vhost="/", queue="work") == 3
    assert of("headrace_queue_messages_delivered_total", vhost="/", queue="work") == 3
    assert of("headrace_queue_messages_gone_total", vhost="/", queue="work") == 1


def test_boards_made_for_kafka_exporter_find_their_names() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=2)
        with Producer(client) as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number, partition=number % 2)
        Admin(client).delete_records({TopicPartition("orders", 0): 1})
        Groups(client).commit("readers", {TopicPartition("orders", 0): 2, TopicPartition("orders", 1): 4})
        of = Samples(broker)
    assert of("kafka_brokers") == 1
    assert of("kafka_topic_partitions", topic="orders") == 2
    assert of("kafka_topic_partition_current_offset", topic="orders", partition="1") == 5
    assert of("kafka_topic_partition_oldest_offset", topic="orders", partition="0") == 1
    assert of("kafka_consumergroup_current_offset", consumergroup="readers", topic="orders", partition="0") == 2
    assert of("kafka_consumergroup_lag", consumergroup="readers", topic="orders", partition="0") == 3
    assert of("kafka_consumergroup_lag", consumergroup="readers", topic="orders", partition="1") == 1
    assert of("kafka_consumergroup_lag_sum", consumergroup="readers", topic="orders") == 4
    assert of("kafka_consumergroup_current_offset_sum", consumergroup="readers", topic="orders") == 6
    assert of("kafka_consumergroup_members", consumergroup="readers") == 0
    assert of("headrace_partitions_unlisted") == 0


def reports(client: Client, **records: bytes | None) -> None:
    """State records by name, each of a capture unless it says otherwise."""
    ensure_topic(client, STATE_TOPIC, partitions=1, config=STATE_CONFIG)
    with Producer(client) as producer:
        for name, value in records.items():
            producer.send(STATE_TOPIC, value, key=name.replace("__", "/").encode(), partition=0)


def report(kind: str, name: str, *, age_ms: int = 0, **given: Any) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return StateRecord(kind=kind, name=name, at_ms=now_ms - age_ms, **given).to_json()


CAPTURED = {
    "database_kind": "postgres",
    "topic_prefix": "shop",
    "lag_ms": 1_500,
    "lag_bytes": 4_096,
    "retained_bytes": 8_192,
    "events": 17,
    "dead_letters": {"public.orders": 2, "public.lines": 1},
}


def test_metrics_tell_how_far_pipelines_and_captures_are_behind_as_they_report() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        of = Samples(broker)
        assert of.labels("headrace_capture_up", "capture") == set()
        reports(
            client,
            capture__shop=report("capture", "shop", details=CAPTURED),
            pipeline__revenue=report("pipeline", "revenue", details={"lag": 40, "rows": 600}),
        )
        of = Samples(broker)
        assert of("headrace_capture_up", capture="shop") == 1
        assert of("headrace_capture_lag_seconds", capture="shop") == 1.5
        assert of("headrace_capture_lag_bytes", capture="shop") == 4_096
        assert of("headrace_capture_retained_bytes", capture="shop") == 8_192
        assert of("headrace_capture_events_total", capture="shop") == 17
        assert of("headrace_capture_dead_letters", capture="shop") == 3
        debezium = {"plugin": "postgres", "name": "shop", "context": "streaming"}
        assert of("debezium_metrics_MilliSecondsBehindSource", **debezium) == 1_500
        assert of("debezium_metrics_TotalNumberOfEventsSeen", **debezium) == 17
        assert of("headrace_pipeline_up", pipeline="revenue") == 1
        assert of("headrace_pipeline_lag_records", pipeline="revenue") == 40
        assert of("headrace_pipeline_rows_total", pipeline="revenue") == 600
        reports(client, capture__shop=report("capture", "shop", details={**CAPTURED, "lag_ms": 0}))
        assert Samples(broker)("headrace_capture_lag_seconds", capture="shop") == 0
        reports(client, capture__shop=None)
        assert Samples(broker).labels("headrace_capture_up", "capture") == set()


def test_what_is_not_heard_of_ended_or_fails_is_not_up_and_its_old_lag_is_not_served() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        reports(
            client,
            capture__lost=report("capture", "lost", details=CAPTURED, age_ms=21_000, heartbeat_ms=5_000),
            capture__late=report("capture", "late", details=CAPTURED, age_ms=15_000, heartbeat_ms=5_000),
            capture__ended=report("capture", "ended", details=CAPTURED, ended=True),
            capture__failing=report("capture", "failing", details=CAPTURED, error="the database is away"),
        )
        of = Samples(broker)
        up = {name: of("headrace_capture_up", capture=name) for name in ("lost", "late", "ended", "failing")}
        assert up == {"lost": 0, "late": 1, "ended": 0, "failing": 0}
        assert of.labels("headrace_capture_lag_seconds", "capture") == {"late", "failing"}


def test_a_deleted_topic_of_states_takes_its_metrics_along_and_another_one_is_read_from_its_start() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        reports(client, capture__a=report("capture", "a"), capture__b=report("capture", "b"))
        assert Samples(broker).labels("headrace_capture_up", "capture") == {"a", "b"}
        Admin(client).delete_topic(STATE_TOPIC)
        assert Samples(broker).labels("headrace_capture_up", "capture") == set()
        reports(client, capture__c=report("capture", "c"))
        assert Samples(broker).labels("headrace_capture_up", "capture") == {"c"}
        reports(client, capture__d=report("capture", "d"))
        assert Samples(broker).labels("headrace_capture_up", "capture") == {"c", "d"}


def test_hostile_state_records_do_not_break_a_scrape() -> None:
    twin = report("capture", "twin", details=CAPTURED)
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        reports(
            client,
            capture__text=b"not json",
            capture__other=report("capture", "another name", details=CAPTURED),
            capture__huge=report(
                "capture", "huge", details={"lag_ms": 10**400, "lag_bytes": float("inf"), "events": True}
            ),
            capture__nan=report("capture", "nan", details={"lag_ms": float("nan"), "dead_letters": [1]}),
            capture__half=report(
                "capture", "half", details={**CAPTURED, "topic_prefix": "\ud800", "database_kind": [1]}
            ),
            capture__shop=report("capture", "shop", details=CAPTURED),
            capture__twin=twin,
            dashboard__shown=report("dashboard", "shown"),
        )
        of = Samples(broker)
        assert of.labels("headrace_capture_up", "capture") == {"huge", "nan", "half", "shop", "twin"}
        assert of.labels("headrace_capture_lag_seconds", "capture") == {"half", "shop", "twin"}
        assert of.labels("debezium_metrics_MilliSecondsBehindSource", "name") == {"?", "shop"}
        assert len(of.families["debezium_metrics_MilliSecondsBehindSource"].samples) == 2


def test_reports_above_the_limit_have_no_series_and_are_counted() -> None:
    with testing.broker(settings={**METRICS, "metrics.groups.max": 2}) as broker, Client(broker.bootstrap) as client:
        reports(client, **{f"capture__{name}": report("capture", name) for name in "abc"})
        of = Samples(broker)
    assert of.labels("headrace_capture_up", "capture") == {"a", "b"}
    assert of("headrace_reports_unlisted") == 1


def test_partitions_above_the_limit_have_no_series_and_are_counted() -> None:
    with testing.broker(settings={**METRICS, "metrics.partitions.max": 3}) as broker:
        with Client(broker.bootstrap) as client:
            for name in ("a", "b"):
                Admin(client).create_topic(name, partitions=2)
            offsets = {TopicPartition(name, index): 0 for name in ("a", "b") for index in (0, 1)}
            Groups(client).commit("readers", offsets)
            of = Samples(broker)
    assert len(of.families["kafka_topic_partition_current_offset"].samples) == 3
    assert len(of.families["kafka_consumergroup_lag"].samples) == 3
    assert len(of.families["kafka_consumergroup_lag_sum"].samples) == 2
    assert of("headrace_partitions_unlisted") == 1
    assert of("headrace_group_partitions_unlisted") == 1


def test_boards_made_for_rabbitmq_find_their_names() -> None:
    with testing.broker(amqp=True, settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Queues(client).create_queue("work")
        on_loop(broker, _publish_three_and_take_two)
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        connection.channel()
        of = Samples(broker)
        connection.close()
        client.refresh([])
        cluster_id = client.cluster_id
    assert cluster_id is not None
    assert of("rabbitmq_identity_info", rabbitmq_node="headrace@1", rabbitmq_cluster=cluster_id) == 1
    assert of("rabbitmq_connections") == 1
    assert of("rabbitmq_channels") == 1
    assert of("rabbitmq_queues") == 1
    assert of("rabbitmq_consumers") == 0
    assert of("rabbitmq_queue_messages_ready", vhost="/", queue="work") == 1
    assert of("rabbitmq_queue_messages_unacked", vhost="/", queue="work") == 2
    assert of("rabbitmq_queue_messages", vhost="/", queue="work") == 3
    assert of("rabbitmq_queue_consumers", vhost="/", queue="work") == 0


def _publish_three_and_take_two(node: Any) -> None:
    queue = node.broker.queues.virtual_host("/").queues["work"]
    for body in (b"a", b"b", b"c"):
        queue.publish(Message(b"", b"work", NO_PROPERTIES, body, 1_000))
    assert queue.get(no_ack=False)
    assert queue.get(no_ack=False)


def on_loop(broker: TestBroker, work: Callable[[Any], None]) -> None:
    """Run ``work`` with the node, on its loop."""

    async def run() -> None:
        work(broker._node)

    asyncio.run_coroutine_threadsafe(run(), broker._loop).result(PATIENCE_S)


def test_a_group_that_is_deleted_during_a_scrape_is_left_out() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("t", partitions=1)
        for name in ("first", "second"):
            Groups(client).commit(name, {TopicPartition("t", 0): 0})

        def scrape(node: Any) -> None:
            steps = node._endpoints._collector._groups()
            for step in steps:
                if step is None and "second" in node.broker.groups:
                    list(node.broker.group_coordinator.remove(node.broker.groups["second"]))

        on_loop(broker, scrape)
        assert Samples(broker).labels("headrace_group_members", "group") == {"first"}


def test_counters_of_a_partition_that_becomes_damaged_do_not_go_back() -> None:
    with testing.broker(settings=METRICS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("t", partitions=1)

        def damage(node: Any) -> None:
            partition = node.broker.topics.get("t").partitions[0]
            partition.dropped_records, partition.refused_batches = 3, 4
            node.broker.topics.set_damaged(partition.log, CorruptLog("t", 0, "a test says so"))

        on_loop(broker, damage)
        samples = Samples(broker)
        assert samples("headrace_overflow_dropped_records_total", topic="t") == 3
        assert samples("headrace_overflow_refused_batches_total", topic="t") == 4


def test_topics_above_the_limit_have_no_metrics_and_are_counted() -> None:
    limited: dict[str, Any] = {**METRICS, "metrics.topics.max": 2}
    with testing.broker(settings=limited) as broker, Client(broker.bootstrap) as client:
        for name in ("a", "b", "c"):
            Admin(client).create_topic(name, partitions=1)
        of = Samples(broker)
    assert of.labels("headrace_topic_bytes", "topic") == {"a", "b"}
    assert of("headrace_topics_unlisted") == 1
    assert of("headrace_topics") == 3


def test_a_scrape_during_a_scrape_gets_the_same_text() -> None:
    with testing.broker(settings=METRICS) as broker:
        texts: list[int] = []
        address = broker.addresses["metrics"]
        threads = [threading.Thread(target=lambda: texts.append(get(address, "/metrics")[0])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert texts == [200] * 8


def test_a_node_says_why_it_is_not_ready(tmp_path: Path) -> None:
    async def run() -> None:
        node = Node(Settings({"data": str(tmp_path), "kafka": "127.0.0.1:0", "amqp": "off", "metrics": "127.0.0.1:0"}))
        assert node.reasons_not_ready() == ["starting"]
        await node.start()
        assert node.reasons_not_ready() == []
        address = next(str(each) for each in node.addresses if each.protocol == "metrics")
        node.request_stop()
        status, text = await asyncio.to_thread(get, address, "/ready")
        assert (status, json.loads(text)) == (503, {"status": "not ready", "reasons": ["stopping"]})
        await node.run_until_stopped()

    asyncio.run(run())


def test_a_node_whose_sync_failed_is_not_ready() -> None:
    async def run() -> None:
        disk = SimulatedDisk()
        node = Node(
            Settings({"data": "/data", "kafka": "127.0.0.1:0", "amqp": "off"}), disk=disk, on_failure=lambda _: None
        )
        await node.start()
        disk.fail_next("datasync", errno.EIO)
        node.broker.state.put("things", "a", 1)
        await eventually_on_loop(lambda: node.failed)
        assert "writing to disk failed" in node.reasons_not_ready()[0]
        await node.stop()

    asyncio.run(run())


def test_a_public_address_for_metrics_is_refused_unless_the_user_says_insecure(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--insecure"):
        with testing.broker(data=tmp_path, settings={"metrics": "0.0.0.0:0"}):
            pass
    with testing.broker(data=tmp_path, settings={"metrics": "0.0.0.0:0", "insecure": True}) as broker:
        assert broker.addresses["metrics"].startswith("0.0.0.0:")


def test_a_child_says_where_its_metrics_are(tmp_path: Path) -> None:
    with testing.broker(data=tmp_path, in_process=False, settings=METRICS) as broker:
        assert get(broker.addresses["metrics"], "/ready")[0] == 200


def test_every_metric_is_documented_with_its_labels_and_its_meaning() -> None:
    rows = [f"| `{each.name}` | {each.kind.value} | {' '.join(each.labels)} | {each.meaning} |" for each in FAMILIES]
    row = re.compile(r"\| `\w+` \| (counter|gauge|histogram) \|")
    documented = [line for line in DOCUMENT.read_text().splitlines() if row.match(line)]
    assert documented == rows, "run: make docs"


def test_every_metric_that_is_served_is_declared_and_every_declared_one_is_served() -> None:
    with testing.broker(settings=METRICS) as broker:
        served = {name for name in Samples(broker).families if not re.match("process_|python_", name)}
    assert served == {each.name.removesuffix("_total") for each in FAMILIES}


def test_every_metric_that_the_grafana_dashboard_names_is_served() -> None:
    board = json.loads((DOCUMENT.parent / "grafana-headrace.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    expressions += [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    named = {
        name for each in expressions for name in re.findall(r"\b(?:headrace|kafka|rabbitmq|debezium|process)_\w+", each)
    }
    assert len(named) > 20
    with testing.broker(amqp=True, settings=METRICS) as broker:
        text = get(broker.addresses["metrics"], "/metrics")[1]
    histograms = {each.name for each in FAMILIES if each.kind is Kind.HISTOGRAM}
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    known |= {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    assert named - known == set()
