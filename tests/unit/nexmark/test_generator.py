"""The events of Nexmark: any range by itself, the same however it is cut, and distributed as the benchmark asks."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.nexmark.generator import KINDS, Events, House, fingerprint
from benchmarks.nexmark.load import CLOSING, as_json, closing

HOUSE = House()
COUNT = 50_000


def concatenated(parts: list[Events], kind: str) -> tuple[pa.Table, list[int]]:
    made = [getattr(each, kind) for each in parts]
    return pa.concat_tables([each.rows for each in made]), [place for each in made for place in each.places.tolist()]


@settings(max_examples=20, deadline=None)
@given(
    first=st.integers(0, 10**9),
    cuts=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    house=st.builds(House, seed=st.integers(0, 2**64), out_of_order=st.integers(1, 900)),
)
def test_a_range_of_events_is_the_same_however_it_is_cut(first: int, cuts: list[int], house: House) -> None:
    ends = np.cumsum([first, *cuts]).tolist()
    whole = [house.events(first, ends[-1])]
    parts = [house.events(start, end) for start, end in pairwise(ends)]
    for kind in KINDS:
        expected, places = concatenated(whole, kind)
        found, found_places = concatenated(parts, kind)
        assert found.equals(expected)
        assert found_places == places


def test_another_seed_makes_other_events_and_the_same_one_the_same() -> None:
    assert fingerprint(HOUSE, 2000) == fingerprint(House(), 2000, step=333)
    assert fingerprint(HOUSE, 2000) != fingerprint(House(seed=2), 2000)
    assert fingerprint(HOUSE, 2000) == "e3df25e8cdc6bd73", "results that were published belong to these events"


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_others_bids_and_ids_have_no_gaps() -> None:
    events = HOUSE.events(0, COUNT)
    assert [made.rows.num_rows for _, made in events] == [COUNT // 50, COUNT // 50 * 3, COUNT // 50 * 46]
    for kind in ("person", "auction"):
        ids = getattr(events, kind).rows.column("id").to_numpy()
        assert sorted(ids) == list(range(1000, 1000 + len(ids)))


def test_within_a_group_times_are_out_of_order_and_between_groups_in_order() -> None:
    group = HOUSE.out_of_order
    times = [np.asarray(HOUSE.events(at, at + group).bid.rows.column("dateTime"), "M8[ms]") for at in (0, group)]
    assert (np.diff(times[0].astype(np.int64)) < 0).any()
    assert times[0].max() <= times[1].min()
    ordered = House(out_of_order=1).events(0, group).bid.rows.column("dateTime")
    assert (np.diff(np.asarray(ordered, "M8[ms]").astype(np.int64)) >= 0).all()
    with pytest.raises(ValueError, match="a multiple of 953"):
        House(out_of_order=953 * 2)


def test_half_of_the_bids_go_to_hot_auctions_and_three_of_four_come_from_hot_bidders() -> None:
    events = HOUSE.events(1_000_000, 1_000_000 + COUNT)
    bids = events.bid.rows
    auctions, bidders = (bids.column(name).to_numpy() for name in ("auction", "bidder"))
    assert np.mean(auctions % 100 == 0) == pytest.approx(0.5, abs=0.02)
    assert np.mean(bidders % 100 == 1) == pytest.approx(0.75, abs=0.02)
    sellers = events.auction.rows.column("seller").to_numpy()
    assert np.mean(sellers % 100 == 0) == pytest.approx(0.75, abs=0.03)
    logs = np.log10(bids.column("price").to_numpy())
    assert np.histogram(logs, bins=6, range=(2, 8))[0] / len(logs) == pytest.approx([1 / 6] * 6, abs=0.01)
    channels = bids.column("channel").to_pylist()
    assert np.mean([not each.startswith("channel-") for each in channels]) == pytest.approx(0.5, abs=0.02)


@pytest.mark.slow
def test_auctions_are_open_for_as_long_as_a_hundred_others_take_to_open_on_average() -> None:
    auctions = HOUSE.events(0, 500_000).auction.rows
    opened, expires = (np.asarray(auctions.column(name), "M8[ms]").astype(int) for name in ("dateTime", "expires"))
    assert (expires > opened).all()
    assert np.mean(expires - opened) == pytest.approx(100 / 3 * 50 * HOUSE.gap_us / 1000, rel=0.03)


def test_bids_name_auctions_and_persons_that_exist_or_come_next() -> None:
    for first in (0, 700_000):
        events = HOUSE.events(first, first + 5000)
        last_auction = events.auction.rows.column("id").to_numpy().max()
        last_person = events.person.rows.column("id").to_numpy().max()
        auctions, bidders = (events.bid.rows.column(name).to_numpy() for name in ("auction", "bidder"))
        assert auctions.min() >= 1000
        assert auctions.max() <= last_auction + 10
        assert bidders.min() >= 1000
        assert bidders.max() <= last_person + 10


def test_sizes_are_about_those_that_nexmark_asks_for() -> None:
    events = HOUSE.events(0, COUNT)
    texts = {"person": 200, "auction": 500}
    for kind, size in texts.items():
        rows = getattr(events, kind).rows
        numbers = sum(8 for each in rows.schema if not pa.types.is_string(each.type))
        strings = sum(
            len(value) for each in rows.columns if pa.types.is_string(each.type) for value in each.to_pylist()
        )
        assert strings / rows.num_rows + numbers == pytest.approx(size, rel=0.05)
    extra = [len(value) for value in events.bid.rows.column("extra").to_pylist()]
    assert np.mean(extra) == pytest.approx(68, rel=0.03)


def test_neighbours_are_spread_over_any_number_of_partitions() -> None:
    for partitions in (2, 3, 7):
        for _, made in HOUSE.events(0, COUNT):
            counts = np.bincount(made.places % partitions, minlength=partitions)
            assert counts.min() / counts.max() > 0.9


def test_json_holds_each_row_as_it_is() -> None:
    for _, made in HOUSE.events(0, 100):
        texts = as_json(made.rows).to_pylist()
        for row, text in zip(made.rows.to_pylist(), texts, strict=True):
            found = json.loads(text)
            times = {
                name: f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}Z"
                for name, value in row.items()
                if hasattr(value, "year")
            }
            assert found == {**row, **times}


def test_the_event_that_closes_a_topic_has_a_time_and_nothing_that_others_have() -> None:
    for kind, schema in KINDS.items():
        found = json.loads(as_json(closing(schema))[0].as_py())
        when = f"{CLOSING:%Y-%m-%d %H:%M:%S}.000Z"
        assert found.pop("dateTime") == when, kind
        assert set(found.values()) <= {-1, "", when}
