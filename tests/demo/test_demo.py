"""``headrace demo`` on all its real parts, for some seconds; and its audit, which must be able to fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from headrace.cli.demo import Interrupts, own_command, verdict
from headrace.demo.audit import Line, Rows
from headrace.demo.display import Rate, bar
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)
WHAT = (
    "orders",
    "products",
    "revenue per minute",
    "best sellers",
    "fraud alerts",
    "orders at the price of their time",
    "clicks",
)


class Demo:
    """The command in its own process, with a folder for all that it writes."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-demo-test-"))
        self.folder.chmod(0o755)  # PostgreSQL runs as somebody else where the tests run as root
        self._output = self.folder / "output.log"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "demo", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.folder)},
                start_new_session=True,
            )

    def told(self) -> str:
        return self._output.read_text()

    def left(self) -> list[str]:
        return [each.name for each in self.folder.iterdir() if each != self._output]

    def until_open(self) -> list[psutil.Process]:
        """What runs by then."""
        eventually(lambda: "headrace demo, 0 s" in self.told() or self.process.poll() is not None, patience_s=300)
        return list(psutil.Process(self.process.pid).children(recursive=True))


@pytest.fixture
def demo(request: pytest.FixtureRequest) -> Iterator[Demo]:
    running = Demo(*request.param)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.terminate()
        running.process.wait()
        shutil.rmtree(running.folder, ignore_errors=True)


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.parametrize("demo", [("--seconds", "15")], indirect=True)
def test_the_database_the_topics_the_views_and_the_index_say_the_same_in_the_end(demo: Demo) -> None:
    assert demo.process.wait(550) == 0, demo.told()
    audited = demo.told()[demo.told().index("What the places say") :].splitlines()
    for what in WHAT:
        (line,) = [each for each in audited if each.startswith(f"{what}  ")]
        assert line.endswith("equal"), line
        assert "database 0" not in line, line
    assert demo.left() == []


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize("demo", [()], indirect=True)
def test_an_interrupt_closes_the_day_and_leaves_no_process_and_no_file_behind(demo: Demo) -> None:
    children = demo.until_open()
    commands = [line.split() for line in demo.told().splitlines() if line.startswith("  ") and " -b 127.0.0.1:" in line]
    assert len(commands) == 5
    for command in commands[:2]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "shop" in done.stdout
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(550) == 0, demo.told()
    assert "What the places say" in demo.told()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert demo.left() == []


@pytest.mark.spark
@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize("demo", [()], indirect=True)
def test_a_closed_terminal_and_then_an_interrupt_end_the_demo_unaudited_and_leave_nothing_behind(demo: Demo) -> None:
    children = demo.until_open()
    demo.process.send_signal(signal.SIGHUP)
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(300) != 0, demo.told()
    assert "What the places say" not in demo.told()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert demo.left() == []


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


def test_the_first_interrupt_is_noted_once_the_shop_is_open_and_every_other_one_ends_the_demo_at_once() -> None:
    asked = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        asked.take()
    asked.may_wait = True
    asked.take()
    assert asked.come
    with pytest.raises(KeyboardInterrupt):
        asked.take()


def test_the_commands_to_try_can_be_given_as_they_are_printed() -> None:
    for path in (os.environ["PATH"], str(Path(sys.executable).parent)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", path)
            command = [*own_command().split(), "--version"]
            assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.at(0.0, 0) == 0.0
    assert rate.at(10.0, 100) == 10.0
    assert rate.at(20.0, 400) == 30.0


def test_a_bar_has_eighths() -> None:
    assert (bar(0.0), bar(1.0), bar(0.5), bar(1 / 160)) == ("", "█" * 20, "█" * 10, "▏")
