"""docs/tutorial.md, followed as a reader does: every command in its order, with the long ones left running.

The test waits for what a command prints, since results follow the database by themselves. The part before Spark is a
separate test, which ``make test`` runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.console.conftest import RunningConsole
from tests.docs.test_documents import Block, blocks
from tests.servers.headrace import headrace_server, lines_of
from tests.servers.process import end
from tests.waiting import eventually

BIN = Path(sys.executable).parent
PAGE = [each for each in blocks("docs/tutorial.md") if each.language in ("sh", "py", "text")]
UP = "headrace up --http 127.0.0.1:8080"
CAPTURE, RUN = "headrace capture run shop sqlite:///shop.db", "headrace run shop.py"
PATIENCE_S = 240


class Reader:
    """Somebody with several terminals in one folder."""

    def __init__(self, folder: Path, bootstrap: str, console: RunningConsole) -> None:
        self.folder = folder
        self.console = console
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.environment = {**kept, "HEADRACE_BOOTSTRAP": bootstrap, "PATH": f"{BIN}:{kept['PATH']}"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def follow(self, page: list[Block]) -> None:
        for number, block in enumerate(page):
            command = block.text.strip()
            if block.language == "py":
                with (self.folder / "shop.py").open("a") as program:
                    program.write(block.text)
            elif command in (CAPTURE, RUN):
                self.leave_running(command)
            elif block.language == "sh" and command != UP:
                expected = page[number + 1].text if page[number + 1].language == "text" else None
                self.look(command, expected) if expected else self.type(command)

    def type(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def look(self, command: str, expected: str) -> None:
        """Again and again, until what the page shows is there."""

        def printed() -> str:
            for name, child in self.running.items():
                assert child.poll() is None, f"{name} has ended:\n{self.log(name).read_text()}"
            try:
                return self.type(command)
            except AssertionError as error:  # no topic, or no table yet
                return str(error)

        eventually(printed, lambda text: text == expected, pause_s=0.5, patience_s=PATIENCE_S)

    def leave_running(self, command: str) -> None:
        """In another terminal; one that runs there already is stopped with Ctrl-C first."""
        before = self.running.pop(command, None)
        if before is not None:
            before.send_signal(signal.SIGINT)
            assert before.wait(120) == 0
        with self.log(command).open("ab") as output:
            self.running[command] = subprocess.Popen(
                command.split(), env=self.environment, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT
            )

    def log(self, command: str) -> Path:
        return self.folder / f"{command.split()[1]}.log"


@contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    with headrace_server(data=folder / "headrace-data", arguments=["--http", "127.0.0.1:0"]) as server:
        (address,) = [line.split()[1] for line in lines_of(server.log) if line.startswith("console ")]
        somebody = Reader(folder, server.bootstrap, RunningConsole(address, server.bootstrap))
        try:
            yield somebody
        finally:
            for child in somebody.running.values():
                end(child)


def test_the_first_half_of_the_tutorial_shows_the_changes_of_a_database(tmp_path: Path) -> None:
    first_half = PAGE[: next(number for number, block in enumerate(PAGE) if block.language == "py")]
    assert [block.text.strip() for block in first_half if block.text.strip() in (UP, CAPTURE)] == [UP, CAPTURE]
    with reader(tmp_path) as somebody:
        somebody.follow(first_half)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_whole_tutorial_shows_live_results_and_a_pipeline_of_ones_own(tmp_path: Path) -> None:
    assert [block.text.strip() for block in PAGE].count(RUN) == 2
    with reader(tmp_path) as somebody:
        somebody.follow(PAGE)
        chart = somebody.console.get("dashboard", name="Revenue per day")
        first, second = (round(datetime(2026, 1, day, tzinfo=UTC).timestamp() * 1000) for day in (30, 31))
        assert chart["lines"] == [{"name": "revenue", "points": [[first, 4.0], [second, 27.5]]}]
