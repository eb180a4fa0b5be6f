"""Producer ids. No id is ever given out twice.

If two producers had one id, the log would take the batches of one for retries of the other and drop them. So ids are
reserved in blocks: the end of a block is durable before its first id is sent, and a restart begins after the last
reserved block. A crash loses the unused ids of a block; there are 2^63.

A journal that was repaired may have lost a reservation. Ids then go on from the time in microseconds: a broker gives
out fewer ids than one per microsecond. The new end is written at once, because a rewritten journal shows no gaps.
"""

from __future__ import annotations

from headrace.broker.state import StateStore
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock

__all__ = ["PRODUCER_IDS_TABLE", "ProducerIds"]

PRODUCER_IDS_TABLE = "producer_ids"
BLOCK_SIZE = 1000
_KEY = "reserved_end"


class ProducerIds:
    """Hands out producer ids."""

    def __init__(self, state: StateStore, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._next = 0
        self._end = 0
        self.reserved_at = -1
        """The journal offset of the last block. Its ids may be sent when the journal is flushed up to here."""

    def load(self) -> None:
        """Begin after all ids that may have been given out."""
        row = self._state.table(PRODUCER_IDS_TABLE).get(_KEY)
        # A rewritten journal also begins after 0. It has this row, unless no id was ever given out.
        is_lost = self._state.has_lost_changes or (row is None and self._state.start_offset > 0)
        self._next = self._end = int(row or 0)
        if is_lost and self._clock.wall_ms() * 1000 > self._end:
            self._next = self._end = self._clock.wall_ms() * 1000
            self._reserve()

    def take(self) -> int:
        """A new id. Before it is sent, the journal must be flushed up to ``reserved_at`` or further."""
        if self._next == self._end:
            self._reserve()
        taken = self._next
        self._next += 1
        return taken

    def _reserve(self) -> None:
        try:
            self.reserved_at = self._state.put(PRODUCER_IDS_TABLE, _KEY, self._end + BLOCK_SIZE)
        except HeadraceError as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error
        self._end += BLOCK_SIZE
