"""A node: the data directory, the broker and its listeners, put together, run and taken apart again.

    start   raise the limit on open files, take the data directory, recover, listen
    serve   until SIGTERM, SIGINT or a failure
    stop    accept no more, finish what is in flight, flush, mark the directory as cleanly closed

A failed sync ends the process at once and with a non-zero status: the kernel may have dropped what it could not write,
so nothing may be acknowledged any more, and the next start recovers from what the disk really has.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from headrace.broker.broker import Broker
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.errors import UsageError
from headrace.log.disk import OsDisk
from headrace.log.flush import Flusher
from headrace.log.store import LogStore
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.ports import Clock, Disk
from headrace.server import KafkaLimits, KafkaService, Listener, ListenerLimits, parse_address, refuse_public
from headrace.server.descriptors import DescriptorPlan, raise_descriptor_limit
from headrace.server.loop_watch import LoopWatch

if TYPE_CHECKING:
    from headrace.metrics import Endpoints

__all__ = ["EXIT_STORAGE_FAILED", "Address", "Node", "new_event_loop", "serve"]

log = logging.getLogger("headrace.node")

EXIT_STORAGE_FAILED = 74
"""EX_IOERR of sysexits.h."""

FREED_BYTES_KEPT = 32 << 20
MAPPED_BYTES_MIN = 16 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""mallopt's numbers, from malloc.h."""

METRICS_LIMITS = ListenerLimits(connections_max=64, idle_s=60.0, drain_s=0.5)

