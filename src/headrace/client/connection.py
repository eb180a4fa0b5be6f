"""One blocking socket to one broker: requests go out, answers come back in the same order.

On opening it asks for ApiVersions, so every later request is written in the highest version that both sides know. A
request may be sent before earlier ones are answered; ``send`` gives a ``Pending`` and ``wait`` reads answers, in order,
until that one has arrived. A connection that failed in any way is closed and never reused: after a timeout the late
answer would be taken for the next one.

Encryption wraps the socket before anything is said; authentication follows ApiVersions, which needs none.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import headrace
from headrace.client.security import Security, authenticate
from headrace.errors import BadArgument, ErrorCode, KafkaError
from headrace.wire.kafka.codec import MalformedMessage, read_message, read_uvarint, write_message
from headrace.wire.kafka.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.kafka.schema import spec_of

if TYPE_CHECKING:
    import ssl

__all__ = [
    "Address",
    "BrokerUnreachable",
    "Connection",
    "ConnectionLost",
    "Pending",
    "RequestTimedOut",
    "TlsFailed",
    "UnsupportedByBroker",
    "parse_addresses",
]

R = TypeVar("R")

DEFAULT_PORT = 9092
API_VERSIONS_KEY = 18
UNSUPPORTED_VERSION_BYTES = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
RESPONSE_BYTES_MAX = 256 * 1024 * 1024
"""No answer is larger: fetches are bounded by what they ask for plus one batch."""

TLS_ALERT = 0x150303
"""How a TLS listener begins its answer to somebody who does not speak TLS."""
SESSION_PART_USED = 0.85

_FRAME = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """``host:port,host:port``; the port may be left out, and an IPv6 host stands in brackets."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise BadArgument("no broker address given", "use HOST:PORT, for example 127.0.0.1:9092")
    return [_parse_address(part) for part in parts]


def _parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 < int(port) < 65536 or not host:
        raise BadArgument(f"{text!r} is not a broker address", "use HOST:PORT, for example 127.0.0.1:9092")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


class BrokerUnreachable(KafkaError):
    """No connection could be made."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, f"cannot reach a broker at {address}: {reason}")
        self.address = address


class TlsFailed(KafkaError):
    """The two sides do not trust each other, or one of them does not speak TLS. Trying again does not help."""

    retriable = False

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, f"no TLS connection to {address}: {reason}")
        self.address = address
        self.retriable = False


class ConnectionLost(KafkaError):
    """An open connection ended or said something that is not Kafka; whether the request took effect is unknown."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, f"lost the connection to {address}: {reason}")
        self.address = address


class RequestTimedOut(KafkaError):
    """The broker did not answer in time; whether the request took effect is unknown."""

    def __init__(self, address: Address, request: str, timeout_s: float) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, f"{address} did not answer {request} within {timeout_s:g} s")
        self.address = address


class UnsupportedByBroker(KafkaError):
    """The broker does not offer this request in any version that we know."""

    def __init__(self, address: Address, request: str, ours: tuple[int, int], theirs: tuple[int, int] | None) -> None:
        offer = "does not offer it" if theirs is None else f"offers versions {theirs[0]} to {theirs[1]}"
        super().__init__(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{address} cannot serve {request} in versions {ours[0]} to {ours[1]}: it {offer}",
        )


class Pending(Generic[R]):
    """An answer that is still on its way, or has arrived."""

    __slots__ = ("correlation_id", "request_name", "response", "response_class", "version")

    def __init__(self, correlation_id: int, request_name: str, response_class: type[R], version: int) -> None:
        self.correlation_id = correlation_id
        self.request_name = request_name
        self.response_class = response_class
        self.version = version
        self.response: R | None = None


