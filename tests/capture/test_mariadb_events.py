"""What capture makes of the binlog's bytes and numbers, without a server."""

from __future__ import annotations

import queue
from base64 import b64decode
from decimal import Decimal
from types import SimpleNamespace

import pytest
from pymysqlreplication.constants import FIELD_TYPE

from headrace.capture.mariadb_binlog import EVENT_BYTES, IGNORABLE, ByteQueue, refuse_unknown
from headrace.capture.mariadb_rows import MalformedBinlog, RowDecoder
from headrace.capture.mariadb_values import Kind, renderer
from headrace.capture.options import CaptureOptions
from headrace.errors import UsageError


@pytest.mark.parametrize("kind", range(165, 172))
def test_a_compressed_event_is_refused_and_the_setting_named(kind: int) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_unknown(kind, 0)
    assert "SET GLOBAL log_bin_compress = 'OFF'" in (refused.value.hint or "")


def test_an_unknown_event_is_refused_unless_it_says_that_it_may_be_left_out() -> None:
    with pytest.raises(MalformedBinlog, match="type 172"):
        refuse_unknown(172, 0)
    refuse_unknown(172, IGNORABLE)
    refuse_unknown(9, 0)


def test_a_decimal_of_65_digits_is_read_to_its_last_digit() -> None:
    column = SimpleNamespace(name="d", type=FIELD_TYPE.NEWDECIMAL, precision=65, decimals=30)
    parts = [(12_345_678, 4), *[(123_456_789, 4)] * 6, (123, 2)]
    packed = bytearray(b"".join(number.to_bytes(size, "big") for number, size in parts))
    packed[0] |= 0x80
    [[value]] = RowDecoder([column]).rows(b"\x00" + bytes(packed))
    digits = "".join(str(number) for number, _ in parts)
    assert str(value) == f"{digits[:-30]}.{digits[-30:]}"


def test_a_decimal_of_65_digits_is_written_to_its_last_digit() -> None:
    value = Decimal(f"-{'9' * 35}.{'9' * 29}7")
    precise = renderer(Kind("decimal", 30), CaptureOptions(name="c", url="mysql://u@h/d"))(value)
    assert int.from_bytes(b64decode(precise[1:-1]), "big", signed=True) == -int("9" * 64 + "7")
    text = renderer(Kind("decimal", 30), CaptureOptions(name="c", url="mysql://u@h/d", decimals="string"))
    assert text(value) == f'"-{"9" * 35}.{"9" * 29}7"'.encode()
    assert text(Decimal("1E-10")) == b'"0.0000000001"'


def test_the_queue_of_events_is_full_by_their_bytes() -> None:
    def event(size: int) -> tuple[SimpleNamespace, str, int]:
        return SimpleNamespace(packet=SimpleNamespace(event_size=size)), "binlog.000001", 4

    events = ByteQueue(3 * EVENT_BYTES)
    large = event(100 * EVENT_BYTES)
    events.put_nowait(large)
    with pytest.raises(queue.Full):
        events.put_nowait(event(1))
    assert events.get_nowait() is large
    small = [event(1) for _ in range(3)]
    for each in small:
        events.put_nowait(each)
    with pytest.raises(queue.Full):
        events.put_nowait(event(1))
    assert [events.get_nowait() for _ in small] == small
    with pytest.raises(queue.Empty):
        events.get_nowait()
