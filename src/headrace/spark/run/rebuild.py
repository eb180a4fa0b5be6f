"""Rebuilds a target from its topics: new rows are filled beside those in use, and then put in their place.

    begin        refuse what cannot be rebuilt, before anything is read; remove what an earlier attempt left
    fill         the pipeline runs from the beginning of its sources to their end, with a separate checkpoint
    switch       the new rows replace the old ones at one moment, with the fence of the batches that filled them
    hand over    the checkpoint of the filling becomes the pipeline's: it goes on after the last batch that is in it

Readers see the old rows, all of them, until they see the new ones, all of them. A death before the switch leaves the
old rows in use. A death after it leaves a target that is right and a checkpoint that is older, from which the pipeline
writes changes again that are there already: with a key that changes nothing, and without one it is refused. The command
can be given again at any time. A rebuild that fails removes what it has filled.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import UsageError
from headrace.spark.owner import PipelineRun
from headrace.spark.run.checkpoint_lock import locked
from headrace.spark.run.checkpoints import Checkpoint, HadoopFile
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.runner import Choices, Watcher, run
from headrace.spark.sinks.following import TargetSink
from headrace.spark.sinks.plain import Sink
from headrace.spark.sinks.several import Transformed
from headrace.targets.target import Target, Version

__all__ = ["check_rebuildable", "rebuild"]

SUFFIX = ".rebuild"

logger = logging.getLogger(__name__)


def rebuild(spark: SparkSession, pipeline: Pipeline, choices: Choices, watcher: Watcher, stop: threading.Event) -> bool:
    """Whether the new version is in place."""
    files = partial(HadoopFile, spark, choices.checkpoints)
    with locked(choices.checkpoints, [pipeline.name], files, watcher.say):
        return _rebuild(spark, pipeline, choices, watcher, stop)


def _rebuild(
    spark: SparkSession, pipeline: Pipeline, choices: Choices, watcher: Watcher, stop: threading.Event
) -> bool:
    sink, version = _version_of(pipeline)
    filling = _into(pipeline.sink, version.target, PipelineRun(pipeline.name))
    shadow = replace(pipeline, name=pipeline.name + SUFFIX, sink=filling)
    version.begin(pipeline.name)
    filled = Checkpoint(spark, choices.checkpoints, shadow.name)
    filled.remove()
    watcher.say(f"{pipeline.name}: filling new rows for {sink.target.shown}; the old ones stay in use")
    try:
        good = run(spark, [shadow], replace(choices, available_now=True), watcher, stop) and not stop.is_set()
        if good:
            version.switch()
    except BaseException:
        _abandon(version, filled)
        raise
    if not good:
        _abandon(version, filled)
        watcher.say(f"{pipeline.name}: not rebuilt; {sink.target.shown} is as it was")
        return False
    _hand_over(spark, pipeline, choices, filled)
    watcher.say(f"{pipeline.name}: {sink.target.shown} is rebuilt and in place")
    return True


def _abandon(version: Version, filled: Checkpoint) -> None:
    """Remove what was filled. What cannot be removed now is removed by the next rebuild."""
    for action in (version.abandon, filled.remove):
        try:
            action()
        except Exception:
            logger.warning("a rebuild that failed has left something, which the next one removes", exc_info=True)


def check_rebuildable(pipeline: Pipeline) -> None:
    """Refuse what can never be rebuilt; nothing is asked of the target."""
    _version_of(pipeline)


def _version_of(pipeline: Pipeline) -> tuple[TargetSink, Version]:
    sink = pipeline.sink
    while isinstance(sink, Transformed):
        sink = sink.sink
    if not isinstance(sink, TargetSink):
        raise UsageError(
            f"pipeline {pipeline.name!r} writes to {sink.describe()}, which cannot be rebuilt beside itself",
            "hr.sinks.sql, search, opensearch and redis(form='map') can",
        )
    version = sink.target.version()
    if version is None:
        raise UsageError(
            f"pipeline {pipeline.name!r}: {sink.target.shown} cannot be rebuilt beside itself",
            "headrace run FILE.py --start-over writes everything again into what is there",
        )
    return sink, version


def _into(sink: Any, target: Target, run: PipelineRun) -> Sink:
    """The sink with another target, for the same rows."""
    if isinstance(sink, Transformed):
        return replace(sink, sink=_into(sink.sink, target, run))
    filling: Sink = replace(sink, target=target, run=run)
    return filling


def _hand_over(spark: SparkSession, pipeline: Pipeline, choices: Choices, filled: Checkpoint) -> None:
    """Bounded pipelines have no checkpoint, and none to hand over."""
    if not filled.has_begun():
        return
    before = Checkpoint(spark, choices.checkpoints, pipeline.name)
    before.put_aside()
    shape = filled.shape()
    filled.rename(pipeline.name)
    if shape is not None:
        before.keep(replace(shape, sink=pipeline.sink.describe()))
