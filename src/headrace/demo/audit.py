"""The end of the day: what the database says, what the topics say, and what was derived, compared row by row.

A line of the audit has the same rows from two or three places. Numbers alone would agree too easily; so contents are
compared, and what differs is shown.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Hashable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from statistics import median
from typing import Any

from headrace.client import Client, Consumer, ConsumerOptions, FetchOptions, TopicPartition, end_offsets, start_offsets
from headrace.demo.stage import CAPTURE, CORRECTED, PRICED, Stage
from headrace.demo.visitors import CLICKS

__all__ = ["Line", "Rows", "audit", "clock_errors"]

Rows = Mapping[Hashable, Hashable]
DIFFERENCES_SHOWN = 3
CLOCK_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """The same rows, from several places; the first is the truth."""

    what: str
    places: Mapping[str, Rows]

    @property
    def agrees(self) -> bool:
        first, *others = self.places.values()
        return all(each == first for each in others)

    def differences(self) -> list[str]:
        (truth, first), *others = self.places.items()
        found = []
        for name, rows in others:
            wrong = sorted((key for key in {*first, *rows} if first.get(key) != rows.get(key)), key=repr)
            for key in wrong[:DIFFERENCES_SHOWN]:
                found.append(f"{self.what} {key}: {truth} has {first.get(key)}, {name} has {rows.get(key)}")
            if len(wrong) > DIFFERENCES_SHOWN:
                found.append(f"… and {len(wrong) - DIFFERENCES_SHOWN} more")
        return found


def audit(stage: Stage) -> list[Line]:
    return [line(stage) for line in LINES]


def orders(stage: Stage) -> Line:
    columns = "customer_id, product_id, quantity, status"
    return Line("orders", {"database": _table(stage, "orders", columns), "topic": _folded(stage, "orders", columns)})


def revenue(stage: Stage) -> Line:
    minutes = "select date_trunc('minute', paid_at), count(*), sum(amount) from payments group by 1"
    view = "select window_start, events, revenue from revenue_per_minute"
    return Line("revenue per minute", {"database": _query(stage, minutes), "view": _query(stage, view)})


def best_sellers(stage: Stage) -> Line:
    sold = "select product_id, count(*), sum(quantity) from orders where status = 'placed' group by 1"
    view = "select product_id, orders, sold from best_sellers"
    return Line("best sellers", {"database": _query(stage, sold), "view": _query(stage, view)})


def fraud(stage: Stage) -> Line:
    """Every order has its payment, at the same time; so payments say who ordered when, also of orders that are gone."""
    quick = """
        select id, customer_id, first from (
            select id, customer_id, lag(id, 3) over earlier as first, paid_at - lag(paid_at, 3) over earlier as took
            from payments window earlier as (partition by customer_id order by paid_at, id)
        ) as runs where took < interval '1 second'"""
    view = "select last_order, customer_id, first_order from fraud_alerts"
    return Line("fraud alerts", {"database": _query(stage, quick), "alerts": _query(stage, view)})


def priced(stage: Stage) -> Line:
    """The shop knew each price when it asked for the money; the join found it again, by the times alone."""
    paid = _query(stage, "select id, amount from payments")
    found = {row["id"]: (_decimal(row["amount"]),) for row in _values(stage.client, PRICED) if row["id"] != 0}
    return Line("orders at the price of their time", {"database": paid, "topic": found})


def products(stage: Stage) -> Line:
    columns = "name, description, price"
    places = {
        "database": _table(stage, "products", columns),
        "topic": _folded(stage, "products", columns),
        "index": _indexed(stage),
    }
    return Line("products", places)


def clicks(stage: Stage) -> Line:
    sent: Rows = dict.fromkeys(range(1, stage.visitors.clicks + 1), ())
    return Line(
        "clicks", {"sent": sent, "topic": _ids(stage.client, CLICKS), "corrected": _ids(stage.client, CORRECTED)}
    )


LINES: tuple[Callable[[Stage], Line], ...] = (orders, products, revenue, best_sellers, fraud, priced, clicks)


def clock_errors(client: Client) -> tuple[float, float] | None:
    """How far the devices' times are from the truth, in seconds: as they came, and corrected (medians)."""
    rows = [row for row in _values(client, CORRECTED, last=CLOCK_SAMPLES) if row["id"] != 0]
    if not rows:
        return None
    before = [abs((_time(row["occurred"]) - _time(row["really"])).total_seconds()) for row in rows]
    after = [abs((_time(row["corrected"]) - _time(row["really"])).total_seconds()) for row in rows]
    return median(before), median(after)


# ---- the places ------------------------------------------------------------------------------------------------------


def _query(stage: Stage, statement: str) -> Rows:
    """Nothing, while a pipeline has not yet made its table."""
    import psycopg

    with psycopg.connect(stage.database) as connection, suppress(psycopg.errors.UndefinedTable):
        return {row[0]: tuple(row[1:]) for row in connection.execute(statement)}
    return {}


def _table(stage: Stage, table: str, columns: str) -> Rows:
    return _query(stage, f"select id, {columns} from {table}")


def _folded(stage: Stage, table: str, columns: str) -> Rows:
    """A table again, from the changes in its topic."""
    names = columns.split(", ")
    rows: dict[Hashable, Hashable] = {}
    for change in _values(stage.client, f"{CAPTURE}.public.{table}"):
        if change["op"] == "d":
            rows.pop(change["before"]["id"], None)
        else:
            row = change["after"]
            rows[row["id"]] = tuple(Decimal(row[each]) if each == "price" else row[each] for each in names)
    return rows


def _indexed(stage: Stage) -> Rows:
    if not stage.index.exists():
        return {}
    with (
        closing(sqlite3.connect(f"file:{stage.index}?mode=ro", uri=True, timeout=10)) as connection,
        suppress(sqlite3.Error),
    ):
        found = connection.execute("select id, name, description, price from products")
        return {number: (name, text, Decimal(str(price))) for number, name, text, price in found}
    return {}


def _ids(client: Client, topic: str) -> Rows:
    return {row["id"]: () for row in _values(client, topic) if row["id"] != 0}


def _values(client: Client, topic: str, last: int | None = None) -> list[dict[str, Any]]:
    """The values of all committed records, or of about the last; tombstones are left out."""
    places = [TopicPartition(topic, 0)]
    ends = end_offsets(client, places, read_committed=True)
    starts = start_offsets(client, places)
    if last is not None:
        starts = {place: max(at, ends[place] - last) for place, at in starts.items()}
    consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(read_committed=True)))
    consumer.assign(starts)
    found: list[dict[str, Any]] = []
    while any(at < ends[place] for place, at in consumer.positions.items()):
        for records in consumer.poll(1000).values():
            found += [json.loads(record.value) for record in records if record.value is not None]
    return found


def _decimal(number: Any) -> Decimal | None:
    return None if number is None else Decimal(str(number))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
