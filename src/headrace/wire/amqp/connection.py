"""Frames: what a peer sends becomes events, and what is to be sent becomes bytes.

    octet type | short channel | long size | payload | 0xCE

A message comes as a method frame (``basic.publish``), a header frame with its size and properties, and as many body
frames as it takes. Frames of different channels may be mixed. An event is given when its last byte is there; how the
network cut the bytes makes no difference.

The peer is held to what was negotiated: frames of at most ``frame_max`` bytes, channels up to ``channel_max``, messages
of at most ``message_bytes_max``, and at most ``content_bytes_max`` of messages that have begun and not ended. Anything
else gives ``PeerErred``, after which nothing more is read.

After ``close_channel`` the peer may still have sent much on that channel. It is dropped until the peer has seen it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.methods import IDS, decode_method, encode_method

__all__ = [
    "FRAME_MIN_SIZE",
    "AckReceived",
    "AmqpConnection",
    "Event",
    "HeartbeatReceived",
    "MethodReceived",
    "PeerErred",
    "ProtocolHeaderReceived",
    "PublishReceived",
]

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MIN_SIZE: Final = 4096
FRAME_END: Final = 0xCE
FRAME_END_BYTE: Final = b"\xce"
FRAME_OVERHEAD: Final = 8

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
_HEAD = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_ID = struct.Struct(">HH")
_TAG = struct.Struct(">QB")
_BASIC: Final = 60
_PUBLISH: Final = _ID.pack(*IDS["basic.publish"])
_ACK: Final = _ID.pack(*IDS["basic.ack"])
_CHANNEL_CLOSE_OK: Final = _ID.pack(*IDS["channel.close-ok"])
_CHANNEL_CLOSES: Final = frozenset({_ID.pack(*IDS["channel.close"]), _CHANNEL_CLOSE_OK})
_HEARTBEAT_FRAME: Final = _HEAD.pack(HEARTBEAT, 0, 0) + FRAME_END_BYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something the peer has done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolHeaderReceived(Event):
    """The peer wants to speak AMQP 0-9-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(Event):
    """The peer is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodReceived(Event):
    """A method without content. Arguments have the names of the specification."""

    channel: int
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PublishReceived(Event):
    """A whole message. ``properties`` are the bytes that they came as; exchange and routing key are UTF-8."""

    channel: int
    exchange: bytes
    routing_key: bytes
    is_mandatory: bool
    is_immediate: bool
    properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class AckReceived(Event):
    """A consumer is done with a message, or with all up to it."""

    channel: int
    delivery_tag: int
    is_multiple: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerErred(Event):
    """The peer broke a rule. Channel 0: the connection must be closed with this error, and nothing more is read. Any
    other channel has been closed with it."""

    channel: int
    error: AmqpError


@dataclass(slots=True)
class _Content:
    """A message on its way: its method is here, its header may be, and some of its body."""

    method: bytes
    properties: bytes | None = None
    size: int = 0
    missing: int = 0
    parts: list[bytes] | None = None


class AmqpConnection:
    """The server's side of one connection; see the module."""

    def __init__(
        self,
        *,
        frame_max: int = 131_072,
        channel_max: int = 2047,
        message_bytes_max: int = 128 << 20,
        content_bytes_max: int = 256 << 20,
    ) -> None:
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.message_bytes_max = message_bytes_max
        self.content_bytes_max = content_bytes_max
        self._buffer = bytearray()
        self._has_header = False
        self._failed = False
        self._contents: dict[int, _Content] = {}
        self._content_bytes = 0
        self._closing: set[int] = set()
        self._out: list[bytes] = []
        self.bytes_to_send = 0
        """What ``data_to_send`` would give now; methods alone are not counted."""

    # ---- receiving --------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Event]:
        """What the bytes complete, in order."""
        events: list[Event] = []
        if self._failed:
            return events
        self._buffer += data
        try:
            self._receive(events)
        except AmqpError as error:
            self._failed = True
            self._buffer.clear()
            events.append(PeerErred(channel=0, error=error))
        return events

    def _receive(self, events: list[Event]) -> None:
        buffer = self._buffer
        position = 0
        if not self._has_header:
            if len(buffer) < len(PROTOCOL_HEADER):
                if not PROTOCOL_HEADER.startswith(buffer):
                    raise AmqpError(ReplyCode.FRAME_ERROR, "the peer does not speak AMQP 0-9-1")
                return
            if not buffer.startswith(PROTOCOL_HEADER):
                raise AmqpError(ReplyCode.FRAME_ERROR, "the peer does not speak AMQP 0-9-1")
            self._has_header = True
            position = len(PROTOCOL_HEADER)
            events.append(ProtocolHeaderReceived())
        available = len(buffer)
        try:
            while available - position >= FRAME_OVERHEAD:
                kind, channel, size = _HEAD.unpack_from(buffer, position)
                if size > self.frame_max - FRAME_OVERHEAD:
                    raise AmqpError(
                        ReplyCode.FRAME_ERROR, f"a frame of {size} bytes is larger than the negotiated {self.frame_max}"
                    )
                end = position + FRAME_OVERHEAD - 1 + size
                if end >= available:
                    return
                if buffer[end] != FRAME_END:
                    raise AmqpError(ReplyCode.FRAME_ERROR, "a frame does not end where it should")
                event = self._frame(kind, channel, bytes(memoryview(buffer)[position + FRAME_OVERHEAD - 1 : end]))
                position = end + 1
                if event is not None:
                    events.append(event)
        finally:
            del buffer[:position]

    def _frame(self, kind: int, channel: int, payload: bytes) -> Event | None:
        if channel > self.channel_max:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, f"channel {channel} is above the negotiated {self.channel_max}")
        if channel in self._closing:
            if kind != METHOD or payload[:4] not in _CHANNEL_CLOSES:
                return None
            if payload[:4] == _CHANNEL_CLOSE_OK:
                self._closing.discard(channel)
        if kind == METHOD:
            return self._method(channel, payload)
        if kind == BODY:
            return self._body(channel, payload)
        if kind == HEADER:
            return self._header(channel, payload)
        if kind == HEARTBEAT:
            if channel:
                raise AmqpError(ReplyCode.COMMAND_INVALID, "a heartbeat came on a channel")
            return HeartbeatReceived()
        raise AmqpError(ReplyCode.FRAME_ERROR, f"there is no frame of type {kind}")

    def _method(self, channel: int, payload: bytes) -> Event | None:
        number = payload[:4]
        if channel in self._contents:
            if number not in _CHANNEL_CLOSES:
                raise _unexpected(self._contents[channel])
            self._drop_content(channel)
        if number == _PUBLISH:
            self._contents[channel] = _Content(payload)
            return None
        if number == _ACK and len(payload) == 13:
            tag, bits = _TAG.unpack_from(payload, 4)
            return AckReceived(channel, tag, bool(bits & 1))
        name, arguments = decode_method(payload)
        return MethodReceived(channel=channel, name=name, arguments=arguments)

    def _header(self, channel: int, payload: bytes) -> Event | None:
        content = self._contents.get(channel)
        if content is None or content.properties is not None:
            raise _unexpected(content)
        if len(payload) < 14:
            raise AmqpError(ReplyCode.FRAME_ERROR, "a content header is too short")
        class_id, weight, size = _CONTENT.unpack_from(payload)
        if class_id != _BASIC or weight:
            raise AmqpError(
                ReplyCode.UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {class_id} with weight {weight} instead",
                IDS["basic.publish"],
            )
        if size > self.message_bytes_max:
            too_large = f"message size {size} is larger than configured max size {self.message_bytes_max}"
            error = AmqpError(ReplyCode.PRECONDITION_FAILED, too_large, IDS["basic.publish"])
            self.close_channel(channel, error)
            return PeerErred(channel=channel, error=error)
        content.properties = payload[12:]
        content.size = content.missing = size
        if not size:
            return self._complete(channel, content)
        content.parts = []
        self._content_bytes += size
        if self._content_bytes > self.content_bytes_max:
            raise AmqpError(ReplyCode.RESOURCE_ERROR, "too many bytes of messages that have begun and not ended")
        return None

    def _body(self, channel: int, payload: bytes) -> Event | None:
        content = self._contents.get(channel)
        if content is None or content.parts is None:
            raise _unexpected(content)
        content.missing -= len(payload)
        if content.missing < 0:
            raise AmqpError(ReplyCode.FRAME_ERROR, f"a body is longer than the {content.size} bytes announced")
        content.parts.append(payload)
        return self._complete(channel, content) if content.missing == 0 else None

    def _complete(self, channel: int, content: _Content) -> Event:
        self._drop_content(channel)
        parts = content.parts
        body = b"" if not parts else parts[0] if len(parts) == 1 else b"".join(parts)
        method = content.method
        try:
            key_at = 7 + method[6]
            bits_at = key_at + 1 + method[key_at]
            exchange, routing_key, bits = method[7:key_at], method[key_at + 1 : bits_at], method[bits_at]
        except IndexError as error:
            raise AmqpError(ReplyCode.SYNTAX_ERROR, "basic.publish cannot be read", IDS["basic.publish"]) from error
        assert content.properties is not None
        return PublishReceived(channel, exchange, routing_key, bool(bits & 1), bool(bits & 2), content.properties, body)

    def _drop_content(self, channel: int) -> None:
        content = self._contents.pop(channel)
        if content.parts is not None:
            self._content_bytes -= content.size

    # ---- sending ----------------------------------------------------------------------------------------------------

    def send(self, channel: int, name: str, arguments: Mapping[str, Any] | None = None) -> None:
        payload = encode_method(name, arguments or {})
        self._out.append(_HEAD.pack(METHOD, channel, len(payload)) + payload + FRAME_END_BYTE)

    def send_ack(self, channel: int, delivery_tag: int, *, is_multiple: bool) -> None:
        """A confirm."""
        self._out.append(_HEAD.pack(METHOD, channel, 13) + _ACK + _TAG.pack(delivery_tag, is_multiple) + FRAME_END_BYTE)

    def send_content(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        """A method with a message, in as many frames as it takes."""
        size = len(body)
        most = self.frame_max - FRAME_OVERHEAD
        head = (
            _HEAD.pack(METHOD, channel, len(method))
            + method
            + FRAME_END_BYTE
            + _HEAD.pack(HEADER, channel, 12 + len(properties))
            + _CONTENT.pack(_BASIC, 0, size)
            + properties
            + FRAME_END_BYTE
        )
        out = self._out
        if not size:
            out.append(head)
        elif size <= most:
            out.append(head + _HEAD.pack(BODY, channel, size) + body + FRAME_END_BYTE)
        else:
            out.append(head)
            for first in range(0, size, most):
                part = body[first : first + most]
                out.append(_HEAD.pack(BODY, channel, len(part)) + part + FRAME_END_BYTE)
        self.bytes_to_send += len(head) + size

    def send_heartbeat(self) -> None:
        self._out.append(_HEARTBEAT_FRAME)

    def send_protocol_header(self) -> None:
        """The answer to a peer that speaks something else: what we speak."""
        self._out.append(PROTOCOL_HEADER)

    def close_channel(self, channel: int, error: AmqpError) -> None:
        """Send ``channel.close`` and drop what the peer has sent before it has seen that."""
        if channel in self._contents:
            self._drop_content(channel)
        self._closing.add(channel)
        self.send(channel, "channel.close", _close_arguments(error))

    def close(self, error: AmqpError) -> None:
        self.send(0, "connection.close", _close_arguments(error))

    def data_to_send(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        self.bytes_to_send = 0
        return data


def _unexpected(content: _Content | None) -> AmqpError:
    """A frame that does not belong where it came, in RabbitMQ's words."""
    if content is None:
        return AmqpError(ReplyCode.UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
    missing = "content header for class 60" if content.properties is None else "content body"
    found = "content header" if content.properties is None else "content body"
    return AmqpError(
        ReplyCode.UNEXPECTED_FRAME, f"expected {missing}, got non {found} frame instead", IDS["basic.publish"]
    )


def _close_arguments(error: AmqpError) -> dict[str, Any]:
    class_id, method_id = error.method
    text = error.text.encode("utf-8", "surrogateescape")[:255].decode("utf-8", "ignore")
    return {"reply_code": int(error.code), "reply_text": text, "class_id": class_id, "method_id": method_id}
