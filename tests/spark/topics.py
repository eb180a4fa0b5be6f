"""What tests of the source and sink share: topics with known content, and queries that are drained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace.client import Admin, Client, Producer
from tests import waiting

__all__ = ["create", "drain", "eventually", "fill", "read", "read_stream", "send", "start", "values"]

eventually = partial(waiting.eventually, pause_s=0.1, patience_s=180)
"""Starting Spark, and its first micro-batch, take a busy machine a minute."""


def create(bootstrap: str, topic: str, *, partitions: int = 1, **config: str) -> None:
    with Client(bootstrap) as client:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        Admin(client).create_topic(topic, partitions=partitions, config=settings)


def send(bootstrap: str, topic: str, values: Iterable[bytes | None], *, partition: int = 0, **more: Any) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for value in values:
            producer.send(topic, value, partition=partition, **more)


def fill(bootstrap: str, topic: str, count: int, *, partitions: int = 2, first: int = 0) -> None:
    """Values ``value-0`` and on, in turn over the partitions, which have equally many."""
    with Client(bootstrap) as client, Producer(client) as producer:
        for index in range(first, first + count):
            producer.send(topic, b"value-%d" % index, key=b"key-%d" % index, partition=index % partitions)


def read(spark: SparkSession, bootstrap: str, topic: str = "", **options: object) -> DataFrame:
    return _reader(spark.read, bootstrap, topic, options).load()  # type: ignore[no-any-return]


def read_stream(spark: SparkSession, bootstrap: str, topic: str = "", **options: object) -> DataFrame:
    return _reader(spark.readStream, bootstrap, topic, options).load()  # type: ignore[no-any-return]


def _reader(reader: Any, bootstrap: str, topic: str, options: dict[str, object]) -> Any:
    reader = reader.format("headrace").option("kafka.bootstrap.servers", bootstrap)
    if topic:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader


def start(rows: DataFrame, checkpoint: Path, name: str, **trigger: Any) -> StreamingQuery:
    """Into a table in memory with that name."""
    writer = rows.writeStream.format("memory").queryName(name).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def drain(rows: DataFrame, checkpoint: Path, *, query_name: str | None = "drained") -> tuple[list[Row], StreamingQuery]:
    """All rows of one run to the end of what is there now. A table in memory cannot go on, so files take them."""
    spark = rows.sparkSession
    out = checkpoint.parent / f"{checkpoint.name}-out"
    writer = rows.writeStream.format("parquet").option("path", str(out))
    writer = writer.queryName(query_name) if query_name else writer
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.read.schema(rows.schema).parquet(str(out)).collect(), query


def values(rows: Sequence[Row]) -> list[bytes]:
    return sorted(bytes(row.value) for row in rows)
