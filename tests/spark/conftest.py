"""One Spark session for all tests: starting one takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.errors import UsageError
from headrace.spark.run.java import find_java
from headrace.spark.run.session import session
from tests.skips import skip_or_fail

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.sql.streaming.pollingDelay": "50ms",  # of every running query; asking a hundred times a second takes a core
}

ON_APACHE_KAFKA_TOO = (
    "test_a_batch_read_gives_every_record_once_with_the_columns_of_sparks_kafka_source",
    "test_a_stream_goes_from_topic_to_topic_over_several_runs",
)
"""Of the tests that run on both brokers, those whose run on Apache Kafka is not left to ``make test-spark``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, broker = item.name.partition("[")
        if item.path.parent == Path(__file__).parent and broker == "apache_kafka]" and name not in ON_APACHE_KAFKA_TOO:
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """Skips with the reason where Spark cannot run."""
    try:
        find_java()
    except UsageError as why:
        skip_or_fail(str(why))


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    running = session(
        app_name="headrace-tests",
        master="local[2]",
        conf={"spark.sql.warehouse.dir": str(warehouse), **SETTINGS},
    )
    yield running
    running.stop()
