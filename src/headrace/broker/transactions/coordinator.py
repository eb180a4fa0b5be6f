"""The transaction coordinator: who may write in whose name, and how a transaction ends everywhere or nowhere.

A transactional id is one row of the state table ``transactions``; ``transaction_states`` holds what may follow what.
The rules and error codes are Apache Kafka 4's; what follows is what one machine makes different.

**Ending.** EndTxn writes the decision and the group offsets that hang on it as one atomic change, waits until that is
flushed, appends a marker to every partition, waits until those are flushed, records ``Complete`` and answers. A crash

- before the decision is flushed: it never was; the client has heard nothing, the transaction is still open;
- after that: ``load`` finds ``Prepare…`` and goes on, writing a marker only where the producer's records have none;
- after the markers, before ``Complete`` is flushed: the same, and there is nothing left to write.

Markers never come before a flushed decision (half of them could survive without it), and ``Complete`` never before
flushed markers (readers would wait for the missing one for ever). ``Complete`` itself is not waited for. The client
could be told once the decision is flushed, as Kafka does; then its next transaction would run into
CONCURRENT_TRANSACTIONS and a pause of 20 ms and more, where waiting for the markers costs one shared sync. Only if a
marker cannot be written (the disk is full) is the client told before.

**Joining by producing.** From Produce 12 on a partition joins with the first batch. Its row and its records lie in
different files and are flushed together, so a crash may keep the records and lose the row. Therefore the partitions'
logs are evidence too: ``load`` looks for open transactions that no row knows, and gives them back to their owner if
they carry its current epoch. (They must not be aborted: the client would repeat its batch, hear "duplicate", and
commit a transaction whose records are marked aborted.) What carries no current epoch has no owner any more and is
aborted. That also ends the wait of readers where a power failure took a marker from a topic whose ``headrace.flush``
is not ``ack``; the records in front of it are then lost to them, as that setting accepts.

**The delayed EndTxn.** A client sends EndTxn, loses patience, reconnects, repeats it and goes on; then the first one
arrives and ends the *next* transaction in the middle. From EndTxn 5 on every end bumps the epoch, so the late one is
fenced: closed. Older clients (librdkafka, aiokafka, kafka-python) keep their epoch, and for them:

- requests of one connection are executed in order, and a connection known to be closed executes nothing more;
- across connections, the newest connection on which a producer epoch has spoken is remembered, and EndTxn,
  AddPartitionsToTxn and AddOffsetsToTxn from one that was accepted earlier are fenced. A client gives up a connection
  before it opens the next, and one listener accepts in that order, so its late request is always the older one;
- a restart of the broker ends every connection, and with them what was under way.

What remains open for those clients: two listeners accept independently, so a client that changes from one to the
other in mid-transaction is not covered; TxnOffsetCommit travels on the group's connection, and one that is delayed
into the next transaction puts older offsets there; a proxy that spreads one client over several lasting connections
may be fenced without reason. A producer whose transaction is ended by another process must end it over a newer
connection or with EndTxn 5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from headrace.broker.access import Operation
from headrace.broker.errors import code_of
from headrace.broker.replies import PendingReply, Reply, once_flushed
from headrace.broker.request import Peer, Request
from headrace.broker.state import StateStore
from headrace.broker.topics import Topics
from headrace.broker.transactions.answers import (
    fenced_as_known,
    for_produce,
    init_failed,
    partition_results,
    refused_partitions,
)
from headrace.broker.transactions.listing import describe, list_matching
from headrace.broker.transactions.markers import (
    RETRY_S,
    MarkerWriter,
    OpenTransaction,
    open_transactions_in_recovered_logs,
    pause,
)
from headrace.broker.transactions.owed_markers import OwedMarkers
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.registry import Transactions
from headrace.broker.transactions.states import (
    END_WITH_BUMP,
    END_WITHOUT_BUMP,
    EPOCH_EXHAUSTED,
    NEXT_STATES,
    NO_EPOCH,
    NO_ID,
    EndAnswer,
    State,
    Transaction,
)
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock, TimerHandle
from headrace.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)

__all__ = ["TRANSACTIONS_TABLE", "GroupOffsets", "TransactionCoordinator"]

TRANSACTIONS_TABLE = "transactions"
TRANSACTIONAL_IDS_MAX = 100_000
EXPIRY_INTERVAL_S = 3600.0
EXPIRED_PER_CHANGE = 500

# The version of each API from which its clients know PRODUCER_FENCED; before, they are told INVALID_PRODUCER_EPOCH.
FENCED_SINCE_ADD_PARTITIONS = 2
FENCED_SINCE_ADD_OFFSETS = 2
FENCED_SINCE_END = 2

ADD_PARTITIONS_BATCHED_SINCE = 4
END_BUMPS_EPOCH_SINCE = 5
PRODUCE_ABORTABLE_SINCE = 11
PRODUCE_JOINS_SINCE = 12
OFFSETS_ABORTABLE_SINCE = 4
OFFSETS_JOIN_SINCE = 5

TopicPartition = tuple[str, int]
Change = tuple[str, str, Any]

_log = logging.getLogger(__name__)


class GroupOffsets(Protocol):
    """What the group coordinator does for transactions."""

    def txn_offset_commit(
        self,
        request: Request[TxnOffsetCommitRequest],
        check_producer: Callable[[Request[TxnOffsetCommitRequest]], ErrorCode],
    ) -> Reply:
        """Keep offsets until the producer's transaction ends."""

    def complete_transaction(self, producer_id: int, commit: bool) -> list[Change]:
        """The changes that commit or drop the producer's pending offsets; nothing is changed yet."""

    def apply_transaction(self, producer_id: int, commit: bool) -> None:
        """Those changes were made."""


