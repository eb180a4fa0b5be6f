"""A Spark session that is set up for streams, and knows the source ``headrace``.

The profile is a table, each line with its reason. What the caller gives wins over it, and so does what is set for Spark
in its own ways (``spark-submit --conf``).
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.conf import SparkConf
from pyspark.sql import SparkSession

from headrace.errors import UsageError
from headrace.spark.listener import listen
from headrace.spark.source import HeadraceDataSource

__all__ = ["PROFILE", "STATE_STORES", "find_java", "register", "session", "state_in"]

JAVA_TIMEOUT_S = 30
JAVA_HINT = "install Java 17 or 21 (on Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
STATE_STORES = {
    "disk": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
"""Both write what changed into the checkpoint with every micro-batch; the name says where state is looked up."""

PROFILE: tuple[tuple[str, str, str], ...] = (
    (
        STATE_STORE,
        STATE_STORES["disk"],
        "state beyond the heap's size, and what transformWithState needs; Spark's default keeps state in the heap",
    ),
    (
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "true",
        "a micro-batch writes what changed and not a snapshot of everything",
    ),
    (
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows",
        "false",
        "no look for the old row before each write, only to count rows: a third less time in a join of two streams",
    ),
    (
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        "107 ms instead of 159 to 300 ms for a small micro-batch on a local disk",
    ),
    (
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_",
        str(32 << 20),
        "buffers of some MB are reused by Python workers and not faulted in anew: 15% less time to decode batches",
    ),
    ("spark.executorEnv.MALLOC_TRIM_THRESHOLD_", str(64 << 20), "the same; so much is kept at most"),
    ("spark.sql.session.timeZone", "UTC", "the same times on every machine"),
    ("spark.sql.execution.arrow.pyspark.enabled", "true", "frames go to Python in columns and not row by row"),
    ("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true", "errors show the user's lines first"),
)

LOCAL_PROFILE: tuple[tuple[str, str, str], ...] = (
    ("spark.driver.host", "127.0.0.1", "nothing listens beyond this machine unless asked to"),
    ("spark.driver.bindAddress", "127.0.0.1", "the same"),
    ("spark.ui.enabled", "false", "Spark's web pages listen on all addresses, without a password"),
    ("spark.ui.showConsoleProgress", "false", "the terminal belongs to the program"),
)
"""For a master in this process; a cluster's administrator has chosen such things."""


def session(*, app_name: str = "headrace", master: str | None = None, **conf: Any) -> SparkSession:
    """The running session, or a new one with the profile; either way the source ``headrace`` is known to it.

    Further arguments are Spark's settings with underscores for dots, or a mapping ``conf={"spark.…": …}``.
    """
    wanted = _given(conf)
    if master is not None:
        wanted["spark.master"] = master
    if SparkSession.getActiveSession() is None:
        find_java()
        wanted = {**_profile(wanted), **wanted}
    builder = SparkSession.builder.appName(app_name)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("headrace")`` known to a session that was made elsewhere, and show its queries' positions."""
    spark.dataSource.register(HeadraceDataSource)
    listen(spark)
    return spark


@contextmanager
def state_in(spark: SparkSession, where: str | None) -> Iterator[None]:
    """Queries that are started in here keep their state there (``disk``, ``memory``); where the session says if None.

    A query takes the session's settings along when it starts, and one that goes on from a checkpoint its checkpoint's.
    """
    if where is None:
        yield
        return
    before = spark.conf.get(STATE_STORE)
    spark.conf.set(STATE_STORE, STATE_STORES[where])
    try:
        yield
    finally:
        assert before is not None, STATE_STORE
        spark.conf.set(STATE_STORE, before)


def _given(conf: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in conf.items():
        entries = value if name == "conf" and isinstance(value, Mapping) else {name.replace("_", "."): value}
        for key, each in entries.items():
            found[key] = str(each).lower() if isinstance(each, bool) else str(each)
    wrong = [name for name in found if not name.startswith("spark.")]
    if wrong:
        raise UsageError(
            f"{wrong[0]!r} is no setting of Spark: they begin with 'spark.'", "session(conf={'spark.…': …})"
        )
    return found


def _profile(wanted: Mapping[str, str]) -> dict[str, str]:
    """The lines of the profile that nobody has set otherwise."""
    outside = dict(SparkConf().getAll())  # spark-submit passes its settings on this way
    master = wanted.get("spark.master") or outside.get("spark.master") or f"local[{os.cpu_count() or 2}]"
    lines = {name: value for name, value, _ in PROFILE}
    if master.startswith("local"):
        lines |= {name: value for name, value, _ in LOCAL_PROFILE}
        # Workers have what this interpreter has, headrace included. Spark takes this from the environment only.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        lines["spark.sql.shuffle.partitions"] = str(_cores(master))  # 200 tasks by default, most of them empty
    return {"spark.master": master, **{name: value for name, value in lines.items() if name not in outside}}


def _cores(master: str) -> int:
    """``local[2]`` has two, ``local[*]`` all there are, ``local-cluster[2,1,1024]`` two times one."""
    numbers = [int(each) for each in re.findall(r"\d+", master)]
    if master.startswith("local-cluster") and len(numbers) >= 2:
        return numbers[0] * numbers[1]
    return numbers[0] if numbers else (os.cpu_count() or 1)


# ---- Java ----------------------------------------------------------------------------------------------------------


def find_java() -> tuple[Path, tuple[int, ...]]:
    """The Java that Spark will use and its version, or one clear line about what is wrong with it."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise UsageError(f"Spark needs Java and {where}", JAVA_HINT)
    version = java_version(_what_java_prints(found))
    problem = wrong_version(version)
    if problem:
        raise UsageError(
            f"{found} is Java {'.'.join(map(str, version)) or 'of an unknown version'}: {problem}", JAVA_HINT
        )
    return Path(found), version


@functools.cache
def _what_java_prints(java: str) -> str:
    """Asked once: a JVM takes a while to say even this, and a run looks at it more than once."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"Spark needs Java and {java} does not run: {error}", JAVA_HINT) from error
    return done.stderr + done.stdout


def java_version(text: str) -> tuple[int, ...]:
    """From what ``java -version`` prints: ``openjdk version "17.0.12" 2024-07-16``; 1.8 is 8."""
    quoted = re.search(r'version "([\d.]+)', text)
    if quoted is None:
        return ()
    numbers = tuple(int(part) for part in quoted[1].strip(".").split("."))
    return numbers[1:] if numbers[0] == 1 and len(numbers) > 1 else numbers


def wrong_version(version: tuple[int, ...]) -> str:
    """Why Spark 4.3 should not run on it, or nothing."""
    if not version or version[0] < 17:
        return "Spark 4.3 needs 17 or newer"
    if version[0] == 25 and version < (25, 0, 3):
        return "25.0.0 to 25.0.2 compile some of Spark's loops wrongly and corrupt data"
    return ""
