"""Patterns over events without Spark: 1, 10 and 100 of them in one pass, and what more keys and more events cost.

Payments of cards at a steady rate. The n-th pattern is a payment with one amount and then one with another within a
minute, with amounts that no other pattern asks for, each of one payment in a thousand. All payments reach the operator,
as they do when some pattern needs them all. Conditions on a row alone are computed by Spark in a query; here they come
ready, as in the operator's input. Figures are CPU time per event.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure
from headrace.spark.patterns.expressions import Columns
from headrace.spark.patterns.fluent import pattern
from headrace.spark.patterns.match import fluent_plan
from headrace.spark.patterns.operator import MASK_BITS, TIME, MatchPatterns
from headrace.spark.patterns.recognize import PLACE, mask_name
from tests.unit.spark.stream_world import SECOND, Query

KEYS = pa.struct([("card", pa.int64())])
EVENTS = 200_000
BATCH = 20_000
CARDS = 1_000
PER_SECOND = 200
PARTIALS_MAX = 100_000


def operator_of(count: int) -> tuple[MatchPatterns, int]:
    """``count`` patterns in one operator, and how many conditions they have."""
    columns = Columns()
    plans = []
    for number in range(count):
        first = pattern("high").where(f"amount = {999 - number}")
        wanted = first.followed_by("low").where(f"amount = {number}").within("60 seconds")
        plans.append(fluent_plan(f"p{number}", wanted, columns, (PARTIALS_MAX, "fail"), False, {})[0])
    bits = len(columns.conditions)
    masks = [pa.field(mask_name(part), pa.int64()) for part in range(-(-bits // MASK_BITS))]
    rows = pa.schema([*KEYS, ("at", TIME), ("amount", pa.int64()), *masks, (PLACE, pa.int64())])
    order = ((PLACE, "ascending"),)
    made = MatchPatterns(
        rows=rows,
        keys=KEYS,
        event_time="at",
        order=order,  # type: ignore[arg-type]
        place=PLACE,
        patterns=tuple(plans),
        given="events",
        shown=("at", "amount"),
    )
    return made, count


def payments(first: int, count: int, cards: int, operator: MatchPatterns, patterns: int) -> pa.Table:
    random = np.random.default_rng(first)
    amounts = random.integers(0, 1000, count)
    columns = {
        "card": random.integers(0, cards, count),
        "at": (first + np.arange(count)) * (SECOND // PER_SECOND),
        "amount": amounts,
        PLACE: np.arange(first, first + count),
    }
    flags = [each for number in range(patterns) for each in (amounts == 999 - number, amounts == number)]
    for part in range(-(-len(flags) // MASK_BITS)):
        some = flags[part * MASK_BITS : (part + 1) * MASK_BITS]
        columns[mask_name(part)] = sum(
            (flag.astype(np.int64) << bit for bit, flag in enumerate(some)), start=np.zeros(count, np.int64)
        )
    return pa.Table.from_arrays(
        [pa.array(columns[each.name]).cast(each.type) for each in operator.rows], schema=operator.rows
    )


def micros_per_event(patterns: int, cards: int = CARDS, events: int = EVENTS) -> tuple[list[float], int]:
    operator, count = operator_of(patterns)
    query, found, matches = Query(operator, operator.rows, KEYS, "at"), [], 0
    for first in range(0, events, BATCH):
        batch = payments(first, BATCH, cards, operator, count)
        began = time.process_time()
        matches += query.push(batch, first * (SECOND // PER_SECOND)).num_rows
        found.append((time.process_time() - began) / BATCH * 1e6)
    return found[2:], matches


def run(*, quick: bool = False) -> list[Figure]:
    events = EVENTS // (4 if quick else 1)
    one, _ = micros_per_event(1, events=events)
    figures = []
    for count in (10, 100):
        several, matches = micros_per_event(count, events=events)
        figures.append(
            Figure(
                hop="patterns",
                case=f"{count} patterns in one pass, {matches:,} matches",
                unit="µs CPU an event",
                ours=several,
                peers=one,
                peer="one pattern",
                higher_is_better=False,
                goal=10.0 if count == 100 else None,
            )
        )
    many, _ = micros_per_event(10, cards=100 * CARDS, events=events)
    few, _ = micros_per_event(10, events=events)
    figures.append(
        Figure(
            hop="patterns",
            case=f"10 patterns, {100 * CARDS:,} keys",
            unit="µs CPU an event",
            ours=many,
            peers=few,
            peer=f"{CARDS:,} keys",
            higher_is_better=False,
        )
    )
    return figures
