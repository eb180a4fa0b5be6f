"""Builds a derived system anew from its topics, beside the one in use, and then puts it in its place.

    begin        an empty version beside the target; what an earlier attempt left is removed
    fill         the pipeline runs from the beginning of its sources into it, with a checkpoint of its own, to the end
    switch       the version takes the target's name, at one moment, with the fences of the batches that filled it
    hand over    the checkpoint of the filling becomes the pipeline's: it goes on behind the last batch that is in it

Readers see the old version, whole, until they see the new one, whole. A death before the switch leaves the old version
in use; a death behind it leaves a target that is right and a checkpoint that is older, from which the pipeline writes
changes again that are there already: by key that is no matter, and without one it is refused. The command can be given
again at any time.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import UsageError
from headrace.spark.checkpoints import Checkpoint
from headrace.spark.pipelines import Pipeline
from headrace.spark.run import Choices, Watcher, run
from headrace.spark.sinks.following import Following
from headrace.spark.sinks.target import Version

__all__ = ["rebuild"]

SUFFIX = ".rebuild"


def rebuild(spark: SparkSession, pipeline: Pipeline, choices: Choices, watcher: Watcher, stop: threading.Event) -> bool:
    """Whether the new version is in place."""
    sink, version = _version_of(pipeline)
    filling: Any = replace(sink, target=version.target)
    shadow = replace(pipeline, name=pipeline.name + SUFFIX, sink=filling)
    version.begin()
    watcher.say(f"{pipeline.name}: filling a new version of {sink.target.shown}; the old one stays in use")
    if not run(spark, [shadow], replace(choices, available_now=True, start_over=True), watcher, stop) or stop.is_set():
        watcher.say(f"{pipeline.name}: not rebuilt; {sink.target.shown} is as it was")
        return False
    version.switch()
    _hand_over(spark, pipeline, choices, shadow.name)
    watcher.say(f"{pipeline.name}: {sink.target.shown} is rebuilt and in place")
    return True


def _version_of(pipeline: Pipeline) -> tuple[Following, Version]:
    sink = pipeline.sink
    if not isinstance(sink, Following):
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


def _hand_over(spark: SparkSession, pipeline: Pipeline, choices: Choices, shadow: str) -> None:
    """Bounded pipelines have no checkpoint, and none to hand over."""
    filled = Checkpoint(spark, choices.checkpoints, shadow)
    if not filled.has_begun():
        return
    before = Checkpoint(spark, choices.checkpoints, pipeline.name)
    before.put_aside()
    shape = filled.shape()
    filled.rename(pipeline.name)
    if shape is not None:
        before.keep(replace(shape, sink=pipeline.sink.describe()))
