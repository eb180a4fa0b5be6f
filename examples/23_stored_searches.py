"""Tell me when a flat like this is listed: stored searches, matched against each new listing.

Needs Java and pip install 'headrace[spark]'.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.testing import Event, run_pipeline

FLATS = (
    "id long, title string, city string, price decimal(10,2), rooms double, listed timestamp, features array<string>"
)


def alerts(spark: SparkSession) -> DataFrame:
    flats = hr.stream(spark, "flats", schema=FLATS)
    flats = flats.select("id", "title", "city", "price", "rooms", "listed", "features")
    searches = hr.changes(hr.stream(spark, "searches", schema="id string, query string, mail string"), key="id")
    return hr.match_searches(flats, searches, default=["title", "features"], columns="mail")


def search(key: str, query: str | None) -> Event:
    """A record of the compacted topic of searches; a tombstone removes one."""
    value = None if query is None else {"id": key, "query": query, "mail": f"{key}@example.com"}
    return Event(value, key=key)


def flat(number: int, title: str, city: str, price: str, rooms: float, *features: str) -> dict[str, object]:
    return {
        "id": number,
        "title": title,
        "city": city,
        "price": price,
        "rooms": rooms,
        "listed": "2026-01-31T10:00:00Z",
        "features": list(features),
    }


SEARCHES = [
    [
        search("anna", 'title:"two rooms" AND price:[0 TO 900] AND NOT city:berl*'),
        search("ben", "(garden OR balcony) rooms:>=3 listed:>=2026-01-01"),
        search("eve", '{"and": [{"field": "city", "prefix": "ham"}, {"field": "price", "range": {"lt": 700}}]}'),
    ],
    [search("anna", "city:leipzig price:<500"), search("ben", None)],
]
LISTED = [
    [
        flat(1, "Two rooms near the river", "Dresden", "850.00", 2),
        flat(2, "Two rooms, quiet", "Berlin", "700.00", 2),
        flat(3, "House with garden", "Hamburg", "1900.00", 5),
        flat(4, "Small but mine", "Hamburg", "699.99", 1, "roof garden"),
    ],
    [
        flat(5, "Two rooms again", "Dresden", "800.00", 2),
        flat(6, "Old building", "Leipzig", "450.00", 3, "balcony", "two rooms to the yard"),
    ],
]
WANTED = [(1, "anna"), (3, "ben"), (4, "eve"), (6, "anna")]


if __name__ == "__main__":
    spark = hr.session(app_name="searches", conf={"spark.log.level": "ERROR"})
    rows = run_pipeline(alerts, {"flats": LISTED, "searches": SEARCHES}, spark=spark)
    for row in rows:
        print(f"to {row.search_mail}: {row.title}, {row.city}, {row.price}")
    assert sorted((row.id, row.search_id) for row in rows) == WANTED, rows

    # Before a search is stored, show its mistake to the one who wrote it.
    try:
        hr.check_search("garden AND prize:<900", spark.createDataFrame([], FLATS), default="title")
    except UsageError as mistake:
        print(mistake)
    spark.stop()
