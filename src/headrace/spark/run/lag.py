"""How far pipelines are behind the topics that they read, at every moment.

Spark's progress reports say where a topic ended when a micro-batch was planned. While a batch takes long, hangs, is
tried again, or no trigger is due, that is old, and a lag of 0 may hide a thousand records. So the ends are asked for
here, on a thread per cluster: one request a second for all partitions that all pipelines read. What was read is what
Spark reports after a batch, and before the first one what the checkpoint says.

The lag is computed from reports (``progress.lag_of``) in which the ends are replaced by the present ones.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.client import Client, TopicPartition, end_offsets, start_offsets
from headrace.client.broker_watch import BrokerWatch
from headrace.client.connection import BrokerUnreachable, ConnectionLost, RequestTimedOut
from headrace.errors import KafkaError
from headrace.spark.progress import Report
from headrace.spark.source.options import SourceOptions, client_options
from headrace.spark.source.positions import Positions, find_partitions, from_json, starting_positions, to_json

__all__ = ["FollowedSource", "TopicEnds", "positions_of", "present", "take_positions"]

SOURCE_NAME = "headrace"
DISCOVERY_S = 10.0
"""How often partitions are looked for that are new, or gone."""

logger = logging.getLogger(__name__)


class FollowedSource:
    """A source of a running query: how far it was read, which the runner says, and where its topics end."""

    def __init__(self, options: SourceOptions, read: Positions | None = None) -> None:
        self.options = options
        self.read = read
        """Everything before these positions was processed; None before anything was."""
        self._entered: Positions = {}
        """Where reading begins in partitions that have no position yet."""
        self._ends: Positions | None = None
        """None while the broker does not answer, and before it was asked."""
        self._was_asked = False
        self._places: list[TopicPartition] = []
        self._discovered_s = float("-inf")

    def report(self, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """What Spark tells of this source, with the ends of now."""
        if not self._was_asked:
            return told
        if self._ends is None:
            return {**told, "latestOffset": None}
        known = self._known()
        latest = positions_of(told.get("latestOffset"))  # may be newer, by a second
        ends = {place: max(at, latest.get(place, at)) for place, at in self._ends.items() if place in known}
        return {**told, "endOffset": to_json({each: known[each] for each in ends}), "latestOffset": to_json(ends)}

    def _known(self) -> Positions:
        return self._entered | (self.read or {})

    # ---- on the thread ----------------------------------------------------------------------------------------------

    def places(self, client: Client, now_s: float) -> list[TopicPartition]:
        """Its partitions, each with a position to count from."""
        if now_s - self._discovered_s >= DISCOVERY_S:
            if not self._known():
                self._entered = starting_positions(client, self.options)
            self._places = find_partitions(client, self.options.selection)
            new = [each for each in self._places if each not in self._known()]
            if new:
                self._entered = self._entered | start_offsets(client, new)
            self._discovered_s = now_s
        return self._places

    def ended(self, ends: Positions) -> None:
        self._ends = {each: ends[each] for each in self._places if each in ends}
        self._was_asked = True

    def lost(self) -> None:
        """The broker is away, or a topic was deleted: look for partitions again."""
        self._ends = None
        self._was_asked = True
        self._discovered_s = float("-inf")


class TopicEnds:
    """Asks where the topics of all pipelines end, and says when a broker is away."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._clusters: dict[object, dict[str, list[FollowedSource]]] = {}
        self._watches: list[BrokerWatch] = []

    def follow(
        self, pipeline: str, kinds: Sequence[tuple[str, dict[str, str]]], read: Sequence[Positions | None]
    ) -> list[FollowedSource | None]:
        """The sources of a pipeline's query, in Spark's order; None for those of other kinds. Replaces earlier ones."""
        found: list[FollowedSource | None] = []
        for index, (kind, given) in enumerate(kinds):
            options = SourceOptions.parse(given, streaming=True) if kind == SOURCE_NAME else None
            at = read[index] if index < len(read) else None
            found.append(None if options is None else FollowedSource(options, at))
        with self._lock:
            for cluster in self._clusters.values():
                cluster.pop(pipeline, None)
            for each in found:
                if each is not None:
                    self._cluster_of(each.options).setdefault(pipeline, []).append(each)
        return found

    def stop(self) -> None:
        for each in self._watches:
            each.stop()

    def _cluster_of(self, options: SourceOptions) -> dict[str, list[FollowedSource]]:
        key = options.bootstrap, tuple(sorted(options.kafka.items()))
        if key not in self._clusters:
            cluster = self._clusters[key] = {}
            how = client_options(options.kafka, retry_timeout_ms=options["retryTimeoutMs"], role="driver")
            watch = BrokerWatch(options.bootstrap, how, self._say, lambda client: self._look(client, cluster))
            self._watches.append(watch)
            watch.start()
        return self._clusters[key]

    def _look(self, client: Client, cluster: Mapping[str, list[FollowedSource]]) -> None:
        with self._lock:
            sources = [each for pipeline in cluster.values() for each in pipeline]
        try:
            for read_committed in (True, False):
                _ask_some(client, [each for each in sources if each.options.read_committed is read_committed])
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut):
            for each in sources:
                each.lost()
            raise


def _ask_some(client: Client, sources: Sequence[FollowedSource]) -> None:
    """All at once; or one after the other, when a topic of one is gone, has no leader or may not be read."""
    try:
        _ask(client, sources)
    except (BrokerUnreachable, ConnectionLost, RequestTimedOut):
        raise
    except KafkaError:
        if len(sources) > 1:
            for each in sources:
                _ask_some(client, [each])
        else:
            logger.debug("the lag behind %s is not known", sources[0].options.selection, exc_info=True)
            sources[0].lost()


def _ask(client: Client, sources: Sequence[FollowedSource]) -> None:
    now_s = time.monotonic()
    places = {place for each in sources for place in each.places(client, now_s)}
    if places:
        ends = end_offsets(client, sorted(places), read_committed=sources[0].options.read_committed)
        for each in sources:
            each.ended(ends)


def present(report: Report, sources: Sequence[FollowedSource | None]) -> Report:
    """A progress report, or ``{}`` before there is one, with the ends that the topics have now."""
    told = report.get("sources") or [{} for _ in sources]
    if len(told) != len(sources):
        return report  # nobody can tell which is which
    now = [each if mine is None else mine.report(each) for each, mine in zip(told, sources, strict=True)]
    return {**report, "sources": now}


def take_positions(report: Report, sources: Sequence[FollowedSource | None]) -> None:
    """A micro-batch is finished: what was read up to its end."""
    told = report.get("sources") or ()
    if len(told) == len(sources):
        for each, mine in zip(told, sources, strict=True):
            if mine is not None and (read := positions_of(each.get("endOffset"))):
                mine.read = read


def positions_of(offset: Any) -> Positions:
    """``{"orders": {"0": 17}}``, as text or already read; nothing of what looks otherwise."""
    try:
        return from_json(json.loads(offset) if isinstance(offset, str) else offset)
    except (ValueError, TypeError, AttributeError):
        return {}
