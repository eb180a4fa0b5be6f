"""The auction house: persons register, open auctions and bid, fifty events at a time: 1 person, 3 auctions, 46 bids.

What an event is follows from its number alone, so any range can be made by itself:

    number mod 50      0: a person   1, 2, 3: an auction   4 … 49: a bid
    time               base + number · gap
    ids                persons, auctions count from 1000; the last ones made before an event follow by arithmetic

Some are busier than others. Of two bids one goes to the hot auction, which is the first of the last hundred; of four
bids three come from the hot bidder, the second of the last hundred persons; of four auctions three belong to the
hot seller, the first of them. The others choose among the last 100 auctions and the last 1000 persons, or among the
ten that come next: so a bid may come before its auction, and an auction before its seller.

Events stand in the log out of order: within groups of ``out_of_order`` their numbers are permuted. A *position* is a
place in the log and is what ranges are made of; the *number* is that of the event which stands there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.chance import Chance, Ints

__all__ = ["AUCTION", "BID", "KINDS", "PERSON", "Events", "House", "fingerprint", "side_input"]

PERSONS, AUCTIONS, TOGETHER = 1, 3, 50
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_GROUP = 100
"""The hot auction, bidder and seller change whenever as many ids have passed."""
ACTIVE_PERSONS, OPEN_AUCTIONS = 1000, 100
LEAD = 10
"""Ids that may be named before they exist."""
PERMUTATION = 953
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
BYTES_SPREAD = 0.2
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
NUMBER_BYTES = 8

GIVEN_NAMES = ("Ada", "Ben", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jun", "Kai")
FAMILY_NAMES = ("Abel", "Brandt", "Costa", "Dunn", "Ekman", "Faro", "Grün", "Haas", "Ito")
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Casper",
)
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")

TIME = pa.timestamp("ms", "UTC")
PERSON = pa.schema(
    [("id", pa.int64())]
    + [(name, pa.string()) for name in ("name", "emailAddress", "creditCard", "city", "state")]
    + [("dateTime", TIME), ("extra", pa.string())]
)
AUCTION = pa.schema(
    [("id", pa.int64()), ("itemName", pa.string()), ("description", pa.string())]
    + [("initialBid", pa.int64()), ("reserve", pa.int64()), ("dateTime", TIME), ("expires", TIME)]
    + [("seller", pa.int64()), ("category", pa.int64()), ("extra", pa.string())]
)
BID = pa.schema(
    [("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("channel", pa.string())]
    + [("url", pa.string()), ("dateTime", TIME), ("extra", pa.string())]
)
KINDS = {"person": PERSON, "auction": AUCTION, "bid": BID}
MIDNIGHT = datetime(2026, 2, 1, tzinfo=UTC)
BEFORE_MIDNIGHT_S = 20
"""Events begin shortly before a day ends, so that results per day have two of them."""


@dataclass(frozen=True, slots=True)
class Made:
    """Events of one kind, in the order of the log; ``places`` counts them in order of time, to choose partitions."""

    rows: pa.Table
    places: Ints


@dataclass(frozen=True, slots=True)
class Events:
    person: Made
    auction: Made
    bid: Made

    def __iter__(self) -> Iterator[tuple[str, Made]]:
        return iter((("person", self.person), ("auction", self.auction), ("bid", self.bid)))


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """One data set: equal houses make equal events."""

    seed: int = 1
    gap_us: int = 100
    """Between two events, in event time: ten thousand a second."""
    base_ms: int = int(MIDNIGHT.timestamp() - BEFORE_MIDNIGHT_S) * 1000
    out_of_order: int = 1000

    def __post_init__(self) -> None:
        if self.out_of_order < 1 or self.out_of_order % PERMUTATION == 0:
            raise ValueError(f"out_of_order={self.out_of_order}: not positive, or a multiple of {PERMUTATION}")

    def events(self, first: int, end: int) -> Events:
        """What stands in the log at the positions [first, end)."""
        numbers = self._numbers(np.arange(first, end, dtype=np.int64))
        kinds = numbers % TOGETHER
        persons = numbers[kinds < PERSONS]
        auctions = numbers[(kinds >= PERSONS) & (kinds < PERSONS + AUCTIONS)]
        bids = numbers[kinds >= PERSONS + AUCTIONS]
        # Neighbours of a kind go to different partitions, however many there are: all advance together.
        return Events(
            person=Made(_persons(self, persons), last_person(persons)),
            auction=Made(_auctions(self, auctions), last_auction(auctions)),
            bid=Made(_bids(self, bids), bids - (bids // TOGETHER + 1) * (PERSONS + AUCTIONS)),
        )

    def _numbers(self, positions: Ints) -> Ints:
        """Of the events at these positions. 953 is a prime: within a group each number comes once."""
        group = positions // self.out_of_order * self.out_of_order
        return group + positions * PERMUTATION % self.out_of_order

    def times_ms(self, numbers: Ints) -> Ints:
        return self.base_ms + numbers * self.gap_us // 1000


def last_person(numbers: Ints) -> Ints:
    """The last person before or at each event, counted from 0."""
    return numbers // TOGETHER


def last_auction(numbers: Ints) -> Ints:
    """The last auction before or at each event, counted from 0; -1 before the first."""
    return numbers // TOGETHER * AUCTIONS + (numbers % TOGETHER - PERSONS).clip(-1, AUCTIONS - 1)


def some_person(chance: Chance, purpose: str) -> Ints:
    count = last_person(chance.numbers) + 1
    active = np.minimum(count, ACTIVE_PERSONS)
    return count - active + chance.below(purpose, active + LEAD)


def some_auction(chance: Chance, purpose: str) -> Ints:
    last = last_auction(chance.numbers)
    oldest = (last - OPEN_AUCTIONS).clip(0)
    return oldest + chance.below(purpose, last - oldest + 1 + LEAD)


def hot_or(chance: Chance, purpose: str, *, one_in: int, hot: Ints, other: Ints) -> Ints:
    return np.where(chance.below(purpose, one_in) > 0, hot, other)


def prices(chance: Chance, purpose: str) -> Ints:
    """Cents, from one to a million dollars, each power of ten as likely as the next."""
    return np.rint(np.power(10.0, chance.share(purpose) * 6) * 100).astype(np.int64)


def one_of(chance: Chance, purpose: str, values: pa.Array) -> pa.Array:
    return values.take(pa.array(chance.below(purpose, len(values))))


def extra(chance: Chance, so_far: Ints, bytes_mean: int) -> pa.StringArray:
    """Letters up to the size that an event of its kind has on average, more or less a fifth of what is lacking."""
    lacking = (bytes_mean - so_far).clip(0)
    spread = np.rint(lacking * BYTES_SPREAD).astype(np.int64)
    return chance.text("extra", lacking - spread + chance.below("extra length", np.maximum(2 * spread, 1)))


def lengths(*columns: pa.Array) -> Ints:
    return np.sum([np.asarray(pc.binary_length(each), np.int64) for each in columns], axis=0, dtype=np.int64)


def timed(values: Ints) -> pa.Array:
    return pa.array(values).cast(TIME)


@cache
def four_digits() -> pa.StringArray:
    return pa.array([f"{number:04}" for number in range(10_000)])


def _persons(house: House, numbers: Ints) -> pa.Table:
    chance = Chance(house.seed, numbers)
    given = one_of(chance, "given name", pa.array(GIVEN_NAMES))
    name = pc.binary_join_element_wise(given, one_of(chance, "family name", pa.array(FAMILY_NAMES)), " ")
    mailbox = chance.text("mailbox", np.full(len(numbers), 7))
    email = pc.binary_join_element_wise(mailbox, "@", chance.text("mail host", np.full(len(numbers), 5)), ".com", "")
    card = pc.binary_join_element_wise(*(one_of(chance, f"card {part}", four_digits()) for part in range(4)), " ")
    city = one_of(chance, "city", pa.array(CITIES))
    state = one_of(chance, "state", pa.array(STATES))
    so_far = NUMBER_BYTES + lengths(name, email, card, city, state)
    ids = pa.array(last_person(numbers) + FIRST_ID)
    padding = extra(chance, so_far, PERSON_BYTES)
    columns = [ids, name, email, card, city, state, timed(house.times_ms(numbers)), padding]
    return pa.Table.from_arrays(columns, schema=PERSON)


def _auctions(house: House, numbers: Ints) -> pa.Table:
    chance = Chance(house.seed, numbers)
    item = chance.text("item", 3 + chance.below("item length", 17))
    description = chance.text("description", 3 + chance.below("description length", 97))
    initial = prices(chance, "initial bid")
    reserve = initial + prices(chance, "reserve")
    opened = house.times_ms(numbers)
    # On average an auction is open for as long as it takes to open a hundred others.
    horizon = house.times_ms(numbers + OPEN_AUCTIONS * TOGETHER // AUCTIONS) - opened
    expires = opened + 1 + chance.below("length", np.maximum(horizon * 2, 1))
    hot = last_person(numbers) // HOT_GROUP * HOT_GROUP
    seller = hot_or(chance, "hot seller", one_in=4, hot=hot, other=some_person(chance, "seller")) + FIRST_ID
    category = FIRST_CATEGORY + chance.below("category", CATEGORIES)
    so_far = 6 * NUMBER_BYTES + lengths(item, description)
    columns = [
        pa.array(last_auction(numbers) + FIRST_ID),
        item,
        description,
        pa.array(initial),
        pa.array(reserve),
        timed(opened),
        timed(expires),
        pa.array(seller),
        pa.array(category),
        extra(chance, so_far, AUCTION_BYTES),
    ]
    return pa.Table.from_arrays(columns, schema=AUCTION)


def _bids(house: House, numbers: Ints) -> pa.Table:
    chance = Chance(house.seed, numbers)
    hot_auction = last_auction(numbers) // HOT_GROUP * HOT_GROUP
    auction = hot_or(chance, "hot auction", one_in=2, hot=hot_auction, other=some_auction(chance, "auction"))
    hot_bidder = last_person(numbers) // HOT_GROUP * HOT_GROUP + 1
    bidder = hot_or(chance, "hot bidder", one_in=4, hot=hot_bidder, other=some_person(chance, "bidder"))
    names, urls = channels(house.seed)
    cold = len(HOT_CHANNELS) + chance.below("channel", CHANNELS)
    channel = pa.array(np.where(chance.below("hot channel", 2) > 0, chance.below("which hot", len(HOT_CHANNELS)), cold))
    columns = [
        pa.array(auction + FIRST_ID),
        pa.array(bidder + FIRST_ID),
        pa.array(prices(chance, "price")),
        names.take(channel),
        urls.take(channel),
        timed(house.times_ms(numbers)),
        extra(chance, np.full(len(numbers), 4 * NUMBER_BYTES), BID_BYTES),
    ]
    return pa.Table.from_arrays(columns, schema=BID)


@cache
def channels(seed: int) -> tuple[pa.StringArray, pa.StringArray]:
    """Names and addresses of all channels, the hot ones first; of the others nine in ten have an id in the address."""
    chance = Chance(seed, np.arange(len(HOT_CHANNELS) + CHANNELS, dtype=np.int64))
    folders = [chance.text(f"folder {part}", np.full(len(chance.numbers), 5)) for part in range(3)]
    base = pc.binary_join_element_wise("https://www.nexmark.com", *folders, "item.htm?query=1", "/").to_pylist()
    told = chance.below("told", 10) > 0
    ids = chance.below("channel id", 1 << 31)
    names, urls = list(HOT_CHANNELS), base[: len(HOT_CHANNELS)]
    for index in range(CHANNELS):
        at = len(HOT_CHANNELS) + index
        names.append(f"channel-{index}")
        urls.append(f"{base[at]}&channel_id={ids[at]}" if told[at] else base[at])
    return pa.array(names), pa.array(urls)


def side_input(rows: int = 10_000) -> pa.Table:
    """The bounded table of q13: a value for each remainder of an auction's id."""
    keys = np.arange(rows, dtype=np.int64)
    return pa.table({"key": pa.array(keys), "value": pa.array([f"side-{key * 7919 % 1000}" for key in keys.tolist()])})


def fingerprint(house: House, count: int, *, step: int = 100_000) -> str:
    """A hash of the first events, which names a data set; it does not depend on ``step``."""
    digests = {name: hashlib.sha256() for name in KINDS}
    for first in range(0, count, step):
        for name, made in house.events(first, min(first + step, count)):
            _digest(made.rows, digests[name])
    return hashlib.sha256(b"".join(each.digest() for each in digests.values())).hexdigest()[:16]


def _digest(rows: pa.Table, digest: hashlib._Hash) -> None:
    """Row after row, each field with its end marked, so that cuts between tables leave no trace."""
    texts = [pc.cast(each.cast(pa.int64()) if each.type == TIME else each, pa.string()) for each in rows.columns]
    lines = pc.binary_join_element_wise(*texts, "\n", "\t")
    for chunk in lines.chunks if isinstance(lines, pa.ChunkedArray) else [lines]:
        digest.update("".join(chunk.to_pylist()).encode())
