"""TLS and SASL of our client, on Apache Kafka: encrypted, authenticated, and refused in plain words."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headrace.client import (
    Admin,
    AuthenticationFailed,
    Client,
    Producer,
    TlsFailed,
    TopicPartition,
    TransactionalProducer,
    fetch_range,
)
from headrace.client.connection import SESSION_PART_USED
from headrace.errors import ErrorCode, KafkaError
from tests.servers.kafka import CLUSTER_ID, answers, java_command, write_properties
from tests.servers.process import CannotRun, end, log_tail, spare_ports, wait_until
from tests.skips import or_skip, skip_or_fail
from tests.unit.client.reading import read_values, wait_until_complete

pytestmark = pytest.mark.servers

PASSWORD = "hunter2-with+odd/signs!"
OPENSSL_DAYS = "2"
SESSION_MS = 2_000


@dataclass(frozen=True)
class SecureKafka:
    bootstraps: dict[str, str]  # by security protocol
    folder: Path

    def config(self, protocol: str, **more: str) -> dict[str, str]:
        """Settings by Kafka's names; ``sasl_username`` becomes ``sasl.username``."""
        own = {
            "bootstrap.servers": self.bootstraps[protocol],
            "security.protocol": protocol,
            "default.api.timeout.ms": "60000",
        }
        return own | {name.replace("_", "."): value for name, value in more.items()}


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=120)


def make_certificates(folder: Path) -> None:
    """An authority, and a certificate each for the broker and for a client."""
    subject = ["-subj", "/CN=headrace-test-authority"]
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", *subject,
            "-days", OPENSSL_DAYS, folder=folder)  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for who in ("broker", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{who}.key", "-out", f"{who}.csr",
                "-subj", f"/CN={who}", folder=folder)  # fmt: skip
        openssl("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{who}.crt", "-days", OPENSSL_DAYS, "-extfile", "names", folder=folder)  # fmt: skip
        both = (folder / f"{who}.key").read_text() + (folder / f"{who}.crt").read_text()
        (folder / f"{who}.pem").write_text(both)


