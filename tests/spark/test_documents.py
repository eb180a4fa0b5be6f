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
from headrace import testing
from headrace.client import Admin, Client, Producer, TopicPartition, end_offsets
from headrace.spark.run import pipelines
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_A_QUERY = ("explain_watermark(query)", "state_totals(", ".start()", "run_pipeline(")
"""Blocks about a query that runs, or that has run: tests further down run them with one."""


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
    "searches.md": nothing,
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


# ---- blocks about a query that runs ---------------------------------------------------------------------------------


def block_with(page: str, part: str) -> str:
    (found,) = [each for each in BLOCK.findall((DOCS / page).read_text()) if part in each]
    return found


@pytest.mark.parametrize(
    ("page", "rows", "made"), [("spark-sink.md", "totals", "minute"), ("howto/from-spark-kafka.md", "rows", "id")]
)
def test_the_query_of_a_page_writes_to_a_topic(
    page: str, rows: str, made: str, spark: SparkSession, tmp_path: Path
) -> None:
    hr.register(spark)
    with testing.broker() as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("totals", partitions=1)
        frame = spark.readStream.format("rate").load().select(F.col("value").alias(made))
        names: dict[str, Any] = {rows: frame}
        program = block_with(page, ".start()").replace("127.0.0.1:9092", broker.bootstrap)
        exec(compile(program.replace("checkpoints/totals", str(tmp_path)), page, "exec"), names)
        place = TopicPartition("totals", 0)
        try:
            eventually(lambda: end_offsets(client, [place])[place], patience_s=120)
        finally:
            names["query"].stop()


def test_the_page_about_time_explains_the_watermark_of_a_query(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """time.md"""
    query = stream(spark, "at timestamp, id long").writeStream.format("noop").start()
    try:
        eventually(lambda: query.lastProgress, patience_s=60)
        exec(compile(block_with("time.md", "explain_watermark(query)"), "time.md", "exec"), {"hr": hr, "query": query})
    finally:
        query.stop()
    assert "watermark" in capsys.readouterr().out


def test_the_page_about_state_asks_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """state.md: the query of its sessions, and then the questions."""
    hr.register(spark)
    names: dict[str, Any] = {"hr": hr, "F": F, "spark": spark, **states(spark)}
    clicks = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    clicks = clicks.selectExpr("timestamp AS at", "if(value % 2 = 0, 'anna', 'ben') AS user", "1.0D AS amount")
    names["clicks"] = hr.watermark(clicks, "at", "10 seconds")
    exec(compile(block_with("state.md", "hr.session_window("), "state.md", "exec"), names)
    folder = str(tmp_path / "visits")
    query = names["visits"].writeStream.format("noop").option("checkpointLocation", folder).outputMode("append").start()
    try:
        eventually(lambda: sum(each["numInputRows"] for each in query.recentProgress) > 5, patience_s=120)
    finally:
        query.stop()
    questions = block_with("state.md", "state_totals(").replace("checkpoints/visits", folder).splitlines()
    names["answers"] = []
    exec("\n".join(f"answers.append({line.partition('  #')[0]})" for line in questions), names)
    assert len(names["answers"]) == 2
    assert all(names["answers"])


def test_the_page_about_pipelines_tests_its_pipeline(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pipelines.md"""
    (tmp_path / "shop.py").write_text(block_with("pipelines.md", "# shop.py"))
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(block_with("pipelines.md", "run_pipeline("), "pipelines.md", "exec"), {})


def test_the_sql_about_the_source_reads_a_topic(spark: SparkSession) -> None:
    """spark-source.md"""
    hr.register(spark)
    (sql,) = re.findall(r"^```sql\n(.*?)^```$", (DOCS / "spark-source.md").read_text(), re.MULTILINE | re.DOTALL)
    with testing.broker() as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=2)
        with Producer(client) as producer:
            for number in range(3):
                producer.send("orders", b'{"id": %d, "amount": 2.5}' % number)
        create, select = [each for each in sql.replace("127.0.0.1:9092", broker.bootstrap).split(";") if each.strip()]
        spark.sql(create)
        try:
            assert [row[0] for row in spark.sql(select).collect()] == [7.5]
        finally:
            spark.catalog.dropTempView("orders")
