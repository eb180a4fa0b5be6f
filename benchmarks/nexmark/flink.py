"""Flink beside headrace: its own environment from PyPI, Flink's Kafka connector, and a child that runs queries.

Both come once, into the user's cache folder: the wheels by pip, the connector by Maven, each with the user's own
settings (mirrors, proxies). Where they cannot be had the reason is printed, and the table has one column less.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from benchmarks.meters import cpu_seconds
from benchmarks.nexmark.flink_sql import SETTINGS, SQL, setup
from benchmarks.nexmark.generator import side_input
from benchmarks.nexmark.load import Loaded
from tests.servers.process import CACHE, CannotRun

__all__ = ["CONNECTOR_VERSION", "FLINK_VERSION", "Flink", "Job", "flink", "prepare"]

FLINK_VERSION = "2.2.1"
CONNECTOR_VERSION = "5.0.0-2.2"
CONNECTOR = "flink-sql-connector-kafka"
PYTHONS = ((3, 9), (3, 12))
"""The oldest and newest Python that this Flink runs on."""
INSTALL_S = 1200
JOB = Path(__file__).with_name("flink_job.py")


def prepare() -> tuple[Path, Path]:
    """(its Python, its connector), made on first use. Raises CannotRun with the reason."""
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise CannotRun(f"Flink {FLINK_VERSION} runs on Python 3.9 to 3.12, and this is {sys.version.split()[0]}")
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise CannotRun(f"Flink needs {program}, which is not installed")
    folder = CACHE / f"flink-{FLINK_VERSION}-{CONNECTOR_VERSION}"
    python, jar = folder / "venv" / "bin" / "python", folder / "jars" / f"{CONNECTOR}-{CONNECTOR_VERSION}.jar"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            print(f"installing Flink {FLINK_VERSION} under {folder}, once", file=sys.stderr)
            _install(folder, python, jar)
            (folder / "complete").touch()
    return python, jar


def _install(folder: Path, python: Path, jar: Path) -> None:
    artifact = f"-Dartifact=org.apache.flink:{CONNECTOR}:{CONNECTOR_VERSION}:jar"
    place = [f"-DoutputDirectory={jar.parent}", "-Dmdep.stripClassifier=true", "-Dtransitive=false"]
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [str(python), "-m", "pip", "install", "--quiet", f"apache-flink=={FLINK_VERSION}"],
        ["mvn", "-q", "-B", "dependency:copy", artifact, *place],
    ):
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            raise CannotRun(f"{command[0]} did not end within {INSTALL_S} s") from None
        if done.returncode != 0:
            told = (done.stderr or done.stdout).strip()[-500:]
            raise CannotRun(f"Flink could not be installed; {' '.join(command[:4])} says: {told}")


class Job(NamedTuple):
    """What a query took: from the statement that starts it to its end, what Flink calls its net runtime, and the
    processor seconds of all of Flink."""

    seconds: float
    net_seconds: float
    cpu_seconds: float


class Flink:
    """A child process with Flink in it. One query at a time."""

    def __init__(self, python: Path, log: Path, bootstrap: str, side: Path) -> None:
        self.log = log
        self._bootstrap = bootstrap
        self._side = side
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [str(python), str(JOB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
            )

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(task) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise CannotRun(f"Flink ended with {self._child.wait()}: {self.log.read_text(errors='replace')[-1500:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CannotRun(f"Flink says: {answer['error']}")
        return answer

    def answer(self, name: str) -> pa.Table:
        return self.answer_to(SQL[name])

    def answer_to(self, sql: str) -> pa.Table:
        """The result of a query in the end, all columns as text."""
        found = self.ask({"sql": sql, "keep": True})
        rows = [row[:-1] for row in found["rows"] for _ in range(row[-1])]
        columns = list(zip(*rows, strict=True)) or [()] * len(found["columns"])
        texts = [pa.array(each, pa.string()) for each in columns]
        return pa.Table.from_arrays(texts, names=found["columns"])

    def read(self, loaded: Loaded, columns: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """From now on the tables are these topics, with these columns of each kind, or all of them."""
        self.ask({"setup": setup(self._bootstrap, loaded, str(self._side), columns)})

    def measure(self, name: str) -> Job:
        return self.measure_of(SQL[name])

    def measure_of(self, sql: str) -> Job:
        before = cpu_seconds(self._child.pid)
        found = self.ask({"sql": sql, "keep": False})
        return Job(float(found["seconds"]), float(found["net_s"]), cpu_seconds(self._child.pid) - before)

    def end(self) -> None:
        """Its JVM ends with the child's input."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


@contextmanager
def flink(bootstrap: str, loaded: Loaded, folder: Path) -> Iterator[Flink]:
    """Flink with the topics as its tables."""
    python, jar = prepare()
    side = folder / "side.csv"
    pyarrow.csv.write_csv(side_input(), side, pyarrow.csv.WriteOptions(include_header=False))
    running = Flink(python, folder / "flink.log", bootstrap, side)
    try:
        printed = tempfile.mkstemp(dir=folder, prefix="printed-")
        os.close(printed[0])
        settings = {**SETTINGS, "execution.checkpointing.dir": (folder / "flink-checkpoints").as_uri()}
        running.ask({"jar": str(jar), "printed": printed[1], "settings": settings})
        running.read(loaded)
        yield running
    finally:
        running.end()
