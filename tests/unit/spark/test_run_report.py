"""What a state record says of a pipeline: from progress reports as Spark 4.3 writes them, here shortened."""

from __future__ import annotations

from typing import Any

from headrace.spark.graph import Graph
from headrace.spark.progress import Tracker
from headrace.spark.run.report import BATCHES_MAX, PipelineReport
from headrace.spark.shape import Column, Operator, Parameter, Source

METRIC = "state windows(shop)"


def graph() -> Graph:
    made = Graph()
    orders = made.add_source(Source("headrace", "subscribe orders"))
    payments = made.add_source(Source("headrace", "subscribe payments,refunds"))
    join = made.add_operator(Operator("join of two streams"), [orders, payments], state=1)
    parameters = (Parameter("size", "60 s"),)
    windows = made.add_operator(
        Operator("windows", (Column("shop", "string"),), (), parameters), [join], state=0, metric=METRIC
    )
    made.add_sink("topic revenue", [windows], topic="revenue")
    return made


def report(batch: int, *, rows: int = 100, buckets: tuple[dict[str, int], ...] = (), late: int = 0) -> dict[str, Any]:
    second = batch % 60
    return {
        "runId": "r",
        "batchId": batch,
        "timestamp": f"2026-01-31T10:00:{second:02}.000Z",
        "numInputRows": 2 * rows,
        "durationMs": {"triggerExecution": 500, "addBatch": 400, "queryPlanning": 60, "latestOffset": 0},
        "eventTime": {"watermark": "2026-01-31T09:59:00.000Z"},
        "stateOperators": [
            {"numRowsTotal": 7, "memoryUsedBytes": 1, "numRowsUpdated": 3, "numRowsDroppedByWatermark": 0},
            {"numRowsTotal": 0, "memoryUsedBytes": 4096, "numRowsUpdated": 5, "numRowsDroppedByWatermark": 2},
        ],
        "sources": [
            _source({"payments": {"0": 5, "1": 5}, "refunds": {"0": 1}}, rows, behind=4),
            _source({"orders": {"0": 10}}, rows, behind=0),
        ],
        "sink": {"numOutputRows": 10},
        "observedMetrics": {METRIC: {"rows": 50, "late_rows": late, "buckets": list(buckets)}},
    }


def _source(end: dict[str, dict[str, int]], rows: int, *, behind: int) -> dict[str, Any]:
    latest = {topic: {part: at + behind for part, at in parts.items()} for topic, parts in end.items()}
    return {"numInputRows": rows, "endOffset": end, "latestOffset": latest}


def details(*reports: dict[str, Any]) -> dict[str, Any]:
    made = PipelineReport(graph())
    tracker = Tracker("p")
    for number, each in enumerate(reports):
        made.take(tracker.take([each], float(number)), float(number))
    return made.details(tracker.snapshot(float(len(reports)), "running"), float(len(reports)), tracker.now())


def test_a_source_is_found_by_its_topics_whatever_the_order_in_the_report() -> None:
    nodes = details(report(0, rows=100))["nodes"]
    assert nodes["n0"]["lag"] == 0, "orders"
    assert nodes["n1"]["lag"] == 12, "payments and refunds"
    assert nodes["n0"]["rows_per_s"] == nodes["n1"]["rows_per_s"] > 0


def test_rows_of_an_operator_of_spark_are_not_known_and_those_of_ours_and_the_sink_are() -> None:
    nodes = details(*[report(each) for each in range(4)])["nodes"]
    assert nodes["n2"]["rows_per_s"] is None
    assert nodes["n3"]["rows_per_s"] > nodes["n4"]["rows_per_s"] > 0


def test_what_is_held_counts_buckets_that_the_last_batch_did_not_touch() -> None:
    first = report(0, buckets=({"_bucket": 1, "keys": 5, "bytes": 50}, {"_bucket": 2, "keys": 1, "bytes": 10}))
    second = report(1, buckets=({"_bucket": 2, "keys": 3, "bytes": 30},))
    windows = details(first, second)["nodes"]["n3"]
    assert (windows["held"], windows["held_bytes"]) == (8, 80)


def test_a_number_that_spark_does_not_count_is_null_and_not_nothing() -> None:
    join = details(report(0))["nodes"]["n2"]
    assert (join["held"], join["held_bytes"], join["dropped"]) == (None, 4096, 2)


def test_late_rows_are_those_that_spark_drops_and_those_that_our_operators_see() -> None:
    assert details(report(0, late=3), report(1, late=1))["late_rows"] == 2 + 3 + 2 + 1


def test_a_record_tells_of_the_last_batches_with_the_phases_that_took_time() -> None:
    found = details(*[report(each) for each in range(BATCHES_MAX + 5)])["batches"]
    assert len(found) == BATCHES_MAX
    assert found[-1]["id"] == BATCHES_MAX + 4
    assert found[-1]["phases"] == {"addBatch": 400, "queryPlanning": 60}
    assert found[-1]["ms"] == 500


def test_before_the_first_batch_the_graph_is_there_and_nothing_else_is_known() -> None:
    found = PipelineReport(graph()).details(Tracker("p").snapshot(0.0, "starting"), 0.0, {})
    assert [each["title"] for each in found["graph"]["nodes"]] == [
        "orders",
        "payments, refunds",
        "join of two streams",
        "windows",
        "topic revenue",
    ]
    assert found["graph"]["edges"] == [["n0", "n2"], ["n1", "n2"], ["n2", "n3"], ["n3", "n4"]]
    assert (found["batches"], found["lag"], found["watermark_text"]) == ([], None, "")


def test_errors_and_restarts_are_counted_over_restarts() -> None:
    made = PipelineReport(graph())
    made.failed("the broker is away", 7, restarts=True)
    made.failed("a column is missing", 8, restarts=False)
    found = made.details(Tracker("p").snapshot(0.0, "failed"), 0.0, {})
    assert (found["restarts"], found["last_error"], found["last_error_ms"]) == (1, "a column is missing", 8)
