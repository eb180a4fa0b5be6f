"""A session for ``headrace run``: Spark's talk goes to a file, and headrace goes to the executors.

Spark, the JVM and Python workers all write to the streams that the JVM inherits. So the JVM is started while standard
output and error are the log file; what this process prints itself still reaches the terminal.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import headrace
from headrace.errors import HeadraceError, UsageError
from headrace.spark.plan.driver import ending_if_cut_short
from headrace.spark.run.java import find_java
from headrace.spark.run.session import session
from headrace.spark.source.reading import BOOTSTRAP_CONF
from headrace.spark.source.registration import register

__all__ = ["LogFile", "open_session", "ship_package"]

LOG_BYTES_MAX = 64 * 1024 * 1024
SETTINGS = {
    "spark.sql.streaming.numRecentProgressUpdates": "30",  # as many as can come between two looks, and not a hundred
    "spark.sql.streaming.stopTimeout": "30s",  # a stop that hangs is reported; by default Spark waits for ever
}


SPARK_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Of PySpark: they print every mistake in a query to the terminal, as a page of JSON, and pass nothing on."""


class LogFile:
    """Where Spark's messages go. Bounded: beyond 64 MiB they move to one other file, ``….1``, and the log begins
    again."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Appending: every process that has the file open writes at its end, also after it was cut.
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(
                f"the log {path} cannot be written: {error.strerror}", "choose another: --log FILE"
            ) from error

    @contextlib.contextmanager
    def taking_output(self) -> Iterator[None]:
        """Programs started meanwhile write to the log."""
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(1), os.dup(2)]
        try:
            os.dup2(self._fd, 1)
            os.dup2(self._fd, 2)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, fd in zip((1, 2), kept, strict=True):
                os.dup2(fd, number)
                os.close(fd)

    def take_logging(self) -> None:
        """Python's own log messages of this process go there too."""
        stream = os.fdopen(os.dup(self._fd), "a", encoding="utf-8")
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        for name in SPARK_LOGGERS:
            logger = PySparkLogger.getLogger(name)
            logger.handlers.clear()
            logger.addHandler(logging.StreamHandler(stream))

    def keep_bounded(self) -> None:
        """The JVM keeps the file open, so what is in it is copied away and then cut off."""
        if os.fstat(self._fd).st_size > self._bytes_max:
            shutil.copyfile(self.path, self.path.with_name(self.path.name + ".1"))
            os.ftruncate(self._fd, 0)


def open_session(
    log: LogFile, *, master: str | None, bootstrap: str, folder: Path, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session whose workers find headrace and the modules in ``folder``. ``settings``: of Spark; they win."""
    find_java()
    archive = None if master is None or _is_one_process(master) else _archive()
    _let_workers_import(folder, *([archive] if archive else []))
    log.take_logging()
    try:
        with log.taking_output(), ending_if_cut_short():
            spark = session(
                app_name="headrace run",
                master=master,
                conf={BOOTSTRAP_CONF: bootstrap, **SETTINGS, **(settings or {})},
            )
    except HeadraceError:
        raise
    except Exception as error:
        raise HeadraceError(f"Spark did not start: {_first_line(error)}; see {log.path}") from error
    if archive is not None:
        ship_package(spark, archive)
    return spark


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _let_workers_import(*places: Path) -> None:
    """Workers on this machine inherit the environment of the JVM, and that has it from here.

    Among them is the planner of a source, which runs beside the driver in the executors' Python and which Spark gives
    none of the files that it sends to executors.
    """
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, places), *([known] if known else [])])
    # Spark starts clusters on this machine, and finds its own files, by this variable.
    if "SPARK_HOME" not in os.environ:
        import pyspark

        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)


def _is_one_process(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _archive() -> Path:
    """This very headrace as one file, so that driver and tasks never run different versions of it."""
    folder = tempfile.mkdtemp(prefix="headrace-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / "headrace.zip"
    root = Path(headrace.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, path.relative_to(root.parent))
    return target


def ship_package(spark: SparkSession, archive: Path) -> None:
    """Send headrace to the executors. Its compiled dependencies (pyarrow, cramjam …) must be installed there."""
    spark.sparkContext.addPyFile(str(archive))
    register(spark)  # again: a source takes the files along that were known when it was registered
