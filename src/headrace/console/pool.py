"""Clients for threads: one is used by one thread at a time, and blocks, so none is used on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from headrace.client import Client, ClientOptions
from headrace.console.limits import WAITING_MAX, WORKERS
from headrace.console.problems import Busy

__all__ = ["CLIENT_OPTIONS", "ClientPool"]

T = TypeVar("T")

CLIENT_OPTIONS = ClientOptions(
    client_id="headrace-console",
    connect_timeout_ms=3_000,
    request_timeout_ms=15_000,
    retry_timeout_ms=4_000,
    damage_timeout_ms=1_000,
    missing_topic_timeout_ms=500,
    metadata_age_ms_max=10_000,
)
"""A person waits for the answer: an error after a few seconds is better than a page that hangs."""


class ClientPool:
    """Lends clients of one cluster to threads, and has threads for short work."""

    def __init__(self, bootstrap: str, options: ClientOptions = CLIENT_OPTIONS) -> None:
        self.bootstrap = bootstrap
        self._options = options
        self._idle: list[Client] = []
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="console")
        self._waiting = 0

    async def run(self, work: Callable[[Client], T]) -> T:
        """Do something short with a client on a thread."""
        if self._waiting >= WAITING_MAX:
            raise Busy("requests", WAITING_MAX)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._work, work)
        finally:
            self._waiting -= 1

    def _work(self, work: Callable[[Client], T]) -> T:
        with self.lent() as client:
            return work(client)

    @contextmanager
    def lent(self) -> Iterator[Client]:
        """A client for the calling thread. One that failed in an unknown way is not used again."""
        with self._lock:
            client = self._idle.pop() if self._idle else Client(self.bootstrap, self._options)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        with self._lock:
            self._idle.append(client)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for client in self._idle:
                client.close()
            self._idle.clear()
