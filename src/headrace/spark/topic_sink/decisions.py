"""The decision topic: for every sink, which batch was the last to be decided, and which transactions it consists of.

A batch is written by many tasks in many transactions, which no broker can commit at one moment. So the moment is made
here: a batch counts from when its *decision* is durable, one record that names its transactions. After that they are
only ever committed, by any driver or task, however often it takes; before that they are only ever aborted.

    record    key    the sink
              value  JSON: batch, where its input ended, revision, and per task: rows, bytes, checksum, transaction

    record    key    the topic and the pipeline that writes to it
              value  JSON: the query that writes for the pipeline, a *claim*

The topic is compacted: what was decided last is all that anybody asks for. It is ours, and not a group's offsets, since
Apache Kafka forgets those after a week without members.

**One driver at a time.** A decision is itself written in a transaction, under a transactional id that belongs to the
sink. The driver takes this id over before its tasks begin (the *lease*), which settles what an earlier driver was
about to decide and keeps it from deciding anything later. So what is read after the lease was taken stays true until
the holder of the lease changes it.

**Reading.** Many sinks share the topic, and the open transaction of one must not hide what another has decided after
the last stable offset. So everything is read, and a record counts unless the next marker of its producer is an
abort. A record without a marker counts as well: its transaction is over because the lease was taken, and compaction
removes what was aborted before it removes the marker. Reading begins near the end, where the record mostly is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from typing import Any

from headrace.batch import control_type
from headrace.client import (
    Admin,
    Client,
    ProducerIdentity,
    ProducerOptions,
    TopicPartition,
    TransactionalProducer,
    end_offsets,
    fetch_range,
    init_producer_id,
    start_offsets,
)
from headrace.errors import ErrorCode, KafkaError, Refused
from headrace.record import decode_records

__all__ = [
    "DECISION_TOPIC",
    "BatchRef",
    "Claim",
    "Decision",
    "DecisionTopic",
    "TaskResult",
    "Verdict",
    "judge",
]

FORMAT = 1
DECISION_TOPIC = "__headrace_sink"
LEASE_TIMEOUT_MS = 60_000
"""Of the transaction that holds one record; a driver that dies in it is superseded by the next one anyway."""
WINDOW_OFFSETS = 64
RECORDS_BYTES_MAX = 16 * 1024 * 1024
TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}


@dataclass(frozen=True, slots=True)
class BatchRef:
    """A batch of a sink. ``ends`` is where its input ended, as canonical text, or None where nobody can tell."""

    sink: str
    batch_id: int
    ends: str | None = None
    query: str = ""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task has written: enough to recognise the same rows in a replay, and to end its transaction."""

    task: int
    rows: int
    size: int
    crc: int
    identity: ProducerIdentity | None = None  # None: there was nothing to write

    def same_rows(self, other: TaskResult) -> bool:
        return (self.rows, self.size, self.crc) == (other.rows, other.size, other.crc)


