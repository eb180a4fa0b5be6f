"""Names in docstrings exist: a docstring that names what was renamed or removed misleads its reader.

In double backquotes, a name must be an identifier or a word of the package: something that its code defines, uses or
spells in a string. Files (``checkpoint.py``) must exist, also where comments name them.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.architecture import parsed

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headrace"
FILES = sorted(SOURCE.rglob("*.py"))
CODE = sorted(path for folder in ("src", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py"))

QUOTED = re.compile(r"``([^`\n]+)``")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?")
FILE = re.compile(r"(?<![\w/.*…-])[\w/]+\.py\b")

ELSEWHERE = {
    "FILE.py": "what a user gives to a command",
}
"""Files that docstrings may name though they are not here."""

OF_OTHERS = {
    "AUTOINCREMENT": "SQLite",
    "Complete": "CompleteCommit and CompleteAbort, states of a transaction in Kafka",
    "CopyData": "a message of PostgreSQL's protocol",
    "HEADRACE_NUM_PARTITIONS": "made from the name of a setting",
    "PR_SET_PDEATHSIG": "Linux",
    "anna": "a key in an example",
    "binlog_snapshot_file": "a status variable of MariaDB",
    "deltalake": "a package",
    "df": "a DataFrame of the user's",
    "key_base64": "made from the name of a field",
    "p50": "made from a number",
    "p90": "made from a number",
    "p99": "made from a number",
    "pg_current_snapshot": "PostgreSQL",
    "pg_logical_emit_message": "PostgreSQL",
    "prometheus_client": "a package",
    "session_window": "PySpark",
    "toLocalIterator": "PySpark",
    "total_order": "a field of Debezium's envelope",
    "value_base64": "made from the name of a field",
    "_timestampType": "made from the name of a field",
}
"""Names that no code of ours spells, and whose they are."""


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Of modules, classes and functions, and the strings that stand below a constant or a field."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def words_of(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Every identifier of some code, and what its strings spell, but not their sentences."""
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
            yield node.asname or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            if id(node) not in prose:
                yield from re.findall(r"\w+", node.value)


@cache
def known_words() -> frozenset[str]:
    known = set(dir(builtins)) | set(keyword.kwlist) | set(sys.stdlib_module_names) | OF_OTHERS.keys()
    for path in FILES:
        known |= set(words_of(parsed.nodes(path)))
        known |= {path.stem, path.parent.name}
    return frozenset(known)


@cache
def known_files() -> frozenset[str]:
    """Every path from any of its folders on: ``segment.py`` and ``log/segment.py``."""
    found = set(ELSEWHERE)
    for path in CODE:
        parts = path.relative_to(ROOT).parts
        found |= {"/".join(parts[first:]) for first in range(len(parts))}
    return frozenset(found)


def unknown_names(nodes: Iterable[ast.AST]) -> list[str]:
    found = []
    for line, text in docstrings(nodes):
        for quoted in QUOTED.findall(text):
            name = quoted.removesuffix("()")
            if NAME.fullmatch(quoted) and not name.endswith(".py") and not is_known(name):
                found.append(f"line {line}: ``{quoted}``")
    return found


def is_known(name: str) -> bool:
    return all(part in known_words() for part in name.split("."))


def unknown_files(source: str) -> list[str]:
    if known_files().issuperset(FILE.findall(source)):
        return []  # without a look at which of them are prose
    places = [*docstrings(ast.walk(ast.parse(source))), *comments(source)]
    return [f"line {line}: {name}" for line, text in places for name in FILE.findall(text) if name not in known_files()]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_names_in_docstrings_exist() -> None:
    assert [f"{name_of(path)}, {name}" for path in FILES for name in unknown_names(parsed.nodes(path))] == []


def test_files_that_docstrings_and_comments_name_exist() -> None:
    assert [f"{name_of(path)}, {name}" for path in FILES for name in unknown_files(parsed.source(path))] == []


def test_a_name_that_nothing_has_is_found() -> None:
    def found(docstring: str) -> list[str]:
        return unknown_names(list(ast.walk(ast.parse(f'"""{docstring}"""'))))

    assert found("See ``PartitionLog`` and ``no_such_thing``.") == ["line 1: ``no_such_thing``"]
    assert found("See ``PartitionLog.no_such_thing()``.") == ["line 1: ``PartitionLog.no_such_thing()``"]
    assert found("``kill -9`` and ``{'a': 1}`` are no names.") == []
    assert unknown_files('"""See checkpoint.py."""\n# as in log/no_such_file.py') == ["line 2: log/no_such_file.py"]


def test_every_exception_is_needed() -> None:
    text = "\n".join(docstring for path in FILES for _, docstring in docstrings(parsed.nodes(path)))
    assert [name for name in [*OF_OTHERS, *ELSEWHERE] if name not in text] == []
