"""One side of a Kafka connection, without hands: bytes go in, events come out; answers go in, chunks come out.

    ┌ frame ────────────────────────────────────────────────────────────────┐
    │ size i32 │ api key i16 │ version i16 │ correlation id i32 │ client id │ …
    └───────────────────────────────────────────────────────────────────────┘

Header version 2 (flexible requests) adds tagged fields after the client id, which itself is never compact.

What a stranger can make us hold is bounded by what he has sent: a frame's buffer grows with the bytes that arrive and
is never made from the size he claims. A frame is refused as soon as its first bytes show that it must be: the size
when four bytes are here, the API and version when eight are. After a refusal the connection yields nothing more.

Each frame is collected in a separate buffer that nothing else uses, so the ``records`` of a Produce are views of it
and stay valid after ``receive_data`` returns.

A request with more than ``DECODED_AT_ONCE_MAX`` array elements is not decoded by ``receive_data``: that would take tens
of milliseconds. Its event carries the decoding as a generator.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import ErrorCode
from headrace.wire.kafka.apis import API_VERSIONS, APIS, PRODUCE, Api
from headrace.wire.kafka.codec import (
    MalformedMessage,
    TooManyElements,
    UnwritableMessage,
    read_in_steps,
    read_message,
    read_uvarint,
    write_message,
)
from headrace.wire.kafka.messages.metadata import ApiVersion, ApiVersionsResponse

__all__ = [
    "DECODED_AT_ONCE_MAX",
    "Connection",
    "Event",
    "Limits",
    "LongRequestReceived",
    "PeerErred",
    "ReplyTo",
    "RequestReceived",
    "UnsupportedVersion",
    "joined",
]

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_ANSWER_HEAD = struct.Struct(">ii")
_I16 = struct.Struct(">h")
_BYTES = (bytes, bytearray, memoryview)
_BYTES_TYPES = frozenset(_BYTES)

FRAME_BYTES_MIN = _HEAD.size
"""API key, version and correlation id."""

FRAME_BYTES_MAX = 2**31 - 1
"""What the size in front of a frame can say."""

JOINED_ANSWER_BYTES_MAX = 512 << 10
"""An answer up to this size is sent as one piece: that costs a quarter of a millisecond."""

JOINED_BYTES_MAX = 4096
"""In a larger answer that carries slices of files, a piece up to this size is copied together with its neighbours."""

DECODED_AT_ONCE_MAX = 1_000
"""Array elements that ``receive_data`` decodes: up to 2.5 ms. A request with more is begun again, in steps."""

TAGS_MAX = 64
"""Tagged fields in a request header. Kafka defines none; each one costs a step to skip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest frames: Produce carries records, nothing else needs as much.

    ``elements_max`` bounds the array elements and tagged fields of one request, and so its memory: a million of them
    fit into a frame of 2 MB and take hundreds as objects. 20,000 are room for a fetch of 10,000 topics.
    """

    produce_bytes_max: int = 100 << 20
    other_bytes_max: int = 16 << 20
    elements_max: int = 20_000
    answer_bytes_max: int = 100_000_000
    """What an answer may hold in memory, so without records. librdkafka takes no more in one answer either (its setting
    receive.message.max.bytes). Handlers keep to it; an answer that exceeds it is not sent."""


class ReplyTo(NamedTuple):
    """What has to be known about a request to answer it, so that its body need not be kept."""

    api_key: int
    version: int
    correlation_id: int


class RequestReceived(NamedTuple):
    """A whole request arrived and was understood. ``size`` is that of its frame."""

    reply_to: ReplyTo
    client_id: str | None
    body: Any
    size: int


class LongRequestReceived(NamedTuple):
    """A whole request arrived that takes long to decode. ``decoding`` yields the elements done after each step, and
    returns the body or raises MalformedMessage, which is the peer's error."""

    reply_to: ReplyTo
    client_id: str | None
    decoding: Generator[int, None, Any]
    size: int


class UnsupportedVersion(NamedTuple):
    """ApiVersions in a version we do not speak: answered with ``Connection.send_unsupported``."""

    version: int
    correlation_id: int
    size: int


class PeerErred(NamedTuple):
    """The peer broke the protocol; there is no answer to that but to close."""

    reason: str


Event = RequestReceived | LongRequestReceived | UnsupportedVersion | PeerErred
"""Something the peer did. Events are tuples: there is one for every request, and a frozen dataclass takes three times
as long to make."""


