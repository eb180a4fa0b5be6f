"""What every server child has in common: a log file, a wait for readiness, an end that cannot be forgotten."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
START_TIMEOUT_S = 180.0
"""A server that starts within seconds may need a minute beside others; one that cannot start says so at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A broker that answers on ``bootstrap``; ``pid`` is the server itself, so that CPU and memory can be measured."""

    name: str
    bootstrap: str
    pid: int
    data: Path
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)


class CannotRun(Exception):
    """A server cannot be had on this machine; the message says exactly why."""


def spare_ports(count: int) -> list[int]:
    """Ports that nobody has, no two alike; for servers that cannot choose one themselves."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def spare_port() -> int:
    return spare_ports(1)[0]


def log_tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def wait_until(
    ready: Callable[[], bool],
    child: subprocess.Popen[bytes],
    *,
    what: str,
    log: Path,
    timeout_s: float = START_TIMEOUT_S,
) -> None:
    """Poll ``ready`` until it holds; a child that ended or a full timeout tells the end of its log."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if child.poll() is not None:
            raise CannotRun(f"{what} ended with {child.returncode} before it was ready:\n{log_tail(log)}")
        if time.monotonic() > deadline:
            raise CannotRun(f"{what} was not ready within {timeout_s:g} s:\n{log_tail(log)}")
        time.sleep(0.05)


_WATCH = """
cat > /dev/null
pid=$(head -n 1 "$1") && kill -QUIT "$pid" && for turn in $(seq 100); do kill -0 "$pid" || break; sleep 0.1; done
kill -KILL "$pid"
rm -rf "$2"
"""


@contextmanager
def ended_with_us(pid_file: Path, home: Path) -> Iterator[None]:
    """A server that would outlive us when we are killed: somebody waits for our end, ends it and removes its folder.

    He holds the other end of a pipe of ours, which closes however we end, and he is in a session of his own, so that
    what kills our whole group leaves him.
    """
    watcher = subprocess.Popen(
        ["sh", "-c", _WATCH, "sh", str(pid_file), str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.wait()
        assert watcher.stdin is not None
        watcher.stdin.close()


def end(child: subprocess.Popen[bytes], *, timeout_s: float = 60) -> int:
    """SIGTERM and wait; SIGKILL when it does not go. Gives the exit status."""
    if child.poll() is None:
        child.terminate()
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
