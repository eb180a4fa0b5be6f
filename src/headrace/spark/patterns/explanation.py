"""What a pattern is as an automaton, and why rows do not match it: for people, not for programs."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from headrace.errors import UsageError
from headrace.spark.arguments import duration_of, names_of, time_column
from headrace.spark.patterns.automaton import ACCEPT, Automaton, State, compile_pattern
from headrace.spark.patterns.clauses import parse_clauses
from headrace.spark.patterns.condition_types import check_conditions
from headrace.spark.patterns.expressions import Columns
from headrace.spark.patterns.fluent import UNTIL, Pattern
from headrace.spark.patterns.match import fluent_plan, written_by
from headrace.spark.patterns.matcher import Matcher
from headrace.spark.patterns.mistakes import Written, pointing
from headrace.spark.patterns.names import resolved
from headrace.spark.patterns.operator import MASK_BITS
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.recognize import PARTIALS_MAX, PLACE, mask_name, prepare, sql_plan, written_in
from headrace.spark.patterns.runs import Rows
from headrace.spark.patterns.stored import pattern_of
from headrace.spark.patterns.syntax import Node, variables_of
from headrace.spark.state.bucket import Flags
from headrace.spark.state.kernel import arrow_schema
from headrace.spark.state.operator import END, micros, whole

__all__ = ["explain_pattern", "why_not"]

ROWS_MAX = 10_000
"""Rows that ``why_not`` looks at; they come to the driver."""
BOX, HEIGHT, GAP, BEND = 120, 44, 50, 34
LETTER = 8
"""How wide the letters of a picture are, about."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A pattern in either form."""

    node: Node
    automaton: Automaton
    conditions: dict[str, str]
    labels: dict[str, str]
    within_us: int | None

    @classmethod
    def of(cls, wanted: Pattern | str) -> _Wanted:
        if isinstance(wanted, str):
            clauses = parse_clauses(wanted, ordered=False)
            conditions = {name: piece.text for name, piece in clauses.define}
            return cls(clauses.pattern, compile_pattern(clauses.pattern), conditions, {}, clauses.within_us)
        texts = {name: " AND ".join(map(str, given)) for name, given in wanted.conditions().items()}
        labels = {each.upper(): each for each in wanted.names()}
        return cls(wanted.node(), compile_pattern(wanted.node()), texts, labels, wanted.within_us)

    def label(self, name: str) -> str:
        return self.labels.get(name, name)

    def said_of(self, names: Sequence[str]) -> str:
        """Variables with their conditions."""
        texts = {self.label(each): self.conditions.get(each, "") for each in names}
        return " or ".join(f"{name} ({text})" if text else name for name, text in texts.items())

    def waits_for(self, state: State) -> str:
        """A state in words."""
        name = self.label(state.variable)
        words = {
            "row": name,
            "seek": f"… {name}",
            "seek_any": f"… any {name}",
            "absent_next": f"no {name} next",
            "absent_end": f"no {name} in time",
        }[state.kind]
        no = [self.label(each) for each in state.forbidden]
        until = [self.conditions.get(each, each) for each in state.until if each.endswith(UNTIL)]
        return words + (f", no {', '.join(no)} before" if no else "") + (f", until {until[0]}" if until else "")


def explain_pattern(wanted: Pattern | str, form: Literal["text", "svg"] = "text") -> str:
    """The automaton of a pattern, as lines of text or as a picture in SVG.

    Each state waits for a row. Where it can go after that row comes in the order of preference.
    """
    known = _Wanted.of(_one_pattern(wanted))
    if form == "svg":
        return _svg(known)
    if form != "text":
        raise UsageError(f"form={form!r} is not known", "'text' or 'svg'")
    lines = [f"start → {_targets(known, known.automaton.start)}"]
    for number, state in enumerate(known.automaton.states):
        condition = known.conditions.get(state.variable, "")
        shown = f"  when {condition}" if condition else ""
        after = _targets(known, known.automaton.after[number])
        lines.append(f"{number + 1}: {known.waits_for(state)}{shown} → {after}")
    if known.within_us is not None:
        lines.append(f"all within {duration_of(known.within_us)} of the first row")
    return "\n".join(lines)


def _one_pattern(wanted: object) -> Pattern | str:
    """A pattern, a text of SQL, or what ``Pattern.to_json`` gave."""
    if isinstance(wanted, str) and wanted.lstrip().startswith("{"):
        return pattern_of(wanted)
    if not isinstance(wanted, Pattern | str):
        raise UsageError(
            f"{type(wanted).__name__} is no pattern", "hr.pattern(…), or a text; of several, one at a time"
        )
    return wanted


