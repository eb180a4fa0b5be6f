"""Why a query failed, in one line, with the user's line, and whether a restart can help.

Most errors of a query come as text: a traceback of a Python worker inside the message of a Java exception. The last
line of a traceback names the class of the error, so the class is looked up, and its ``retriable`` decides. Under an
error of Kafka that stays until somebody changes something, a line says so.
"""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyspark.errors import PySparkException

import headrace
from headrace.errors import LASTS, HeadraceError, KafkaError

__all__ = ["is_permanent", "place_of", "reason"]

REASON_CHARACTERS_MAX = 400
TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n")
PYTHON_ERROR = re.compile(
    TRACEBACK.pattern + r"((?:[ \t].*\n|\n)+)((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.+))?"
    rf"(\n{LASTS.format('[A-Z_]+')})?$",
    re.MULTILINE,
)
"""What follows the indented lines of a traceback."""
SPARK_PREFIX = re.compile(r"^\[[A-Z_.]+\] ")
SPARK_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
QUERY_DETAILS = re.compile(r"\s*=== Streaming Query ===.*$", re.DOTALL)
"""Ids, offsets and the plan; the log has them."""
QUERY_PREFIX = re.compile(r"^Query \[id = [^\]]*\] terminated with exception: ")
RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?:\s*SQLSTATE:|$)", re.DOTALL)
"""``raise_error`` in a query: our own guards, and those of users."""
NAMED_TWICE = re.compile(r"^\[DUPLICATED_METRICS_NAME\].*?: state (.+?)\. The same name")
"""Every operator that keeps state counts under its name."""
OWN_MODULES = "headrace."
FRAME = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python\d[.\d]*)[/\\]|\.zip[/\\]|^<")
"""Files that are not the user's; headrace's own are others still, in a checkout of it."""
OWN_FILES = Path(headrace.__file__).parent


def is_permanent(error: BaseException) -> bool:
    """Whether a restart would meet the same error again, because the user has to decide or to fix something."""
    raised = _raised(str(error))
    if not raised and RAISED.search(str(error)):
        return True
    if not raised and isinstance(error, KafkaError) and error.code.lasts:
        return True
    kind = _class_of(raised[-1].kind) if raised else type(error)
    if kind is None or not issubclass(kind, HeadraceError):
        return False
    return not kind.retriable or (bool(raised) and raised[-1].lasts)


def reason(error: BaseException) -> str:
    """What went wrong, in one line, out of what may be a page of two languages' tracebacks."""
    text = str(error).strip()
    raised = _raised(text)
    if raised:
        frames, name, message, _ = raised[-1]
        if _class_of(name):
            return _short(message)
        place = _last_of_the_user((file, int(line)) for file, line in FRAME.findall(frames))
        shown = f"{name.rpartition('.')[2]}: {message}".removesuffix(": ")
        return _short(f"{place}: {shown}" if place else shown)
    stated = RAISED.search(text)
    if stated:
        return _short(stated[1])
    twice = NAMED_TWICE.search(text)
    if twice:
        return _short(f"two operators of the query have the name {twice[1]!r}; name= gives one of them another")
    line = SPARK_STATE.sub("", QUERY_DETAILS.sub("", text))
    line = SPARK_PREFIX.sub("", line)
    line = QUERY_PREFIX.sub("", line)
    if not isinstance(error, HeadraceError | PySparkException):
        line = f"{type(error).__name__}: {line}"
    return _short(SPARK_PREFIX.sub("", line))


def place_of(error: BaseException) -> str:
    """FILE:LINE of the last line that is the user's, and not deep in a library; empty when there is none."""
    return _last_of_the_user((each.filename, each.lineno or 0) for each in traceback.extract_tb(error.__traceback__))


def _last_of_the_user(frames: Iterable[tuple[str, int]]) -> str:
    found = [each for each in frames if not LIBRARY.search(each[0]) and OWN_FILES not in Path(each[0]).parents]
    if not found:
        return ""
    path, line = Path(found[-1][0]), found[-1][1]
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"


class _Raised(NamedTuple):
    """The end of a traceback."""

    frames: str
    kind: str
    message: str
    lasts: bool


def _raised(text: str) -> list[_Raised]:
    """The end of every traceback.

    One may stand in the message of another: a sink that is written to inside of foreachBatch fails in a process of
    Python, for a JVM, which tells the driver's Python.
    """
    found = (PYTHON_ERROR.match(text, each.start()) for each in TRACEBACK.finditer(text))
    return [_Raised(each[1], each[2], each[3] or "", bool(each[4])) for each in found if each is not None]


def _class_of(name: str) -> type[HeadraceError] | None:
    """The class of an error of headrace, by its full name; None for all others."""
    module, _, short = name.rpartition(".")
    if not module.startswith(OWN_MODULES):
        return None
    try:
        found = getattr(importlib.import_module(module), short, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, HeadraceError) else None


def _short(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= REASON_CHARACTERS_MAX else line[: REASON_CHARACTERS_MAX - 1] + "…"