WILDCARDS = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens."""

    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def end_process(error: BaseException) -> NoReturn:
    """The storage failed: say so, and stop without running anything that might acknowledge or write."""
    sys.stderr.write(
        f"headrace: writing to disk failed: {error}\n"
        "headrace: stopped without acknowledging what was not flushed; check the disk and start again\n"
    )
    sys.stderr.flush()
    os._exit(EXIT_STORAGE_FAILED)


class Node:
    """One broker process, or one inside another process. All methods are called on its event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        on_failure: Callable[[BaseException], None] = end_process,
    ) -> None:
        self.settings = settings
        self.addresses: list[Address] = []
        self._clock = clock or SystemClock()
        self._disk = SyncGuard(disk or OsDisk(), self._storage_failed)
        self._on_failure = on_failure
        self._listeners: list[Listener] = []
        self._kafka: KafkaService | None = None
        self._loop_watch: LoopWatch | None = None
        self._metrics: Listener | None = None
        self._endpoints: Endpoints | None = None
        self._serving = False
        self._store: LogStore | None = None
        self._flusher: Flusher | None = None
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.broker: Broker

    @property
    def failed(self) -> BaseException | None:
        """The failed sync after which nothing is acknowledged."""
        return self._disk.failed

    async def start(self) -> None:
        """Serve when this returns. Raises UsageError for what the user can mend; then nothing is left running."""
        wanted = self._wanted_addresses()
        self._descriptors = DescriptorPlan.of(raise_descriptor_limit(), self.settings.integer("max.connections"))
        try:
            self._open()
            self.broker.start()  # groups and transactions are loaded before the first request can come
            self._kafka = KafkaService(self.broker.handle, KafkaLimits.of(self.settings))
            self._loop_watch = LoopWatch(self._kafka, stall_s=self.settings.integer("slow.loop.ms") / 1000)
            if "kafka" in wanted:
                await self._listen_for_kafka(*wanted["kafka"])
            if "metrics" in wanted:
                await self._listen_for_metrics(*wanted["metrics"])
            self._loop_watch.start()
            self._serving = True
        except BaseException:
            await self.stop()
            raise

    def _wanted_addresses(self) -> dict[str, tuple[str, int]]:
        for name in ("amqp", "http"):
            if self.settings.text(name) != "off":
                raise UsageError(f"this version of headrace serves no {name}", f"write {name} = off")
        wanted = {
            name: parse_address(self.settings.text(name), name)
            for name in ("kafka", "metrics")
            if self.settings.text(name) != "off"
        }
        for host, _ in wanted.values():
            refuse_public(host, insecure=self.settings.boolean("insecure"))
        return wanted

    def _open(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        directory = os.path.abspath(self.settings.text("data"))
        try:
            self._store = LogStore.open(
                self._disk,
                directory,
                files_max=self._descriptors.segment_files_max,
                monotonic=self._clock.monotonic,
            )
        except OSError as error:
            raise UsageError(
                f"cannot use {directory}: {error.strerror}", "give another directory with --data"
            ) from None
        self._flusher = Flusher(
            self._disk,
            directory,
            post=loop.call_soon_threadsafe,
            monotonic=self._clock.monotonic,
            defer=loop.call_soon,
            note=self._store.note_flushed,
        )
        self._flusher.start()
        self.broker = Broker(store=self._store, flusher=self._flusher, clock=self._clock, settings=self.settings)

    async def _listen_for_kafka(self, host: str, port: int) -> None:
        assert self._kafka is not None
        listener = Listener(self._kafka.session, self._listener_limits(), "kafka")
        await listener.start(host, port)
        self._listeners.append(listener)
        self.addresses.append(Address("kafka", listener.host, listener.port))
        self.broker.addresses["kafka"] = self._advertised("kafka", listener)

    async def _listen_for_metrics(self, host: str, port: int) -> None:
        assert self._kafka is not None
        assert self._loop_watch is not None
        from headrace.metrics import Collector, Endpoints, Sources  # loaded where it is wanted: 50 ms
        from headrace.server.http import HttpService

        sources = Sources(
            listeners=self._listeners,
            kafka=self._kafka,
            broker=self.broker,
            disk=self._disk,
            is_ready=lambda: not self.reasons_not_ready(),
            loop_delay=self._loop_watch.delay,
            topics_max=self.settings.integer("metrics.topics.max"),
            groups_max=self.settings.integer("metrics.groups.max"),
        )
        self._endpoints = Endpoints(Collector(sources), self.reasons_not_ready)
        service = HttpService(self._endpoints.routes())
        self._metrics = Listener(service.session, METRICS_LIMITS, "metrics")
        await self._metrics.start(host, port)
        self.addresses.append(Address("metrics", self._metrics.host, self._metrics.port))

    def reasons_not_ready(self) -> list[str]:
        """Why clients had better not come; empty while the node serves."""
        reasons = []
        if self.failed is not None:
            reasons.append(f"writing to disk failed: {self.failed}")
        if self._stopping.is_set():
            reasons.append("stopping")
        elif not self._serving:
            reasons.append("starting")
        return reasons

    def _listener_limits(self) -> ListenerLimits:
        """Connections must leave descriptors for segments: a broker that cannot open its files serves nobody."""
        limits = ListenerLimits.of(self.settings)
        room = self._descriptors.connections_max
        if room < limits.connections_max:
            log.warning(
                "max.connections is %d and not %d, because this process may open %d files: see ulimit -n",
                room,
                limits.connections_max,
                self._descriptors.limit,
            )
        return replace(limits, connections_max=min(limits.connections_max, room))

    def _advertised(self, name: str, listener: Listener) -> tuple[str, int]:
        text = self.settings.text(f"advertised.{name}")
        if text:
            return parse_address(text, f"advertised.{name}")
        host = socket.gethostname() if listener.host in WILDCARDS else listener.host
        return host, listener.port

    def _storage_failed(self, error: BaseException) -> None:
        """Called on the thread whose sync failed."""
        self._on_failure(error)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.request_stop)

    def request_stop(self) -> None:
        self._stopping.set()

    async def run_until_stopped(self) -> None:
        await self._stopping.wait()
        await self.stop()

    async def stop(self) -> None:
        """Undo ``start``, as far as it came. After a storage failure nothing is written any more."""
        self._stopping.set()
        drain_s = None if self.failed is None else 0.0  # what waits for the disk will not be answered
        await asyncio.gather(*(listener.drain(drain_s) for listener in self._listeners))
        self._listeners.clear()
        if self._kafka is not None:
            self._kafka.close()
        if hasattr(self, "broker"):
            await self.broker.stop()
            # Cancelling a task does not end the thread it waits for: a checkpoint under way there would write its file
            # beside, or after, the one that closes the store.
            await asyncio.get_running_loop().shutdown_default_executor()
        if self._loop_watch is not None:
            self._loop_watch.stop()
        if self._metrics is not None:
            await self._metrics.drain()
        if self._endpoints is not None:
            self._endpoints.close()
        flusher, self._flusher = self._flusher, None
        store, self._store = self._store, None
        if flusher is not None:
            flusher.stop()
        if store is not None:
            with suppress(SyncFailed):  # which has been reported
                store.close() if self.failed is None else store.abandon()


def keep_freed_memory() -> None:
    """Let the allocator reuse the buffers of large requests instead of giving each back to the system.

    A frame of a megabyte is allocated and freed for every request; by default glibc returns it at once, and the next
    one is faulted in page by page: 370,000 faults and 1.1 CPU seconds per GB produced, and a third less throughput.
    What is kept is bounded by ``FREED_BYTES_KEPT``. Elsewhere than on glibc nothing is changed.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, FREED_BYTES_KEPT)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed: a small request cost 62 µs of CPU with it and 71 µs without."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve(settings: Settings, say: Callable[[str], None]) -> int:
    """Run a node in the foreground: one line per listener, then "ready"; returns the exit status."""

    async def main() -> int:
        node = Node(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, node.request_stop)
        await node.start()
        # What is here now stays: the collector need not look at it again. With 1,000 partitions each look took 25 ms.
        gc.collect()
        gc.freeze()
        for address in node.addresses:
            say(f"{address.protocol:<7} {address}")
        say("ready")
        await node.run_until_stopped()
        return 0

    keep_freed_memory()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Settings from the environment alone: what headrace.testing starts as a child.
    try:
        sys.exit(serve(Settings.load(), _say))
    except UsageError as error:
        sys.stderr.write(f"headrace: {error}\n")
        sys.exit(2)
