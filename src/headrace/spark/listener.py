"""Shows the positions of every finished micro-batch, the last one included, to the broker.

The planner of a query learns that a batch is finished when Spark asks it for the next one, and that may be a day away,
or never come. Spark's progress events come right after each batch, to the driver; so positions are shown from here as
well. The group is the one that the options of a source ask for, which are found in the query's plan, or the query's
own: by its name, or without one by its id, which a checkpoint keeps. So two queries on one topic have two positions.

PySpark makes a Python object of every progress event by hundreds of calls into the JVM, some of which look through all
jars for a class: a quarter of what the JVM did in small micro-batches. So the event is taken as the JSON it can give.
"""

from __future__ import annotations

# ruff: noqa: N802 the names of methods are Spark's
import json
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQueryManager

from headrace.spark.group_positions import GroupPositions
from headrace.spark.options import SourceOptions, connect
from headrace.spark.positions import from_json

__all__ = ["listen"]

SOURCE_NAME = "headrace"

logger = logging.getLogger(__name__)

_listening: set[str] = set()
"""By the id of the JVM's session: any number of Python's objects may stand for one of those."""


def listen(spark: SparkSession) -> None:
    """Listen to the queries of a session, once."""
    session = str(spark._jsparkSession.sessionUUID())
    if session not in _listening:
        spark.streams.addListener(PositionListener(spark.streams))
        _listening.add(session)


class _Plain(JStreamingQueryListener):
    """What the JVM calls: a progress event goes on as JSON."""

    def __init__(self, listener: PositionListener) -> None:
        super().__init__(listener)
        self._listener = listener

    def onQueryProgress(self, jevent: Any) -> None:
        self._listener.progressed(str(jevent.progress().json()))


class PositionListener(StreamingQueryListener):
    def __init__(self, queries: StreamingQueryManager) -> None:
        self._queries = queries
        self._groups: dict[str, list[GroupPositions | None]] = {}
        self._wrapped: Any = None

    @property
    def _jlistener(self) -> Any:
        """Asked for by PySpark when it adds the listener, and once more when it removes it."""
        if self._wrapped is None:
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_Plain(self))
        return self._wrapped

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Spark waits for this one. Later a short query may be over, and its plan gone, before its progress is told."""
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
                plan = query._jsq.streamingQuery().analyzedPlan()
                self._groups[run] = [self._group_of(node, name or query_id) for node in _sources(plan)]
            except Exception as error:
                logger.warning("the positions of query %s will not be shown: %s", query_id, error)
                self._groups[run] = []
        return self._groups[run]

    def _group_of(self, node: Any, shown_as: str) -> GroupPositions | None:
        if str(node.nodeName()) != "StreamingRelationV2" or str(node.sourceName()) != SOURCE_NAME:
            return None
        entries = node.extraOptions().asCaseSensitiveMap()
        options = SourceOptions.parse({str(key): str(entries[key]) for key in entries}, streaming=True)
        group = options.group(shown_as)
        if group is None:
            return None
        return GroupPositions(group, partial(connect, options, role="driver"))


def _sources(plan: Any) -> list[Any]:
    """From left to right. A source that stands in the plan twice is one source to Spark."""
    found: list[Any] = []
    for node in _nodes(plan):
        if str(node.nodeName()).startswith("StreamingRelation") and not any(node.equals(each) for each in found):
            found.append(node)
    return found


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
