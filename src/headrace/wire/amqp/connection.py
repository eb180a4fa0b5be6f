"""Frames: what a peer sends becomes events, and what is to be sent becomes bytes.

    octet type | short channel | long size | payload | 0xCE

A message comes as a method frame (``basic.publish``), a header frame with its size and properties, and as many body
frames as it takes. Frames of different channels may be mixed. An event is given when its last byte is there; how the
network cut the bytes makes no difference.

The peer is held to what was negotiated: frames of at most ``frame_max`` bytes, channels up to ``channel_max``, messages
of at most ``message_bytes_max``, and at most ``content_bytes_max`` of messages that have begun and not ended. Before
``connection.open`` it may send no message at all. Anything else gives ``PeerErred``, after which nothing more is read.

After ``close_channel`` the peer may still have sent much on that channel. It is dropped until the peer has seen it.
After ``close`` everything is dropped but the methods of the connection.

**Speed.** A client that publishes sends nearly the same bytes again and again: the same method, the same properties,
often the same size. So the bytes in front of the last whole message's body are kept (``_Alike``), and as long as the
next message begins with exactly these, its body is all that is read. Messages that are alike and come together are one
event, and so are acknowledgements. Everything else, and everything unusual, goes frame by frame.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
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
_DELIVER: Final = _ID.pack(*IDS["basic.deliver"])
_ACK_PAYLOAD_BYTES: Final = 13
_ACK_FRAME = struct.Struct(">7s4sQH")
_ACK_END: Final = FRAME_END
"""The last two octets of the frame of an acknowledgement of one message: no bit is set, and the frame ends."""
_CHANNEL_CLOSE_OK: Final = _ID.pack(*IDS["channel.close-ok"])
_CHANNEL_CLOSES: Final = frozenset({_ID.pack(*IDS["channel.close"]), _CHANNEL_CLOSE_OK})
_HEARTBEAT_FRAME: Final = _HEAD.pack(HEARTBEAT, 0, 0) + FRAME_END_BYTE


class Event:
    """Something the peer has done."""

    __slots__ = ()


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


@dataclass(slots=True)
class PublishReceived(Event):
    """Whole messages, one after the other, which differ in their bodies alone. ``properties`` are the bytes that they
    came as; exchange and routing key are UTF-8."""

    channel: int
    exchange: bytes
    routing_key: bytes
    is_mandatory: bool
    is_immediate: bool
    properties: bytes
    bodies: list[bytes]


@dataclass(slots=True)
class AckReceived(Event):
    """A consumer is done with these messages, or with all up to the one that is named."""

    channel: int
    delivery_tags: list[int]
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
    held_bytes: int = 0


@dataclass(slots=True)
class _Alike:
    """The last whole message: everything in front of its body, and the event that it is in."""

    head: bytes
    size: int
    method_frame: bytes
    event: PublishReceived


class AmqpConnection:
    """The server's side of one connection; see the module."""

    def __init__(
        self,
        *,
        frame_max: int = 131_072,
        channel_max: int = 2047,
        message_bytes_max: int = 128 << 20,
        content_bytes_max: int = 256 << 20,
        accepts_messages: bool = True,
    ) -> None:
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.message_bytes_max = message_bytes_max
        self.content_bytes_max = content_bytes_max
        self._rest: list[bytes] = []
        """The beginning of a frame, in pieces."""
        self._rest_bytes = 0
        self._needed_bytes = 0
        """How much of it must be there before it is looked at again."""
        self._has_header = False
        self._alike: _Alike | None = None
        self._failed = False
        self._contents: dict[int, _Content] = {}
        self._content_bytes = 0
        self.unfinished_bytes = 0
        """Received of messages that have begun and not ended, their methods and headers included."""
        self._accepts_messages = accepts_messages
        self._is_closed = False
        self._closing: set[int] = set()
        self._out: list[bytes] = []
        self.bytes_to_send = 0
        """About what ``data_to_send`` would give now; methods alone are not counted."""

    # ---- receiving --------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Event]:
        """What the bytes complete, in order."""
        events: list[Event] = []
        if self._failed:
            return events
        if self._rest:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes < self._needed_bytes:
                return events
            data = b"".join(self._rest)
            self._rest.clear()
        try:
            position = self._receive(data, events)
        except AmqpError as error:
            self._failed = True
            events.append(PeerErred(channel=0, error=error))
            return events
        if position < len(data):
            self._rest.append(data[position:])
            self._rest_bytes = len(data) - position
        return events

    def _receive(self, data: bytes, events: list[Event]) -> int:
        """Read every frame that is whole; where the first that is not begins."""
        position = 0
        if not self._has_header:
            if len(data) < len(PROTOCOL_HEADER):
                if not PROTOCOL_HEADER.startswith(data):
                    raise AmqpError(ReplyCode.FRAME_ERROR, "the peer does not speak AMQP 0-9-1")
                self._needed_bytes = len(PROTOCOL_HEADER)
                return 0
            if not data.startswith(PROTOCOL_HEADER):
                raise AmqpError(ReplyCode.FRAME_ERROR, "the peer does not speak AMQP 0-9-1")
            self._has_header = True
            position = len(PROTOCOL_HEADER)
            events.append(ProtocolHeaderReceived())
        available = len(data)
        while available - position >= FRAME_OVERHEAD:
            after = self._receive_alike(data, position, events)
            if after > position:
                position = after
                continue
            kind, channel, size = _HEAD.unpack_from(data, position)
            if size > self.frame_max - FRAME_OVERHEAD:
                raise AmqpError(
                    ReplyCode.FRAME_ERROR, f"a frame of {size} bytes is larger than the negotiated {self.frame_max}"
                )
            end = position + FRAME_OVERHEAD - 1 + size
            if end >= available:
                self._needed_bytes = end + 1 - position
                return position
            if data[end] != FRAME_END:
                raise AmqpError(ReplyCode.FRAME_ERROR, "a frame does not end where it should")
            if (
                kind == METHOD
                and channel not in self._contents
                and channel not in self._closing
                and not self._is_closed
            ):
                after = self._receive_together(data, position, end + 1, channel, events)
                if after > position:
                    position = after
                    continue
            event = self._frame(kind, channel, data[position + FRAME_OVERHEAD - 1 : end])
            position = end + 1
            if event is not None:
                events.append(event)
        self._needed_bytes = FRAME_OVERHEAD
        return position

    # ---- what comes with every message ------------------------------------------------------------------------------

    def _receive_alike(self, data: bytes, position: int, events: list[Event]) -> int:
        """Messages that begin as the last one did; the position after them."""
        alike = self._alike
        if alike is None or not data.startswith(alike.head, position) or alike.event.channel in self._contents:
            return position
        head, size = alike.head, alike.size
        to_end = len(head) + size
        bodies = []
        available = len(data)
        while data.startswith(head, position):
            end = position + to_end
            if end >= available or data[end] != FRAME_END:
                break
            bodies.append(data[end - size : end])
            position = end + 1
        if bodies:
            self._add_alike(alike, bodies, events)
        return position

    def _add_alike(self, alike: _Alike, bodies: list[bytes], events: list[Event]) -> None:
        event = alike.event
        if events and events[-1] is event:
            event.bodies += bodies
        else:
            alike.event = PublishReceived(
                event.channel,
                event.exchange,
                event.routing_key,
                event.is_mandatory,
                event.is_immediate,
                event.properties,
                bodies,
            )
            events.append(alike.event)

    def _receive_together(self, data: bytes, position: int, end: int, channel: int, events: list[Event]) -> int:
        """A method frame begins here. If it is a message that is here as a whole, or acknowledgements, take them; the
        position after them, the same if there is anything else to it."""
        number = data[position + 7 : position + 11]
        if channel > self.channel_max:
            return position
        if number == _PUBLISH and self._accepts_messages:
            return self._receive_message(data, position, end, channel, events)
        if number == _ACK and end - position == _ACK_FRAME.size:
            return self._receive_acks(data, position, channel, events)
        return position

    def _receive_message(self, data: bytes, position: int, header: int, channel: int, events: list[Event]) -> int:
        """The method frame ends where the frame of the ``header`` begins. One frame must have all of the body."""
        available = len(data)
        if available - header < FRAME_OVERHEAD + 14:
            return position
        kind, of_channel, header_size = _HEAD.unpack_from(data, header)
        body = header + FRAME_OVERHEAD + header_size
        if kind != HEADER or of_channel != channel or header_size < 14 or available - body < FRAME_OVERHEAD:
            return position
        class_id, weight, size = _CONTENT.unpack_from(data, header + 7)
        kind, of_channel, body_size = _HEAD.unpack_from(data, body)
        end: int = body + FRAME_OVERHEAD - 1 + size
        if kind != BODY or of_channel != channel or body_size != size or class_id != _BASIC or weight:
            return position
        if not size or size > min(self.message_bytes_max, self.frame_max - FRAME_OVERHEAD) or end >= available:
            return position
        if data[body - 1] != FRAME_END or data[end] != FRAME_END or header_size > self.frame_max - FRAME_OVERHEAD:
            return position
        method_frame, properties = data[position:header], data[header + 19 : body - 1]
        content = data[end - size : end]
        alike = self._alike
        if alike is None or alike.method_frame != method_frame or alike.event.properties != properties:
            event = _publish(channel, method_frame[7:-1], properties, [content])
            self._alike = _Alike(data[position : end - size], size, method_frame, event)
            events.append(event)
        else:
            alike.head, alike.size = data[position : end - size], size
            self._add_alike(alike, [content], events)
        return end + 1

    def _receive_acks(self, data: bytes, position: int, channel: int, events: list[Event]) -> int:
        count = (len(data) - position) // _ACK_FRAME.size
        frames = memoryview(data)[position : position + count * _ACK_FRAME.size]
        tags = []
        head = data[position : position + 7]
        for each, number, tag, rest in _ACK_FRAME.iter_unpack(frames):
            if each != head or number != _ACK or rest != _ACK_END:
                break
            tags.append(tag)
        if tags:
            events.append(AckReceived(channel, tags, False))
        return position + len(tags) * _ACK_FRAME.size

    # ---- frame by frame ---------------------------------------------------------------------------------------------

    def _frame(self, kind: int, channel: int, payload: bytes) -> Event | None:
        if channel > self.channel_max:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, f"channel {channel} is above the negotiated {self.channel_max}")
        if self._is_closed and (kind != METHOD or channel):
            return None
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
            if not self._accepts_messages:
                raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'", IDS["basic.publish"])
            content = self._contents[channel] = _Content(payload)
            self._hold(content, payload)
            return None
        if number == _ACK and len(payload) == _ACK_PAYLOAD_BYTES:
            tag, bits = _TAG.unpack_from(payload, 4)
            return AckReceived(channel, [tag], bool(bits & 1))
        name, arguments = decode_method(payload)
        if name == "connection.open":  # whether it may come now, who handles it says, and closes
            self._accepts_messages = True
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
        self._hold(content, content.properties)
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
        self._hold(content, payload)
        return self._complete(channel, content) if content.missing == 0 else None

    def _complete(self, channel: int, content: _Content) -> Event:
        self._drop_content(channel)
        parts = content.parts
        body = b"" if not parts else parts[0] if len(parts) == 1 else b"".join(parts)
        assert content.properties is not None
        return _publish(channel, content.method, content.properties, [body])

    def _hold(self, content: _Content, part: bytes) -> None:
        content.held_bytes += len(part)
        self.unfinished_bytes += len(part)

    def _drop_content(self, channel: int) -> None:
        content = self._contents.pop(channel)
        self.unfinished_bytes -= content.held_bytes
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

    def send_deliveries(
        self,
        channel: int,
        consumer: bytes,
        first_tag: int,
        messages: Sequence[tuple[bytes, bytes, bytes, bytes, int]],
        *,
        is_redelivered: bool,
    ) -> None:
        """``basic.deliver`` for messages (exchange, routing key, properties, body, anything), with tags that count up.
        ``consumer`` is the consumer tag, as a short string."""
        out = self._out
        last: tuple[bytes, bytes, bytes] | None = None
        last_size = sent_bytes = 0
        before = after = b""
        for tag, (exchange, routing_key, properties, body, _) in enumerate(messages, first_tag):
            size = len(body)
            if (
                last is None
                or size != last_size
                or properties is not last[2]
                or routing_key is not last[1]
                or exchange is not last[0]
            ):
                names = b"%c%c%b%c%b" % (is_redelivered, len(exchange), exchange, len(routing_key), routing_key)
                if not 0 < size <= self.frame_max - FRAME_OVERHEAD:
                    last = None
                    method = b"".join((_DELIVER, consumer, tag.to_bytes(8, "big"), names))
                    self.send_content(channel, method, properties, body)
                    continue
                last, last_size = (exchange, routing_key, properties), size
                before, after = _around_tag(channel, consumer, names, properties, size)
            out += (before, tag.to_bytes(8, "big"), after, body, FRAME_END_BYTE)
            sent_bytes += size + len(after)
        self.bytes_to_send += sent_bytes

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
        self._alike = None
        self.send(channel, "channel.close", _close_arguments(error))

    def close(self, error: AmqpError) -> None:
        """Send ``connection.close``, and let go of what the peer has begun to send."""
        self._is_closed = True
        self._alike = None
        for channel in list(self._contents):
            self._drop_content(channel)
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


