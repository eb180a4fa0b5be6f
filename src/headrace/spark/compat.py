"""Does a query still fit its checkpoint? Asked before it starts, and answered in plain words.

A checkpoint holds positions per source and the state of every stateful operator, both by their number in the plan. When
the query has changed since, Spark finds out late, deep in a task, or not at all: a sum that became a maximum goes on
with the old sums. So the shape of a query is kept beside its checkpoint, and compared. Of Spark's own operators it is
read from the plan; ours put their descriptions into it (``description``).

Three kinds of change are told apart. What *breaks*: the checkpoint cannot be read by this query. What *mixes*: it can,
but old state would get a new meaning. What is worth a *note*: it fits, and the user may want to know. Filters,
projections and the like may change freely and are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame

from headrace.errors import UsageError
from headrace.spark.description import Description

__all__ = [
    "Change",
    "Column",
    "Operator",
    "Shape",
    "Source",
    "changes",
    "event_times",
    "keeps_state",
    "observed_names",
    "plan_sources",
    "refuse",
    "shape_of",
    "streaming_sources",
]

Severity = Literal["breaks", "mixes", "note"]

JOINS = frozenset({"Join"})
STATEFUL = {
    "Aggregate": "aggregation",
    "Deduplicate": "removal of duplicates",
    "DeduplicateWithinWatermark": "removal of duplicates",
    "Distinct": "removal of duplicates",
    "Join": "join of two streams",
    "GlobalLimit": "limit",
    "FlatMapGroupsWithState": "function with state",
    "FlatMapGroupsInPandasWithState": "function with state",
    "TransformWithState": "function with state",
    "TransformWithStateInPySpark": "function with state",
    "TransformWithStateInPandas": "function with state",
}
ONLY_ON_DISK = "TransformWithState"
"""Where the name of such a step in the plan begins."""
WATERMARK = "spark.watermarkDelayMs"
"""In the metadata of a column that a watermark goes over."""
METRIC = "state "
"""How the names of metrics begin under which operators of ours show what they hold."""
DESCRIPTION = "operator"
"""The metric among them that is the operator's description."""
SOURCE_OPTIONS = ("subscribe", "subscribePattern", "assign", "path")


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
        yield from _columns(f"the {was.kind} kept", "would keep", was.values, now.values)
        yield from _parameters(was, now)


def _parameters(was: Operator, now: Operator) -> Iterator[Change]:
    old, new = ({each.name: each for each in side.parameters} for side in (was, now))
    for name in sorted({*old, *new}):
        before, after = (each[name].text if name in each else "not there" for each in (old, new))
        if before != after:
            free = all(each[name].free for each in (old, new) if name in each)
            yield Change("note" if free else "mixes", f"{name} of {was.kind} was {before} and is {after}")


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


# ---- from Spark's plan ---------------------------------------------------------------------------------------------


def shape_of(rows: DataFrame, *, output_mode: str | None, sink: str, state: str | None = None) -> Shape:
    """The shape of a streaming query, from its analysed plan, and the output mode that fits it when none is given."""
    nodes = list(_nodes(rows._jdf.queryExecution().analyzed()))
    sources = tuple(_source(node, name) for name, node in nodes if name.startswith("StreamingRelation"))
    operators = tuple(_all_operators(nodes))
    watermarks = sum(name == "EventTimeWatermark" for name, _ in nodes)
    final = all(_ends(node) for name, node in nodes if name == "Aggregate" and node.isStreaming())
    if state == "memory" and any(name.startswith(ONLY_ON_DISK) for name, _ in nodes):
        raise UsageError(
            'state="memory" is for Spark\'s own joins and aggregations, and this query has a function with state, '
            "which Spark keeps on disk only",
            "leave state= out; the workers hold in memory what such functions use",
        )
    mode = output_mode or ("append" if final else "update")
    return Shape(sources, operators, watermarks, mode, sink, state or "")


def keeps_state(rows: DataFrame) -> bool:
    """Whether some part of a stream's query remembers rows of earlier micro-batches."""
    return any(_keeps_state(node, name) for name, node in _nodes(rows._jdf.queryExecution().analyzed()))


def event_times(rows: DataFrame) -> list[str]:
    """The columns that a watermark goes over, also those that were left out again since the last stateful function."""
    for name, node in _nodes(rows._jdf.queryExecution().analyzed()):
        marked = [str(each.name()) for each in _sequence(node.output()) if each.metadata().contains(WATERMARK)]
        if marked or _keeps_state(node, name):
            return marked
    return []


def observed_names(rows: DataFrame) -> set[str]:
    """Under which names a query observes metrics."""
    nodes = _nodes(rows._jdf.queryExecution().analyzed())
    return {str(node.name()) for name, node in nodes if name == "CollectMetrics"}


