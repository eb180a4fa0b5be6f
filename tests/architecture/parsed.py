"""Files of the package read and parsed once, for all tests of the code that run in one process."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["STATEMENTS", "functions", "nodes", "source", "tree"]

STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""What holds statements: functions and classes are below these and never below an expression."""


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A tree is many objects and no garbage: collecting while it grows takes longer than parsing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def source(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    with without_garbage_collection():
        return ast.parse(source(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def functions(code: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of some code, inner ones too. The tree is not kept."""
    with without_garbage_collection():
        return list(functions_below(ast.parse(code)))


def functions_below(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if isinstance(child, STATEMENTS):
            yield from functions_below(child)
