"""``python -m benchmarks.nexmark.field [example …] [--events N] [--warm N] [--rounds N] [--without-flink]``: six.

The patterns of ``examples/22_patterns.py``, each over a topic with that many events, on headrace and on Flink, as the
patterns of Nexmark's family are (``cep``): the same topics, the matches of few events compared first.

Flink's MATCH_RECOGNIZE is always strict, and has no SUBSET, no PREV and no absence. So where headrace's pattern is made
by functions, Flink's text has a loop for the rows that are passed over. Flink takes no optional part after a greedy
loop: the loops of ``v_shape`` are reluctant there, which is the same, since no row fits two of its variables.
``delivery`` waits for what does not come; Flink's SQL cannot say that, so headrace is measured alone. ``perimeter`` has
every match, without AFTER MATCH: Flink's SKIP PAST LAST ROW takes matches by their first rows, and headrace's functions
by their last ones, as Flink's Java API.

Events of a key are some seconds or minutes apart, no two of a topic at the same time, and up to two seconds out of
order. ``n`` is the number of an event in its topic, by which matches are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import headrace.spark as hr
from benchmarks.nexmark.cep import measure, parse
from benchmarks.nexmark.generator import TIME
from benchmarks.nexmark.load import BATCH_BYTES, STEP, Loaded, closing, records
from benchmarks.nexmark.queries import Query
from headrace.client import Admin, Client, Producer
from headrace.spark.patterns.fluent import Pattern
from headrace.spark.topic_sink.encode import Encoder

__all__ = ["EXAMPLES", "events_of_topic", "load_topics"]

PROGRAM = "benchmarks.nexmark.field"
SMALL_EVENTS = 20_000
PARTITIONS = 2
BASE_MS = int(datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1000)
OUT_OF_ORDER_MS = 2_000
DAY_MS = 86_400_000
Numbers = np.random.Generator
Columns = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A pattern over its own topic, on both sides."""

    name: str
    key: str
    keys: int
    """How many keys there are in a million events."""
    gap_ms: int
    """From one event of the topic to the next."""
    fields: tuple[tuple[str, pa.DataType], ...]
    values: Callable[[Numbers, int], Columns]
    """Given how many events there are."""
    pattern: Callable[[DataFrame], DataFrame]
    flinks: str | None
    """After PARTITION BY and ORDER BY."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.key, pa.int64()), ("dateTime", TIME), ("n", pa.int64()), *self.fields])

    def query(self) -> Query:
        return Query(self.name, self.build, {self.name: tuple(self.schema.names)}, "append", (), "disk")

    def build(self, **frames: DataFrame) -> DataFrame:
        found = self.pattern(frames[self.name])
        return found.drop("match_id", "pattern", "match_start", "match_end")

    def sql(self) -> str | None:
        if self.flinks is None:
            return None
        return f"SELECT * FROM {self.name} MATCH_RECOGNIZE (PARTITION BY {self.key} ORDER BY `dateTime` {self.flinks})"


def by_text(key: str, text: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: hr.match_recognize(rows, f"PARTITION BY {key} ORDER BY `dateTime` {text}")


def by_functions(key: str, wanted: Pattern, **measures: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: hr.match(rows, wanted, keys=key, event_time="dateTime", measures=measures)


# ---- the six -------------------------------------------------------------------------------------------------------

FRAUD = """MEASURES A.n AS first_n, B.n AS second_n, A.amount + B.amount AS spent
    ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN (A B) WITHIN INTERVAL '1' HOUR
    DEFINE B AS 2 * 6371 * ASIN(SQRT(POWER(SIN(RADIANS(B.lat - A.lat) / 2), 2)
        + COS(RADIANS(A.lat)) * COS(RADIANS(B.lat)) * POWER(SIN(RADIANS(B.lon - A.lon) / 2), 2))) > 500"""


def payments(random: Numbers, count: int) -> Columns:
    """One of a hundred is anywhere in the world, the others are near home."""
    far = random.random(count) < 0.01
    return {
        "lat": np.round(np.where(far, random.uniform(-60, 60, count), random.normal(52, 0.5, count)), 4),
        "lon": np.round(np.where(far, random.uniform(-180, 180, count), random.normal(13, 0.5, count)), 4),
        "amount": random.integers(100, 100_000, count),
    }


SHARES = """MEASURES A.n AS first_n, HIGH.n AS last_n, LAST(DOWN.price) AS bottom, COUNT(DOWN.price) AS falls
    ONE ROW PER MATCH AFTER MATCH SKIP TO LAST HIGH PATTERN ({}) WITHIN INTERVAL '1' HOUR DEFINE {},
    HIGH AS HIGH.price > A.price"""
OUR_SHARES = SHARES.format(
    "A DOWN+ UP* HIGH",
    """DOWN AS DOWN.price < PREV(DOWN.price),
    UP AS UP.price > PREV(UP.price) AND UP.price <= A.price""",
)
FLINKS_SHARES = SHARES.format(
    "A DOWN+? UP*? HIGH",
    """DOWN AS (LAST(DOWN.price, 1) IS NULL AND DOWN.price < A.price) OR DOWN.price < LAST(DOWN.price, 1),
    UP AS UP.price <= A.price AND ((LAST(UP.price, 1) IS NULL AND UP.price > LAST(DOWN.price))
        OR UP.price > LAST(UP.price, 1))""",
)


def ticks(random: Numbers, count: int) -> Columns:
    return {"price": np.round(random.uniform(90, 110, count), 2)}


HOT = "kind = 'reading' AND celsius > 90"
OVERHEATS = (
    hr.pattern("a").where(HOT)
    .not_followed_by("s").where("kind = 'service'")
    .followed_by("b").where(HOT)
    .not_followed_by("t").where("kind = 'service'")
    .followed_by("c").where(HOT)
    .within("1 day").after_match("past_last")
)  # fmt: skip
FLINKS_OVERHEATS = """MEASURES A.n AS first_n, B.n AS second_n, C.n AS third_n
    ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A X* B Y* C) WITHIN INTERVAL '1' DAY
    DEFINE A AS A.kind = 'reading' AND A.celsius > 90, X AS X.kind = 'reading' AND X.celsius <= 90,
        B AS B.kind = 'reading' AND B.celsius > 90, Y AS Y.kind = 'reading' AND Y.celsius <= 90,
        C AS C.kind = 'reading' AND C.celsius > 90"""


def readings(random: Numbers, count: int) -> Columns:
    """Two of a hundred are too hot, one is a service."""
    chance = random.random(count)
    return {
        "kind": np.where(chance < 0.01, "service", "reading"),
        "celsius": np.where(chance > 0.98, random.integers(91, 120, count), random.integers(40, 91, count)),
    }


LOGINS = """MEASURES COUNT(FAILED.n) AS failures, FIRST(FAILED.n) AS first_n, OPENED.n AS last_n
    ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (FAILED{3,} OPENED) WITHIN INTERVAL '10' MINUTE
    DEFINE FAILED AS NOT FAILED.ok, OPENED AS OPENED.ok"""


def logins(random: Numbers, count: int) -> Columns:
    return {"ok": random.random(count) < 0.5}


LOST = (
    hr.pattern("a").where("scan = 'departed'").not_followed_by("b").where("scan = 'delivered'").within("2 days")
)  # fmt: skip


def scans(random: Numbers, count: int) -> Columns:
    """Scans of a shipment are some hours apart; one of five is a departure, and less than one of five a delivery."""
    chance = random.random(count)
    return {"scan": np.select([chance < 0.2, chance < 0.38], ["departed", "delivered"], "sorted")}


PROBING = (
    hr.pattern("a")
    .followed_by("b").where("ABS(b.metre - LAST(a.metre)) BETWEEN 100 AND 1000")
    .followed_by("c").where("ABS(c.metre - LAST(b.metre)) BETWEEN 100 AND 1000")
    .within("30 minutes")
)  # fmt: skip
FLINKS_PROBING = """MEASURES A.n AS first_n, B.n AS second_n, C.n AS third_n
    ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN (A X* B Y* C) WITHIN INTERVAL '30' MINUTE
    DEFINE X AS ABS(X.metre - A.metre) NOT BETWEEN 100 AND 1000, B AS ABS(B.metre - A.metre) BETWEEN 100 AND 1000,
        Y AS ABS(Y.metre - B.metre) NOT BETWEEN 100 AND 1000, C AS ABS(C.metre - B.metre) BETWEEN 100 AND 1000"""


def contacts(random: Numbers, count: int) -> Columns:
    return {"metre": random.integers(0, 5_000, count)}


THREE = {"first_n": "a.n", "second_n": "b.n", "third_n": "c.n"}
EXAMPLES = {
    each.name: each
    for each in (
        Example(
            name="fraud",
            key="card",
            keys=20_000,
            gap_ms=10,
            fields=(("lat", pa.float64()), ("lon", pa.float64()), ("amount", pa.int64())),
            values=payments,
            pattern=by_text("card", FRAUD),
            flinks=FRAUD,
        ),
        Example(
            name="v_shape",
            key="symbol",
            keys=1_000,
            gap_ms=10,
            fields=(("price", pa.float64()),),
            values=ticks,
            pattern=by_text("symbol", OUR_SHARES),
            flinks=FLINKS_SHARES,
        ),
        Example(
            name="overheating",
            key="machine",
            keys=1_000,
            gap_ms=100,
            fields=(("kind", pa.string()), ("celsius", pa.int64())),
            values=readings,
            pattern=by_functions("machine", OVERHEATS, **THREE),
            flinks=FLINKS_OVERHEATS,
        ),
        Example(
            name="log_ins",
            key="account",
            keys=20_000,
            gap_ms=5,
            fields=(("ok", pa.bool_()),),
            values=logins,
            pattern=by_text("account", LOGINS),
            flinks=LOGINS,
        ),
        Example(
            name="delivery",
            key="shipment",
            keys=100_000,
            gap_ms=300,
            fields=(("scan", pa.string()),),
            values=scans,
            pattern=by_functions("shipment", LOST, first_n="a.n"),
            flinks=None,
        ),
        Example(
            name="perimeter",
            key="sector",
            keys=1_000,
            gap_ms=100,
            fields=(("metre", pa.int64()),),
            values=contacts,
            pattern=by_functions("sector", PROBING, **THREE),
            flinks=FLINKS_PROBING,
        ),
    )
}

# ---- topics --------------------------------------------------------------------------------------------------------


def events_of_topic(example: Example, count: int) -> pa.Table:
    """In the order in which they are written. The same for the same count."""
    random = np.random.default_rng(count)
    keys = max(count * example.keys // 1_000_000, 10)
    columns: Columns = {
        example.key: random.integers(0, keys, count),
        "dateTime": BASE_MS + np.arange(count) * example.gap_ms,
        "n": np.arange(count),
        **example.values(random, count),
    }
    arrays = [pa.array(columns[each.name]).cast(each.type) for each in example.schema]
    arrived = np.argsort(columns["dateTime"] + random.integers(0, OUT_OF_ORDER_MS, count), kind="stable")
    return pa.Table.from_arrays(arrays, schema=example.schema).take(pa.array(arrived))


def load_topics(bootstrap: str, examples: list[Example], count: int) -> Loaded:
    began = time.monotonic()
    topics = {each.name: f"field-{each.name}" for each in examples}
    with Client(bootstrap) as client, Producer(client) as producer:
        for each in examples:
            Admin(client).create_topic(topics[each.name], partitions=PARTITIONS)
            encoder = Encoder(topics[each.name], lambda _: PARTITIONS, BATCH_BYTES)
            events = events_of_topic(each, count)
            for first in range(0, count, STEP):
                some = events.slice(first, STEP)
                places = np.arange(first, first + some.num_rows) % PARTITIONS
                producer.send_all_prepared(encoder.encode(records(some, places)))
            producer.flush()
            producer.send_all_prepared(encoder.encode(records(closing(each.schema), np.zeros(1, np.int64))))
    schemas = {each.name: each.schema for each in examples}
    return Loaded({each.name: count for each in examples}, topics, time.monotonic() - began, schemas)


def main() -> None:
    arguments = parse(PROGRAM, list(EXAMPLES))
    chosen = [EXAMPLES[name] for name in arguments.names or EXAMPLES]
    measure(
        chosen,
        arguments,
        lambda bootstrap: load_topics(bootstrap, chosen, arguments.events),
        lambda bootstrap: load_topics(bootstrap, chosen, SMALL_EVENTS),
    )


if __name__ == "__main__":
    main()
