"""Six patterns from the field, each on a stream of a few events. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr
from headrace.spark.testing import run_pipeline


def card_in_two_places(spark: SparkSession) -> DataFrame:
    """Fraud: one card pays in two places within an hour that are further apart than anybody can travel."""
    payments = hr.stream(spark, "payments", schema="card string, at timestamp, lat double, lon double, amount double")
    return hr.match_recognize(
        hr.watermark(payments, "at", "5 minutes"),
        """
        PARTITION BY card ORDER BY at
        MEASURES A.at AS first_at, B.at AS second_at, A.amount + B.amount AS spent
        AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A B) WITHIN INTERVAL '1' HOUR
        DEFINE B AS 2 * 6371 * ASIN(SQRT(
            POW(SIN(RADIANS(B.lat - A.lat) / 2), 2)
            + COS(RADIANS(A.lat)) * COS(RADIANS(B.lat)) * POW(SIN(RADIANS(B.lon - A.lon) / 2), 2))) > 500
        """,
    )


def v_shape(spark: SparkSession) -> DataFrame:
    """Trading: a price falls and recovers above where it was."""
    ticks = hr.stream(spark, "ticks", schema="symbol string, at timestamp, price double")
    return hr.match_recognize(
        hr.watermark(ticks, "at", "1 minute"),
        """
        PARTITION BY symbol ORDER BY at
        MEASURES A.price AS top, LAST(DOWN.price) AS bottom, LAST(RISE.price) AS after, COUNT(*) AS ticks
        AFTER MATCH SKIP TO LAST RISE
        PATTERN (A DOWN+ UP* HIGH) WITHIN INTERVAL '1' HOUR
        SUBSET RISE = (UP, HIGH)
        DEFINE DOWN AS DOWN.price < PREV(DOWN.price),
               UP AS UP.price > PREV(UP.price) AND UP.price <= A.price,
               HIGH AS HIGH.price > A.price
        """,
    )


def overheats_without_service(spark: SparkSession) -> DataFrame:
    """Machinery: three times too hot within a day and no service between."""
    readings = hr.stream(spark, "readings", schema="machine string, at timestamp, kind string, celsius double")
    hot = "kind = 'reading' AND celsius > 90"
    three = (
        hr.pattern("first").where(hot)
        .not_followed_by("service").where("kind = 'service'")
        .followed_by("second").where(hot)
        .not_followed_by("service_again").where("kind = 'service'")
        .followed_by("third").where(hot)
        .within("1 day")
        .after_match("past_last")
    )  # fmt: skip
    return hr.match(hr.watermark(readings, "at", "10 minutes"), three, keys="machine", event_time="at")


def break_in(spark: SparkSession) -> DataFrame:
    """Security: three or more failed log-ins and then a successful one."""
    logins = hr.stream(spark, "logins", schema="user string, at timestamp, ok boolean, address string")
    return hr.match_recognize(
        hr.watermark(logins, "at", "1 minute"),
        """
        PARTITION BY user ORDER BY at
        MEASURES COUNT(FAILED.*) AS failures, OPENED.address AS address, OPENED.at AS opened_at
        PATTERN (FAILED{3,} OPENED) WITHIN INTERVAL '10' MINUTES
        DEFINE FAILED AS NOT FAILED.ok, OPENED AS OPENED.ok
        """,
    )


def shipment_without_delivery(spark: SparkSession) -> DataFrame:
    """Absence: a shipment that left and has no delivery scan after two days."""
    scans = hr.stream(spark, "scans", schema="shipment string, at timestamp, scan string")
    lost = (
        hr.pattern("left").where("scan = 'departed'").not_followed_by("delivered").where("scan = 'delivered'")
    ).within("2 days")
    return hr.match(
        hr.watermark(scans, "at", "1 hour"), lost, keys="shipment", event_time="at", measures={"left_at": "left.at"}
    )


def probing(spark: SparkSession) -> DataFrame:
    """Surveillance: contacts at a perimeter that move along it, each less than a kilometre from the one before."""
    contacts = hr.stream(spark, "contacts", schema="sector string, at timestamp, metre double")
    moving = (
        hr.pattern("start")
        .followed_by("next").where("ABS(next.metre - LAST(start.metre)) BETWEEN 100 AND 1000")
        .followed_by("third").where("ABS(third.metre - LAST(next.metre)) BETWEEN 100 AND 1000")
        .within("30 minutes")
        .after_match("past_last")
    )  # fmt: skip
    return hr.match(
        hr.watermark(contacts, "at", "1 minute"),
        moving,
        keys="sector",
        event_time="at",
        measures={"from_metre": "start.metre", "to_metre": "third.metre"},
    )


def at(clock: str, **fields: Any) -> dict[str, Any]:
    return {"at": f"2026-01-31T{clock}:00Z", **fields}


LATER = "2026-02-05T00:00:00Z"
EXAMPLES: list[tuple[Callable[[SparkSession], DataFrame], str, list[dict[str, Any]], list[tuple[Any, ...]]]] = [
    (
        card_in_two_places,
        "payments",
        [
            at("10:00", card="4711", lat=52.5, lon=13.4, amount=20.0),
            at("10:20", card="4711", lat=52.4, lon=13.1, amount=5.0),
            at("10:40", card="4711", lat=40.7, lon=-74.0, amount=900.0),
        ],
        [("4711", 905.0)],
    ),
    (
        v_shape,
        "ticks",
        [at(f"10:0{n}", symbol="ACME", price=price) for n, price in enumerate([10.0, 9.0, 7.5, 8.0, 9.5, 11.0])],
        [("ACME", 10.0, 7.5, 11.0)],
    ),
    (
        overheats_without_service,
        "readings",
        [
            at("08:00", machine="press", kind="reading", celsius=95.0),
            at("09:00", machine="press", kind="reading", celsius=70.0),
            at("10:00", machine="press", kind="reading", celsius=96.0),
            at("11:00", machine="press", kind="reading", celsius=97.0),
            at("08:00", machine="saw", kind="reading", celsius=95.0),
            at("09:00", machine="saw", kind="service", celsius=None),
            at("10:00", machine="saw", kind="reading", celsius=96.0),
            at("11:00", machine="saw", kind="reading", celsius=97.0),
        ],
        [("press",)],
    ),
    (
        break_in,
        "logins",
        [
            *[at(f"10:0{n}", user="eve", ok=False, address="203.0.113.9") for n in range(4)],
            at("10:05", user="eve", ok=True, address="203.0.113.9"),
            at("10:00", user="ann", ok=False, address="198.51.100.2"),
            at("10:01", user="ann", ok=True, address="198.51.100.2"),
        ],
        [("eve", 4)],
    ),
    (
        shipment_without_delivery,
        "scans",
        [
            at("10:00", shipment="S1", scan="departed"),
            at("12:00", shipment="S1", scan="delivered"),
            at("10:00", shipment="S2", scan="departed"),
            at("11:00", shipment="S2", scan="sorted"),
        ],
        [("S2",)],
    ),
    (
        probing,
        "contacts",
        [at(f"03:{n:02}", sector="north", metre=metre) for n, metre in enumerate([100.0, 120.0, 650.0, 660.0, 1300.0])],
        [("north", 100.0, 1300.0)],
    ),
]


if __name__ == "__main__":
    spark = hr.session(app_name="patterns", conf={"spark.log.level": "ERROR"})
    for pipeline, topic, events, wanted in EXAMPLES:
        # An event of somebody else, much later, takes the watermark past the others, as time does in a real stream.
        key = list(events[0])[1]
        rows = run_pipeline(pipeline, {topic: [events, [{**events[0], key: "later", "at": LATER}]]}, spark=spark)
        print(f"{pipeline.__name__}: {pipeline.__doc__}")
        for row in rows:
            print("   ", {name: value for name, value in row.asDict().items() if name != "match_id"})
        found = [tuple(value for value in row.asDict(recursive=True).values()) for row in rows]
        assert len(found) == len(wanted), (found, wanted)
        for got, expected in zip(found, wanted, strict=True):
            assert set(expected) <= {value for value in got if not isinstance(value, list)}, (got, expected)
    spark.stop()
