"""Records that are added many at a time are the records that are added one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.accumulator import OpenBatch
from headrace.client.byte_column import ByteColumn, interleaved
from headrace.client.client import TopicPartition
from headrace.record import Codec

PLACE = TopicPartition("t", 0)


def batch() -> OpenBatch:
    return OpenBatch(PLACE, Codec.NONE, 0)


parts = st.binary(max_size=120)
records_of = st.tuples(st.one_of(st.none(), st.lists(parts, min_size=40, max_size=40)), st.integers(1, 40)).flatmap(
    lambda drawn: st.tuples(
        st.just(None if drawn[0] is None else ByteColumn([b"k", drawn[0][: drawn[1]]], drawn[1])),
        st.lists(st.one_of(parts, st.lists(parts, min_size=drawn[1], max_size=drawn[1])), min_size=1, max_size=4).map(
            lambda chosen: ByteColumn(chosen, drawn[1])
        ),
    )
)


@given(records_of, st.integers(1, 2000), st.integers(0, 5))
def test_many_records_fill_batches_as_single_ones_do(
    records: tuple[ByteColumn | None, ByteColumn], bytes_max: int, earlier: int
) -> None:
    keys, values = records
    place = 0
    while place < values.count:
        many, single = batch(), batch()
        for number in range(earlier):
            for each in (many, single):
                each.add(b"k%d" % number, b"v", (), 1_000)
        first, place = place, many.add_many(keys, values, place, 1_007, bytes_max)
        assert place > first, "at least one is taken"
        for taken in range(first, place):
            single.add(None if keys is None else keys[taken], values[taken], (), 1_007)
        assert bytes(many.records) == bytes(single.records)
        assert (many.count, many.base_timestamp, many.max_timestamp) == (
            single.count,
            single.base_timestamp,
            single.max_timestamp,
        )
        assert len(many) <= bytes_max + 5 or place == first + 1


@pytest.mark.parametrize("value_bytes", [100, 9_000])
def test_a_batch_takes_many_records_of_more_than_one_block(value_bytes: int) -> None:
    """Offsets of two and three bytes, and values whose length has two bytes and three."""
    texts = [b"%d" % each for each in range(9_000)]
    keys, values = ByteColumn([b"{", texts, b"}"], 9_000), ByteColumn([bytes(value_bytes), texts], 9_000)
    many, single = batch(), batch()
    assert many.add_many(keys, values, 0, 1_000, 1 << 30) == 9_000
    for text in texts:
        single.add(b"{" + text + b"}", bytes(value_bytes) + text, (), 1_000)
    assert bytes(many.records) == bytes(single.records)


@given(st.lists(parts, max_size=9), st.binary(max_size=500))
def test_a_batch_in_the_memory_of_an_earlier_one_has_only_its_own_records(values: list[bytes], before: bytes) -> None:
    fresh, reused = batch(), OpenBatch(PLACE, Codec.NONE, 0, room=bytearray(before))
    for value in values:
        for each in (fresh, reused):
            each.add(b"k", value, (), 1_000)
    assert bytes(reused.records) == bytes(fresh.records)
    assert (len(reused), reused.seal()[61:]) == (len(fresh), fresh.seal()[61:])


@given(st.lists(st.tuples(parts, parts, parts), min_size=1, max_size=9), parts, parts)
def test_a_column_of_bytes_is_its_parts_put_together(
    rows: list[tuple[bytes, bytes, bytes]], before: bytes, after: bytes
) -> None:
    first, second, third = zip(*rows, strict=True)
    column = ByteColumn([before, first, second, after, third, first], len(rows))
    expected = [before + a + b + after + c + a for a, b, c in rows]
    assert column.strings() == expected
    assert column.lengths == list(map(len, expected))
    assert interleaved(column.parts, column.count) == b"".join(expected)
    for end in range(len(rows) + 1):
        part = column.slice(1, end)
        assert (part.strings(), part.lengths) == (expected[1:end], list(map(len, expected[1:end])))
