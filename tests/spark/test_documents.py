"""The Python of the pages about Spark is run: each page from its first block to its last, with the frames it speaks of.

Plans are built and no query is started, so no broker is needed: a name that is gone, an argument that was renamed and
a column that does not fit are found here. What the functions compute is the business of the other tests.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.run import pipelines

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_A_QUERY = ("explain_watermark(query)", "state_totals(", ".start()", "run_pipeline(")
"""Blocks about a query that runs, or that has run."""


def raw(spark: SparkSession, columns: str) -> DataFrame:
    """A stream with these columns."""
    rows = spark.readStream.format("rate").load()
    kinds = dict(each.split(" ", 1) for each in columns.split(", "))
    sources = {name: F.col("timestamp" if kind == "timestamp" else "value") for name, kind in kinds.items()}
    return rows.select(*(sources[name].cast(kind).alias(name) for name, kind in kinds.items()))


def stream(spark: SparkSession, columns: str) -> DataFrame:
    """The same with a watermark; the column named first is its event time."""
    return hr.watermark(raw(spark, columns), columns.split(" ")[0], "10 minutes")


def orders(spark: SparkSession) -> dict[str, Any]:
    columns = "at timestamp, timestamp timestamp, shop long, price double, quantity long"
    return {"orders": stream(spark, columns), "raw": raw(spark, columns)}


def joins(spark: SparkSession) -> dict[str, Any]:
    users = hr.stream(spark, "users", schema="id long, name string")
    return {
        "ROW": "id long, amount double",
        "PRICE": "product string, price long",
        "users": hr.changes(users, key="id"),
        "searches": stream(spark, "at timestamp, id long"),
        "clicks": stream(spark, "clicked_at timestamp, search long, user long"),
    }


def states(spark: SparkSession) -> dict[str, Any]:
    return {
        "orders": stream(spark, "placed_at timestamp, id long"),
        "clicks": stream(spark, "at timestamp, user string, amount double"),
        "events": stream(spark, "received timestamp, occurred timestamp, sent timestamp, device string"),
    }


def views(spark: SparkSession) -> dict[str, Any]:
    table = hr.stream(spark, "orders", schema="id long, price double, placed_at timestamp")
    return {"orders": hr.changes(table, key="id"), "sales": stream(spark, "at timestamp, shop long")}


def times(spark: SparkSession) -> dict[str, Any]:
    return {"ORDERS": "placed_at timestamp", "PAYMENTS": "paid_at timestamp", "READINGS": "at timestamp"}


def patterns(spark: SparkSession) -> dict[str, Any]:
    return {
        "ticks": raw(spark, "at timestamp, symbol string, price double"),
        "scans": raw(spark, "at timestamp, shipment string, scan string"),
    }


def nothing(spark: SparkSession) -> dict[str, Any]:
    return {}


PAGES: dict[str, Callable[[SparkSession], dict[str, Any]]] = {
    "joins.md": joins,
    "patterns.md": patterns,
    "pipelines.md": nothing,
    "queues.md": nothing,
    "sinks.md": nothing,
    "spark-source.md": nothing,
    "state.md": states,
    "time.md": times,
    "views.md": views,
    "windows.md": orders,
    "howto/from-spark-kafka.md": nothing,
}
"""For each page, what its snippets take as given."""


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_build_their_plans(
    page: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOOK_SECRET", "SECRET"):
        monkeypatch.setenv(variable, "whsec_" + "c2VjcmV0" * 4)
    hr.register(spark)
    names: dict[str, Any] = {"hr": hr, "F": F, "spark": spark, **PAGES[page](spark)}
    shown = BLOCK.findall((DOCS / page).read_text())
    blocks = [each for each in shown if not any(part in each for part in NEEDS_A_QUERY)]
    with pipelines._collected():
        for block in blocks:
            exec(compile(block, page, "exec"), names)
            build_pipelines(names, spark)
    assert blocks


def build_pipelines(names: dict[str, Any], spark: SparkSession) -> None:
    """Call what a block defines as a function of a session; another block may define it again."""
    for name, value in list(names.items()):
        if inspect.isfunction(value) and list(inspect.signature(value).parameters) == ["spark"]:
            is_left_out = not value.__code__.co_names  # def orders(spark): ...
            assert is_left_out or isinstance(value(spark), DataFrame), name
