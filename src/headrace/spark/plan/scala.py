"""What the modules here share: collections of Scala, nodes of trees, and who has no JVM to ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headrace.errors import UsageError

__all__ = ["CLASSIC", "JvmLost", "refuse_connect", "sequence", "tree"]

JvmLost = Py4JNetworkError
"""The connection to Spark's process broke."""
CLASSIC = "run the program on the driver: hr.session(master=…), without SPARK_REMOTE or spark.remote"


def refuse_connect(spark: SparkSession) -> None:
    """A session of Spark Connect is a client of a Spark elsewhere, without a JVM to ask. Said before anything else."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UsageError("headrace needs Spark's JVM beside this process, and Spark Connect has none", CLASSIC)


def tree(plan: Any) -> Iterator[tuple[str, Any]]:
    """The nodes of a plan or an expression with their names, parents first."""
    yield str(plan.nodeName()), plan
    for child in sequence(plan.children()):
        yield from tree(child)


def sequence(scala: Any) -> Iterator[Any]:
    return (scala.apply(index) for index in range(scala.size()))
