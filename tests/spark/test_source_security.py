"""Encryption and identity of the source, set by Kafka's names, on Apache Kafka; planner and task without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.client import AuthenticationFailed
from headrace.spark.source import tasks
from headrace.spark.source.columns import plain_schema
from headrace.spark.source.data_source import BatchReader
from headrace.spark.source.options import SourceOptions
from tests.interop.test_client_security import PASSWORD, SecureKafka, alice, kafka
from tests.spark.topics import create, send

pytestmark = [pytest.mark.servers, pytest.mark.slow]

secure = kafka  # the fixture under a name that its users can have as an argument

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required username='alice' password='{}';"


@pytest.fixture(autouse=True)
def closed_connections() -> Iterator[None]:
    """Those that a task keeps for the next one in its worker."""
    yield
    for kept in tasks._clients.values():
        kept.close()
    tasks._clients.clear()


def ways_in(secure: SecureKafka) -> dict[str, dict[str, str]]:
    """Settings as a Spark program has them."""
    folder = secure.folder
    tls = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(folder / "ca.pem")}
    return {
        "SASL_SSL": {
            **tls,
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": LOGIN.format(PASSWORD),
        },
        "SASL_PLAINTEXT": {
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.username": "alice",
            "kafka.sasl.password": PASSWORD,
        },
        "SSL": {
            "kafka.ssl.ca.location": str(folder / "ca.pem"),
            "kafka.ssl.certificate.location": str(folder / "client.crt"),
            "kafka.ssl.key.location": str(folder / "client.key"),
        },
    }


def reader(secure: SecureKafka, protocol: str, topic: str, **more: str) -> BatchReader:
    given = {
        "kafka.bootstrap.servers": secure.bootstraps[protocol],
        "kafka.security.protocol": protocol,
        "subscribe": topic,
        **ways_in(secure)[protocol],
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return BatchReader(SourceOptions.parse(given, streaming=False), plain_schema(include_headers=False))


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT", "SSL"])
def test_a_topic_is_planned_and_read_through_encryption_and_identity(secure: SecureKafka, protocol: str) -> None:
    topic = f"read-{protocol.lower().replace('_', '-')}"
    create(secure.bootstraps["PLAINTEXT"], topic)
    send(secure.bootstraps["PLAINTEXT"], topic, [b"one", b"two"])
    source = reader(secure, protocol, topic)
    batches = [batch for part in source.partitions() for batch in source.read(part)]
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [b"one", b"two"]


def test_a_wrong_password_is_told_when_the_read_is_planned(secure: SecureKafka) -> None:
    with alice(secure, "PLAIN") as client:
        client.topics()  # the right one is let in
    source = reader(secure, "SASL_PLAINTEXT", "any", kafka_sasl_password="wrong-secret")
    with pytest.raises(AuthenticationFailed, match="alice") as caught:
        source.partitions()
    assert "secret" not in str(caught.value)
