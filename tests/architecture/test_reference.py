"""The pages of docs/ that are printed from the code are up to date, and every exported name has an entry there.

Here and not in tests/docs, so that ``make check`` sees it: a new function of ``hr`` needs ``make docs``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def of_docs(name: str) -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))


GENERATE, REFERENCE = of_docs("generate"), of_docs("api_reference")


@pytest.mark.parametrize("page", GENERATE.PRINTED)
def test_a_printed_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text() == GENERATE.PRINTED[page](), "run `make docs` and commit the pages"


@pytest.mark.parametrize("module", REFERENCE.MODULES)
def test_every_exported_name_is_described(module: str) -> None:
    """By words, besides its signature: what a page prints for a name without a docstring is code alone."""
    silent = []
    for name, lines in REFERENCE.entries(module).items():
        text = "\n".join(lines).split("```")
        words = " ".join(text[::2]).split("\n**`")[0].split()
        if len(words) < 3:
            silent.append(name)
    assert silent == [], "give them a docstring"


SNIPPET = re.compile(r"^```(?:python|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("howto/*.md"), *DOCS.glob("explanation/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_snippet_calls_functions_that_exist_with_arguments_that_they_take(page: Path) -> None:
    """Also where no test runs it."""
    wrong = []
    for block in SNIPPET.findall(page.read_text()):
        for call in (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            if re.fullmatch(r"hr\.(sinks\.)?\w+", name):
                wrong += [f"{name}: {problem}" for problem in problems(name, call)]
    assert wrong == []


def problems(name: str, call: ast.Call) -> list[str]:
    *_, module, function = name.replace("hr", "headrace.spark").split(".")
    home = importlib.import_module("headrace.spark.sinks" if module == "sinks" else "headrace.spark")
    if function not in home.__all__:
        return ["no such function"]
    parameters = inspect.signature(getattr(home, function)).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return []
    return [f"no argument {each.arg!r}" for each in call.keywords if each.arg and each.arg not in parameters]


def test_an_argument_that_was_renamed_would_be_found() -> None:
    (statement,) = ast.parse('hr.tumbling("1 minute", start=0)').body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    assert problems("hr.tumbling", statement.value) == ["no argument 'start'"]
