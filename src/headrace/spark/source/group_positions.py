"""Positions of a query, shown to the broker as those of a consumer group, so that lag tools see Spark.

Spark keeps its own positions in the checkpoint and never reads these back. They are written on a separate thread:
a slow coordinator delays no micro-batch, and when positions come faster than they can be written the newest counts. A
failure is a warning, and never ends a query.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

from headrace.client import Client, Groups
from headrace.errors import HeadraceError
from headrace.spark.source.positions import Positions

__all__ = ["GroupPositions"]

STOP_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class GroupPositions:
    def __init__(self, group: str, connect: Callable[[], Client]) -> None:
        self._group = group
        self._connect = connect
        self._changed = threading.Condition()
        self._newest: Positions | None = None
        self._shown: Positions = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def show(self, positions: Positions) -> None:
        """Everything before these positions has been processed."""
        with self._changed:
            if positions == self._shown and self._newest is None:
                return
            self._newest = positions
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-group-positions", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Write what is left, within a bounded time."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        with ExitStack() as stack:
            client: Client | None = None
            while (positions := self._next()) is not None:
                try:
                    client = client or stack.enter_context(self._connect())
                    Groups(client).commit(self._group, positions)
                    self._shown = positions
                except HeadraceError as error:
                    logger.warning("positions were not committed as group %r: %s", self._group, error)

    def _next(self) -> Positions | None:
        """Waits for positions to show; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._stopping)
            positions, self._newest = self._newest, None
            return positions
