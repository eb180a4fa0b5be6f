"""How a batch of many tasks is written exactly once: what driver and tasks ask of the broker, and in which order.

    driver   begin      take the sink's lease ─▶ read the last decision ─▶ abort what a dead run left open
    tasks    start      judge the batch: new ─▶ take the task's transactional id ─▶ write ─▶ flush, leave it open
                                         decided before ─▶ commit the task's own transaction, write nothing
    driver   commit     are all still open? ─▶ record the decision ─▶ commit the transactions

Whichever process dies, at any point: without a decision the next ``begin`` aborts everything and the batch is written
again; with a decision it is only carried out. Readers of committed records see neither a duplicate nor a gap.

**Ids.** A task's transactional id names the sink, the task and the attempt. Two attempts of a task that run at the same
time (Spark speculates, or retries a stage) do not disturb each other: the driver commits the one whose result Spark
took and aborts the other. An id that the last decision names is taken over by a later batch only, so nobody aborts what
was decided; a repair (below) therefore writes under separate ids.

**One checkpoint of a pipeline.** A query that says which pipeline it is claims the topic for the pipeline before its
first batch. A query of another checkpoint finds the claim and is refused, because it would write all rows again. A
claim ends with the topic.

**One sink of several.** A query that writes to several topics records the batches of each under a separate id: the
query's, and a mark of the topic (``sink_beside``). A pipeline that wrote to one topic and now writes to two, or the
other way round, goes on under the id that the claim names, so a batch that was decided before the change is not written
again.

**Decided, and yet aborted.** A broker aborts a transaction that stays open too long, and it knows nothing of our
decision. When a driver dies right after deciding and comes back later than ``transactionTimeoutMs``, the tasks whose
transactions are gone write them again, and a new revision of the decision names the new ones, provided that the rows
are the same ones, by number, size and checksum. Otherwise some rows of this task may be among those that another task
has committed: that is refused, in words that say so.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.client import (
    Client,
    Outcome,
    ProducerIdentity,
    ProducerOptions,
    TransactionalProducer,
    describe_transaction,
)
from headrace.errors import ErrorCode, HeadraceError, KafkaError, Refused, UsageError
from headrace.spark.topic_sink.decisions import (
    DECISION_TOPIC,
    BatchRef,
    Claim,
    Decision,
    DecisionTopic,
    TaskResult,
    Verdict,
    judge,
    totals,
)
from headrace.spark.topic_sink.transactions import abort_open, commit_all, outcomes

__all__ = ["OpenTask", "PipelineName", "Plan", "Protocol", "Reported", "Settings", "TransactionsLost", "sink_beside"]

SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
ID_PREFIX = "headrace-sink"
BESIDE = re.compile(r"\.of-[0-9a-f]{8}$")


class TransactionsLost(HeadraceError):
    """Transactions of a batch were aborted by the broker or taken over. The batch is not lost: it is to be repeated."""

    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    decision_topic: str = DECISION_TOPIC
    transaction_timeout_ms: int = 900_000
    producer: ProducerOptions = field(default_factory=ProducerOptions)


@dataclass(frozen=True, slots=True)
class PipelineName:
    """The pipeline that a query is, and the topic that it writes to."""

    name: str
    topic: str
    starts_over: bool = False
    """The user wants the rows of another checkpoint written a second time."""

    @property
    def key(self) -> str:
        """A sink's id has no slash, so it is no other record's key."""
        return f"{self.topic}/{self.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the driver knew when the batch began; goes to every task."""

    sink: str
    lease: ProducerIdentity
    last: Decision | None


@dataclass(frozen=True, slots=True)
class Reported:
    """What comes back from a task. ``rewritten``: it stands for a decided transaction that was lost."""

    result: TaskResult
    rewritten: bool = False


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task that has begun. Without a producer there is nothing to write, and rows are only counted."""

    task: int
    producer: TransactionalProducer | None = None
    rewrites: bool = False

    def report(self, rows: int, size: int, crc: int) -> Reported:
        """Wait until the broker has everything; the transaction stays open for the driver to end."""
        identity = None
        if self.producer is not None:
            self.producer.flush()
            identity = self.producer.identity if self.producer.wrote else None
        return Reported(TaskResult(self.task, rows, size, crc, identity), self.rewrites)


def check_sink_id(sink: str) -> str:
    if not SINK_ID.fullmatch(sink):
        raise UsageError(f"sinkId {sink!r} must be 1 to 200 of the characters A-Z a-z 0-9 . _ -")
    return sink


def sink_beside(query: str, topic: str) -> str:
    """The id under which a query that has several sinks writes to a topic."""
    return f"{query}.of-{hashlib.sha256(topic.encode()).hexdigest()[:8]}"


def _query_of(sink: str) -> str:
    return BESIDE.sub("", sink)


def ids_of(sink: str) -> str:
    """How the tasks' transactional ids begin; a sink's name has no slash, so no other sink's ids begin so."""
    return f"{ID_PREFIX}/{sink}/task-"


def driver_id(sink: str) -> str:
    return f"{ID_PREFIX}/{sink}/driver"


