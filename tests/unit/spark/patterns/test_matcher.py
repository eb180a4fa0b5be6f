"""The matcher gives the matches that plain loops give, whatever the pattern and the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.patterns.automaton import compile_pattern
from headrace.spark.patterns.matcher import Matcher
from headrace.spark.patterns.runs import Rows
from headrace.spark.patterns.syntax import Anchor, Choice, Node, Repeat, Sequence, Variable, parse_pattern
from tests.unit.spark.patterns.plain import Path, ways

NAMES = ("A", "B", "C")


def nodes() -> st.SearchStrategy[Node]:
    leaf = st.one_of(st.sampled_from(NAMES).map(Variable), st.sampled_from([Anchor("start"), Anchor("end")]))
    names = st.sampled_from(NAMES).map(Variable)

    def inner(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        bounds = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 2), (2, None)])
        repeats = st.builds(lambda part, of, greedy: Repeat(part, *of, greedy), children, bounds, st.booleans())
        several = st.lists(children, min_size=0, max_size=3)
        return st.one_of(
            several.map(lambda parts: Sequence(tuple(parts))),
            repeats,
            st.lists(children, min_size=2, max_size=3).map(lambda parts: Choice(tuple(parts))),
        )

    return st.recursive(st.one_of(names, names, names, leaf), inner, max_leaves=5)


def rows_of(partitions: list[list[str]], closed: bool = True) -> Rows:
    """Each row is a text with the variables that it satisfies."""
    flat = [row for each in partitions for row in each]
    sizes = np.array([len(each) for each in partitions], np.int64)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    ends = np.repeat(np.cumsum(sizes), sizes)
    return Rows(
        masks={name: np.array([name in row for row in flat], np.bool_) for name in NAMES},
        columns={},
        times_us=np.arange(len(flat)),
        first=starts,
        end=ends,
        known_end=ends,
        whole_from=starts,
        now_us=10**9,
        closed=closed,
    )


def preferred(node: Node, partition: list[str], at: int) -> tuple[int, Path] | None:
    return next(ways(node, at, (), len(partition), lambda name, row, _: name in partition[row]), None)


def found_by(node: Node, rows: Rows, count: int) -> dict[int, tuple[int, tuple[tuple[int, str], ...]]]:
    automaton = compile_pattern(node)
    found = Matcher(automaton, {}, one=True, within_us=None, runs_max=10**6).find(rows, np.arange(count))
    which, places, states = found.paths.flattened(found.nodes)
    paths: list[list[tuple[int, str]]] = [[] for _ in found.starts]
    for index, row, state in zip(which.tolist(), places.tolist(), states.tolist(), strict=True):
        paths[index].append((row, automaton.states[state].variable))
    return {
        start: (end, tuple(path))
        for start, end, path in zip(found.starts.tolist(), found.ends.tolist(), paths, strict=True)
    }


PARTITIONS = st.lists(
    st.lists(st.sampled_from(["", "A", "B", "C", "AB", "BC", "ABC"]), max_size=7), min_size=1, max_size=3
)


@settings(max_examples=400, deadline=None)
@given(nodes(), PARTITIONS)
def test_the_preferred_match_of_every_first_row_is_that_of_plain_loops(node: Node, partitions: list[list[str]]) -> None:
    count = sum(len(each) for each in partitions)
    found = found_by(node, rows_of(partitions), count)
    offset = 0
    for partition in partitions:
        for at in range(len(partition)):
            wanted = preferred(node, partition, at)
            got = found.get(offset + at)
            if wanted is None:
                assert got is None, (node, partition, at)
            else:
                end, path = wanted
                assert got == (offset + end, tuple((offset + row, name) for row, name in path)), (node, partition, at)
        offset += len(partition)


@settings(max_examples=300, deadline=None)
@given(
    nodes(),
    st.lists(st.sampled_from(["", "A", "B", "C", "AB"]), max_size=6),
    st.lists(st.sampled_from(["A", "B", "C", "AB"]), max_size=3),
)
def test_what_is_decided_no_later_row_can_change(node: Node, rows: list[str], later: list[str]) -> None:
    automaton = compile_pattern(node)
    if automaton.needs_end:
        return
    matcher = Matcher(automaton, {}, one=True, within_us=None, runs_max=10**6)
    found = matcher.find(rows_of([rows], closed=False), np.arange(len(rows)))
    decided = dict(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    for at in set(range(len(rows))) - set(found.undecided.tolist()):
        wanted = preferred(node, rows + later, at)
        assert decided.get(at) == (wanted and wanted[0]), (node, rows, later, at)


def test_a_nested_loop_does_not_multiply_runs() -> None:
    node = parse_pattern("((A | B)+)+ C")
    matcher = Matcher(compile_pattern(node), {}, one=True, within_us=None, runs_max=100)
    rows = rows_of([["AB"] * 50])
    assert len(matcher.find(rows, np.arange(1)).starts) == 0


@pytest.mark.parametrize(("text", "rows"), [("(A??)*", 0), ("(A??)?", 0), ("(A*?)+", 0), ("(A? B*?)*", 3)])
def test_a_round_without_a_row_ends_the_loop(text: str, rows: int) -> None:
    """``(A??)*``: one round without a row is preferred to one with a row."""
    node = parse_pattern(text)
    end, path = found_by(node, rows_of([["AB"] * 3]), 3)[0]
    assert (end, path) == preferred(node, ["AB"] * 3, 0)
    assert len(path) == rows


def test_a_counted_loop_of_the_greatest_bound_around_an_optional_part_is_compiled() -> None:
    assert len(compile_pattern(parse_pattern("(A?){1000} B")).states) == 1001
