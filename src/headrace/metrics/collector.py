"""Reads the parts' counters and makes metrics of them.

``steps`` goes through everything on the event loop, in small steps: after each, something else may run. What may wait
for the disk or the kernel (free space, the process's own numbers) is read in ``slow``, on any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric

import headrace
from headrace.broker.broker import Broker
from headrace.broker.queues.queue import Queue
from headrace.broker.topics import Topic
from headrace.errors import ErrorCode
from headrace.log.findings import Severity
from headrace.log.sync_guard import SyncGuard
from headrace.measures import Histogram
from headrace.metrics import families
from headrace.metrics.families import Family
from headrace.metrics.known_names import Unfilled, kafka_exporter, rabbitmq_plugin
from headrace.metrics.reported import ReportedStates
from headrace.server import KafkaService, Listener
from headrace.server.kafka import KafkaSession
from headrace.wire.kafka.apis import APIS

__all__ = ["Collector", "Sources"]

T = TypeVar("T")

PARTITIONS_PER_STEP = 200
SESSIONS_PER_STEP = 500
QUEUES_PER_STEP = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The parts whose counters are read."""

    listeners: list[Listener]
    kafka: KafkaService
    broker: Broker
    disk: SyncGuard
    is_ready: Callable[[], bool]
    loop_delay: Histogram
    lines_dropped: Callable[[], int]
    topics_max: int
    groups_max: int
    queues_max: int
    partitions_max: int


