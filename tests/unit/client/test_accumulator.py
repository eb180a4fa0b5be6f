"""Records encoded one by one as they are added are the records that the format describes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import read_batches
from headrace.client.accumulator import OpenBatch
from headrace.client.client import TopicPartition
from headrace.record import Codec, Record, decode_records, encode_records

HERE = TopicPartition("t", 0)
BYTES = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.builds(
        Record,
        key=BYTES,
        value=BYTES,
        timestamp=st.integers(0, 2**45),
        headers=st.lists(st.tuples(st.text(max_size=9), BYTES), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def filled(records: list[Record], codec: Codec = Codec.NONE) -> OpenBatch:
    batch = OpenBatch(HERE, codec, 50)
    for each in records:
        batch.add(each.key, each.value, each.headers, each.timestamp)
    return batch


@given(RECORDS)
def test_the_encoded_records_are_those_of_the_record_format(records: list[Record]) -> None:
    assert bytes(filled(records).records) == encode_records(records, base_timestamp=records[0].timestamp)


@given(RECORDS, st.sampled_from(list(Codec)))
def test_a_sealed_batch_holds_what_was_added_in_every_codec(records: list[Record], codec: Codec) -> None:
    (batch,) = read_batches(filled(records, codec).seal(), batch_bytes_max=1 << 20)
    decoded = decode_records(batch, 1 << 20)
    assert [(each.key, each.value, each.timestamp, list(each.headers)) for each in decoded] == [
        (each.key, each.value, each.timestamp, list(each.headers)) for each in records
    ]
    assert batch.max_timestamp == max(each.timestamp for each in records)


def test_more_records_than_the_table_of_small_numbers_still_encode_rightly() -> None:
    records = [Record(key=None, value=b"x" * 9000 if index == 0 else b"", timestamp=index) for index in range(9000)]
    assert bytes(filled(records).records) == encode_records(records, base_timestamp=0)


def test_a_resent_batch_is_the_same_to_the_last_byte() -> None:
    batch = filled([Record(key=b"k", value=b"v", timestamp=5)])
    batch.identity = (7, 0, 41)
    assert batch.seal() == batch.seal()
    (read,) = read_batches(batch.seal(), batch_bytes_max=1 << 20)
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (7, 0, 41)


def test_lz4_blocks_are_independent_because_java_refuses_linked_ones() -> None:
    (batch,) = read_batches(
        filled([Record(key=None, value=b"ab" * 500, timestamp=1)], Codec.LZ4).seal(), batch_bytes_max=1 << 20
    )
    flags = batch.body[40 + 4]
    assert flags & 0b0010_0000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_codec_makes_a_repetitive_batch_smaller(codec: Codec) -> None:
    records = [Record(key=None, value=b"again and again ", timestamp=1)] * 100
    assert len(filled(records, codec).seal()) < len(filled(records).seal()) / 2
