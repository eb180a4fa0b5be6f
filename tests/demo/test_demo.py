"""``headrace demo`` on all its real parts, for some seconds; and its audit, which must be able to fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from headrace.cli.demo import verdict
from headrace.demo.audit import Line, Rows
from headrace.demo.display import Rate, bar

pytestmark = pytest.mark.timeout(600)
WHAT = ("orders", "products", "revenue per minute", "best sellers", "orders at the price of their time", "clicks")


def start_demo(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", "demo", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def started_by(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    return list(psutil.Process(demo.pid).children(recursive=True))


@pytest.mark.spark
@pytest.mark.servers
def test_the_database_the_topics_the_views_and_the_index_say_the_same_in_the_end() -> None:
    demo = start_demo("--seconds", "15")
    try:
        output, errors = demo.communicate(timeout=500)
    except BaseException:
        os.killpg(demo.pid, signal.SIGKILL)
        raise
    assert demo.returncode == 0, output + errors
    audited = output[output.index("What the places say") :].splitlines()
    for what in WHAT:
        (line,) = [each for each in audited if each.startswith(f"{what}  ")]
        assert line.endswith("equal"), line
        assert "database 0" not in line, line


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.slow
def test_an_interrupt_closes_the_day_and_leaves_no_process_behind(tmp_path: Path) -> None:
    demo = start_demo()
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 200
    while len(children) < 6 and time.monotonic() < deadline:
        children = started_by(demo)
        time.sleep(0.5)
    demo.send_signal(signal.SIGINT)
    output, errors = demo.communicate(timeout=400)
    assert demo.returncode == 0, output + errors
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    assert len(gone) == len(children)


# ---- its parts -----------------------------------------------------------------------------------------------------


def test_a_line_agrees_only_when_all_places_have_the_same_contents() -> None:
    assert Line("x", {"database": {1: ("a",)}, "topic": {1: ("a",)}, "index": {1: ("a",)}}).agrees
    assert not Line("x", {"database": {1: ("a",)}, "topic": {1: ("a",)}, "index": {1: ("b",)}}).agrees
    assert not Line("x", {"database": {1: ("a",)}, "view": {}}).agrees
    assert not Line("x", {"database": {}, "view": {1: ("a",)}}).agrees


def test_a_difference_is_told_with_its_row_and_ends_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    good = Line("orders", {"database": {1: ("a",)}, "topic": {1: ("a",)}})
    bad = Line("best sellers", {"database": {7: (3,)}, "view": {7: (2,)}})
    assert verdict([good, bad], None) == 1
    told = capsys.readouterr()
    assert "best sellers 7: database has (3,), view has (2,)" in told.err
    assert "DIFFERENT" in told.out
    assert verdict([good], 12.0) == 0


def test_many_differences_are_told_by_their_number() -> None:
    rows: Rows = {number: (number,) for number in range(10)}
    assert Line("x", {"database": rows, "view": {}}).differences()[-1] == "… and 7 more"


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.at(0.0, 0) == 0.0
    assert rate.at(10.0, 100) == 10.0
    assert rate.at(20.0, 400) == 30.0


def test_a_bar_has_eighths() -> None:
    assert (bar(0.0), bar(1.0), bar(0.5), bar(1 / 160)) == ("", "█" * 20, "█" * 10, "▏")