def task_id(sink: str, task: int, attempt: int, revision: int = 0) -> str:
    repair = f"-repair-{revision}" if revision else ""
    return f"{ids_of(sink)}{task}-{attempt}{repair}"


class Protocol:
    """One process's part in it, over one client."""

    def __init__(self, client: Client, settings: Settings | None = None) -> None:
        self._client = client
        self._settings = settings or Settings()
        self._topic = DecisionTopic(client, self._settings.decision_topic)

    # ---- the driver, before the tasks -----------------------------------------------------------------------------

    def begin(self, sink: str, pipeline: PipelineName | None = None) -> Plan:
        """Supersede every earlier driver of this sink and clear away what it left."""
        self._topic.ensure()
        lease = self._topic.take_lease(driver_id(check_sink_id(sink)))
        last = self._topic.last(sink)
        if last is None and pipeline is not None:
            claimed = self._claim(sink, pipeline)
            if claimed != sink:
                sink, lease = claimed, self._topic.take_lease(driver_id(claimed))
                last = self._topic.last(sink)
        abort_open(self._client, ids_of(sink), keep=last.identities if last is not None else ())
        return Plan(sink, lease, last)

    def _claim(self, query: str, pipeline: PipelineName) -> str:
        """The id under which this checkpoint writes the topic.

        Two that claim at once: the lease of the first is taken from it, so it fails, and finds the other's claim."""
        topic_id = self._client.topic(pipeline.topic, create=True).topic_id.hex()
        lease = self._topic.take_lease(f"{ID_PREFIX}/{pipeline.topic}/pipeline/{pipeline.name}")
        found = self._topic.claim(pipeline.key)
        if found is not None and found.topic_id == topic_id and _query_of(found.query) == _query_of(query):
            return found.query
        if found is not None and found.topic_id == topic_id and not pipeline.starts_over:
            raise Refused(
                f"topic {pipeline.topic} has rows of pipeline {pipeline.name} from another checkpoint (query "
                f"{found.query} on {found.host}, since {found.since}), and this checkpoint would write them all again. "
                "Run the pipeline with that checkpoint; or headrace run --start-over writes all rows a second time"
            )
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._topic.record_claim(lease, pipeline.key, Claim(query, topic_id, socket.gethostname(), since))
        return query

    # ---- a task ---------------------------------------------------------------------------------------------------

    def start_task(self, plan: Plan, batch: BatchRef, task: int, attempt: int) -> OpenTask:
        """Find out what this task has to do, and be ready to do it."""
        if judge(plan.last, batch) is Verdict.WRITE:
            self._check_lease(plan)
            return OpenTask(task, self._open(task_id(plan.sink, task, attempt)))
        assert plan.last is not None, "only a decided batch is replayed"
        recorded = plan.last.of_task(task)
        if recorded is None or recorded.identity is None:
            return OpenTask(task)
        lost = commit_all(self._client, [recorded.identity])
        if not lost:
            return OpenTask(task)
        if lost[recorded.identity] is not Outcome.ABORTED:
            raise _unknown_outcome(batch, recorded.identity, lost[recorded.identity])
        return OpenTask(task, self._open(task_id(plan.sink, task, attempt, plan.last.revision + 1)), rewrites=True)

    def _check_lease(self, plan: Plan) -> None:
        """A task of a driver that slept would take the ids that its successor has decided on."""
        if not self._holds(plan.lease):
            raise Refused(
                f"another run of sink {plan.sink!r} has taken over while this one wrote a batch. This one stops. Run a "
                "pipeline in one place"
            )

    def _open(self, transactional_id: str) -> TransactionalProducer:
        timeout_ms = self._settings.transaction_timeout_ms
        producer = TransactionalProducer(self._client, transactional_id, timeout_ms, self._settings.producer)
        try:
            producer.init()
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise UsageError(
                f"the broker does not let a transaction stay open for transactionTimeoutMs={timeout_ms}",
                "a smaller transactionTimeoutMs, or a larger transaction.max.timeout.ms of the broker",
            ) from error
        producer.begin()
        return producer

    # ---- the driver, after the tasks --------------------------------------------------------------------------------

    def commit(self, lease: ProducerIdentity, batch: BatchRef, reported: Sequence[Reported]) -> None:
        """Make the batch count. What it raises leaves either no decision, or one that a restart carries out."""
        last = self._topic.last(batch.sink)
        if judge(last, batch) is Verdict.REPLAY:
            assert last is not None, "only a decided batch is replayed"
            self._complete(lease, last, batch, reported)
        else:
            results = sorted((each.result for each in reported), key=lambda each: each.task)
            self._decide(lease, Decision(batch, tuple(results)))
        if self._holds(lease):
            abort_open(self._client, ids_of(batch.sink))

    def _decide(self, lease: ProducerIdentity, decision: Decision) -> None:
        """An empty batch needs no decision: to repeat it is to do nothing again."""
        if not decision.identities:
            return
        self._check_open(decision)
        self._topic.record(lease, decision)
        self._carry_out(decision)

    def _check_open(self, decision: Decision) -> None:
        """What has timed out while other tasks still wrote must not be decided: the repair would time out as well."""
        state = outcomes(self._client, decision.identities)
        gone = [each for each, outcome in state.items() if outcome is not Outcome.OPEN]
        if gone:
            raise TransactionsLost(
                f"{len(gone)} of {len(state)} transactions of batch {decision.batch_id} are over before it was "
                f"complete, first {gone[0]}: another run of this query took them over, or the batch took longer than "
                f"transactionTimeoutMs={self._settings.transaction_timeout_ms}. Nothing was committed; the batch can "
                "be repeated"
            )

    def _carry_out(self, decision: Decision) -> None:
        lost = commit_all(self._client, decision.identities)
        if lost:
            first, outcome = next(iter(lost.items()))
            raise TransactionsLost(
                f"batch {decision.batch_id} was decided, but {len(lost)} of its {len(decision.identities)} "
                f"transactions are lost, first {first} ({outcome}). Restart the query: its tasks write them again"
            )

    def _complete(self, lease: ProducerIdentity, last: Decision, batch: BatchRef, reported: Sequence[Reported]) -> None:
        """Carry out a decision that was made before, with what tasks had to write again."""
        self._check_same_input(last, batch, reported)
        rewritten = {each.result.task: each.result for each in reported if each.rewritten}
        kept = [each.identity for each in last.tasks if each.identity is not None and each.task not in rewritten]
        lost = commit_all(self._client, kept)
        if lost:
            raise _cannot_rewrite(last, len(reported), f"{len(lost)} of its tasks have no counterpart in this run")
        replaced: dict[int, ProducerIdentity] = {}
        for task, result in rewritten.items():
            recorded = last.of_task(task)
            assert recorded is not None, f"task {task} has rewritten what is not in the decision"
            if result.identity is None or not recorded.same_rows(result):
                raise _cannot_rewrite(last, len(reported), f"task {task} has other rows than it had")
            replaced[task] = result.identity
        if replaced:
            revised = last.replacing(replaced)
            self._check_open(revised_part(revised, replaced))
            self._topic.record(lease, revised)
            self._carry_out(revised)

    def _check_same_input(self, last: Decision, batch: BatchRef, reported: Sequence[Reported]) -> None:
        """Where the ends of the input are not known, the rows themselves tell whether this is the same batch."""
        if last.batch.ends is not None and batch.ends is not None:
            return
        rows, size = totals(each.result for each in reported)
        if (rows, size) != last.totals:
            raise Refused(
                f"batch {batch.batch_id} of sink {batch.sink!r} was written with {last.totals[0]} rows of "
                f"{last.totals[1]} bytes, and now it has {rows} rows of {size} bytes. It is not the same input: the "
                "checkpoint has lost its last entry, or the write id was used before for something else. Nothing was "
                "written; use a new id, or start at the offsets after what was written"
            )

    def _holds(self, lease: ProducerIdentity) -> bool:
        """Whether the lease is still ours: a driver that was superseded must not touch its successor's transactions."""
        return outcomes(self._client, [lease])[lease] in (Outcome.OPEN, Outcome.COMMITTED)

    def abort(self, lease: ProducerIdentity, sink: str) -> None:
        """Take back an undecided batch.

        Spark also comes here when ``commit`` has failed, perhaps with a decision on its way. Only under a lease that
        has decided nothing is it certain that there is none; all else is left to the next ``begin``.
        """
        info = describe_transaction(self._client, lease.transactional_id)
        if info is None or info.state != "Empty" or info.outcome_of(lease) is not Outcome.OPEN:
            return
        last = self._topic.last(sink)
        abort_open(self._client, ids_of(sink), keep=last.identities if last is not None else ())

    def forget(self, sink: str) -> None:
        """Remove the record of a finished write that nobody will repeat."""
        self._topic.forget(self._topic.take_lease(driver_id(sink)), sink)


