"""A node as a whole: starting, refusing to start, ending, and ending because the disk failed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.batch import build_batch
from headrace.client import Client as KafkaClient
from headrace.config import Settings
from headrace.errors import BadArgument, HeadraceError, UsageError
from headrace.log.disk import OsDisk, OsFile
from headrace.log.store import LogStore
from headrace.node import EXIT_STORAGE_FAILED, Node, serve
from headrace.record import Record
from headrace.testing import VirtualClock
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.kafka.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from tests.unit.server.harness import Client, request_bytes
from tests.waiting import PATIENCE_S


def settings(data: Path, **more: Any) -> Settings:
    return Settings({"data": str(data), "kafka": "127.0.0.1:0", "amqp": "off", **more})


def with_node(made: Node, check: Callable[[Node], None]) -> None:
    async def run() -> None:
        await made.start()
        try:
            check(made)
        finally:
            await made.stop()

    asyncio.run(run())


def api_versions(address: tuple[str, int]) -> ApiVersionsResponse:
    with Client(address) as client:
        client.socket.sendall(request_bytes(ApiVersionsRequest(), 18, 0))
        return client.answer(ApiVersionsResponse, 0)


def test_a_node_says_where_it_listens_and_offers_the_apis_of_the_table(tmp_path: Path) -> None:
    with testing.broker(data=tmp_path) as broker:
        answer = api_versions((broker.host, broker.port))
    offered = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    table = {key: (api.version_min_advertised, api.version_max) for key, api in APIS.items()}
    assert offered == {key: versions for key, versions in table.items() if not APIS[key].is_own}


def test_only_headraces_client_is_shown_the_apis_that_are_not_kafkas(tmp_path: Path) -> None:
    with testing.broker(data=tmp_path) as broker, KafkaClient(broker.bootstrap) as client:
        client.brokers()
        [connection] = client._connections.values()
    assert set(connection.versions) == set(APIS)


def test_a_taken_port_for_queues_names_its_owner_and_the_ways_out(tmp_path: Path) -> None:
    with testing.broker(amqp=True) as other, pytest.raises(UsageError) as refused:
        with_node(Node(settings(tmp_path, amqp=other.addresses["amqp"])), lambda node: None)
    assert refused.value.message.startswith(f"queues cannot be served: {other.addresses['amqp']} is taken by process ")
    assert "--amqp off" in refused.value.hint


def test_queues_are_served_on_rabbitmqs_port_unless_they_are_off() -> None:
    assert Settings({}).text("amqp") == "127.0.0.1:5672"


def test_every_api_that_is_offered_has_a_handler_and_no_other(tmp_path: Path) -> None:
    seen: list[frozenset[int]] = []
    with_node(Node(settings(tmp_path)), lambda node: seen.append(node.broker.answers()))
    assert seen == [frozenset(APIS)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kafka": "0.0.0.0:0"}, "--insecure"),
        ({"kafka": "nonsense"}, "is no address"),
        ({"http": "127.0.0.1:0", "kafka": "off", "amqp": "127.0.0.1:0"}, "a client of the Kafka listener"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_touched(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    data = tmp_path / "data"
    with pytest.raises(UsageError, match=message):
        with_node(Node(settings(data, **more)), lambda node: None)
    assert not data.exists()


def test_a_public_address_is_served_when_the_user_says_insecure(tmp_path: Path) -> None:
    ports: list[int] = []
    made = Node(settings(tmp_path, kafka="0.0.0.0:0", insecure=True))
    with_node(made, lambda node: ports.append(node.addresses[0].port))
    assert ports[0] > 0


def test_what_clients_are_told_can_be_given(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    made = Node(settings(tmp_path, **{"advertised.kafka": "broker.example:19092"}))
    with_node(made, lambda node: told.append(node.broker.addresses["kafka"]))
    assert told == [("broker.example", 19092)]


def test_a_data_directory_has_one_owner_and_the_second_is_told_who(tmp_path: Path) -> None:
    with testing.broker(data=tmp_path, in_process=False) as owner:
        with pytest.raises(UsageError, match=f"in use by process {owner.pid}"):
            with_node(Node(settings(tmp_path)), lambda node: None)
        assert api_versions((owner.host, owner.port)).error_code == 0


def test_a_port_that_is_taken_leaves_the_data_directory_free(tmp_path: Path) -> None:
    with testing.broker() as other:
        with pytest.raises(UsageError, match=r"is taken by process \d+ \("):
            with_node(Node(settings(tmp_path, kafka=other.bootstrap)), lambda node: None)
    with_node(Node(settings(tmp_path)), lambda node: None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_status_0(tmp_path: Path, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace.node"],
        env={"HEADRACE_DATA": str(tmp_path), "HEADRACE_KAFKA": "127.0.0.1:0", "HEADRACE_AMQP": "off"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with ended(child):
        assert child.stdout is not None
        lines = [child.stdout.readline(), child.stdout.readline()]
        assert lines[0].startswith("kafka   127.0.0.1:")
        assert lines[1] == "ready\n"
        child.send_signal(number)
        assert child.wait(PATIENCE_S) == 0


@contextmanager
def ended(child: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """It does not outlive the block, however that ends."""
    with child:
        try:
            yield child
        finally:
            child.kill()


def test_a_wrong_setting_ends_the_process_with_one_line(tmp_path: Path) -> None:
    environment = {"HEADRACE_DATA": str(tmp_path), "HEADRACE_KAFKA": "0.0.0.0:0", "HEADRACE_AMQP": "off"}
    command = [sys.executable, "-m", "headrace.node"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--insecure" in done.stderr


FAILING_DISK = """
import os, sys
from headrace.config import Settings
from headrace.log.disk import OsDisk, OsFile
from headrace import node

