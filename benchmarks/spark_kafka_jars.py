"""Spark's own Kafka connector, which PySpark does not ship: from Maven Central, once, into the user's cache folder.

The connector of the same version as Spark where it is published, else the newest that is; the results
say which one it was.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from tests.servers.process import CACHE, CannotRun

VERSIONS = (("4.3.0", "4.3.0"), ("4.2.0", "4.2.0"), ("4.2.0", "4.0.0"))
"""Of the connector and of its part for tokens, which a local read without them never calls; the first that is there."""

# Named one by one, because Spark's own description names a repository that not every machine reaches.
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "{version}"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "{tokens}"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>spark-kafka-for-benchmarks</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def connector_jars() -> tuple[str, list[Path]]:
    """(version, the connector and what it needs besides Spark). Raises CannotRun with the reason."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise CannotRun(f"Spark's Kafka connector needs {program}, which is not installed")
    reasons = []
    for version, tokens in VERSIONS:
        try:
            return version, _jars(version, tokens)
        except CannotRun as reason:
            reasons.append(str(reason))
    raise CannotRun("; ".join(reasons))


def _jars(version: str, tokens: str) -> list[Path]:
    folder = CACHE / f"spark-kafka-{version}-{tokens}"
    jars, done = folder / "jars", folder / "complete"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                _fetch(version, tokens, folder, jars)
                done.touch()
    return sorted(jars.glob("*.jar"))


def _fetch(version: str, tokens: str, folder: Path, jars: Path) -> None:
    wanted = [(group, name, number.format(version=version, tokens=tokens)) for group, name, number in ARTIFACTS]
    described = [DEPENDENCY.format(group=group, name=name, version=number) for group, name, number in wanted]
    (folder / "pom.xml").write_text(POM.format(dependencies="".join(described)))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"Maven did not fetch Spark's Kafka connector {version} within 600 s") from None
    if run.returncode != 0:
        errors = [line for line in run.stdout.splitlines() if "ERROR" in line]
        reason = errors[0] if errors else run.stdout[-300:]
        raise CannotRun(f"Maven could not fetch Spark's Kafka connector {version}: {reason}")
