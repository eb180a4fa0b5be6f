"""The only place that touches Spark's JVM: plans, file systems, listeners and blocks of rows.

PySpark has no functions for some of what we need, so it is asked for in Java, through py4j and handles that PySpark
calls private. They are all here: an upgrade of Spark is checked against this file, and Spark Connect, which has no JVM
to ask, is refused here. Everything else of headrace uses PySpark's public interface.

- *Plans*: which sources, stateful operators and watermarks a query has (``shape_of`` and its siblings).
- *Expressions*: which function of what a Column is (``call_of``).
- *File systems*: ``SparkFiles`` reads and writes wherever Spark can, since a checkpoint may lie there.
- *Listeners*: ``ProgressListener`` gets progress reports as JSON.
- *Rows*: ``arrow_blocks`` brings a DataFrame to the driver in Arrow, block by block.
"""

from __future__ import annotations

# ruff: noqa: N802 the names of methods are Spark's
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import _local_iterator_from_socket

from headrace.errors import UsageError
from headrace.spark.description import Description
from headrace.spark.shape import Column, Operator, Parameter, Shape, Source

__all__ = [
    "CLASSIC",
    "DESCRIPTION",
    "METRIC",
    "WATERMARK",
    "Argument",
    "Call",
    "JvmLost",
    "ProgressListener",
    "SparkFiles",
    "argument_of",
    "arrow_blocks",
    "call_of",
    "event_times",
    "exit_status",
    "keeps_state",
    "observed_names",
    "query_sources",
    "refuse_connect",
    "session_id",
    "shape_of",
    "streaming_sources",
]

JvmLost = Py4JNetworkError
"""The connection to Spark's process broke."""

T = TypeVar("T")

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
CLASSIC = "run the program on the driver: hr.session(master=…), without SPARK_REMOTE or spark.remote"
SOURCE_OPTIONS = ("subscribe", "subscribePattern", "assign", "path")

# ---- plans ---------------------------------------------------------------------------------------------------------


def shape_of(rows: DataFrame, *, output_mode: str | None, sink: str, state: str | None = None) -> Shape:
    """The shape of a streaming query, from its analysed plan, and the output mode that fits it when none is given."""
    nodes = list(_nodes(_analysed(rows)))
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
    return any(_keeps_state(node, name) for name, node in _nodes(_analysed(rows)))


def event_times(rows: DataFrame) -> list[str]:
    """The columns that a watermark goes over, also those that were left out again since the last stateful function."""
    for name, node in _nodes(_analysed(rows)):
        marked = [str(each.name()) for each in _sequence(node.output()) if each.metadata().contains(WATERMARK)]
        if marked or _keeps_state(node, name):
            return marked
    return []


def observed_names(rows: DataFrame) -> set[str]:
    """Under which names a query observes metrics."""
    nodes = _nodes(_analysed(rows))
    return {str(node.name()) for name, node in nodes if name == "CollectMetrics"}