def _targets(known: _Wanted, targets: Sequence[Any]) -> str:
    def one(state: int) -> str:
        return "match" if state == ACCEPT else f"{state + 1} ({known.waits_for(known.automaton.states[state])})"

    return " | ".join(one(each.state) for each in targets) or "nothing"


def _svg(known: _Wanted) -> str:
    """States from left to right, arrows over them for steps ahead and under them for steps back."""
    states = known.automaton.states
    names = ["start", *(known.waits_for(each) for each in states), "match"]
    conditions = ["", *(known.conditions.get(each.variable, "") for each in states), ""]
    box = max(BOX, *(LETTER * len(each) + LETTER for each in names))
    steps = [
        (number, len(names) - 1 if target.state == ACCEPT else target.state + 1, rank)
        for number, targets in enumerate((known.automaton.start, *known.automaton.after))
        for rank, target in enumerate(targets)
    ]
    above = max(end - start for start, end, _ in steps)
    below = max(start - end for start, end, _ in steps)
    middle = HEIGHT + BEND * above
    at = [40 + (box + GAP) * number for number in range(len(names))]
    parts = [_arrow((at[start], at[end], box), middle, end - start, rank) for start, end, rank in steps]
    for place, name, condition in zip(at, names, conditions, strict=True):
        rect = f'<rect x="{place}" y="{middle - HEIGHT // 2}" width="{box}" height="{HEIGHT}" rx="8"/>'
        text = f'<text x="{place + box // 2}" y="{middle + 5}" text-anchor="middle">{html.escape(name)}</text>'
        title = f"<title>{html.escape(condition)}</title>" if condition else ""
        parts.append(f"<g>{title}{rect}{text}</g>")
    width, height = at[-1] + box + 40, middle + HEIGHT + BEND * max(below, 1)
    style = (
        "rect{fill:#fff;stroke:#345}text{font:13px sans-serif;fill:#123}path{fill:none;stroke:#789}"
        ".first{stroke:#b40;stroke-width:2}"
    )
    head = (
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#789"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">'
        f"<style>{style}</style><defs>{head}</defs>{''.join(parts)}</svg>"
    )


