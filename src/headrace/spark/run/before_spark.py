"""What can be known of a file of pipelines before Spark starts, which takes half a minute.

The file is run, unless its top level needs Spark (``F.col`` does); then it is run again later. The topics that it reads
are looked up where they stand in the text as plain names, read from the broker of the command line; in the functions
that are pipelines, and in those of the file that these call.
"""

from __future__ import annotations

import ast
import difflib
import re
import traceback
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import pyspark

from headrace.client import Client, ClientOptions
from headrace.client.connection import RequestTimedOut
from headrace.errors import UsageError
from headrace.spark.arguments import topic_name
from headrace.spark.run.dashboards import Dashboard
from headrace.spark.run.pipelines import Loaded, check_file, choose, load_file

__all__ = ["check_sinks", "check_topics", "load_early", "topics_read"]

STARTS_SPARK = re.compile(r"\b(getOrCreate|session)\s*\(")
PYSPARK = Path(pyspark.__file__).parent
SPARK_MODULE = "headrace.spark"
READERS = frozenset({"stream", "batch", "table"})
BROKER_TIMEOUT_MS = 2_000


def load_early(path: Path, only: tuple[str, ...]) -> Loaded | None:
    """The chosen pipelines of a file and its dashboards; None when only Spark can tell."""
    check_file(path)
    if STARTS_SPARK.search(path.read_text(errors="replace")):
        return None
    try:
        return choose(load_file(path), only)
    except UsageError as error:
        if error.__cause__ is not None and _comes_from_pyspark(error.__cause__):
            return None
        raise


