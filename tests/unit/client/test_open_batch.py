"""Records that are added many at a time are the records that are added one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.accumulator import OpenBatch
from headrace.client.client import TopicPartition
from headrace.record import Codec

PLACE = TopicPartition("t", 0)


def batch() -> OpenBatch:
    return OpenBatch(PLACE, Codec.NONE, 0)


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.binary(max_size=200)), st.binary(max_size=200)), min_size=1, max_size=40
    ),
    st.integers(1, 2000),
    st.integers(0, 5),
)
def test_many_records_fill_batches_as_single_ones_do(
    records: list[tuple[bytes | None, bytes]], bytes_max: int, earlier: int
) -> None:
    keys, values = [each[0] for each in records], [each[1] for each in records]
    place = 0
    while place < len(records):
        many, single = batch(), batch()
        for number in range(earlier):
            for each in (many, single):
                each.add(b"k%d" % number, b"v", (), 1_000)
        first, place = place, many.add_many(keys, values, place, 1_007, bytes_max)
        assert place > first, "at least one is taken"
        for key, value in records[first:place]:
            single.add(key, value, (), 1_007)
        assert bytes(many.data) == bytes(single.data)
        assert (many.count, many.base_timestamp, many.max_timestamp) == (
            single.count,
            single.base_timestamp,
            single.max_timestamp,
        )
        assert len(many) <= bytes_max + 5 or place == first + 1
