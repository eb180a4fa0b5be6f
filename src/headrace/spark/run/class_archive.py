"""Spark's classes in a file that every later JVM maps into memory, instead of loading them from two hundred jars.

Java calls it class-data sharing. Of the 15 seconds of processor time that a JVM takes until the first micro-batch with
state is done, 5 go into finding, reading and checking classes. ``headrace doctor --prepare-spark`` has one JVM do what
pipelines do and keep its classes when it ends; sessions use the file if it is there.

The JVM compares the file with itself and with the jars (path, size, time of change) and does without it where they
differ. So a file can be out of date, and is never wrong. What it depends on is in its name, so environments side by
side do not take each other's.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from headrace.spark.run.java import find_java

__all__ = ["JAVA_OPTIONS", "archive_options", "archive_path"]

JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Spark puts these before the extra options, which stay the user's."""


def archive_path() -> Path:
    """Where the file for this Java and this Spark is, or would be. Raises UsageError without a Java."""
    java, version = find_java()
    parts = (str(java.resolve()), ".".join(map(str, version)), str(_jars()))
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    # Not Path.home(), which raises for a user without a home, as containers have them.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cache / "headrace" / f"spark-classes-{name}.jsa"


def _jars() -> Path:
    home = os.environ.get("SPARK_HOME")
    if home is None:
        home = os.path.dirname(str(getattr(find_spec("pyspark"), "origin", "")))
    return Path(home).resolve() / "jars"


def archive_options() -> str | None:
    """The JVM's options for using the file; None where there is none."""
    path = archive_path()
    # Silent: a file that does not fit is no mistake, and the JVM would say so on the terminal.
    return f'"-XX:SharedArchiveFile={path}" -Xshare:auto -Xlog:cds*=off' if path.is_file() else None
