"""CPU and memory of processes, from the kernel's own books.

Two cores are shared by client, broker and whatever else runs. ``Meter`` therefore also says how much of the machine was
busy with something that is neither: a round with a large ``others`` is noise.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

import psutil

__all__ = ["Meter", "cpu_seconds", "resident_mb"]

SAMPLE_S = 0.05


def family(process: psutil.Process) -> list[psutil.Process]:
    """The process and its children: a broker's helpers count as broker."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads, and its children.

    The process's own clock counts nanoseconds; /proc counts hundredths of a second, too coarse for a cheap request.
    """
    own = time.clock_gettime(cpu_clock(pid))
    process = psutil.Process(pid)
    collected = process.cpu_times()
    living = 0.0
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        living += times.user + times.system
    return float(own + collected.children_user + collected.children_system + living)


def cpu_clock(pid: int) -> int:
    """The clock that clock_getcpuclockid(3) gives: the inverted process id, and in the low bits which clock."""
    return (~pid << 3) | 2


def resident_mb(pid: int) -> float:
    total = 0
    for each in family(psutil.Process(pid)):
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


def machine_busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


class Meter:
    """Watches one broker from ``__enter__`` to ``__exit__``: CPU seconds, wall seconds, the highest resident memory."""

    def __init__(self, pid: int, *, sample_memory: bool = False) -> None:
        self.pid = pid
        self.resident_mb_max = 0.0
        self._sample_memory = sample_memory
        self._ended = threading.Event()

    def __enter__(self) -> Meter:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if self._sample_memory:
            self._thread.start()
        self._busy_before = machine_busy_seconds()
        self._cpu_before = cpu_seconds(self.pid)
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall_s = time.monotonic() - self._began
        self.cpu_s = cpu_seconds(self.pid) - self._cpu_before
        self.machine_s = machine_busy_seconds() - self._busy_before
        self._ended.set()
        if self._sample_memory:
            self._thread.join()
        self.resident_mb_max = max(self.resident_mb_max, resident_mb(self.pid))

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.resident_mb_max = max(self.resident_mb_max, resident_mb(self.pid))

    def others_cores(self, client_cpu_s: float) -> float:
        """Cores kept busy by neither the broker nor its clients."""
        return max(0.0, self.machine_s - self.cpu_s - client_cpu_s) / self.wall_s
