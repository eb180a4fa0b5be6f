"""Topics: their names, ids, partitions and settings.

A topic is a row of the state table ``topics``; its partitions are the logs of a group in the space ``topics``. A topic
is made in this order: directories with empty logs, synced, in a thread; the row; when the row is flushed, the topic is
there for everybody. What a crash or an error leaves before the row is removed (``log/space.py``). It is deleted in the
opposite order: the row first, then, when that is flushed, the files. A directory that no row names is reported and
never removed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.broker.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from headrace.broker.partition import DamagedPartition, Partition
from headrace.broker.replies import once_flushed
from headrace.broker.slices import InThread, Steps, in_steps
from headrace.broker.state import StateStore
from headrace.broker.topic_config import TopicConfig
from headrace.config import TOPIC_SETTINGS, Settings, parse_value
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.errors import CorruptLog, LogError, storage_error
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.space import GROUP_CHARACTERS_MAX, TOPICS, LogSpace
from headrace.log.store import LogStore
from headrace.ports import Clock
from headrace.vocabulary import Epoch

__all__ = [
    "NewTopic",
    "Topic",
    "Topics",
    "check_name",
    "deleted_group",
    "group_name",
    "metric_name",
    "new_id",
]

LOG = logging.getLogger("headrace.topics")

ROWS_PER_STEP = 50
PARTITION_UNITS = 4
REGISTRATION_UNITS = 3
"""What it costs to add a partition, in units of ``slices``."""
_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")


def check_name(name: str) -> None:
    """Kafka's rule for topic names; it also keeps names safe as parts of paths."""
    if not name:
        raise _invalid_name("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise _invalid_name("Topic name is invalid: '.' or '..' is not allowed")
    if len(name) > TOPIC_NAME_CHARS_MAX:
        raise _invalid_name(
            f"Topic name is invalid: the length of '{name[:20]}…' is longer than the max allowed {TOPIC_NAME_CHARS_MAX}"
        )
    if not _NAME.match(name):
        raise _invalid_name(
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )


def check_not_reserved(name: str) -> None:
    """Refuse names that Kafka's tools or headrace use themselves."""
    if name in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is internal.")
    if name == "__cluster_metadata":
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")


def _invalid_name(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


class Topic:
    """One topic, alive."""

    def __init__(self, name: str, topic_id: bytes, config: TopicConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.config = config
        self.partition_count = 0
        """What the row says. ``partitions`` follows it when they have been made."""
        self.partitions: list[Partition] = []
        self.internal = False

    @property
    def served(self) -> list[Partition]:
        """The partitions whose logs are whole."""
        return [each for each in self.partitions if each.fault is None]

    def partition(self, index: int) -> Partition | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """What somebody asks for."""

    name: str
    partitions: int
    config: Mapping[str, str | None]


class Topics:
    """All topics, by name and by id."""

    def __init__(
        self,
        *,
        state: StateStore,
        store: LogStore,
        flusher: Flusher,
        clock: Clock,
        settings: Settings,
        leader_epoch: Epoch,
        remove_files: Callable[[LogSpace, str, Callable[[], None]], None],
    ) -> None:
        """``remove_files`` moves a deleted topic's files away and calls back when that is durable."""
        self._state = state
        self._store = store
        self._space = store.space(TOPICS)
        self._flusher = flusher
        self._clock = clock
        self._settings = settings
        self._leader_epoch = leader_epoch
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._name_by_metric: dict[str, str] = {}
        """Kafka's metrics write dots as underscores: two names that differ in nothing else collide there. Names that
        are being made count too."""
        self._growing: set[Topic] = set()
        self.version = 0
        """Grows whenever topics or partitions come or go."""
        self._on_deleted: list[Callable[[str], None]] = []
        self._before_creation: list[Callable[[str], None]] = []
        self._remove_files = remove_files
        self.unclaimed: dict[str, str] = {}
        """Topic names in the names of directories that belong to no topic, with their paths."""

    def load(self) -> None:
        """Open every topic of the state; finish what a crash interrupted."""
        rows = self._state.table("topics")
        self._space.discard_unconfirmed(
            {group_name(name, bytes.fromhex(row["id"])): int(row["partitions"]) for name, row in rows.items()}
        )
        for name, row in rows.items():
            topic = Topic(name, bytes.fromhex(row["id"]), TopicConfig(row["config"], self._settings))
            self._open_partitions(topic, int(row["partitions"]))
            self._reserve(name)
            self._register(topic)
        for key in list(self._state.table("deleted")):
            self._space.forget(deleted_group(key))
            self._space.move_deleted(deleted_group(key))
            self._forget_deleted(key)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def exists(self, name: str) -> bool:
        return name in self._by_name

    def all(self) -> list[Topic]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def __len__(self) -> int:
        return len(self._by_name)

    def subscribe(
        self, on_deleted: Callable[[str], None], *, before_creation: Callable[[str], None] = lambda name: None
    ) -> None:
        """Call ``on_deleted`` with the name of a topic that was deleted. ``before_creation`` gets the name of a topic
        before its row is written; what it raises refuses the topic."""
        self._on_deleted.append(on_deleted)
        self._before_creation.append(before_creation)

    def check_new(self, name: str, partitions: int, config: Mapping[str, str | None]) -> dict[str, str]:
        """Refuse a topic that could not be made like this; gives its settings, cleaned."""
        check_name(name)
        check_not_reserved(name)
        other = self._name_by_metric.get(metric_name(name))
        if other == name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if other is not None:
            raise _invalid_name(f"Topic '{name}' collides with existing topic: {other}")
        if not 0 < partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Number of partitions was set to an invalid value: {partitions} is not between 1 and "
                f"{PARTITIONS_PER_TOPIC_MAX}.",
            )
        return self.check_config(config)

    def check_config(self, config: Mapping[str, str | None]) -> dict[str, str]:
        """Refuse unknown settings and values that do not fit."""
        clean = {}
        for key, raw in config.items():
            setting = TOPIC_SETTINGS.get(key)
            if setting is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
            if raw is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {key}")
            parse_value(setting, raw)
            clean[key] = raw
        return clean

    def validated(self, wanted: NewTopic) -> Topic:
        """A topic as it would be made. It goes nowhere."""
        config = TopicConfig(self.check_new(wanted.name, wanted.partitions, wanted.config), self._settings)
        config.check()
        return Topic(wanted.name, new_id(), config)

    def create(self, wanted: Sequence[NewTopic]) -> Steps[list[Topic | HeadraceError]]:
        """Make topics; each, or why it was not made. They are durable and there for everybody when this returns."""
        asked: list[Topic | HeadraceError] = []
        counts: dict[Topic, int] = {}
        for each in wanted:
            try:
                topic = self.validated(each)
                self._reserve(topic.name)
                counts[topic] = each.partitions
                asked.append(topic)
            except HeadraceError as error:
                asked.append(error.with_traceback(None))  # the frames of a traceback refer back to the error
            yield 1
        try:
            made = yield from self._make(counts)
        except BaseException:
            self._release(counts)
            raise
        refused: dict[Topic, HeadraceError] = {}
        for topic, partitions in made.items():
            if isinstance(partitions, HeadraceError):
                refused[topic] = partitions
            else:
                topic.partitions = partitions
                self._register(topic)
                self._catch_up(topic)
                if topic.name in self.unclaimed:
                    LOG.warning(
                        "the new topic %s is empty: the records in %s are not part of it; see the error at the start",
                        topic.name,
                        self.unclaimed[topic.name],
                    )
            yield REGISTRATION_UNITS
        self._release(refused)
        if len(refused) < len(counts):
            self.version += 1
        return [refused.get(each, each) if isinstance(each, Topic) else each for each in asked]

    def add_partitions(self, topic: Topic, count: int) -> Steps[None]:
        """Let a topic have ``count`` partitions. Raises with nothing changed if the disk refuses, or when the topic is
        deleted meanwhile."""
        if topic in self._growing:
            raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Topic '{topic.name}' is being given partitions.")
        self._growing.add(topic)
        try:
            made = yield from self._make({topic: count})
        finally:
            self._growing.discard(topic)
        partitions = made[topic]
        if isinstance(partitions, HeadraceError):
            raise partitions
        topic.partitions += partitions
        self._catch_up(topic)
        self.version += 1

    def _make(self, counts: Mapping[Topic, int]) -> Steps[dict[Topic, list[Partition] | HeadraceError]]:
        """Make the partitions that topics lack: on disk, then in the state, then in memory. They, or why not."""
        groups = {topic: _group(topic) for topic in counts}
        lacking = {groups[topic]: range(len(topic.partitions), count) for topic, count in counts.items()}
        failed = yield InThread(self._space.make, (lacking,), syncs=True)
        made: dict[Topic, list[Partition] | HeadraceError] = {}
        for topic, group in groups.items():
            if group in failed:
                made[topic] = storage_error(failed[group], f"{self._space.directory}/{group}")
        offset = yield from self._write_rows({topic: counts[topic] for topic in counts if topic not in made}, made)
        for topic in made:
            if groups[topic] not in failed:
                yield InThread(self._space.unmake, (groups[topic], lacking[groups[topic]]), syncs=True)
        flushed = once_flushed(self._state, offset, None)
        for topic in counts.keys() - made.keys():
            made[topic] = yield from self._new_partitions(topic, lacking[groups[topic]])
        if flushed is not None:
            yield flushed
        confirmed = [groups[topic] for topic, found in made.items() if not isinstance(found, HeadraceError)]
        yield InThread(self._space.confirm, (confirmed,), syncs=True)
        return made

    def _write_rows(
        self, counts: Mapping[Topic, int], refused: dict[Topic, list[Partition] | HeadraceError]
    ) -> Steps[int]:
        """The journal offset of the last row. Topics whose rows are not written are added to ``refused``."""
        offset = -1
        for some in in_steps(counts, ROWS_PER_STEP):
            there = [topic for topic in some if not self._is_gone(topic)]
            refused.update((topic, _deleted(topic)) for topic in some if topic not in there)
            rows = [("topics", topic.name, _row(topic, counts[topic])) for topic in there]
            try:
                for prepare in self._before_creation:
                    for topic in there:
                        prepare(topic.name)
                offset = self._state.put_many(rows) if rows else offset
                for topic in there:
                    topic.partition_count = counts[topic]
            except HeadraceError as error:
                refused.update(dict.fromkeys(there, error.with_traceback(None)))
            yield len(some)
        return offset

    def _new_partitions(self, topic: Topic, numbers: range) -> Steps[list[Partition] | HeadraceError]:
        config = topic.config.log_config()
        made = []
        for number in numbers:
            if self._is_gone(topic):
                return _deleted(topic)
            made.append(self._partition(topic, number, self._space.add_made(_group(topic), number, config)))
            yield PARTITION_UNITS
        return made

    def _is_gone(self, topic: Topic) -> bool:
        """Whether a topic that is being given partitions was deleted. One that is being made cannot be."""
        return topic in self._growing and self._by_name.get(topic.name) is not topic

    def delete(self, topic: Topic) -> int:
        """Delete a topic. It is gone at once; its files are removed when that is flushed."""
        key = f"{topic.name}~{topic.topic_id.hex()}"
        offset = self._state.put_many([("topics", topic.name, None), ("deleted", key, True)])
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self._release([topic])
        for partition in topic.partitions:
            partition.remove()
        for partition in topic.served:
            self._flusher.forget(partition.log)
        self._state.when_flushed(
            offset, lambda: self._remove_files(self._space, deleted_group(key), lambda: self._forget_deleted(key))
        )
        self.version += 1
        for on_deleted in self._on_deleted:
            on_deleted(topic.name)
        return offset

    def alter(self, topic: Topic, config: Mapping[str, str]) -> int:
        """Replace the topic's own settings."""
        before = topic.config.given
        topic.config.given = dict(config)
        try:
            offset = self._state.put("topics", topic.name, _row(topic, topic.partition_count))
        except HeadraceError:
            topic.config.given = before
            raise
        self._apply_settings(topic)
        return offset

    def settings_changed(self) -> Iterator[int]:
        """The broker's settings were altered: apply them to all topics, one at a time. Yields partitions looked at."""
        for topic in list(self._by_name.values()):
            self._apply_settings(topic)
            yield 1 + len(topic.partitions) // 5

    def _catch_up(self, topic: Topic) -> None:
        """Settings may have changed while partitions were made."""
        topic.config.forget()
        newest = topic.partitions[-1]
        if newest.fault is None and newest.log.config != topic.config.log_config():
            self._apply_settings(topic)

    def _apply_settings(self, topic: Topic) -> None:
        topic.config.forget()
        config = topic.config.log_config()
        for partition in topic.served:
            partition.log.config = config
            self._flusher.mark(partition.log)  # it may be an ack topic now, so what is written must be flushed

    # ---- inside ----

    def _open_partitions(self, topic: Topic, count: int) -> None:
        config = topic.config.log_config()
        topic.partition_count = count
        for index in range(count):
            try:
                log = self._space.open_log(_group(topic), index, config, sync=False)
            except CorruptLog as error:
                LOG.error("%s-%d is not served: %s", topic.name, index, error)
                topic.partitions.append(self._damaged(topic, index, error))
            else:
                topic.partitions.append(self._partition(topic, index, log))

    def _partition(self, topic: Topic, index: int, log: PartitionLog) -> Partition:
        return Partition(
            topic=topic.name,
            index=index,
            log=log,
            flusher=self._flusher,
            clock=self._clock,
            leader_epoch=self._leader_epoch,
        )

    def _damaged(self, topic: Topic, index: int, fault: LogError) -> DamagedPartition:
        return DamagedPartition(topic=topic.name, index=index, fault=fault, leader_epoch=self._leader_epoch)

    def _reserve(self, name: str) -> None:
        self._name_by_metric[metric_name(name)] = name

    def _release(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self._name_by_metric.pop(metric_name(topic.name), None)

    def _register(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _forget_deleted(self, key: str) -> None:
        with suppress(HeadraceError):  # a full disk: the row stays, and the next start finds nothing left to move
            self._state.put("deleted", key, None)

    def set_damaged(self, log: PartitionLog, fault: LogError) -> None:
        """The log can no longer be served: its partition says so from now on, and the others go on."""
        for topic in self._by_name.values():
            for partition in topic.served:
                if partition.log is log:
                    self._store.set_aside(log)
                    damaged = self._damaged(topic, partition.index, fault)
                    damaged.dropped_records = partition.dropped_records
                    damaged.refused_batches = partition.refused_batches
                    topic.partitions[partition.index] = damaged
                    partition.retire()


def _group(topic: Topic) -> str:
    return group_name(topic.name, topic.topic_id)


def _deleted(topic: Topic) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic.name}' was deleted meanwhile.")


def _row(topic: Topic, partitions: int) -> dict[str, Any]:
    return {"id": topic.topic_id.hex(), "partitions": partitions, "config": topic.config.given}


def metric_name(name: str) -> str:
    """Kafka's metrics write dots as underscores: two names that differ in nothing else collide there."""
    return name.replace(".", "_")


def group_name(name: str, topic_id: bytes) -> str:
    """A topic's directory in the space ``topics``."""
    return f"{name[:GROUP_CHARACTERS_MAX]}~{topic_id.hex()}"


def deleted_group(deleted_key: str) -> str:
    """The directory of a topic that has this key in the table ``deleted``."""
    name, _, topic_id = deleted_key.rpartition("~")
    return group_name(name, bytes.fromhex(topic_id))


def new_id() -> bytes:
    """A random id. Not the reserved 0 or 1, and not starting with '-' in base64, so that it can be an argument."""
    while True:
        topic_id = os.urandom(16)
        if topic_id[0] >> 2 != 62 and any(topic_id[:15]):
            return topic_id