class Connection:
    """An open, negotiated connection. Not for use by several threads at once."""

    def __init__(self, address: Address, sock: socket.socket, *, client_id: str, timeout_s: float) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self._socket = sock
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._waiting: deque[Pending[Any]] = deque()
        self._closed = False
        self._session_end = float("inf")

    @classmethod
    def open(
        cls,
        address: Address,
        *,
        client_id: str = "headrace",
        connect_timeout_s: float = 10,
        timeout_s: float = 30,
        security: Security | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> Connection:
        sock = connect_socket(address, connect_timeout_s, ssl_context)
        connection = cls(address, sock, client_id=client_id, timeout_s=timeout_s)
        try:
            connection._negotiate()
            if security is not None and security.authenticates:
                connection._authenticate(security)
        except ConnectionLost as error:
            connection.close()
            raise _tls_refusal(address, error) or error from error.__cause__
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def usable(self) -> bool:
        """Open as far as we can see: a peer that closed while nothing was under way shows as readable."""
        if self._closed:
            return False
        if self._waiting:
            return True
        if time.monotonic() > self._session_end or (self._readable() and not self._only_tls_chatter()):
            self.close()
        return not self._closed

    def has_answer(self) -> bool:
        """Whether ``wait`` would have something to read at once: an answer, or the end of the connection."""
        return self._closed or self._readable()

    def _readable(self) -> bool:
        pending = getattr(self._socket, "pending", None)  # TLS may have decrypted more than was asked for
        if pending is not None and pending():
            return True
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _only_tls_chatter(self) -> bool:
        """TLS sends its own messages, such as session tickets, which make an idle socket readable."""
        if not hasattr(self._socket, "pending"):
            return False
        import ssl

        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._socket.close()

    def version_for(self, request_class: type, version_max: int | None = None) -> int:
        """The highest version both sides know, or UnsupportedByBroker."""
        spec = spec_of(request_class)
        last = spec.last_version if version_max is None else min(spec.last_version, version_max)
        theirs = self.versions.get(spec.api_key)
        version = -1 if theirs is None else min(last, theirs[1])
        if theirs is None or version < max(spec.first_version, theirs[0]):
            raise UnsupportedByBroker(self.address, request_class.__name__, (spec.first_version, last), theirs)
        return version

    def call(
        self,
        request: object,
        response_class: type[R],
        *,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> R:
        return self.wait(self.send(request, response_class, version_max=version_max), timeout_s=timeout_s)

    def send(self, request: object, response_class: type[R], *, version_max: int | None = None) -> Pending[R]:
        """Write a request; its answer is asked for with ``wait``."""
        version = self.version_for(type(request), version_max)
        pending = Pending(self._next_id(), type(request).__name__, response_class, version)
        self._write(request, version, pending.correlation_id)
        self._waiting.append(pending)
        return pending

    def send_unanswered(self, request: object, *, version_max: int | None = None) -> None:
        """Write a request that the broker will not answer: a Produce with acks=0."""
        self._write(request, self.version_for(type(request), version_max), self._next_id())

    def wait(self, pending: Pending[R], *, timeout_s: float | None = None) -> R:
        """The answer to one request; answers to earlier ones are kept for those who wait for them."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        try:
            while pending.response is None:
                if not self._waiting:
                    raise ConnectionLost(self.address, f"it was closed before {pending.request_name} was answered")
                self._read_answer(self._waiting[0], deadline)
                self._waiting.popleft()
        except TimeoutError:
            self.close()
            raise RequestTimedOut(self.address, pending.request_name, limit_s) from None
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, _reason(error)) from error
        except BaseException:  # also Ctrl-C, which may come between the two halves of an answer
            self.close()
            raise
        return pending.response

    def _negotiate(self) -> None:
        """Ask in our newest dialect; a broker that does not know it answers in the oldest, and says which it knows."""
        spec = spec_of(ApiVersionsRequest)
        version = spec.last_version
        while True:
            answer = self._ask_versions(version)
            self.versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
            if answer.error_code == ErrorCode.NONE:
                self.features = {each.name: each.max_version_level for each in answer.finalized_features}
                return
            code = ErrorCode(answer.error_code)
            if code is not ErrorCode.UNSUPPORTED_VERSION or version == 0:
                raise KafkaError(code, f"{self.address} refused to tell its versions: {code.name}")
            offered = self.versions.get(API_VERSIONS_KEY, (0, 0))[1]
            version = min(offered, version - 1)

    def _ask_versions(self, version: int) -> ApiVersionsResponse:
        request = ApiVersionsRequest(client_software_name="headrace", client_software_version=headrace.__version__)
        pending = Pending(self._next_id(), "ApiVersionsRequest", ApiVersionsResponse, version)
        self._write(request, version, pending.correlation_id)
        self._waiting.append(pending)
        return self.wait(pending)

    def _authenticate(self, security: Security) -> None:
        """Say who we are; a session that ends is renewed by a new connection, some time before the broker ends it."""
        from headrace.wire.kafka.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

        lifetime_ms = authenticate(
            security,
            lambda request: self.call(request, SaslHandshakeResponse),
            lambda request: self.call(request, SaslAuthenticateResponse),
        )
        if lifetime_ms > 0:
            self._session_end = time.monotonic() + SESSION_PART_USED * lifetime_ms / 1000

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _write(self, request: object, version: int, correlation_id: int) -> None:
        spec = spec_of(type(request))
        header = _REQUEST_HEADER.pack(spec.api_key, version, correlation_id, len(self._client_id)) + self._client_id
        if version >= spec.flexible:
            header += b"\x00"
        chunks = [header, *write_message(request, version)]
        size = sum(map(len, chunks))
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(b"".join([_FRAME.pack(size), *chunks]))
        except TimeoutError:
            self.close()
            raise RequestTimedOut(self.address, type(request).__name__, self._timeout_s) from None
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, _reason(error)) from error
        except BaseException:
            self.close()
            raise

    def _read_answer(self, pending: Pending[Any], deadline: float) -> None:
        (size,) = _FRAME.unpack(self._read(4, deadline))
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            if size >> 8 == TLS_ALERT:
                raise TlsFailed(self.address, "the listener wants TLS; set security.protocol to SSL or SASL_SSL")
            raise ConnectionLost(self.address, f"an answer of {size} bytes; is this a Kafka listener?")
        frame = self._read(size, deadline)
        (correlation_id,) = _FRAME.unpack_from(frame)
        if correlation_id != pending.correlation_id:
            raise ConnectionLost(self.address, f"answer {correlation_id} where {pending.correlation_id} was due")
        pending.response = self._decode(pending, frame)

    def _decode(self, pending: Pending[Any], frame: bytearray) -> Any:
        """Answers to ApiVersions never have tagged fields in their header, and an unknown version is answered as 0."""
        spec = spec_of(pending.response_class)
        version = pending.version
        if spec.api_key == API_VERSIONS_KEY and frame[4:6] == UNSUPPORTED_VERSION_BYTES:
            version = 0
        try:
            position = 4
            if version >= spec.flexible and spec.api_key != API_VERSIONS_KEY:
                position = _skip_tags(memoryview(frame), position)
            return read_message(pending.response_class, version, frame, position)[0]
        except (MalformedMessage, IndexError) as error:
            raise ConnectionLost(self.address, f"{pending.request_name} was answered by a {error}") from error

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining_s)
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionLost(self.address, "the broker closed it")
            view = view[count:]
        return data


def connect_socket(address: Address, timeout_s: float, ssl_context: ssl.SSLContext | None = None) -> socket.socket:
    """A TCP connection without Nagle's delay, inside TLS when a context is given."""
    try:
        sock = socket.create_connection((address.host, address.port), timeout_s)
    except TimeoutError:
        raise BrokerUnreachable(address, f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise BrokerUnreachable(address, _reason(error)) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock if ssl_context is None else _wrap(sock, address, ssl_context)


def _wrap(sock: socket.socket, address: Address, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A broker that goes away in the handshake may come back; one that is not trusted will not be."""
    import ssl

    try:
        return context.wrap_socket(sock, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        reason = f"its certificate is not trusted: {error.verify_message}"
        raise TlsFailed(address, f"{reason}; set ssl.ca.location to the authority that signed it") from error
    except (TimeoutError, ssl.SSLEOFError, ConnectionError) as error:
        raise BrokerUnreachable(address, f"the TLS handshake did not end: {_reason(error)}") from error
    except OSError as error:
        raise TlsFailed(address, _reason(error)) from error
    finally:
        if sock.fileno() >= 0:
            sock.close()


def _tls_refusal(address: Address, error: ConnectionLost) -> TlsFailed | None:
    """From TLS 1.3 on a broker refuses our certificate after the handshake, with the first thing that we read."""
    import ssl

    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return TlsFailed(address, _reason(cause))
    return None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _skip_tags(view: memoryview, position: int) -> int:
    """The position after the tagged fields of a response header; brokers send none today, so none is understood."""
    count, position = read_uvarint(view, position)
    for _ in range(count):
        _, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        position += size
    return position
