"""Where a pipeline's rows go: ``hr.sinks``.

``plain`` has sinks that Spark itself writes. The others keep derived systems up to date: ``target`` says what that
means and how a batch counts once, the modules named ``to_…`` each know one kind of system, without Spark,
``following`` brings the micro-batches of a stream to them, and ``derived`` has the functions that make them.
"""

from __future__ import annotations

from headrace.spark.sinks.derived import delta, email, find, opensearch, redis, search, sql, webhook
from headrace.spark.sinks.exchange import exchange
from headrace.spark.sinks.plain import Sink, as_sink, console, parquet, topic

__all__ = [
    "Sink",
    "as_sink",
    "console",
    "delta",
    "email",
    "exchange",
    "find",
    "opensearch",
    "parquet",
    "redis",
    "search",
    "sql",
    "topic",
    "webhook",
]
