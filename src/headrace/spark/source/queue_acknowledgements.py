"""Acknowledges to a queue what a query has committed.

Spark's reports of progress come right after each micro-batch is committed, the last one included. Everything before its
end offsets is acknowledged, also what a report that was lost would have. A crash before that leaves messages in the
queue which the query does not read again; the next report acknowledges them.
"""

# ruff: noqa: N802 the names of methods are Spark's
from __future__ import annotations

import json
import logging
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from headrace.client import Queues
from headrace.spark.plan import ProgressListener, query_sources, session_id
from headrace.spark.source.queue_source import QUEUE_SOURCE, QueueOptions, QueuePosition

__all__ = ["acknowledge_committed"]

logger = logging.getLogger(__name__)

_listening: set[str] = set()
"""By the id of the JVM's session."""


def acknowledge_committed(spark: SparkSession) -> None:
    """Listen to the queries of a session, once."""
    session = session_id(spark)
    if session not in _listening:
        spark.streams.addListener(AcknowledgementListener(spark.streams))
        _listening.add(session)


class AcknowledgementListener(ProgressListener):
    def __init__(self, queries: StreamingQueryManager) -> None:
        self._queries = queries
        self._options: dict[str, list[QueueOptions | None]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._learn(str(event.runId), str(event.id))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was processed."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.progressed(event.progress.json)

    def progressed(self, text: str) -> None:
        """What goes wrong here must not disturb the query: the next report does it."""
        progress = json.loads(text)
        options = self._learn(progress["runId"], progress["id"])
        if len(options) != len(progress["sources"]):
            return
        try:
            for source, each in zip(progress["sources"], options, strict=True):
                if each is not None and source.get("endOffset"):
                    _acknowledge(each, source["endOffset"])
        except Exception as error:
            logger.warning("messages of query %s were not acknowledged yet: %s", progress["id"], error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._options.pop(str(event.runId), None)

    def _learn(self, run: str, query_id: str) -> list[QueueOptions | None]:
        if run not in self._options:
            query = self._queries.get(query_id)
            if query is None:
                return []
            self._options[run] = [_options_of(kind, given) for kind, given in query_sources(query)]
        return self._options[run]


def _options_of(kind: str, given: dict[str, str]) -> QueueOptions | None:
    options = QueueOptions.parse(given) if kind == QUEUE_SOURCE else None
    return options if options is not None and options.acknowledge else None


def _acknowledge(options: QueueOptions, ends: dict[str, Any] | str) -> None:
    """Of the queue that was read; one that was made later under its name has other messages. From a stream nothing is
    taken."""
    end = QueuePosition.of(ends)
    with options.connect() as client:
        queues = Queues(client, options.vhost)
        found = queues.describe(options.queue)
        if end.is_in(found.id) and not found.is_stream:
            for number, lane in enumerate(found.lanes):
                queues.acknowledge(options.queue, number, lane.floor, end.lanes.get(number, 0))
