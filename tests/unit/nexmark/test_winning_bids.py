"""The winning bid of each auction: however events are cut and ordered, and whatever is restarted, DuckDB's answer."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.nexmark.generator import House
from benchmarks.nexmark.oracle import Judge
from benchmarks.nexmark.winning_bids import WinningBids
from headrace.spark.state.bucket import Bucket
from headrace.spark.state.operator import BEGINNING, END, advance, run_bounded
from tests.unit.spark.stream_world import MemoryStore

KEYS = pa.struct([("id", pa.int64())])
ABOUT = pa.struct([("category", pa.int64())])
OFFER = pa.struct([("bidder", pa.int64()), ("price", pa.int64())])
OPERATOR = WinningBids(ABOUT, OFFER)
TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("id", pa.int64()), ("dateTime", TIME), ("expires", TIME), ("about", ABOUT), ("offer", OFFER)])

AUCTION = st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 12))
BID = st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 4), st.integers(1, 3))
Auction = tuple[int, int, int]
Bid = tuple[int, int, int, int]


def seconds(value: int) -> int:
    return value * 1_000_000


def rows_of(auctions: list[Auction], bids: list[Bid]) -> list[dict[str, object]]:
    opened = [
        {"id": key, "dateTime": seconds(at), "expires": seconds(at + length), "about": {"category": key}}
        for key, at, length in auctions
    ]
    offered = [
        {"id": key, "dateTime": seconds(at), "offer": {"bidder": bidder, "price": price}}
        for key, at, bidder, price in bids
    ]
    return [*opened, *offered]


def expected(auctions: list[Auction], bids: list[Bid]) -> set[tuple[int, int, int, int]]:
    found = set()
    for key, opened, length in auctions:
        counting = [bid for bid in bids if bid[0] == key and opened <= bid[1] <= opened + length]
        if counting:
            _, at, bidder, price = min(counting, key=lambda bid: (-bid[3], bid[1], bid[2]))
            found.add((key, seconds(at), bidder, price))
    return found


def winners(outputs: list[pa.Table]) -> list[tuple[int, int, int, int]]:
    rows = pa.concat_tables(outputs).to_pylist()
    return [(row["id"], round(row["bid_dateTime"].timestamp() * 1e6), row["bidder"], row["price"]) for row in rows]


@settings(max_examples=60, deadline=None)
@given(
    auctions=st.lists(AUCTION, max_size=4, unique_by=lambda each: each[0]),
    bids=st.lists(BID, max_size=15),
    lateness=st.integers(0, 20),
    cuts=st.integers(1, 6),
    seed=st.randoms(use_true_random=False),
)
def test_winners_do_not_depend_on_cuts_order_within_the_lateness_or_restarts(
    auctions: list[Auction], bids: list[Bid], lateness: int, cuts: int, seed: random.Random
) -> None:
    events = rows_of(auctions, bids)
    events.sort(key=lambda row: (row["dateTime"] + seed.random() * seconds(lateness), seed.random()))  # type: ignore[operator]
    store = MemoryStore()
    bucket = Bucket(OPERATOR.layout(KEYS))
    outputs, watermark, newest = [OPERATOR.output.empty_table()], BEGINNING, BEGINNING
    size = max(1, -(-len(events) // cuts))
    for at in range(0, len(events) + size, size):
        if seed.random() < 0.5:
            bucket = Bucket(OPERATOR.layout(KEYS))
        bucket.refresh(store.manifest_value(), store)
        batch = events[at : at + size]
        outcome = advance(bucket, OPERATOR, pa.Table.from_pylist(batch, ROWS), now_us=watermark, event_time="dateTime")
        assert outcome.late_rows == 0
        outputs.append(outcome.output)
        bucket.save(store.manifest_value(), 1, store)
        newest = max([newest, *(int(row["dateTime"]) for row in batch)])  # type: ignore[call-overload]
        watermark = max(watermark, newest - seconds(lateness)) if newest != BEGINNING else watermark
    outputs.append(advance(bucket, OPERATOR, ROWS.empty_table(), now_us=END, event_time="dateTime").output)
    assert sorted(winners(outputs)) == sorted(expected(auctions, bids))
    whole = run_bounded(OPERATOR, pa.Table.from_pylist(events, ROWS), KEYS, "dateTime")
    assert sorted(winners([whole])) == sorted(expected(auctions, bids))


def test_a_bid_at_the_very_expiry_counts_and_one_before_the_opening_does_not() -> None:
    rows = rows_of([(1, 10, 5)], [(1, 9, 1, 4), (1, 15, 2, 3), (1, 16, 3, 4)])
    found = run_bounded(OPERATOR, pa.Table.from_pylist(rows, ROWS), KEYS, "dateTime")
    assert winners([found]) == [(1, seconds(15), 2, 3)]


def test_an_auction_is_told_only_when_the_watermark_is_past_its_expiry_and_then_forgotten() -> None:
    bucket = Bucket(OPERATOR.layout(KEYS))
    rows = pa.Table.from_pylist(rows_of([(1, 10, 5)], [(1, 12, 1, 1)]), ROWS)
    assert advance(bucket, OPERATOR, rows, now_us=BEGINNING, event_time="dateTime").output.num_rows == 0
    for second, count in ((15, 0), (16, 1), (17, 0)):
        more = advance(bucket, OPERATOR, ROWS.empty_table(), now_us=seconds(second), event_time="dateTime")
        assert more.output.num_rows == count, f"at {second}"
    late = pa.Table.from_pylist(rows_of([], [(1, 20, 9, 9)]), ROWS)
    assert advance(bucket, OPERATOR, late, now_us=seconds(17), event_time="dateTime").output.num_rows == 0
    assert len(bucket.due(seconds(36))) == 1, "twenty seconds after its expiry it is forgotten"


def test_bids_whose_auction_never_came_are_forgotten_when_the_watermark_is_past_them() -> None:
    bucket = Bucket(OPERATOR.layout(KEYS))
    bids = pa.Table.from_pylist(rows_of([], [(1, 12, 1, 1), (2, 30, 1, 1)]), ROWS)
    advance(bucket, OPERATOR, bids, now_us=BEGINNING, event_time="dateTime")
    for second, due, left in ((12, 0, 2), (13, 1, 1), (31, 1, 0)):
        assert len(bucket.due(seconds(second))) == due, f"at {second}"
        advance(bucket, OPERATOR, ROWS.empty_table(), now_us=seconds(second), event_time="dateTime")
        assert len(bucket.live_keys()) == left, f"at {second}"


def test_winners_of_a_house_are_those_of_batch_sql() -> None:
    house, count = House(), 20_000
    events = house.events(0, count)
    auctions, bids = events.auction.rows, events.bid.rows
    about = pa.StructArray.from_arrays([auctions.column("category").combine_chunks()], fields=list(ABOUT))
    opened = pa.table(
        {"id": auctions["id"], "dateTime": auctions["dateTime"], "expires": auctions["expires"], "about": about}
    )
    offer = pa.StructArray.from_arrays([bids.column(each.name).combine_chunks() for each in OFFER], fields=list(OFFER))
    made = pa.table({"id": bids["auction"], "dateTime": bids["dateTime"], "offer": offer})
    rows = pa.concat_tables([opened, made], promote_options="default").select(ROWS.names).cast(ROWS)
    found = run_bounded(OPERATOR, rows, KEYS, "dateTime")
    judge = Judge(house, count)
    try:
        answer = judge.answer("q9").select(found.column_names)
    finally:
        judge.close()
    assert found.num_rows > 100
    key = [("id", "ascending")]
    plain = answer.sort_by(key).to_pydict()
    for name, values in found.sort_by(key).to_pydict().items():
        naive = [value.replace(tzinfo=None) if hasattr(value, "year") else value for value in values]
        assert naive == plain[name], name


@pytest.mark.parametrize("bounded", [True, False])
def test_nothing_at_all_gives_nothing(bounded: bool) -> None:
    if bounded:
        assert run_bounded(OPERATOR, ROWS.empty_table(), KEYS, "dateTime").num_rows == 0
    else:
        bucket = Bucket(OPERATOR.layout(KEYS))
        assert advance(bucket, OPERATOR, ROWS.empty_table(), now_us=0, event_time="dateTime").output.num_rows == 0
