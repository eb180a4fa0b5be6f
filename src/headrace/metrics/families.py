"""Every metric, declared once. docs/operations.md lists them, and a test compares the two.

Names follow Prometheus: the unit last, ``_total`` for what only grows since the start of the process. Labels are few
and bounded: APIs and error codes are fixed lists, topics and groups have a limit (``metrics.topics.max``,
``metrics.groups.max``), and nothing is labelled by client. Only what has the names of other exporters is labelled by
partition, up to ``metrics.partitions.max`` (``known_names.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace.measures import Histogram

__all__ = ["FAMILIES", "Family", "Kind"]


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_MAKERS: dict[Kind, Callable[..., Metric]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; ``new`` makes an empty one to be filled."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()

    def new(self) -> Metric:
        return _MAKERS[self.kind](self.name, self.meaning, labels=self.labels)

    def of(self, value: float) -> Metric:
        """The metric with its one sample, where it has no labels."""
        return self.filled([((), value)])

    def filled(self, samples: Sequence[tuple[tuple[str, ...], float]]) -> Metric:
        """The metric with a sample per combination of labels."""
        metric = self.new()
        for labels, value in samples:
            metric.add_metric(labels, value)  # type: ignore[attr-defined]  # every kind but Metric itself has it
        return metric

    def observed(self, histograms: Sequence[tuple[tuple[str, ...], Histogram]]) -> Metric:
        metric = self.new()
        for labels, histogram in histograms:
            metric.add_metric(labels, histogram.cumulative(), histogram.sum)  # type: ignore[attr-defined]
        return metric


FAMILIES: list[Family] = []


def _declare(name: str, kind: Kind, meaning: str, *labels: str) -> Family:
    family = Family(name, kind, meaning, labels)
    FAMILIES.append(family)
    return family


def _counter(name: str, meaning: str, *labels: str) -> Family:
    assert name.endswith("_total"), "what only grows says so"
    return _declare(name, Kind.COUNTER, meaning, *labels)


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return _declare(name, Kind.GAUGE, meaning, *labels)


def _histogram(name: str, meaning: str, *labels: str) -> Family:
    return _declare(name, Kind.HISTOGRAM, meaning, *labels)


INFO = _gauge("headrace_info", "1; the labels say which version runs", "version")
LINES_DROPPED = _counter("headrace_log_lines_dropped_total", "messages not logged: too many of a kind, or too fast")
READY = _gauge("headrace_ready", "1 while /ready answers 200")

CONNECTIONS = _gauge("headrace_connections", "open connections", "listener")
ACCEPTED = _counter("headrace_connections_accepted_total", "connections accepted", "listener")
REFUSED = _counter(
    "headrace_connections_refused_total", "connections closed at once, for a limit", "listener", "reason"
)
HELD = _gauge("headrace_connections_held", "connections not read because a group is too far behind (backpressure)")
BLOCKED = _gauge("headrace_connections_blocked", "connections not read because the peer does not take its answers")
IN_FLIGHT = _gauge("headrace_requests_in_flight", "requests executed and not answered yet")
REQUEST_MEMORY = _gauge(
    "headrace_request_memory_bytes", "bytes of requests held; the limit is queued.max.request.bytes"
)

REQUEST_SECONDS = _histogram("headrace_request_seconds", "time from execution to the answer; counts requests", "api")
REQUEST_BYTES = _counter("headrace_request_bytes_total", "bytes of requests", "api")
RESPONSE_BYTES = _counter("headrace_response_bytes_total", "bytes of answers, records included", "api")
RESPONSE_ERRORS = _counter(
    "headrace_response_errors_total", "errors in answers; one answer may hold many", "api", "error"
)
LOOP_DELAY = _histogram("headrace_loop_delay_seconds", "how late the event loop ran a timer; it delays every request")

SYNC_SECONDS = _histogram("headrace_sync_seconds", "time of one sync; counts syncs")
STORAGE_FAILED = _gauge("headrace_storage_failed", "1 after a failed sync, until the process has ended")
DISK_REFUSING = _gauge(
    "headrace_disk_refusing", "1 while the disk refuses: it is full, or no descriptors are left", "operation"
)
DISK_REFUSED = _counter("headrace_disk_refused_total", "operations that the disk refused", "operation")
DISK_FREE = _gauge("headrace_disk_free_bytes", "free bytes of the data directory's filesystem")
DISK_TOTAL = _gauge("headrace_disk_total_bytes", "size of the data directory's filesystem")
LOGS = _gauge("headrace_logs", "logs that are open: partitions, and the journal")
LOG_BYTES = _gauge("headrace_log_bytes", "bytes of all logs")
LOG_SEGMENTS = _gauge("headrace_log_segments", "segments of all logs")
SEGMENT_FILES = _gauge("headrace_segment_files_open", "files of segments that are open")
JOURNAL_BYTES = _gauge("headrace_journal_bytes", "bytes of the journal of topics, groups and transactions")
CHECKPOINTS = _counter("headrace_checkpoints_total", "checkpoints written")
COMPACTIONS = _counter("headrace_compactions_total", "compactions of a log")
COMPACTION_SAVED = _counter("headrace_compaction_saved_bytes_total", "bytes that compactions saved")
REMOVED_BYTES = _counter("headrace_removed_bytes_total", "bytes of segments removed: old, deleted or dropped records")
MAINTENANCE_ERRORS = _counter("headrace_maintenance_errors_total", "checkpoints, removals or compactions that failed")

RECOVERY_SECONDS = _gauge("headrace_recovery_seconds", "time the last start took to open the data directory")
RECOVERY_SCANNED = _gauge("headrace_recovery_scanned_bytes", "bytes the last start read and checked")
RECOVERY_CUTS = _gauge("headrace_recovery_cuts", "ends of logs the last start cut")
RECOVERY_CUT_BYTES = _gauge("headrace_recovery_cut_bytes", "bytes the last start cut")
RECOVERY_FINDINGS = _gauge("headrace_recovery_findings", "what the last start found, as in the log", "severity")

TOPICS = _gauge("headrace_topics", "topics")
PARTITIONS = _gauge("headrace_partitions", "partitions of all topics")
PARTITIONS_DAMAGED = _gauge("headrace_partitions_damaged", "partitions not served because their files are damaged")
TOPICS_UNLISTED = _gauge("headrace_topics_unlisted", "topics without metrics, above metrics.topics.max")
PARTITIONS_UNLISTED = _gauge(
    "headrace_partitions_unlisted", "partitions without kafka_* metrics, above metrics.partitions.max"
)
TOPIC_PARTITIONS = _gauge("headrace_topic_partitions", "partitions", "topic")
TOPIC_BYTES = _gauge("headrace_topic_bytes", "bytes on disk", "topic")
TOPIC_HIGH_WATERMARK = _gauge("headrace_topic_high_watermark", "sum of the partitions' high watermarks", "topic")
TOPIC_LOG_START = _gauge("headrace_topic_log_start", "sum of the partitions' first offsets", "topic")
DROPPED_RECORDS = _counter("headrace_overflow_dropped_records_total", "records removed by drop-oldest", "topic")
HELD_BY_TOPIC = _gauge("headrace_overflow_held_connections", "producers held back by backpressure", "topic")
REFUSED_BATCHES = _counter("headrace_overflow_refused_batches_total", "batches refused by drop-newest", "topic")

GROUPS = _gauge("headrace_groups", "consumer groups")
GROUPS_UNLISTED = _gauge("headrace_groups_unlisted", "groups without metrics, above metrics.groups.max")
GROUP_PARTITIONS_UNLISTED = _gauge(
    "headrace_group_partitions_unlisted",
    "pairs of group and partition without kafka_* metrics, above metrics.partitions.max",
)
GROUP_MEMBERS = _gauge("headrace_group_members", "members", "group")
GROUP_LAG = _gauge(
    "headrace_group_lag_records", "offsets between the committed one and the high watermark", "group", "topic"
)
TRANSACTIONS = _gauge("headrace_transactions", "transactional ids by the state of their transaction", "state")

QUEUES = _gauge("headrace_queues", "queues of all virtual hosts")
QUEUES_DAMAGED = _gauge("headrace_queues_damaged", "queues not served because their files are damaged")
QUEUES_UNLISTED = _gauge("headrace_queues_unlisted", "queues without metrics, above metrics.queues.max")
QUEUE_READY = _gauge("headrace_queue_messages_ready", "messages that wait for a consumer", "vhost", "queue")
QUEUE_UNACKED = _gauge(
    "headrace_queue_messages_unacked", "messages that a consumer has and did not acknowledge yet", "vhost", "queue"
)
QUEUE_CONSUMERS = _gauge("headrace_queue_consumers", "consumers", "vhost", "queue")
QUEUE_PUBLISHED = _counter(
    "headrace_queue_messages_published_total", "messages published, since the queue was made", "vhost", "queue"
)
QUEUE_DELIVERED = _counter(
    "headrace_queue_messages_delivered_total", "messages handed out, or gone before that, since then", "vhost", "queue"
)
QUEUE_GONE = _counter(
    "headrace_queue_messages_gone_total", "messages acknowledged, expired or dropped, since then", "vhost", "queue"
)
QUEUE_BYTES = _gauge("headrace_queue_bytes", "bytes on disk, with those of messages that are gone", "vhost", "queue")
QUEUES_BLOCKED = _gauge(
    "headrace_queues_blocked", "1 while publishers are held, because the disk is full or almost full"
)
QUEUES_DISK_LIMIT = _gauge(
    "headrace_queues_disk_free_limit_bytes", "publishers are held while headrace_disk_free_bytes is below this"
)

PIPELINE_UP = _gauge(
    "headrace_pipeline_up", "1 while it runs without an error, 0 if it ended, failed or stopped reporting", "pipeline"
)
PIPELINE_LAG = _gauge("headrace_pipeline_lag_records", "records of its topics that it has not read", "pipeline")
PIPELINE_ROWS = _counter("headrace_pipeline_rows_total", "rows read since its process started", "pipeline")
CAPTURE_UP = _gauge(
    "headrace_capture_up", "1 while it runs without an error, 0 if it ended, failed or stopped reporting", "capture"
)
CAPTURE_LAG_SECONDS = _gauge(
    "headrace_capture_lag_seconds", "how far the topics are behind the database, in time", "capture"
)
CAPTURE_LAG_BYTES = _gauge("headrace_capture_lag_bytes", "the same in bytes of the database's log", "capture")
CAPTURE_RETAINED = _gauge("headrace_capture_retained_bytes", "bytes that the database keeps for it: a slot", "capture")
CAPTURE_EVENTS = _counter("headrace_capture_events_total", "changes written since its process started", "capture")
CAPTURE_DEAD_LETTERS = _gauge("headrace_capture_dead_letters", "rows set aside in all runs", "capture")
REPORTS_UNLISTED = _gauge(
    "headrace_reports_unlisted", "pipelines and captures without metrics, above metrics.groups.max"
)

KAFKA_BROKERS = _gauge("kafka_brokers", "brokers: 1")
KAFKA_PARTITIONS = _gauge("kafka_topic_partitions", "partitions", "topic")
KAFKA_CURRENT_OFFSET = _gauge("kafka_topic_partition_current_offset", "the high watermark", "topic", "partition")
KAFKA_OLDEST_OFFSET = _gauge("kafka_topic_partition_oldest_offset", "the first offset", "topic", "partition")
KAFKA_GROUP_OFFSET = _gauge(
    "kafka_consumergroup_current_offset", "the committed offset", "consumergroup", "topic", "partition"
)
KAFKA_GROUP_OFFSET_SUM = _gauge(
    "kafka_consumergroup_current_offset_sum", "sum of the committed offsets", "consumergroup", "topic"
)
KAFKA_GROUP_LAG = _gauge(
    "kafka_consumergroup_lag", "offsets up to the high watermark", "consumergroup", "topic", "partition"
)
KAFKA_GROUP_LAG_SUM = _gauge("kafka_consumergroup_lag_sum", "the same of all partitions", "consumergroup", "topic")
KAFKA_GROUP_MEMBERS = _gauge("kafka_consumergroup_members", "members", "consumergroup")

RABBITMQ_IDENTITY = _gauge(
    "rabbitmq_identity_info", "1; boards of RabbitMQ join with it", "rabbitmq_node", "rabbitmq_cluster"
)
RABBITMQ_CONNECTIONS = _gauge("rabbitmq_connections", "open connections of AMQP clients")
RABBITMQ_CHANNELS = _gauge("rabbitmq_channels", "open channels")
RABBITMQ_CONSUMERS = _gauge("rabbitmq_consumers", "consumers of all queues")
RABBITMQ_QUEUES = _gauge("rabbitmq_queues", "queues")
RABBITMQ_READY = _gauge("rabbitmq_queue_messages_ready", "messages that wait for a consumer", "vhost", "queue")
RABBITMQ_UNACKED = _gauge("rabbitmq_queue_messages_unacked", "messages not yet acknowledged", "vhost", "queue")
RABBITMQ_MESSAGES = _gauge("rabbitmq_queue_messages", "both together", "vhost", "queue")
RABBITMQ_QUEUE_CONSUMERS = _gauge("rabbitmq_queue_consumers", "consumers", "vhost", "queue")

DEBEZIUM_LAG = _gauge(
    "debezium_metrics_MilliSecondsBehindSource", "headrace_capture_lag_seconds in ms", "plugin", "name", "context"
)
DEBEZIUM_EVENTS = _gauge(
    "debezium_metrics_TotalNumberOfEventsSeen", "headrace_capture_events_total", "plugin", "name", "context"
)
