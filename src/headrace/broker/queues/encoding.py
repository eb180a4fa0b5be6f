"""Messages as the records of a batch, and back.

The records are those that ``headrace.record`` writes and reads, and a test compares both. What makes this way faster:
the headers of a record (exchange, routing key and properties) are the same for nearly all messages of a publisher.
Their bytes are kept as they were encoded, and the values as they were decoded, so a message costs little more than its
body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Final

from headrace.batch import NO_PRODUCER_ID, Batch, batch_without_records, reseal
from headrace.broker.queues.message import Message
from headrace.record import CorruptRecords, decode_headers, encode_headers, records_of, varint, varint_at

__all__ = ["batch_of", "messages_of"]

DECODED_BYTES_MAX: Final = 512 << 20
KNOWN_MAX: Final = 2_000
KNOWN_BYTES_MAX: Final = 1_024
"""Headers longer than this are rarely the same twice."""

Names = tuple[bytes, bytes, bytes]
"""Exchange, routing key and properties."""

_NO_KEY: Final = b"\x01"
_encoded: dict[Names, bytes] = {}
_decoded: dict[bytes, Names] = {}


class _Latest:
    """What was encoded last. A message that goes to fifty queues is encoded once: the same messages follow each other
    in all of them."""

    messages: Sequence[Message] = ()
    batch: Batch


def batch_of(messages: Sequence[Message]) -> Batch:
    """A batch of these messages, which the caller may give its offset: another queue that gets them has a copy."""
    latest = _Latest.messages
    if len(messages) == len(latest) and messages[0] is latest[0] and messages == latest:
        return copy(_Latest.batch)
    _Latest.messages, _Latest.batch = messages, _batch_of(messages)
    return _Latest.batch


def _batch_of(messages: Sequence[Message]) -> Batch:
    base_ms = messages[0].enqueued_ms
    max_ms = base_ms
    out: list[bytes] = []
    last: Names = (b"", b"", b"")
    headers = b""
    for delta, (exchange, routing_key, properties, body, enqueued_ms) in enumerate(messages):
        if not headers or properties is not last[2] or routing_key is not last[1] or exchange is not last[0]:
            last = (exchange, routing_key, properties)
            headers = _headers_of(last)
        max_ms = max(max_ms, enqueued_ms)
        size = len(body)
        head = b"\x00%b%b\x01%b" % (varint(enqueued_ms - base_ms), varint(delta), varint(size))
        out += (varint(len(head) + size + len(headers)), head, body, headers)
    batch = batch_without_records(
        attributes=0,
        record_count=len(messages),
        base_timestamp=base_ms,
        max_timestamp=max_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
    )
    reseal(batch, b"".join(out))
    return batch


def _headers_of(names: Names) -> bytes:
    known = _encoded.get(names)
    if known is None:
        exchange, routing_key, properties = names
        known = encode_headers((("exchange", exchange), ("routing-key", routing_key), ("properties", properties)))
        if len(known) <= KNOWN_BYTES_MAX:
            if len(_encoded) >= KNOWN_MAX:
                _encoded.clear()
            _encoded[names] = known
    return known


def messages_of(batch: Batch) -> Iterator[tuple[int, Message]]:
    """The messages of a batch whose checksum holds, with their offsets. Raises CorruptRecords."""
    data = bytes(records_of(batch, DECODED_BYTES_MAX))
    base_offset, base_ms = batch.base_offset, batch.base_timestamp
    position, last = 0, len(data)
    try:
        for _ in range(batch.record_count):
            size, position = varint_at(data, position)
            end = position + (size >> 1)
            delta_ms, position = varint_at(data, position + 1)
            delta, position = varint_at(data, position)
            if end > last or data[position] != _NO_KEY[0]:
                raise CorruptRecords(f"a record at byte {position} of a queue's batch is not a message")
            size, position = varint_at(data, position + 1)
            after = position + (size >> 1)
            headers = data[after:end]
            exchange, routing_key, properties = _decoded.get(headers) or _names_of(headers)
            enqueued_ms = base_ms + ((delta_ms >> 1) ^ -(delta_ms & 1))
            message = Message(exchange, routing_key, properties, data[position:after], enqueued_ms)
            yield base_offset + (delta >> 1), message
            position = end
    except IndexError:
        raise CorruptRecords(f"the records of a queue's batch end inside byte {position}") from None


def _names_of(headers: bytes) -> Names:
    exchange, routing_key, properties = (value or b"" for _, value in decode_headers(headers))
    names = (exchange, routing_key, properties)
    if len(headers) <= KNOWN_BYTES_MAX:
        if len(_decoded) >= KNOWN_MAX:
            _decoded.clear()
        _decoded[headers] = names
    return names
