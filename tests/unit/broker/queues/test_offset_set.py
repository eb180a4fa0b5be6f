"""A set of offsets behaves as Python's set does."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.queues.offset_set import CHUNK, OffsetSet

OFFSETS = st.integers(0, 3 * CHUNK)
STEPS = st.lists(
    st.tuples(st.just("add"), OFFSETS)
    | st.tuples(st.just("discard"), OFFSETS)
    | st.tuples(st.just("discard_below"), OFFSETS)
    | st.tuples(st.just("add_range"), st.tuples(OFFSETS, OFFSETS)),
    max_size=30,
)


def applied(steps: list[tuple[str, object]]) -> tuple[OffsetSet, set[int]]:
    made, model = OffsetSet(), set[int]()
    for name, argument in steps:
        if name == "add_range":
            first, end = argument  # type: ignore[misc]
            made.add_range(first, end)
            model |= set(range(first, end))
        elif name == "discard_below":
            assert isinstance(argument, int)
            made.discard_below(argument)
            model = {each for each in model if each >= argument}
        else:
            getattr(made, name)(argument)
            getattr(model, name)(argument)
    return made, model


@given(steps=STEPS, probe=OFFSETS)
def test_it_holds_what_was_added_and_not_removed(steps: list[tuple[str, object]], probe: int) -> None:
    made, model = applied(steps)
    assert len(made) == len(model)
    assert list(made) == sorted(model)
    assert made.first() == min(model, default=None)
    assert (probe in made) == (probe in model)
    missing = made.next_missing(probe)
    assert missing not in model
    assert set(range(probe, missing)) <= model


@given(steps=STEPS)
def test_its_ranges_and_its_bytes_give_it_back(steps: list[tuple[str, object]]) -> None:
    made, model = applied(steps)
    again, ranged = OffsetSet(), OffsetSet()
    for number, data in made.chunks():
        again.add_chunk(number, data)
    for first, end in made.ranges():
        ranged.add_range(first, end)
    assert set(again) == set(ranged) == model


def test_every_second_of_ten_million_takes_little_memory() -> None:
    made = OffsetSet()
    for number in range(10_000_000 // CHUNK):
        made.add_chunk(number, b"\x55" * (CHUNK // 8))
    assert len(made) == 10_000_000 // CHUNK * CHUNK // 2
    assert sum(len(data) for _, data in made.chunks()) < 1_300_000


def test_every_second_offset_of_a_million_takes_kilobytes() -> None:
    made = OffsetSet()
    for first in range(0, 1_000_000, 2):
        made.add(first)
    assert len(made) == 500_000
    assert sum(sys.getsizeof(bits) for bits in made._chunks.values()) < 200_000


def test_the_first_of_many_is_found_without_a_look_at_all_of_them() -> None:
    """A queue is drained from its front: each step may look at a chunk or two."""

    class Counted(dict[int, int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            Counted.looks += 1
            return super().__iter__()

    made = OffsetSet(range(0, 500 * CHUNK, CHUNK))
    made._chunks = Counted(made._chunks)
    for number in range(499):
        assert made.first() == number * CHUNK
        made.discard_below((number + 1) * CHUNK)
    assert Counted.looks == 0