class TransactionCoordinator:
    """Answers everything about producer ids and transactions."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        settings: Settings,
        topics: Topics,
        groups: GroupOffsets,
        transactions: Transactions,
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._ids = ProducerIds(state)
        self._markers = MarkerWriter(clock, topics)
        self._owed = OwedMarkers(state, topics)
        self._transactions = transactions
        self._stored_at: dict[str, int] = {}
        """The journal offset of each row's last change in this run."""
        self._deadlines: dict[str, float] = {}
        """When each ongoing transaction times out, by the monotonic clock."""
        self._connections: dict[str, tuple[int, Peer]] = {}
        """(epoch, connection): the newest connection over which an epoch of a transactional id has spoken."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered: set[PendingReply[EndTxnResponse]] = set()
        self._timers: dict[str, TimerHandle] = {}

    # ---- life ----

    def load(self) -> None:
        """Take up what the state and the logs say: finish what was decided, watch what is open."""
        self._ids.load()
        for transactional_id, row in self._state.table(TRANSACTIONS_TABLE).items():
            transaction = Transaction.from_row(transactional_id, row)
            self._transactions[transactional_id] = transaction
            self._watch(transaction)
        self._owed.write_where_restored()
        later = self._compare_with_logs()
        decided = [each for each in self._transactions.values() if each.state.decided]
        self._timers["start"] = self._clock.call_later(0.0, lambda: self._roll_forward(decided, later))
        self._sweep_later()
        self._expire_later()

    def close(self) -> None:
        """Stop. What is decided goes on after the next start."""
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for reply in list(self._unanswered):
            self._answer_end(reply, EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))

    # ---- InitProducerId ----

    def init_producer_id(self, request: Request[InitProducerIdRequest]) -> Reply:
        body = request.body
        try:
            if body.transactional_id is None:
                request.access.check_idempotent_write()
            else:
                request.access.check_transactional_id(body.transactional_id, Operation.WRITE)
            if (body.producer_id == NO_ID) != (body.producer_epoch == NO_EPOCH):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together or not at all")
            if body.transactional_id is None:
                response = InitProducerIdResponse(producer_id=self._ids.take(), producer_epoch=0)
                return once_flushed(self._state, self._ids.reserved_at, response)
            self._check_init(body)
            return self._init_transactional(request, body.transactional_id)
        except HeadraceError as error:
            return init_failed(code_of(error), request.version)

    def _check_init(self, body: InitProducerIdRequest) -> None:
        if not body.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if body.enable2_pc:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "two-phase commit is not offered")
        if body.keep_prepared_txn:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "prepared transactions are not kept")
        if not 0 < body.transaction_timeout_ms <= self._settings.integer("transaction.max.timeout.ms"):
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

    def _init_transactional(self, request: Request[InitProducerIdRequest], transactional_id: str) -> Reply:
        known = request.access.transaction(transactional_id, Operation.WRITE)
        current = known or self._new(transactional_id, request.body)
        self._check_expected(current, request.body)
        if current.state.decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if current.state is State.ONGOING:
            # The old producer is fenced and its transaction aborted first; the client asks again for the next epoch.
            self._decide(current, commit=False, bump=True)
            refused = init_failed(ErrorCode.CONCURRENT_TRANSACTIONS, request.version)
            return self._once_durable(transactional_id, refused)
        initialised = self._initialised(current, request.body)
        self._store(initialised)
        self._connections[transactional_id] = (initialised.producer_epoch, request.peer)
        response = InitProducerIdResponse(
            producer_id=initialised.producer_id, producer_epoch=initialised.producer_epoch
        )
        return self._once_durable(transactional_id, response)

    def _new(self, transactional_id: str, body: InitProducerIdRequest) -> Transaction:
        if len(self._transactions) >= TRANSACTIONAL_IDS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{TRANSACTIONAL_IDS_MAX} transactional ids are in use; lower transactional.id.expiration.ms",
            )
        return Transaction(
            transactional_id=transactional_id,
            producer_id=self._ids.take(),
            timeout_ms=body.transaction_timeout_ms,
            updated_ms=self._clock.wall_ms(),
        )

    @staticmethod
    def _check_expected(current: Transaction, body: InitProducerIdRequest) -> None:
        """A producer that names its id and epoch goes on only if nobody else has taken over."""
        known = (
            body.producer_id == NO_ID
            or current.producer_epoch == NO_EPOCH
            or body.producer_id == current.producer_id
            or (body.producer_id == current.previous_producer_id and body.producer_epoch >= EPOCH_EXHAUSTED)
        )
        if not known:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)

    def _initialised(self, current: Transaction, body: InitProducerIdRequest) -> Transaction:
        """The next epoch, or the same again for a retry, or a new id when the epochs are used up."""
        now_ms, timeout_ms = self._clock.wall_ms(), body.transaction_timeout_ms
        expected = None if body.producer_id == NO_ID else body.producer_epoch
        matches = expected is None or expected == current.producer_epoch or current.producer_epoch == NO_EPOCH
        if matches and current.epoch_exhausted:
            producer_id = self._ids.take()
            return current.with_producer_id(producer_id, timeout_ms, expected=expected is not None, now_ms=now_ms)
        if matches:
            return current.with_epoch_bumped(timeout_ms, expected_epoch=expected, now_ms=now_ms)
        if expected == current.last_epoch:
            return current.answered_again(timeout_ms, now_ms)
        raise KafkaError(ErrorCode.PRODUCER_FENCED)

    # ---- joining ----

    def add_partitions_to_txn(self, request: Request[AddPartitionsToTxnRequest]) -> Reply:
        body = request.body
        if request.version >= ADD_PARTITIONS_BATCHED_SINCE:
            # Only brokers send these versions, and Kafka checks nothing but that it is one.
            if not request.access.may_cluster(Operation.CLUSTER_ACTION):
                return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            added = [self._add_partitions(request, each) for each in body.transactions]
            results = [
                AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=topics)
                for each, (topics, _) in zip(body.transactions, added, strict=True)
            ]
            response = AddPartitionsToTxnResponse(results_by_transaction=results)
            offset = max((stored_at for _, stored_at in added), default=-1)
        else:
            single = AddPartitionsToTxnTransaction(
                transactional_id=body.v3_and_below_transactional_id,
                producer_id=body.v3_and_below_producer_id,
                producer_epoch=body.v3_and_below_producer_epoch,
                topics=body.v3_and_below_topics,
            )
            topics, offset = self._add_partitions(request, single)
            response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
        return once_flushed(self._state, offset, response)

    def _add_partitions(
        self, request: Request[AddPartitionsToTxnRequest], asked: AddPartitionsToTxnTransaction
    ) -> tuple[list[AddPartitionsToTxnTopicResult], int]:
        """The results, and the journal offset that must be flushed before they are told (-1: none)."""
        wanted = frozenset((topic.name, index) for topic in asked.topics for index in topic.partitions)
        batched = request.version >= ADD_PARTITIONS_BATCHED_SINCE
        try:
            if not batched:
                request.access.check_transactional_id(asked.transactional_id, Operation.WRITE)
            refused = refused_partitions(request.access, wanted, Operation.CLUSTER_ACTION if batched else None)
            if refused:
                codes = {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in wanted}
                return partition_results(asked.topics, codes), -1
            current = self._checked(asked.transactional_id, asked.producer_id, asked.producer_epoch)
            if asked.verify_only:
                missing = wanted - current.partitions
                codes = {
                    each: ErrorCode.TRANSACTION_ABORTABLE if each in missing else ErrorCode.NONE for each in wanted
                }
                return partition_results(asked.topics, codes), -1
            self._check_connection(request, current)
            self._join(current, partitions=wanted)
        except HeadraceError as error:
            code = fenced_as_known(code_of(error), request.version, FENCED_SINCE_ADD_PARTITIONS)
            return partition_results(asked.topics, dict.fromkeys(wanted, code)), -1
        stored_at = self._stored_at.get(asked.transactional_id, -1)
        return partition_results(asked.topics, dict.fromkeys(wanted, ErrorCode.NONE)), stored_at

    def add_offsets_to_txn(self, request: Request[AddOffsetsToTxnRequest]) -> Reply:
        body = request.body
        try:
            request.access.check_transactional_id(body.transactional_id, Operation.WRITE)
            request.access.group(body.group_id, Operation.READ)
            current = self._checked(body.transactional_id, body.producer_id, body.producer_epoch)
            self._check_connection(request, current)
            self._join(current, groups=frozenset([body.group_id]))
        except HeadraceError as error:
            return AddOffsetsToTxnResponse(
                error_code=fenced_as_known(code_of(error), request.version, FENCED_SINCE_ADD_OFFSETS)
            )
        return self._once_durable(body.transactional_id, AddOffsetsToTxnResponse())

    def check_produce(
        self, transactional_id: str | None, producer_id: int, epoch: int, topic: str, partition: int, version: int
    ) -> ErrorCode:
        """Whether a transactional batch may be appended; from Produce 12 on its partition joins by it."""
        where = (topic, partition)
        current = self._transactions.get(transactional_id or "")
        if (
            current is not None
            and current.state is State.ONGOING
            and current.producer_id == producer_id
            and current.producer_epoch == epoch
            and where in current.partitions
        ):
            return ErrorCode.NONE
        joins = version >= PRODUCE_JOINS_SINCE
        try:
            if not transactional_id:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE)
            current = self._checked(transactional_id, producer_id, epoch)
            if not joins:
                abortable = version >= PRODUCE_ABORTABLE_SINCE
                return ErrorCode.TRANSACTION_ABORTABLE if abortable else ErrorCode.INVALID_TXN_STATE
            self._join(current, partitions=frozenset([where]))
        except HeadraceError as error:
            return for_produce(code_of(error), joins)
        return ErrorCode.NONE

    def txn_offset_commit(self, request: Request[TxnOffsetCommitRequest]) -> Reply:
        """The producer is checked here, the member and the topics by the groups."""
        return self._groups.txn_offset_commit(request, self._offsets_refusal)

    def _offsets_refusal(self, request: Request[TxnOffsetCommitRequest]) -> ErrorCode:
        """Whether a group's offsets may be part of a transaction; from TxnOffsetCommit 5 on the group joins by them."""
        body = request.body
        try:
            current = self._checked(body.transactional_id, body.producer_id, body.producer_epoch)
            if request.version >= OFFSETS_JOIN_SINCE:
                self._join(current, groups=frozenset([body.group_id]))
            elif body.group_id not in current.groups:
                abortable = request.version >= OFFSETS_ABORTABLE_SINCE
                return ErrorCode.TRANSACTION_ABORTABLE if abortable else ErrorCode.INVALID_TXN_STATE
        except HeadraceError as error:
            fenced = code_of(error) is ErrorCode.PRODUCER_FENCED
            return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else code_of(error)
        return ErrorCode.NONE

    def _join(
        self,
        current: Transaction,
        *,
        partitions: frozenset[TopicPartition] = frozenset(),
        groups: frozenset[str] = frozenset(),
    ) -> None:
        known = current.state is State.ONGOING and partitions <= current.partitions and groups <= current.groups
        if not known:
            self._store(current.with_members(self._clock.wall_ms(), partitions=partitions, groups=groups))

    # ---- EndTxn ----

    def end_txn(self, request: Request[EndTxnRequest]) -> Reply:
        body = request.body
        bump = request.version >= END_BUMPS_EPOCH_SINCE
        try:
            request.access.check_transactional_id(body.transactional_id, Operation.WRITE)
            current, answer = self._end_with_bump(body) if bump else self._end_without_bump(request)
            if answer is EndAnswer.REFUSE:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE)
            if answer is EndAnswer.WAIT:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            if answer is EndAnswer.DECIDE:
                return self._decide(current, commit=body.committed, bump=bump)
        except HeadraceError as error:
            return EndTxnResponse(error_code=fenced_as_known(code_of(error), request.version, FENCED_SINCE_END))
        return EndTxnResponse(producer_id=current.producer_id, producer_epoch=current.producer_epoch)

    def _end_without_bump(self, request: Request[EndTxnRequest]) -> tuple[Transaction, EndAnswer]:
        body = request.body
        current = self._found(body.transactional_id)
        if body.producer_id != current.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if body.producer_epoch != current.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        self._check_connection(request, current)
        return current, END_WITHOUT_BUMP[current.state, body.committed]

    def _end_with_bump(self, body: EndTxnRequest) -> tuple[Transaction, EndAnswer]:
        current = self._found(body.transactional_id)
        rotated = (
            current.producer_epoch == 0
            and body.producer_epoch == EPOCH_EXHAUSTED
            and body.producer_id == current.previous_producer_id
        )
        if body.producer_id != current.producer_id and not rotated:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_retry = rotated or body.producer_epoch + 1 == current.producer_epoch
        is_current = body.producer_id == current.producer_id and body.producer_epoch == current.producer_epoch
        answer = END_WITH_BUMP.get((current.state, body.committed, is_retry))
        if answer is None or not (is_retry or is_current):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        return current, answer

    def _decide(self, current: Transaction, *, commit: bool, bump: bool) -> PendingReply[EndTxnResponse]:
        """Write the decision with the group offsets that hang on it; the answer for when it is carried out."""
        next_producer_id = self._ids.take() if bump and current.epoch_exhausted else NO_ID
        now_ms = self._clock.wall_ms()
        decided = current.prepared(commit=commit, bump=bump, next_producer_id=next_producer_id, now_ms=now_ms)
        offsets = self._groups.complete_transaction(current.producer_id, commit)
        self._store(decided, offsets)
        self._groups.apply_transaction(current.producer_id, commit)
        reply: PendingReply[EndTxnResponse] = PendingReply()
        self._unanswered.add(reply)
        self._run(self._carry_out(decided, reply))
        return reply

    async def _carry_out(self, decided: Transaction, reply: PendingReply[EndTxnResponse]) -> None:
        rotated = decided.next_producer_id != NO_ID
        response = EndTxnResponse(
            producer_id=decided.next_producer_id if rotated else decided.producer_id,
            producer_epoch=0 if rotated else decided.producer_epoch,
        )
        await self._durable(decided.transactional_id)
        await self._finish(decided, lambda: self._answer_end(reply, response), after_restart=False)
        self._answer_end(reply, response)

    async def _finish(self, decided: Transaction, on_trouble: Callable[[], None], *, after_restart: bool) -> None:
        """Markers, then ``Complete``. The decision is durable, so this goes on until it has worked."""
        owed = await self._markers.write(decided, only_where_open=after_restart, on_trouble=on_trouble)
        while True:
            try:
                self._store(decided.completed(self._clock.wall_ms()), [each.row for each in owed])
                return
            except HeadraceError as error:
                _log.warning("transaction %r cannot be recorded as complete yet: %s", decided.transactional_id, error)
                on_trouble()
                await pause(self._clock, RETRY_S)

    def _answer_end(self, reply: PendingReply[EndTxnResponse], response: EndTxnResponse) -> None:
        self._unanswered.discard(reply)
        reply.deliver(response)

    # ---- after a restart ----

    def _compare_with_logs(self) -> dict[str | None, list[OpenTransaction]]:
        """Give transactions that are open in the logs back to their owners; those that must wait, by owner.

        What belongs to a decided transaction gets its marker when that is carried out. Behind such a marker the owner's
        next transaction may have begun, if ``Complete`` was not flushed: it must wait until the first one is complete.
        """
        owners = {each.producer_id: name for name, each in self._transactions.items()}
        owners.update({each.next_producer_id: name for name, each in self._transactions.items()})
        later: dict[str | None, list[OpenTransaction]] = {}
        for found in open_transactions_in_recovered_logs(self._topics):
            if self._owed.covers(found.partition, found.producer_id):
                continue
            name = owners.get(found.producer_id)
            if name is None or self._transactions[name].state.decided:
                later.setdefault(name, []).append(found)
            elif not self._give_back(found, name):
                later.setdefault(None, []).append(found)
        return later

    def _give_back(self, found: OpenTransaction, owner: str) -> bool:
        """Make sure that the owner's row knows a transaction that a log holds open; False if it has another epoch."""
        current = self._transactions[owner]
        if (found.producer_id, found.producer_epoch) != (current.producer_id, current.producer_epoch):
            return False
        where = frozenset([(found.partition.topic, found.partition.index)])
        try:
            self._join(current, partitions=where)
        except HeadraceError:
            # The disk is full. The log stays the evidence, and the row's next change carries the partition.
            self._remember(current.with_members(self._clock.wall_ms(), partitions=where))
        return True

    def _roll_forward(self, decided: list[Transaction], later: dict[str | None, list[OpenTransaction]]) -> None:
        """Finish what was decided before the start. What is decided since is carried out by its own task."""
        for transaction in decided:
            self._run(self._roll_forward_one(transaction, later.get(transaction.transactional_id, [])))
        for stray in later.get(None, []):
            self._run(self._abort_stray(stray))

    async def _roll_forward_one(self, decided: Transaction, behind: list[OpenTransaction]) -> None:
        _log.info("transaction %r was decided before the restart: %s", decided.transactional_id, decided.state)
        await self._finish(decided, lambda: None, after_restart=True)
        for found in behind:
            of_decided = found.producer_id == decided.producer_id and found.producer_epoch <= decided.data_epoch
            if not of_decided and not self._give_back(found, decided.transactional_id):
                self._run(self._abort_stray(found))

    async def _abort_stray(self, stray: OpenTransaction) -> None:
        _log.warning(
            "%s-%d holds a transaction of producer %d, epoch %d, that no transactional id stands for: aborting it",
            stray.partition.topic,
            stray.partition.index,
            stray.producer_id,
            stray.producer_epoch,
        )
        await self._markers.abort(stray)

    # ---- time ----

    def _sweep_later(self) -> None:
        interval_ms = self._settings.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        self._timers["sweep"] = self._clock.call_later(interval_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        """Abort what has taken longer than its producer said, and fence the producer."""
        now = self._clock.monotonic()
        for name in [name for name, deadline in self._deadlines.items() if deadline <= now]:
            try:
                self._decide(self._transactions[name], commit=False, bump=True)
                _log.info("transaction %r timed out and is aborted", name)
            except HeadraceError as error:
                _log.warning("transaction %r timed out and cannot be aborted yet: %s", name, error)
        self._sweep_later()

    def _expire_later(self) -> None:
        self._timers["expire"] = self._clock.call_later(EXPIRY_INTERVAL_S, self._expire)

    def _expire(self) -> None:
        """Forget transactional ids that nobody has used for long."""
        before_ms = self._clock.wall_ms() - self._settings.integer("transactional.id.expiration.ms")
        idle = [
            name
            for name, each in self._transactions.items()
            if State.DEAD in NEXT_STATES[each.state] and each.updated_ms <= before_ms
        ]
        try:
            for start in range(0, len(idle), EXPIRED_PER_CHANGE):
                names = idle[start : start + EXPIRED_PER_CHANGE]
                self._state.put_many([(TRANSACTIONS_TABLE, name, None) for name in names])
                for name in names:
                    del self._transactions[name]
                    self._stored_at.pop(name, None)
                    self._connections.pop(name, None)
        except HeadraceError as error:
            _log.warning("idle transactional ids cannot be removed yet: %s", error)
        self._expire_later()

    # ---- looking ----

    def describe_transactions(self, request: Request[DescribeTransactionsRequest]) -> Reply:
        return describe(request.access, request.body)

    def list_transactions(self, request: Request[ListTransactionsRequest]) -> Reply:
        return list_matching(request.access.visible_transactions(), request.body, now_ms=self._clock.wall_ms())

    def all(self) -> list[Transaction]:
        """The present state of every transactional id."""
        return list(self._transactions.values())

    # ---- inside ----

    def _found(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        current = self._transactions.get(transactional_id)
        if current is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return current

    def _checked(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        """The transaction of a producer that may add to it."""
        current = self._found(transactional_id)
        if producer_id == current.next_producer_id != NO_ID:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if producer_id != current.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if epoch != current.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if current.state.decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return current

    def _check_connection(self, request: Request[Any], current: Transaction) -> None:
        """Fence what a client sent over a connection that it has replaced since (see "The delayed EndTxn")."""
        known = self._connections.get(current.transactional_id)
        replaced = (
            known is not None
            and known[0] == current.producer_epoch
            and known[1].listener == request.peer.listener
            and known[1].id > request.peer.id
        )
        if replaced or request.peer.closed:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, "this request was sent over a connection replaced since")
        self._connections[current.transactional_id] = (current.producer_epoch, request.peer)

    def _store(self, transaction: Transaction, others: Iterable[Change] = ()) -> None:
        """Write the row, and keep it in memory if it was taken. With a full disk the client is told to ask again."""
        name = transaction.transactional_id
        try:
            offset = self._state.put_many([(TRANSACTIONS_TABLE, name, transaction.to_row()), *others])
        except HeadraceError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        self._stored_at[name] = offset
        self._remember(transaction)

    def _remember(self, transaction: Transaction) -> None:
        self._transactions[transaction.transactional_id] = transaction
        self._watch(transaction)

    def _watch(self, transaction: Transaction) -> None:
        """An ongoing transaction has a deadline; after a restart only what is left of its time."""
        name = transaction.transactional_id
        if transaction.state is not State.ONGOING:
            self._deadlines.pop(name, None)
        elif name not in self._deadlines:
            elapsed_ms = self._clock.wall_ms() - transaction.started_ms
            left_ms = min(max(transaction.timeout_ms - elapsed_ms, 0), transaction.timeout_ms)
            self._deadlines[name] = self._clock.monotonic() + left_ms / 1000

    def _once_durable(self, transactional_id: str, response: object) -> Reply:
        """The response, when the last change of the row is flushed."""
        return once_flushed(self._state, self._stored_at.get(transactional_id, -1), response)

    def _durable(self, transactional_id: str) -> asyncio.Future[None]:
        """Done when the last change of the row is flushed."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        offset = self._stored_at.get(transactional_id, -1)
        self._state.when_flushed(offset, lambda: None if durable.done() else durable.set_result(None))
        return durable

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("ending a transaction failed; please file a bug", exc_info=error)
