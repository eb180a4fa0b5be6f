"""The pages of docs/api: every name that a public module exports, with its signature and docstring."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

__all__ = ["MODULES", "entries", "page"]

WIDTH = 100
DEFAULT_CHARACTERS_MAX = 40
MODULES = {
    "headrace.spark": "api/spark.md",
    "headrace.spark.sinks": "api/sinks.md",
    "headrace.spark.testing": "api/spark-testing.md",
    "headrace.capture": "api/capture.md",
    "headrace.sourcing": "api/sourcing.md",
    "headrace.client": "api/client.md",
    "headrace.testing": "api/testing.md",
}
"""The public modules, each with its page."""


def page(name: str) -> str:
    """The text of a module's page."""
    module = importlib.import_module(name)
    lines = [f"# Python API: {name}", "", "Printed from the code by `make docs`; a test compares.", ""]
    lines += [*_prose(_opening(module.__doc__ or "")), ""]
    for title, text in entries(name).items():
        lines += [f"## {title}", "", *text, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _opening(doc: str) -> str:
    """The first paragraph of a module's docstring and the example after it; the rest is for those who change it."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    example = itertools.takewhile(lambda each: each.startswith("    "), blocks[1:])
    return "\n\n".join([blocks[0], *example])


def entries(name: str) -> dict[str, list[str]]:
    """What the page says of each exported name."""
    module = importlib.import_module(name)
    return {each: _entry(module, each, getattr(module, each)) for each in sorted(module.__all__, key=str.casefold)}


def _entry(module: ModuleType, name: str, value: Any) -> list[str]:
    if isinstance(value, ModuleType):
        return _prose(_opening(value.__doc__ or ""))
    if inspect.isclass(value):
        return _class(name, value)
    if callable(value) and inspect.isroutine(value):
        return [*_code(_call(name, value)), "", *_prose(value.__doc__ or "")]
    return [*_code(f"{name} = {_shown(value)}"), "", *_prose(_constant_doc(module, name))]


def _class(name: str, value: type) -> list[str]:
    lines = [*_code(f"class {_call(name, value)}"), "", *_prose(_own_doc(value))]
    if issubclass(value, enum.Enum):
        return [*lines, "", "Values: " + ", ".join(f"`{each.name}`" for each in value) + "."]
    if issubclass(value, Exception):
        return lines
    for method, function in _methods(value):
        if isinstance(function, property):
            lines += ["", f"**`{method}`**", "", *_prose(function.__doc__ or "")]
        else:
            lines += ["", f"**`{_one_line(_call(method, function))}`**", "", *_prose(function.__doc__ or "")]
    return lines


def _methods(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that have a docstring, those of our base classes included."""
    seen: set[str] = set()
    for base in value.__mro__:
        if not base.__module__.startswith("headrace"):
            continue
        for name, member in vars(base).items():
            found = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if name.startswith("_") or name in seen or not (inspect.isfunction(found) or isinstance(found, property)):
                continue
            seen.add(name)
            if found.__doc__:
                yield name, found


def _own_doc(value: type) -> str:
    """Without a docstring, a dataclass and a named tuple get their signature as one, which is no text."""
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if text.startswith(f"{value.__name__}(") else text


def _constant_doc(module: ModuleType, name: str) -> str:
    """The string that follows a constant's assignment, in the module that defines it."""
    for each in (module, *_imported_homes(module, name)):
        body = ast.parse(inspect.getsource(each)).body
        for statement, following in itertools.pairwise(body):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            if named and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                return str(following.value.value)
    return ""


def _imported_homes(module: ModuleType, name: str) -> Iterator[ModuleType]:
    for statement in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(statement, ast.ImportFrom) and name in [each.name for each in statement.names]:
            yield importlib.import_module(str(statement.module))


def _call(name: str, value: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parts = list(_parameters(signature))
    result = signature.return_annotation
    arrow = "" if inspect.isclass(value) or result is signature.empty else f" -> {_annotation(result)}"
    whole = f"{name}({', '.join(parts)}){arrow}"
    if len(whole) <= WIDTH:
        return whole
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){arrow}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    starred = False
    for each in signature.parameters.values():
        if each.name in ("self", "cls") or each.name.startswith("_"):
            continue
        if each.kind is each.VAR_POSITIONAL:
            starred = True
        elif each.kind is each.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        text = f"{star}{each.name}"
        if each.annotation is not each.empty:
            text += f": {_annotation(each.annotation)}"
        yield text if each.default is each.empty else f"{text} = {_shown(each.default)}"


def _annotation(value: Any) -> str:
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    text = re.sub(r"ForwardRef\('(.*)'\)", r"\1", text)
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", text.strip("'\""))


def _shown(value: Any) -> str:
    """A default or a constant, as far as it is short and the same in every process."""
    text = value.__name__ if inspect.isroutine(value) or inspect.isclass(value) else repr(value)
    return "…" if len(text) > DEFAULT_CHARACTERS_MAX or " at 0x" in text or text.startswith("<") else text


def _one_line(text: str) -> str:
    return re.sub(r",? \)", ")", re.sub(r"\(\s+", "(", " ".join(text.split())))


def _code(text: str) -> list[str]:
    return ["```", *text.split("\n"), "```"]


def _prose(doc: str) -> list[str]:
    """A docstring as Markdown: paragraphs are wrapped, indented blocks become code."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        if not block:
            continue
        if lines:
            lines.append("")
        if block.startswith(">>>") or all(line.startswith("    ") for line in block.split("\n") if line):
            lines += _code(textwrap.dedent(block))
        else:
            text = " ".join(block.replace("``", "`").split())
            lines += textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1]))