@dataclass(frozen=True, slots=True)
class Decision:
    """A batch that counts. A ``revision`` replaces transactions that the broker had aborted after the decision."""

    batch: BatchRef
    tasks: tuple[TaskResult, ...]
    revision: int = 0

    @property
    def batch_id(self) -> int:
        return self.batch.batch_id

    @property
    def identities(self) -> list[ProducerIdentity]:
        return [each.identity for each in self.tasks if each.identity is not None]

    @property
    def totals(self) -> tuple[int, int]:
        """Rows and bytes: the same however rows are spread over tasks."""
        return totals(self.tasks)

    def of_task(self, task: int) -> TaskResult | None:
        return next((each for each in self.tasks if each.task == task), None)

    def replacing(self, rewritten: Mapping[int, ProducerIdentity]) -> Decision:
        """The next revision, in which these tasks have other transactions."""
        tasks = tuple(replace(each, identity=rewritten.get(each.task, each.identity)) for each in self.tasks)
        return replace(self, tasks=tasks, revision=self.revision + 1)

    def to_json(self) -> bytes:
        tasks = [_task_fields(each) for each in self.tasks]
        fields = {
            "format": FORMAT,
            "batch": self.batch.batch_id,
            "ends": self.batch.ends,
            "query": self.batch.query,
            "revision": self.revision,
            "tasks": tasks,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, sink: str, text: bytes) -> Decision:
        try:
            fields = json.loads(text)
            batch = BatchRef(sink, int(fields["batch"]), fields["ends"], str(fields["query"]))
            tasks = tuple(_task_result(each) for each in fields["tasks"])
            found, revision = int(fields["format"]), int(fields["revision"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(f"what is recorded for sink {sink!r} is no decision of headrace: {error!r}") from error
        if found != FORMAT:
            raise Refused(f"the decision of sink {sink!r} has format {found}; this version of headrace knows {FORMAT}")
        return cls(batch, tasks, revision)


@dataclass(frozen=True, slots=True)
class Claim:
    """Which query writes for a pipeline. A query of another checkpoint would write all of its rows again."""

    query: str
    topic_id: str
    host: str
    since: str

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Claim:
        return cls(**json.loads(text))


def _task_fields(result: TaskResult) -> list[Any]:
    fields: list[Any] = [result.task, result.rows, result.size, result.crc]
    if result.identity is not None:
        fields += [result.identity.transactional_id, result.identity.producer_id, result.identity.epoch]
    return fields


def _task_result(fields: list[Any]) -> TaskResult:
    task, rows, size, crc = (int(each) for each in fields[:4])
    identity = None
    if len(fields) > 4:
        transactional_id, producer_id, epoch = fields[4:]
        identity = ProducerIdentity(str(transactional_id), int(producer_id), int(epoch))
    return TaskResult(task, rows, size, crc, identity)


def totals(tasks: Iterable[TaskResult]) -> tuple[int, int]:
    known = list(tasks)
    return sum(each.rows for each in known), sum(each.size for each in known)


# ---- what a batch is in the light of the last decision ------------------------------------------------------------


class Verdict(Enum):
    WRITE = auto()
    """It is new. Whatever was begun of it before is to be aborted."""
    REPLAY = auto()
    """It was decided: its transactions are to be committed and nothing is to be written again."""


def judge(last: Decision | None, batch: BatchRef) -> Verdict:
    """Compares the end of the input besides the id: a checkpoint that lost its last entry plans another batch under it.

    The entry is lost when the machine loses power before the file is on disk. Spark then plans the batch again, with
    all that has arrived since; skipping it would lose those rows, and writing it would double the others.
    """
    if last is None or batch.batch_id > last.batch_id:
        return Verdict.WRITE
    if batch.batch_id < last.batch_id:
        raise Refused(
            f"sink {batch.sink!r} has written batch {last.batch_id}, and Spark comes with batch {batch.batch_id}: "
            + _whose(last, batch)
            + f" Writing it again would double rows. What was written ended at {last.batch.ends or 'unknown offsets'}:"
            " start a new checkpoint there (startingOffsets), with a new sinkId if you gave one"
        )
    if None not in (last.batch.ends, batch.ends) and last.batch.ends != batch.ends:
        raise Refused(
            f"batch {batch.batch_id} of sink {batch.sink!r} was written up to {last.batch.ends}, and now Spark plans "
            f"it up to {batch.ends}: " + _whose(last, batch) + " Neither writing nor leaving it out would be right. "
            "Start a new checkpoint at the offsets that were written (startingOffsets)"
        )
    return Verdict.REPLAY


def _whose(last: Decision, batch: BatchRef) -> str:
    if last.batch.query and batch.query and last.batch.query != batch.query:
        return f"the id was used by another query ({last.batch.query})."
    return "the checkpoint has lost its last entries, or is an older copy."


# ---- the topic -----------------------------------------------------------------------------------------------------


class DecisionTopic:
    """Reads and records decisions. Used by one thread at a time."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.place = TopicPartition(name, 0)

    def ensure(self) -> None:
        """Make the topic unless it is there."""
        try:
            self._client.topic(self.place.topic)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            self._create()

    def _create(self) -> None:
        try:
            Admin(self._client).create_topic(self.place.topic, partitions=1, config=TOPIC_CONFIG)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._client.forget_topic(self.place.topic)

    def take_lease(self, transactional_id: str) -> ProducerIdentity:
        """From now on nobody else decides for this sink, and what was about to be decided is settled."""
        return init_producer_id(self._client, transactional_id, LEASE_TIMEOUT_MS)

    def record(self, lease: ProducerIdentity, decision: Decision) -> None:
        """Decide. When it raises without an answer the outcome is open, and the next lease settles it."""
        self._write(lease, decision.batch.sink, decision.to_json())

    def forget(self, lease: ProducerIdentity, sink: str) -> None:
        """Nobody will come back with this sink's id."""
        self._write(lease, sink, None)

    def _write(self, lease: ProducerIdentity, sink: str, value: bytes | None) -> None:
        options = ProducerOptions(create_topics=False)
        producer = TransactionalProducer(self._client, lease.transactional_id, LEASE_TIMEOUT_MS, options)
        producer.resume(lease)
        producer.begin()
        producer.send(self.place.topic, value, key=sink.encode(), partition=self.place.partition)
        producer.commit()

    def last(self, sink: str) -> Decision | None:
        """What was decided last. Ask after ``take_lease``: before it, the answer may be out of date at once."""
        found = self._newest(sink.encode())
        return Decision.from_json(sink, found) if found else None

    def claim(self, name: str) -> Claim | None:
        """Who writes for a pipeline. Ask after ``take_lease``, too."""
        found = self._newest(name.encode())
        return Claim.from_json(found) if found else None

    def record_claim(self, lease: ProducerIdentity, name: str, claim: Claim) -> None:
        self._write(lease, name, claim.to_json())

    def _newest(self, key: bytes) -> bytes | None:
        first = start_offsets(self._client, [self.place])[self.place]
        end = end_offsets(self._client, [self.place])[self.place]
        reach = WINDOW_OFFSETS
        upper = end
        while upper > first:
            lower = max(first, end - reach)
            found = self._scan(key, lower, end)
            if found is not None:
                return found
            upper, reach = lower, reach * 16
        return None

    def _scan(self, key: bytes, start: int, end: int) -> bytes | None:
        """The newest value that counts, b"" for a tombstone, None when there is no record of the key."""
        newest: tuple[int, bytes] | None = None
        pending: dict[int, tuple[int, bytes]] = {}
        for raw in fetch_range(self._client, self.place, start, end):
            batch = raw.parsed()
            if raw.is_control:
                marker = control_type(batch)
                held = pending.pop(raw.producer_id, None)
                if held is not None and (marker is None or marker[0]):
                    newest = held
                continue
            for record in decode_records(batch, RECORDS_BYTES_MAX):
                if record.key == key:
                    pending[raw.producer_id] = record.offset, record.value or b""
        counted = [*pending.values(), *([newest] if newest is not None else [])]
        return max(counted)[1] if counted else None
