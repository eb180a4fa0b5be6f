"""Client settings by the names that Kafka's clients have for them, Java's and librdkafka's.

What is not understood is refused with the names that are: a setting that silently does nothing is how a connection
that should be encrypted is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.client.security import Security
from headrace.errors import UsageError

__all__ = ["KAFKA_CONFIG_NAMES", "client_settings", "security_of"]

_CLIENT: dict[str, tuple[str, Callable[[str], Any]]] = {
    "client.id": ("client_id", str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "default.api.timeout.ms": ("retry_timeout_ms", int),
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", int),
    "retry.backoff.ms": ("retry_pause_ms", int),
    "retry.backoff.max.ms": ("retry_pause_ms_max", int),
    "metadata.max.age.ms": ("metadata_age_ms_max", int),
}
_SECURITY = {
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "ssl.ca.location": "ca_file",
    "ssl.ca.pem": "ca_pem",
    "ssl.truststore.location": "ca_file",
    "ssl.truststore.certificates": "ca_pem",
    "ssl.certificate.location": "certificate_file",
    "ssl.certificate.pem": "certificate_pem",
    "ssl.keystore.location": "certificate_file",
    "ssl.keystore.certificate.chain": "certificate_pem",
    "ssl.key.location": "key_file",
    "ssl.key.pem": "key_pem",
    "ssl.keystore.key": "key_pem",
    "ssl.key.password": "key_password",
}
_TREATED_BELOW = (
    "security.protocol",
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    "ssl.truststore.type",
    "ssl.keystore.type",
)
KAFKA_CONFIG_NAMES = frozenset({"bootstrap.servers", *_CLIENT, *_SECURITY, *_TREATED_BELOW})
"""Every name that is understood."""

_JAAS = re.compile(r"""\s(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;]+)""")


def client_settings(config: Mapping[str, str]) -> dict[str, Any]:
    """The fields of ``ClientOptions`` that these settings mean; ``bootstrap.servers`` is not one of them."""
    unknown = sorted(set(config) - KAFKA_CONFIG_NAMES)
    if unknown:
        known = ", ".join(sorted(KAFKA_CONFIG_NAMES))
        raise UsageError(f"the client does not know {', '.join(map(repr, unknown))}", f"known are {known}")
    fields: dict[str, Any] = {}
    for name, (ours, convert) in _CLIENT.items():
        if name in config:
            try:
                fields[ours] = convert(config[name])
            except ValueError:
                raise UsageError(f"{name} must be a number, not {config[name]!r}") from None
    fields["security"] = security_of(config)
    return fields


def security_of(config: Mapping[str, str]) -> Security:
    fields: dict[str, Any] = {ours: config[name] for name, ours in _SECURITY.items() if name in config}
    _check_stores(config)
    if "security.protocol" in config:
        fields["protocol"] = config["security.protocol"].upper()
    if "sasl.jaas.config" in config:
        fields |= {"mechanism": "PLAIN" if "PlainLoginModule" in config["sasl.jaas.config"] else ""} | fields
        fields |= _jaas(config["sasl.jaas.config"])
    algorithm = config.get("ssl.endpoint.identification.algorithm", "https").lower()
    fields["check_hostname"] = algorithm not in ("", "none")
    if fields.get("protocol", "PLAINTEXT").startswith("SASL") and not fields.get("mechanism"):
        raise UsageError("sasl.mechanism is missing", "set it to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    return Security(**fields)


def _check_stores(config: Mapping[str, str]) -> None:
    for store in ("truststore", "keystore"):
        kind = config.get(f"ssl.{store}.type", "PEM" if f"ssl.{store}.location" not in config else "JKS").upper()
        if kind != "PEM":
            raise UsageError(
                f"ssl.{store}.type {kind} is Java's own format",
                f"convert the store to PEM and set ssl.{store}.type=PEM",
            )


def _jaas(text: str) -> dict[str, str]:
    """User name and password out of Java's login module line; the line itself is never quoted in an error."""
    found = {}
    for name, quoted in _JAAS.findall(text):
        value = quoted
        if quoted[0] in "\"'":
            value = re.sub(r"\\(.)", r"\1", quoted[1:-1])
        found[name] = value
    if set(found) != {"username", "password"}:
        raise UsageError("sasl.jaas.config names no user and password", "set sasl.username and sasl.password instead")
    return found
