"""A broker for a test: on a thread of this process, or as a child process that can be killed.

Both are the real thing, with a data directory on the real disk. The in-process one starts within milliseconds and takes
a ``VirtualClock``; the child is for tests of what happens after ``kill -9``. A restart keeps data and port, so clients
find the broker again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, overload
from urllib.parse import urlsplit

from headrace.config import Settings
from headrace.errors import HeadraceError, UsageError
from headrace.ports import Disk
from headrace.testing.clock import VirtualClock

__all__ = ["ChildBroker", "InProcessBroker", "TestBroker", "broker"]

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0

DEFAULTS = {"kafka": "127.0.0.1:0", "amqp": "off", "metrics": "off", "group.initial.rebalance.delay.ms": 0}
"""What differs from ``headrace up``: a spare port, no queues or metrics, and groups that do not wait for members."""


class TestBroker(ABC):
    """What both kinds offer."""

    __test__ = False  # pytest would take it for a test case because of its name

    def __init__(self, data: Path, settings: Mapping[str, Any]) -> None:
        self.data = data
        self.settings: dict[str, Any] = {**DEFAULTS, **settings, "data": str(data)}
        self.addresses: dict[str, str] = {}
        """``HOST:PORT`` of each listener: ``kafka``, and ``amqp`` and ``metrics`` where they are set."""
        self.host = ""
        self.port = 0
        self.console_url: str | None = None
        """Of a broker that was started with the setting ``http``."""

    @property
    def bootstrap(self) -> str:
        """For ``bootstrap.servers``."""
        return f"{self.host}:{self.port}"

    @property
    def amqp_port(self) -> int:
        """Of a broker that was started with ``amqp=True``."""
        return int(self._amqp_address.rpartition(":")[2])

    @property
    def amqp_url(self) -> str:
        """For AMQP clients: ``amqp://guest:guest@127.0.0.1:PORT/%2F``."""
        return f"amqp://guest:guest@{self._amqp_address}/%2F"

    @property
    def _amqp_address(self) -> str:
        if "amqp" not in self.addresses:
            raise UsageError("this broker has no queues", "start it with testing.broker(amqp=True)")
        return self.addresses["amqp"]

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """An orderly end. Does nothing when it is not running."""

    @abstractmethod
    def kill(self) -> None:
        """End it as ``kill -9`` does."""

    @abstractmethod
    def close(self) -> None:
        """End it and free what it holds, in any state."""

    def restart(self) -> None:
        """Stop if it runs, and start on the same data and port."""
        self.stop()
        self.start()

    def _reached(self, addresses: dict[str, str]) -> None:
        self.console_url = addresses.pop("console", None)
        if self.console_url is not None:
            self.settings["http"] = urlsplit(self.console_url).netloc
        self.addresses = addresses
        self.host, _, port = addresses["kafka"].rpartition(":")
        self.port = int(port)
        self.settings.update(addresses)


class InProcessBroker(TestBroker):
    """On a thread of this process, with a separate event loop."""

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, Any],
        clock: VirtualClock | None = None,
        disk: Disk | None = None,
    ) -> None:
        super().__init__(data, settings)
        self.clock = clock
        self.disk = disk
        self.failed: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node: Any = None

    def start(self) -> None:
        assert self._thread is None, "the broker is running"
        started: Future[dict[str, str]] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="headrace-broker", daemon=True)
        self._thread.start()
        try:
            self._reached(started.result(START_TIMEOUT_S))
        except BaseException:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None
            raise

    def _run(self, started: Future[dict[str, str]]) -> None:
        from headrace.node import Node, new_event_loop

        async def main() -> None:
            settings = Settings(self.settings, "the test")
            node = Node(settings, clock=self.clock, disk=self.disk, on_failure=self._storage_failed)
            await node.start()
            self._node, self._loop = node, asyncio.get_running_loop()
            if self.clock is not None:
                self.clock.attach(self._loop)
            console = {} if node.console_url is None else {"console": node.console_url}
            started.set_result({each.protocol: str(each) for each in node.addresses} | console)
            await node.run_until_stopped()

        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(main())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    def _storage_failed(self, error: BaseException) -> None:
        """A broker on its own would end the process; here the test's process goes on without it."""
        self.failed = error

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self.clock is not None:
            self.clock.attach(None)
        assert self._loop is not None
        with suppress(RuntimeError):  # a broker whose storage failed ends by itself, and its loop may be closed by now
            self._loop.call_soon_threadsafe(self._node.request_stop)
        thread.join(STOP_TIMEOUT_S)
        assert not thread.is_alive(), f"the broker did not stop within {STOP_TIMEOUT_S} s"

    def kill(self) -> None:
        raise HeadraceError("a broker in this process cannot be killed: use broker(in_process=False)")

    def close(self) -> None:
        self.stop()


