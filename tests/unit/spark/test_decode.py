"""The vectorised decoder against the one that reads records one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch import LOG_APPEND_TIME, Batch, build_batch, control_batch, parse_header, reseal
from headrace.client import RawBatch
from headrace.record import Codec, CorruptRecords, DecompressedTooLarge, Record, decode_records, encode_records
from headrace.spark.source.decode import HEADERS_TYPE, Decoded, grouped
from headrace.spark.source.decode import decode as decode_raw

LIMIT = 1 << 24

small_bytes = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=200))
header = st.tuples(st.text(max_size=20), st.one_of(st.none(), st.binary(max_size=30)))
records = st.lists(
    st.builds(
        Record,
        key=small_bytes,
        value=small_bytes,
        timestamp=st.integers(0, 2**50),
        headers=st.lists(header, max_size=3),
    ),
    min_size=1,
    max_size=20,
)
batches_of_records = st.lists(st.tuples(records, st.sampled_from(Codec), st.booleans()), min_size=1, max_size=5)


def in_a_row(groups: Sequence[tuple[list[Record], Codec, bool]]) -> list[Batch]:
    made = []
    offset = 1000
    for content, codec, stamped in groups:
        batch = build_batch(content, base_offset=offset, codec=codec)
        if stamped:
            batch.attributes |= LOG_APPEND_TIME
            reseal(batch, batch.body[40:])
        made.append(batch)
        offset = batch.next_offset
    return made


def raw(batch: Batch) -> RawBatch:
    """As it would arrive in a fetch."""
    data = memoryview(batch.data)
    header = parse_header(data)
    assert header is not None
    return RawBatch(header, data)


def decode(batches: Sequence[Batch], **arguments: Any) -> Decoded:
    return decode_raw([raw(batch) for batch in batches], **arguments)


def rows(decoded: Decoded) -> list[Record]:
    assert decoded.headers is not None
    columns = zip(
        decoded.keys.to_pylist(),
        decoded.values.to_pylist(),
        decoded.timestamps_ms.tolist(),
        decoded.offsets.tolist(),
        decoded.headers.to_pylist(),
        strict=True,
    )
    return [
        Record(key, value, timestamp, offset, [(each["key"], each["value"]) for each in headers or []])
        for key, value, timestamp, offset, headers in columns
    ]


def one_by_one(batches: Sequence[Batch]) -> list[Record]:
    found = [record for batch in batches for record in decode_records(batch, LIMIT)]
    for record in found:
        record.headers = list(record.headers)
    return found


@settings(deadline=None)
@given(batches_of_records)
def test_columns_hold_what_decoding_record_by_record_finds(groups: list[tuple[list[Record], Codec, bool]]) -> None:
    batches = in_a_row(groups)
    decoded = decode(batches, headers=True)
    decoded.keys.validate(full=True)
    decoded.values.validate(full=True)
    assert rows(decoded) == one_by_one(batches)
    types = [int(batch.is_log_append_time) for batch in batches for _ in range(batch.record_count)]
    assert decoded.timestamp_types.tolist() == types


@settings(deadline=None)
@given(batches_of_records, st.integers(990, 1050), st.integers(990, 1110))
def test_only_records_inside_the_range_are_given(
    groups: list[tuple[list[Record], Codec, bool]], start: int, end: int
) -> None:
    batches = in_a_row(groups)
    expected = [record for record in one_by_one(batches) if start <= record.offset < end]
    assert rows(decode(batches, start=start, end=end, headers=True)) == expected


def wrapped(records_found: list[Record]) -> list[Record]:
    """Numbers as 64 bits hold them: a damaged delta may leave that range, and only Python's integers follow it."""
    for record in records_found:
        record.offset, record.timestamp = (
            (number + 2**63) % 2**64 - 2**63 for number in (record.offset, record.timestamp)
        )
    return records_found