def streaming_sources(rows: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """The sources of a stream, from left to right: their format, and their options by names in lower case."""
    found = [node for name, node in _nodes(_analysed(rows)) if name in RELATIONS]
    return [(str(node.sourceName()), _source_options(node)) for node in found]


def query_sources(query: StreamingQuery) -> list[tuple[str, dict[str, str]]]:
    """The same for a running query, in the order of its progress reports. A source that stands in the plan twice is
    one source to Spark."""
    found: list[Any] = []
    for name, node in _nodes(query._jsq.streamingQuery().analyzedPlan()):
        if name in RELATIONS and not any(node.equals(each) for each in found):
            found.append(node)
    return [(str(node.sourceName()), _source_options(node)) for node in found]


def _analysed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


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


# ---- expressions ---------------------------------------------------------------------------------------------------

EXPRESSION_ID = re.compile(r"#\d+L?")
"""In the text of a column that was taken from a frame, ``orders.amount``: another one in every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What a function is called with."""

    column: SqlColumn
    text: str
    name: str | None = None
    """Of a plain column; None for whatever has to be computed."""
    literal: Any = None
    """A number, a text or a list of them."""
    is_star: bool = False
    fields: tuple[Argument, ...] = ()
    """Of a struct that is made of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A Column that is a function: ``F.sum("amount")``."""

    function: str
    arguments: tuple[Argument, ...]
    is_distinct: bool
    text: str


def call_of(column: SqlColumn) -> Call | None:
    """The function that a Column calls, whatever it is called itself; None when it is something else."""
    node = _without_alias(_node_of(column))
    if _kind(node) != "UnresolvedFunction":
        return None
    arguments = tuple(_argument(each) for each in _sequence(node.arguments()))
    return Call(
        function=str(node.functionName()).lower(),
        arguments=arguments,
        is_distinct=bool(node.isDistinct()),
        text=_text(node),
    )


def argument_of(column: SqlColumn) -> Argument:
    return _argument(_node_of(column))


def _node_of(column: SqlColumn) -> Any:
    java = getattr(column, "_jc", None)
    if java is None:
        raise UsageError("headrace needs Spark's JVM beside this process, and Spark Connect has none", CLASSIC)
    return java.node()


def _without_alias(node: Any) -> Any:
    while _kind(node) == "Alias":
        node = node.child()
    return node


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _text(node: Any) -> str:
    """As a name: the same in every run, and one that can stand between backquotes."""
    return EXPRESSION_ID.sub("", str(node.sql())).replace("`", "")


def _argument(node: Any) -> Argument:
    plain = _without_alias(node)
    jvm: Any = SparkContext._jvm
    column: Any = ClassicColumn(jvm.org.apache.spark.sql.Column(node))
    is_struct = _kind(plain) == "UnresolvedFunction" and str(plain.functionName()) == "struct"
    return Argument(
        column=column,
        text=_text(plain),
        name=_plain_name(plain),
        literal=_literal(plain),
        is_star=_kind(plain) == "UnresolvedStar",
        fields=tuple(_argument(each) for each in _sequence(plain.arguments())) if is_struct else (),
    )


def _plain_name(node: Any) -> str | None:
    if _kind(node) == "UnresolvedAttribute":
        parts = [str(each) for each in _sequence(node.nameParts())]
        return parts[0] if len(parts) == 1 else None
    if _kind(node) == "ExpressionColumnNode" and str(node.expression().nodeName()) == "AttributeReference":
        return str(node.expression().name())
    return None


def _literal(node: Any) -> Any:
    if _kind(node) == "Literal":
        return node.value()
    if _kind(node) == "UnresolvedFunction" and str(node.functionName()) == "array":
        found = [_literal(each) for each in _sequence(node.arguments())]
        return None if None in found else found
    return None


# ---- file systems --------------------------------------------------------------------------------------------------


class SparkFiles:
    """Files where Spark keeps its checkpoints: this disk, or a store that the cluster shares. Paths are Hadoop's.

    What cannot be read or written raises OSError.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        return bool(self._at(path, lambda files, place: files.exists(place)))

    def names(self, path: str) -> list[str]:
        """What a folder holds."""
        return self._at(path, lambda files, place: [str(each.getPath().getName()) for each in files.listStatus(place)])

    def read(self, path: str) -> str:
        def whole(files: Any, place: Any) -> str:
            opened = files.open(place)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8"))
            finally:
                opened.close()

        return self._at(path, whole)

    def write(self, path: str, text: str, *, overwrite: bool = True) -> None:
        def create(files: Any, place: Any) -> None:
            written = files.create(place, overwrite)
            try:
                written.write(bytearray(text.encode()))
            finally:
                written.close()

        self._at(path, create)

    def rename(self, path: str, new: str) -> bool:
        """Whether that worked; a store may refuse where ``new`` is there already."""
        return bool(self._at(path, lambda files, place: files.rename(place, self._path(new))))

    def remove(self, path: str) -> None:
        """A file, or a folder with all it holds; nothing happens where there is none."""
        self._at(path, lambda files, place: files.delete(place, True))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _at(self, path: str, action: Callable[[Any, Any], T]) -> T:
        place = self._path(path)
        try:
            return action(place.getFileSystem(self._conf), place)
        except Py4JJavaError as error:
            name = str(error.java_exception.getClass().getName())
            for java, kind in JAVA_ERRORS.items():
                if java in name:
                    raise kind(str(error.java_exception.getMessage())) from error
            raise OSError(str(error.java_exception.getMessage())) from error


JAVA_ERRORS: dict[str, type[OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "FileAlreadyExistsException": FileExistsError,
}


# ---- listeners and processes ---------------------------------------------------------------------------------------


class ProgressListener(StreamingQueryListener):
    """A listener that gets progress reports as JSON.

    PySpark makes a Python object of every progress event by hundreds of calls into the JVM, some of which look through
    all jars for a class: a quarter of what the JVM did in small micro-batches. So the event is taken as the JSON it can
    give.
    """

    _wrapped: Any = None

    @abstractmethod
    def progressed(self, text: str) -> None:
        """A micro-batch has ended; ``text`` is Spark's report."""

    @property
    def _jlistener(self) -> Any:
        """Asked for by PySpark when it adds the listener, and once more when it removes it."""
        if self._wrapped is None:
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_AsJson(self))
        return self._wrapped


class _AsJson(JStreamingQueryListener):
    """What the JVM calls."""

    def __init__(self, listener: ProgressListener) -> None:
        super().__init__(listener)
        self._listener = listener

    def onQueryProgress(self, jevent: Any) -> None:
        self._listener.progressed(str(jevent.progress().json()))


def refuse_connect(spark: SparkSession) -> None:
    """A session of Spark Connect is a client of a Spark elsewhere, without a JVM to ask. Said before anything else."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UsageError("headrace needs Spark's JVM beside this process, and Spark Connect has none", CLASSIC)


def session_id(spark: SparkSession) -> str:
    """Of the JVM's session: any number of Python's objects may stand for one of those."""
    return str(spark._jsparkSession.sessionUUID())


def exit_status(spark: SparkSession) -> int | None:
    """With which status Spark's process has ended; None while it runs, or where it is not our child."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


# ---- rows ----------------------------------------------------------------------------------------------------------


def arrow_blocks(frame: DataFrame, rows_max: int) -> Iterator[pa.RecordBatch]:
    """What ``toLocalIterator`` does with pickled rows, with the Arrow that ``toArrow`` collects."""
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    rows: Any = frame._jdf
    jvm: Any = frame.sparkSession._jvm
    settings = rows.sparkSession().sessionState().conf()
    blocks = rows.toArrowBatchRdd(rows_max, "UTC", False, False)  # a name may come twice, and no large types
    served = jvm.PythonRDD.toLocalIteratorAndServe(
        jvm.org.apache.spark.sql.execution.SQLExecutionRDD(blocks, settings),  # so that tasks know the session's
        True,  # the next partition is computed meanwhile
    )
    for block in _local_iterator_from_socket(served, NoOpSerializer()):
        yield pa.ipc.read_record_batch(pa.py_buffer(block), schema)
