"""A skip is a failure where servers are required: a pytest plugin, loaded by ``tests/conftest.py``.

Tests skip when a program or a server is missing, so that anybody can run the rest. Under
``HEADRACE_REQUIRE_SERVERS=1`` nothing may be missing: a skip whose reason is not in ``ALLOWED`` fails its test. The
allowed ones are counted at the end of the run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from tests.servers.process import CannotRun

__all__ = ["ALLOWED", "AllowedSkip", "or_skip", "servers_required", "skip_or_fail"]

VARIABLE = "HEADRACE_REQUIRE_SERVERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedSkip:
    """A skip that is right even where servers are required. ``applies`` says on which machines."""

    begins: str
    why: str
    applies: Callable[[], bool] = lambda: True


ALLOWED = (
    AllowedSkip(
        begins="root may write everywhere",
        why="a folder without permissions is no obstacle for root",
        applies=lambda: os.geteuid() == 0,
    ),
    AllowedSkip(
        begins="only root may mount",
        why="tests on a small filesystem mount one; a limit on file sizes stands in for them in tests/interop",
        applies=lambda: os.geteuid() != 0,
    ),
    AllowedSkip(
        begins="kafka-python has no schema of it",
        why="its schemas end before these messages; golden bytes and the schemas of the Java client state them",
    ),
    AllowedSkip(
        begins="this filesystem keeps its pages",
        why="on tmpfs nothing is ever cold, so there is nothing to read in a thread",
    ),
    AllowedSkip(
        begins="HEADRACE_TEST_BROKER=",
        why="the user asked for one of the two brokers",
        applies=lambda: bool(os.environ.get("HEADRACE_TEST_BROKER")),
    ),
)


def servers_required() -> bool:
    return os.environ.get(VARIABLE) == "1"


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the tests of a missing server or program; fail where servers are required."""
    if servers_required():
        pytest.fail(f"{reason} ({VARIABLE}=1)", pytrace=False)
    pytest.skip(reason)


@contextmanager
def or_skip() -> Iterator[None]:
    """``with or_skip(), some_server() as server`` skips, or fails, when the server cannot run on this machine."""
    try:
        yield
    except CannotRun as why:
        skip_or_fail(str(why))


def allowed(reason: str) -> AllowedSkip | None:
    return next((each for each in ALLOWED if reason.startswith(each.begins) and each.applies()), None)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Of a skipped report, whose ``longrepr`` is file, line and text."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip that is not allowed into a failure that names the reason."""
    if not servers_required() or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = reason_of(report)
    if allowed(reason) is None:
        report.outcome = "failed"
        report.longrepr = f"skipped, and {VARIABLE}=1 allows no skip for: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse(report)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not servers_required():
        return
    found = (allowed(reason_of(report)) for report in terminalreporter.stats.get("skipped", []))
    for skip, count in Counter(each for each in found if each is not None).items():
        terminalreporter.write_line(f"allowed skips: {count} × {skip.begins} ({skip.why})")