class Collector:
    """One per process. ``collect`` is what a ``prometheus_client`` registry calls."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._process = ProcessCollector(registry=None)
        self._reported = ReportedStates(sources.broker)

    def collect(self) -> Iterator[Metric]:
        """Everything at once, on the event loop's thread."""
        for metric in self.steps():
            if metric is not None:
                yield metric.filled() if isinstance(metric, Unfilled) else metric
        yield from self.slow()

    def steps(self) -> Iterator[Metric | Unfilled | None]:
        """Metrics, and None where nothing is finished but others may run."""
        yield families.INFO.filled([((headrace.__version__,), 1)])
        yield families.READY.of(self._sources.is_ready())
        yield from self._connections()
        yield from self._requests()
        yield families.LINES_DROPPED.of(self._sources.lines_dropped())
        yield families.LOOP_DELAY.observed([((), self._sources.loop_delay)])
        yield from self._storage()
        yield from self._logs()
        yield from self._maintenance()
        yield from self._recovery()
        yield from self._topics()
        yield from self._groups()
        yield from self._transactions()
        yield from self._queues()
        yield from self._known_names()
        yield from self._reported.seek()

    def slow(self) -> Iterator[Metric]:
        """What is not the event loop's to read: may be called on another thread."""
        directory = self._sources.broker.store.directory
        yield families.DISK_FREE.of(self._sources.disk.free_bytes(directory))
        yield families.DISK_TOTAL.of(self._sources.disk.total_bytes(directory))
        yield from self._reported.metrics(self._sources.groups_max)
        yield from self._process.collect()

    # ---- the server -------------------------------------------------------------------------------------------------

    def _connections(self) -> Iterator[Metric | None]:
        listeners = self._sources.listeners
        yield families.CONNECTIONS.filled([((each.name,), each.connections) for each in listeners])
        yield families.ACCEPTED.filled([((each.name,), each.accepted) for each in listeners])
        refused = [((each.name, reason), count) for each in listeners for reason, count in each.refused.items()]
        yield families.REFUSED.filled(refused)
        found: Counter[Family] = Counter()
        for session in _in_steps([each for listener in listeners for each in listener.sessions()], SESSIONS_PER_STEP):
            if session is None:
                yield None
            elif isinstance(session, KafkaSession):
                found[families.HELD] += session.is_held
                found[families.BLOCKED] += session.is_blocked
                found[families.IN_FLIGHT] += session.requests_in_flight
        for family in (families.HELD, families.BLOCKED, families.IN_FLIGHT):
            yield family.of(found[family])
        yield families.REQUEST_MEMORY.of(self._sources.kafka.budget.held_bytes)

    def _requests(self) -> Iterator[Metric]:
        used = [(APIS[key].name, each) for key, each in self._sources.kafka.measures.items() if each.request_bytes]
        yield families.REQUEST_SECONDS.observed([((api,), each.seconds) for api, each in used])
        yield families.REQUEST_BYTES.filled([((api,), each.request_bytes) for api, each in used])
        yield families.RESPONSE_BYTES.filled([((api,), each.response_bytes) for api, each in used])
        errors = [((api, _error_name(code)), count) for api, each in used for code, count in list(each.errors.items())]
        yield families.RESPONSE_ERRORS.filled(errors)

    # ---- the log ----------------------------------------------------------------------------------------------------

    def _storage(self) -> Iterator[Metric]:
        disk = self._sources.disk
        yield families.SYNC_SECONDS.observed([((), self._sources.broker.flusher.sync_seconds)])
        yield families.STORAGE_FAILED.of(disk.failed is not None)
        troubles = {"write": disk.writing, "create": disk.creating}
        yield families.DISK_REFUSING.filled([((name,), each.active) for name, each in troubles.items()])
        yield families.DISK_REFUSED.filled([((name,), each.refused_total) for name, each in troubles.items()])

    def _logs(self) -> Iterator[Metric | None]:
        store = self._sources.broker.store
        size = segments = 0
        logs = list(store.logs.values())
        for log in _in_steps(logs, PARTITIONS_PER_STEP):
            if log is None:
                yield None
                continue
            size += log.size_bytes
            segments += len(log.segments)
        yield families.LOGS.of(len(logs))
        yield families.LOG_BYTES.of(size)
        yield families.LOG_SEGMENTS.of(segments)
        yield families.SEGMENT_FILES.of(len(store.cache))
        yield families.JOURNAL_BYTES.of(self._sources.broker.state.size_bytes)

    def _maintenance(self) -> Iterator[Metric]:
        maintenance = self._sources.broker.maintenance
        yield families.CHECKPOINTS.of(maintenance.checkpoints)
        yield families.COMPACTIONS.of(maintenance.compactions)
        yield families.COMPACTION_SAVED.of(maintenance.compaction_saved_bytes)
        yield families.REMOVED_BYTES.of(maintenance.removed_bytes)
        yield families.MAINTENANCE_ERRORS.of(maintenance.errors)

    def _recovery(self) -> Iterator[Metric]:
        report = self._sources.broker.store.report
        yield families.RECOVERY_SECONDS.of(report.seconds)
        yield families.RECOVERY_SCANNED.of(report.scanned_bytes)
        yield families.RECOVERY_CUTS.of(report.cuts)
        yield families.RECOVERY_CUT_BYTES.of(report.cut_bytes)
        yield families.RECOVERY_FINDINGS.filled([((severity,), report.count(severity)) for severity in Severity])

    # ---- the broker -------------------------------------------------------------------------------------------------

    def _topics(self) -> Iterator[Metric | None]:
        topics = self._sources.broker.topics.all()
        listed = topics[: self._sources.topics_max]
        yield families.TOPICS.of(len(topics))
        yield families.PARTITIONS.of(sum(len(topic.partitions) for topic in topics))
        yield None
        yield families.PARTITIONS_DAMAGED.of(sum(len(topic.partitions) - len(topic.served) for topic in topics))
        yield families.TOPICS_UNLISTED.of(len(topics) - len(listed))
        samples: dict[Family, list[tuple[tuple[str, ...], float]]] = {family: [] for family in _TOPIC_FAMILIES}
        for topic in listed:
            for part in _topic_samples(topic):
                if part is None:
                    yield None
                else:
                    family, value = part
                    samples[family].append(((topic.name,), value))
        for family, found in samples.items():
            yield family.filled(found)
        held = self._sources.broker.overflow.held_connections().most_common(self._sources.topics_max)
        yield families.HELD_BY_TOPIC.filled([((topic,), count) for topic, count in held])

    def _groups(self) -> Iterator[Metric | None]:
        broker = self._sources.broker
        ids = list(broker.groups)
        listed = ids[: self._sources.groups_max]
        yield families.GROUPS.of(len(ids))
        yield families.GROUPS_UNLISTED.of(len(ids) - len(listed))
        members: list[tuple[tuple[str, ...], float]] = []
        lags: list[tuple[tuple[str, ...], float]] = []
        for group_id in listed:
            group = broker.groups.get(group_id)
            if group is None:
                continue  # removed between two steps
            members.append(((group_id,), len(group.member_ids())))
            for topic_name, committed in broker.offsets.committed_offsets(group_id).items():
                topic = broker.topics.get(topic_name)
                if topic is not None and len(lags) < self._sources.groups_max:
                    lags.append(((group_id, topic_name), _lag(topic, committed)))
                yield None
        yield families.GROUP_MEMBERS.filled(members)
        yield families.GROUP_LAG.filled(lags)

    def _transactions(self) -> Iterator[Metric | None]:
        states: Counter[str] = Counter()
        for transaction in _in_steps(self._sources.broker.transactions.all(), SESSIONS_PER_STEP):
            if transaction is None:
                yield None
            else:
                states[str(transaction.state)] += 1
        yield families.TRANSACTIONS.filled([((state,), count) for state, count in states.items()])

    def _queues(self) -> Iterator[Metric | None]:
        queues = self._sources.broker.queues
        hosts = list(queues.registry.hosts.values())
        found = [(host.name, queue) for host in hosts for queue in host.queues.values()]
        listed = found[: self._sources.queues_max]
        yield families.QUEUES.of(len(found))
        yield families.QUEUES_DAMAGED.of(sum(len(host.damaged) for host in hosts))
        yield families.QUEUES_UNLISTED.of(len(found) - len(listed))
        yield families.QUEUES_BLOCKED.of(queues.blocking.reason is not None)
        yield families.QUEUES_DISK_LIMIT.of(queues.reserve.bytes_min)
        samples: dict[Family, list[tuple[tuple[str, ...], float]]] = {family: [] for family in _QUEUE_FAMILIES}
        for each in _in_steps(listed, QUEUES_PER_STEP):
            if each is None:
                yield None
                continue
            host, queue = each
            for family, value in _queue_samples(queue):
                samples[family].append(((host, queue.name), value))
        for family, values in samples.items():
            yield family.filled(values)

    def _known_names(self) -> Iterator[Metric | Unfilled | None]:
        sources, broker = self._sources, self._sources.broker
        yield from kafka_exporter(broker, partitions_max=sources.partitions_max, groups_max=sources.groups_max)
        hosts = list(broker.queues.registry.hosts.values())
        queues = [(host.name, queue) for host in hosts for queue in host.queues.values()]
        yield from rabbitmq_plugin(
            broker, sources.listeners, queues, queues_max=sources.queues_max, cluster_id=broker.cluster_id
        )


