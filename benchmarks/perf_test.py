"""RabbitMQ's own load generator, PerfTest: from Maven Central, once, into the user's cache folder."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.meters import Meter
from tests.servers.process import CACHE, CannotRun

__all__ = ["Outcome", "run_perf_test"]

VERSION = "2.22.1"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>perf-test-for-benchmarks</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>com.rabbitmq</groupId><artifactId>perf-test</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
FETCH_S_MAX = 600
RUN_S_MAX = 900

TIME = re.compile(r"time (\d+\.\d+) s")
RATE = re.compile(r"(sending|receiving) rate avg: (\d+) msg/s")
LATENCY = re.compile(r"(consumer|confirm) latency min/median/75th/95th/99th (\d+)/(\d+)/(\d+)/(\d+)/(\d+) µs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What PerfTest has printed at its end, and what the broker spent meanwhile. Zero where nothing was measured.

    ``received`` is the rate times the seconds: PerfTest prints no counts.
    """

    sent_per_s: float
    received_per_s: float
    received: float
    consumer_p99_ms: float
    confirm_p99_ms: float
    broker_cpu_s: float
    broker_mb_max: float
    wall_s: float


def run_perf_test(port: int, pid: int, *arguments: str) -> Outcome:
    """One run against a broker on loopback. Its JVM's start is in ``wall_s`` and not in the rates."""
    command = ["java", "-cp", f"{_jars()}/*", "com.rabbitmq.perf.PerfTest"]
    command += ["--uri", f"amqp://guest:guest@127.0.0.1:{port}", *arguments]
    with Meter(pid, sample_memory=True) as meter:
        run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    rates = {which: float(rate) for which, rate in RATE.findall(run.stdout)}
    if run.returncode or "sending" not in rates:
        raise RuntimeError(f"PerfTest ended with {run.returncode}: {run.stdout[-1000:]}{run.stderr[-1000:]}")
    p99_ms = {which: float(p99) / 1000 for which, *_, p99 in LATENCY.findall(run.stdout)}
    return Outcome(
        sent_per_s=rates["sending"],
        received_per_s=rates.get("receiving", 0.0),
        received=rates.get("receiving", 0.0) * max(map(float, TIME.findall(run.stdout)), default=0.0),
        consumer_p99_ms=p99_ms.get("consumer", 0.0),
        confirm_p99_ms=p99_ms.get("confirm", 0.0),
        broker_cpu_s=meter.cpu_s,
        broker_mb_max=meter.resident_mb_max,
        wall_s=meter.wall_s,
    )


def _jars() -> Path:
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise CannotRun(f"PerfTest needs {program}, which is not installed")
    folder = CACHE / f"perf-test-{VERSION}"
    jars, done = folder / "jars", folder / "complete"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                _fetch(folder, jars)
                done.touch()
    return jars


def _fetch(folder: Path, jars: Path) -> None:
    (folder / "pom.xml").write_text(POM)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"Maven did not fetch PerfTest {VERSION} within {FETCH_S_MAX} s") from None
    if run.returncode:
        raise CannotRun(f"Maven could not fetch PerfTest {VERSION}: {run.stdout[-300:]}")
