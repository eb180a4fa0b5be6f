"""The data source ``headrace``, made known to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headrace.spark.plan import refuse_connect
from headrace.spark.source.data_source import HeadraceDataSource
from headrace.spark.source.listener import listen

__all__ = ["register"]


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("headrace")`` known to a session that was made elsewhere, and show its queries' positions."""
    refuse_connect(spark)
    spark.dataSource.register(HeadraceDataSource)
    listen(spark)
    return spark
