"""One topic of changes and what follows it, for ``headrace run``: the pipelines that ``spark_kills`` kills.

Their sinks are *mortal*: a file named after a pipeline in ``doom`` tells its driver to die, whole and at once, behind
the next batch that the target has committed. So the batch is in, and Spark does not know.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace.spark as hr
from headrace.targets.target import Delivery, Outcome, Session, Target, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOME = Path(os.environ.get("KILLS_HOME", "."))
POSTGRES = os.environ.get("KILLS_POSTGRES", "postgresql://postgres@127.0.0.1/postgres")
MARIADB = os.environ.get("KILLS_MARIADB", "mysql://root@127.0.0.1/kills")
REDIS = os.environ.get("KILLS_REDIS", "redis://127.0.0.1/0")
BATCH_ROWS = int(os.environ.get("KILLS_BATCH_ROWS", "2000"))
TOPIC = "changes"
COPY = "places"
ROW = "id long, kind string, text string, amount decimal(12,2)"


# ---- drivers that die ------------------------------------------------------------------------------------------------


def die_if_told(name: str) -> None:
    """Driver and JVM are one process group; the JVM's Python workers end with it."""
    order = HOME / "doom" / name
    if order.exists():
        order.unlink()
        os.killpg(os.getpgrp(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Mortal(Target):
    name: str
    inner: Target

    @property
    def shown(self) -> str:
        return self.inner.shown

    @property
    def key(self) -> tuple[str, ...]:
        return self.inner.key

    def open(self) -> Session:
        return MortalSession(self.name, self.inner.open())

    def version(self) -> Version | None:
        """Mortal while it is filled, before it is switched, and behind that."""
        made = self.inner.version()
        if made is None:
            return None
        filled = Mortal(f"{self.name}-filling", made.target)
        return Version(filled, made.begin, lambda: self._switch(made.switch), made.abandon)

    def _switch(self, switch: Callable[[], None]) -> None:
        die_if_told(f"{self.name}-filled")
        switch()
        die_if_told(f"{self.name}-switched")


class MortalSession(Session):
    def __init__(self, name: str, inner: Session) -> None:
        self._name = name
        self._inner = inner

    def write(self, delivery: Delivery) -> Outcome:
        done = self._inner.write(delivery)
        if done.rows:
            die_if_told(self._name)
        return done

    def close(self) -> None:
        self._inner.close()


def mortal(name: str, sink: Any) -> Any:
    return replace(sink, target=Mortal(name, sink.target))


# ---- the pipelines ---------------------------------------------------------------------------------------------------


def read(spark: SparkSession) -> DataFrame:
    return hr.stream(spark, TOPIC, schema=ROW, value_format="debezium", maxOffsetsPerTrigger=BATCH_ROWS)


def changed(spark: SparkSession) -> DataFrame:
    return hr.changes(read(spark), key="id")


def places(spark: SparkSession) -> DataFrame:
    """Where each record lies: rows without a key, of which none may come twice."""
    return read(spark).selectExpr("_partition AS part", "_offset AS place", "coalesce(op, 'tombstone') AS op")


@hr.pipeline(sink=mortal("table", hr.sinks.sql(POSTGRES, table="followed", key="id", create=True)))
def table(spark: SparkSession) -> DataFrame:
    return changed(spark)


@hr.pipeline(sink=mortal("events", hr.sinks.sql(POSTGRES, table="events", create=True)))
def events(spark: SparkSession) -> DataFrame:
    return places(spark)


@hr.pipeline(sink=mortal("cache", hr.sinks.redis(REDIS, name="followed", key="id", form="map")))
def cache(spark: SparkSession) -> DataFrame:
    return changed(spark)


@hr.pipeline(sink=mortal("index", hr.sinks.search(f"sqlite:///{HOME}/index.db", index="followed", key="id")))
def index(spark: SparkSession) -> DataFrame:
    return changed(spark)


@hr.pipeline(sink=mortal("warehouse", hr.sinks.delta(str(HOME / "warehouse"), key="id")))
def warehouse(spark: SparkSession) -> DataFrame:
    return changed(spark)


@hr.pipeline(sink=mortal("ledger", hr.sinks.delta(str(HOME / "ledger"))))
def ledger(spark: SparkSession) -> DataFrame:
    return places(spark)


@hr.pipeline(sink=mortal("mirror", hr.sinks.sql(MARIADB, table="followed", key="id", create=True)))
def mirror(spark: SparkSession) -> DataFrame:
    return changed(spark)


@hr.pipeline(
    sinks=[
        mortal("both", hr.sinks.sql(POSTGRES, table="both", create=True)),
        hr.sinks.topic(COPY, key=["part", "place"]),
        mortal("both-last", hr.sinks.delta(str(HOME / "both"))),
    ]
)
def both(spark: SparkSession) -> DataFrame:
    return places(spark)