class ChildBroker(TestBroker):
    """In a child process."""

    def __init__(self, data: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(data, settings)
        self._child: subprocess.Popen[str] | None = None
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed with the broker

    @property
    def pid(self) -> int:
        assert self._child is not None, "the broker is not running"
        return self._child.pid

    def start(self) -> None:
        assert self._child is None, "the broker is running"
        variables = {f"HEADRACE_{name.upper().replace('.', '_')}": str(value) for name, value in self.settings.items()}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "headrace.node"],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the parent only, which then stops the child in order
        )
        # A child that hangs before it is ready is ended, which ends the wait for its lines.
        overdue = threading.Timer(START_TIMEOUT_S, self._child.kill)
        overdue.start()
        try:
            self._reached(self._addresses_it_prints())
        finally:
            overdue.cancel()

    def _addresses_it_prints(self) -> dict[str, str]:
        assert self._child is not None
        assert self._child.stdout is not None
        addresses: dict[str, str] = {}
        for line in self._child.stdout:
            if line == "ready\n":
                return addresses
            protocol, address = line.split()
            addresses[protocol] = address
        status = self._end()
        raise HeadraceError(f"the broker ended with {status} before it was ready: {self.errors()}")

    def errors(self) -> str:
        """What it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def stop(self) -> None:
        if self._child is None:
            return
        self._child.terminate()
        status = self._end()
        if status != 0:
            raise HeadraceError(f"the broker ended with {status}: {self.errors()}")

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._end()

    def _end(self) -> int:
        child, self._child = self._child, None
        assert child is not None
        assert child.stdout is not None
        try:
            return child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()
        finally:
            child.stdout.close()

    def close(self) -> None:
        self.kill()
        self._errors.close()


@overload
def broker(
    *,
    in_process: Literal[True] = True,
    amqp: bool = False,
    data: Path | str | None = None,
    clock: VirtualClock | None = None,
    disk: Disk | None = None,
    settings: Mapping[str, Any] | None = None,
) -> AbstractContextManager[InProcessBroker]: ...


@overload
def broker(
    *,
    in_process: Literal[False],
    amqp: bool = False,
    data: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> AbstractContextManager[ChildBroker]: ...


def broker(
    *,
    in_process: bool = True,
    amqp: bool = False,
    data: Path | str | None = None,
    clock: VirtualClock | None = None,
    disk: Disk | None = None,
    settings: Mapping[str, Any] | None = None,
) -> AbstractContextManager[InProcessBroker] | AbstractContextManager[ChildBroker]:
    """Start a broker and stop it at the end of the ``with``. Without ``data`` its directory is temporary.

    ``settings`` are broker settings by their names, such as ``{"num.partitions": 4}``. A ``VirtualClock`` lets the test
    move time, a ``SimulatedDisk`` lets it fill up or fail; both need a broker in this process. With ``amqp`` it serves
    queues too, on a spare port (``amqp_url``).
    """
    wanted = {**({"amqp": "127.0.0.1:0"} if amqp else {}), **(settings or {})}
    if in_process:
        return _running(lambda folder: InProcessBroker(folder, wanted, clock, disk), data)
    if clock is not None or disk is not None:
        raise HeadraceError("a clock or disk of the test's own needs a broker in this process: broker(in_process=True)")
    return _running(lambda folder: ChildBroker(folder, wanted), data)


B = TypeVar("B", bound=TestBroker)


@contextmanager
def _running(make: Callable[[Path], B], data: Path | str | None) -> Iterator[B]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-")) if data is None else Path(data)
    made = make(folder)
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.close()
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