def revised_part(revised: Decision, replaced: dict[int, ProducerIdentity]) -> Decision:
    """Of a revision, what is new in it."""
    return Decision(revised.batch, tuple(each for each in revised.tasks if each.task in replaced), revised.revision)


def _unknown_outcome(batch: BatchRef, identity: ProducerIdentity, outcome: Outcome) -> Refused:
    why = "its id was used again since" if outcome is Outcome.SUPERSEDED else "the broker does not know its id any more"
    return Refused(
        f"batch {batch.batch_id} of sink {batch.sink!r} was decided, but whether {identity} was committed is "
        f"unknown: {why}. Compare the topic with the input of the batch, and start a new checkpoint after it"
    )


def _cannot_rewrite(last: Decision, tasks: int, why: str) -> Refused:
    return Refused(
        f"batch {last.batch_id} of sink {last.batch.sink!r} was decided with {len(last.tasks)} tasks, and the broker "
        f"has aborted some of their transactions since, because they stayed open too long. They could be written again "
        f"if the same rows came in the same tasks, but {why} (now {tasks} tasks). Start the query with the settings it "
        "had then (spark.sql.shuffle.partitions, minPartitions, spark.sql.adaptive.enabled=false), or start a new "
        "checkpoint after this batch once the topic was compared with its input"
    )
