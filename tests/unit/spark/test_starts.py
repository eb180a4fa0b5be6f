"""Record starts: the guess answers what the walk finds, or nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.record import CorruptRecords, Record, encode_records
from headrace.spark.source.starts import _guess, _walk_all, record_starts

PADDING = bytes(64)

# Bytes that look like lengths, attributes and ends of records, so that wrong candidates abound.
tempting = st.lists(st.sampled_from([0, 0, 0, 2, 14, 16, 20, 0x80, 0x81, 0xFF, 65]), max_size=40).map(bytes)
headers = st.lists(st.tuples(st.just("h"), tempting), max_size=1)
record = st.builds(Record, key=tempting, value=tempting, timestamp=st.integers(1, 300), headers=headers)
plain = st.builds(Record, key=st.none() | tempting, value=tempting, timestamp=st.integers(1, 300))
contents_of_a_batch = st.lists(plain, min_size=1, max_size=6) | st.lists(record, min_size=1, max_size=6)
batches = st.lists(contents_of_a_batch, min_size=1, max_size=3)


def joined(contents: list[list[Record]]) -> tuple[bytes, np.ndarray, np.ndarray, np.ndarray]:
    payloads = [
        encode_records(
            [Record(each.key, each.value, each.timestamp, at, each.headers) for at, each in enumerate(content)],
            base_timestamp=0,
            base_offset=0,
        )
        for content in contents
    ]
    bounds = np.cumsum([0, *map(len, payloads)])
    counts = np.array([len(content) for content in contents])
    return b"".join([*payloads, PADDING]), bounds, counts, np.zeros(len(contents), np.int64)


@settings(deadline=None)
@given(batches)
def test_the_guess_finds_what_the_walk_finds_or_nothing(contents: list[list[Record]]) -> None:
    data, bounds, counts, bases = joined(contents)
    walked = _walk_all(data, bounds, counts, bases)
    guessed = _guess(np.frombuffer(data, np.uint8), bounds, counts)
    starts, inner = record_starts(data, bounds, counts, bases)
    assert starts.tolist() == walked.tolist()
    assert all(data[position - 1] == 0 for position in inner.tolist())  # the attributes
    assert guessed is None or guessed[0].tolist() == walked.tolist()


@settings(deadline=None)
@given(batches, st.data())
def test_damaged_lengths_lead_the_guess_nowhere_that_a_walk_does_not_go(
    contents: list[list[Record]], draw: st.DataObject
) -> None:
    data, bounds, counts, bases = joined(contents)
    damaged = bytearray(data)
    damaged[draw.draw(st.integers(0, int(bounds[-1]) - 1))] = draw.draw(st.integers(0, 255))
    guessed = _guess(np.frombuffer(bytes(damaged), np.uint8), bounds, counts)
    if guessed is not None:
        assert guessed[0].tolist() == _walk_all(bytes(damaged), bounds, counts, bases).tolist()


@pytest.mark.parametrize("value_bytes", [10, 50, 64, 100, 500])
def test_ordinary_records_are_found_without_a_walk(value_bytes: int) -> None:
    """If this failed nothing would be wrong, but all would be slow: the property above holds for no guess at all."""
    source = random.Random(value_bytes)
    contents = [
        [Record(b"key-%d" % at, source.randbytes(value_bytes), at) for at in range(1, count)] for count in (2, 40, 300)
    ]
    data, bounds, counts, _ = joined(contents)
    assert _guess(np.frombuffer(data, np.uint8), bounds, counts) is not None


def test_one_long_record_among_short_ones_is_guessed_too() -> None:
    content = [Record(b"k", b"v" * size, 5) for size in [20] * 90 + [9_000] + [100] * 90]
    data, bounds, counts, _ = joined([content])
    assert _guess(np.frombuffer(data, np.uint8), bounds, counts) is not None


def test_a_record_of_negative_length_is_refused() -> None:
    data, bounds, counts, bases = joined([[Record(b"k", b"v", 1)]])
    with pytest.raises(CorruptRecords):
        record_starts(b"\x0f" + data[1:], bounds, counts, bases)
