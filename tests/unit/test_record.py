"""Records: round trips through every codec, and bounds that hold against hostile bytes."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

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
    encode_pairs,
    encode_records,
    iter_keyed,
    iter_keys,
    iter_records,
    iter_timestamps,
    iter_validated,
    record_keys,
    records_of,
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


def validate(batch: Batch) -> None:
    for _ in iter_validated(batch, records_of(batch, 1000)):
        pass


@given(st.lists(records, min_size=1, max_size=8), st.sampled_from(Codec))
def test_what_goes_into_a_batch_comes_out_of_it(sent: list[Record], codec: Codec) -> None:
    batch = build_batch(sent, base_offset=100, codec=codec)
    found = decode_records(batch, 1 << 20)
    assert [record.offset for record in found] == list(range(100, 100 + len(sent)))
    for before, after in zip(sent, found, strict=True):
        assert (after.key, after.value, after.timestamp) == (before.key, before.value, before.timestamp)
        assert list(after.headers) == list(before.headers)
    data = records_of(batch, 1 << 20)
    assert set(iter_validated(batch, data)) == set(range(len(sent)))
    assert list(record_keys(batch, 1 << 20)) == [(each.offset, each.key, each.value is None) for each in found]
    assert list(iter_keyed(batch, data)) == [each.key is not None for each in found]
    assert list(iter_timestamps(batch, data)) == [(each.timestamp, each.offset) for each in found]


@given(st.binary(max_size=300), st.integers(0, 5))
def test_random_records_are_refused_or_read_but_never_anything_else(data: bytes, count: int) -> None:
    batch = with_payload(data)
    batch.record_count = count
    for walk in (iter_records, iter_keys, iter_keyed, iter_timestamps, iter_validated):
        try:
            found = list(walk(batch, records_of(batch, 1 << 16)))
        except CorruptRecords:
            continue
        assert len(found) == count or walk is iter_validated


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
        validate(batch)


def test_offset_deltas_must_count_up_by_one() -> None:
    first = build_batch([Record(b"k", b"v")]).body[40:]
    with pytest.raises(CorruptRecords, match="offset delta"):
        validate(with_payload(first + first, count=2))


@pytest.mark.parametrize("walk", [iter_keyed, iter_timestamps, iter_keys, iter_records, iter_validated])
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(build_batch([Record(b"k", b"v" * 50)]).body[40:], id="one record where two are claimed"),
        pytest.param(b"\x0c\x00" + b"\x80" * 12, id="a timestamp that never ends"),
        pytest.param(b"\x0c\x00" + b"\x80" * 4 + b"\x00" + b"\x80" * 7, id="an offset that runs out"),
        pytest.param(b"\x80" * 14, id="a length that never ends"),
        pytest.param(b"\x01" * 14, id="a negative length"),
    ],
)
def test_records_that_end_too_early_are_refused_by_every_walk(walk: Any, payload: bytes) -> None:
    batch = with_payload(payload, count=2)
    with pytest.raises(CorruptRecords):
        list(walk(batch, records_of(batch, 1000)))


def test_checking_a_record_with_many_headers_takes_many_steps() -> None:
    batch = build_batch([Record(b"k", b"v", headers=[("h", None)] * 1000)])
    assert sum(1 for _ in iter_validated(batch, records_of(batch, 1 << 20))) == 1001


def test_gzip_of_many_tiny_members_is_read_without_copying_the_rest_for_each() -> None:
    members = compress(Codec.GZIP, b"") * 20_000 + compress(Codec.GZIP, b"end")
    assert decompress(Codec.GZIP, members, 1000) == b"end"


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


@pytest.mark.parametrize("size", [0, 1, 13, 65_535, 65_536, 65_537, 262_144, 262_145, 600_000])
@pytest.mark.parametrize("make", [bytes, os.urandom], ids=["zeros", "random"])
def test_lz4_frames_of_every_number_of_blocks_are_read_by_another_decoder(
    size: int, make: Callable[[int], bytes]
) -> None:
    data = make(size)
    packed = compress(Codec.LZ4, memoryview(bytearray(data)))
    assert bytes(cramjam.lz4.decompress(packed)) == data
    assert len(packed) <= len(data) + 11 + 4 * (1 + len(data) // 65_536), "what does not compress is kept as it is"


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


@given(st.lists(st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=9_000)), max_size=80))
def test_pairs_are_written_as_the_records_that_they_are(pairs: list[tuple[bytes, bytes | None]]) -> None:
    records = [Record(key=key, value=value, timestamp=7) for key, value in pairs]
    assert encode_pairs(pairs) == encode_records(records, base_timestamp=7)
