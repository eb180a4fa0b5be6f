"""Pipelines: functions from a Spark session to a DataFrame, with a name and a place for their rows.

    @hr.pipeline(sink=hr.sinks.topic("revenue", key="minute"))
    def revenue_per_minute(spark):
        ...
        return rows

The decorator only writes the function down and gives it back unchanged, so that a test can call it like any other.
``headrace run FILE.py`` reads the file and runs what was written down.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of
from headrace.spark.run import dashboards
from headrace.spark.run.dashboards import Dashboard
from headrace.spark.run.failures import place_of
from headrace.spark.run.session import STATE_STORES
from headrace.spark.sinks import Sink, as_sink, console
from headrace.spark.sinks.plain import BatchWrite
from headrace.spark.sinks.several import several

__all__ = ["Builder", "Loaded", "Pipeline", "check_file", "choose", "load_file", "pipeline", "registered"]

Builder = Callable[[SparkSession], DataFrame]
B = TypeVar("B", bound=Builder)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
OUTPUT_MODES = ("append", "update", "complete")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One function that was written down, and how to run it."""

    name: str
    build: Builder
    sink: Sink
    every: str = ""
    output_mode: str | None = None
    state: str | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file writes down."""

    pipelines: list[Pipeline]
    dashboards: list[Dashboard]


_registered: dict[str, Pipeline] = {}


@overload
def pipeline(function: B, /) -> B: ...
@overload
def pipeline(
    *,
    sink: Sink | BatchWrite | None = None,
    sinks: Sequence[Sink | BatchWrite] | None = None,
    name: str | None = None,
    every: str = "",
    output_mode: str | None = None,
    state: str | None = None,
) -> Callable[[B], B]: ...
def pipeline(
    function: Builder | None = None,
    /,
    *,
    sink: Sink | BatchWrite | None = None,
    sinks: Sequence[Sink | BatchWrite] | None = None,
    name: str | None = None,
    every: str = "",
    output_mode: str | None = None,
    state: str | None = None,
) -> Any:
    """Declare a function as a pipeline, for ``headrace run``.

    ``sink``: one of ``headrace.spark.sinks``, or a function of (rows, batch id); default: the console. ``sinks``:
    several of them, for which the source is read once; ``sink.transform(function)`` gives one of them a part of the
    rows. ``name``: default: the function's name; the checkpoint has the same name. ``every``: the trigger interval,
    such as ``"10 seconds"``; by default one micro-batch follows the other. ``output_mode``: append, update or
    complete; by default the one that fits. ``state``: where Spark's own joins and aggregations keep their state,
    ``"disk"`` (default) or ``"memory"``, which is faster and must fit into the heap.
    """
    if output_mode is not None and output_mode not in OUTPUT_MODES:
        raise UsageError(f"output_mode={output_mode!r} must be one of {', '.join(OUTPUT_MODES)}")
    if state is not None and state not in STATE_STORES:
        raise UsageError(f"state={state!r} must be one of {', '.join(STATE_STORES)}")
    if every:
        micros_of(every, "every")
    if sink is not None and sinks is not None:
        raise UsageError("a pipeline has either sink= or sinks=, and not both", "sinks=[one, other]")
    where = several(sinks) if sinks is not None else console() if sink is None else as_sink(sink)

    def write_down(build: B) -> B:
        chosen = name or str(getattr(build, "__name__", ""))
        if not NAME.fullmatch(chosen):
            raise UsageError(
                f"{chosen!r} cannot name a pipeline: letters, digits, '.', '_' and '-' can", "pipeline(name=…)"
            )
        made = Pipeline(chosen, build, where, every, output_mode, state, _origin(build))
        _check_takes_a_session(build, chosen)
        known = _registered.get(chosen)
        if known is not None and known.origin != made.origin:
            raise UsageError(
                f"two pipelines are named {chosen!r}: {known.origin} and {made.origin}", "pipeline(name=…)"
            )
        _registered[chosen] = made
        return build

    return write_down if function is None else write_down(function)


def _check_takes_a_session(build: Builder, name: str) -> None:
    try:
        inspect.signature(build).bind(None)
    except TypeError as error:
        raise UsageError(
            f"pipeline {name!r} is called with the session and nothing else: {error}", f"def {name}(spark): …"
        ) from error
    except ValueError:
        return  # a builtin, which does not tell


def _origin(build: Builder) -> str:
    code = getattr(build, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(build)


def registered() -> list[Pipeline]:
    """Every pipeline written down in this process, in order."""
    return list(_registered.values())


def choose(loaded: Loaded, only: tuple[str, ...]) -> Loaded:
    """With the pipelines that are named, or all of them."""
    pipelines = loaded.pipelines
    unknown = [name for name in only if name not in {each.name for each in pipelines}]
    if unknown:
        names = ", ".join(each.name for each in pipelines)
        raise UsageError(f"there is no pipeline {unknown[0]!r}", f"there are: {names}")
    return replace(loaded, pipelines=[each for each in pipelines if not only or each.name in only])


# ---- files ---------------------------------------------------------------------------------------------------------


def check_file(path: Path) -> None:
    """What can be known of a file without running it. Running it may need Spark: ``F.col`` at its top level does."""
    if path.is_dir():
        raise UsageError(f"{path.resolve()} is a folder", "headrace run FILE.py")
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{_place(path, error)}: {type(error).__name__}: {error}") from error


def load_file(path: Path) -> Loaded:
    """Run a Python file and give the pipelines and dashboards that it writes down.

    The functions in it, and in the modules beside it, travel to Spark's workers by value: the workers need not have the
    file.
    """
    check_file(path)
    folder = path.resolve().parent
    before = set(sys.modules)
    with _collected() as found, dashboards.collected() as charts:
        module = _execute(path)
    beside = [sys.modules[name] for name in set(sys.modules) - before]
    for each in {module, *(other for other in beside if _lies_in(other, folder))}:
        cloudpickle.register_pickle_by_value(each)  # type: ignore[no-untyped-call]
    if not found:
        raise UsageError(f"{path} has no pipeline", "decorate a function with @hr.pipeline(sink=…)")
    return Loaded(list(found.values()), charts)


@contextlib.contextmanager
def _collected() -> Iterator[dict[str, Pipeline]]:
    """What is written down meanwhile, apart from what was there before."""
    before = dict(_registered)
    _registered.clear()
    found: dict[str, Pipeline] = {}
    try:
        yield found
        found.update(_registered)
    finally:
        _registered.clear()
        _registered.update(before)


def _execute(path: Path) -> ModuleType:
    """As a module with its own name, so that a program's ``if __name__ == "__main__"`` stays quiet."""
    whole = str(path.resolve())
    mark = hashlib.sha256(whole.encode()).hexdigest()[:8]
    name = f"headrace_file_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{mark}"
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.resolve().parent) not in sys.path:
        sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except UsageError as error:
        raise UsageError(f"{_place(path, error)}: {error.message}", error.hint) from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{_place(path, error)}: {type(error).__name__}: {error}") from error
    return module


def _place(path: Path, error: BaseException) -> str:
    """The user's line where it went wrong."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{error.filename}:{error.lineno}"
    return place_of(error) or str(path)


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and Path(str(file)).resolve().parent == folder
