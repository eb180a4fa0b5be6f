"""Joins, views and weighted rows as a user writes them: the file that ``tests.chaos.tables`` runs and kills.

groups    people by city, null being a city, into a topic
named     people with the boss of their city, into a table
paired    the full join of people and cities, into a topic
adults    weighted rows: a filter, a computed column and a projection, into a table
visited   visits with the person as of their time, into a topic
latest    visits with the person as of now, appended to a table without a key
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr

HOME = os.environ["TABLES_HOME"]
PERSON = "id long, city string, age int, paid decimal(10,2), bio string"
PER_BATCH = 25
LATENESS = "5 seconds"


def table(name: str, **more: object) -> hr.sinks.Sink:
    return hr.sinks.sql(f"sqlite:///{HOME}/{name}.db", table=name, create=True, **more)  # type: ignore[arg-type]


def people(spark: SparkSession) -> DataFrame:
    rows = hr.stream(spark, "people", schema=PERSON, value_format="debezium", maxOffsetsPerTrigger=PER_BATCH)
    return hr.changes(rows, key="id")


def cities(spark: SparkSession) -> DataFrame:
    rows = hr.stream(spark, "cities", schema="name string, boss string", maxOffsetsPerTrigger=PER_BATCH)
    return hr.changes(rows, key="name")


def visits(spark: SparkSession) -> DataFrame:
    schema = "n long, who long, at timestamp"
    rows = hr.stream(spark, "visits", schema=schema, maxOffsetsPerTrigger=PER_BATCH)
    return rows.select("n", "who", "at").withWatermark("at", LATENESS)


@hr.pipeline(sink=hr.sinks.topic("groups"))
def groups(spark: SparkSession) -> DataFrame:
    return hr.view(
        people(spark),
        "city",
        {
            "number": F.count("*"),
            "known": F.count("age"),
            "paid": F.sum("paid"),
            "youngest": F.min("age"),
            "oldest": F.max("age"),
            "ages": F.count_distinct("age"),
            "first": F.min_by(F.struct("id", "bio"), "id", 2),
        },
    )


@hr.pipeline(sink=table("named", key="id"))
def named(spark: SparkSession) -> DataFrame:
    return hr.join_tables(people(spark), cities(spark), {"city": "name"}, how="left")


@hr.pipeline(sink=hr.sinks.topic("paired"))
def paired(spark: SparkSession) -> DataFrame:
    return hr.join_tables(people(spark), cities(spark), {"city": "name"}, how="full")


@hr.pipeline(sink=table("adults", key="id"))
def adults(spark: SparkSession) -> DataFrame:
    rows = hr.deltas(people(spark)).where("age >= 18").withColumn("decade", F.expr("age div 10"))
    return rows.select("id", "decade", "bio", "_weight")


@hr.pipeline(sink=hr.sinks.topic("visited"))
def visited(spark: SparkSession) -> DataFrame:
    then = people(spark).withWatermark("at", LATENESS)
    return hr.join_as_of(visits(spark), then, {"who": "id"}, event_time="at")


@hr.pipeline(sink=table("latest"))
def latest(spark: SparkSession) -> DataFrame:
    return hr.join_latest(visits(spark), people(spark), {"who": "id"})