def failing(really):
    def sync(*arguments):
        if os.path.exists(sys.argv[1] + "/fail"):
            raise OSError(5, "Input/output error")
        return really(*arguments)
    return sync

OsFile.datasync = failing(OsFile.datasync)
OsDisk.syncfs = failing(OsDisk.syncfs)
settings = Settings({"data": sys.argv[1] + "/data", "kafka": "127.0.0.1:0", "amqp": "off"})
sys.exit(node.serve(settings, lambda line: print(line, flush=True)))
"""


@pytest.mark.slow
def test_a_failed_sync_ends_the_process_with_a_message_and_acknowledges_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FAILING_DISK, str(tmp_path)]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        host, port = child.stdout.readline().split()[-1].split(":")
        assert child.stdout.readline() == "ready\n"
        with Client((host, int(port))) as client:
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 19, 4, 1)
            assert client.answer(CreateTopicsResponse, 4).topics[0].error_code == 0
            client.send(produce_request("t"), 0, 8, 2)
            assert client.answered() == 2
            (tmp_path / "fail").touch()
            client.send(produce_request("t"), 0, 8, 3)
            assert client.is_closed()
        assert child.wait(PATIENCE_S) == EXIT_STORAGE_FAILED
        assert "writing to disk failed" in child.stderr.read()


def produce_request(topic: str, value: bytes = b"v") -> ProduceRequest:
    record = Record(offset=0, timestamp=0, key=None, value=value, headers=())
    partition = PartitionProduceData(index=0, records=bytes(build_batch([record]).data))
    return ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
    )


class SlowCheckpointDisk(OsDisk):
    """The real disk, but a checkpoint in a thread is slow to write its file."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.done = threading.Event()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        if path.endswith("checkpoint.tmp") and threading.current_thread().name != "headrace-broker":
            self.begun.set()
            self.may_go_on.wait(PATIENCE_S)
        return super().open(path, create=create, writable=writable)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if target.endswith("/checkpoint") and self.may_go_on.is_set():
            self.done.set()


def test_a_checkpoint_that_is_under_way_at_the_end_does_not_undo_the_clean_close(tmp_path: Path) -> None:
    clock, disk = VirtualClock(), SlowCheckpointDisk()
    with testing.broker(data=tmp_path, clock=clock, disk=disk) as broker, Client((broker.host, broker.port)) as client:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 19, 4, 1)
        assert client.answer(CreateTopicsResponse, 4).topics[0].error_code == 0
        for number in range(4):
            client.send(produce_request("t", bytes(500_000)), 0, 8, number)
            assert client.answered() == number
        clock.advance(10_000)
        assert disk.begun.wait(PATIENCE_S), "a checkpoint was due"
        threading.Timer(0.3, disk.may_go_on.set).start()
    assert disk.done.wait(PATIENCE_S)
    store = LogStore.open(OsDisk(), str(tmp_path))
    assert store.report.clean
    store.close()


def test_a_broker_that_cannot_start_as_a_child_says_why(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="--insecure"):
        with testing.broker(in_process=False, data=tmp_path, settings={"kafka": "0.0.0.0:0"}):
            pass


def test_a_process_that_would_serve_nothing_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="nothing would be served"):
        serve(Settings({"data": str(tmp_path / "data"), "kafka": "off", "amqp": "off"}), print)
    assert not (tmp_path / "data").exists()
