"""Where a pipeline writes its rows: ``hr.sinks``.

``plain`` has sinks that Spark itself writes. The others keep derived systems up to date: ``derived`` has the functions
that make them, ``following`` brings the micro-batches of a stream to the writers of ``headrace.targets``, which know no
Spark. ``exchange`` publishes to AMQP brokers. ``several`` writes a stream that is read once to several sinks.
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
