"""A broker's insides for testing transactions: state and partitions in memory, and a crash that keeps what was flushed.

Everything that was written is kept as a list, with the number of entries that are flushed. ``World.crash`` starts a
new coordinator from any prefix of each list that holds at least what was flushed: files survive independently of each
other, as on a real disk. Batches and producer states are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from headrace.batch import Batch, build_batch, control_batch, control_type, stamp
from headrace.broker.access import Gate, Operation
from headrace.broker.groups.registry import Groups
from headrace.broker.replies import PendingReply
from headrace.broker.request import Peer, Request
from headrace.broker.slices import Slices
from headrace.broker.transactions import TransactionCoordinator
from headrace.broker.transactions.registry import Transactions
from headrace.errors import ErrorCode
from headrace.log.errors import DiskFull
from headrace.log.producers import Duplicate, ProducerStates
from headrace.record import Record, decode_records
from headrace.testing.clock import VirtualClock
from headrace.wire.kafka.messages import transactions as messages
from tests.unit.broker.fakes import executed
from tests.unit.broker.harness import decoded

Change = tuple[str, str, Any]


class Waiters:
    """Callbacks that wait for a number of flushed entries."""

    def __init__(self) -> None:
        self.flushed = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def when_flushed(self, offset: int, callback: Callable[[], None]) -> None:
        self._waiting.append((offset, callback))
        self.advance(self.flushed)

    def advance(self, flushed: int) -> None:
        self.flushed = flushed
        ready = [callback for offset, callback in self._waiting if offset < flushed]
        self._waiting = [each for each in self._waiting if each[0] >= flushed]
        for callback in ready:
            callback()


class FakeState:
    """``StateStore`` in memory."""

    start_offset = 0
    has_lost_changes = False

    def __init__(self, journal: Sequence[list[Change]] = ()) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self.journal: list[list[Change]] = []
        self.full = False
        self.waiters = Waiters()
        for changes in journal:
            self.put_many(changes)
        self.flush()

    def table(self, name: str) -> dict[str, Any]:
        return self.tables.setdefault(name, {})

    def put(self, table: str, key: str, value: Any | None) -> int:
        return self.put_many([(table, key, value)])

    def put_many(self, changes: Sequence[Change]) -> int:
        if self.full:
            raise DiskFull("state", 100)
        self.journal.append(list(changes))
        for table, key, value in changes:
            if value is None:
                self.table(table).pop(key, None)
            else:
                self.table(table)[key] = value
        return len(self.journal) - 1

    def when_flushed(self, offset: int, callback: Callable[[], None]) -> None:
        self.waiters.when_flushed(offset, callback)

    def flush(self) -> None:
        self.waiters.advance(len(self.journal))


class FakePartition:
    """``Partition`` with its log, in memory. One batch is one offset range, as in a real log."""

    fault = None

    def __init__(self, topic: str, index: int, batches: Sequence[Batch] = ()) -> None:
        self.topic = topic
        self.index = index
        self.batches: list[Batch] = []
        self.end_offset = 0
        self.removed = False
        self.full = False
        self.waiters = Waiters()
        self.log = SimpleNamespace(producers=ProducerStates(), recovery=SimpleNamespace(scanned_bytes=1))
        for batch in batches:
            self.append(batch)
        self.flush()

    def append(self, batch: Batch) -> int:
        if self.full:
            raise DiskFull(self.topic, batch.size)
        stamp(batch, self.end_offset, 0)
        self.end_offset = batch.next_offset
        self.batches.append(batch)
        self.log.producers.apply(batch)
        return batch.last_offset

    def append_marker(self, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int = 0) -> int:
        marker = control_batch(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=0,
        )
        return self.append(marker)

    def acknowledged(self, offset: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.when_flushed(offset, lambda: None if future.done() else future.set_result(None))
        return future

    def flush(self) -> None:
        self.waiters.advance(self.end_offset)

    def flushed_batches(self) -> int:
        return sum(batch.next_offset <= self.waiters.flushed for batch in self.batches)

    def markers(self) -> list[tuple[int, int, bool]]:
        """(producer id, epoch, commit?) of each marker."""
        found = []
        for batch in self.batches:
            kind = control_type(batch) if batch.is_control else None
            if kind is not None:
                found.append((batch.producer_id, batch.producer_epoch, kind[0]))
        return found

    def outcome(self) -> Outcome:
        return outcome(self.batches)


Outcome = tuple[list[str], list[str], list[str]]


def outcome(batches: Iterable[Batch]) -> Outcome:
    """The values that are committed, aborted, open: as a reader of committed data would sort them."""
    open_: dict[int, list[str]] = {}
    committed: list[str] = []
    aborted: list[str] = []
    for batch in batches:
        if batch.is_control:
            kind = control_type(batch)
            assert kind is not None
            (committed if kind[0] else aborted).extend(open_.pop(batch.producer_id, []))
        else:
            values = [(record.value or b"").decode() for record in decode_records(batch, 1 << 20)]
            open_.setdefault(batch.producer_id, []).extend(values)
    return committed, aborted, [value for values in open_.values() for value in values]


class FakeTopics:
    def __init__(self, partitions: Sequence[FakePartition]) -> None:
        self.topics: dict[str, SimpleNamespace] = {}
        for each in partitions:
            self.topics.setdefault(each.topic, SimpleNamespace(name=each.topic, partitions=[])).partitions.append(each)
        for topic in self.topics.values():
            topic.served = topic.partitions
            topic.partition = lambda index, topic=topic: (
                topic.partitions[index] if 0 <= index < len(topic.partitions) else None
            )

    def get(self, name: str) -> SimpleNamespace | None:
        return self.topics.get(name)

    def all(self) -> list[SimpleNamespace]:
        return list(self.topics.values())

    def delete(self, name: str) -> None:
        for partition in self.topics.pop(name).partitions:
            partition.removed = True
            partition.waiters.advance(1 << 40)


class FakeGroups:
    """Pending and committed offsets, both rows of the state."""

    def __init__(self, state: FakeState) -> None:
        self._state = state

    def pend(self, producer_id: int, group: str, offset: int) -> int:
        return self._state.put("pending", f"{producer_id}/{group}", offset)

    def committed(self, group: str) -> int | None:
        return self._state.table("committed").get(group)

    def pending(self) -> dict[str, int]:
        return self._state.table("pending")

    def txn_offset_commit(self, request: Request[Any], check_producer: Callable[[Request[Any]], ErrorCode]) -> Any:
        """The producer's check alone: members and offsets are the real groups' business."""
        return check_producer(request)

    def complete_transaction(self, producer_id: int, commit: bool) -> list[Change]:
        changes: list[Change] = []
        for key, offset in self._state.table("pending").items():
            owner, _, group = key.partition("/")
            if int(owner) == producer_id:
                changes.append(("pending", key, None))
                if commit:
                    changes.append(("committed", group, offset))
        return changes

    def apply_transaction(self, producer_id: int, commit: bool) -> None:
        pass


class FakeSettings:
    values: ClassVar[dict[str, int]] = {
        "transaction.max.timeout.ms": 900_000,
        "transactional.id.expiration.ms": 604_800_000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
        "response.bytes.max": 100_000_000,
    }

    def integer(self, name: str) -> int:
        return self.values[name]


class Asking:
    """Requests as clients send them, to whatever coordinator there is. Every call runs until nothing moves any more."""

    coordinator: TransactionCoordinator
    gate: Gate
    clock: VirtualClock
    runner: asyncio.Runner

    # ---- running ----

    def do(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = call()
            for _ in range(12):
                await asyncio.sleep(0)
            return result

        return self.runner.run(run())

    def advance(self, ms: float) -> None:
        async def run() -> None:
            await self.clock.advance_on_loop(ms)
            for _ in range(12):
                await asyncio.sleep(0)

        self.runner.run(run())

    # ---- asking ----

    def ask(self, name: str, version: int, body: Any, peer: Peer | None = None) -> Any:
        """The reply: a response, or a future that gives one."""
        request = Request(api_key=0, version=version, body=body, peer=peer or Peer(id=1))
        request.access = self.gate.access(request.peer.principal)
        coordinator = self.coordinator
        parts = (coordinator, coordinator.producers, coordinator.additions, coordinator.endings)
        handler = next(each for each in parts if hasattr(each, name))
        reply = self.do(lambda: executed(getattr(handler, name)(request), Slices()))
        return reply if isinstance(reply, PendingReply) else decoded(reply, version)

    def init(
        self, transactional_id: str | None = "t", *, version: int = 4, peer: Peer | None = None, **fields: Any
    ) -> Any:
        fields.setdefault("transaction_timeout_ms", 60_000)
        body = messages.InitProducerIdRequest(transactional_id=transactional_id, **fields)
        return self.ask("init_producer_id", version, body, peer)

    def add(self, producer: Producer, *partitions: FakePartition, version: int = 3, peer: Peer | None = None) -> Any:
        topics = [messages.AddPartitionsToTxnTopic(name=each.topic, partitions=[each.index]) for each in partitions]
        body = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )
        return self.ask("add_partitions_to_txn", version, body, peer)

    def add_offsets(self, producer: Producer, group: str, *, version: int = 3) -> Any:
        body = messages.AddOffsetsToTxnRequest(
            transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, group_id=group
        )
        return self.ask("add_offsets_to_txn", version, body)

    def commit_offsets(self, producer: Producer, group: str, *, version: int = 5) -> Any:
        body = messages.TxnOffsetCommitRequest(
            transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, group_id=group
        )
        return self.ask("txn_offset_commit", version, body)

    def end(self, producer: Producer, *, commit: bool, version: int = 4, peer: Peer | None = None) -> Any:
        body = messages.EndTxnRequest(
            transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
        )
        return self.ask("end_txn", version, body, peer)

    def check_produce(self, producer: Producer, partition: FakePartition, version: int) -> ErrorCode:
        def check() -> ErrorCode:
            return self.coordinator.additions.check_produce(
                self.gate.access("").transaction(producer.name, Operation.WRITE),
                producer.name,
                producer.id,
                producer.epoch,
                (partition.topic, partition.index),
                frozenset,
                version,
            )

        code: ErrorCode = self.do(check)
        return code

    def produce(self, producer: Producer, partition: FakePartition, value: str, *, version: int = 11) -> ErrorCode:
        """What the produce path does with a transactional batch."""
        code = self.check_produce(producer, partition, version)
        if code is ErrorCode.NONE:
            producer.append(partition, value)
        return code


class World(Asking):
    """A coordinator and all it stands on."""

    def __init__(
        self,
        state: FakeState | None = None,
        partitions: Sequence[FakePartition] | None = None,
        clock: VirtualClock | None = None,
        runner: asyncio.Runner | None = None,
    ) -> None:
        self.runner = runner or asyncio.Runner()
        self.clock = clock or VirtualClock()
        self.state = state or FakeState()
        self.partitions = list(partitions or [FakePartition("a", 0), FakePartition("a", 1), FakePartition("b", 0)])
        self.topics = FakeTopics(self.partitions)
        self.groups = FakeGroups(self.state)
        self.transactions = Transactions(state=self.state, clock=self.clock)  # type: ignore[arg-type]
        self.gate = Gate(
            topics=self.topics,  # type: ignore[arg-type]
            groups=Groups(),
            transactions=self.transactions,
            authorizer=None,
        )
        self.coordinator = TransactionCoordinator(
            state=self.state,  # type: ignore[arg-type]
            clock=self.clock,
            settings=FakeSettings(),  # type: ignore[arg-type]
            topics=self.topics,  # type: ignore[arg-type]
            offsets=self.groups,
            transactions=self.transactions,
        )
        self.do(self.coordinator.load)
        self.advance(0)

    def flush_state(self) -> None:
        self.do(self.state.flush)

    def flush_partitions(self, *which: FakePartition) -> None:
        self.do(lambda: [each.flush() for each in which or self.partitions])

    def flush(self) -> None:
        """Flush until nobody writes any more."""
        while True:
            before = (len(self.state.journal), [each.end_offset for each in self.partitions])
            self.flush_state()
            self.flush_partitions()
            if before == (len(self.state.journal), [each.end_offset for each in self.partitions]):
                return

    def crash(self, choose: Callable[[int, int], int] = lambda least, most: least) -> World:
        """Power fails. ``choose(least, most)`` says how many entries of a file survive."""
        self.do(self.coordinator.close)
        state = FakeState(self.state.journal[: choose(self.state.waiters.flushed, len(self.state.journal))])
        partitions = [
            FakePartition(each.topic, each.index, each.batches[: choose(each.flushed_batches(), len(each.batches))])
            for each in self.partitions
            if not each.removed
        ]
        return World(state, partitions, self.clock, self.runner)

    def close(self) -> None:
        self.do(self.coordinator.close)
        self.runner.close()

    def state_of(self, name: str = "t") -> str:
        body = messages.DescribeTransactionsRequest(transactional_ids=[name])
        response = self.ask("describe_transactions", 0, body)
        state: str = response.transaction_states[0].transaction_state
        return state

    def ready(self, name: str = "t", *, version: int = 4) -> Producer:
        """A producer that has its id."""
        answer = self.init(name, version=version)
        self.flush()
        response = result(answer)
        assert response.error_code == 0
        return Producer(name, response.producer_id, response.producer_epoch)


class Producer:
    """A client's view: its id, its epoch, its next sequence per partition."""

    def __init__(self, name: str, producer_id: int, epoch: int) -> None:
        self.name = name
        self.id = producer_id
        self.epoch = epoch
        self._sequences: dict[tuple[str, int], int] = {}

    def moved(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.id, self.epoch):
            self.id, self.epoch = producer_id, epoch
            self._sequences.clear()

    def append(self, partition: FakePartition, value: str, sequence: int | None = None) -> tuple[int, int]:
        """Write one record, or, with the sequence it had, write it again; its sequence and offset."""
        where = (partition.topic, partition.index)
        if sequence is None:
            sequence = self._sequences.get(where, 0)
            self._sequences[where] = sequence + 1
        batch = build_batch(
            [Record(key=None, value=value.encode())],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        seen = partition.log.producers.check(batch)
        return sequence, seen.last_offset if isinstance(seen, Duplicate) else partition.append(batch)


def result(reply: Any) -> Any:
    """The response of a reply that must be there by now."""
    if isinstance(reply, PendingReply):
        assert reply.ready, "the answer still waits"
        return reply.response
    return reply


def waits(reply: Any) -> bool:
    return isinstance(reply, PendingReply) and not reply.ready
