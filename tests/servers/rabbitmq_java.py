"""RabbitMQ's Java client from Maven Central."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.servers.process import CACHE, CannotRun

CLIENT_VERSION = "5.23.0"
FETCH_S = 300

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>rabbitmq-client-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.rabbitmq</groupId><artifactId>amqp-client</artifactId><version>{CLIENT_VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def rabbitmq_client_jars() -> Path:
    """The folder with the jars; fetches them on first use. Raises CannotRun with the reason."""
    folder = CACHE / f"rabbitmq-client-{CLIENT_VERSION}"
    jars, done = folder / "jars", folder / "complete"
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise CannotRun(f"RabbitMQ's Java client needs {program}, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once fetch once
        if not done.exists():
            (folder / "pom.xml").write_text(POM)
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_S, check=False)
            if run.returncode != 0:
                raise CannotRun(f"Maven could not fetch RabbitMQ's Java client: {run.stdout[-300:]}")
            done.touch()
    return jars