_QUEUE_FAMILIES = (
    families.QUEUE_READY,
    families.QUEUE_UNACKED,
    families.QUEUE_CONSUMERS,
    families.QUEUE_PUBLISHED,
    families.QUEUE_DELIVERED,
    families.QUEUE_GONE,
    families.QUEUE_BYTES,
)


def _queue_samples(queue: Queue) -> Iterator[tuple[Family, float]]:
    """Offsets of logs count by themselves: nothing is counted where messages pass."""
    lanes = queue.lanes
    published = sum(lane.end for lane in lanes)
    yield families.QUEUE_READY, queue.ready
    yield families.QUEUE_UNACKED, queue.unacknowledged
    yield families.QUEUE_CONSUMERS, len(queue.consumers)
    yield families.QUEUE_PUBLISHED, published
    yield families.QUEUE_DELIVERED, sum(max(lane.cursor, lane.delivered_before) for lane in lanes)
    yield families.QUEUE_GONE, published - sum(lane.ready + lane.taken for lane in lanes)
    yield families.QUEUE_BYTES, sum(lane.log.size_bytes for lane in lanes)


_TOPIC_FAMILIES = (
    families.TOPIC_PARTITIONS,
    families.TOPIC_BYTES,
    families.TOPIC_HIGH_WATERMARK,
    families.TOPIC_LOG_START,
    families.DROPPED_RECORDS,
    families.REFUSED_BATCHES,
)


def _topic_samples(topic: Topic) -> Iterator[tuple[Family, float] | None]:
    found: Counter[Family] = Counter()
    for partition in _in_steps(list(topic.partitions), PARTITIONS_PER_STEP):
        if partition is None:
            yield None
            continue
        found[families.DROPPED_RECORDS] += partition.dropped_records
        found[families.REFUSED_BATCHES] += partition.refused_batches
        if partition.fault is not None:
            continue
        found[families.TOPIC_BYTES] += partition.log.size_bytes
        found[families.TOPIC_HIGH_WATERMARK] += partition.high_watermark
        found[families.TOPIC_LOG_START] += partition.log.start_offset
    found[families.TOPIC_PARTITIONS] = len(topic.partitions)
    for family in _TOPIC_FAMILIES:
        yield family, found[family]
    yield None


def _lag(topic: Topic, committed: dict[int, int]) -> int:
    """Offsets not read yet, all partitions together."""
    lag = 0
    for index, offset in committed.items():
        partition = topic.partition(index)
        if partition is not None and partition.fault is None:
            lag += max(0, partition.high_watermark - offset)
    return lag


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _in_steps(items: Iterable[T], size: int) -> Iterator[T | None]:
    """The items, with None after every ``size`` of them."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield from part
        yield None
