"""Transactions, one remote call at a time, so that different processes can take part in one.

``TransactionalProducer`` is the comfortable way for one process. What stands here is for those who write in one process
and decide in another: a task calls ``init_producer_id``, writes, and hands over its ``ProducerIdentity``. The
coordinator of the tasks calls ``end_transaction`` with nothing but that.

**Which versions, and why.** An identity must stay valid from InitProducerId to EndTxn and mean one transaction, so that
a repeated EndTxn, by another process after a crash, is answered the same way. Kafka has two coherent sets of requests:

- transactions v2 (KIP-890; Kafka 4 and headrace, seen by the finalised feature ``transaction.version``): a partition
  joins with the first batch (Produce 12 and later), and EndTxn 5 gives the producer its next epoch. The epoch does not
  change before the end. After the end every late batch and every late EndTxn carries an old epoch and is fenced; a
  repeated EndTxn with the same outcome is recognised by the epoch before the current one, and answered with success.
- before: AddPartitionsToTxn 3, Produce to 11, EndTxn to 4. Ending does not change the epoch, so a repeated EndTxn
  looks like the first; a late batch is refused since its partition is in no transaction any more.

They must not be mixed the one bad way: with Produce 12 and EndTxn 4 a late batch would *open* a transaction after the
end, and readers would wait for its timeout. So ``end_transaction`` uses 5 exactly where the producers may use
Produce 12. Version 5 has a second advantage: the coordinator of headrace fences an older EndTxn that comes over a
connection opened before the producer's own (it may be a delayed one), and the process that decides is connected first.

A transaction without partitions cannot be committed: do not end what has written nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.client.client import Client, TopicPartition, check
from headrace.client.connection import Connection
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

__all__ = [
    "Outcome",
    "ProducerIdentity",
    "TransactionInfo",
    "TransactionLost",
    "add_partitions",
    "describe_transaction",
    "end_transaction",
    "end_transactions",
    "init_producer_id",
    "list_transactions",
]

ADD_PARTITIONS_VERSION_MAX = 3
"""Later ones are for brokers, and need their authority."""
INIT_VERSION_MAX = 5
"""Version 6 prepares transactions in two phases, which no released broker offers."""
END_VERSION_KEEPING_EPOCH = 4
PRODUCE_VERSION_AFTER_ADDING_MAX = 11
LANES_MAX = 8
EPOCH_LAST = 32766
"""After it a producer gets a new id, and epochs begin again at 0."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Who writes: enough for any process to end the transaction."""

    transactional_id: str
    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"transaction {self.transactional_id!r} of producer {self.producer_id}, epoch {self.epoch}"


class TransactionLost(KafkaError):
    """The transaction has ended in another way than asked for: it timed out, or somebody took over its id.

    ``describe_transaction`` tells which. Nothing can be written or ended under this identity any more.
    """

    def __init__(self, code: ErrorCode, identity: ProducerIdentity, reason: str) -> None:
        super().__init__(code, f"{identity} is over: {reason}")
        self.identity = identity


LOST = {
    ErrorCode.PRODUCER_FENCED: "a newer producer has its id, or its time ran out",
    ErrorCode.INVALID_PRODUCER_EPOCH: "a newer producer has its id, or its time ran out",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "its id belongs to another producer now, or has expired",
    ErrorCode.INVALID_TXN_STATE: "it has ended the other way, or never began",
}