def listens(port: int) -> bool:
    """Listeners open one after the other."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


@contextmanager
def secure_kafka(folder: Path) -> Iterator[SecureKafka]:
    make_certificates(folder)
    plain, controller, sasl_ssl, ssl, sasl_plaintext = spare_ports(5)
    ports = {"PLAINTEXT": plain, "SASL_SSL": sasl_ssl, "SSL": ssl, "SASL_PLAINTEXT": sasl_plaintext}
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{PASSWORD}";'
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller}"]),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in ports) + ",CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "connection.failed.authentication.delay.ms": "0",
        "listener.name.sasl_plaintext.connections.max.reauth.ms": str(SESSION_MS),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
    }
    for name in ("sasl_ssl", "sasl_plaintext"):
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = scram
    properties = write_properties(folder, plain, controller, settings)
    users = [f"{each}=[name=alice,password={PASSWORD}]" for each in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    adding = [argument for user in users for argument in ("--add-scram", user)]
    log = folder / "server.log"
    with log.open("ab") as output:
        formatting = java_command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *adding)
        if subprocess.run(formatting, stdout=output, stderr=output, timeout=120, check=False).returncode != 0:
            raise CannotRun(f"Apache Kafka's storage could not be formatted:\n{log_tail(log)}")
        child = subprocess.Popen(java_command("kafka.Kafka", str(properties)), stdout=output, stderr=output, cwd=folder)
    try:
        wait_until(lambda: answers(plain) and all(map(listens, ports.values())), child, what="Apache Kafka", log=log)
        yield SecureKafka({name: f"127.0.0.1:{port}" for name, port in ports.items()}, folder)
    finally:
        end(child)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    if shutil.which("openssl") is None:
        skip_or_fail("openssl makes the certificates, and is not installed")
    with or_skip(), secure_kafka(tmp_path_factory.mktemp("secure-kafka")) as server:
        yield server


def alice(kafka: SecureKafka, mechanism: str, protocol: str = "SASL_SSL", **more: str) -> Client:
    own = {"sasl_mechanism": mechanism, "sasl_username": "alice", "sasl_password": PASSWORD}
    if protocol == "SASL_SSL":
        own["ssl_ca_location"] = str(kafka.folder / "ca.pem")
    return Client.from_kafka_config(kafka.config(protocol, **{**own, **more}))


def write_and_read(client: Client, topic: str) -> None:
    Admin(client).create_topic(topic, partitions=1)
    partition = TopicPartition(topic, 0)
    with Producer(client) as producer:
        for _ in range(50):
            producer.send(topic, b"x" * 20_000)
    with TransactionalProducer(client, topic).transaction() as transaction:
        transaction.send(topic, b"last")
    assert sum(batch.record_count for batch in fetch_range(client, partition, 0, 50, bytes_per_fetch=300_000)) >= 50
    wait_until_complete(client, topic)
    assert read_values(client, [partition])[partition][-1] == b"last"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_an_authenticated_client_inside_tls_writes_and_reads(kafka: SecureKafka, mechanism: str) -> None:
    with alice(kafka, mechanism) as client:
        write_and_read(client, f"sasl-{mechanism.lower()}")


def test_scram_works_without_tls(kafka: SecureKafka) -> None:
    with alice(kafka, "SCRAM-SHA-256", "SASL_PLAINTEXT") as client:
        write_and_read(client, "scram-plaintext")


def test_a_session_that_ends_is_renewed_before_the_broker_ends_it(kafka: SecureKafka) -> None:
    with alice(kafka, "SCRAM-SHA-256", "SASL_PLAINTEXT") as client:
        client.options = replace(client.options, retry_timeout_ms=0)  # a lost connection would be told
        while not is_renewed(client):
            pass  # the machine stood still while a request was on its way: try once more


def is_renewed(client: Client) -> bool:
    """Whether a session ended and another began without a request being lost.

    A session is renewed some time before its end. Only a request that was under way for longer than that is excused.
    """
    first = client.connection()
    renewed = False
    while not renewed:
        asked_at = time.monotonic()
        renewed = client.connection() is not first
        try:
            client.topics()
        except KafkaError:
            if time.monotonic() - asked_at > (1 - SESSION_PART_USED) * SESSION_MS / 1000:
                return False
            raise
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("inline", [False, True], ids=["files", "text"])
def test_a_client_with_a_certificate_is_let_in(kafka: SecureKafka, inline: bool) -> None:
    folder = kafka.folder
    files = {"ssl_ca_location": "ca.pem", "ssl_certificate_location": "client.crt", "ssl_key_location": "client.key"}
    texts = {"ssl_ca_pem": "ca.pem", "ssl_certificate_pem": "client.crt", "ssl_key_pem": "client.key"}
    given = {name: (folder / file).read_text() for name, file in texts.items()}
    if not inline:
        given = {name: str(folder / file) for name, file in files.items()}
    with Client.from_kafka_config(kafka.config("SSL", **given)) as client:
        write_and_read(client, f"tls-{'text' if inline else 'files'}")


def test_a_client_without_a_certificate_is_told_that_one_is_required(kafka: SecureKafka) -> None:
    config = kafka.config("SSL", ssl_ca_location=str(kafka.folder / "ca.pem"))
    with pytest.raises(TlsFailed, match="certificate"), Client.from_kafka_config(config) as client:
        client.topics()


def test_a_broker_whose_authority_is_unknown_is_not_trusted(kafka: SecureKafka) -> None:
    config = kafka.config("SASL_SSL", sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=PASSWORD)
    with pytest.raises(TlsFailed, match=r"not trusted.*ssl\.ca\.location"), Client.from_kafka_config(config) as client:
        client.topics()


def test_a_broker_under_another_name_is_not_trusted_unless_told(kafka: SecureKafka) -> None:
    more = {"bootstrap_servers": kafka.bootstraps["SASL_SSL"].replace("127.0.0.1", "localhost")}
    with pytest.raises(TlsFailed, match="not trusted"), alice(kafka, "PLAIN", **more) as client:
        client.connection()
    with alice(kafka, "PLAIN", **more, ssl_endpoint_identification_algorithm="none") as client:
        assert client.connection().usable


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once_and_not_quoted(kafka: SecureKafka, mechanism: str) -> None:
    with alice(kafka, mechanism, sasl_password="wrong-secret") as client:
        with pytest.raises(AuthenticationFailed, match=f"user 'alice' is not let in by {mechanism}") as caught:
            client.topics()
    assert "secret" not in str(caught.value)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_mechanism_that_is_not_offered_is_told_with_those_that_are(kafka: SecureKafka) -> None:
    with alice(kafka, "PLAIN", "SASL_PLAINTEXT") as client:
        with pytest.raises(AuthenticationFailed, match="does not offer PLAIN; it offers SCRAM-SHA-256"):
            client.topics()


def test_a_plain_client_on_a_tls_listener_is_told_so(kafka: SecureKafka) -> None:
    with pytest.raises(KafkaError, match="TLS"), Client(kafka.bootstraps["SSL"]) as client:
        client.topics()
