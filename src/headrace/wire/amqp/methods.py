"""Every method of AMQP 0-9-1 with RabbitMQ's extensions: declared in one table, encoded and decoded by it.

A method is (class, method) on the wire, and here a name such as ``queue.declare``. Its arguments are a dict, whose
names are those of the specification. Neighbouring bits share an octet.

The three methods that every message needs (publish, deliver, ack) have faster ways in ``connection.py``; tests compare
both, and compare this table with another implementation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import BadTable, decode_table, encode_table

__all__ = ["IDS", "NAMES", "SHORT_STRING_BYTES_MAX", "decode_method", "encode_method", "is_short", "short_string"]

SHORT_STRING_BYTES_MAX: Final = 255
"""Of names and routing keys: their length is one byte."""

_DECLARED: Final = """
10.10 connection.start version_major/o version_minor/o server_properties/t mechanisms/S locales/S
10.11 connection.start-ok client_properties/t mechanism/s response/S locale/s
10.20 connection.secure challenge/S
10.21 connection.secure-ok response/S
10.30 connection.tune channel_max/h frame_max/l heartbeat/h
10.31 connection.tune-ok channel_max/h frame_max/l heartbeat/h
10.40 connection.open virtual_host/s _1/s _2/?
10.41 connection.open-ok _1/s
10.50 connection.close reply_code/h reply_text/s class_id/h method_id/h
10.51 connection.close-ok
10.60 connection.blocked reason/s
10.61 connection.unblocked
10.70 connection.update-secret new_secret/S reason/s
10.71 connection.update-secret-ok
20.10 channel.open _1/s
20.11 channel.open-ok _1/S
20.20 channel.flow active/?
20.21 channel.flow-ok active/?
20.40 channel.close reply_code/h reply_text/s class_id/h method_id/h
20.41 channel.close-ok
40.10 exchange.declare _1/h exchange/s type/s passive/? durable/? auto_delete/? internal/? no_wait/? arguments/t
40.11 exchange.declare-ok
40.20 exchange.delete _1/h exchange/s if_unused/? no_wait/?
40.21 exchange.delete-ok
40.30 exchange.bind _1/h destination/s source/s routing_key/s no_wait/? arguments/t
40.31 exchange.bind-ok
40.40 exchange.unbind _1/h destination/s source/s routing_key/s no_wait/? arguments/t
40.51 exchange.unbind-ok
50.10 queue.declare _1/h queue/s passive/? durable/? exclusive/? auto_delete/? no_wait/? arguments/t
50.11 queue.declare-ok queue/s message_count/l consumer_count/l
50.20 queue.bind _1/h queue/s exchange/s routing_key/s no_wait/? arguments/t
50.21 queue.bind-ok
50.30 queue.purge _1/h queue/s no_wait/?
50.31 queue.purge-ok message_count/l
50.40 queue.delete _1/h queue/s if_unused/? if_empty/? no_wait/?
50.41 queue.delete-ok message_count/l
50.50 queue.unbind _1/h queue/s exchange/s routing_key/s arguments/t
50.51 queue.unbind-ok
60.10 basic.qos prefetch_size/l prefetch_count/h global/?
60.11 basic.qos-ok
60.20 basic.consume _1/h queue/s consumer_tag/s no_local/? no_ack/? exclusive/? no_wait/? arguments/t
60.21 basic.consume-ok consumer_tag/s
60.30 basic.cancel consumer_tag/s no_wait/?
60.31 basic.cancel-ok consumer_tag/s
60.40 basic.publish _1/h exchange/s routing_key/s mandatory/? immediate/?
60.50 basic.return reply_code/h reply_text/s exchange/s routing_key/s
60.60 basic.deliver consumer_tag/s delivery_tag/q redelivered/? exchange/s routing_key/s
60.70 basic.get _1/h queue/s no_ack/?
60.71 basic.get-ok delivery_tag/q redelivered/? exchange/s routing_key/s message_count/l
60.72 basic.get-empty _1/s
60.80 basic.ack delivery_tag/q multiple/?
60.90 basic.reject delivery_tag/q requeue/?
60.100 basic.recover-async requeue/?
60.110 basic.recover requeue/?
60.111 basic.recover-ok
60.120 basic.nack delivery_tag/q multiple/? requeue/?
85.10 confirm.select no_wait/?
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""
"""Numbers, name, and arguments as NAME/TYPE; ``_TYPES`` has the types."""

