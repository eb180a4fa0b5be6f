"""The only place that touches Spark's JVM: plans, file systems, listeners and blocks of rows.

PySpark has no functions for some of what we need, so it is asked for in Java, through py4j and handles that PySpark
calls private. They are all here: an upgrade of Spark is checked against this folder, and Spark Connect, which has no
JVM to ask, is refused here. Everything else of headrace uses PySpark's public interface.

``queries``      plans: which sources, stateful operators and watermarks a query has
``expressions``  which function of what a Column is
``checkpoints``  files wherever Spark can write; the state of a checkpoint given to other tasks
``driver``       progress reports as JSON; rows brought to the driver in Arrow, block by block
``scala``        what these share, and the refusal of Spark Connect
"""

from __future__ import annotations

from headrace.spark.plan.checkpoints import NotRepartitioned, SparkFiles, repartition_state
from headrace.spark.plan.driver import ProgressListener, arrow_blocks, end_process, exit_status, session_id
from headrace.spark.plan.expressions import Argument, Call, argument_of, call_of
from headrace.spark.plan.queries import (
    DESCRIPTION,
    METRIC,
    WATERMARK,
    event_times,
    graph_of,
    keeps_state,
    observed_names,
    query_sources,
    shape_of,
    streaming_sources,
)
from headrace.spark.plan.scala import CLASSIC, JvmLost, noticing_loss, refuse_connect

__all__ = [
    "CLASSIC",
    "DESCRIPTION",
    "METRIC",
    "WATERMARK",
    "Argument",
    "Call",
    "JvmLost",
    "NotRepartitioned",
    "ProgressListener",
    "SparkFiles",
    "argument_of",
    "arrow_blocks",
    "call_of",
    "end_process",
    "event_times",
    "exit_status",
    "graph_of",
    "keeps_state",
    "noticing_loss",
    "observed_names",
    "query_sources",
    "refuse_connect",
    "repartition_state",
    "session_id",
    "shape_of",
    "streaming_sources",
]
