"""What capture makes of the binlog's bytes, without a server."""

from __future__ import annotations

import queue
import struct
import zlib
from base64 import b64decode
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.mariadb.binlog import EVENT_BYTES, ByteQueue, Item
from headrace.capture.mariadb.charsets import Charsets
from headrace.capture.mariadb.events import (
    FORMAT_DESCRIPTION,
    IGNORABLE,
    BinlogParser,
    Gtid,
    Header,
    IgnoredEvent,
    MalformedBinlog,
    Query,
    Rows,
)
from headrace.capture.mariadb.rows import BinlogColumn, FieldType, RowDecoder, columns_of
from headrace.capture.mariadb.values import Kind, renderer
from headrace.capture.options import CaptureOptions


def packet(kind: int, body: bytes, *, flags: int = 0, checksum: bool = True) -> bytes:
    size = 19 + len(body) + 4 * checksum
    content = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size, 1000 + size, flags) + body
    return content + (zlib.crc32(content).to_bytes(4, "little") if checksum else b"")


def rows(data: bytes, count: int = 1) -> Rows:
    header = Header(0, 23, 1, 0, 0, 0)
    present = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
    return Rows(header, 0, operation="insert", table_id=1, column_count=count, present=(present,), data=data)


def no_server(*asked: object) -> list[tuple[object, ...]]:
    raise AssertionError("no server is asked")


def test_a_gtid_is_read() -> None:
    event = BinlogParser(has_checksums=True).parse(packet(162, struct.pack("<QIB", 77, 5, 1)))
    assert isinstance(event, Gtid)
    assert (event.text, event.flags) == ("5-1-77", 1)


def test_an_event_with_a_changed_byte_is_refused() -> None:
    whole = packet(162, struct.pack("<QIB", 77, 5, 1))
    parser = BinlogParser(has_checksums=True)
    for place in range(19, len(whole)):
        damaged = whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :]
        with pytest.raises(MalformedBinlog, match="checksum"):
            parser.parse(damaged)


def test_a_format_description_says_whether_checksums_follow() -> None:
    parser = BinlogParser(has_checksums=False)
    parser.parse(packet(FORMAT_DESCRIPTION, b"\x04\x00" + bytes(80) + b"\x01"))
    with pytest.raises(MalformedBinlog, match="checksum"):
        parser.parse(packet(162, bytes(13), checksum=False) + b"abcd")
    parser.parse(packet(FORMAT_DESCRIPTION, b"\x04\x00" + bytes(80) + b"\x00"))
    parser.parse(packet(162, bytes(13), checksum=False))


def test_an_unknown_event_is_refused_unless_it_says_that_it_may_be_skipped() -> None:
    parser = BinlogParser(has_checksums=True)
    with pytest.raises(MalformedBinlog, match="type 190"):
        parser.parse(packet(190, b""))
    assert isinstance(parser.parse(packet(190, b"", flags=IGNORABLE)), IgnoredEvent)
    assert isinstance(parser.parse(packet(9, b"")), IgnoredEvent)


def test_compressed_events_are_read() -> None:
    def compressed(plain: bytes) -> bytes:
        return bytes((0x82,)) + len(plain).to_bytes(2, "big") + zlib.compress(plain)

    parser = BinlogParser(has_checksums=True)
    head = struct.pack("<IIBHH", 1, 0, 4, 0, 0)
    query = parser.parse(packet(165, head + b"shop\0" + compressed(b"truncate t")))
    assert isinstance(query, Query)
    assert (query.schema, query.text) == ("shop", b"truncate t")
    inserted = parser.parse(packet(166, bytes((7, 0, 0, 0, 0, 0, 1, 0, 1, 1)) + compressed(b"\0abcd")))
    assert isinstance(inserted, Rows)
    assert (inserted.table_id, inserted.data) == (7, b"\0abcd")


@given(st.binary(max_size=200), st.sampled_from([2, 4, 15, 16, 18, 19, 23, 24, 30, 162, 165, 166, 171]))
def test_whatever_bytes_come_an_event_or_an_error_comes_of_them(body: bytes, kind: int) -> None:
    try:
        BinlogParser(has_checksums=True).parse(packet(kind, body))
    except MalformedBinlog:
        pass


@given(st.binary(max_size=200))
def test_whatever_bytes_describe_a_table_columns_or_an_error_come_of_them(details: bytes) -> None:
    try:
        columns_of(details)
    except Exception as error:
        assert type(error).__name__ in ("MalformedBinlog", "UsageError")  # noqa: PT017 no other class is allowed


def test_a_decimal_of_65_digits_is_read_to_its_last_digit() -> None:
    column = BinlogColumn("d", FieldType.NEWDECIMAL, 65 << 8 | 30)
    parts = [(12_345_678, 4), *[(123_456_789, 4)] * 6, (123, 2)]
    packed = bytearray(b"".join(number.to_bytes(size, "big") for number, size in parts))
    packed[0] |= 0x80
    [[value]] = RowDecoder([column], Charsets(no_server)).rows(rows(b"\x00" + bytes(packed)))
    digits = "".join(str(number) for number, _ in parts)
    assert str(value) == f"{digits[:-30]}.{digits[-30:]}"


def test_a_decimal_of_65_digits_is_written_to_its_last_digit() -> None:
    value = Decimal(f"-{'9' * 35}.{'9' * 29}7")
    precise = renderer(Kind("decimal", 30), CaptureOptions(name="c", url="mysql://u@h/d", decimals="precise"))(value)
    assert int.from_bytes(b64decode(precise[1:-1]), "big", signed=True) == -int("9" * 64 + "7")
    text = renderer(Kind("decimal", 30), CaptureOptions(name="c", url="mysql://u@h/d", decimals="string"))
    assert text(value) == f'"-{"9" * 35}.{"9" * 29}7"'.encode()
    assert text(Decimal("1E-10")) == b'"0.0000000001"'


def test_the_queue_of_events_is_full_by_their_bytes() -> None:
    def item(size: int) -> Item:
        event = IgnoredEvent(Header(0, 3, 1, size, 0, 0), 0)
        return Item(event, event, "binlog.000001")

    events = ByteQueue(3 * EVENT_BYTES)
    large = item(100 * EVENT_BYTES)
    events.put_nowait(large)
    with pytest.raises(queue.Full):
        events.put_nowait(item(1))
    assert events.get_nowait() is large
    small = [item(1) for _ in range(3)]
    for each in small:
        events.put_nowait(each)
    with pytest.raises(queue.Full):
        events.put_nowait(item(1))
    assert [events.get_nowait() for _ in small] == small
    with pytest.raises(queue.Empty):
        events.get_nowait()
