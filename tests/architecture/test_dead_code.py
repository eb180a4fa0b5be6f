"""No function or class of the package is without a caller.

Judged by names: one that occurs nowhere in the package but where it is defined is dead. Offered to users are the
modules of ``PUBLIC``; called by others are methods that a base class of theirs declares, and what a decorator
registers.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.architecture import parsed
from tests.architecture.test_tidy import SOURCE_FILES, module_name

PUBLIC = (
    "headrace.testing",
    "headrace.client",
    "headrace.sourcing",
    "headrace.spark.patterns.fluent",
    "headrace.spark.testing",
)
REGISTERING = ("command", "pipeline")
"""Decorators with one of these in their name hand the function to somebody who calls it."""

CALLED_BY_OTHERS = {
    "headrace.broker.state.StateStore.rewriting": "tests wait for the end of a rewrite",
    "headrace.log.log.PartitionLog.sync_all": "tests make a log durable without a flusher",
    "headrace.spark.run.pipelines.registered": "tests look at what a file has registered",
}


@dataclass(frozen=True, slots=True)
class Definition:
    module: str
    owner: tuple[str, ...]
    name: str
    decorators: tuple[ast.expr, ...]

    @property
    def qualified(self) -> str:
        return ".".join((self.module, *self.owner, self.name))


def definitions(tree: ast.AST, module: str, owner: tuple[str, ...] = ()) -> Iterator[Definition]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Definition(module, owner, node.name, tuple(node.decorator_list))
            yield from definitions(node, module, (*owner, node.name))
        elif isinstance(node, parsed.STATEMENTS):
            yield from definitions(node, module, owner)


def uses(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]


def dead(trees: Mapping[str, ast.AST], used: Container[str]) -> list[Definition]:
    return [
        each
        for module, tree in trees.items()
        for each in definitions(tree, module)
        if each.name not in used and not (each.name.startswith("__") and each.name.endswith("__"))
    ]


def is_registered(definition: Definition) -> bool:
    return any(word in ast.unparse(each) for each in definition.decorators for word in REGISTERING)


def overrides_anothers(definition: Definition) -> bool:
    """Whether a base class that is not ours has a method of the name: then others call it."""
    found: object = importlib.import_module(definition.module)
    for name in definition.owner:
        found = getattr(found, name, None)
    if not isinstance(found, type):
        return False
    return any(
        hasattr(base, definition.name) for base in found.__mro__[1:] if not base.__module__.startswith("headrace")
    )


def test_every_function_and_class_has_a_caller() -> None:
    trees = {module_name(path): parsed.tree(path) for path in SOURCE_FILES}
    used = {name for path in SOURCE_FILES for name in uses(parsed.nodes(path))}
    found = {
        each.qualified
        for each in dead(trees, used)
        if not each.module.startswith(PUBLIC) and not is_registered(each) and not overrides_anothers(each)
    }
    assert found - CALLED_BY_OTHERS.keys() == set(), "nobody in the package calls these"
    assert CALLED_BY_OTHERS.keys() - found == set(), "these are called, or gone"


def test_a_function_without_a_caller_is_found() -> None:
    tree = ast.parse("def used():\n    pass\nclass Kept:\n    def lost(self):\n        used()\nKept()\n")
    assert [each.qualified for each in dead({"m": tree}, set(uses(ast.walk(tree))))] == ["m.Kept.lost"]
