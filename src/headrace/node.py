"""A node: the data directory, the broker and its listeners, put together, run and taken apart again.

    start   raise the limit on open files, take the data directory, recover, listen
    serve   until SIGTERM, SIGINT or a failure; SIGHUP opens the log file again, or stops where there is none
    stop    accept no more, finish what is in flight, flush, mark the directory as cleanly closed

A failed sync ends the process at once and with a non-zero status: the kernel may have dropped what it could not write,
so nothing may be acknowledged any more, and the next start recovers from what the disk really has.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from headrace.broker.broker import Broker
from headrace.broker.queues.feeds import exchange_feeds, topic_feeds
from headrace.broker.queues.registry import DEFAULT_HOST
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.errors import BadArgument, UsageError
from headrace.log.disk import OsDisk
from headrace.log.flush import Flusher
from headrace.log.store import LogStore
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.node_console import ConsoleChild
from headrace.node_messages import RecoveryWatch, log_recovery, log_start
from headrace.operator_log import OperatorLog
from headrace.ports import Clock, Disk
from headrace.server import KafkaLimits, KafkaService, Listener, ListenerLimits, bind, parse_address, refuse_public
from headrace.server.descriptors import DescriptorPlan, raise_descriptor_limit
from headrace.server.heap import Heap
from headrace.server.loop_watch import LoopWatch
from headrace.systemd import ServiceManager

if TYPE_CHECKING:
    from headrace.metrics import Endpoints
    from headrace.server.amqp_users import AmqpUsers

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


def end_process(error: BaseException, operator_log: OperatorLog | None = None) -> NoReturn:
    """The storage failed: say so, and stop without running anything that might acknowledge or write."""
    text = (
        f"writing to disk failed: {error}; stopped without acknowledging what was not flushed: "
        "check the disk and start again"
    )
    if operator_log is not None:
        log.critical("%s", text)
        operator_log.stop()
    else:
        sys.stderr.write(f"headrace: {text}\n")
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
        lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings
        self.addresses: list[Address] = []
        self._clock = clock or SystemClock()
        self._disk = SyncGuard(disk or OsDisk(), self._storage_failed, monotonic=self._clock.monotonic)
        self._on_failure = on_failure
        self._lines_dropped = lines_dropped
        self._sockets: dict[str, list[socket.socket]] = {}
        """Addresses that are bound and not listened on yet."""
        self._listeners: list[Listener] = []
        self._kafka: KafkaService | None = None
        self._loop_watch: LoopWatch | None = None
        self._metrics: Listener | None = None
        self._endpoints: Endpoints | None = None
        self._console: ConsoleChild | None = None
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
        """Serve when this returns. Raises UsageError for what the user can fix; then nothing is left running."""
        wanted = self._wanted_addresses()
        # What a setting says wrong is said before the data is opened: the run after such an end checks all logs.
        users = self._amqp_users() if "amqp" in wanted else None
        topic_feeds(self.settings.items("headrace.queue.feeds"))
        exchange_feeds(self.settings.items("headrace.topic.feeds"))
        self._descriptors = DescriptorPlan.of(raise_descriptor_limit(), self.settings.integer("max.connections"))
        try:
            # Addresses are taken first: a port that is not free should be said before a long recovery, not after it.
            for name, address in wanted.items():
                self._sockets[name] = _bind(name, *address)
            self._open()
            self.broker.start()  # groups and transactions are loaded before the first request can come
            self._kafka = KafkaService(self.broker.handle, KafkaLimits.of(self.settings), slices=self.broker.slices)
            self._loop_watch = LoopWatch(self._kafka, stall_s=self.settings.integer("slow.loop.ms") / 1000)
            if "kafka" in wanted:
                await self._listen_for_kafka()
            if users is not None:
                await self._listen_for_amqp(users)
            if "metrics" in wanted:
                await self._listen_for_metrics()
            if "http" in wanted:
                self._start_console()
            self._loop_watch.start()
            self._serving = True
        except BaseException:
            await self.stop()
            raise

    def _wanted_addresses(self) -> dict[str, tuple[str, int]]:
        wanted = {
            name: parse_address(self.settings.text(name), name)
            for name in ("kafka", "amqp", "metrics", "http")
            if self.settings.text(name) != "off"
        }
        if "http" in wanted and "kafka" not in wanted:
            raise BadArgument("the console is a client of the Kafka listener, which is off", "leave --kafka out")
        for name, other in combinations(("kafka", "amqp", "metrics", "http"), 2):
            if name in wanted and wanted[name] == wanted.get(other) and wanted[name][1] != 0:
                raise BadArgument(
                    f"{name} and {other} cannot share {self.settings.text(name)}", f"give {other} another port"
                )
        for host, _ in wanted.values():
            refuse_public(host, insecure=self.settings.boolean("insecure"))
        return wanted

    def _open(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        directory = os.path.abspath(self.settings.text("data"))
        is_new = not self._disk.exists(f"{directory}/checkpoint") and not self._disk.exists(f"{directory}/topics")
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
        log_start(self.settings, directory)
        if not (is_new or self._store.report.clean):
            log.warning("the last run did not stop in order: the ends of its logs are checked")
        self._flusher = Flusher(
            self._disk,
            directory,
            post=loop.call_soon_threadsafe,
            monotonic=self._clock.monotonic,
            defer=loop.call_soon,
            note=self._store.note_flushed,
            slow_s=self.settings.integer("slow.sync.ms") / 1000,
        )
        self._flusher.start()
        with RecoveryWatch(self._store.report):
            self.broker = Broker(store=self._store, flusher=self._flusher, clock=self._clock, settings=self.settings)
        log_recovery(self._store.report)

    async def _listen_for_kafka(self) -> None:
        assert self._kafka is not None
        listener = Listener(self._kafka.session, self._listener_limits(), "kafka")
        await listener.start(self._sockets.pop("kafka"))
        self._listeners.append(listener)
        self.addresses.append(Address("kafka", listener.host, listener.port))
        self.broker.addresses["kafka"] = self._advertised("kafka", listener)

    def _amqp_users(self) -> AmqpUsers:
        from headrace.server.amqp_users import AmqpUsers

        hosts = {DEFAULT_HOST, *self.settings.items("amqp.vhosts")}
        return AmqpUsers.of(self.settings.text("amqp.users.file"), hosts)

    async def _listen_for_amqp(self, users: AmqpUsers) -> None:
        from headrace.server.amqp import AmqpService  # loaded where it is wanted

        service = AmqpService(
            self.broker.queues, users, unfinished_bytes_max=self.settings.integer("amqp.unfinished.bytes.max")
        )
        listener = Listener(service.session, self._listener_limits(), "amqp")
        await listener.start(self._sockets.pop("amqp"))
        self._listeners.append(listener)
        self.addresses.append(Address("amqp", listener.host, listener.port))

    def _start_console(self) -> None:
        listener = self._listeners[0]  # Kafka's: nothing is served over HTTP without it
        self._console = ConsoleChild(self._sockets.pop("http"), (listener.host, listener.port), self.settings)
        self._console.start()

    @property
    def console_url(self) -> str | None:
        """Where a browser finds the console; it may hold the token."""
        return None if self._console is None else self._console.url

    async def _listen_for_metrics(self) -> None:
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
            lines_dropped=self._lines_dropped,
            topics_max=self.settings.integer("metrics.topics.max"),
            groups_max=self.settings.integer("metrics.groups.max"),
            queues_max=self.settings.integer("metrics.queues.max"),
            partitions_max=self.settings.integer("metrics.partitions.max"),
        )
        self._endpoints = Endpoints(Collector(sources), self.reasons_not_ready)
        service = HttpService(self._endpoints.routes())
        self._metrics = Listener(service.session, METRICS_LIMITS, "metrics")
        await self._metrics.start(self._sockets.pop("metrics"))
        self.addresses.append(Address("metrics", self._metrics.host, self._metrics.port))

    def reasons_not_ready(self) -> list[str]:
        """Why the node does not serve clients; empty while it does."""
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
            self._loop.call_soon_threadsafe(self.request_stop, "writing to disk failed")

    def request_stop(self, reason: str = "as asked") -> None:
        if not self._stopping.is_set():
            log.info("stopping: %s", reason)
            self._stopping.set()

    async def run_until_stopped(self, on_stopping: Callable[[], None] = lambda: None) -> None:
        await self._stopping.wait()
        on_stopping()
        await self.stop()

    async def stop(self) -> None:
        """Undo ``start``, as far as it came. After a storage failure nothing is written any more."""
        began = self._clock.monotonic()
        self._stopping.set()
        await self._stop_serving()
        if self._serving:
            log.info("the last connection was closed after %.1f s", self._clock.monotonic() - began)
        if hasattr(self, "broker"):
            await self.broker.stop()
            # Cancelling a task does not end the thread it waits for: a checkpoint under way there would write its file
            # beside, or after, the one that closes the store.
            await asyncio.get_running_loop().shutdown_default_executor()
        await self._stop_watching()
        is_clean = self._close_storage()
        if self._serving:
            log.info(
                "stopped %s after %.1f s",
                "in order" if is_clean else "without closing",
                self._clock.monotonic() - began,
            )

    async def _stop_serving(self) -> None:
        if self._console is not None:
            await self._console.stop()
        drain_s = None if self.failed is None else 0.0  # what waits for the disk will not be answered
        await asyncio.gather(*(listener.drain(drain_s) for listener in self._listeners))
        self._listeners.clear()
        for taken in self._sockets.values():
            for each in taken:
                each.close()
        if self._kafka is not None:
            self._kafka.close()

    async def _stop_watching(self) -> None:
        """Metrics are served almost to the end: an operator may ask why the node does not stop."""
        if self._loop_watch is not None:
            self._loop_watch.stop()
        if self._metrics is not None:
            await self._metrics.drain()
        if self._endpoints is not None:
            self._endpoints.close()

    def _close_storage(self) -> bool:
        """Whether everything is on disk and marked as cleanly closed. A start that was broken off has not looked at
        every log, so it says nothing about them."""
        flusher, self._flusher = self._flusher, None
        store, self._store = self._store, None
        if flusher is not None:
            flusher.stop()
        if store is None:
            return False
        if self.failed is not None or not self._serving:
            store.abandon()
            return False
        try:
            store.close()
        except SyncFailed:  # which has been reported
            return False
        return True


def _bind(name: str, host: str, port: int) -> list[socket.socket]:
    """Raises UsageError. Port 5672 is often RabbitMQ's, and nobody may have asked for queues."""
    try:
        return bind(host, port)
    except UsageError as error:
        if name != "amqp":
            raise
        hint = "stop it, or serve queues elsewhere (--amqp HOST:PORT), or none (--amqp off)"
        raise UsageError(f"queues cannot be served: {error.message}", hint) from None


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


