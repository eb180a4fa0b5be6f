"""The record batch: its bytes, what is refused and with which code, and what stamping leaves alone."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import (
    HEADER_BYTES,
    Batch,
    CorruptBatch,
    InvalidBatch,
    RecordTooLarge,
    UnsupportedCodec,
    build_batch,
    control_batch,
    control_type,
    parse_header,
    read_batches,
    reseal,
    stamp,
    stamp_log_append_time,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Record, decode_records


def batch_of(count: int = 2, **options: object) -> Batch:
    return build_batch([Record(b"k", b"v%d" % n, timestamp=1000 + n) for n in range(count)], **options)  # type: ignore[arg-type]


def one(data: bytes, **options: object) -> Batch:
    [batch] = read_batches(data, batch_bytes_max=1 << 20, **options)  # type: ignore[arg-type]
    return batch


def refusal(data: bytes) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        read_batches(data, batch_bytes_max=1 << 20)
    return caught.value


def test_a_batch_has_exactly_these_bytes() -> None:
    batch = build_batch([Record(b"k", b"v", timestamp=5)], producer_id=7, producer_epoch=1, base_sequence=3)
    assert batch.data.hex() == (
        "0000000000000000"
        "0000003a"
        "ffffffff"
        "02"
        "8d5f13df"
        "0000"
        "00000000"
        "0000000000000005"
        "0000000000000005"
        "0000000000000007"
        "0001"
        "00000003"
        "00000001"
        "10"
        "00"
        "00"
        "00"
        "02"
        "6b"
        "02"
        "76"
        "00"
    )


def test_an_independent_client_agrees_on_the_bytes() -> None:
    batch = build_batch([Record(b"k", b"v", timestamp=5, headers=[("h", b"x")]), Record(None, None, timestamp=9)])
    stamp(batch, 42, 3)
    theirs = DefaultRecordBatch(batch.data)
    assert theirs.validate_crc()
    records = list(theirs)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in records] == [(42, 5, b"k", b"v"), (43, 9, None, None)]
    assert list(records[0].headers) == [("h", b"x")]


def test_stamping_changes_offset_and_epoch_and_no_checksummed_byte() -> None:
    sent = batch_of().data
    batch = one(sent)
    stamp(batch, 1234567890123, 9)
    assert batch.data[12:16] == (9).to_bytes(4, "big")
    assert batch.data[17:] == sent[17:]
    assert one(batch.data, from_client=False).base_offset == 1234567890123
    assert batch.checksum_holds()


def test_log_append_time_becomes_every_records_timestamp_and_the_checksum_holds() -> None:
    batch = one(batch_of(3).data)
    stamp_log_append_time(batch, 777)
    again = one(batch.data)
    assert again.is_log_append_time
    assert {record.timestamp for record in decode_records(again, 1000)} == {777}


def test_every_single_flipped_bit_behind_the_checksum_is_refused() -> None:
    data = batch_of().data
    for position in range(17, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        assert refusal(bytes(damaged)).code is ErrorCode.CORRUPT_MESSAGE


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_wire_code(data: bytes) -> None:
    assert refusal(data).code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("size", range(batch_of().size))
def test_a_batch_cut_anywhere_is_refused(size: int) -> None:
    assert refusal(batch_of().data[:size]).code is ErrorCode.INVALID_RECORD


def test_a_two_gigabyte_length_is_refused_before_anything_is_allocated() -> None:
    data = bytearray(batch_of().data)
    data[8:12] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(RecordTooLarge):
        read_batches(bytes(data), batch_bytes_max=1 << 20)


def test_a_batch_over_the_limit_names_both_sizes() -> None:
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes=70"):
        read_batches(batch_of().data, batch_bytes_max=70)


@pytest.mark.parametrize(
    ("magic", "code"), [(0, ErrorCode.INVALID_RECORD), (1, ErrorCode.INVALID_RECORD), (3, ErrorCode.CORRUPT_MESSAGE)]
)
def test_other_message_formats_are_refused(magic: int, code: ErrorCode) -> None:
    data = bytearray(batch_of().data)
    data[16] = magic
    assert refusal(bytes(data)).code is code


def test_a_count_that_does_not_fit_the_offsets_is_refused() -> None:
    batch = batch_of(2)
    batch.record_count = 3
    reseal(batch, batch.body[40:])
    assert isinstance(refusal(batch.data), InvalidBatch)


def test_compactions_sparse_and_empty_batches_are_read_from_a_log_but_not_taken_from_a_client() -> None:
    batch = batch_of(3)
    batch.record_count = 0
    reseal(batch, b"")
    assert one(batch.data, from_client=False).next_offset == 3
    assert isinstance(refusal(batch.data), InvalidBatch)


def test_a_codec_that_does_not_exist_is_refused() -> None:
    batch = batch_of()
    batch.attributes = 5
    reseal(batch, batch.body[40:])
    assert isinstance(refusal(batch.data), UnsupportedCodec)


def test_a_producer_may_not_write_control_records() -> None:
    marker = control_batch(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=1)
    assert isinstance(refusal(marker.data), InvalidBatch)


def test_a_producer_id_needs_a_sequence() -> None:
    assert isinstance(refusal(batch_of(producer_id=4, producer_epoch=0).data), InvalidBatch)


def test_a_clients_base_offset_must_be_zero() -> None:
    assert isinstance(refusal(batch_of(base_offset=1).data), InvalidBatch)


def test_several_batches_come_in_order() -> None:
    data = batch_of(1).data + batch_of(2).data
    assert [batch.record_count for batch in read_batches(data, batch_bytes_max=1000)] == [1, 2]


def test_the_last_sequence_wraps_behind_the_largest() -> None:
    assert batch_of(3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2).last_sequence == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_says_what_it_decides(commit: bool) -> None:
    marker = control_batch(commit=commit, producer_id=1, producer_epoch=2, coordinator_epoch=7, timestamp=5)
    assert control_type(one(marker.data, from_client=False)) == (commit, 7)
    assert marker.is_control
    assert marker.is_transactional


def test_a_marker_of_an_unknown_kind_is_corrupt() -> None:
    batch = build_batch([Record(b"\0\0\0\5", b"\0\0\0\0\0\0")], control=True)
    with pytest.raises(CorruptBatch):
        control_type(batch)


def test_a_header_that_cannot_be_one_is_not_parsed() -> None:
    assert parse_header(bytes(HEADER_BYTES)) is None
    assert parse_header(batch_of().data[: HEADER_BYTES - 1]) is None
