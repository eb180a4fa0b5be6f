"""The habits a reader can count: sizes, leftovers, dead files, public names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import headrace

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


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def too_long(source: str) -> list[str]:
    return [
        f"{function.name} has {lines} lines"
        for function in functions_of(ast.parse(source))
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]


@pytest.mark.parametrize("path", ALL_FILES, ids=name_of)
def test_no_function_is_longer_than_seventy_lines_and_no_file_longer_than_seven_hundred(path: Path) -> None:
    source = path.read_text()
    assert too_long(source) == []
    assert source.count("\n") <= FILE_LINES_MAX


def test_the_counter_of_function_lines_finds_a_function_of_seventy_one_lines() -> None:
    assert too_long("def f():\n" + "    pass\n" * 69) == []
    assert too_long("def f():\n" + "    pass\n" * 70) == ["f has 71 lines"]


@pytest.mark.parametrize("path", ALL_FILES, ids=name_of)
def test_nobody_left_a_reminder_behind(path: Path) -> None:
    left = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if REMINDERS.search(line)
    ]
    assert left == []


@pytest.mark.parametrize("path", sorted((SOURCE / "log").rglob("*.py")), ids=name_of)
def test_the_log_knows_none_of_kafkas_error_codes(path: Path) -> None:
    """The contracts in .importlinter see modules; this sees names. ``broker/errors.py`` has the codes."""
    names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    assert names & {"ErrorCode", "KafkaError"} == set()


def imported_names(path: Path) -> set[str]:
    """All module names that a file imports, with the packages on the way to them."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
    used = entry_points() | {"headrace"} | given_to_headrace_run
    for path in SOURCE_FILES:
        used |= imported_names(path) - {module_name(path)}
    used |= {".".join(name.split(".")[:depth]) for name in used for depth in range(1, name.count(".") + 1)}
    public_for_users = ("headrace.testing", "headrace.client", "headrace.spark.testing")
    unused = [
        module_name(path)
        for path in SOURCE_FILES
        if path.name != "__main__.py"
        and module_name(path) not in used
        and not module_name(path).startswith(public_for_users)
    ]
    assert unused == []


MODULES = sorted(info.name for info in pkgutil.walk_packages([str(SOURCE)], "headrace.") if "__main__" not in info.name)


@pytest.mark.parametrize("name", ["headrace", *MODULES])
def test_every_name_a_module_offers_exists_and_is_listed_once(name: str) -> None:
    module = importlib.import_module(name)
    offered = getattr(module, "__all__", None)
    if offered is None:
        return
    assert [entry for entry in offered if not hasattr(module, entry)] == []
    assert len(offered) == len(set(offered))


@pytest.mark.parametrize("path", [path for path in SOURCE_FILES if path.name == "__init__.py"], ids=name_of)
def test_a_package_that_reexports_says_so_in_all(path: Path) -> None:
    """What a package imports from its own modules it offers, so ``__all__`` lists it."""
    tree = ast.parse(path.read_text())
    package = module_name(path)
    reexported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and ((node.module or "").startswith(package) or node.level == 1)
        for alias in node.names
    }
    if not reexported:
        return
    offered = set(getattr(importlib.import_module(package), "__all__", []))
    assert {name for name in reexported if not name.startswith("_")} <= offered


def test_the_version_of_the_package_is_the_one_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert getattr(headrace, "__version__", project["version"]) == project["version"]
