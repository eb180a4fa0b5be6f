"""``headrace up`` as a child on one port and one data directory, life after life, whose world can be made worse.

Everything is done to a process that runs: it is killed or stopped, its clock is set, its system calls fail or take
long, its descriptors become few. Nothing in the broker knows of it. ``interference/sitecustomize.py`` is loaded by the
child's interpreter before anything else; it adds to the wall clock what a file says, and lets strace attach.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import CannotRun, log_tail, spare_port
from tests.waiting import eventually

__all__ = ["COMMAND", "WRITES", "ChaosBroker", "Strace", "require_strace"]

COMMAND = Path(sys.executable).with_name("headrace")
INTERFERENCE = Path(__file__).parent / "interference"
READY_TIMEOUT_S = 120.0
NANOSECONDS = 1_000_000_000
WRITES = "pwritev,pwritev2,pwrite64"
"""By which of them Python writes depends on the C library."""


class ChaosBroker:
    """A broker that can be killed and started again, and interfered with."""

    def __init__(
        self,
        home: Path,
        *,
        data: Path | None = None,
        settings: Mapping[str, object] | None = None,
        port: int | None = None,
    ) -> None:
        self.home = home
        self.data = data or home / "data"
        self.port = port or spare_port()
        self.settings = dict(settings or {})
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.lives = 0
        self.starts_s: list[float] = []
        self.clock = home / "clock"
        self.shift_clock(0)

    def __enter__(self) -> ChaosBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()

    # ---- its life ---------------------------------------------------------------------------------------------------

    def command(self) -> list[str]:
        command = [str(COMMAND), "up", "--data", str(self.data), "--kafka", f"127.0.0.1:{self.port}", "--amqp", "off"]
        command += ["--amqp", "off", "--http", "off"]
        for name, value in self.settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--set", f"{name}={text}"]
        return command

    def start(self) -> None:
        self.lives += 1
        began = time.monotonic()
        self.log = self.home / f"broker-{self.lives}.log"
        path = os.pathsep.join([str(INTERFERENCE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "HEADRACE_TEST_CLOCK": str(self.clock)}
        with self.log.open("wb") as output:
            self.child = subprocess.Popen(self.command(), stdout=output, stderr=subprocess.STDOUT, env=environment)
        while "ready" not in self.output().splitlines():
            if self.child.poll() is not None or time.monotonic() - began > READY_TIMEOUT_S:
                raise RuntimeError(f"life {self.lives} of the broker did not get ready:\n{log_tail(self.log)}")
            time.sleep(0.02)
        self.starts_s.append(time.monotonic() - began)

    @property
    def pid(self) -> int:
        return self.child.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def check_alive(self) -> None:
        if self.child.poll() is not None:
            raise RuntimeError(f"life {self.lives} of the broker ended by itself:\n{log_tail(self.log)}")

    def kill(self) -> None:
        self.check_alive()
        os.kill(self.pid, signal.SIGKILL)
        self.child.wait()

    def stop(self) -> int:
        self.child.terminate()
        return self.wait()

    def wait(self) -> int:
        """Its exit status. One that does not end is killed."""
        try:
            return self.child.wait(READY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            return self.child.wait()

    # ---- its world --------------------------------------------------------------------------------------------------

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def shift_clock(self, seconds: float) -> None:
        """Set its wall clock so many seconds before or after the real one, at once and for later lives too."""
        shift = struct.pack("<q", int(seconds * NANOSECONDS))
        if self.clock.exists():
            with self.clock.open("r+b") as file:
                file.write(shift)
        else:
            self.clock.write_bytes(shift)

    @contextmanager
    def few_files(self, spare: int) -> Iterator[None]:
        """It has as many descriptors as it uses, and ``spare`` more."""
        before = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{self.pid}/fd"))
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (used + spare, before[1]))
        try:
            yield
        finally:
            if self.child.poll() is None:
                resource.prlimit(self.pid, resource.RLIMIT_NOFILE, before)

    @contextmanager
    def injected(self, *rules: str) -> Iterator[Strace]:
        """Its system calls fail or take long: ``fdatasync:error=EIO``, ``syncfs:delay_enter=300ms``.

        A rule without a colon only counts: see ``Strace.calls``.
        """
        strace = Strace(self.home / f"strace-{time.monotonic_ns()}", self.pid, rules)
        try:
            yield strace
        finally:
            strace.detach()


class Strace:
    """strace, attached to a process and all its threads."""

    def __init__(self, output: Path, pid: int, rules: Sequence[str]) -> None:
        self.output = output
        self._rules = rules
        calls = ",".join(dict.fromkeys(rule.partition(":")[0] for rule in rules))
        command = [
            "strace",
            "-f",
            "-qq",
            "-o",
            str(output),
            "-p",
            str(pid),
            "-e",
            f"trace={calls}",
            "-e",
            "signal=none",
        ]
        for rule in rules:
            if ":" in rule:
                command += ["-e", f"inject={rule}"]
        self._child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        eventually(lambda: self._ended() or is_traced(pid))
        if self._ended():
            assert self._child.stderr is not None
            raise CannotRun(f"strace did not attach: {self._child.stderr.read().strip()}")

    def _ended(self) -> bool:
        return self._child.poll() is not None

    def calls(self, name: str) -> int:
        """How often a call has returned so far."""
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return sum((f"{name}(" in line and "= 0" in line) or f"{name} resumed" in line for line in lines)

    def detach(self) -> None:
        """End strace and not the process, which goes on undisturbed."""
        if not self._ended():
            self._child.send_signal(signal.SIGINT)
        self._child.wait()
        assert self._child.stderr is not None
        self._child.stderr.close()


def is_traced(pid: int) -> bool:
    """Whether every thread has a tracer."""
    try:
        states = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return bool(states) and all("TracerPid:\t0\n" not in state for state in states)


def require_strace() -> None:
    """Raise CannotRun where there is no strace."""
    if shutil.which("strace") is None:
        raise CannotRun("strace makes system calls fail; it is not installed (Debian package: strace)")