class StartInterrupted(BaseException):
    """A signal came during the start. Not an Exception: nothing on the way may take it for a failure."""


def serve(settings: Settings, say: Callable[[str], None]) -> int:
    """Run a node in the foreground: one line per listener, then "ready"; returns the exit status."""
    if all(settings.text(name) == "off" for name in ("kafka", "amqp", "metrics")):
        raise BadArgument("kafka, amqp and metrics are off: nothing would be served", "leave --kafka out")
    file = settings.text("log.file")
    operator_log = OperatorLog(
        level=settings.text("log.level"), file=Path(file) if file else None, form=settings.text("log.format")
    )
    operator_log.start()
    try:
        keep_freed_memory()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_serve(settings, say, operator_log))
    finally:
        operator_log.stop()


async def _serve(settings: Settings, say: Callable[[str], None], operator_log: OperatorLog) -> int:
    node = Node(
        settings,
        on_failure=lambda error: end_process(error, operator_log),
        lines_dropped=lambda: operator_log.lines_dropped,
    )
    hangup = _hangup_action(operator_log)
    manager = ServiceManager(SystemClock())
    manager.starting("opening the data directory")
    _interrupt_start_on_signals(hangup)
    try:
        await node.start()
    except StartInterrupted as interrupted:
        log.info("stopped while starting: %s", interrupted)
        return 0
    _stop_on_signals(node, hangup)
    if hangup is Hangup.REOPEN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, operator_log.reopen)
    Heap().settle()
    served = ", ".join(f"{address.protocol} on {address}" for address in node.addresses)
    log.info("ready: %s", served)
    operator_log.flush()  # what recovery found is read before "ready"
    for address in node.addresses:
        say(f"{address.protocol:<7} {address}")
    if node.console_url is not None:
        say(f"console {node.console_url}")
    say("ready")
    manager.ready(f"serving {served}")
    await node.run_until_stopped(lambda: manager.stopping("finishing what is in flight"))
    manager.close()
    return 0


