"""The process from which Spark's Python workers are forked, on this machine, with what they need already imported.

Spark forks a worker for every task that runs at a time and keeps it. PySpark's daemon imports nothing, so each worker
imports numpy, pyarrow, pandas and the modules of its function: 0.6 s of processor time, in a dozen workers of a few
pipelines, when everybody waits for the first result. Here the daemon has imported them before it forks, and their
memory is shared.

PySpark leaves imports to the workers because a library may start threads, and those do not survive a fork. Of these
libraries one does: the allocator jemalloc inside pyarrow, which takes care of forks itself. numpy has no threads, as
Spark sets OMP_NUM_THREADS to 1 for workers; ``preload`` does nothing where it is not so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os

from pyspark import daemon

__all__ = ["main", "preload"]

MODULES = (
    "pyspark.worker",
    "pyarrow.compute",
    "pandas",
    "headrace.spark.source.tasks",
    "headrace.spark.state.kernel",
    "headrace.spark.topic_sink.sink",
)


def preload() -> None:
    """What cannot be imported here is left to the worker, which can say for whom it wanted it."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return
    for name in MODULES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a worker collects garbage after every task, and would copy the pages that it looks at


def main() -> None:
    preload()
    daemon.manager()


if __name__ == "__main__":
    main()
