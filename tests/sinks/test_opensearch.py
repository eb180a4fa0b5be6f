"""OpenSearch's bulk API, against a fake that was written from its documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Refused, UsageError
from headrace.spark import sinks
from headrace.spark.sinks.following import TargetSink
from headrace.targets.opensearch import OpenSearchTarget
from headrace.targets.target import Unavailable
from tests.sinks.opensearch_fake import OpenSearch, opensearch
from tests.sinks.world import Refusals, deliver, deliver_overtaken, fence

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int64())])


@pytest.fixture
def node() -> Iterator[OpenSearch]:
    with opensearch() as running:
        yield running


def target_of(node: OpenSearch, **options: Any) -> OpenSearchTarget:
    sink = sinks.opensearch(node.url, index="products", key="id", **options)
    assert isinstance(sink, TargetSink)
    assert isinstance(sink.target, OpenSearchTarget)
    return sink.target


def names(node: OpenSearch) -> dict[str, Any]:
    return {key: document["name"] for key, document in node.documents("products").items()}


def test_documents_are_written_replaced_and_removed_and_a_replay_does_nothing(node: OpenSearch) -> None:
    target = target_of(node)
    deliver(target, [(1, "a"), (2, "b"), (3, "c")], at=fence(0), schema=SCHEMA)
    deliver(target, [(2, "x"), (2, "B"), ("-", 3), ("-", 9)], at=fence(1, first=False), schema=SCHEMA)
    assert names(node) == {"1": "a", "2": "B"}
    asked = len(node.requests)
    assert deliver(target, [(1, "again")], at=fence(1, first=False), schema=SCHEMA).replayed
    assert "POST /_bulk" not in node.requests[asked:]
    assert names(node) == {"1": "a", "2": "B"}


def test_a_batch_that_was_cut_off_is_written_again_to_the_same_end(node: OpenSearch) -> None:
    target = target_of(node)
    deliver(target, [(1, "a"), (2, "b")], at=fence(0), schema=SCHEMA)
    node.indexes["headrace-fences"].clear()
    deliver(target, [(1, "a"), (2, "b")], at=fence(0), schema=SCHEMA)
    assert names(node) == {"1": "a", "2": "b"}


def test_a_batch_planned_anew_with_another_end_replaces_what_it_wrote_before(node: OpenSearch) -> None:
    target = target_of(node)
    deliver(target, [(1, "a")], at=fence(0, "old"), schema=SCHEMA)
    deliver(target, [(1, "later"), (2, "b")], at=fence(0, "new"), schema=SCHEMA)
    assert names(node) == {"1": "later", "2": "b"}


def test_an_older_version_of_a_row_does_not_replace_a_newer_one(node: OpenSearch) -> None:
    target = target_of(node, version="n")
    deliver(target, [(1, "new", 5), (2, "old", 1)], at=fence(0), schema=SCHEMA)
    deliver(target, [(1, "late", 4), (2, "newer", 2)], at=fence(1), schema=SCHEMA)
    deliver(target, [("-", 2, None, 1)], at=fence(2), schema=SCHEMA)
    assert names(node) == {"1": "new", "2": "newer"}


def test_of_two_runs_that_claim_an_index_at_once_one_stops(node: OpenSearch) -> None:
    session = target_of(node).open()
    held = session._held(fence(0, owner="first"))
    deliver(target_of(node), [(1, "second")], at=fence(0, owner="second"), schema=SCHEMA)
    with pytest.raises(Refused, match="has taken over: second"):
        session._move(held, fence(0, owner="first"))
    session.close()


def test_a_deletion_without_a_version_counts_and_later_versions_do_too(node: OpenSearch) -> None:
    target = target_of(node, version="n")
    deliver(target, [(1, "a", 5), (2, "b", 5), (3, "unknown", None)], at=fence(0), schema=SCHEMA)
    deliver(target, [("-", 1), (2, "unknown", None)], at=fence(1), schema=SCHEMA)
    assert names(node) == {"2": "b", "3": "unknown"}
    deliver(target, [(1, "back", 7), (3, "known", 1)], at=fence(2), schema=SCHEMA)
    assert names(node) == {"1": "back", "2": "b", "3": "known"}


def test_documents_that_do_not_fit_the_mapping_are_refused_and_the_others_written(node: OpenSearch) -> None:
    node.numbers = ("name",)
    refusals = Refusals()
    outcome = deliver(target_of(node), [(1, "text"), (2, None)], at=fence(0), schema=SCHEMA, refusals=refusals)
    assert names(node) == {"2": None}
    assert [(row["id"], reason[:24]) for row, reason in refusals.rows] == [(1, "mapper_parsing_exception")]
    assert outcome.refused == 1


def test_a_node_that_is_busy_or_gone_is_told_and_takes_the_batch_later(node: OpenSearch) -> None:
    node.busy = 1
    with pytest.raises(Unavailable, match="answered 429"):
        deliver(target_of(node), [(1, "a")], at=fence(0), schema=SCHEMA)
    deliver(target_of(node), [(1, "a")], at=fence(0), schema=SCHEMA)
    assert names(node) == {"1": "a"}
    sink = sinks.opensearch("http://me:secret@127.0.0.1:1", index="products", key="id")
    assert isinstance(sink, TargetSink)
    with pytest.raises(Unavailable, match="is away") as told:
        deliver(sink.target, [(1, "a")], at=fence(0), schema=SCHEMA)
    assert "secret" not in str(told.value)


def test_a_run_that_another_has_taken_over_from_stops(node: OpenSearch) -> None:
    deliver(target_of(node), [(1, "old")], at=fence(0, owner="first"), schema=SCHEMA)
    deliver(target_of(node), [(1, "new")], at=fence(1, owner="second"), schema=SCHEMA)
    with pytest.raises(Refused, match="has taken over"):
        deliver(target_of(node), [(1, "stale")], at=fence(2, owner="first", first=False), schema=SCHEMA)
    assert names(node) == {"1": "new"}


def test_a_run_that_another_takes_over_from_in_mid_batch_stops(node: OpenSearch) -> None:
    with pytest.raises(Refused, match="has taken over: second"):
        deliver_overtaken(target_of(node), SCHEMA)
    assert names(node)["1"] == "new"


@pytest.mark.parametrize("times", [1, 2])
def test_a_new_version_takes_the_name_whether_it_is_an_index_or_an_alias(node: OpenSearch, times: int) -> None:
    target = target_of(node)
    deliver(target, [(1, "wrong"), (2, "left over")], at=fence(3, query="old"), schema=SCHEMA)
    for _ in range(times):
        version = target.version()
        version.begin("p")
        deliver(version.target, [(1, "right")], at=fence(0, query=f"new{_}"), schema=SCHEMA)
        version.switch()
    assert names(node) == {"1": "right"}
    assert len([each for each in node.indexes if each.startswith("products")]) == 1
    assert deliver(target, [(1, "x")], at=fence(0, query=f"new{times - 1}"), schema=SCHEMA).replayed


def test_a_new_version_has_the_mapping_settings_and_other_names_of_the_old_one(node: OpenSearch) -> None:
    target = target_of(node)
    deliver(target, [(1, "a")], at=fence(0))
    mapping = {"properties": {"name": {"type": "keyword"}}}
    node.made["products"] = {"mappings": mapping, "settings": {"index": {"number_of_shards": "3", "uuid": "x"}}}
    node.aliases["goods"] = "products"
    version = target.version()
    version.begin("p")
    deliver(version.target, [(1, "b")], at=fence(0, query="new"))
    version.switch()
    fresh = node.aliases["products"]
    assert node.made[fresh] == {"mappings": mapping, "settings": {"index": {"number_of_shards": "3"}}}
    assert node.aliases["goods"] == fresh


def test_an_index_that_another_pipeline_writes_is_not_rebuilt_and_an_abandoned_version_is_removed(
    node: OpenSearch,
) -> None:
    target = target_of(node)
    deliver(target, [(1, "a")], at=fence(0))
    version = target.version()
    version.begin("p")
    deliver(version.target, [(1, "b")], at=fence(0, query="new"))
    version.abandon()
    assert sorted(node.indexes) == ["headrace-fences", "products"]
    assert len(node.documents("headrace-fences")) == 1
    deliver(target, [(2, "theirs")], at=fence(0, query="other", pipeline="others"))
    with pytest.raises(UsageError, match=r"has rows of other pipelines too \(others\)"):
        target.version().begin("p")


def test_what_was_written_can_be_searched(node: OpenSearch) -> None:
    deliver(target_of(node), [(1, "strong coffee"), (2, "green tea")], at=fence(0), schema=SCHEMA)
    assert [row["id"] for row in sinks.find(node.url, index="products", text="coffee")] == [1]


@pytest.mark.parametrize("name", ["Products", "a/b", "", "a b", "x*"])
def test_a_name_that_is_none_of_an_index_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no name of an index"):
        sinks.opensearch("http://127.0.0.1:9200", index=name, key="id")


def test_a_run_whose_first_batch_is_a_replay_has_taken_over_and_goes_on(node: OpenSearch) -> None:
    target = target_of(node)
    deliver(target, [(1, "a")], at=fence(0, owner="first run"), schema=SCHEMA)
    assert deliver(target, [(1, "a")], at=fence(0, owner="second run"), schema=SCHEMA).replayed
    assert not deliver(target, [(1, "b")], at=fence(1, owner="second run", first=False), schema=SCHEMA).replayed
    with pytest.raises(Refused, match="has taken over"):
        deliver(target, [(1, "stale")], at=fence(1, "other", owner="first run", first=False), schema=SCHEMA)
