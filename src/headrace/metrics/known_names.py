"""The same facts under the names that existing Grafana boards ask for.

``kafka_*`` are those of kafka_exporter, ``rabbitmq_*`` those of RabbitMQ's Prometheus plugin with a series per queue.
They have a label for the partition, so there may be many: at most ``metrics.partitions.max`` partitions, and as many
pairs of group and partition, have series. Numbers are gathered on the event loop in steps. The series are made of them
where the text is made, on a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

from headrace.broker.broker import Broker
from headrace.broker.queues.queue import Queue
from headrace.broker.topics import Topic
from headrace.metrics import families
from headrace.metrics.families import Family
from headrace.server import Listener
from headrace.server.amqp import AmqpSession

__all__ = ["Unfilled", "kafka_exporter", "rabbitmq_plugin"]

PARTITIONS_PER_STEP = 200

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Unfilled:
    """A metric whose series are still to be made."""

    family: Family
    samples: list[Sample] = field(default_factory=list)

    def filled(self) -> Metric:
        return self.family.filled(self.samples)


Steps = Iterator[Metric | Unfilled | None]


def kafka_exporter(broker: Broker, *, partitions_max: int, groups_max: int) -> Steps:
    yield families.KAFKA_BROKERS.of(1)
    yield from _topics(broker, partitions_max)
    yield from _groups(broker, partitions_max, groups_max)


def _topics(broker: Broker, partitions_max: int) -> Steps:
    counts, newest, oldest = map(
        Unfilled, (families.KAFKA_PARTITIONS, families.KAFKA_CURRENT_OFFSET, families.KAFKA_OLDEST_OFFSET)
    )
    found = 0
    for topic in broker.topics.all():
        if found < partitions_max:
            counts.samples.append(((topic.name,), len(topic.partitions)))
        for partition in list(topic.partitions):
            found += 1
            if found % PARTITIONS_PER_STEP == 0:
                yield None
            if partition.fault is None and found <= partitions_max:
                labels = (topic.name, str(partition.index))
                newest.samples.append((labels, partition.high_watermark))
                oldest.samples.append((labels, partition.log.start_offset))
    yield families.PARTITIONS_UNLISTED.of(max(0, found - partitions_max))
    yield from (counts, newest, oldest)


def _groups(broker: Broker, partitions_max: int, groups_max: int) -> Steps:
    offsets, lags = Unfilled(families.KAFKA_GROUP_OFFSET), Unfilled(families.KAFKA_GROUP_LAG)
    offset_sums, lag_sums = Unfilled(families.KAFKA_GROUP_OFFSET_SUM), Unfilled(families.KAFKA_GROUP_LAG_SUM)
    members = Unfilled(families.KAFKA_GROUP_MEMBERS)
    found = 0
    for group_id in list(broker.groups)[:groups_max]:
        group = broker.groups.get(group_id)
        if group is None:
            continue  # removed between two steps
        members.samples.append(((group_id,), len(group.member_ids())))
        for name, committed in broker.offsets.committed_offsets(group_id).items():
            yield None
            topic = broker.topics.get(name)
            if topic is None:
                continue
            total = behind = 0
            for index, offset, lag in _positions(topic, committed):
                found += 1
                if found % PARTITIONS_PER_STEP == 0:
                    yield None
                total += offset
                behind += lag
                if found <= partitions_max:
                    offsets.samples.append(((group_id, name, str(index)), offset))
                    lags.samples.append(((group_id, name, str(index)), lag))
            if len(lag_sums.samples) < groups_max:
                offset_sums.samples.append(((group_id, name), total))
                lag_sums.samples.append(((group_id, name), behind))
    yield families.GROUP_PARTITIONS_UNLISTED.of(max(0, found - partitions_max))
    yield from (offsets, offset_sums, lags, lag_sums, members)


def _positions(topic: Topic, committed: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """(partition, committed offset, lag) of each partition that is served."""
    for index, offset in committed.items():
        partition = topic.partition(index)
        if partition is not None and partition.fault is None:
            yield index, offset, max(0, partition.high_watermark - offset)


def rabbitmq_plugin(
    broker: Broker, listeners: list[Listener], queues: list[tuple[str, Queue]], *, queues_max: int, cluster_id: str
) -> Steps:
    """``queues`` are all there are, each with its virtual host."""
    sessions = [each for listener in listeners for each in listener.sessions() if isinstance(each, AmqpSession)]
    node = f"headrace@{broker.settings.integer('broker.id')}"
    yield families.RABBITMQ_IDENTITY.filled([((node, cluster_id), 1)])
    yield families.RABBITMQ_CONNECTIONS.of(len(sessions))
    yield families.RABBITMQ_CHANNELS.of(sum(each.channel_count for each in sessions))
    yield families.RABBITMQ_QUEUES.of(len(queues))
    yield None
    yield families.RABBITMQ_CONSUMERS.of(sum(len(queue.consumers) for _, queue in queues))
    ready, unacked, messages, consumers = map(
        Unfilled,
        (
            families.RABBITMQ_READY,
            families.RABBITMQ_UNACKED,
            families.RABBITMQ_MESSAGES,
            families.RABBITMQ_QUEUE_CONSUMERS,
        ),
    )
    for number, (host, queue) in enumerate(queues[:queues_max], 1):
        if number % PARTITIONS_PER_STEP == 0:
            yield None
        labels = (host, queue.name)
        waiting, taken = queue.ready, queue.unacknowledged
        ready.samples.append((labels, waiting))
        unacked.samples.append((labels, taken))
        messages.samples.append((labels, waiting + taken))
        consumers.samples.append((labels, len(queue.consumers)))
    yield from (ready, unacked, messages, consumers)