class Connection:
    """The server's end. ``receive_data`` never blocks and never raises for what the peer sent."""

    def __init__(self, limits: Limits | None = None, apis: Mapping[int, Api] = APIS) -> None:
        self._limits = limits or Limits()
        self._frame_bytes_max = max(self._limits.produce_bytes_max, self._limits.other_bytes_max)
        self._elements_at_once_max = min(self._limits.elements_max, DECODED_AT_ONCE_MAX)
        self._apis = apis
        self._prefix = bytearray()
        self._frame = bytearray()
        self._size = 0  # of the frame being collected; 0 while its size is not known
        self._refused = False

    @property
    def held_bytes(self) -> int:
        """Bytes of the frame that is not whole yet."""
        return len(self._frame)

    @property
    def missing_bytes(self) -> int:
        """What the frame at hand still lacks; 0 between frames."""
        return self._size - len(self._frame)

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """The events that these bytes complete. The caller may reuse ``data`` afterwards."""
        events: list[Event] = []
        position = 0
        view = memoryview(data)
        while position < len(view) and not self._refused:
            if self._size:
                position = self._collect(view, position, events)
            else:
                position = self._begin(view, position, events)
        return events

    # ---- frames -----------------------------------------------------------------------------------------------------

    def _begin(self, view: memoryview, position: int, events: list[Event]) -> int:
        """Read a frame's size, which may come in pieces."""
        if not self._prefix and len(view) - position >= 4:
            size: int = _SIZE.unpack_from(view, position)[0]
            position += 4
        else:
            end = min(position + 4 - len(self._prefix), len(view))
            self._prefix += view[position:end]
            if len(self._prefix) < 4:
                return end
            size = _SIZE.unpack(self._prefix)[0]
            self._prefix.clear()
            position = end
        if not FRAME_BYTES_MIN <= size <= self._frame_bytes_max:
            self._refuse(f"a frame of {size} bytes", events)
            return position
        self._size = size
        end = position + size
        if end <= len(view):  # nearly every frame comes in one piece
            self._complete(bytes(view[position:end]), events)
            return end
        return position

    def _collect(self, view: memoryview, position: int, events: list[Event]) -> int:
        frame = self._frame
        before = len(frame)
        end = min(position + self._size - before, len(view))
        frame += view[position:end]
        if len(frame) == self._size:
            self._frame = bytearray()
            self._complete(frame, events)
        elif before < FRAME_BYTES_MIN <= len(frame):
            reason = self._refusal(frame)
            if reason:
                self._refuse(reason, events)
        return end

    def _refusal(self, frame: bytes | bytearray) -> str:
        """Why the frame that begins like this cannot be served, or nothing."""
        api_key, version, _ = _HEAD.unpack_from(frame)
        api = self._apis.get(api_key)
        if api is None:
            return f"unknown API {api_key} (version {version})"
        if not api.accepts(version) and api_key != API_VERSIONS:
            return f"{api.name} version {version} is outside {api.version_min}–{api.version_max}"
        if self._size > self._bytes_max(api_key):
            return f"{api.name} of {self._size} bytes; the limit is {self._bytes_max(api_key)}"
        return ""

    def _bytes_max(self, api_key: int) -> int:
        return self._limits.produce_bytes_max if api_key == PRODUCE else self._limits.other_bytes_max

    def _refuse(self, reason: str, events: list[Event]) -> None:
        self.close()
        events.append(PeerErred(reason))

    def close(self) -> None:
        """Let go of what is held and take no more."""
        self._refused = True
        self._frame = bytearray()
        self._size = 0

    def _complete(self, frame: bytes | bytearray, events: list[Event]) -> None:
        """All bytes of a frame are here."""
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        api = self._apis.get(api_key)
        if api is None or not api.accepts(version) or self._size > self._bytes_max(api_key):
            reason = self._refusal(frame)
            if reason:
                self._refuse(reason, events)
            else:
                self._size = 0
                events.append(UnsupportedVersion(version, correlation_id, len(frame)))
            return
        self._size = 0
        view = memoryview(frame)
        reply_to = ReplyTo(api_key, version, correlation_id)
        try:
            client_id, position = _read_rest_of_header(view, api.request_header_version(version))
            # Bytes after the body are ignored, as in Kafka: librdkafka 2.16 leaves three after Metadata version 13.
            body: Any
            body, _ = read_message(api.request, version, view, position, elements_max=self._elements_at_once_max)
        except TooManyElements as error:
            elements_max = self._limits.elements_max
            if error.found > elements_max:
                self._refuse(f"{api.name} version {version}: {TooManyElements(elements_max, error.found)}", events)
                return
            decoding = self._decoding(api, version, view, position)
            events.append(LongRequestReceived(reply_to, client_id, decoding, len(frame)))
        except (MalformedMessage, struct.error, IndexError, UnicodeDecodeError) as error:
            self._refuse(f"{api.name} version {version}: {error}", events)
        else:
            events.append(RequestReceived(reply_to, client_id, body, len(frame)))

    def _decoding(self, api: Api, version: int, view: memoryview, position: int) -> Generator[int, None, Any]:
        body: Any
        body, _ = yield from read_in_steps(api.request, version, view, position, elements_max=self._limits.elements_max)
        return body

    # ---- answers ----------------------------------------------------------------------------------------------------

    def send(self, response: object, reply_to: ReplyTo) -> list[Any]:
        """The answer's bytes as few chunks: bytes, and the file slices that ``records`` fields hold, as they are."""
        api = self._apis[reply_to.api_key]
        assert type(response) is api.response, f"{type(response).__name__} does not answer {api.name}"
        body = write_message(response, reply_to.version)
        has_tags = api.response_header_version(reply_to.version) == 1
        size = (5 if has_tags else 4) + sum(map(len, body))
        if size > self._limits.answer_bytes_max:
            self._check_size(size, body)
        body.insert(0, _ANSWER_HEAD.pack(size, reply_to.correlation_id) + (b"\x00" if has_tags else b""))
        return _joined(body, size)

    def _check_size(self, size: int, body: list[Any]) -> None:
        in_memory = sum(len(chunk) for chunk in body if isinstance(chunk, _BYTES))
        if in_memory > self._limits.answer_bytes_max or size > FRAME_BYTES_MAX:
            raise UnwritableMessage(f"{size} bytes; response.bytes.max is {self._limits.answer_bytes_max}")

    def send_unsupported(self, event: UnsupportedVersion) -> list[Any]:
        """As Kafka answers: version 0, the code, and the versions of ApiVersions itself."""
        api = self._apis[API_VERSIONS]
        response = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[ApiVersion(api_key=api.key, min_version=api.version_min, max_version=api.version_max)],
        )
        return self.send(response, ReplyTo(API_VERSIONS, 0, event.correlation_id))


