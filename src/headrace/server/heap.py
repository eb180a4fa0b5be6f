"""Keeps Python's cycle collector from holding up the loop.

A full collection looks at every object there is. With 1,000 partitions it took 25 ms, with 10,000 a quarter of a
second, at any moment. What a broker holds stays for long, so there is next to nothing to find in it. So everything is
*frozen*, which the collector does not look at, when the broker is ready, and again after every full collection: each
looks only at what was made since the one before. Full collections come more often than Python's default has them, so
that this is little: some 30,000 objects, and what a large request holds at that moment.

The price: a cycle of objects that was frozen is never freed. So nothing that comes and goes may be one: not a
connection, a request, a reply, a topic or a group. ``tests/unit/server/test_heap.py`` runs clients with the collector
switched off and looks for cycles afterwards.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

__all__ = ["Heap"]

OLDEST_GENERATION = 2
FULL_COLLECTION_EVERY = 3
"""Collections of the middle generation between two full ones. Python's default is 10; what survives a full one is not
looked at again, so three times as many cost no more in total, and each is a third as long."""


class Heap:
    """What the collector need not look at."""

    def __init__(self, freeze: Callable[[], None] = gc.freeze) -> None:
        self._freeze = freeze

    def settle(self) -> None:
        """The broker is ready: what is here now stays."""
        gc.collect()
        self._freeze()
        gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_EVERY)
        gc.callbacks.append(self.collecting)

    def collecting(self, phase: str, info: Mapping[str, int]) -> None:
        """The collector calls this when it begins and when it ends."""
        if phase == "stop" and info["generation"] == OLDEST_GENERATION:
            self._freeze()
