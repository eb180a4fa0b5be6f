"""A transaction's states, the transitions between them, and what EndTxn does in each.

    Empty ──────▶ Ongoing ──────▶ PrepareCommit ──▶ CompleteCommit ─┐
      ▲ │            ▲ │                                            │
      │ │            │ └────────▶ PrepareAbort ───▶ CompleteAbort ──┤
      │ └────────────│───────────────▲                              │
      └──────────────┴───────────────┴──────────────────────────────┘        idle for long: Dead

``Prepare…`` is the decision. Once it is durable the transaction ends that way, also after a crash.
``Complete…`` says that all markers are durable. A transaction is a frozen value; a transition makes the next value, and
the coordinator keeps it only if the state store took it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Any

__all__ = [
    "END_WITHOUT_BUMP",
    "END_WITH_BUMP",
    "EPOCH_EXHAUSTED",
    "NEXT_STATES",
    "NO_EPOCH",
    "NO_ID",
    "EndAnswer",
    "State",
    "Transaction",
]

NO_ID = -1
NO_EPOCH = -1

EPOCH_EXHAUSTED = 32766
"""The last epoch that a client gets. One more must remain to fence it."""


class State(StrEnum):
    """Kafka's names, as ListTransactions shows them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"

    @property
    def decided(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)


_AT_REST = frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD})

NEXT_STATES: dict[State, frozenset[State]] = {
    State.EMPTY: _AT_REST,
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: _AT_REST,
    State.COMPLETE_ABORT: _AT_REST,
    State.DEAD: frozenset(),
}


class EndAnswer(Enum):
    """What EndTxn leads to."""

    DECIDE = auto()
    """Write the decision."""
    DONE = auto()
    """It was decided so before: a retry gets the same answer."""
    WAIT = auto()
    """It is decided so, and the markers are being written."""
    REFUSE = auto()
    """It is not valid in this state."""


END_WITHOUT_BUMP: dict[tuple[State, bool], EndAnswer] = {
    # (state, commit?) for clients up to EndTxn 4: the epoch stays, so a retry looks like the first attempt.
    (State.EMPTY, True): EndAnswer.REFUSE,
    (State.EMPTY, False): EndAnswer.REFUSE,
    (State.ONGOING, True): EndAnswer.DECIDE,
    (State.ONGOING, False): EndAnswer.DECIDE,
    (State.PREPARE_COMMIT, True): EndAnswer.WAIT,
    (State.PREPARE_COMMIT, False): EndAnswer.REFUSE,
    (State.PREPARE_ABORT, True): EndAnswer.REFUSE,
    (State.PREPARE_ABORT, False): EndAnswer.WAIT,
    (State.COMPLETE_COMMIT, True): EndAnswer.DONE,
    (State.COMPLETE_COMMIT, False): EndAnswer.REFUSE,
    (State.COMPLETE_ABORT, True): EndAnswer.REFUSE,
    (State.COMPLETE_ABORT, False): EndAnswer.DONE,
}

