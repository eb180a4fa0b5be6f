"""Does a query still fit its checkpoint? Asked before it starts, and answered in plain words.

A checkpoint holds positions per source and the state of every stateful operator, both by their number in the plan. When
the query has changed since, Spark finds out late, deep in a task, or not at all: a sum that became a maximum goes on
with the old sums. So the shape of a query is kept beside its checkpoint, and compared. ``plan.shape_of`` reads
it from Spark's plan, into which our operators put their descriptions (``description``).

There are three kinds of change. What *breaks*: the checkpoint cannot be read by this query. What *mixes*: it can,
but old state would get a new meaning. What is worth a *note*: it fits, and the user may want to know. Filters,
projections and the like may change freely and are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headrace.errors import UsageError

__all__ = ["Change", "Column", "Operator", "Parameter", "Shape", "Source", "changes", "refuse"]

Severity = Literal["breaks", "mixes", "note"]
CONTEXT = 60
"""Characters around what differs in a long text."""


@dataclass(frozen=True, slots=True)
class Column:
    """Something that state is kept by or for: how it is written, and its type."""

    text: str
    type: str
    definition: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    kind: str
    reads: str
    bootstrap: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of an operator of ours; a free one may change without giving old state a new meaning."""

    name: str
    text: str
    free: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """A place where a query keeps state."""

    kind: str
    keys: tuple[Column, ...] = ()
    values: tuple[Column, ...] = ()
    parameters: tuple[Parameter, ...] = ()

    def describe(self) -> str:
        by = ", ".join(each.text for each in self.keys)
        return f"{self.kind} by {by}" if by else self.kind


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a query a checkpoint depends on."""

    sources: tuple[Source, ...] = ()
    operators: tuple[Operator, ...] = ()
    watermarks: int = 0
    output_mode: str = "append"
    sink: str = ""
    state: str = ""
    """Where it is looked up, when that was asked for."""

    def to_json(self) -> str:
        return json.dumps({"version": 1, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Shape:
        found = json.loads(text)
        return cls(
            tuple(Source(**each) for each in found["sources"]),
            tuple(_operator(each) for each in found["operators"]),
            int(found["watermarks"]),
            str(found["output_mode"]),
            str(found["sink"]),
            str(found.get("state", "")),
        )


def _operator(found: Mapping[str, Any]) -> Operator:
    keys = tuple(Column(**each) for each in found["keys"])
    values = tuple(Column(**each) for each in found["values"])
    return Operator(str(found["kind"]), keys, values, tuple(Parameter(**each) for each in found["parameters"]))


@dataclass(frozen=True, slots=True)
class Change:
    severity: Severity
    text: str


def changes(old: Shape, new: Shape) -> list[Change]:
    """What differs and matters to a checkpoint of ``old``, the gravest first."""
    found = [*_sources(old, new), *_operators(old, new)]
    if old.operators and old.output_mode != new.output_mode:
        found.append(Change("breaks", f"its output mode was {old.output_mode} and is {new.output_mode}"))
    if old.operators and old.state != new.state:
        there = f"{old.state} had been asked for" if old.state else "nothing had been asked for"
        found.append(Change("note", f"its state stays where its checkpoint has it, made when {there}"))
    if old.sink != new.sink:
        found.append(Change("note", f"its rows went to {old.sink} and go to {new.sink} from now on"))
    return sorted(found, key=lambda each: ("breaks", "mixes", "note").index(each.severity))


def _sources(old: Shape, new: Shape) -> Iterator[Change]:
    if len(old.sources) != len(new.sources):
        before, after = (", ".join(each.reads for each in side.sources) or "nothing" for side in (old, new))
        yield Change("breaks", f"it read {before} and reads {after}: positions are kept source by source")
        return
    for was, now in zip(old.sources, new.sources, strict=True):
        if was.kind != now.kind:
            yield Change("breaks", f"{was.reads} was read with the source {was.kind} and is read with {now.kind}")
        elif was.reads != now.reads:
            yield _other_topics(was, now)


def _other_topics(was: Source, now: Source) -> Change:
    before, after = (set(each.reads.removeprefix("subscribe ").split(",")) for each in (was, now))
    named = was.reads.startswith("subscribe ") and now.reads.startswith("subscribe ")
    if named and before < after:
        return Change("note", f"it reads {', '.join(sorted(after - before))} too, from the beginning")
    return Change("breaks", f"it read {_plain(was)} and reads {_plain(now)}: there are no positions for that")


def _plain(source: Source) -> str:
    return source.reads.removeprefix("subscribe ").replace(",", ", ")


def _operators(old: Shape, new: Shape) -> Iterator[Change]:
    if [each.kind for each in old.operators] != [each.kind for each in new.operators]:
        before, after = ("; ".join(each.describe() for each in side.operators) or "nothing" for side in (old, new))
        yield Change("breaks", f"it kept state for: {before}; and would keep state for: {after}")
        return
    for was, now in zip(old.operators, new.operators, strict=True):
        yield from _columns(f"the {was.kind} was by", "is by", was.keys, now.keys)
        kept = list(_columns(f"the {was.kind} kept", "would keep", was.values, now.values))
        parameters = list(_parameters(was, now))
        if kept and any(each.severity == "mixes" for each in parameters):
            # What the user wrote differs; that the state has another layout only follows from it.
            gravest = kept[0].severity
            yield from (Change(gravest, each.text) if each.severity == "mixes" else each for each in parameters)
        else:
            yield from (*kept, *parameters)


def _parameters(was: Operator, now: Operator) -> Iterator[Change]:
    old, new = ({each.name: each for each in side.parameters} for side in (was, now))
    for name in sorted({*old, *new}):
        before, after = (each[name].text if name in each else "not there" for each in (old, new))
        if before != after:
            free = all(each[name].free for each in (old, new) if name in each)
            before, after = _differing(before, after)
            yield Change("note" if free else "mixes", f"{name} of {was.kind} was {before} and is {after}")


def _alike(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    differ = (number for number, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(one), len(other)))


def _differing(before: str, after: str) -> tuple[str, str]:
    """Of two long texts what differs, with what is around it."""
    if max(len(before), len(after)) <= 4 * CONTEXT:
        return before, after
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    first = max(start - CONTEXT, 0)

    def cut(text: str) -> str:
        last = len(text) - max(end - CONTEXT, 0)
        return f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"

    return cut(before), cut(after)


def _columns(was: str, now: str, old: tuple[Column, ...], new: tuple[Column, ...]) -> Iterator[Change]:
    before, after = (", ".join(f"{each.text} ({each.type})" for each in side) or "nothing" for side in (old, new))
    if [each.type for each in old] != [each.type for each in new]:
        yield Change("breaks", f"{was} {before} and {now} {after}")
    elif [each.text for each in old] != [each.text for each in new]:
        yield Change("mixes", f"{was} {before} and {now} {after}")
    else:
        for one, other in zip(old, new, strict=True):
            if one.definition != other.definition:
                yield Change("mixes", f"{one.text} is computed otherwise than before")


def refuse(name: str, checkpoint: str, found: list[Change], command: str, rebuild: str = "") -> UsageError | None:
    """The error to end with, or None when the query may start.

    ``rebuild``: the command that fills the pipeline's target again, where there is one. Starting over alone would leave
    the old results among the new ones.
    """
    grave = [each for each in found if each.severity != "note"]
    if not grave:
        return None
    what = "; ".join(each.text for each in grave)
    again = f"{command} --only {name} --start-over"
    cure = (
        f"to compute everything again: {rebuild}"
        if rebuild
        else f"to compute everything again, beside the results that are there: {again}"
    )
    if grave[0].severity == "breaks":
        return UsageError(
            f"pipeline {name!r} has changed and no longer fits its checkpoint {checkpoint}: {what}",
            f"{cure}; or undo the change; or give the pipeline another name",
        )
    return UsageError(
        f"pipeline {name!r} has changed: {what}. It would go on with what its checkpoint {checkpoint} holds, under the "
        f"new meaning",
        f"{cure}; to go on all the same: {command} --only {name} --accept-changes",
    )
