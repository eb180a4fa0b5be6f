"""Gives the state of a stopped pipeline to another number of tasks: ``headrace run FILE.py --tasks N``.

Spark fixes with the first micro-batch how many tasks share the state of a query, and keeps to it on a machine with more
cores. It can repartition the state while the query is stopped: that is one more micro-batch in the checkpoint, without
input, whose state is the same keys in other files. Targets see that a number of a batch is left out, which their fences
allow. A repartitioning that is interrupted is finished by the next one; until then Spark refuses to run the query.

Our operators keep keys in buckets (``headrace.spark.state``), and a bucket is the work of one task. So more tasks than
buckets do nothing for them. The number of buckets is part of where a key is found, and is fixed by the checkpoint:
``headrace rebuild`` fills the target again with another number, and gives the same rows.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from headrace.errors import UsageError
from headrace.spark.plan import NotRepartitioned, repartition_state
from headrace.spark.run.checkpoints import Checkpoint
from headrace.spark.run.failures import reason

__all__ = ["rescale"]

UNFINISHED = "LAST_BATCH_FAILED"
MATCHES = "SHUFFLE_PARTITIONS_ALREADY_MATCH"


def rescale(spark: SparkSession, checkpoint: Checkpoint, tasks: int, command: str) -> int | None:
    """The number of tasks before, or None where there was nothing to do. To be called under ``state_in``."""
    before = checkpoint.state_tasks()
    if before is None:
        return None
    try:
        repartition_state(spark, checkpoint.location, tasks)
    except NotRepartitioned as error:
        if error.condition.endswith(MATCHES):
            return None
        if error.condition.endswith(UNFINISHED):
            raise UsageError(
                f"the last micro-batch of {checkpoint.shown} is not finished, so its state cannot be given to other "
                "tasks",
                f"{command} --available-now finishes it; then give --tasks {tasks} again",
            ) from error
        raise UsageError(
            f"the state of {checkpoint.shown} cannot be given to {tasks} tasks: {reason(error)}"
        ) from error
    return before
