"""Patterns and searches as a user writes them: the file that ``tests.chaos.patterns`` runs and kills.

vees      MATCH_RECOGNIZE with SKIP TO LAST, a greedy loop at the end, conditions on the row before, into a topic
nexts     MATCH_RECOGNIZE with SKIP TO NEXT ROW, a reluctant loop of an alternation, into a table without a key
series    MATCH_RECOGNIZE with all rows of matches, numbered, and those of none, into a topic
lost      two patterns made by functions in one pass, an absence and one with time-outs, into a topic
stored    patterns of a table that changes, into a topic
searches  events beside stored searches that change, into a topic
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr

HOME, SUFFIX = os.environ["PATTERNS_HOME"], os.environ.get("PATTERNS_SUFFIX", "")
PER_BATCH = 60
LATENESS = "5 seconds"
SCHEMA = "n long, who long, at timestamp, kind string, amount long, text string"
ORDERED = "PARTITION BY who ORDER BY at, n"
VEES = f"""{ORDERED}
    MEASURES A.n AS top, LAST(D.n) AS bottom, LAST(U.n) AS last, COUNT(*) AS number
    ONE ROW PER MATCH AFTER MATCH SKIP TO LAST U
    PATTERN (A D+ U+) WITHIN INTERVAL '40' SECOND
    DEFINE D AS D.amount < PREV(D.amount), U AS U.amount > PREV(U.amount)"""
NEXTS = f"""{ORDERED}
    MEASURES A.n AS first, LAST(M.n) AS between_n, COUNT(M.n) AS between_count, D.n AS last
    ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A (B | C){{1,3}}? D) WITHIN INTERVAL '30' SECOND SUBSET M = (B, C)
    DEFINE B AS B.amount > A.amount, C AS kind = 'c', D AS D.amount < AVG(M.amount)"""
SERIES = f"""{ORDERED}
    MEASURES CLASSIFIER() AS variable, MATCH_NUMBER() AS number, RUNNING SUM(amount) AS total
    ALL ROWS PER MATCH WITH UNMATCHED ROWS AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A B*) WITHIN INTERVAL '25' SECOND
    DEFINE A AS kind = 'a', B AS B.amount >= A.amount"""
ABSENT = hr.pattern("a").where("kind = 'a'").not_followed_by("d").where("kind = 'd'").within("20 seconds")
PAID = (
    hr.pattern("x").where("kind = 'b'")
    .followed_by("y").where("kind = 'c' AND y.amount > LAST(x.amount)")
    .followed_by("z").where("kind = 'd'")
    .within("30 seconds")
)  # fmt: skip


def into(name: str) -> hr.sinks.Sink:
    return hr.sinks.topic(name + SUFFIX)


def events(spark: SparkSession) -> DataFrame:
    rows = hr.stream(spark, "events", schema=SCHEMA, maxOffsetsPerTrigger=PER_BATCH)
    return rows.select("n", "who", "at", "kind", "amount", "text").withWatermark("at", LATENESS)


def changes(spark: SparkSession, topic: str, schema: str) -> DataFrame:
    return hr.changes(hr.stream(spark, topic, schema=schema), key="id")


@hr.pipeline(sink=into("vees"))
def vees(spark: SparkSession) -> DataFrame:
    return hr.match_recognize(events(spark), VEES)


@hr.pipeline(sink=hr.sinks.sql(f"sqlite:///{HOME}/nexts{SUFFIX}.db", table="nexts", create=True))
def nexts(spark: SparkSession) -> DataFrame:
    return hr.match_recognize(events(spark), NEXTS)


@hr.pipeline(sink=into("series"))
def series(spark: SparkSession) -> DataFrame:
    return hr.match_recognize(events(spark), SERIES)


@hr.pipeline(sink=into("lost"))
def lost(spark: SparkSession) -> DataFrame:
    wanted = {"absent": ABSENT, "paid": PAID}
    return hr.match(events(spark), wanted, keys="who", event_time="at", order=["n"], timeouts=True)


@hr.pipeline(sink=into("stored"))
def stored(spark: SparkSession) -> DataFrame:
    patterns = changes(spark, "stored-patterns", "id string, pattern string")
    return hr.match_patterns(events(spark), patterns, keys="who", event_time="at", order=["n"])


@hr.pipeline(sink=into("searches"))
def searches(spark: SparkSession) -> DataFrame:
    wanted = changes(spark, "stored-searches", "id string, query string")
    return hr.match_searches(events(spark).select("n", "kind", "amount", "text"), wanted, default="text")