class Hangup(Enum):
    """What SIGHUP does."""

    REOPEN = auto()
    """It opens the log file again."""
    STOP = auto()
    """There is no log file: the terminal was closed, and the process stops in order."""
    IGNORE = auto()
    """There is no log file, and the process was started with nohup."""


def _hangup_action(operator_log: OperatorLog) -> Hangup:
    if operator_log.has_file:
        return Hangup.REOPEN
    return Hangup.IGNORE if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else Hangup.STOP


def _interrupt_start_on_signals(hangup: Hangup) -> None:
    """Recovery keeps the event loop busy, so the loop's handlers would not be called before it ends."""

    def interrupt(number: int, _: object) -> None:
        raise StartInterrupted(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    # The log file has just been opened and need not be opened again.
    signal.signal(signal.SIGHUP, interrupt if hangup is Hangup.STOP else signal.SIG_IGN)


def _stop_on_signals(node: Node, hangup: Hangup) -> None:
    """The first signal stops in order. The second one ends the process at once, whatever it waits for. A second SIGHUP
    does not: a terminal that is closed may send several."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(number: signal.Signals) -> None:
        node.request_stop(f"{number.name}; a second signal ends the process at once")
        for each in numbers:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        if hangup is Hangup.STOP:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    for each in numbers if hangup is not Hangup.STOP else (*numbers, signal.SIGHUP):
        loop.add_signal_handler(each, stop, each)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Settings from the environment alone: what headrace.testing starts as a child.
    try:
        sys.exit(serve(Settings.load(), _say))
    except UsageError as error:
        sys.stderr.write(f"headrace: {error}\n")
        sys.exit(error.exit_code)
