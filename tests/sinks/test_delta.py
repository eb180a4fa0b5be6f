"""Delta tables follow: appended to and merged into, a commit per batch, and a replay makes none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.errors import Refused, UsageError
from headrace.spark import sinks
from headrace.spark.sinks.following import TargetSink
from headrace.targets.changes import Changes
from headrace.targets.delta import STORE, DeltaTarget
from headrace.targets.target import Delivery, RefusedRows, Unavailable
from headrace.vocabulary import UNAVAILABLE
from tests.sinks.world import SCHEMA, Refusals, changes_of, deliver, fence


def target_at(path: Path, **options: Any) -> DeltaTarget:
    sink = sinks.delta(str(path / "table"), **options)
    assert isinstance(sink, TargetSink)
    assert isinstance(sink.target, DeltaTarget)
    return sink.target


def rows(path: Path) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(path / "table")).to_pyarrow_table()
    return sorted((row["id"], row["name"]) for row in table.to_pylist())


def test_rows_are_appended_once_however_often_the_batch_comes(tmp_path: Path) -> None:
    target = target_at(tmp_path)
    deliver(target, [(1, "a"), (1, "a")], [(2, "b", Decimal("1.50"))], at=fence(0))
    assert deliver(target, [(1, "a"), (1, "a")], at=fence(0)).replayed
    deliver(target, [(3, "c")], at=fence(1))
    assert rows(tmp_path) == [(1, "a"), (1, "a"), (2, "b"), (3, "c")]
    assert DeltaTable(str(tmp_path / "table")).transaction_version("p") == 1


def test_changes_are_merged_by_key(tmp_path: Path) -> None:
    target = target_at(tmp_path, key="id")
    deliver(target, [(1, "a"), (2, "b"), (3, "c")], at=fence(0))
    deliver(target, [(2, "x"), (2, "B"), ("-", 3)], [(4, "d"), ("-", 9)], at=fence(1))
    assert rows(tmp_path) == [(1, "a"), (2, "B"), (4, "d")]
    assert deliver(target, [(1, "again")], at=fence(1)).replayed
    assert rows(tmp_path) == [(1, "a"), (2, "B"), (4, "d")]


def test_a_batch_with_another_end_is_merged_by_key_and_refused_without(tmp_path: Path) -> None:
    keyed = target_at(tmp_path / "keyed", key="id")
    deliver(keyed, [(1, "a")], at=fence(0, "old"))
    deliver(keyed, [(1, "a"), (2, "b")], at=fence(0, "new"))
    assert rows(tmp_path / "keyed") == [(1, "a"), (2, "b")]
    added = target_at(tmp_path / "added")
    deliver(added, [(1, "a")], at=fence(0, "old"))
    with pytest.raises(Refused, match="would double"):
        deliver(added, [(1, "a"), (2, "b")], at=fence(0, "new"))


def test_columns_are_added_only_on_request(tmp_path: Path) -> None:
    wider = SCHEMA.append(pa.field("city", pa.string()))
    for key in ((), "id"):
        place = tmp_path / (str(key) or "added")
        deliver(target_at(place, key=key), [(1, "a")], at=fence(0))
        with pytest.raises(UsageError, match="widen=True"):
            deliver(target_at(place, key=key), [(2, "b", None, "Bern")], at=fence(1), schema=wider)
        deliver(target_at(place, key=key, widen=True), [(2, "b", None, "Bern")], at=fence(1), schema=wider)
        table = DeltaTable(str(place / "table")).to_pyarrow_table().to_pylist()
        assert {row["id"]: row["city"] for row in table} == {1: None, 2: "Bern"}


def test_a_run_whose_first_batch_is_a_replay_has_taken_over_and_goes_on(tmp_path: Path) -> None:
    target = target_at(tmp_path, key="id")
    deliver(target, [(1, "a")], at=fence(0, owner="first run"))
    assert deliver(target, [(1, "a")], at=fence(0, owner="second run")).replayed
    assert not deliver(target, [(1, "b")], at=fence(1, owner="second run", first=False)).replayed
    with pytest.raises(Refused, match="has taken over"):
        deliver(target, [(1, "stale")], at=fence(1, "other", owner="first run", first=False))


def test_refused_rows_are_sent_before_the_batch_counts(tmp_path: Path) -> None:
    """A replay of a batch that is there sends nothing, so what was not sent before would be lost."""
    target = target_at(tmp_path)
    with pytest.raises(Unavailable, match="no answer"):
        deliver(target, [(1, UNAVAILABLE), (2, "b")], at=fence(0), refusals=Unreachable())
    refusals = Refusals()
    assert deliver(target, [(1, UNAVAILABLE), (2, "b")], at=fence(0), refusals=refusals).refused == 1
    assert [row["id"] for row, _ in refusals.rows] == [1]
    assert rows(tmp_path) == [(2, "b")]


def test_an_error_of_the_rows_is_told_as_it_is_and_nothing_is_added(tmp_path: Path) -> None:
    """The error says whether a restart helps, and the library would hide it in its own error."""

    def chunks() -> Iterator[Changes]:
        yield changes_of([(1, "a")])
        raise Unavailable("the source is away")

    session = target_at(tmp_path).open()
    with pytest.raises(Unavailable, match=r"^the source is away$"):
        session.write(Delivery(SCHEMA, chunks(), RefusedRows("t"), fence(0)))
    with pytest.raises(Refused, match=r"^t does not take a row"):
        session.write(Delivery(SCHEMA, iter([changes_of([(1, UNAVAILABLE)])]), RefusedRows("t"), fence(0)))
    assert rows(tmp_path) == []


class Unreachable(Refusals):
    def send(self, refused: Sequence[tuple[pa.Table, str]]) -> None:
        raise Unavailable("no answer")


@pytest.mark.parametrize(
    ("text", "heals"),
    [
        ("Generic S3 error: Error performing PUT http://store/x in 30s: connection refused", True),
        ("Generic HTTP client error: timed out", True),
        ("Kernel error: Error interacting with object store: no answer", True),
        ("Generic DeltaTable error: Schema error: No field named t.nope", False),
        ("Generic error: the writer is not supported", False),
    ],
)
def test_a_store_that_is_away_is_told_from_a_table_that_does_not_fit_by_the_text(text: str, heals: bool) -> None:
    """The library has one error for both."""
    assert bool(STORE.search(text)) is heals
