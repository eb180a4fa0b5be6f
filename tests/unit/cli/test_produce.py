"""Pipes: however the bytes arrive, the same records come out."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.produce import LineShape, _header, _split
from headrace.cli.record_text import Draft
from headrace.errors import UsageError
from tests.waiting import PATIENCE_S


def records_of(chunks: list[bytes], delimiter: bytes = b"\n", record_bytes_max: int = 1 << 20) -> list[bytes]:
    reading, writing = os.pipe()

    def feed() -> None:
        for chunk in chunks:
            os.write(writing, chunk)
        os.close(writing)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        return list(_split(reading, delimiter, record_bytes_max, lambda: None))
    finally:
        feeder.join()
        os.close(reading)


@given(st.lists(st.binary(max_size=30), max_size=8), st.sampled_from([b"\n", b"\x00", b"<>", b"\r\n"]))
def test_however_a_pipe_cuts_its_bytes_the_records_are_the_same(chunks: list[bytes], delimiter: bytes) -> None:
    whole = b"".join(chunks)
    expected = whole.split(delimiter)
    if not expected[-1]:
        expected.pop()
    assert records_of(chunks, delimiter) == expected


def test_a_pipe_that_runs_dry_flushes_what_was_read() -> None:
    reading, writing = os.pipe()
    idle = threading.Event()
    found = []

    def read() -> None:
        found.extend(_split(reading, b"\n", 1 << 20, idle.set))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        os.write(writing, b"one\n")
        assert idle.wait(PATIENCE_S), "the pipe is open and silent, and what came through it is let go"
        assert reader.is_alive()
        os.write(writing, b"two")
    finally:
        os.close(writing)
        reader.join(PATIENCE_S)
        os.close(reading)
    assert found == [b"one", b"two"]


def test_a_record_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(UsageError, match="longer than 10 bytes"):
        records_of([b"x" * 50], record_bytes_max=10)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"k:v", Draft(key=b"k", value=b"v")),
        (b"k:v:w", Draft(key=b"k", value=b"v:w")),
        (b"k:", Draft(key=b"k", value=b"")),
        (b":v", Draft(key=b"", value=b"v")),
        (b"plain", Draft(key=None, value=b"plain")),
        (b"", None),
    ],
)
def test_a_line_is_divided_at_the_first_delimiter(line: bytes, expected: Draft | None) -> None:
    assert LineShape(key_delimiter=b":").read(line, 1) == expected


def test_an_empty_value_becomes_null_only_when_asked() -> None:
    assert LineShape(key_delimiter=b":", null=True).read(b"k:", 1) == Draft(key=b"k", value=None)
    assert LineShape(null=True).read(b"", 1) == Draft(value=None)
    assert LineShape().read(b"", 1) is None
    assert LineShape(as_json=True, null=True).read(b'{"value": ""}', 1) == Draft(value=None)


def test_the_partition_of_a_json_line_counts_only_when_asked() -> None:
    line = b'{"value": "v", "partition": 2}'
    assert LineShape(as_json=True).read(line, 1) == Draft(value=b"v")
    assert LineShape(as_json=True, keep_partitions=True).read(line, 1) == Draft(value=b"v", partition=2)


def test_a_header_without_a_value_is_null() -> None:
    assert [_header(each) for each in ("a=1", "b=", "c", "d=e=f")] == [
        ("a", b"1"),
        ("b", b""),
        ("c", None),
        ("d", b"e=f"),
    ]