END_WITH_BUMP: dict[tuple[State, bool, bool], EndAnswer] = {
    # (state, commit?, epoch of before?) from EndTxn 5 on: a retry carries the epoch that its first attempt ended. An
    # abort with the current epoch is always taken, because such a client need not know whether its writes arrived.
    (State.EMPTY, True, False): EndAnswer.REFUSE,
    (State.EMPTY, False, False): EndAnswer.DECIDE,
    (State.ONGOING, True, False): EndAnswer.DECIDE,
    (State.ONGOING, False, False): EndAnswer.DECIDE,
    (State.PREPARE_COMMIT, True, True): EndAnswer.WAIT,
    (State.PREPARE_COMMIT, False, True): EndAnswer.REFUSE,
    (State.PREPARE_ABORT, True, True): EndAnswer.REFUSE,
    (State.PREPARE_ABORT, False, True): EndAnswer.WAIT,
    (State.COMPLETE_COMMIT, True, True): EndAnswer.DONE,
    (State.COMPLETE_COMMIT, False, True): EndAnswer.REFUSE,
    (State.COMPLETE_COMMIT, True, False): EndAnswer.REFUSE,
    (State.COMPLETE_COMMIT, False, False): EndAnswer.DECIDE,
    (State.COMPLETE_ABORT, True, True): EndAnswer.REFUSE,
    (State.COMPLETE_ABORT, False, True): EndAnswer.DONE,
    (State.COMPLETE_ABORT, True, False): EndAnswer.REFUSE,
    (State.COMPLETE_ABORT, False, False): EndAnswer.DECIDE,
}
"""Combinations that are missing here are fenced: their epoch is neither the current one nor that of a retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of one transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_ID
    """The producer id before the last transition. It identifies a retry that crosses a change of ids."""
    next_producer_id: int = NO_ID
    """The client's next producer id, while decided, if the epochs are used up."""
    last_epoch: int = NO_EPOCH
    """The epoch before the last bump that the same client requested. Its retry is answered and not fenced."""
    data_epoch: int = NO_EPOCH
    """While decided: the epoch of this transaction's records. The producer's epoch may be one higher."""
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[tuple[str, int]] = frozenset()
    groups: frozenset[str] = frozenset()
    started_ms: int = -1
    updated_ms: int = -1

    @property
    def commits(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    @property
    def epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_EXHAUSTED

    def moved(self, state: State, *, now_ms: int, **changes: Any) -> Transaction:
        """The value after a transition."""
        assert state in NEXT_STATES[self.state], f"{self.transactional_id}: {self.state} cannot become {state}"
        return replace(self, state=state, updated_ms=now_ms, previous_producer_id=self.producer_id, **changes)

    def with_epoch_bumped(self, timeout_ms: int, *, expected_epoch: int | None, now_ms: int) -> Transaction:
        """After InitProducerId when no transaction is open."""
        last_epoch = NO_EPOCH if expected_epoch is None else self.producer_epoch
        return self._at_rest(timeout_ms, now_ms, producer_epoch=self.producer_epoch + 1, last_epoch=last_epoch)

    def with_producer_id(self, producer_id: int, timeout_ms: int, *, expected: bool, now_ms: int) -> Transaction:
        """After InitProducerId when the epochs are used up: a new producer id, with epochs from 0."""
        last_epoch = self.producer_epoch if expected else NO_EPOCH
        return self._at_rest(timeout_ms, now_ms, producer_id=producer_id, producer_epoch=0, last_epoch=last_epoch)

    def answered_again(self, timeout_ms: int, now_ms: int) -> Transaction:
        """After a repeated InitProducerId: the same producer id and epoch."""
        return self._at_rest(timeout_ms, now_ms)

    def _at_rest(self, timeout_ms: int, now_ms: int, **changes: Any) -> Transaction:
        return self.moved(State.EMPTY, now_ms=now_ms, timeout_ms=timeout_ms, started_ms=-1, **changes)

    def with_members(
        self, now_ms: int, *, partitions: frozenset[tuple[str, int]] = frozenset(), groups: frozenset[str] = frozenset()
    ) -> Transaction:
        """With more partitions or groups. The first of them starts the transaction's timeout."""
        return self.moved(
            State.ONGOING,
            now_ms=now_ms,
            partitions=self.partitions | partitions,
            groups=self.groups | groups,
            started_ms=self.started_ms if self.state is State.ONGOING else now_ms,
        )

    def prepared(self, *, commit: bool, bump: bool, next_producer_id: int, now_ms: int) -> Transaction:
        """After the decision. ``bump``: records with the old epoch are fenced from here on."""
        return self.moved(
            State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
            now_ms=now_ms,
            producer_epoch=self.producer_epoch + 1 if bump else self.producer_epoch,
            last_epoch=self.producer_epoch if bump else self.last_epoch,
            data_epoch=self.producer_epoch,
            next_producer_id=next_producer_id,
            started_ms=self.started_ms if self.state is State.ONGOING else now_ms,
        )

    def completed(self, now_ms: int) -> Transaction:
        """After all markers are durable."""
        rotates = self.next_producer_id != NO_ID
        return self.moved(
            State.COMPLETE_COMMIT if self.commits else State.COMPLETE_ABORT,
            now_ms=now_ms,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            next_producer_id=NO_ID,
            data_epoch=NO_EPOCH,
            partitions=frozenset(),
            groups=frozenset(),
        )

    def to_row(self) -> dict[str, Any]:
        """The row of the state table."""
        return {
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "previous_producer_id": self.previous_producer_id,
            "next_producer_id": self.next_producer_id,
            "last_epoch": self.last_epoch,
            "data_epoch": self.data_epoch,
            "timeout_ms": self.timeout_ms,
            "state": self.state.value,
            "partitions": [list(each) for each in sorted(self.partitions)],
            "groups": sorted(self.groups),
            "started_ms": self.started_ms,
            "updated_ms": self.updated_ms,
        }

    @classmethod
    def from_row(cls, transactional_id: str, row: dict[str, Any]) -> Transaction:
        fields = dict(row)
        fields["state"] = State(row["state"])
        fields["partitions"] = frozenset((str(topic), int(index)) for topic, index in row["partitions"])
        fields["groups"] = frozenset(row["groups"])
        return cls(transactional_id=transactional_id, **fields)
