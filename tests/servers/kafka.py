"""Apache Kafka itself, one KRaft node, as the oracle of the differential tests and the other column of the benchmarks.

The jars come from Maven Central once, into the user's cache folder; Maven resolves them with the user's own settings
(mirrors, proxies). Beside the broker they hold the Java client that tests/interop compiles against.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import CACHE, CannotRun, RunningServer, end, log_tail, spare_ports, wait_until

KAFKA_VERSION = "4.3.1"
CLUSTER_ID = "aGVhZHJhY2Utb3JhY2xlMQ"
LOG_NAME = "server.log"
PORT_TAKEN = "Address already in use"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>apache-kafka-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
"""

LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d{ISO8601} %p %m (%c{1})%n
"""

# Quick to start and small, for tests. Benchmarks pass JVM_AS_SHIPPED, which is what Kafka's own start script uses.
JVM_FOR_TESTS = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
JVM_AS_SHIPPED = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)

# One node cannot replicate, and tests do not want to wait for rebalances or for fifty internal partitions.
# Everything else is as Kafka ships it.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",  # an answer would depend on whether a thread was quick enough
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


def kafka_jars() -> Path:
    """The folder with the jars; fetches them on first use. Raises CannotRun with the reason."""
    folder = CACHE / f"kafka-{KAFKA_VERSION}"
    jars, done = folder / "jars", folder / "complete"
    if done.exists():
        return jars
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise CannotRun(f"Apache Kafka needs {program}, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once fetch once
        if not done.exists():
            fetch_jars(folder, jars)
            done.touch()
    return jars


def fetch_jars(folder: Path, jars: Path) -> None:
    (folder / "pom.xml").write_text(POM)
    (folder / "log4j2.properties").write_text(LOG4J)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"Maven did not fetch Apache Kafka {KAFKA_VERSION} within 600 s") from None
    if run.returncode != 0:
        errors = [line for line in run.stdout.splitlines() if "ERROR" in line]
        reason = errors[0] if errors else run.stdout[-300:]
        raise CannotRun(f"Maven could not fetch Apache Kafka {KAFKA_VERSION}: {reason}")


def java_command(main: str, *arguments: str, jvm: tuple[str, ...] = JVM_FOR_TESTS, classpath: str = "") -> list[str]:
    jars = kafka_jars()
    full_classpath = f"{jars}/*{os.pathsep}{classpath}" if classpath else f"{jars}/*"
    return [
        "java",
        *jvm,
        f"-Dlog4j2.configurationFile={jars.parent}/log4j2.properties",
        "-cp",
        full_classpath,
        main,
        *arguments,
    ]


@contextmanager
def apache_kafka_server(
    *, settings: Mapping[str, str] | None = None, jvm: tuple[str, ...] = JVM_FOR_TESTS, data: Path | None = None
) -> Iterator[RunningServer]:
    """Start a broker on loopback, give it when it answers, and end it. ``data`` is kept; a temporary folder is not."""
    home = data or Path(tempfile.mkdtemp(prefix="apache-kafka-"))
    home.mkdir(parents=True, exist_ok=True)
    try:
        yield from run_in(home, dict(settings or {}), jvm)
    finally:
        if data is None:
            shutil.rmtree(home, ignore_errors=True)


def run_in(home: Path, settings: dict[str, str], jvm: tuple[str, ...]) -> Iterator[RunningServer]:
    port, child = started(home, settings, jvm)
    log = home / LOG_NAME
    try:
        yield RunningServer(name="apache_kafka", bootstrap=f"127.0.0.1:{port}", pid=child.pid, data=home, log=log)
    finally:
        end(child)


def started(
    home: Path, settings: dict[str, str], jvm: tuple[str, ...], *, attempts: int = 3
) -> tuple[int, subprocess.Popen[bytes]]:
    """Its port and its process. A port that somebody took since it was chosen is no reason to give up."""
    port, controller_port = spare_ports(2)
    properties = write_properties(home, port, controller_port, settings)
    if not (home / "logs" / "meta.properties").exists():
        format_storage(home, properties)
    log = home / LOG_NAME
    with log.open("wb") as output:
        child = subprocess.Popen(
            java_command("kafka.Kafka", str(properties), jvm=jvm), stdout=output, stderr=subprocess.STDOUT, cwd=home
        )
    try:
        wait_until(lambda: answers(port), child, what="Apache Kafka", log=log)
    except BaseException:
        end(child)
        if attempts > 1 and PORT_TAKEN in log.read_text(errors="replace"):
            return started(home, settings, jvm, attempts=attempts - 1)
        raise
    return port, child


def write_properties(home: Path, port: int, controller_port: int, settings: dict[str, str]) -> Path:
    values = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": str(home / "logs"),
        **settings,
    }
    properties = home / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return properties


def format_storage(home: Path, properties: Path) -> None:
    command = java_command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
    log = home / "format.log"
    with log.open("wb") as output:
        run = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=home, timeout=120, check=False)
    if run.returncode != 0:
        raise CannotRun(f"Apache Kafka's storage could not be formatted:\n{log_tail(log)}")


def answers(port: int) -> bool:
    """An ApiVersions request of version 0, by hand: true when the broker answers it."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return len(connection.recv(8)) == 8
    except OSError:
        return False