_TYPES: Final = {
    "o": "octet",
    "h": "short",
    "l": "long",
    "q": "longlong",
    "s": "shortstr",
    "S": "longstr",
    "?": "bit",
    "t": "table",
}

_INTEGERS: Final = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
_UINT32 = struct.Struct(">I")
_ID = struct.Struct(">HH")

Arguments = tuple[tuple[str, str], ...]
"""(type, name) of each."""


def _declared() -> dict[str, tuple[tuple[int, int], Arguments]]:
    methods = {}
    for line in _DECLARED.strip().splitlines():
        number, name, *rest = line.split(maxsplit=2)
        class_id, method_id = map(int, number.split("."))
        arguments = [each.split("/") for each in rest[0].split()] if rest else []
        methods[name] = ((class_id, method_id), tuple((_TYPES[kind], named) for named, kind in arguments))
    return methods


_METHODS: Final = _declared()
IDS: Final = {name: number for name, (number, _) in _METHODS.items()}
NAMES: Final = {number: name for name, number in IDS.items()}


def is_short(value: str) -> bool:
    """Whether it may be a name or a routing key."""
    return len(value.encode("utf-8", "surrogateescape")) <= SHORT_STRING_BYTES_MAX


def short_string(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")
    if len(raw) > SHORT_STRING_BYTES_MAX:
        raise ValueError(f"{value[:40]!r}… is longer than {SHORT_STRING_BYTES_MAX} bytes")
    return bytes((len(raw),)) + raw


def encode_method(name: str, arguments: Mapping[str, Any]) -> bytes:
    """The payload of a method frame. Arguments that are not given are empty, zero or false."""
    number, declared = _METHODS[name]
    parts = [_ID.pack(*number)]
    bits = 0
    bit_count = 0
    for kind, argument in declared:
        if kind == "bit":
            bits |= bool(arguments.get(argument, False)) << bit_count
            bit_count += 1
            continue
        if bit_count:
            parts.append(bytes((bits,)))
            bits = bit_count = 0
        parts.append(_ENCODERS[kind](arguments.get(argument)))
    if bit_count:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def _encode_long_string(value: str | bytes | None) -> bytes:
    raw = value if isinstance(value, bytes) else (value or "").encode("utf-8", "surrogateescape")
    return _UINT32.pack(len(raw)) + raw


def _encoder_of(integer: struct.Struct) -> Callable[[Any], bytes]:
    return lambda value: integer.pack(value or 0)


_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    **{kind: _encoder_of(integer) for kind, integer in _INTEGERS.items()},
    "shortstr": lambda value: short_string(value or ""),
    "longstr": _encode_long_string,
    "table": lambda value: encode_table(value or {}),
}


def decode_method(payload: bytes) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a method frame. Raises AmqpError."""
    if len(payload) < 4:
        raise AmqpError(ReplyCode.FRAME_ERROR, "a method frame is too short for a method")
    number = _ID.unpack_from(payload)
    name = NAMES.get(number)
    if name is None:
        raise AmqpError(ReplyCode.COMMAND_INVALID, f"no method {number[0]}.{number[1]} exists", number)
    try:
        return name, _decode_arguments(_METHODS[name][1], payload)
    except (BadTable, struct.error, IndexError) as error:
        raise AmqpError(ReplyCode.FRAME_ERROR, f"cannot decode {name}: {error}", number) from error
    except UnicodeDecodeError as error:  # a name that is no text could be listed nowhere
        raise AmqpError(ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr", number) from error


def _decode_arguments(declared: Arguments, payload: bytes) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    position = 4
    end = len(payload)
    bit = 0
    for kind, name in declared:
        if kind == "bit":
            arguments[name] = bool(payload[position] >> bit & 1)
            bit += 1
            continue
        if bit:
            position += 1
            bit = 0
        integer = _INTEGERS.get(kind)
        if integer is not None:
            arguments[name] = integer.unpack_from(payload, position)[0]
            position += integer.size
        elif kind == "table":
            arguments[name], position = decode_table(payload, position, end)
        else:
            arguments[name], position = _decode_string(payload, position, end, kind)
    return arguments


def _decode_string(payload: bytes, position: int, end: int, kind: str) -> tuple[str | bytes, int]:
    if kind == "shortstr":
        first = position + 1
        last = first + payload[position]
    else:
        first = position + 4
        last = first + int(_UINT32.unpack_from(payload, position)[0])
    if last > end:
        raise BadTable("a string reaches beyond its frame")
    raw = payload[first:last]
    return (raw.decode() if kind == "shortstr" else raw), last
