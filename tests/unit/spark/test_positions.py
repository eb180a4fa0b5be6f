"""Offsets as JSON, admission and splits: pure functions, so properties say most about them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client import TopicPartition
from headrace.errors import UsageError
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import OffsetRange, Positions, admit, from_json, split, to_json

places = st.builds(TopicPartition, st.sampled_from(["a", "b", "ä.c"]), st.integers(0, 4))
positions = st.dictionaries(places, st.integers(0, 2**40), max_size=8)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Positions, Positions]:
    start = draw(positions)
    return start, {place: at + draw(st.integers(0, 1000)) for place, at in start.items()}


@given(positions)
def test_positions_survive_json_and_equal_ones_have_equal_text(given_positions: Positions) -> None:
    text = json.dumps(to_json(given_positions))
    assert from_json(json.loads(text)) == given_positions
    backwards = dict(reversed(given_positions.items()))
    assert json.dumps(to_json(backwards)) == text


@settings(deadline=None)
@given(ranges(), st.integers(1, 3000))
def test_admission_never_goes_back_nor_past_the_end_and_lets_everybody_move(
    bounds: tuple[Positions, Positions], offsets_max: int
) -> None:
    start, end = bounds
    admitted = admit(start, end, offsets_max)
    assert set(admitted) == set(end)
    for place in end:
        assert start[place] <= admitted[place] <= end[place]
        assert admitted[place] > start[place] or end[place] == start[place]
    total = sum(admitted[place] - start[place] for place in end)
    assert total <= offsets_max + len(end)  # each partition may round one offset up
    if sum(end[place] - start[place] for place in end) <= offsets_max:
        assert admitted == end


def test_a_partition_that_enters_or_starts_over_is_admitted_as_it_is() -> None:
    old, new = TopicPartition("a", 0), TopicPartition("a", 1)
    assert admit({old: 1000}, {old: 5, new: 7}, 1) == {old: 5, new: 7}


@settings(deadline=None)
@given(ranges(), st.one_of(st.none(), st.integers(1, 20)), st.one_of(st.none(), st.integers(1, 400)))
def test_splits_cover_each_offset_exactly_once_in_order(
    bounds: tuple[Positions, Positions], pieces_min: int | None, records_max: int | None
) -> None:
    start, end = bounds
    pieces = split(start, end, pieces_min=pieces_min, records_max=records_max)
    assert pieces == sorted(pieces)
    assert all(piece.start < piece.end for piece in pieces)
    if records_max is not None:
        assert all(len(piece) <= records_max for piece in pieces)
    for place in end:
        mine = [piece for piece in pieces if piece.place == place]
        bounds_found = [start[place], *(piece.end for piece in mine)]
        assert [piece.start for piece in mine] == bounds_found[:-1]
        assert bounds_found[-1] == end[place]


def test_more_tasks_than_partitions_cut_the_long_ranges_first() -> None:
    start = {TopicPartition("a", 0): 0, TopicPartition("a", 1): 0}
    end = {TopicPartition("a", 0): 10, TopicPartition("a", 1): 990}
    pieces = split(start, end, pieces_min=4)
    assert pieces[0] == OffsetRange("a", 0, 0, 10)
    assert len(pieces) == 5


def test_a_partition_without_a_start_or_that_goes_back_has_no_task() -> None:
    old, new = TopicPartition("a", 0), TopicPartition("a", 1)
    assert split({old: 10}, {old: 3, new: 9}) == []


def options(streaming: bool = True, **given_options: str) -> SourceOptions:
    complete = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given_options}
    return SourceOptions.parse({name.lower(): text for name, text in complete.items()}, streaming=streaming)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("kafkaConsumer.pollTimeoutMs", "retryTimeoutMs"),
        ("fetchOffset.numRetries", "retryTimeoutMs"),
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.value.deserializer", "valueFormat"),
    ],
)
def test_an_option_of_sparks_own_source_that_means_nothing_here_is_refused_with_the_reason(
    option: str, instead: str
) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders", option: "1"}
    with pytest.raises(UsageError, match=f"{option}.*{instead}.*remove it"):
        SourceOptions.parse(given, streaming=True)


def test_an_unknown_option_is_an_error_that_lists_the_valid_ones() -> None:
    with pytest.raises(UsageError, match=r"no option 'startingoffset'; did you mean startingOffsets\? valid: alignBy"):
        options(startingOffset="earliest")
    with pytest.raises(UsageError, match=r"no option 'kafka.foo'.*kafka\.bootstrap\.servers"):
        options(**{"kafka.foo": "1"})


@pytest.mark.parametrize(
    ("given_options", "told"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0'.*at least 1"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"maxTriggerDelay": "soon"}, "duration"),
        ({"valueFormat": "avro"}, "json, debezium, text"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"subscribePattern": "a.*"}, "exactly one of"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "larger than"),
        ({"onBadRecord": "deadletter"}, "needs a topic"),
        ({"valueSchema": "a long"}, "needs valueFormat"),
        ({"startingOffsets": "oldest"}, "startingOffsets='oldest' of the source must be earliest or latest or JSON"),
        ({"startingOffsets": '{"t":{"0":0,"1":"x"}}'}, "must be earliest or latest or JSON"),
        ({"startingOffsetsByTimestamp": "earliest"}, "must be JSON such as"),
        ({"timeZone": "Mars/Phobos"}, "must be a time zone such as UTC"),
        ({"timeZone": "../zone"}, "must be a time zone such as UTC"),
        ({"kafka.isolation.level": "serializable"}, "read_committed"),
        ({"kafka.request.timeout.ms": "-1"}, "at least 1"),
    ],
    ids=str,
)
def test_a_wrong_value_is_told_with_what_is_right(given_options: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        options(**given_options)


@pytest.mark.parametrize(
    ("name", "text"),
    [("assign", "[1]"), ("assign", '{"a":[-1]}'), ("assign", "{}"), ("subscribePattern", "("), ("subscribe", " , ")],
)
def test_a_selection_that_selects_nothing_sensible_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=name):
        SourceOptions.parse({"kafka.bootstrap.servers": "h:1", name.lower(): text}, streaming=True)


def test_a_batch_read_may_not_begin_at_the_end_nor_end_at_the_beginning() -> None:
    with pytest.raises(UsageError, match="would read nothing"):
        options(streaming=False, startingOffsets="latest")
    with pytest.raises(UsageError, match="would read nothing"):
        options(streaming=False, endingOffsets="earliest")


def test_the_group_is_the_one_that_was_asked_for_or_the_querys_own() -> None:
    assert options(**{"kafka.group.id": "mine"}).group("revenue") == "mine"
    assert options().group("revenue per minute") == "headrace-spark-revenue-per-minute"
    assert options(groupIdPrefix="x").group("revenue") == "x-revenue"
    assert options().group() is None
    assert options(commitGroupOffsets="false", **{"kafka.group.id": "mine"}).group("revenue") is None


def test_settings_with_secrets_do_not_show_when_options_are_printed() -> None:
    shown = repr(options(**{"kafka.sasl.password": "hunter2"}))
    assert "hunter2" not in shown
