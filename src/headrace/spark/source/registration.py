"""The data source ``headrace``, made known to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headrace.spark.plan import refuse_connect
from headrace.spark.source.data_source import HeadraceDataSource
from headrace.spark.source.listener import listen

__all__ = ["register"]


def register(spark: SparkSession) -> SparkSession:
    """Register ``format("headrace")`` with a session made elsewhere, and commit its queries' offsets to the broker."""
    refuse_connect(spark)
    spark.dataSource.register(HeadraceDataSource)
    listen(spark)
    return spark
