"""HTTP/1.1 with the standard library: one request and its answer, with bounds on both, and no redirects followed.

An address that somebody else may have chosen is resolved once and checked, and the connection goes to the address that
was checked: a name that resolves to a public address at the check and to 127.0.0.1 afterwards gets nowhere. A redirect
is an answer like any other; following it would be a request to an address that was not checked.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import SplitResult

from headrace.address import Address
from headrace.errors import Refused, UsageError
from headrace.targets.target import Unavailable

__all__ = ["Answer", "HttpConnection", "public_addresses"]

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a name, all of which must be public: not private, loopback, link-local or the like."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{host} has no address: {error}") from error
    addresses = sorted({str(each[4][0]) for each in found})
    for each in addresses:
        address = ipaddress.ip_address(each.partition("%")[0])
        inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
        if not (address.is_global and inner.is_global) or address.is_multicast:
            raise Refused(
                f"{host} is at {each}, which is no public address: users who choose addresses could reach what "
                "is only reachable from here. allow_private=True allows it"
            )
    return addresses


class HttpConnection:
    """A connection that is kept for several requests."""

    def __init__(self, address: Address, *, allow_private: bool = True, timeout_s: float = TIMEOUT_S) -> None:
        self._shown = address.shown
        parts = address.parts()
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self._shown} is no address of HTTP", "https://HOST:PORT/PATH")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        where = self._host if allow_private else public_addresses(self._host, self._port)[0]
        self._connection = _connection(parts, self._host, where, self._port, timeout_s)
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "headrace"}
        user, password = address.user(), address.password()
        if user is not None:
            token = b64encode(f"{user}:{password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        try:
            self._connection.request(method, path, body or None, {**self._headers, **(headers or {})})
            with self._connection.getresponse() as response:
                content = response.read(ANSWER_BYTES_MAX + 1)
                found = {name.lower(): value for name, value in response.getheaders()}
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unavailable(
                f"{self._shown} is away: {' '.join(str(error).split()) or type(error).__name__}"
            ) from error
        if len(content) > ANSWER_BYTES_MAX:
            self._connection.close()
            raise Unavailable(f"{self._shown} answered with more than {ANSWER_BYTES_MAX:,} bytes")
        return Answer(response.status, content, found)


def _connection(parts: SplitResult, host: str, where: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
    if parts.scheme == "http":
        return http.client.HTTPConnection(where, port, timeout=timeout_s)
    return _Pinned(host, where, port, timeout_s)


class _Pinned(http.client.HTTPSConnection):
    """TLS to the address that was checked, with a certificate for the name that was asked for."""

    def __init__(self, host: str, where: str, port: int, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._where = where

    def connect(self) -> None:
        plain = socket.create_connection((self._where, self.port), self.timeout)
        try:
            self.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
