"""Who we are and whom we trust: TLS around the socket, SASL as its first conversation.

Secrets live in fields that no ``repr`` shows, and no error quotes them. What only protected connections need (OpenSSL
and its kin) is imported when one is made: a command on a plain listener starts without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headrace.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    import ssl

    from headrace.wire.kafka.messages.sasl import (
        SaslAuthenticateRequest,
        SaslAuthenticateResponse,
        SaslHandshakeRequest,
        SaslHandshakeResponse,
    )

__all__ = ["MECHANISMS", "PROTOCOLS", "Security", "authenticate"]

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a connection is protected. Certificates and keys are PEM, in files or as text."""

    protocol: Protocol = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str | None = None  # None and no ``ca_pem``: the machine's own authorities
    ca_pem: str | None = field(default=None, repr=False)
    certificate_file: str | None = None  # for brokers that ask who we are; may hold the key as well
    key_file: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise UsageError(f"security protocol {self.protocol!r} is not known", f"use one of {', '.join(PROTOCOLS)}")
        if not self.authenticates:
            return
        if self.mechanism not in MECHANISMS:
            raise UsageError(f"SASL mechanism {self.mechanism!r} is not known", f"use one of {', '.join(MECHANISMS)}")
        if not self.username:
            raise UsageError(f"{self.mechanism} needs a user name and a password", "set sasl.username, sasl.password")

    @property
    def encrypts(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def authenticates(self) -> bool:
        return self.protocol.startswith("SASL")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Made once per client: loading authorities takes milliseconds. None without encryption."""
        if not self.encrypts:
            return None
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_pem)
            context.check_hostname = self.check_hostname
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file, self.key_password)
            elif self.certificate_pem is not None:
                self._load_pem(context, self.certificate_pem)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = [each for each in (self.ca_file, self.certificate_file, self.key_file) if each]
            where = f" from {', '.join(files)}" if files else ""
            raise UsageError(f"cannot load certificates{where}: {error}", "give PEM files that can be read") from error
        return context

    def _load_pem(self, context: ssl.SSLContext, certificate: str) -> None:
        """OpenSSL loads certificates from files only, so this one exists for a moment, for this user alone."""
        import os
        import tempfile

        descriptor, path = tempfile.mkstemp(suffix=".pem")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{self.key_pem or ''}\n{certificate}\n")
            context.load_cert_chain(path, password=self.key_password)
        finally:
            os.unlink(path)


def authenticate(
    security: Security,
    handshake: Callable[[SaslHandshakeRequest], SaslHandshakeResponse],
    exchange: Callable[[SaslAuthenticateRequest], SaslAuthenticateResponse],
) -> int:
    """Hold the conversation of the mechanism; gives the session's lifetime in ms, 0 for no end."""
    from headrace.client.scram import HASHES, AuthenticationFailed, ScramClient
    from headrace.wire.kafka.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

    chosen = handshake(SaslHandshakeRequest(mechanism=security.mechanism))
    if chosen.error_code != ErrorCode.NONE:
        offered = ", ".join(chosen.mechanisms) or "none"
        raise AuthenticationFailed(
            f"the broker does not offer {security.mechanism}; it offers {offered}",
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        )

    def say(data: bytes) -> SaslAuthenticateResponse:
        answer = exchange(SaslAuthenticateRequest(auth_bytes=data))
        if answer.error_code != ErrorCode.NONE:
            told = answer.error_message or "no reason given"
            raise AuthenticationFailed(f"user {security.username!r} is not let in by {security.mechanism}: {told}")
        return answer

    if security.mechanism == "PLAIN":
        return say(f"\0{security.username}\0{security.password}".encode()).session_lifetime_ms
    scram = ScramClient(HASHES[security.mechanism], security.username, security.password)
    proof = scram.final(say(scram.first()).auth_bytes)
    last = say(proof)
    scram.verify(last.auth_bytes)
    return last.session_lifetime_ms
