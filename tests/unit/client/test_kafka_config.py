"""Settings by Kafka's names."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headrace.client import KAFKA_CONFIG_NAMES, Client, ClientOptions, Security
from headrace.errors import UsageError
from headrace.wire.kafka.messages.sasl import SaslAuthenticateRequest

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al\\"ice" password=\'hunter2;\';'


def test_times_and_names_go_where_they_belong() -> None:
    options = ClientOptions.from_kafka_config(
        {"client.id": "me", "request.timeout.ms": "1234", "retry.backoff.ms": "7", "bootstrap.servers": "x:1"}
    )
    assert (options.client_id, options.request_timeout_ms, options.retry_pause_ms) == ("me", 1234, 7)
    assert options.security == Security()


@pytest.mark.parametrize(
    "names",
    [("sasl.mechanism", "sasl.username", "sasl.password"), ("sasl.mechanisms", "sasl.username", "sasl.password")],
)
def test_javas_and_librdkafkas_names_mean_the_same(names: tuple[str, str, str]) -> None:
    config = {"security.protocol": "sasl_plaintext", **dict(zip(names, ("PLAIN", "alice", "hunter2"), strict=True))}
    security = ClientOptions.from_kafka_config(config).security
    assert security == Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="hunter2")


def test_javas_login_line_gives_user_and_password() -> None:
    security = ClientOptions.from_kafka_config({**SASL, "sasl.jaas.config": JAAS}).security
    assert (security.username, security.password, security.mechanism) == ('al"ice', "hunter2;", "SCRAM-SHA-512")


def test_secrets_are_shown_by_nothing() -> None:
    options = ClientOptions.from_kafka_config(
        {
            **SASL,
            "sasl.username": "alice",
            "sasl.password": "hunter2",
            "ssl.key.password": "hunter3",
            "ssl.key.pem": "k3y",
        }
    )
    for text in (repr(options), str(options), repr(options.security), repr(Client("127.0.0.1:1", options))):
        assert "hunter" not in text
        assert "k3y" not in text
    assert "alice" in repr(options.security)
    assert "hunter" not in repr(SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter2"))


def test_options_travel_to_other_processes_whole() -> None:
    options = ClientOptions.from_kafka_config({**SASL, "sasl.username": "alice", "sasl.password": "hunter2"})
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 our own bytes


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"bootstrap.serverz": "x"}, "does not know 'bootstrap.serverz'.*bootstrap.servers"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms must be a number"),
        ({"security.protocol": "TLS"}, "'TLS' is not known.*SASL_SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({**SASL, "sasl.mechanism": "GSSAPI", "sasl.username": "a"}, "'GSSAPI' is not known.*SCRAM-SHA-256"),
        (SASL, "needs a user name"),
        ({**SASL, "sasl.jaas.config": "hunter2"}, "names no user"),
        ({"ssl.truststore.location": "a.jks"}, "JKS is Java's own format.*PEM"),
        ({"ssl.keystore.type": "PKCS12"}, "PKCS12 is Java's own format.*PEM"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(config: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        ClientOptions.from_kafka_config(config)
    assert "hunter2" not in str(caught.value)


def test_every_name_of_a_certificate_is_understood(tmp_path: Path) -> None:
    config = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "both.pem",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert set(config) <= KAFKA_CONFIG_NAMES
    security = ClientOptions.from_kafka_config(config).security
    assert (security.ca_file, security.certificate_file, security.check_hostname) == ("ca.pem", "both.pem", False)
    with pytest.raises(UsageError, match=r"cannot load certificates from ca\.pem, both\.pem"):
        security.ssl_context()


def test_fields_of_our_own_fill_what_the_settings_leave_open() -> None:
    options = ClientOptions.from_kafka_config({"client.id": "theirs"}, client_id="ours", first_contact_timeout_ms=5)
    assert (options.client_id, options.first_contact_timeout_ms) == ("theirs", 5)


def test_a_client_is_made_from_settings_alone() -> None:
    client = Client.from_kafka_config({"bootstrap.servers": "127.0.0.1:1", "client.id": "me"})
    assert (client.bootstrap[0].port, client.options.client_id) == (1, "me")
