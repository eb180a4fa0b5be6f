"""Requests see topics, groups and transactional ids through the access gate, and in no other way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BROKER = Path(__file__).resolve().parents[2] / "src" / "headrace" / "broker"

HANDLERS = [
    "admin.py",
    "client_quotas.py",
    "cluster.py",
    "config_changes.py",
    "config_descriptions.py",
    "fetch.py",
    "fetch_pending.py",
    "metadata.py",
    "partition_descriptions.py",
    "positions.py",
    "produce.py",
    "queues/admin.py",
    "queues/moves.py",
    "snapshots.py",
    "security.py",
    "groups/commits.py",
    "groups/admin.py",
    "groups/offset_fetch.py",
    "transactions/listing.py",
    "transactions/additions.py",
    "transactions/producers.py",
]
"""Modules that only answer requests."""

COORDINATORS = ["groups/coordinator.py", "transactions/coordinator.py", "transactions/endings.py"]
"""Modules that own what they look up, and also answer requests: in those, functions that are given a request."""

REGISTRIES = {"_topics", "_groups", "_transactions"}
REGISTRY_TYPES = {"Topics", "Groups", "Transactions"}
LOOKUPS = {"get", "by_id", "find", "all", "names", "values", "items", "keys", "partition"}


def names_a_registry(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in REGISTRIES


def lookups_in(tree: ast.AST) -> Iterator[str]:
    """Lookups in a registry that the object keeps, and functions that are handed a registry."""
    for node in ast.walk(tree):
        found = (
            (isinstance(node, ast.Attribute) and node.attr in LOOKUPS and names_a_registry(node.value))
            or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and names_a_registry(node.value))
            or (isinstance(node, ast.arg) and node.annotation and ast.unparse(node.annotation) in REGISTRY_TYPES)
        )
        if found:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def without_constructors(tree: ast.AST) -> ast.AST:
    """A constructor takes a registry that its class changes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body = [
                each for each in node.body if not (isinstance(each, ast.FunctionDef) and each.name == "__init__")
            ] or [ast.Pass()]
    return tree


def functions_with_requests(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(each.arg == "request" for each in node.args.args):
            yield node


@pytest.mark.parametrize("name", HANDLERS)
def test_a_handler_looks_up_nothing_but_through_the_gate(name: str) -> None:
    tree = without_constructors(ast.parse((BROKER / name).read_text()))
    assert list(lookups_in(tree)) == []


@pytest.mark.parametrize("name", COORDINATORS)
def test_a_coordinator_looks_up_nothing_for_a_request_but_through_the_gate(name: str) -> None:
    tree = ast.parse((BROKER / name).read_text())
    assert [each for function in functions_with_requests(tree) for each in lookups_in(function)] == []


def test_the_module_of_every_handler_is_watched() -> None:
    """A module that takes requests is listed above, or belongs to a coordinator that was given what it needs."""
    inner = {"access.py", "broker.py", "request.py", "overflow.py"}
    inner |= {
        f"groups/{name}"
        for name in ("classic.py", "consumer.py", "group.py", "heartbeats.py", "mixed.py", "rebalance.py")
    }
    takes_requests = {
        str(path.relative_to(BROKER))
        for path in BROKER.rglob("*.py")
        if any(True for _ in functions_with_requests(ast.parse(path.read_text())))
    }
    assert takes_requests - set(HANDLERS) - set(COORDINATORS) <= inner


@pytest.mark.parametrize(
    "source",
    [
        "self._topics.get(name)",
        "self._groups[group_id]",
        "self._transactions.values()",
        "def find(topics: Topics): pass",
    ],
)
def test_the_watcher_finds_a_lookup(source: str) -> None:
    assert list(lookups_in(ast.parse(source))) != []


def test_the_watcher_lets_changes_pass() -> None:
    allowed = "self._topics.create(name, 1)\nself._groups[name] = group\nrequest.access.topic(name, READ)"
    assert list(lookups_in(ast.parse(allowed))) == []