def streaming_sources(rows: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """The sources of a stream, from left to right: their format, and their options by names in lower case."""
    return plan_sources(rows._jdf.queryExecution().analyzed())


def plan_sources(plan: Any) -> list[tuple[str, dict[str, str]]]:
    found = [node for name, node in _nodes(plan) if name in ("StreamingRelation", "StreamingRelationV2")]
    return [(str(node.sourceName()), _source_options(node)) for node in found]


def _ends(aggregate: Any) -> bool:
    """Whether groups are final one day, as a watermark goes over their key; else there can only be updates of them."""
    keys = _sequence(aggregate.groupingExpressions())
    return any(each.metadata().contains(WATERMARK) for each in keys if _has_name(each))


def _has_name(expression: Any) -> bool:
    return str(expression.nodeName()) in ("AttributeReference", "Alias")


def _nodes(plan: Any) -> Iterator[tuple[str, Any]]:
    yield str(plan.nodeName()), plan
    for child in _sequence(plan.children()):
        yield from _nodes(child)


def _sequence(scala: Any) -> Iterator[Any]:
    return (scala.apply(index) for index in range(scala.size()))


def _source(node: Any, name: str) -> Source:
    options = _source_options(node)
    kind = str(node.sourceName()) if name != "StreamingExecutionRelation" else name
    asked = [f"{option} {options[option.lower()]}" for option in SOURCE_OPTIONS if option.lower() in options]
    return Source(kind, asked[0] if asked else kind, _open_address(options))


def _open_address(options: dict[str, str]) -> str:
    """The broker's address, where no password or certificate is needed to talk to it."""
    secured = any(name.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl.")) for name in options)
    return "" if secured else options.get("kafka.bootstrap.servers", "")


def _source_options(node: Any) -> dict[str, str]:
    """The options of a source, by their names in lower case."""
    if hasattr(node, "extraOptions") and str(node.nodeName()) == "StreamingRelationV2":
        entries = node.extraOptions().asCaseSensitiveMap()
        return {str(key).lower(): str(entries[key]) for key in entries}
    found: dict[str, str] = {}
    pairs = node.dataSource().options().toSeq()
    for pair in _sequence(pairs):
        found[str(pair._1()).lower()] = str(pair._2())
    return found


def _keeps_state(node: Any, name: str) -> bool:
    if name not in STATEFUL or not node.isStreaming():
        return False
    if name in JOINS:  # with a bounded side there is nothing to keep
        return all(child.isStreaming() for child in _sequence(node.children()))
    return True


def _aliases(nodes: list[tuple[str, Any]]) -> dict[str, str]:
    """What computed columns are computed from: a window is a column whose width is told nowhere else."""
    found: dict[str, str] = {}
    for name, node in nodes:
        if name == "Project":
            for each in _sequence(node.projectList()):
                if str(each.nodeName()) == "Alias":
                    found[str(each.exprId())] = str(each.child().sql())
    return found


def _all_operators(nodes: list[tuple[str, Any]]) -> Iterator[Operator]:
    """An operator of ours is a function with state, and its description stands above it."""
    aliases = _aliases(nodes)
    above: Operator | None = None
    for name, node in nodes:
        if name == "CollectMetrics" and str(node.name()).startswith(METRIC):
            above = _described(node)
        elif _keeps_state(node, name):
            ours = above if name.startswith(ONLY_ON_DISK) else None
            yield ours or _stateful(node, name, aliases)
            above = None


def _described(node: Any) -> Operator | None:
    for metric in _sequence(node.metrics()):
        if str(metric.name()) == DESCRIPTION:
            text = next(str(each.value().toString()) for name, each in _nodes(metric) if name == "Literal")
            return _operator_of(Description.from_json(text))
    return None


def _operator_of(found: Description) -> Operator:
    state = Column("state", f"{found.state}, version {found.version}, in {found.buckets} buckets")
    parameters = tuple(Parameter(name, text, name in found.free) for name, text in sorted(found.parameters.items()))
    return Operator(found.kind, tuple(Column(name, kind) for name, kind in found.keys), (state,), parameters)


def _stateful(node: Any, name: str, aliases: dict[str, str]) -> Operator:
    kind = STATEFUL[name]
    if name == "Aggregate":
        keys = tuple(_column(each, aliases) for each in _sequence(node.groupingExpressions()))
        return Operator(kind, keys, tuple(_functions(node.aggregateExpressions())))
    if name.startswith("Deduplicate"):
        return Operator(kind, tuple(_column(each, aliases) for each in _sequence(node.keys())))
    if name in JOINS:
        condition = node.condition()
        text = str(condition.get().sql()) if condition.isDefined() else "everything"
        return Operator(kind, (Column(text, str(node.joinType().sql())),))
    if kind == "function with state" and name.endswith(("InPySpark", "InPandas", "InPandasWithState")):
        output = str(node.schema().simpleString())
        return Operator(kind, (), (Column("rows", output),))
    return Operator(kind)


def _column(expression: Any, aliases: dict[str, str]) -> Column:
    plain = expression.child() if str(expression.nodeName()) == "Alias" else expression
    definition = aliases.get(str(plain.exprId()), "") if str(plain.nodeName()) == "AttributeReference" else ""
    return Column(str(plain.sql()), str(plain.dataType().simpleString()), definition)


def _functions(expressions: Any) -> Iterator[Column]:
    for expression in _sequence(expressions):
        for name, node in _nodes(expression):
            if name == "AggregateExpression":
                yield Column(str(node.sql()), str(node.dataType().simpleString()))
