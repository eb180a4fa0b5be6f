"""What commands write to a terminal: drawn over itself where it knows escape sequences, plain lines under TERM=dumb.

Each command runs in a process whose output is a pseudo-terminal. The same command under TERM=xterm is the control: it
has to write escape sequences, or the test would prove nothing.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.capture.options import CaptureOptions
from headrace.capture.state import Registry
from headrace.client import Admin, Client
from headrace.sourcing import Event, open_store
from tests.waiting import PATIENCE_S

ESCAPE = b"\x1b"
START = "from headrace.cli.main import main; main()"
PROJECTION = """
from headrace.sourcing import Projection, on

class Totals(Projection):
    tables = {"totals": "account text"}

    @on("Opened")
    def opened(self, view, event):
        view.execute(f"insert into {view.table('totals')} values (?)", event.stream)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.InProcessBroker]:
    with testing.broker() as started:
        with Client(started.bootstrap) as client:
            Admin(client).create_topic("orders")
            Registry(client).put(CaptureOptions(name="shop", url="sqlite:///no-such-file.db"))
        yield started


@pytest.fixture
def places(broker: testing.InProcessBroker, tmp_path: Path) -> dict[str, str]:
    with open_store(f"sqlite:///{tmp_path}/bank.db") as store:
        store.append("account-1", [Event("Opened", {})])
    (tmp_path / "totals.py").write_text(PROJECTION)
    return {"bootstrap": broker.bootstrap, "folder": str(tmp_path)}


def on_terminal(arguments: list[str], term: str, *, stopped_after: bytes | None = None) -> bytes:
    """What a command writes to a terminal of that kind; Ctrl-C once ``stopped_after`` has been seen."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": term}
    environment.pop("NO_COLOR", None)
    child = subprocess.Popen(
        [sys.executable, "-c", START, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    written = b""
    try:
        with suppress(OSError):  # EIO: the last process has closed its end
            while part := os.read(ours, 65536):
                written += part
                if stopped_after is not None and stopped_after in written and child.poll() is None:
                    child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE_S) in (0, 130), written.decode()
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    return written


COMMANDS = {
    "a table": ("topic list --bootstrap {bootstrap}", None),
    "a heading": ("topic describe orders --bootstrap {bootstrap}", None),
    "a backup": ("backup create {folder}/backups --bootstrap {bootstrap}", None),
    "a rebuilt view": (
        "events replay sqlite:///{folder}/bank.db {folder}/totals.py Totals --view sqlite:///{folder}/v.db",
        None,
    ),
    "a watched capture": ("capture status --watch --bootstrap {bootstrap}", b"shop"),
}


@pytest.mark.parametrize(("command", "stopped_after"), COMMANDS.values(), ids=COMMANDS)
def test_a_terminal_that_knows_no_escape_sequences_gets_none(
    places: dict[str, str], command: str, stopped_after: bytes | None
) -> None:
    arguments = command.format(**places).split()
    plain = on_terminal(arguments, "dumb", stopped_after=stopped_after)
    assert plain.strip()
    assert ESCAPE not in plain
    assert b"\r" not in plain.replace(b"\r\n", b"\n"), "nothing is drawn over itself"
    assert ESCAPE in on_terminal(arguments, "xterm", stopped_after=stopped_after)


def test_a_restore_draws_no_bar_on_such_a_terminal(places: dict[str, str]) -> None:
    backups = f"{places['folder']}/backups"
    on_terminal(["backup", "create", backups, "--bootstrap", places["bootstrap"]], "dumb")
    for term, drawn in (("dumb", False), ("xterm", True)):
        written = on_terminal(["restore", backups, "--data", f"{places['folder']}/{term}"], term)
        assert (ESCAPE in written) is drawn


class Terminal:
    """A terminal of this process."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, text: str) -> int:
        self.written += text
        return len(text)

    def isatty(self) -> bool:
        return True

    def flush(self) -> None: ...


@pytest.mark.parametrize(("term", "drawn"), [("dumb", False), ("xterm", True)])
def test_the_picture_of_the_demo_is_lines_on_such_a_terminal(
    monkeypatch: pytest.MonkeyPatch, term: str, drawn: bool
) -> None:
    import psycopg

    from headrace.demo.display import Display

    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: None)
    for part in ("_flows", "_pipelines", "_results"):
        monkeypatch.setattr(Display, part, lambda *_: ["a line"])
    stage: Any = type("Stage", (), {"database": ""})
    screen: Any = Terminal()
    Display(stage, screen).draw("the shop")
    assert "the shop" in screen.written
    assert ("\x1b" in screen.written) is drawn
