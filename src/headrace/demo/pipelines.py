"""The pipelines of the demo, as a user would write them. ``headrace run`` runs this file."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr

DATABASE = os.environ.get("HEADRACE_DEMO_DATABASE", "postgresql://postgres@127.0.0.1/postgres")
INDEX = os.environ.get("HEADRACE_DEMO_INDEX", "search.db")

PRODUCT = "id long, name string, description string, price decimal(10,2), changed_at timestamp"
ORDER = "id long, customer_id long, product_id long, quantity int, status string, placed_at timestamp"
PAYMENT = "id long, customer_id long, amount decimal(10,2), paid_at timestamp"
CLICK = "id long, device string, page string, occurred timestamp, sent timestamp, received timestamp, really timestamp"


# Live charts in the console. The first one is of a captured table: it moves as soon as the shop is open, while the
# others wait for Spark. What goes into tables goes into topics too, for these charts.
hr.dashboard("Payments", topic="shop.public.payments", x="paid_at", y="amount", last=200, unit="€")
hr.dashboard("Revenue per minute", view="revenue-per-minute", x="window_start", y="revenue", unit="€")
hr.dashboard("Sold by product", view="best-sellers", kind="bar", x="product_id", y="sold")
hr.dashboard("Fraud alerts", topic="fraud-alerts", columns=["at", "customer_id", "first_order", "last_order"], last=20)
hr.dashboard("Orders at the price of their time", topic="orders-priced", x="id", y="amount", last=200, unit="€")
hr.dashboard("The newest order", topic="orders-priced", kind="number", y="amount", last=100, unit="€")
hr.dashboard(
    "Clicks as they really happened", topic="clicks-corrected", columns=["device", "page", "corrected"], last=10
)


def captured(spark: SparkSession, table: str, schema: str) -> DataFrame:
    return hr.stream(spark, f"shop.public.{table}", schema=schema, value_format="debezium")


def inserted(spark: SparkSession, table: str, schema: str) -> DataFrame:
    """Only the rows that came into the table, as a stream of events."""
    return captured(spark, table, schema).where("op in ('c', 'r')").select("after.*")


@hr.pipeline(
    sinks=[
        hr.sinks.sql(DATABASE, table="best_sellers", key="product_id", create=True),
        hr.sinks.topic("best-sellers"),
    ]
)
def best_sellers(spark: SparkSession) -> DataFrame:
    """What sells, as a table that follows: orders that are cancelled or deleted leave it again."""
    orders = hr.deltas(hr.changes(captured(spark, "orders", ORDER), key="id"))
    placed = orders.where("status = 'placed'")
    return hr.view(placed, "product_id", {"orders": F.count("*"), "sold": F.sum("quantity")})


@hr.pipeline(
    sinks=[
        hr.sinks.sql(DATABASE, table="revenue_per_minute", key="window_start", version="revision", create=True),
        hr.sinks.topic("revenue-per-minute", key="window_start"),
    ]
)
def revenue_per_minute(spark: SparkSession) -> DataFrame:
    """What was paid in each minute: early, then final, and corrected when a till hands in later."""
    payments = inserted(spark, "payments", PAYMENT).withWatermark("paid_at", "5 seconds")
    minutes = hr.windows(
        payments,
        event_time="paid_at",
        window=hr.tumbling("1 minute"),
        values={"revenue": F.sum("amount")},
        emit="early",
        late="correct",
        keep="1 hour",
    )
    return minutes.where("not is_retraction")  # a table takes the newest revision, whatever it replaces


@hr.pipeline(
    sinks=[
        hr.sinks.sql(DATABASE, table="fraud_alerts", key="last_order", create=True),
        hr.sinks.topic("fraud-alerts", key="last_order"),
    ]
)
def fraud_alerts(spark: SparkSession) -> DataFrame:
    """Four orders of one customer within a second: a stolen card is tried out."""
    orders = inserted(spark, "orders", ORDER).withWatermark("placed_at", "2 seconds")
    return hr.match_recognize(
        orders,
        """
        PARTITION BY customer_id ORDER BY placed_at, id
        MEASURES FIRST(A.id) AS first_order, LAST(A.id) AS last_order, LAST(A.placed_at) AS at
        AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A{4}) WITHIN INTERVAL '1' SECOND
        """,
    )


@hr.pipeline(sink=hr.sinks.search(f"sqlite:///{INDEX}", index="products", key="id", text=["name", "description"]))
def search_index(spark: SparkSession) -> DataFrame:
    return hr.changes(captured(spark, "products", PRODUCT), key="id")


@hr.pipeline(sink=hr.sinks.topic("orders-priced", key="id"))
def orders_priced(spark: SparkSession) -> DataFrame:
    """Each order with the price that was valid when it was placed, and which version of the product that was."""
    orders = inserted(spark, "orders", ORDER).withWatermark("placed_at", "2 seconds")
    products = hr.changes(captured(spark, "products", PRODUCT), key="id", event_time="changed_at")
    products = products.withWatermark("at", "2 seconds")
    priced = hr.join_as_of(
        orders, products, on={"product_id": "id"}, event_time="placed_at", version="product_version", prefix="product_"
    )
    return priced.selectExpr("id", "product_id", "quantity", "product_price * quantity as amount", "product_version")


@hr.pipeline(sink=hr.sinks.topic("clicks-corrected", key="device"))
def clicks_corrected(spark: SparkSession) -> DataFrame:
    """Clicks with the time at which they really happened, as far as three wrong timestamps tell."""
    clicks = hr.stream(spark, "clicks", schema=CLICK).withWatermark("received", "1 second")
    clicks = clicks.select("id", "device", "page", "occurred", "sent", "received", "really")
    return hr.correct_clock(clicks, keys="device", occurred="occurred", sent="sent", received="received")
