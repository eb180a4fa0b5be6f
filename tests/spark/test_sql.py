"""Topics in SQL: views ``USING headrace``, and streams as views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headrace.spark as hr
from tests.servers.headrace import headrace_server
from tests.servers.process import RunningServer
from tests.spark.topics import create, drain, send

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

ORDERS = "id long, amount double"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with headrace_server(data=tmp_path_factory.mktemp("sql")) as running:
        create(running.bootstrap, "orders")
        send(running.bootstrap, "orders", [b'{"id": 1, "amount": 2.5}', b'{"id": 2, "amount": 4}'])
        yield running


def using(server: RunningServer) -> str:
    return (
        f"USING headrace OPTIONS (`kafka.bootstrap.servers` '{server.bootstrap}', subscribe 'orders', "
        f"valueFormat 'json', valueSchema '{ORDERS}')"
    )


def test_a_topic_is_a_view_in_sql(spark: SparkSession, server: RunningServer) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sold {using(server)}")
    (row,) = spark.sql("SELECT sum(amount) AS total, max(_offset) AS last FROM sold").collect()
    assert (row.total, row.last) == (6.5, 1)


def test_a_table_of_the_catalog_is_refused_with_what_to_write_instead(
    spark: SparkSession, server: RunningServer
) -> None:
    with pytest.raises(PySparkException, match=r"cannot be a table of Spark's catalog.*CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE sold_for_good {using(server)}")


def test_a_stream_is_a_view_in_sql(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    hr.stream(spark, "orders", ORDERS, bootstrap=server.bootstrap).createOrReplaceTempView("live_orders")
    large = spark.sql("SELECT id FROM live_orders WHERE amount > 3")
    assert large.isStreaming
    rows, _ = drain(large, tmp_path / "checkpoint", query_name=None)
    assert [row.id for row in rows] == [2]


def test_the_name_of_a_topic_given_as_a_path_is_refused(spark: SparkSession, server: RunningServer) -> None:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", server.bootstrap)
    with pytest.raises(PySparkException, match="the source has no option 'path'"):
        reader.option("subscribe", "orders").load("orders")
