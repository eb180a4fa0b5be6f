"""Plans of queries: their sources, stateful operators, watermarks and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import UsageError
from headrace.spark.description import Description
from headrace.spark.graph import Graph
from headrace.spark.plan.scala import refuse_connect, sequence, tree
from headrace.spark.shape import Column, Operator, Parameter, Shape, Source

__all__ = [
    "DESCRIPTION",
    "METRIC",
    "WATERMARK",
    "event_times",
    "graph_of",
    "keeps_state",
    "observed_names",
    "query_sources",
    "shape_of",
    "streaming_sources",
]

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
RELATIONS = ("StreamingRelation", "StreamingRelationV2")
"""What a streaming source is in an analysed plan."""
WITHOUT_ROWS = "headrace-idle"
"""The source that reports silence beside another one."""
SOURCE_OPTIONS = ("subscribe", "subscribePattern", "assign", "path")


def shape_of(rows: DataFrame, *, output_mode: str | None, sink: str, state: str | None = None) -> Shape:
    """The shape of a streaming query, from its analysed plan, and the output mode that fits it when none is given."""
    nodes = list(tree(_analysed(rows)))
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


def graph_of(rows: DataFrame) -> tuple[Graph, list[str]]:
    """The sources and operators of a query with their links, and those that feed its sink."""
    plan = _analysed(rows)
    walk = _Links(_aliases(list(tree(plan))))
    return walk.graph, walk.above(plan)


class _Links:
    """Walks a plan from the sink to the sources; a source that stands in it twice is one."""

    def __init__(self, aliases: dict[str, str]) -> None:
        self.graph = Graph()
        self._aliases = aliases
        self._sources: list[tuple[Any, str]] = []
        self._states = 0

    def above(self, node: Any, ours: Any = None) -> list[str]:
        """The ids of what gives rows to whatever stands above ``node``. ``ours``: the description that was passed."""
        name = str(node.nodeName())
        children = list(sequence(node.children()))
        if name in RELATIONS:
            return self._source(node, name)
        if not children:  # bounded; one that a stream is joined with is drawn with the join
            return []
        if name == "CollectMetrics" and str(node.name()).startswith(METRIC):
            ours = node
        if name in JOINS and not _keeps_state(node, name):
            sides = [
                self.above(child) or [self.graph.add_source(Source("bounded", "a bounded table"))] for child in children
            ]
            return [self.graph.add_operator(Operator("join with a bounded table"), [*sides[0], *sides[1]])]
        if not _keeps_state(node, name):
            return [each for child in children for each in self.above(child, ours)]
        described = _described(ours) if ours is not None and name.startswith(ONLY_ON_DISK) else None
        place, self._states = self._states, self._states + 1
        below = [each for child in children for each in self.above(child)]
        metric = str(ours.name()) if described is not None else ""
        operator = described or _stateful(node, name, self._aliases)
        return [self.graph.add_operator(operator, below, state=place, metric=metric)]

    def _source(self, node: Any, name: str) -> list[str]:
        source = _source(node, name)
        if source.kind == WITHOUT_ROWS:
            return []
        known = next((each for other, each in self._sources if node.equals(other)), None)
        if known is None:
            known = self.graph.add_source(source)
            self._sources.append((node, known))
        return [known]


def keeps_state(rows: DataFrame) -> bool:
    """Whether some part of a stream's query remembers rows of earlier micro-batches."""
    return any(_keeps_state(node, name) for name, node in tree(_analysed(rows)))


def event_times(rows: DataFrame) -> list[str]:
    """The columns that a watermark goes over, also those that were left out again since the last stateful function."""
    for name, node in tree(_analysed(rows)):
        marked = [str(each.name()) for each in sequence(node.output()) if each.metadata().contains(WATERMARK)]
        if marked or _keeps_state(node, name):
            return marked
    return []


def observed_names(rows: DataFrame) -> set[str]:
    """Under which names a query observes metrics."""
    nodes = tree(_analysed(rows))
    return {str(node.name()) for name, node in nodes if name == "CollectMetrics"}


def streaming_sources(rows: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """The sources of a stream, from left to right: their format, and their options by names in lower case."""
    found = [node for name, node in tree(_analysed(rows)) if name in RELATIONS]
    return [(str(node.sourceName()), _source_options(node)) for node in found]


def query_sources(query: StreamingQuery) -> list[tuple[str, dict[str, str]]]:
    """The same for a running query, in the order of its progress reports. A source that stands in the plan twice is
    one source to Spark."""
    found: list[Any] = []
    for name, node in tree(query._jsq.streamingQuery().analyzedPlan()):
        if name in RELATIONS and not any(node.equals(each) for each in found):
            found.append(node)
    return [(str(node.sourceName()), _source_options(node)) for node in found]


def _analysed(rows: DataFrame) -> Any:
    refuse_connect(rows.sparkSession)
    return rows._jdf.queryExecution().analyzed()


def _ends(aggregate: Any) -> bool:
    """Whether groups are final one day, as a watermark goes over their key; else there can only be updates of them."""
    keys = sequence(aggregate.groupingExpressions())
    return any(each.metadata().contains(WATERMARK) for each in keys if _has_name(each))


def _has_name(expression: Any) -> bool:
    return str(expression.nodeName()) in ("AttributeReference", "Alias")


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
    for pair in sequence(pairs):
        found[str(pair._1()).lower()] = str(pair._2())
    return found


def _keeps_state(node: Any, name: str) -> bool:
    if name not in STATEFUL or not node.isStreaming():
        return False
    if name in JOINS:  # with a bounded side there is nothing to keep
        return all(child.isStreaming() for child in sequence(node.children()))
    return True


def _aliases(nodes: list[tuple[str, Any]]) -> dict[str, str]:
    """The expressions of computed columns: the width of a window is found only there."""
    found: dict[str, str] = {}
    for name, node in nodes:
        if name == "Project":
            for each in sequence(node.projectList()):
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
    for metric in sequence(node.metrics()):
        if str(metric.name()) == DESCRIPTION:
            text = next(str(each.value().toString()) for name, each in tree(metric) if name == "Literal")
            return _operator_of(Description.from_json(text))
    return None


def _operator_of(found: Description) -> Operator:
    state = Column("state", f"{found.state}, version {found.version}, in {found.buckets} buckets")
    parameters = tuple(Parameter(name, text, name in found.free) for name, text in sorted(found.parameters.items()))
    return Operator(found.kind, tuple(Column(name, kind) for name, kind in found.keys), (state,), parameters)


def _stateful(node: Any, name: str, aliases: dict[str, str]) -> Operator:
    kind = STATEFUL[name]
    if name == "Aggregate":
        keys = tuple(_column(each, aliases) for each in sequence(node.groupingExpressions()))
        return Operator(kind, keys, tuple(_functions(node.aggregateExpressions())))
    if name.startswith("Deduplicate"):
        return Operator(kind, tuple(_column(each, aliases) for each in sequence(node.keys())))
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
    for expression in sequence(expressions):
        for name, node in tree(expression):
            if name == "AggregateExpression":
                yield Column(str(node.sql()), str(node.dataType().simpleString()))
