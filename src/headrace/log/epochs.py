"""Where each leader epoch began: what OffsetForLeaderEpoch asks, so that a client notices a log that was cut."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.vocabulary import Epoch, Offset

__all__ = ["EpochHistory"]


class EpochHistory:
    """(epoch, first offset) in rising order. It can be rebuilt from the batches, which carry their epoch."""

    __slots__ = ("_entries", "latest")

    def __init__(self, entries: Iterable[tuple[Epoch, Offset]] = ()) -> None:
        self._entries = list(entries)
        self.latest = self._entries[-1][0] if self._entries else Epoch(-1)

    def note(self, epoch: Epoch, offset: Offset) -> None:
        """A batch of ``epoch`` stands at ``offset``."""
        if epoch > self.latest:
            self._entries.append((epoch, offset))
            self.latest = epoch

    def at(self, offset: Offset) -> Epoch | None:
        """The epoch under which ``offset`` was written; None when that is not known."""
        found = None
        for epoch, start in self._entries:
            if start > offset:
                break
            found = epoch
        return found

    def end_offset(self, epoch: Epoch, log_end: Offset) -> tuple[Epoch, Offset] | None:
        """(largest epoch not above ``epoch``, where it ended); None when none is known."""
        found = None
        for number, (own, _) in enumerate(self._entries):
            if own > epoch:
                break
            following = self._entries[number + 1 : number + 2]
            found = (own, following[0][1] if following else log_end)
        return found

    def since(self, start_offset: Offset) -> tuple[tuple[Epoch, Offset], ...]:
        """Those that still have records at or above ``start_offset``."""
        first = 0
        while first + 1 < len(self._entries) and self._entries[first + 1][1] <= start_offset:
            first += 1
        return tuple(self._entries[first:])