def _arrow(boxes: tuple[int, int, int], middle: int, steps: int, rank: int) -> str:
    """``boxes``: where the first and the second begin, and how wide they are."""
    start, end, box = boxes
    kind = "first" if rank == 0 else "later"
    x1, x2 = start + box // 2, end + box // 2
    if steps == 1:
        return f'<path class="{kind}" d="M{start + box} {middle}H{end}" marker-end="url(#tip)"/>'
    if steps == 0:  # a loop from the right half of the box to the left one
        x1, x2 = x1 + box // 4, x2 - box // 4
    side = -1 if steps > 0 else 1
    bend = middle + side * (HEIGHT // 2 + BEND * (abs(steps) or 1))
    edge = middle + side * HEIGHT // 2
    return f'<path class="{kind}" d="M{x1} {edge}C{x1} {bend} {x2} {bend} {x2} {edge}" marker-end="url(#tip)"/>'


def why_not(
    rows: DataFrame,
    wanted: Pattern | str,
    *,
    keys: str | Sequence[str] = (),
    event_time: str | None = None,
) -> str:
    """How far the rows of one key got in a pattern, first row by first row, and what stopped them.

    ``rows`` is bounded and has the rows of one key. ``event_time`` is needed where the pattern has no ORDER BY.
    """
    wanted = _one_pattern(wanted)
    if rows.isStreaming:
        raise UsageError("why_not looks at rows that are there, not at a stream", "read them with hr.batch(…)")
    known, columns = _Wanted.of(wanted), Columns(coming=frozenset(rows.columns))
    plan, order, partition, written = _plan_of(wanted, columns, event_time)
    order = [(resolved(each, rows.columns, "to order by"), way) for each, way in order]
    by = [resolved(each, rows.columns, "among the keys") for each in (*names_of(keys), *partition)]
    time = time_column(rows, order[0][0], "the event time")
    with pointing(rows, columns, written, [known.label(each) for each in variables_of(known.node)]):
        prepared = prepare(rows, by, order, columns, rows.columns)
        check_conditions(plan, arrow_schema(prepared.schema))
    table = prepared.limit(ROWS_MAX + 1).toArrow()
    if table.num_rows > ROWS_MAX:
        raise UsageError(f"why_not looks at {ROWS_MAX} rows at most", "filter the rows of one key and a short time")
    found = table.select(by).group_by(by).aggregate([]).num_rows if by else 1
    if found > 1:
        raise UsageError(f"why_not takes the rows of one key, and here are {found} keys", "rows.where(…) leaves one")
    table = table.sort_by([*order, (PLACE, "ascending")])
    return _report(known, plan, table, time)


def _plan_of(
    wanted: Pattern | str, columns: Columns, event_time: str | None
) -> tuple[PatternPlan, list[tuple[str, Literal["ascending", "descending"]]], Sequence[str], list[Written]]:
    """The plan of a pattern, what orders its rows, its keys, and its conditions as they are written."""
    if isinstance(wanted, str):
        clauses = parse_clauses(wanted, ordered=event_time is None)
        plan, _ = sql_plan(clauses, compile_pattern(clauses.pattern), columns, PARTIALS_MAX, "match")
        order = list(clauses.order) or [(str(event_time), "ascending")]
        return plan, order, clauses.partition, written_in(clauses, plan)
    if event_time is None:
        raise UsageError("event_time is not given", 'why_not(rows, pattern, event_time="at")')
    plan, _ = fluent_plan("match", wanted, columns, (PARTIALS_MAX, "fail"), False, {})
    return plan, [(event_time, "ascending")], (), written_by(wanted, plan, {})


def _mask(columns: Mapping[str, pa.Array], bit: int) -> Flags:
    part, place = divmod(bit, MASK_BITS)
    flags: Flags = (np.asarray(columns[mask_name(part)], np.int64) >> place) & 1 == 1
    return flags


def _report(known: _Wanted, plan: PatternPlan, table: pa.Table, time: str) -> str:
    given = table.num_rows
    table = table.filter(pc.is_valid(table.column(time)))  # a row without a time is late
    count = table.num_rows
    left_out = [f"rows without a time, which are left out: {given - count}"] if given > count else []
    if not count:
        return "\n".join(["there are no rows", *left_out])
    columns = {name: whole(column) for name, column in zip(table.column_names, table.columns, strict=True)}
    everything = np.full(count, count)
    rows = Rows(
        masks={name: _mask(columns, bit) for name, bit in plan.bits.items()},
        columns=columns,
        times_us=micros(table.column(time)),
        first=np.zeros(count, np.int64),
        end=everything,
        known_end=everything,
        whole_from=np.zeros(count, np.int64),
        now_us=END,
        closed=True,
    )
    matcher = Matcher(
        plan.automaton, plan.conditions, one=plan.one, within_us=plan.within_us, runs_max=PARTIALS_MAX, traced=True
    )
    found = matcher.find(rows, np.arange(count))
    lengths = np.bincount(found.paths.flattened(found.nodes)[0], minlength=len(found.starts))
    matched = dict(zip(found.starts.tolist(), lengths.tolist(), strict=True))
    texts = [str(each) for each in table.column(time).to_pylist()]
    lines = []
    for start in range(count):
        if start in matched:
            lines.append(f"row {start + 1} ({texts[start]}): a match of {matched[start]} rows")
            continue
        stopped = [each for each in found.stopped if each[0] == start]
        furthest = max((each[1] for each in stopped), default=start)
        reasons = dict.fromkeys(_reason(known, each, count, texts) for each in stopped if each[1] == furthest)
        lines.append(f"row {start + 1} ({texts[start]}): {'; '.join(reasons)}")
    return "\n".join(lines + left_out)


def _reason(known: _Wanted, stopped: tuple[int, int, int, str], count: int, texts: list[str]) -> str:
    _, place, number, why = stopped
    state = known.automaton.states[number]
    name = known.label(state.variable)
    if place >= count:
        return f"the rows ended before {name}"
    row = f"row {place + 1} ({texts[place]})"
    if why == "time":
        return f"the time was over before {name}: {row} is too late"
    if why == "forbidden" and state.until:
        return f"{row} ends the loop before {name} ({known.conditions.get(state.until[0], '')})"
    if why == "forbidden":
        return f"{row} is {known.said_of(state.forbidden)}, which must not come before {name}"
    if state.kind.startswith("absent"):
        return f"{row} is {known.said_of([state.variable])}, which must not come"
    return f"{row} is no {known.said_of([state.variable])}"
