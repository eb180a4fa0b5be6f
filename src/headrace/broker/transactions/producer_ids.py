"""Producer ids: each is given once, ever.

An id that two producers shared would make the log take one's batches for the other's repeats, and drop them. So ids are
reserved in blocks: the end of a block is durable before the first id of it leaves the broker, and a restart begins
behind the last reserved block. What a crash leaves unused of a block is lost; 2^63 ids last.
"""

from __future__ import annotations

from headrace.broker.state import StateStore
from headrace.errors import ErrorCode, HeadraceError, KafkaError

__all__ = ["PRODUCER_IDS_TABLE", "ProducerIds"]

PRODUCER_IDS_TABLE = "producer_ids"
BLOCK_SIZE = 1000
_KEY = "reserved_end"


class ProducerIds:
    """Hands out producer ids."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._next = 0
        self._end = 0
        self.reserved_at = -1
        """The journal offset of the last block: its ids may be told when the journal is flushed up to here."""
        self.load()

    def load(self) -> None:
        """Begin behind everything that may have been given before."""
        self._next = self._end = int(self._state.table(PRODUCER_IDS_TABLE).get(_KEY, 0))

    def take(self) -> int:
        """A new id. Whoever tells a client waits first: for ``reserved_at``, or for a later change of the state."""
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