def _around_tag(channel: int, consumer: bytes, names: bytes, properties: bytes, size: int) -> tuple[bytes, bytes]:
    """The three frames of a delivery without what differs from message to message: what comes before the delivery tag,
    and what comes between it and the body."""
    before = _HEAD.pack(METHOD, channel, 12 + len(consumer) + len(names)) + _DELIVER + consumer
    header = _HEAD.pack(HEADER, channel, 12 + len(properties)) + _CONTENT.pack(_BASIC, 0, size) + properties
    return before, names + FRAME_END_BYTE + header + FRAME_END_BYTE + _HEAD.pack(BODY, channel, size)


def _publish(channel: int, method: bytes, properties: bytes, bodies: list[bytes]) -> PublishReceived:
    """The event for the payload of a ``basic.publish``. Raises AmqpError."""
    try:
        key_at = 7 + method[6]
        bits_at = key_at + 1 + method[key_at]
        exchange, routing_key, bits = method[7:key_at], method[key_at + 1 : bits_at], method[bits_at]
    except IndexError as error:
        raise AmqpError(ReplyCode.SYNTAX_ERROR, "basic.publish cannot be read", IDS["basic.publish"]) from error
    return PublishReceived(channel, exchange, routing_key, bool(bits & 1), bool(bits & 2), properties, bodies)


def _close_arguments(error: AmqpError) -> dict[str, Any]:
    class_id, method_id = error.method
    text = error.text.encode("utf-8", "surrogateescape")[:255].decode("utf-8", "ignore")
    return {"reply_code": int(error.code), "reply_text": text, "class_id": class_id, "method_id": method_id}
