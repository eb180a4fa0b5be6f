"""Stored searches: what an event costs when it is matched against 1,000, 10,000 and 100,000 of them, without Spark.

Listings are drawn from a seeded world: titles of words with Zipf's frequencies, 200 cities, prices, rooms, dates. A
search is made of a listing that was drawn before, as people search for what there is: two or three of its words, a
city, a range of prices around its own; some are phrases, prefixes, alternatives or have a negation. The more searches,
the more an event matches; so figures say how many matches an event has, and one case has as many matches whatever
the number of searches. The state kernel runs around it, with its state in memory.

``replicated`` is how it is built: every bucket has all searches and an event goes to one. ``divided`` is the other
layout: every bucket has a part of the searches, and each event goes to all of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.figures import Figure
from headrace.spark.searches.search_operator import EVENT, KEYLESS, QUERY, SEARCH, TRUNCATES, MatchSearches
from tests.unit.spark.stream_world import Query

COUNTS = (1_000, 10_000, 100_000)
EVENTS_PER_BATCH = 10_000
BUCKETS = 8
LISTING = pa.struct(
    [
        ("title", pa.string()),
        ("city", pa.string()),
        ("price", pa.int64()),
        ("rooms", pa.int64()),
        ("listed", pa.timestamp("us", "UTC")),
    ]
)
KEYS = pa.struct([("_key_0", pa.int64())])
ROW = pa.struct([(QUERY, pa.string())])
INPUT = pa.schema(
    [
        *KEYS,
        (KEYLESS, pa.bool_()),
        (TRUNCATES, pa.bool_()),
        (EVENT, pa.struct([("row", LISTING)])),
        (SEARCH, pa.struct([("position", pa.int64()), ("lane", pa.int64()), ("row", ROW)])),
    ]
)
OPERATOR = MatchSearches(
    events=LISTING,
    keys=KEYS,
    row=ROW,
    names=("search_id",),
    fields=tuple(each.name for each in LISTING),
    defaults=("title",),
)
WORDS = 20_000
TITLE_WORDS = 12


@dataclass
class World:
    """Listings and searches for them, the same in every run."""

    random: np.random.Generator

    def listings(self, count: int) -> dict[str, Any]:
        ranks = np.minimum(self.random.zipf(1.2, (count, TITLE_WORDS)), WORDS)
        return {
            "title": [" ".join(f"w{each}" for each in row) for row in ranks.tolist()],
            "words": ranks,
            "city": self.random.integers(0, 200, count),
            "price": self.random.integers(200, 3000, count),
            "rooms": self.random.integers(1, 7, count),
            "listed": self.random.integers(0, 30 * 86_400_000_000, count),
        }

    def events(self, count: int) -> pa.Table:
        made = self.listings(count)
        columns = [
            pa.array(made["title"]),
            pa.array([f"city{each}" for each in made["city"].tolist()]),
            pa.array(made["price"]),
            pa.array(made["rooms"]),
            pa.array(made["listed"]).cast(pa.timestamp("us", "UTC")),
        ]
        rows = pa.StructArray.from_arrays([pa.StructArray.from_arrays(columns, fields=list(LISTING))], names=["row"])
        return filled(count, {KEYLESS: pa.array([True] * count), EVENT: rows})

    def searches(self, count: int, own_word: bool) -> list[str]:
        made = self.listings(count)
        found = []
        for number in range(count):
            words = [f"w{each}" for each in sorted(set(made["words"][number].tolist()), reverse=True)]
            price, city = int(made["price"][number]), int(made["city"][number])
            parts = [*words[:2], f"price:[{price - 100} TO {price + 100}]"]
            kind = number % 10
            if kind == 1:
                parts = [f'"{" ".join(f"w{each}" for each in made["words"][number, :2].tolist())}"', *parts[1:]]
            elif kind == 2:
                parts.append(f"city:city{city}*")
            elif kind == 3:
                parts = [f"({words[0]} OR {words[-1]})", f"city:city{city}", parts[-1]]
            elif kind == 4:
                parts += [f"NOT rooms:{int(made['rooms'][number])}"]
            elif kind == 5:
                parts = [f"city:city{city}", f"rooms:{int(made['rooms'][number])}", parts[-1]]
            if own_word:
                parts.append(f"unique{number}")
            found.append(" AND ".join(parts))
        return found


def filled(count: int, given: dict[str, pa.Array]) -> pa.Table:
    columns = [
        given.get(each.name, pa.array([False] * count) if each.type == pa.bool_() else pa.nulls(count, each.type))
        for each in INPUT
    ]
    return pa.Table.from_arrays(columns, schema=INPUT)


def registered(texts: list[str], ids: npt.NDArray[np.int64]) -> pa.Table:
    rows = pa.StructArray.from_arrays([pa.array(texts, pa.string())], fields=list(ROW))
    columns = [pa.array(np.arange(len(ids))), pa.array(np.zeros(len(ids), np.int64)), rows]
    changes = pa.StructArray.from_arrays(columns, fields=list(INPUT.field(SEARCH).type))
    return filled(len(ids), {"_key_0": pa.array(ids), SEARCH: changes})


@dataclass(frozen=True, slots=True)
class Cost:
    micros_per_event: list[float]
    """CPU time, batch by batch."""
    matches_per_event: float
    register_s: float


def measured(count: int, batches: int, *, own_word: bool, parts: int = 1) -> Cost:
    """``parts``: the searches divided among so many buckets, each of which sees all events."""
    world = World(np.random.default_rng(7))
    texts, ids = world.searches(count, own_word), np.arange(count)
    began = time.process_time()
    buckets = [Query(OPERATOR, INPUT, KEYS) for _ in range(parts)]
    for number, bucket in enumerate(buckets):
        bucket.push(registered(texts[number::parts], ids[number::parts]))
    registering = time.process_time() - began
    micros, matches = [], 0
    for number in range(batches + 1):
        events = world.events(EVENTS_PER_BATCH)
        began = time.process_time()
        found = sum(bucket.push(events).num_rows for bucket in buckets)
        if number:  # the first one places the searches
            micros.append((time.process_time() - began) / EVENTS_PER_BATCH * 1e6)
            matches += found
    return Cost(micros, matches / (batches * EVENTS_PER_BATCH), registering)


def compared(case: str, ours: Cost, peers: Cost, peer: str, goal: float | None = None) -> Figure:
    return Figure(
        hop="searches",
        case=f"{case}; {ours.matches_per_event:.2f} and {peers.matches_per_event:.2f} matches an event",
        unit="µs CPU an event",
        ours=ours.micros_per_event,
        peers=peers.micros_per_event,
        peer=peer,
        higher_is_better=False,
        goal=goal,
    )


def run(*, quick: bool = False) -> list[Figure]:
    batches = 2 if quick else 8
    counts = COUNTS[:2] if quick else COUNTS
    figures = []
    for own_word, what in ((False, "as people search"), (True, "with a word that no event has")):
        few = measured(COUNTS[0], batches, own_word=own_word)
        for count in counts[1:]:
            many = measured(count, batches, own_word=own_word)
            case = f"{count:,} searches {what}, registered at {many.register_s / count * 1e6:.0f} µs each"
            figures.append(compared(case, many, few, f"{COUNTS[0]:,} searches"))
    whole = measured(COUNTS[1], batches, own_word=False)
    divided = measured(COUNTS[1], batches, own_word=False, parts=BUCKETS)
    figures.append(
        compared(f"{COUNTS[1]:,} searches in every bucket", whole, divided, f"divided among {BUCKETS}, events in all")
    )
    return figures
