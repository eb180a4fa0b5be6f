"""Three nodes of Apache Kafka on loopback, each broker and controller at once, of which any one can be killed.

Every topic has three replicas, of which two must have a record before it is acknowledged: so one node less loses
nothing and stops nothing. A node that is started again comes back on its data and its port.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.kafka import answers, format_storage, java_command, write_properties
from tests.servers.process import end, wait_until

__all__ = ["KafkaCluster", "apache_kafka_cluster"]

NODES = (1, 2, 3)
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
PORTS = range(15_000, 30_000)
"""Below the ephemeral ports that the system gives out: a node's port must still be free when it comes back."""

SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",  # so that every node coordinates some transactions
    "broker.session.timeout.ms": "4000",  # a dead leader is replaced after so long; 9 s as Kafka ships it
    "broker.heartbeat.interval.ms": "500",
}


class Node:
    """One of them, life after life."""

    def __init__(self, number: int, home: Path, port: int, properties: Path) -> None:
        self.number = number
        self.home = home
        self.port = port
        self.properties = properties
        self.log = home / "server.log"
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.child is None, f"node {self.number} is running"
        if not (self.home / "logs" / "meta.properties").exists():
            format_storage(self.home, self.properties)
        command = java_command("kafka.Kafka", str(self.properties), jvm=JVM)
        with self.log.open("ab") as output:
            self.child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=self.home)

    def wait(self) -> None:
        assert self.child is not None, f"node {self.number} is not running"
        wait_until(lambda: answers(self.port), self.child, what=f"node {self.number} of Apache Kafka", log=self.log)

    def kill(self) -> None:
        child, self.child = self.child, None
        assert child is not None, f"node {self.number} is not running"
        child.kill()
        child.wait()


class KafkaCluster:
    def __init__(self, home: Path) -> None:
        ports = spare_ports(2 * len(NODES))
        own = dict(zip(NODES, ports[: len(NODES)], strict=True))
        controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in controllers.items())
        self.nodes: dict[int, Node] = {}
        for number in NODES:
            folder = home / f"node-{number}"
            folder.mkdir(parents=True)
            settings = {**SETTINGS, "node.id": str(number), "controller.quorum.voters": voters}
            properties = write_properties(folder, own[number], controllers[number], settings)
            self.nodes[number] = Node(number, folder, own[number], properties)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def start(self, *numbers: int) -> None:
        """All when none is named; they need each other before they answer."""
        wanted = [self.nodes[number] for number in numbers or NODES]
        for node in wanted:
            node.start()
        for node in wanted:
            node.wait()

    def kill(self, number: int) -> None:
        self.nodes[number].kill()

    def close(self) -> None:
        for node in self.nodes.values():
            child, node.child = node.child, None
            if child is not None:
                end(child, timeout_s=5)


def spare_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            break
    return found


@contextmanager
def apache_kafka_cluster() -> Iterator[KafkaCluster]:
    """Raises ``CannotRun`` where Apache Kafka cannot be had."""
    home = Path(tempfile.mkdtemp(prefix="apache-kafka-cluster-"))
    cluster = KafkaCluster(home)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(home, ignore_errors=True)