@settings(deadline=None)
@given(records, st.data())
def test_damaged_records_are_refused_or_read_exactly_as_record_by_record(
    content: list[Record], data: st.DataObject
) -> None:
    batch = build_batch(content, base_offset=7)
    payload = bytearray(batch.body[40:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    reseal(batch, bytes(payload))
    try:
        expected = wrapped(one_by_one([batch]))
        offsets = [record.offset for record in expected]
        if offsets != sorted(set(offsets)) or offsets[0] < batch.base_offset or offsets[-1] > batch.last_offset:
            raise CorruptRecords("the slow reader leaves offsets to its callers")
    except CorruptRecords:
        with pytest.raises(CorruptRecords):
            decode([batch], headers=True)
        return
    assert rows(decode([batch], headers=True)) == expected


@settings(deadline=None)
@given(records, st.data())
def test_records_cut_short_are_refused(content: list[Record], data: st.DataObject) -> None:
    batch = build_batch(content)
    payload = batch.body[40:]
    reseal(batch, payload[: data.draw(st.integers(0, len(payload) - 1))])
    with pytest.raises(CorruptRecords):
        decode([batch])


@pytest.mark.parametrize("size", [0, 12, 13, 57, 8_190, 8_200, 70_000, 2_200_000])
def test_values_of_every_size_of_length_survive(size: int) -> None:
    content = [Record(key=b"k", value=bytes(size), timestamp=1), Record(key=None, value=b"next", timestamp=2)]
    decoded = decode([build_batch(content)])
    assert decoded.values.to_pylist() == [bytes(size), b"next"]
    assert decoded.keys.to_pylist() == [b"k", None]


def test_offsets_inside_a_batch_that_compaction_thinned_out_are_kept() -> None:
    batch = build_batch([Record(b"a", b"1", 5), Record(b"b", b"2", 6)], base_offset=100)
    kept = [Record(b"a", b"1", 5, offset=103), Record(b"b", b"2", 6, offset=170)]
    batch.last_offset_delta = 90
    reseal(batch, encode_records(kept, base_timestamp=5, base_offset=100))
    assert decode([batch]).offsets.tolist() == [103, 170]


def test_markers_of_transactions_and_emptied_batches_are_no_records() -> None:
    marker = control_batch(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=1)
    emptied = build_batch([Record(b"k", b"v", 1)])
    emptied.record_count = 0
    reseal(emptied, b"")
    decoded = decode([marker, emptied], headers=True)
    assert decoded.row_count == 0
    assert decoded.headers is not None
    assert decoded.headers.type == HEADERS_TYPE


def test_a_batch_that_unfolds_past_the_limit_is_refused() -> None:
    batch = build_batch([Record(None, bytes(1_000_000), 1)], codec=Codec.ZSTD)
    with pytest.raises(DecompressedTooLarge):
        decode([batch], decompressed_bytes_max=100_000)


def test_a_record_count_that_the_bytes_cannot_hold_is_refused_before_anything_is_made_of_it() -> None:
    batch = build_batch([Record(None, b"v", 1)])
    batch.record_count = 2**31 - 1
    reseal(batch, batch.body[40:])
    with pytest.raises(CorruptRecords, match="claims 2147483647 records"):
        decode([batch])


def test_a_header_name_that_is_not_utf8_is_refused() -> None:
    batch = build_batch([Record(None, b"v", 1, headers=[("name", b"1")])])
    reseal(batch, batch.body[40:].replace(b"name", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(CorruptRecords, match="UTF-8"):
        decode([batch], headers=True)
    assert decode([batch]).row_count == 1


def test_a_record_longer_than_its_batch_is_refused() -> None:
    batch = build_batch([Record(None, b"v" * 10, 1)])
    payload = bytearray(batch.body[40:])
    payload[0] += 2
    reseal(batch, bytes(payload))
    with pytest.raises(CorruptRecords, match="of the batch at offset 0 end"):
        decode([batch])


@settings(deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30), st.integers(1, 20_000))
def test_groups_keep_all_batches_in_order_and_stop_growing_at_the_bound(sizes: list[int], bytes_max: int) -> None:
    batches = [build_batch([Record(None, bytes(size), 1)]) for size in sizes]
    arrived = [raw(batch) for batch in batches]
    groups = list(grouped(arrived, bytes_max=bytes_max))
    assert [batch for group in groups for batch in group] == arrived
    assert all(sum(len(batch.data) for batch in group[:-1]) < bytes_max for group in groups)


@pytest.mark.parametrize("offsets", [[100, 100], [101, 100], [99, 100], [100, 102]])
def test_offsets_that_do_not_grow_or_leave_their_batch_are_refused(offsets: list[int]) -> None:
    batch = build_batch([Record(b"a", b"1", 5), Record(b"b", b"2", 6)], base_offset=100)
    moved = [Record(b"a", b"1", 5, offset=offset) for offset in offsets]
    reseal(batch, encode_records(moved, base_timestamp=5, base_offset=100))
    with pytest.raises(CorruptRecords, match="offset"):
        decode([batch])


def test_a_varint_of_eleven_bytes_is_refused() -> None:
    batch = build_batch([Record(None, b"v" * 30, 1)])
    payload = bytearray(batch.body[40:])
    payload[2:13] = b"\xff" * 11
    reseal(batch, bytes(payload))
    with pytest.raises(CorruptRecords):
        decode([batch])
    assert struct.unpack_from(">i", batch.body, 36) == (1,)
