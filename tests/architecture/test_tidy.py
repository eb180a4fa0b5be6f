"""The habits a reader can count: sizes, leftovers, dead files, public names."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path

import headrace
from tests.architecture import parsed

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headrace"
SOURCE_FILES = sorted(SOURCE.rglob("*.py"))
FOLDERS_WITH_CODE = ("src", "tests", "benchmarks", "examples", "docs")
ALL_FILES = sorted(path for folder in FOLDERS_WITH_CODE for path in (ROOT / folder).rglob("*.py"))

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700

# Spelled in halves so that this file does not find itself.
REMINDERS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|for n" r"ow\b|place" r"holder", re.IGNORECASE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def too_long(code: str) -> list[str]:
    """Functions with more lines than they may have."""
    return [
        f"{function.name} has {lines} lines"
        for function in parsed.functions(code)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]


def test_no_function_is_longer_than_seventy_lines_and_no_file_longer_than_seven_hundred() -> None:
    found = [f"{name_of(path)}: {what}" for path in ALL_FILES for what in too_long(parsed.source(path))]
    found += [name_of(path) for path in ALL_FILES if parsed.source(path).count("\n") > FILE_LINES_MAX]
    assert found == []


def test_the_counter_of_function_lines_finds_a_function_of_seventy_one_lines_wherever_it_is() -> None:
    assert too_long("def f():\n" + "    pass\n" * 69) == []
    assert too_long("def f():\n" + "    pass\n" * 70) == ["f has 71 lines"]
    nested = "class A:\n try:\n  pass\n except E:\n  match a:\n   case 1:\n    async def f():\n" + "     pass\n" * 70
    assert too_long(nested) == ["f has 71 lines"]


def test_nobody_left_a_reminder_behind() -> None:
    left = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in ALL_FILES
        if REMINDERS.search(parsed.source(path))
        for number, line in enumerate(parsed.source(path).splitlines(), 1)
        if REMINDERS.search(line)
    ]
    assert left == []


def test_the_log_knows_none_of_kafkas_error_codes() -> None:
    """The contracts in .importlinter see modules; this sees names. ``broker/errors.py`` has the codes."""
    found = {
        name_of(path): node.id
        for path in sorted((SOURCE / "log").rglob("*.py"))
        for node in parsed.nodes(path)
        if isinstance(node, ast.Name) and node.id in ("ErrorCode", "KafkaError")
    }
    assert found == {}


def imported_names(path: Path) -> set[str]:
    """All module names that a file imports, with the packages on the way to them."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names: set[str] = set()
    for node in parsed.nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("headrace."):
            names.add(node.value)  # modules that load lazily or run as a child are named in a string
    return names


def entry_points() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {target.partition(":")[0] for target in project.get("scripts", {}).values()}


def test_every_module_is_used_by_something() -> None:
    given_to_headrace_run = {"headrace.demo.pipelines"}
    printed_into_docs = {"headrace.broker.bounds"}
    used = entry_points() | {"headrace"} | given_to_headrace_run | printed_into_docs
    for path in SOURCE_FILES:
        used |= imported_names(path) - {module_name(path)}
    used |= {".".join(name.split(".")[:depth]) for name in used for depth in range(1, name.count(".") + 1)}
    public_for_users = ("headrace.testing", "headrace.client", "headrace.sourcing", "headrace.spark.testing")
    unused = [
        module_name(path)
        for path in SOURCE_FILES
        if path.name != "__main__.py"
        and module_name(path) not in used
        and not module_name(path).startswith(public_for_users)
    ]
    assert unused == []


def offered_wrongly(name: str) -> list[str]:
    """What ``__all__`` of a module lists and the module lacks, or lists twice."""
    module = importlib.import_module(name)
    offered = Counter(getattr(module, "__all__", ()))
    return [f"{name}.{entry}" for entry, count in offered.items() if count > 1 or not hasattr(module, entry)]


def test_every_name_a_module_offers_exists_and_is_listed_once() -> None:
    names = [module_name(path) for path in SOURCE_FILES if path.name != "__main__.py"]
    assert [entry for name in names for entry in offered_wrongly(name)] == []


def not_offered(path: Path) -> set[str]:
    """What a package imports from its own modules and does not list in ``__all__``."""
    package = module_name(path)
    reexported = {
        f"{package}.{alias.asname or alias.name}"
        for node in parsed.tree(path).body
        if isinstance(node, ast.ImportFrom) and ((node.module or "").startswith(package) or node.level == 1)
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    }
    if not reexported:
        return set()
    return reexported - {f"{package}.{name}" for name in getattr(importlib.import_module(package), "__all__", ())}


def test_a_package_that_reexports_says_so_in_all() -> None:
    packages = [path for path in SOURCE_FILES if path.name == "__init__.py"]
    assert [name for path in packages for name in sorted(not_offered(path))] == []


def test_the_version_of_the_package_is_the_one_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert getattr(headrace, "__version__", project["version"]) == project["version"]