def _comes_from_pyspark(error: BaseException) -> bool:
    """Without a session some of its functions raise their own errors, others fail an assertion."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(PYSPARK)


@dataclass(frozen=True, slots=True)
class TopicRead:
    topic: str
    """Empty where the name is not written there."""
    line: int
    function: str
    bootstrap: str = ""
    """Of the broker, where it is not that of the command line."""


def topics_read(text: str, chosen: Set[str] | None = None) -> list[TopicRead]:
    """What functions read without settings of encryption, from the default broker or one that is named as a literal.

    ``chosen``: only these functions, and those that they use. Topics that the file writes itself need not be there yet;
    they have no name here either.
    """
    module = ast.parse(text)
    names, readers, written = dict(_constants(module)), _Readers.of(module), topics_written(text)
    found = []
    for function in _used(module, chosen):
        for call in _calls(function, READERS | readers.functions):
            bootstrap = _bootstrap_of(call, names)
            if bootstrap is None or not readers.is_one(call):
                continue
            topics = [each.strip() for each in (_topic_of(call, names) or "").split(",")]
            unknown = [each for each in topics if each and each not in written]
            found += [TopicRead(each, call.lineno, function.name, bootstrap) for each in unknown or [""]]
    return found


def topics_written(text: str) -> set[str | None]:
    """Topics that are sinks, by their plain names."""
    module = ast.parse(text)
    names = dict(_constants(module))
    return {_text(call.args[0], names) for call in _calls(module, {"topic"}) if call.args}


def check_topics(path: Path, loaded: Loaded | None, bootstrap: str) -> None:
    """Refuse a broker that is away and a topic that is not there, with the line that reads or shows it."""
    text = path.read_text()
    chosen = None if loaded is None else {getattr(each.build, "__name__", "") for each in loaded.pipelines}
    wanted = [(path, each) for each in topics_read(text, chosen)]
    wanted += _shown(loaded.dashboards, topics_written(text)) if loaded is not None else []
    known: dict[str, list[str]] = {}
    for file, each in wanted:
        broker = each.bootstrap or bootstrap
        topics = known[broker] if broker in known else known.setdefault(broker, _topics_of(broker))
        if each.topic and each.topic not in topics:
            place = f"{file}:{each.line}: "
            close = difflib.get_close_matches(each.topic, topics, n=1)
            hint = f"did you mean {close[0]}?" if close else f"headrace topic create {topic_name(each.topic, place)}"
            raise UsageError(f"{place}there is no topic {each.topic!r} at {broker}", hint)


def _topics_of(bootstrap: str) -> list[str]:
    options = ClientOptions(
        client_id="headrace-run",
        connect_timeout_ms=BROKER_TIMEOUT_MS,
        request_timeout_ms=BROKER_TIMEOUT_MS,
        retry_timeout_ms=BROKER_TIMEOUT_MS,
    )
    try:
        with Client(bootstrap, options) as client:
            return [each.name for each in client.topics()]
    except RequestTimedOut as error:
        raise UsageError(error.message, "is it a Kafka listener, and is the broker busy or stopped?") from error


def check_sinks(loaded: Loaded | None) -> None:
    """Refuse a sink that cannot work on this machine; no target is asked."""
    for each in loaded.pipelines if loaded is not None else ():
        try:
            each.sink.check()
        except UsageError as error:
            raise UsageError(f"pipeline {each.name!r}: {error.message}", error.hint) from error


def _shown(dashboards: Sequence[Dashboard], written: Set[str | None]) -> list[tuple[Path, TopicRead]]:
    """Topics of dashboards that the file itself does not write, with where they stand."""
    found = []
    for each in dashboards:
        file, _, line = each.origin.rpartition(":")
        if each.topic not in written:
            found.append((Path(file), TopicRead(each.topic, int(line), "dashboard")))
    return found


def _used(module: ast.Module, chosen: Set[str] | None) -> list[ast.FunctionDef]:
    """The functions of a file that are named, and those that they name in turn; all of them without ``chosen``.

    A function within another is a part of that one.
    """
    functions = [each for each in module.body if isinstance(each, ast.FunctionDef)]
    if chosen is None:
        return functions
    inside = {
        each.name: {node.name for node in ast.walk(each) if isinstance(node, ast.FunctionDef)} for each in functions
    }
    named = {each.name: {node.id for node in ast.walk(each) if isinstance(node, ast.Name)} for each in functions}
    used = {each.name for each in functions if inside[each.name] & chosen}
    waiting = list(used)
    while waiting:
        further = (named[waiting.pop()] & named.keys()) - used
        used |= further
        waiting += further
    return [each for each in functions if each.name in used]


@dataclass(frozen=True, slots=True)
class _Readers:
    """How a file calls the functions that read topics; other libraries have a ``stream`` too."""

    modules: frozenset[str]
    functions: frozenset[str]

    @classmethod
    def of(cls, module: ast.Module) -> _Readers:
        modules, functions = {SPARK_MODULE}, set[str]()
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                modules |= {each.asname for each in node.names if each.name == SPARK_MODULE and each.asname}
            elif isinstance(node, ast.ImportFrom) and node.module == "headrace":
                modules |= {each.asname or each.name for each in node.names if each.name == "spark"}
            elif isinstance(node, ast.ImportFrom) and node.module == SPARK_MODULE:
                functions |= {each.asname or each.name for each in node.names if each.name in READERS}
        return cls(frozenset(modules), frozenset(functions))

    def is_one(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute):
            return ast.unparse(call.func.value) in self.modules
        return isinstance(call.func, ast.Name) and call.func.id in self.functions


def _topic_of(call: ast.Call, names: dict[str, str]) -> str | None:
    given = [each.value for each in call.keywords if each.arg == "topic"] or call.args[1:2]
    return _text(given[0], names) if given else None


def _bootstrap_of(call: ast.Call, names: dict[str, str]) -> str | None:
    """Empty for the broker of the command line; None where the broker, or how to talk to it, is not plain to see."""
    if any(each.arg is None for each in call.keywords):
        return None
    given = [each.value for each in call.keywords if each.arg == "bootstrap"]
    return _text(given[0], names) if given else ""


def _constants(module: ast.Module) -> Iterator[tuple[str, str]]:
    for each in module.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            for target in each.targets:
                if isinstance(target, ast.Name):
                    yield target.id, each.value.value


def _calls(within: ast.AST, names: Set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(within):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in names:
                yield node


def _text(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return names.get(node.id) if isinstance(node, ast.Name) else None
