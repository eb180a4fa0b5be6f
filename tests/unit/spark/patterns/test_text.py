"""What is wrong in the text of a pattern is shown where it is, and a pattern explains itself."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from headrace.errors import UsageError
from headrace.spark.patterns.clauses import Piece, parse_clauses
from headrace.spark.patterns.explanation import explain_pattern
from headrace.spark.patterns.expressions import Columns, Reader
from headrace.spark.patterns.fluent import pattern
from headrace.spark.patterns.outcome import TIME
from headrace.spark.patterns.stored import Limits, PatternProblem, compile_stored
from headrace.spark.patterns.syntax import (
    Choice,
    Exclusion,
    PatternSyntaxError,
    Repeat,
    Sequence,
    Variable,
    parse_pattern,
)
from tests.unit.spark.patterns.world import Matching

HEAD = "PARTITION BY user ORDER BY at "
ROWS = pa.schema([("user", pa.string()), ("at", TIME), ("amount", pa.float64())])


def test_what_is_no_text_is_refused() -> None:
    for given in (None, b"PATTERN (A)"):
        with pytest.raises(UsageError, match="which is no text"):
            parse_clauses(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "marked", "said"),
    [
        (HEAD + "PATTERN (A + + B)", "+ B", "'+' was not expected here"),
        (HEAD + "PATTERN (A (B)", "(A", "never closed"),
        (HEAD + "PATTERN (A B{3,2})", "{3,2}", "allows no number of rows"),
        (HEAD + "PATTERN (A) DEFINE X AS amount > 1", "X AS", "X is not in the pattern; its variables are A"),
        (HEAD + "PATTERN (A) DEFINE A AS amount >", "", "not complete"),
        (HEAD + "PATTERN (A) DEFINE A amount > 1", "A amount", "'NAME AS condition'"),
        (HEAD + "MEASURES amount PATTERN (A)", "amount", "there is no AS"),
        (HEAD + "AFTER MATCH SKIP TO LAST X PATTERN (A)", "X PATTERN", "X is not in the pattern; its variables are A"),
        (HEAD + "AFTER MATCH SKIP TO X PATTERN (A)", "X PATTERN", "X is not in the pattern; its variables are A"),
        (HEAD + "AFTER MATCH SKIP TO LAST PATTERN (A)", "TO LAST", "expected PAST LAST ROW"),
        (HEAD + "PATTERN A B+ DEFINE A AS amount > 1", "PATTERN A", "the pattern stands in parentheses"),
        ("\n  PARTITON BY user ORDER BY at PATTERN (A)", "PARTITON", "expected PARTITION BY"),
        (HEAD + "PATTERN (A) WITHIN soon", "soon", "expected WITHIN INTERVAL"),
        (HEAD + "PATTERN (A) SUBSET U = (X)", "X)", "X is not in the pattern"),
        (HEAD + "PATTERN (A) PATTERN (B)", "PATTERN (B)", "for the second time"),
        ("PARTITION BY user PATTERN (A)", "PARTITION", "there is no ORDER BY"),
        (HEAD + "PATTERN (A B) DEFINE B AS md5(A.amount) > 'x'", "md5", "cannot be computed over matched rows"),
        (HEAD + "PATTERN (A B) DEFINE B AS md5(A.amount) > 'x'", "md5", "and of one row before: LAST(MD5(A.amount))"),
        (HEAD + "PATTERN (A B) DEFINE B AS SUM(A.amount + B.amount) > 1", "A.amount + B", "several variables at once"),
        (HEAD + "PATTERN (A B) DEFINE B AS LAST(A.amount, 101) > 1", "LAST", "at most 100 rows"),
        (HEAD + "PATTERN (A B)) DEFINE B AS amount > 5", ") DEFINE", "this ) closes nothing"),
        (HEAD + "PATTERN (A B) DEFINE B AS FINAL LAST(A.amount) > 1", "FINAL", "FINAL is for measures"),
        (HEAD + "PATTERN (A B) DEFINE B AS 1 < FINAL SUM(A.amount)", "FINAL", "FINAL is for measures"),
        (HEAD + "PATTERN (A B) DEFINE B AS PREV(FINAL LAST(A.amount)) > 1", "PREV", "FINAL is for measures"),
        (HEAD + "PATTERN (A) DEFINE A AS LN(amount)) > 1", ") > 1", "this ) closes nothing"),
        (HEAD + "PATTERN (A) DEFINE A AS amount IN (1, 2", "(1, 2", "never closed"),
        (f"MATCH_RECOGNIZE ({HEAD} PATTERN (A)", "(PARTITION", "never closed"),
        (f"MATCH_RECOGNIZE ({HEAD} PATTERN (A)) AS m WHERE x > 1", "AS m", "but AS and a name"),
        (HEAD + "PATTERN (A) DEFINE A AS kind = 'x", "'x", "this ' is never closed"),
        (HEAD + "PATTERN (A |)", ")", "expected a variable or a group after |"),
        (HEAD + "PATTERN (PERMUTE A B)", "A B", "expected ( after PERMUTE"),
        (HEAD + "PATTERN (A{0})", "{0}", "{0} allows no number of rows"),
        (HEAD + "ONE ROW PER MATCH SHOW EMPTY MATCHES PATTERN (A)", "SHOW", "not expected after ONE ROW PER MATCH"),
        (HEAD + "ALL ROWS PER MATCH ONE ROW PER MATCH PATTERN (A)", "ONE ROW", "expected one of them"),
        (HEAD + "ONE ROW PER MATCH ALL ROWS PER MATCH PATTERN (A)", "ALL ROWS", "expected one of them"),
        (HEAD + "ALL ROWS PER MATCH WITH PATTERN (A)", "WITH", "expected SHOW EMPTY MATCHES"),
        (HEAD + "PATTERN (A) WITHIN INTERVAL '5' FORTNIGHT", "INTERVAL '5'", "is no duration"),
        (HEAD + "PATTERN (A) WITHIN '99999999999 days'", "'99999999999 days'", "is longer than 10,000 years"),
        (HEAD + "PATTERN (A B) SUBSET U = (A, X)", "X)", "X is not in the pattern"),
        (HEAD + "PATTERN (A B) SUBSET A = (A, B)", "A = (", "A is a variable of the pattern"),
        (HEAD + "PATTERN (A B) SUBSET U = (A), U = (B)", "U = (B)", "U is a subset already"),
        (HEAD.replace("at ", "at, amount NULLS FIRST ") + "PATTERN (A)", "NULLS", "null is last"),
        (HEAD + "MEASURES amount AS a b PATTERN (A)", "a b", "'a b' is no name of a measure"),
        (HEAD + "PATTERN (A B) DEFINE A AS amount > 1 B AS amount < 2", "AS amount < 2", "'AS' was not expected here"),
        (HEAD + "PATTERN (A) DEFINE A AS amount > 1 amount", "amount", "'amount' was not expected here"),
        (HEAD + "PATTERN (A) DEFINE A AS (one two.amount > 1)", ".amount", "'.' was not expected here; expected )"),
        (HEAD + "MEASURE A.amount AS x PATTERN (A)", "MEASURE A", "'MEASURE' was not expected here; expected a comma"),
        (HEAD + "PATERN (A) DEFINE A AS amount > 1", "PATERN", "'PATERN' was not expected here"),
        ("PARTITION BY user ODER BY at PATTERN (A)", "ODER", "'ODER' was not expected here"),
        ("PARTITION BY my-key ORDER BY at PATTERN (A)", "my-key", "in backticks"),
        (HEAD + "PATTERN (A) WITHIN '5 minutes' DEFIN A AS amount > 1", "DEFIN", "'DEFIN' was not expected after the"),
        (HEAD + "PATTERN (A) WITHIN INTERVAL '5' MINUTE DEFIN A AS x", "DEFIN", "'DEFIN' was not expected after the"),
        (HEAD + "PATTERN () DEFINE A AS amount > 1", "A AS", "its variables are none"),
        ("PARTITION BY define ORDER BY at PATTERN (A) DEFINE A AS x", "DEFINE A", "a column of that name stands in"),
        (HEAD + "MEASURES SUM(amount) FILTER (WHERE amount > 1) AS x PATTERN (A)", "SUM", "there is no FILTER here"),
        (HEAD + "MEASURES SUM(amount) OVER () AS x PATTERN (A)", "SUM", "there is no OVER here"),
        (HEAD + "MEASURES A.* AS x PATTERN (A)", "*", "* is for COUNT(*)"),
        (
            HEAD + "PATTERN (A B) DEFINE B AS B.select > A.amount",
            "",
            "a name that is a word of SQL stands in backticks",
        ),
        (f"{HEAD} PATTERN ({'(' * 300}A{')' * 300})", "", "groups stand inside each other 50 times at most"),
        (f"{HEAD} PATTERN (A B) DEFINE B AS {'(' * 600}A.amount{')' * 600} > 1", "", "nested too deeply"),
        (f"{HEAD} PATTERN (A B) DEFINE B AS {' OR '.join(['A.amount > 1'] * 3000)}", "", "nested too deeply"),
        (HEAD + "PATTERN (A B) DEFINE B AS amount > 0 AND PREV(A.amount, x) > 1", "x) > 1", "is a number of rows"),
        (HEAD + "PATTERN (A B) DEFINE B AS\n amount > 0 AND\n md5(A.amount) > 'x'", "md5", "cannot be computed"),
    ],
)
def test_a_mistake_is_shown_at_its_place(text: str, marked: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Matching(text)
    shown = str(refused.value).splitlines()
    assert said in shown[0]
    if marked:
        place = next(index for index, line in enumerate(shown) if line.strip() == "^")
        assert shown[place - 1][shown[place].index("^") :].startswith(marked)


def test_the_tree_of_a_pattern() -> None:
    a, b = Variable("A"), Variable("B")
    assert parse_pattern("a B") == Sequence((a, b))
    assert parse_pattern("A | B") == Choice((a, b))
    assert parse_pattern("(A B)+?") == Repeat(Sequence((a, b)), 1, None, greedy=False)
    assert parse_pattern("{- A -} B{2,}") == Sequence((Exclusion(a), Repeat(b, 2, None)))
    assert parse_pattern("PERMUTE(A, B)") == Choice((Sequence((a, b)), Sequence((b, a))))


def test_the_text_may_stand_in_the_words_of_sql() -> None:
    clauses = parse_clauses("MATCH_RECOGNIZE (PARTITION BY `my key` ORDER BY at, seq DESC PATTERN (A) -- done\n)")
    assert clauses.partition == ("my key",)
    assert clauses.order == (("at", "ascending"), ("seq", "descending"))


def test_comments_may_stand_anywhere() -> None:
    text = """
        PARTITION BY user -- WITHIN '1 day'
        /* ORDER BY amount
           PATTERN (B) */
        ORDER BY at
        PATTERN (A /* first */ + B -- then
        )
        DEFINE A AS amount > 1 /* , B AS x */, B AS B.kind = '/* no comment */' AND B.amount > A.amount - -1"""
    clauses = parse_clauses(text)
    assert clauses.order == (("at", "ascending"),)
    assert clauses.pattern == Sequence((Repeat(Variable("A"), 1, None), Variable("B")))
    assert [name for name, _ in clauses.define] == ["A", "B"]
    assert clauses.text.index("DEFINE") == text.index("DEFINE")
    assert "'/* no comment */'" in clauses.define[1][1].text
    with pytest.raises(UsageError, match="'/' means nothing"):
        parse_clauses(HEAD + "PATTERN (A /* never closed )")


def test_a_pattern_explains_itself_as_text_and_as_a_picture() -> None:
    wanted = (
        pattern("a").where("amount > 1").not_followed_by("c").followed_by("b").where("amount < 3").within("5 minutes")
    )
    assert explain_pattern(wanted).splitlines() == [
        "start → 1 (a)",
        "1: a  when amount > 1 → 2 (… b, no c before)",
        "2: … b, no c before  when amount < 3 → match",
        "all within 5 minutes of the first row",
    ]
    picture = explain_pattern(HEAD + "PATTERN (A+ B) DEFINE A AS amount > 1", form="svg")
    assert picture.startswith("<svg")
    assert picture.count("<rect") == 5
    assert 'class="first"' in picture


DIGITS = "9" * 5_000
"""More than Python turns into a number."""


@pytest.mark.parametrize(
    ("text", "marked", "said"),
    [
        (f"PATTERN (A{{{DIGITS}}})", DIGITS, "repetitions are too many"),
        (f"PATTERN (A B) WITHIN INTERVAL '{DIGITS}' MINUTE", "", "longer than 10,000 years"),
        (f"PATTERN (A B) DEFINE B AS amount > PREV(amount, {DIGITS})", DIGITS, "PREV looks at most 1,000,000 rows"),
        ("PATTERN (A B) DEFINE B AS amount > NEXT(amount, 1000001)", "1000001", "NEXT looks at most 1,000,000 rows"),
        (f"PATTERN (A B) DEFINE B AS B.at < A.at + INTERVAL '{DIGITS}' DAY", "", "64 bits"),
        ("PATTERN (A B) DEFINE B AS B.at < A.at + INTERVAL '999999999999' DAY", "", "64 bits"),
    ],
    ids=["repetitions", "within", "digits of rows", "rows", "digits of an interval", "interval"],
)
def test_a_number_that_is_too_large_is_refused_where_it_stands(text: str, marked: str, said: str) -> None:
    """Of a stored pattern too: whatever is wrong with it, the query goes on without it."""
    with pytest.raises(PatternSyntaxError, match=said) as caught:
        Matching(HEAD + text)
    assert marked[:50] in str(caught.value)
    stored = text if "WITHIN" in text else text.replace(")", ") WITHIN '5 minutes'", 1)
    with pytest.raises(PatternProblem, match=said):
        compile_stored("p", stored, ROWS, Limits(partials_max=10))


def test_a_stored_pattern_may_have_numbers_of_any_length() -> None:
    text = f"PATTERN (A B) WITHIN '5 minutes' DEFINE B AS B.amount < A.amount + {DIGITS}"
    compile_stored("p", text, ROWS, Limits(partials_max=10))
    document = f'{{"parts": [{{"name": "a", "times": [1, {DIGITS}]}}], "within": "5 minutes"}}'
    with pytest.raises(PatternProblem, match="too many digits"):
        compile_stored("p", document, ROWS, Limits(partials_max=10))


def test_of_a_long_line_what_is_around_the_mistake_is_shown() -> None:
    with pytest.raises(PatternSyntaxError) as caught:
        parse_pattern("A " * 500 + "+ + " + "B " * 500)
    _, line, mark = str(caught.value).split("\n")
    assert len(line) < 210
    assert line.strip().startswith("…")
    assert line.strip().endswith("…")
    assert line[mark.index("^") :].startswith("+ B")


def test_names_may_have_letters_of_any_language() -> None:
    clauses = parse_clauses(
        "PARTITION BY größe ORDER BY zeit MEASURES Ärger.größe AS höhe PATTERN (Ärger) DEFINE Ärger AS größe > 1"
    )
    assert clauses.partition == ("größe",)
    assert clauses.pattern == Variable("ÄRGER")
    assert [name for name, _ in clauses.measures] == ["höhe"]
    assert Reader("größe > 1", {}, Columns()).split("Ä", Piece("größe > 1", 0)) == ("(`größe` > 1)", None)


@pytest.mark.parametrize(
    "sql",
    [
        r"'O\'Brien'",
        "LOG10(`x`)",
        "PARSE_JSON(`x`)",
        "TO_CHAR(`x`, '99.9')",
        "UNIX_DATE(`x`)",
        "LOCALTIMESTAMP()",
        "DATEDIFF(HOUR, `x`, `y`)",
        "TRANSFORM(`x`, e -> e + 1)",
        "REGEXP_REPLACE(`x`)",
    ],
)
def test_what_spark_computes_reaches_it_as_it_was_written(sql: str) -> None:
    assert Reader(sql, {}, Columns()).split("A", Piece(sql, 0)) == (f"({sql})", None)


def test_a_doubled_quote_in_a_text_is_one_quote() -> None:
    columns = Columns()
    for text in ("name = 'O''Brien'", 'name = "O\'Brien"', "name = 'O\\'Brien'"):
        assert Reader(text, {}, columns).split("A", Piece(text, 0)) == ("(name = 'O\\'Brien')", None)


def test_an_expression_of_150_alternatives_can_be_computed() -> None:
    Matching(f"{HEAD} PATTERN (A B) DEFINE B AS {' OR '.join(['B.amount > A.amount'] * 150)}")


def test_texts_of_stored_patterns_explain_themselves_too() -> None:
    wanted = pattern("a").where("amount > 1").within("5 minutes")
    assert explain_pattern(wanted.to_json()) == explain_pattern(wanted)
    assert "start → 1 (A)" in explain_pattern("PATTERN (A B) WITHIN '5 minutes'")
    with pytest.raises(UsageError, match="dict is no pattern"):
        explain_pattern({"a": wanted})  # type: ignore[arg-type]


def test_a_loop_in_a_picture_has_an_arrow_that_comes_back_from_another_place() -> None:
    picture = explain_pattern(HEAD + "PATTERN (A+ B)", form="svg")
    bows = re.findall(r'd="M(\d+) (\d+)C[^"]* (\d+) (\d+)"', picture)
    (loop,) = [each for each in bows if each[1] == each[3] and each[1] > "0" and int(each[1]) > middle_of(picture)]
    assert loop[0] != loop[2]


def middle_of(picture: str) -> int:
    return int(re.findall(r'<text x="\d+" y="(\d+)"', picture)[0])


def test_what_a_stored_pattern_cannot_compute_is_computed_before_and_not_cast() -> None:
    for condition in ("user > 5", "CAST(amount AS STRING) = '5'", "A.user > A.amount"):
        with pytest.raises(PatternProblem, match=r"rows\.withColumn") as refused:
            compile_stored(
                "p", f"PATTERN (A) WITHIN '5 minutes' DEFINE A AS {condition}", ROWS, Limits(partials_max=10)
            )
        assert "LAST(CAST" not in str(refused.value)
