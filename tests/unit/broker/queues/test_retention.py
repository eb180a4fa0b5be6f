"""What is gone is kept for a time and up to a number of bytes."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.queues.retention import MARKS_MAX, Retention


class Piece(NamedTuple):
    base_offset: int
    size: int


ONE = [Piece(0, 100)]


def test_without_retention_what_is_gone_goes_at_once() -> None:
    assert Retention(0, -1).start_for(7, 0, ONE, 1_000) == 7


def test_the_time_runs_from_when_a_message_was_gone_and_not_from_when_it_came() -> None:
    kept = Retention(3_200, -1)
    assert kept.start_for(5, 0, ONE, 1_000) == 0
    assert kept.start_for(8, 0, ONE, 2_000) == 0
    assert kept.start_for(8, 0, ONE, 4_199) == 0
    assert kept.start_for(8, 0, ONE, 4_200) == 5
    assert kept.start_for(8, 5, ONE, 5_200) == 8


def test_moments_that_are_remembered_are_few() -> None:
    kept = Retention(3_200, -1)
    for step in range(10_000):
        kept.start_for(step, 0, ONE, 1_000 + step)
    assert len(kept._marks) <= MARKS_MAX + 1


def test_a_restored_message_is_not_removed_by_an_older_moment() -> None:
    kept = Retention(1_000, -1)
    assert kept.start_for(8, 0, ONE, 0) == 0
    assert kept.start_for(3, 0, ONE, 500) == 0
    assert kept.start_for(3, 0, ONE, 1_400) == 0
    assert kept.start_for(3, 0, ONE, 1_500) == 3


def test_the_oldest_segments_go_when_too_many_bytes_are_kept() -> None:
    segments = [Piece(0, 10), Piece(5, 10), Piece(9, 10), Piece(14, 10)]
    assert Retention(-1, 20).start_for(14, 0, segments, 0) == 5
    assert Retention(-1, 10).start_for(14, 0, segments, 0) == 9
    assert Retention(-1, 10).start_for(9, 0, segments, 0) == 5
    assert Retention(-1, 0).start_for(12, 0, segments, 0) == 12
    assert Retention(-1, -1).start_for(14, 0, segments, 0) == 0
