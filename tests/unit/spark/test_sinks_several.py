"""What is known of a pipeline with several sinks. No JVM is started."""

from __future__ import annotations

import headrace.spark as hr
from headrace.spark.owner import PipelineRun
from headrace.spark.sinks.following import TargetSink
from headrace.spark.sinks.several import SeveralSinks, several


def test_refused_rows_of_all_sinks_are_counted_together_and_each_takes_its_target_over_by_itself() -> None:
    run = PipelineRun("shop")
    table = hr.sinks.sql("sqlite:///x.db", table="t", dead_letters="refused")
    made = several([table, hr.sinks.redis("redis://x", name="t", key="id")]).for_run(run)
    assert isinstance(made, SeveralSinks)
    one, other = made.sinks
    assert isinstance(one, TargetSink)
    assert isinstance(other, TargetSink)
    assert one.run is not None
    assert other.run is not None
    one.run.refused(2)
    other.run.refused(3)
    one.run.has_written = True
    assert run.dead_letters == 5, "what the state of the pipeline shows"
    assert not other.run.has_written, "its first batch has to take the target over"
    assert one.run.owner == other.run.owner == run.owner


def test_the_topics_of_several_sinks_are_known() -> None:
    results = hr.sinks.topic("results")
    table = hr.sinks.sql("sqlite:///x.db", table="t", dead_letters="refused")
    both = several([table, results.transform(lambda rows: rows)])
    assert (both.results_topic, both.dead_letters_topic) == ("results", "refused")
    kept = table.transform(lambda rows: rows)
    assert (kept.results_topic, kept.dead_letters_topic) == ("", "refused")
