"""A Spark session that is set up for streams, and knows the source ``headrace``.

The profile is a table, each line with its reason. What the caller gives wins over it, and so does what is set for Spark
in its own ways (``spark-submit --conf``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark.conf import SparkConf
from pyspark.sql import SparkSession

from headrace.errors import UsageError
from headrace.spark.plan import CLASSIC
from headrace.spark.run.class_archive import JAVA_OPTIONS, archive_options
from headrace.spark.run.java import find_java
from headrace.spark.source.registration import register
from headrace.spark.state.inspection import STATE_FORMAT

__all__ = ["PROFILE", "STATE_STORES", "session", "settings_of", "state_in"]

PYTHON = "spark.pyspark.python"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
STATE_STORES = {
    "disk": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
"""Where state is looked up. Both write what changed into the checkpoint with every micro-batch."""

FILES_NAMED_ONCE = {
    STATE_FORMAT: "2",
    FILE_MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
}
"""A faster way to write the files of a checkpoint: 107 ms instead of 159 to 300 ms for a small micro-batch on a disk.

This file manager does not replace a file that is there, and a run that died may have left the state file of the batch
that is computed again. So it goes with state files whose names are used once, which format 2 has and which only the
store on disk knows. But a checkpoint keeps the format that it began with, whatever the session says: one that another
session began would go on with a dead run's file under this manager, and its state would be damaged. So sessions have
Spark's own way, and only ``headrace run``, which looks at the checkpoint first, has this one.
"""

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
        "spark.executorEnv.MALLOC_MMAP_THRESHOLD_",
        str(32 << 20),
        "buffers of some MB are reused by Python workers and not faulted in again: 15% less time to decode batches",
    ),
    ("spark.executorEnv.MALLOC_TRIM_THRESHOLD_", str(64 << 20), "the same; so much is kept at most"),
    ("spark.sql.session.timeZone", "UTC", "the same times on every machine"),
    ("spark.sql.execution.arrow.pyspark.enabled", "true", "frames go to Python in columns and not row by row"),
    ("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true", "errors show the user's lines first"),
)

WORKER_SITE = Path(str(getattr(find_spec("headrace.spark.run.worker_site.sitecustomize"), "origin", ""))).parent

WORKER_PROFILE: tuple[tuple[str, str, str], ...] = (
    (
        "spark.executorEnv.PYTHONPATH",
        str(WORKER_SITE),
        "Python processes take PySpark from where it is installed, compiled, and not out of a zip that they compile",
    ),
    (
        "spark.python.daemon.module",
        "headrace.spark.run.worker_daemon",
        "workers are forked with their imports, which would take each of them 0.6 s of a core",
    ),
)
"""For workers on this machine that run in the Python of this process, and so have this very headrace."""

LOCAL_PROFILE: tuple[tuple[str, str, str], ...] = (
    ("spark.driver.host", "127.0.0.1", "nothing listens beyond this machine unless asked to"),
    ("spark.driver.bindAddress", "127.0.0.1", "the same"),
    ("spark.ui.enabled", "false", "Spark's web pages listen on all addresses, without a password"),
    ("spark.ui.showConsoleProgress", "false", "the terminal belongs to the program"),
)
"""For a master in this process; a cluster's administrator has chosen such things."""


def session(*, app_name: str = "headrace", master: str | None = None, **conf: Any) -> SparkSession:
    """The running session, or a new one with headrace's settings; the source ``headrace`` is registered with it.

    Further arguments are Spark's settings with underscores for dots, or a mapping ``conf={"spark.…": …}``.
    """
    wanted = _given(conf)
    if os.environ.get("SPARK_REMOTE") or "spark.remote" in wanted:
        raise UsageError("headrace needs Spark's JVM beside this process, and Spark Connect has none", CLASSIC)
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


@contextmanager
def state_in(
    spark: SparkSession, where: str | None, *, named_once: bool = False, tasks: int | None = None
) -> Iterator[None]:
    """Queries that are started in this context keep their state there (``disk``, ``memory``); None: as in the session.

    A query takes the session's settings along when it starts. One that goes on from a checkpoint has its checkpoint's
    store. ``named_once``: its state files may have names that are used once, because it has none of another kind.
    ``tasks``: so many share the state of a query that has none yet; the session's number if None.
    """
    wanted = {} if where is None else {STATE_STORE: STATE_STORES[where]}
    if tasks is not None:
        wanted[SHUFFLE_PARTITIONS] = str(tasks)
    store = wanted.get(STATE_STORE) or spark.conf.get(STATE_STORE, None)
    undecided = all(spark.conf.get(name, None) is None for name in FILES_NAMED_ONCE)
    if named_once and undecided and store == STATE_STORES["disk"]:
        wanted |= FILES_NAMED_ONCE
    with settings_of(spark, wanted):
        yield


@contextmanager
def settings_of(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """The session has these settings in this context."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, found in before.items():
            spark.conf.unset(name) if found is None else spark.conf.set(name, found)


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
        chosen = wanted.get(PYTHON) or outside.get(PYTHON) or os.environ["PYSPARK_PYTHON"]
        if chosen == sys.executable:
            lines |= {name: value for name, value, _ in WORKER_PROFILE}
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        lines[SHUFFLE_PARTITIONS] = str(_cores(master))  # 200 tasks by default, most of them empty
    classes = archive_options()
    if classes is not None:
        lines[JAVA_OPTIONS] = classes
    return {"spark.master": master, **{name: value for name, value in lines.items() if name not in outside}}


def _cores(master: str) -> int:
    """``local[2]`` has two, ``local[*]`` all there are, ``local-cluster[2,1,1024]`` two times one."""
    numbers = [int(each) for each in re.findall(r"\d+", master)]
    if master.startswith("local-cluster") and len(numbers) >= 2:
        return numbers[0] * numbers[1]
    return numbers[0] if numbers else (os.cpu_count() or 1)
