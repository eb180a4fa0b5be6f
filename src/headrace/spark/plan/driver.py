"""The driver beside its JVM: listeners, the process, and rows that come to it as Arrow."""

from __future__ import annotations

# ruff: noqa: N802 the names of methods are Spark's
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen, TimeoutExpired
from typing import Any

import pyarrow as pa
from pyspark import SparkContext, java_gateway
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener
from pyspark.util import _local_iterator_from_socket

from headrace.spark.plan.scala import refuse_connect

__all__ = ["ProgressListener", "arrow_blocks", "end_process", "ending_if_cut_short", "exit_status", "session_id"]

END_S_MAX = 10.0


class ProgressListener(StreamingQueryListener):
    """A listener that gets progress reports as JSON.

    PySpark makes a Python object of every progress event by hundreds of calls into the JVM, some of which look through
    all jars for a class: a quarter of what the JVM did in small micro-batches. So the event is taken as the JSON it can
    give.
    """

    _wrapped: Any = None

    @abstractmethod
    def progressed(self, text: str) -> None:
        """A micro-batch has ended; ``text`` is Spark's report."""

    @property
    def _jlistener(self) -> Any:
        """Asked for by PySpark when it adds the listener, and once more when it removes it."""
        if self._wrapped is None:
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_AsJson(self))
        return self._wrapped


class _AsJson(JStreamingQueryListener):
    """What the JVM calls."""

    def __init__(self, listener: ProgressListener) -> None:
        super().__init__(listener)
        self._listener = listener

    def onQueryProgress(self, jevent: Any) -> None:
        self._listener.progressed(str(jevent.progress().json()))


def session_id(spark: SparkSession) -> str:
    """Of the JVM's session: any number of Python's objects may stand for one of those."""
    refuse_connect(spark)
    return str(spark._jsparkSession.sessionUUID())


def exit_status(spark: SparkSession) -> int | None:
    """With which status Spark's process has ended; None while it runs, or where it is not our child."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


@contextmanager
def ending_if_cut_short() -> Iterator[None]:
    """A JVM that is started in here ends when its start fails or is interrupted.

    PySpark then removes the folder of the file by which the JVM would say where it listens. The JVM fails to write that
    file, and its other threads keep it running for ever.
    """
    started: list[Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> Popen[bytes]:
        process = Popen(*arguments, **options)
        started.append(process)
        return process

    names: Any = java_gateway
    before, names.Popen = names.Popen, start
    try:
        yield
    except BaseException:
        for process in started:
            process.terminate()
            try:
                process.wait(END_S_MAX)
            except TimeoutExpired:
                process.kill()
        raise
    finally:
        names.Popen = before


def end_process(spark: SparkSession, patience_s: float) -> None:
    """Stop the session, and wait until the JVM has done what it does at its end. A session may be started after it."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # by which it knows that nobody needs it
    gateway.proc.wait(patience_s)
    SparkContext._gateway = SparkContext._jvm = None


def arrow_blocks(frame: DataFrame, rows_max: int) -> Iterator[pa.RecordBatch]:
    """What ``toLocalIterator`` does with pickled rows, with the Arrow that ``toArrow`` collects."""
    refuse_connect(frame.sparkSession)
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    rows: Any = frame._jdf
    jvm: Any = frame.sparkSession._jvm
    settings = rows.sparkSession().sessionState().conf()
    blocks = rows.toArrowBatchRdd(rows_max, "UTC", False, False)  # a name may come twice, and no large types
    served = jvm.PythonRDD.toLocalIteratorAndServe(
        jvm.org.apache.spark.sql.execution.SQLExecutionRDD(blocks, settings),  # so that tasks know the session's
        True,  # the next partition is computed meanwhile
    )
    for block in _local_iterator_from_socket(served, NoOpSerializer()):
        yield pa.ipc.read_record_batch(pa.py_buffer(block), schema)
