"""What a log remembers about each producer: enough to spot duplicates, gaps, zombies and open transactions.

For every producer id that has written here: its epoch, its last five batches (a client keeps at most five in flight, so
a retry is always of one of these), and where its open transaction began. The rules are Kafka's:

* a batch with the sequences of one of the five is a duplicate: answered with its first offset, written no second time;
* an older epoch is fenced; a newer epoch starts at sequence 0; the same epoch goes on at last + 1 (wrapping at 2^31-1);
* a producer nobody remembers (expired, or its records were removed) may start at any sequence.

One rule is stricter than Kafka's: a batch before the marker that ended its transaction has no duplicates any more. A
client ends a transaction when all of its batches are acknowledged or given up, so it sends none of them again. But
librdkafka gives the sequences of batches that it gave up, when the connection broke, to the next transaction. Had such
a batch been written after all, Kafka would take the new one for its retry: acknowledged and never written. Here it is
out of order, and the producer starts again.

The state is a fold over the log's batches, so it can always be rebuilt. Snapshots save the time: see
``producer_snapshots.py``.

Readers of committed data may go up to the *last stable offset*: the first offset of the earliest transaction that
is open, or that is decided by a marker which is itself not yet visible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.batch import NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCE_MAX, Batch, control_type
from headrace.log.errors import InvalidProducerEpoch, InvalidTransactionState, OutOfOrderSequence

__all__ = [
    "AbortedTransaction",
    "Duplicate",
    "FrozenProducers",
    "NewBatch",
    "ProducerRow",
    "ProducerStates",
    "ProducerSummary",
    "SentBatch",
]

BATCHES_KEPT: Final = 5
NO_EPOCH: Final = -1


class SentBatch(NamedTuple):
    """A batch a producer wrote: what answers its retry."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class NewBatch:
    """Not seen before: append it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NEW_BATCH"


NEW_BATCH: Final = NewBatch()


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Written before: answer with this and append nothing."""

    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction whose records readers of committed data must skip, from ``first_offset`` to the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSummary:
    """One line of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(slots=True)
class _Producer:
    epoch: int = NO_EPOCH
    batches: deque[SentBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    transaction_start: int | None = None
    generation: int = 0
    """Of the states it belongs to. Those before the last ``freeze`` are not changed any more."""

    def thawed(self, generation: int) -> _Producer:
        """A copy that may be changed."""
        batches = deque(self.batches, maxlen=BATCHES_KEPT)
        return _Producer(
            self.epoch, batches, self.coordinator_epoch, self.last_timestamp, self.transaction_start, generation
        )

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def forget_duplicates(self) -> None:
        """Keep of the last batches where the sequence goes on, and nothing that a batch could be a duplicate of."""
        if self.batches:
            last = self.batches[-1]
            self.batches.clear()
            self.batches.append(last._replace(base_sequence=NO_SEQUENCE))


ProducerRow = tuple[int, int, int, int, int | None, Sequence[SentBatch]]
"""(producer id, epoch, coordinator epoch, last timestamp, first offset of the open transaction, last batches)."""


def _follows(last: int, following: int) -> bool:
    return following == last + 1 or (following == 0 and last == SEQUENCE_MAX)


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_deciding", "_generation", "_open", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._generation = 0
        self._open: dict[int, int] = {}
        """First offset by producer id of each transaction without a marker, in the order they began."""
        self._deciding: deque[tuple[int, int]] = deque()
        """(first offset, marker offset) of transactions whose marker is written but maybe not yet visible."""

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    # Asking before an append.

    def check(self, batch: Batch) -> NewBatch | Duplicate:
        """Whether this data batch is new, or was written before.

        Raises InvalidProducerEpoch, OutOfOrderSequence or InvalidTransactionState.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return NEW_BATCH
        if batch.producer_epoch == producer.epoch:
            for sent in producer.batches:
                if sent.base_sequence == batch.base_sequence and sent.last_sequence == batch.last_sequence:
                    return Duplicate(sent.base_offset, sent.last_offset, sent.timestamp)
        self._check_sequence(batch, producer.epoch, producer.last_sequence)
        if producer.transaction_start is not None and not batch.is_transactional:
            raise InvalidTransactionState(batch.producer_id, producer.transaction_start)
        return NEW_BATCH

    def _check_sequence(self, batch: Batch, epoch: int, last_sequence: int) -> None:
        if batch.producer_epoch < epoch:
            raise InvalidProducerEpoch(batch.producer_id, batch.producer_epoch, epoch)
        if batch.producer_epoch > epoch:
            if batch.base_sequence != 0 and epoch != NO_EPOCH:
                raise OutOfOrderSequence(batch.producer_id, batch.base_sequence, 0)
        elif not _follows(last_sequence, batch.base_sequence):
            expected = 0 if last_sequence == SEQUENCE_MAX else last_sequence + 1
            raise OutOfOrderSequence(batch.producer_id, batch.base_sequence, expected)

    # Following the log.

    def apply(self, batch: Batch) -> AbortedTransaction | None:
        """Fold a batch that now stands in the log into the state. Returns the transaction an abort marker ended."""
        if batch.producer_id == NO_PRODUCER_ID:
            return None
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = _Producer(generation=self._generation)
        elif producer.generation != self._generation:
            producer = self._producers[batch.producer_id] = producer.thawed(self._generation)
        producer.last_timestamp = max(producer.last_timestamp, batch.max_timestamp)
        if batch.is_control:
            return self._apply_marker(batch, producer)
        if batch.producer_epoch != producer.epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        sent = (batch.base_sequence, batch.last_sequence, batch.base_offset, batch.last_offset, batch.max_timestamp)
        producer.batches.append(SentBatch(*sent))
        # A batch that compaction has emptied was decided before, and its marker may be gone.
        if batch.is_transactional and batch.record_count and producer.transaction_start is None:
            producer.transaction_start = batch.base_offset
            self._open[batch.producer_id] = batch.base_offset
        return None

    def _apply_marker(self, batch: Batch, producer: _Producer) -> AbortedTransaction | None:
        kind = control_type(batch)
        if kind is None:
            return None
        is_commit, coordinator_epoch = kind
        if batch.producer_epoch > producer.epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        producer.forget_duplicates()
        producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
        start = producer.transaction_start
        if start is None:
            return None
        producer.transaction_start = None
        del self._open[batch.producer_id]
        self._deciding.append((start, batch.base_offset))
        if is_commit:
            return None
        stable = min(self._open.values(), default=batch.base_offset + 1)
        return AbortedTransaction(batch.producer_id, start, batch.base_offset, min(stable, batch.base_offset + 1))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset that readers of committed data must not pass, or None."""
        deciding = self._deciding
        if not deciding and not self._open:
            return None
        while deciding and deciding[0][1] < high_watermark:
            deciding.popleft()
        firsts = [start for start, _ in deciding]
        firsts += self._open.values()
        return min(firsts, default=None)

    def open_transactions(self) -> dict[int, int]:
        """First offset by producer id of each transaction that has no marker yet."""
        return dict(self._open)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have been idle for so long and have no open transaction."""
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_start is None and now_ms - producer.last_timestamp >= expiration_ms
        ]
        for producer_id in idle:
            del self._producers[producer_id]
        return len(idle)

    def last_batch_offsets(self) -> dict[int, int]:
        """The base offset of each producer's last batch: compaction keeps those so that sequences survive."""
        return {number: each.batches[-1].base_offset for number, each in self._producers.items() if each.batches}

    def ids(self) -> list[int]:
        return list(self._producers)

    def summary(self, producer_id: int) -> ProducerSummary | None:
        """What is known of a producer; None if nothing is."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        return ProducerSummary(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp,
            coordinator_epoch=producer.coordinator_epoch,
            transaction_start_offset=-1 if producer.transaction_start is None else producer.transaction_start,
        )

    # For snapshots.

    def freeze(self) -> FrozenProducers:
        """The states as they are now, for another thread. Each is copied when it changes, and only then."""
        self._generation += 1
        return FrozenProducers(self._producers.copy())

    @classmethod
    def of(cls, rows: Iterable[ProducerRow]) -> ProducerStates:
        """The states that ``rows`` describes."""
        states = cls()
        for number, epoch, coordinator_epoch, last_timestamp, start, batches in rows:
            kept = deque(batches, maxlen=BATCHES_KEPT)
            states._producers[number] = _Producer(epoch, kept, coordinator_epoch, last_timestamp, start)
        begun = [(each.transaction_start, number) for number, each in states._producers.items()]
        for start, number in sorted((start, number) for start, number in begun if start is not None):
            states._open[number] = start
        return states


class FrozenProducers:
    """The producers of a partition at one moment. It may be read on any thread."""

    __slots__ = ("_producers",)

    def __init__(self, producers: Mapping[int, _Producer]) -> None:
        self._producers = producers

    def __len__(self) -> int:
        return len(self._producers)

    def rows(self) -> Iterator[ProducerRow]:
        """Everything that is known, as plain values."""
        for number, each in self._producers.items():
            batches = tuple(each.batches)
            yield number, each.epoch, each.coordinator_epoch, each.last_timestamp, each.transaction_start, batches
