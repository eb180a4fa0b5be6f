"""Records: round trips through every codec, and bounds that hold against hostile bytes."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import textwrap

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Batch, build_batch, reseal
from headrace.record import (
    Codec,
    CorruptRecords,
    DecompressedTooLarge,
    Record,
    compress,
    decode_records,
    decompress,
    record_keys,
    validate_records,
)

headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
records = st.builds(
    Record,
    key=st.none() | st.binary(max_size=300),
    value=st.none() | st.binary(max_size=300),
    timestamp=st.integers(0, 2**53),
    headers=headers,
)


def with_payload(payload: bytes, *, count: int = 1, codec: Codec = Codec.NONE) -> Batch:
    batch = build_batch([Record(b"k", b"v", timestamp=0)] * count)
    batch.attributes = int(codec)
    reseal(batch, payload)
    return batch


@given(st.lists(records, min_size=1, max_size=8), st.sampled_from(Codec))
def test_what_goes_into_a_batch_comes_out_of_it(sent: list[Record], codec: Codec) -> None:
    batch = build_batch(sent, base_offset=100, codec=codec)
    found = decode_records(batch, 1 << 20)
    assert [record.offset for record in found] == list(range(100, 100 + len(sent)))
    for before, after in zip(sent, found, strict=True):
        assert (after.key, after.value, after.timestamp) == (before.key, before.value, before.timestamp)
        assert list(after.headers) == list(before.headers)
    validate_records(batch, 1 << 20)
    keys = [(record.offset, record.key, record.value is None) for record in found]
    assert record_keys(batch, 1 << 20) == keys


@given(st.binary(max_size=300), st.integers(0, 5))
def test_random_records_are_refused_or_read_but_never_anything_else(data: bytes, count: int) -> None:
    batch = with_payload(data)
    batch.record_count = count
    for read in (decode_records, validate_records, record_keys):
        try:
            read(batch, 1 << 16)
        except CorruptRecords:
            pass


@given(st.sampled_from(list(Codec)[1:]), st.binary(max_size=200))
def test_random_compressed_bytes_are_refused_or_read(codec: Codec, data: bytes) -> None:
    try:
        decompress(codec, data, 1 << 16)
    except (CorruptRecords, DecompressedTooLarge):
        pass


def test_a_length_beyond_the_remaining_bytes_is_refused() -> None:
    payload = b"\x10\x00\x00\x00\xfe\xff\xff\xff\x0f"
    with pytest.raises(CorruptRecords, match="remain"):
        decode_records(with_payload(payload), 1000)


def test_a_count_beyond_what_the_bytes_can_hold_is_refused() -> None:
    batch = with_payload(b"\0" * 20)
    batch.record_count = 2**31 - 1
    with pytest.raises(CorruptRecords, match="claims"):
        decode_records(batch, 1000)


def test_bytes_behind_the_last_record_are_refused() -> None:
    batch = build_batch([Record(b"k", b"v")])
    reseal(batch, batch.body[40:] + b"x")
    with pytest.raises(CorruptRecords, match="follow"):
        validate_records(batch, 1000)


def test_offset_deltas_must_count_up_by_one() -> None:
    first = build_batch([Record(b"k", b"v")]).body[40:]
    with pytest.raises(CorruptRecords, match="offset delta"):
        validate_records(with_payload(first + first, count=2), 1000)


def test_a_compacted_topics_record_needs_a_key() -> None:
    with pytest.raises(CorruptRecords, match="key"):
        validate_records(build_batch([Record(None, b"v")]), 1000, require_keys=True)


def test_raw_snappy_is_read_like_framed_snappy() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"abc" * 50)), 1000) == b"abc" * 50


def test_several_snappy_blocks_and_gzip_members_are_joined() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"abc"))
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * 2
    assert decompress(Codec.SNAPPY, framed, 1000) == b"abcabc"
    member = compress(Codec.GZIP, b"abc")
    assert decompress(Codec.GZIP, member + member, 1000) == b"abcabc"


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bound_is_exact(codec: Codec) -> None:
    packed = compress(codec, bytes(100_000))
    assert decompress(codec, packed, 100_000) == bytes(100_000)
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, packed, 99_999)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_compressed_data_that_ends_early_is_refused(codec: Codec) -> None:
    packed = compress(codec, bytes(range(256)) * 20)
    with pytest.raises(CorruptRecords):
        decompress(codec, packed[: len(packed) // 2], 1 << 20)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_a_bomb_is_refused_with_bounded_memory(codec: Codec) -> None:
    """A gigabyte of zeros, packed here, is opened in a child whose peak memory is then looked at."""
    program = f"""
        import resource, sys
        from headrace.record import Codec, DecompressedTooLarge, decompress
        data = sys.stdin.buffer.read()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            decompress(Codec({int(codec)}), data, 1 << 20)
        except DecompressedTooLarge:
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    bomb = _bomb(codec)
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], input=bomb, capture_output=True, check=True, timeout=60
    )
    grown_kib = int(child.stdout)
    assert grown_kib < 32 * 1024, f"{len(bomb)} bytes grew memory by {grown_kib} KiB"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


def _bomb(codec: Codec) -> bytes:
    if codec is Codec.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(bytes(256 << 20)))
    if codec is Codec.GZIP:
        return compress(codec, bytes(64 << 20)) * 4
    return compress(codec, bytes(256 << 20))