class Outcome(StrEnum):
    """What has become of an identity's transaction."""

    OPEN = "open"
    """Nothing is decided: it can be committed or aborted."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    SUPERSEDED = "superseded"
    """The id was initialised again since. That aborted the transaction if it was open; if it had been ended before,
    how it ended is no longer known."""
    UNKNOWN = "unknown"
    """The broker does not know the id: it never did, or it expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """A transactional id as its coordinator sees it; ``state`` is Kafka's name for it."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()

    def outcome_of(self, identity: ProducerIdentity) -> Outcome:
        """What became of a transaction whose identity came from ``init_producer_id``.

        Ending with the older versions keeps the epoch, ending with version 5 and timing out go to the next one, and so
        does initialising again: but that leaves the state Empty.
        """
        same = (self.producer_id, self.epoch) == (identity.producer_id, identity.epoch)
        next_epoch = (self.producer_id, self.epoch) == (identity.producer_id, identity.epoch + 1)
        rotated = self.producer_id != identity.producer_id and self.epoch == 0 and identity.epoch >= EPOCH_LAST
        if same and self.state in ("Empty", "Ongoing"):
            return Outcome.OPEN
        if same or next_epoch or rotated:
            if self.state in ("PrepareCommit", "CompleteCommit"):
                return Outcome.COMMITTED
            if self.state in ("PrepareAbort", "CompleteAbort", "PrepareEpochFence"):
                return Outcome.ABORTED
        return Outcome.SUPERSEDED


def transactions_v2(connection: Connection) -> bool:
    """Whether partitions join by producing and every end goes to the next epoch (KIP-890)."""
    return connection.features.get("transaction.version", 0) >= 2


def lost_or(error: KafkaError, identity: ProducerIdentity) -> KafkaError:
    """An error about a transaction that is over, as ``TransactionLost``; any other as it is."""
    if isinstance(error, TransactionLost):
        return error
    reason = LOST.get(error.code)
    return error if reason is None else TransactionLost(error.code, identity, reason)


def init_producer_id(client: Client, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    """Take over a transactional id: its previous owner is fenced, and what that left open is aborted first.

    ``timeout_ms`` is how long the broker lets a transaction stay open; it counts from the first record.
    """
    return client.retrying(lambda: _init(client, transactional_id, timeout_ms))


def _init(client: Client, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    node = client.transaction_coordinator(transactional_id)
    answer = client.call(node, request, InitProducerIdResponse, version_max=INIT_VERSION_MAX)
    check(answer.error_code, None, f"initialising transactional id {transactional_id!r}")
    return ProducerIdentity(transactional_id, answer.producer_id, answer.producer_epoch)


def add_partitions(client: Client, identity: ProducerIdentity, partitions: Iterable[TopicPartition]) -> None:
    """Make partitions part of the transaction, which begins with the first; needed only before transactions v2."""
    wanted = list(partitions)
    try:
        client.retrying(lambda: _add_partitions(client, identity, wanted))
    except KafkaError as error:
        raise lost_or(error, identity) from error


def _add_partitions(client: Client, identity: ProducerIdentity, wanted: list[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for each in wanted:
        by_topic.setdefault(each.topic, []).append(each.partition)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in by_topic.items()],
    )
    node = client.transaction_coordinator(identity.transactional_id)
    answer = client.call(node, request, AddPartitionsToTxnResponse, version_max=ADD_PARTITIONS_VERSION_MAX)
    results = [
        (TopicPartition(topic.name, each.partition_index), each.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    # One bad partition makes the others OPERATION_NOT_ATTEMPTED, which says nothing by itself.
    results.sort(key=lambda each: each[1] == ErrorCode.OPERATION_NOT_ATTEMPTED)
    for partition, code in results:
        check(code, None, f"adding {partition} to {identity}")


def end_transaction(client: Client, identity: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
    """End a transaction, from any process, as often as one likes; the identity for the next one comes back.

    It returns when the outcome is decided for good; readers of committed records see it a moment later, when the
    broker has marked every partition. ``TransactionLost`` means that it had ended otherwise before.
    """
    try:
        return client.retrying(lambda: _end(client, identity, commit))
    except KafkaError as error:
        raise lost_or(error, identity) from error


def _end(client: Client, identity: ProducerIdentity, commit: bool) -> ProducerIdentity:
    request = EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )
    connection = client.connection(client.transaction_coordinator(identity.transactional_id))
    version_max = None if transactions_v2(connection) else END_VERSION_KEEPING_EPOCH
    answer = connection.call(request, EndTxnResponse, version_max=version_max)
    check(answer.error_code, None, f"{'committing' if commit else 'aborting'} {identity}")
    if answer.producer_epoch < 0:
        return identity
    return replace(identity, producer_id=answer.producer_id, epoch=answer.producer_epoch)


def end_transactions(
    client: Client, identities: Iterable[ProducerIdentity], *, commit: bool
) -> dict[ProducerIdentity, KafkaError]:
    """End many transactions the same way; what failed comes back, with why. Every one is tried.

    A broker answers the requests of one connection one after the other, and each end waits for the disk. So they go
    over several connections, and one sync serves many.
    """
    from concurrent.futures import ThreadPoolExecutor

    waiting = list(dict.fromkeys(identities))
    failed: dict[ProducerIdentity, KafkaError] = {}
    if not waiting:
        return failed
    lanes = client.lanes(min(len(waiting), LANES_MAX))

    def work(number: int) -> None:
        for identity in waiting[number :: len(lanes)]:
            try:
                end_transaction(lanes[number], identity, commit=commit)
            except KafkaError as error:
                failed[identity] = error

    with ThreadPoolExecutor(len(lanes), thread_name_prefix="headrace-end") as threads:
        list(threads.map(work, range(len(lanes))))
    return failed


def describe_transaction(client: Client, transactional_id: str) -> TransactionInfo | None:
    """Where a transactional id stands; None when its coordinator does not know it (never used, or expired)."""
    return client.retrying(lambda: _describe(client, transactional_id))


def _describe(client: Client, transactional_id: str) -> TransactionInfo | None:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    node = client.transaction_coordinator(transactional_id)
    (found,) = client.call(node, request, DescribeTransactionsResponse).transaction_states
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    check(found.error_code, None, f"describing transactional id {transactional_id!r}")
    return TransactionInfo(
        transactional_id=transactional_id,
        state=found.transaction_state,
        producer_id=found.producer_id,
        epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        started_ms=found.transaction_start_time_ms,
        partitions=tuple(
            TopicPartition(topic.topic, index) for topic in found.topics for index in sorted(topic.partitions)
        ),
    )


def list_transactions(client: Client, *, prefix: str = "", states: Iterable[str] = ()) -> list[str]:
    """Every transactional id that begins with ``prefix``, of all brokers: to find what a wider layout has left.

    ``states`` keeps those in one of them, by Kafka's names, such as ``Ongoing``.
    """
    wanted = list(states)
    found: set[str] = set()
    for node in client.brokers():
        found |= client.retrying(lambda: _list_on(client, node, wanted))  # noqa: B023
    return sorted(each for each in found if each.startswith(prefix))


def _list_on(client: Client, node: int, states: list[str]) -> set[str]:
    answer = client.call(node, ListTransactionsRequest(state_filters=states), ListTransactionsResponse)
    check(answer.error_code, None, "listing transactions")
    return {each.transactional_id for each in answer.transaction_states}
