"""Our own broker as users start it: the real command in a child process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers.process import CannotRun, RunningServer, end, log_tail, wait_until

COMMAND = Path(sys.executable).with_name("headrace")

# As the Apache Kafka beside it: tests do not want to wait for members who never come.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}

ADDRESS = re.compile(r"(\S+:\d+)\s*$")


@contextmanager
def headrace_server(
    *,
    data: Path | None = None,
    settings: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    expect_exit: int | None = 0,
) -> Iterator[RunningServer]:
    """Start ``headrace up`` on a port of its choice, give it when it says "ready", see SIGTERM lead to exit 0.

    ``expect_exit=None`` is for tests that kill the broker themselves.
    """
    home = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    folder = data or home / "data"
    command = [str(COMMAND), "up", "--data", str(folder), "--kafka", "127.0.0.1:0", "--amqp", "off", "--http", "off"]
    for name, value in {**SETTINGS, **(settings or {})}.items():
        command += ["--set", f"{name}={value}"]
    log = home / "output.log"
    with log.open("wb") as output:
        child = subprocess.Popen([*command, *arguments], stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for_ready(child, log)
        yield RunningServer(
            name="headrace", bootstrap=listener_address(log, "kafka"), pid=child.pid, data=folder, log=log
        )
        status = end(child)
        if expect_exit is not None and status != expect_exit:
            raise AssertionError(f"headrace up ended with {status} after SIGTERM, not {expect_exit}:\n{log_tail(log)}")
    finally:
        end(child)
        shutil.rmtree(home, ignore_errors=True)


def wait_for_ready(child: subprocess.Popen[bytes], log: Path) -> None:
    """A broker of ours that does not start is a failure; CannotRun would make it a skip."""
    try:
        wait_until(lambda: "ready" in lines_of(log), child, what="headrace up", log=log)
    except CannotRun as why:
        raise AssertionError(str(why)) from None


def lines_of(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.exists() else []


def listener_address(log: Path, protocol: str) -> str:
    """The listener's line begins with its protocol and ends with the address."""
    for line in lines_of(log):
        found = ADDRESS.search(line)
        if found and line.startswith(protocol):
            return found.group(1)
    raise AssertionError(f"headrace up printed no {protocol} address:\n{log_tail(log)}")
