"""A driver of Spark as a session of processes, of which each can be found and killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.servers.process import log_tail

__all__ = ["CLUSTER", "LOCAL", "Life", "LifeEnded"]

ROOT = Path(__file__).parents[2]
LOCAL = "local[2,4]"
"""Two tasks at a time; a task may fail three times before its query does."""
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors in processes of their own."""
START_TIMEOUT_S = 240.0

WORKERS = ("pyspark.daemon", "pyspark.worker", "headrace.spark.run.worker_daemon")


class LifeEnded(Exception):
    """The driver ended by itself."""


class Life:
    """One driver, from its start to its end. Everything it starts is in the same session of the operating system."""

    def __init__(self, log: Path, command: Sequence[str], *, master: str = LOCAL, **environment: str) -> None:
        self.master = master
        self.log = log
        with log.open("wb") as output:
            # A file and no pipe: processes that outlive a killed driver would keep a pipe open.
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def wait_until_running(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while " running\n" not in self.text():
            self.check()
            if time.monotonic() > deadline:
                raise LifeEnded(f"the driver was not ready within {START_TIMEOUT_S:g} s:\n{log_tail(self.log)}")
            time.sleep(0.05)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def check(self) -> None:
        if self.child.poll() is not None:
            raise LifeEnded(f"the driver ended by itself with {self.child.returncode}:\n{log_tail(self.log)}")

    # ---- its processes ----------------------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """The command lines of everything that is alive, by process id."""
        found: dict[int, str] = {}
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess, psutil.AccessDenied):
                if os.getsid(pid) == self.child.pid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    found[pid] = " ".join(psutil.Process(pid).cmdline())
        return found

    def pick(self, part: str, chance: random.Random) -> list[int]:
        """Which processes a kill of that part of Spark hits; none when there is none at the moment."""
        alive = self.processes()
        java = [pid for pid, line in alive.items() if "PythonGatewayServer" in line or "SparkSubmit" in line]
        executors = [pid for pid, line in alive.items() if "CoarseGrainedExecutorBackend" in line]
        others = {*java, *executors}  # the settings on the JVM's command line name the workers' module too
        workers = [pid for pid, line in alive.items() if pid not in others and any(each in line for each in WORKERS)]
        if part == "driver":
            return [*java, self.child.pid]
        if part == "driver-python":
            return [self.child.pid]
        if part == "machine":
            return list(alive)
        candidates = executors if part == "executor" else workers
        return [chance.choice(candidates)] if candidates else []

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.child.pid in pids:
            self.child.wait()

    # ---- its end ----------------------------------------------------------------------------------------------------

    def stop(self, timeout_s: float = 60.0) -> None:
        """As a user would, by closing its input; then by force, and with whatever it has left."""
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(timeout_s)
        self.close()

    def close(self) -> None:
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        while alive := self.processes():
            self.kill(list(alive))
            time.sleep(0.05)
        self.child.wait()
