"""Shows the positions of every finished micro-batch, the last one included, to the broker.

The planner of a query learns that a batch is finished when Spark asks it for the next one, and that may be a day away,
or never come. Spark's progress events come right after each batch, to the driver; so positions are shown from here as
well. The group is the one that the options of a source ask for, which are found in the query's plan, or the query's
own: by its name, or without one by its id, which a checkpoint keeps. So two queries on one topic have two positions.
"""

from __future__ import annotations

# ruff: noqa: N802 the names of methods are Spark's
import json
import logging
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from headrace.spark.plan import ProgressListener, query_sources, session_id
from headrace.spark.source.group_positions import GroupPositions
from headrace.spark.source.options import SourceOptions, connect
from headrace.spark.source.positions import from_json

__all__ = ["listen"]

SOURCE_NAME = "headrace"

logger = logging.getLogger(__name__)

_listening: set[str] = set()
"""By the id of the JVM's session."""


def listen(spark: SparkSession) -> None:
    """Listen to the queries of a session, once."""
    session = session_id(spark)
    if session not in _listening:
        spark.streams.addListener(PositionListener(spark.streams))
        _listening.add(session)


class PositionListener(ProgressListener):
    def __init__(self, queries: StreamingQueryManager) -> None:
        self._queries = queries
        self._groups: dict[str, list[GroupPositions | None]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Spark waits for this one. Later a short query may be over, and its plan gone, before its progress is
        reported."""
        self._learn(str(event.runId), str(event.id), event.name)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was processed."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.progressed(event.progress.json)

    def progressed(self, text: str) -> None:
        """Whatever goes wrong here must not disturb the query."""
        progress = json.loads(text)
        groups = self._learn(progress["runId"], progress["id"], progress.get("name"))
        if len(groups) != len(progress["sources"]):
            return  # nobody can tell which is which
        try:
            for source, group in zip(progress["sources"], groups, strict=True):
                if group is not None and source.get("endOffset"):
                    group.show(from_json(source["endOffset"]))
        except Exception as error:
            logger.warning("the positions of query %s were not shown: %s", progress["id"], error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        for group in self._groups.pop(str(event.runId), []):
            if group is not None:
                group.stop()

    def _learn(self, run: str, query_id: str, name: str | None) -> list[GroupPositions | None]:
        """One entry per source of the query, in Spark's order; None for sources of other kinds and without a group."""
        if run not in self._groups:
            try:
                query = self._queries.get(query_id)
                if query is None:
                    return []
                sources = query_sources(query)
                self._groups[run] = [self._group_of(kind, given, name or query_id) for kind, given in sources]
            except Exception as error:
                logger.warning("the positions of query %s will not be shown: %s", query_id, error)
                self._groups[run] = []
        return self._groups[run]

    def _group_of(self, kind: str, given: dict[str, str], shown_as: str) -> GroupPositions | None:
        if kind != SOURCE_NAME:
            return None
        options = SourceOptions.parse(given, streaming=True)
        group = options.group(shown_as)
        if group is None:
            return None
        return GroupPositions(group, partial(connect, options, role="driver"))