def _read_rest_of_header(view: memoryview, header_version: int) -> tuple[str | None, int]:
    """The client id, and tagged fields where the header has them; returns where the body begins."""
    position = FRAME_BYTES_MIN
    length = _I16.unpack_from(view, position)[0]
    position += 2
    end = position + max(length, 0)
    if length < -1 or end > len(view):
        raise MalformedMessage(f"a client id of {length} bytes")
    client_id = None if length < 0 else str(view[position:end], "utf-8")
    if header_version == 2:
        end = end + 1 if not view[end] else _skip_tags(view, end)
    return client_id, end


def _skip_tags(view: memoryview, position: int) -> int:
    count, position = read_uvarint(view, position)
    if count > TAGS_MAX:
        raise MalformedMessage(f"{count} tagged fields in a request header")
    for _ in range(count):
        _, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        position += size
        if position > len(view):
            raise MalformedMessage(f"a tagged field of {size} bytes")
    return position


def joined(chunks: list[Any]) -> list[Any]:
    """Neighbouring bytes made one; slices of files stay apart. A large answer without slices stays in its pieces, which
    are joined as they leave: one in which the same 2 KB are repeated 20,000 times costs as many references."""
    return _joined(chunks, sum(map(len, chunks)))


def _joined(chunks: list[Any], size: int) -> list[Any]:
    if size <= JOINED_ANSWER_BYTES_MAX:
        try:
            return [b"".join(chunks)]
        except TypeError:  # what is not bytes refuses to be joined
            pass
    elif _BYTES_TYPES.issuperset(map(type, chunks)):
        return chunks
    merged: list[Any] = []
    run: list[Any] = []
    for chunk in chunks:
        if isinstance(chunk, _BYTES) and len(chunk) <= JOINED_BYTES_MAX:
            run.append(chunk)
            continue
        if run:
            merged.append(b"".join(run))
            run.clear()
        merged.append(chunk)
    if run:
        merged.append(b"".join(run))
    return merged
