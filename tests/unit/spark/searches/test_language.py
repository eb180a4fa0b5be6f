"""The text of searches: what it means, and where an error points."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import UsageError
from headrace.spark.searches.analysis import fields_in, split_words
from headrace.spark.searches.compiling import compile_search
from headrace.spark.searches.index import SearchIndex
from headrace.spark.searches.query import SearchError
from tests.unit.spark.searches.search_world import DEFAULTS, EVENTS, EXACT

FIELDS = fields_in(EVENTS, EXACT)


def compiled(search: str | dict[str, Any], defaults: tuple[str, ...] = ("title",)) -> object:
    return compile_search(search, FIELDS, defaults)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a b", "a AND b"),
        ("a && b || c", "(a AND b) OR c"),
        ("a OR b AND c", "a OR (b AND c)"),
        ("-a +b !c", "NOT a AND b AND NOT c"),
        ("NOT NOT a", "a"),
        ("title:(a OR b)", "title:a OR title:b"),
        ("price:[* TO 3}", "price:<3"),
        ("(price:>=1 AND price:<=2)", "price:[1 TO *] AND price:[* TO 2]"),
        ("price:3", "price:[3 TO 3]"),
        ("price:>2.5", "price:>=3"),
        ("cost:<1.005", "cost:<=1.00"),
        ("listed:2026-01-02", "listed:[2026-01-02T00:00:00Z TO 2026-01-03T00:00:00Z}"),
        ("listed:>2026-01-02", "listed:>=2026-01-03"),
        ("listed:2026-01-02T10:30:00", "listed:2026-01-02T11:30:00+01:00"),
        ("title:Can't", 'title:"can t"'),
        (r"title:a\:b", 'title:"a b"'),
        (r'"say \"two\""', '"say two"'),
        ("title:ｆｌａｔ", "title:flat"),
        ("title:东京", 'title:"东 京"'),
        ("NOT (a OR b)", "NOT a AND NOT b"),
        ("a a", "a"),
        ("NOTHING", "nothing"),
        ("ORCA ANDY", "orca andy"),
        ('{"and": [{"term": "a"}, {"not": {"field": "price", "range": {"lt": 3}}}]}', "a AND NOT price:<3"),
    ],
)
def test_two_ways_to_write_the_same(one: str, other: str) -> None:
    assert compiled(one) == compiled(other)


@pytest.mark.parametrize(
    ("search", "at", "problem"),
    [
        ("", 0, "a search says something"),
        ("a AND", 5, "expected a condition here"),
        ("a OR )", 5, "unexpected"),
        ("(a b", 0, "is not closed"),
        ("a) b", 1, "unexpected"),
        ("AND a", 0, "before AND"),
        ('title:"two', 6, "is not closed"),
        ("te*st", 2, "at the end of a word"),
        ("te?t", 2, "at the end of a word"),
        ("*", 0, "needs a field"),
        ("flat~2", 4, "similar words"),
        ('"a b"^2', 5, "weights"),
        ("price:[1 5]", 9, "expected TO"),
        ("price:[1 TO 5", 13, "not closed"),
        ("price:[* TO *]", 6, "at least one end"),
        ("[1 TO 5]", 0, "needs a field"),
        ("price:", 6, "expected a word"),
        ("price:cheap", 6, "is no number"),
        ("price:[0 TO cheap]", 12, "is no number"),
        ("rating:nan", 7, "is no number"),
        ("listed:[2026-13-01 TO *]", 8, "neither a day"),
        ("furnished:perhaps", 10, "true or false"),
        ("price:9*", 6, "a prefix is for text"),
        ("title:[a TO b]", 6, "a range is for numbers"),
        ("a AND colour:red", 6, "there is no field 'colour'; the fields are title"),
        ("title:!!!", 6, "there is no word"),
        ("title:new-yo*", 6, "of one word"),
        ("*:a", 2, r"expected \* after"),
        ('{"term": ', 9, "is none"),
        ("flat AND price<900", 14, "a colon stands before a comparison: price:<900"),
        ("price=900", 5, "a colon stands before a value: price:900"),
        ("price>=900", 5, "price:>=900"),
        ("title:-flat", 6, "a negation stands before the field: -title:flat"),
        ("title:!flat", 6, "-title:flat"),
        ("title:NOT flat", 6, "NOT stands before a field: NOT title:…"),
        ("title:OR", 6, "OR stands before a field"),
        ("price < 900", 6, "a comparison stands after a field and a colon"),
        ('"net price":5', 0, "a field stands without quotes"),
    ],
)
def test_an_error_points_at_the_character(search: str, at: int, problem: str) -> None:
    with pytest.raises(SearchError, match=problem) as caught:
        compiled(search)
    assert caught.value.place == at
    assert str(caught.value).endswith(f"\n  {' ' * at}^")


@pytest.mark.parametrize(
    ("search", "path"),
    [
        ({}, "$"),
        ({"and": []}, "$.and"),
        ({"or": [{"term": "a"}, 3]}, "$.or[1]"),
        ({"not": {"term": ["a"]}}, "$.not.term"),
        ({"field": "price", "range": {"from": 1}}, "$.range"),
        ({"field": "price", "range": {"gt": 1, "gte": 2}}, "$.range"),
        ({"field": "price", "range": {"gt": "x"}}, "$.range.gt"),
        ({"range": {"gt": 1}}, "$"),
        ({"field": "colour", "term": "red"}, "$.field"),
        ({"field": "title", "term": "a", "prefix": "b"}, "$"),
        ({"field": "title", "fuzzy": "a"}, "$"),
        ({"field": "price", "exists": False}, "$.exists"),
    ],
)
def test_an_error_in_a_dict_names_the_path(search: dict[str, Any], path: str) -> None:
    with pytest.raises(SearchError) as caught:
        compiled(search)
    assert caught.value.place == path
    assert str(caught.value).startswith(f"at {path}: ")


def test_a_word_without_a_field_asks_for_any_default_field_and_needs_one() -> None:
    assert compiled("flat", DEFAULTS) == compiled("title:flat OR tags:flat")
    assert compiled("NOT flat", DEFAULTS) == compiled("NOT title:flat AND NOT tags:flat")
    with pytest.raises(SearchError, match="say which field"):
        compiled("flat", ())


def test_everything_has_a_limit() -> None:
    with pytest.raises(SearchError, match="at most 1000 conditions"):
        compiled("a OR " * 1000 + "a")
    with pytest.raises(SearchError, match="at most 32 levels"):
        compiled("(" * 40 + "a" + ")" * 40)
    with pytest.raises(SearchError, match="at most 20000 characters"):
        compiled("a" * 20_001)
    nested: dict[str, Any] = {"term": "a"}
    for _ in range(40):
        nested = {"not": nested}
    with pytest.raises(SearchError, match="at most 32 levels"):
        compiled(nested)
    assert compiled("price:<1e999999999") == compiled("price:<=9223372036854775807")


def test_words_are_runs_of_letters_digits_and_marks_in_lower_case() -> None:
    texts = ["Two rooms, can't stop—Ünïx 3.14", "", " !? ", "e\u0301te\u0301 Straße", "我住东京カタカナ", "ひらがな"]
    assert list(split_words(texts).values()) == [
        ("two", "rooms", "can", "t", "stop", "ünïx", "3", "14"),
        (),
        (),
        ("été", "straße"),
        ("我", "住", "东", "京", "カタカナ"),
        ("ひ", "ら", "が", "な"),
    ]


def test_columns_that_cannot_be_searched_are_refused_when_they_are_asked_for() -> None:
    schema = pa.schema(
        [("title", pa.string()), ("big", pa.decimal128(30, 2)), ("map", pa.map_(pa.string(), pa.int64()))]
    )
    assert list(fields_in(schema)) == ["title"]
    with pytest.raises(UsageError, match="'big' of type decimal"):
        fields_in(schema, only=["big"])
    with pytest.raises(UsageError, match="there is no column 'colour'"):
        fields_in(schema, exact=["colour"])


def found_in(column: pa.Array, search: str) -> list[int]:
    """The rows of a table with this column that match."""
    schema = pa.schema([("value", column.type)])
    index = SearchIndex(fields_in(schema), (), pa.struct([("id", pa.int64())]))
    index.put([0], [search], [1], pa.array([{"id": 0}]))
    assert index.bad == {}
    rows: list[int] = index.match(pa.Table.from_arrays([column], schema=schema)).rows.tolist()
    return rows


@pytest.mark.parametrize(
    ("search", "rows"),
    [("0.1", [0]), ("<=0.1", [0, 2]), (">0.1", [1, 3]), ("[0.1 TO 3]", [0, 1]), (">=1e39", [3]), ("1e39", [])],
)
def test_a_number_is_read_as_the_column_of_32_bits_has_it(search: str, rows: list[int]) -> None:
    column = pa.array([0.1, 2.5, -1.0, math.inf, math.nan, None], pa.float32())
    assert found_in(column, f"value:{search}") == rows


@pytest.mark.parametrize(
    ("search", "rows"),
    [(">inf", []), ("<-inf", []), (">=inf", [1]), ("<=-inf", [0]), ("<inf", [0, 2]), (">-inf", [1, 2])],
)
def test_nothing_is_beyond_the_infinite(search: str, rows: list[int]) -> None:
    assert found_in(pa.array([-math.inf, math.inf, 1.0]), f"value:{search}") == rows


def test_upper_and_lower_case_of_a_sigma_at_the_end_of_a_word_are_one() -> None:
    assert found_in(pa.array(["ΟΔΟΣ", "οδος", "οδοσ"]), "value:Οδος") == [0, 1, 2]


def test_of_a_long_search_what_is_around_the_mistake_is_shown() -> None:
    with pytest.raises(SearchError) as caught:
        compiled("(flat OR house) " * 200 + "price<5 " + "(flat OR house) " * 200)
    assert len(str(caught.value)) < 600
    _, line, mark = str(caught.value).split("\n")
    assert line[mark.index("^") :].startswith("<5")
