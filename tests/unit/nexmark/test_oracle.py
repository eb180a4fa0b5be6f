"""The judge of Nexmark sees every difference, and folds what streams give as a view would."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from benchmarks.nexmark import flink_sql, oracle
from benchmarks.nexmark.generator import House
from benchmarks.nexmark.oracle import Difference, Judge
from benchmarks.nexmark.queries import QUERIES, Query

ASKED = [f"q{number}" for number in (0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 14, 15, 16, 17, 18, 19, 20, 22)]
COUNT = 2000


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge(House(), COUNT)
    yield made
    made.close()


def test_every_question_has_a_pipeline_a_judgement_and_a_text_for_flink() -> None:
    for answers in (QUERIES, oracle.SQL, flink_sql.SQL):
        assert sorted(answers) == sorted(ASKED)
    assert all(query.build.__doc__ for query in QUERIES.values())
    assert all(bool(query.key) == (query.mode != "append") for query in QUERIES.values())


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_equal_to_itself_in_any_order_and_not_to_less_or_more(judge: Judge, name: str) -> None:
    answer = judge.answer(name)
    assert answer.num_rows >= (1 if name in ("q15", "q5", "q7") else 2), "the events are enough to ask this"
    backwards = answer.take(pa.array(range(answer.num_rows - 1, -1, -1)))
    assert judge.compare(name, backwards) == answer.num_rows
    with pytest.raises(Difference, match="missing"):
        judge.compare(name, answer.slice(1))
    with pytest.raises(Difference, match="not expected"):
        judge.compare(name, pa.concat_tables([answer, answer.slice(0, 1)]))


def test_another_value_or_another_column_is_a_difference(judge: Judge) -> None:
    answer = judge.answer("q2")
    wrong = answer.set_column(1, "price", pa.array([1] * answer.num_rows))
    with pytest.raises(Difference, match="q2"):
        judge.compare("q2", wrong)
    with pytest.raises(Difference, match="columns"):
        judge.compare("q2", answer.rename_columns(["auction", "cost"]))
    assert judge.compare("q2", wrong, without=("price",)) == answer.num_rows


def test_times_with_a_zone_and_numbers_of_another_width_are_the_same_values(judge: Judge) -> None:
    answer = judge.answer("q11")
    zoned = [
        pa.field(each.name, pa.timestamp("us", "UTC") if "session" in each.name else each.type)
        for each in answer.schema
    ]
    narrow = [each if each.name != "bid_count" else each.with_type(pa.int32()) for each in zoned]
    assert judge.compare("q11", answer.cast(pa.schema(narrow))) == answer.num_rows


def folding(mode: str) -> Query:
    return Query("any", lambda: None, {}, mode, ("key",), "disk")  # type: ignore[arg-type,return-value]


def test_the_latest_row_of_each_key_is_what_an_updated_view_holds(judge: Judge) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    batches = [
        pa.table({"key": [1, 2], "value": [10, 20], "at": [at, at]}),
        pa.table({"key": [1], "value": [11], "at": [at]}),
    ]
    found = judge.folded(folding("update"), batches).select(["key", "value"]).sort_by("key")
    assert found.to_pydict() == {"key": [1, 2], "value": [11, 20]}
    assert judge.folded(folding("changes"), batches).num_rows == 2
    assert judge.folded(folding("append"), batches).num_rows == 3
