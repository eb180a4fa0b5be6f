"""What the modules here share: collections of Scala, nodes of trees, and who has no JVM to ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headrace.errors import UsageError

__all__ = ["CLASSIC", "JvmLost", "noticing_loss", "refuse_connect", "sequence", "tree"]

JvmLost = Py4JNetworkError
"""The connection to Spark's process broke."""
TRACE = "Trace:"
"""In the message of an error that the JVM has sent."""
CLASSIC = "run the program on the driver: hr.session(master=…), without SPARK_REMOTE or spark.remote"


@contextmanager
def noticing_loss() -> Iterator[None]:
    """A JVM that dies during a call gives a plain error of py4j without a trace, and every call after that one
    ``JvmLost``. In here it is always ``JvmLost``."""
    try:
        yield
    except Py4JError as error:
        if type(error) is Py4JError and TRACE not in str(error):
            raise JvmLost(str(error)) from error
        raise


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
