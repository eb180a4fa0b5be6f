"""A producer whose records become visible together, or not at all.

    with Client("127.0.0.1:9092") as client:
        producer = TransactionalProducer(client, "orders-1")
        with producer.transaction():
            producer.send("orders", b"one")
            producer.send_offsets("my-group", {TopicPartition("input", 0): 42})

``transaction`` commits at the end of the block and aborts when it raises. The parts of it are there too: ``init``,
``begin``, ``flush``, ``commit``, ``abort``. A process that only writes calls ``init``, ``begin``, ``send`` and
``flush`` and hands ``identity`` to the one that decides (see ``transactions.end_transaction``), if ``wrote`` says that
there is something to decide. A process that goes on with an id that another one has taken over calls ``resume`` with
that identity instead of ``init``.

After records were not delivered the transaction can only be aborted; after ``TransactionLost`` not even that, and
``init`` takes the id back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from types import TracebackType

from headrace.client.accumulator import Headers, OpenBatch, PreparedRecords
from headrace.client.client import Client, TopicPartition, check
from headrace.client.producer import Delivery, Producer, ProducerOptions
from headrace.client.transactions import (
    PRODUCE_VERSION_AFTER_ADDING_MAX,
    ProducerIdentity,
    TransactionLost,
    add_partitions,
    end_transaction,
    init_producer_id,
    lost_or,
    transactions_v2,
)
from headrace.errors import ErrorCode, KafkaError, UsageError
from headrace.wire.kafka.messages.produce import ProduceRequest
from headrace.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

__all__ = ["TransactionalProducer"]

OFFSETS_VERSION_AFTER_ADDING_MAX = 4
OFFSETS_VERSION_BY_NAME_MAX = 5


class _State(Enum):
    IDLE = auto()
    OPEN = auto()
    FAILED = auto()
    """Something was not delivered: the transaction can only be aborted."""


class TransactionalProducer(Producer):
    """Sends records in transactions; see the module. Used by one thread at a time."""

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        timeout_ms: int = 60_000,
        options: ProducerOptions | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        super().__init__(client, options, on_delivery)
        if self.options.acks != -1 or not self.options.idempotent:
            raise UsageError("a transactional producer waits for every acknowledgement", "use acks=-1, idempotent=True")
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._state = _State.IDLE
        self._who: ProducerIdentity | None = None
        self._added: set[TopicPartition | str] = set()
        self._commit_tried = False
        self._v2 = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An open transaction is taken back: only ``commit`` makes it visible."""
        if self._state is not _State.IDLE and not isinstance(error, TransactionLost):
            self.abort()

    # ---- the life of a transaction ----------------------------------------------------------------------------------

    @property
    def identity(self) -> ProducerIdentity:
        """Who writes: what another process needs to end the transaction."""
        if self._who is None:
            raise UsageError("the producer has no identity yet", "call init() first")
        return self._who

    @property
    def wrote(self) -> bool:
        """Whether the open transaction has anything to commit."""
        return bool(self._added)

    def init(self) -> ProducerIdentity:
        """Take over the transactional id: its previous owner is fenced, and what that left open is aborted."""
        self._discard()
        self._become(init_producer_id(self._client, self.transactional_id, self.timeout_ms))
        return self.identity

    def resume(self, identity: ProducerIdentity) -> None:
        """Go on as the producer that another process has initialised, before its first record.

        This fences nobody, and the next ``init`` of the id, by any process, ends it: an identity that is handed on is a
        right to write once, which its giver can take back.
        """
        if identity.transactional_id != self.transactional_id:
            raise UsageError(f"{identity} cannot be resumed by a producer of {self.transactional_id!r}")
        self._discard()
        self._become(identity)

    def begin(self) -> None:
        """Start a transaction; the broker hears of it with the first record."""
        if self._who is None:
            self.init()
        if self._state is not _State.IDLE:
            raise UsageError(f"a transaction of {self.transactional_id!r} is open", "call commit() or abort() first")
        self._v2 = self._client.retrying(lambda: transactions_v2(self._client.connection()))
        self._commit_tried = False
        self._state = _State.OPEN

    @contextmanager
    def transaction(self) -> Iterator[TransactionalProducer]:
        """Commit at the end of the block, abort when it raises."""
        self.begin()
        try:
            yield self
            self.commit()
        except TransactionLost:
            raise
        except BaseException:
            self.abort()
            raise

    def commit(self) -> None:
        """Make everything visible.

        When it raises because nobody answered, the outcome is not known: repeat it, or try ``abort``, which raises
        ``TransactionLost`` if the commit had worked.
        """
        self._check_open()
        self.flush()
        if self.wrote:
            self._commit_tried = True
            self._become(end_transaction(self._client, self.identity, commit=True))
        self._state = _State.IDLE

    def abort(self) -> None:
        """Take everything back. What an earlier producer of this id left open is not this one's to end."""
        wrote = self.wrote
        self._discard()
        if not wrote:
            return
        before = self.identity
        try:
            after = end_transaction(self._client, before, commit=False)
        except TransactionLost as error:
            # Before transactions v2 this is the answer when no partition had joined: there is nothing to take back.
            if error.code is not ErrorCode.INVALID_TXN_STATE or self._commit_tried or self._v2:
                raise
            after = before
        if after == before:
            # The epoch stays with older brokers, and sequences may have a gap where batches were discarded.
            after = init_producer_id(self._client, self.transactional_id, self.timeout_ms)
        self._become(after)

    def _become(self, identity: ProducerIdentity) -> None:
        if identity != self._who:
            self._sequences.clear()
        self._who = identity
        self._added.clear()

    def _discard(self) -> None:
        """Forget what is not sent yet, and wait for the answers to what is."""
        self._open.clear()
        self._ready.clear()
        self._linger_until = float("inf")
        for flight in self._flights.values():
            try:
                flight.connection.wait(flight.pending)
            except KafkaError:
                continue
        self._flights.clear()
        self._added.clear()
        self._state = _State.IDLE

    def _check_open(self) -> None:
        if self._state is _State.FAILED:
            raise UsageError(f"the transaction of {self.transactional_id!r} has failed", "call abort()")
        if self._state is not _State.OPEN:
            raise UsageError(f"no transaction of {self.transactional_id!r} is open", "call begin() first")

    # ---- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> TopicPartition:
        self._check_open()
        return super().send(topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)

    def send_all_prepared(self, batches: Iterable[tuple[TopicPartition, PreparedRecords]]) -> None:
        self._check_open()
        super().send_all_prepared(batches)

    def _new_batch(self, partition: TopicPartition) -> OpenBatch:
        batch = super()._new_batch(partition)
        batch.transactional = True
        return batch

    def _identify(self, batches: dict[TopicPartition, OpenBatch]) -> None:
        identity = self.identity
        for partition, batch in batches.items():
            if batch.identity is None:
                batch.identity = identity.producer_id, identity.epoch, self._take_sequences(partition, batch.count)
        new = [partition for partition in batches if partition not in self._added]
        if new and not self._v2:
            add_partitions(self._client, identity, new)
        self._added.update(new)

    def _request(self, batches: dict[TopicPartition, OpenBatch]) -> tuple[ProduceRequest, int | None]:
        request, version_max = super()._request(batches)
        request.transactional_id = self.transactional_id
        return request, version_max if self._v2 else PRODUCE_VERSION_AFTER_ADDING_MAX

    def _give_up(self, partition: TopicPartition, batch: OpenBatch, error: KafkaError) -> KafkaError:
        self._state = _State.FAILED
        lost = lost_or(error, self.identity)
        if isinstance(lost, TransactionLost):
            self._report(Delivery(partition, -1, batch.count, error))
            return lost
        return super()._give_up(partition, batch, error)

    # ---- offsets ----------------------------------------------------------------------------------------------------

    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a group's offsets with the transaction: they count when it is committed."""
        self._check_open()
        try:
            self._client.retrying(lambda: self._commit_offsets(group, offsets))
        except KafkaError as error:
            self._state = _State.FAILED
            raise lost_or(error, self.identity) from error

    def _commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        version_max = OFFSETS_VERSION_BY_NAME_MAX
        if not self._v2:
            version_max = OFFSETS_VERSION_AFTER_ADDING_MAX
            self._add_group(group)
        by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for partition, offset in offsets.items():
            each = TxnOffsetCommitRequestPartition(
                partition_index=partition.partition, committed_offset=offset, committed_metadata=""
            )
            by_topic.setdefault(partition.topic, []).append(each)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in by_topic.items()],
        )
        self._added.add(group)
        node = self._client.group_coordinator(group)
        answer = self._client.call(node, request, TxnOffsetCommitResponse, version_max=version_max)
        for topic in answer.topics:
            for result in topic.partitions:
                what = f"committing the offset of group {group!r} in {topic.name}[{result.partition_index}]"
                check(result.error_code, None, what)

    def _add_group(self, group: str) -> None:
        if group in self._added:
            return
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group,
        )
        node = self._client.transaction_coordinator(self.transactional_id)
        answer = self._client.call(node, request, AddOffsetsToTxnResponse)
        check(answer.error_code, None, f"adding group {group!r} to {self.identity}")
