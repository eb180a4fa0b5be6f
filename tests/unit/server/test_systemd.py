"""systemd: what a broker says to its socket, and the unit that starts it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli.main import run
from headrace.systemd import ServiceManager, unit
from headrace.testing import VirtualClock
from tests.waiting import PATIENCE_S


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that systemd would listen on. Its path must be short."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("notify")
        listening.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def received(manager: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().split("\n"))


def test_a_broker_says_when_it_starts_serves_lives_and_stops(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with testing.broker(in_process=False, data=tmp_path / "data") as broker:
        assert received(manager) == {"STATUS": "opening the data directory"}
        ready = {"READY": "1", "MAINPID": str(broker.pid), "STATUS": f"serving kafka on {broker.bootstrap}"}
        assert received(manager) == ready
        for _ in range(3):
            assert received(manager) == {"WATCHDOG": "1"}
        broker.stop()
    messages = []
    while not messages or messages[-1] == {"WATCHDOG": "1"}:
        messages.append(received(manager))
    assert messages[-1] == {"STOPPING": "1", "STATUS": "finishing what is in flight"}


def test_without_a_watchdog_none_is_fed(manager: socket.socket, tmp_path: Path) -> None:
    with testing.broker(in_process=False, data=tmp_path / "data"):
        assert [set(received(manager)) for _ in range(2)] == [{"STATUS"}, {"READY", "MAINPID", "STATUS"}]
    assert received(manager)["STOPPING"] == "1"


def test_a_socket_with_an_abstract_name_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"headrace-test-{os.getpid()}"
        listening.bind(f"\0{name}")
        listening.settimeout(PATIENCE_S)
        ServiceManager(VirtualClock(), {"NOTIFY_SOCKET": f"@{name}"}).stopping("two\nlines")
        assert listening.recv(100) == b"STOPPING=1\nSTATUS=two lines"


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_where_nobody_listens_nothing_fails(variables: dict[str, str]) -> None:
    manager = ServiceManager(VirtualClock(), {**variables, "WATCHDOG_USEC": "not a number"})
    manager.ready("serving")
    manager.stopping("stopping")
    manager.close()


def test_the_watchdog_of_another_process_is_not_fed() -> None:
    clock = VirtualClock()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"headrace-test-other-{os.getpid()}"
        listening.bind(f"\0{name}")
        listening.setblocking(False)
        variables = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
        ServiceManager(clock, variables).ready("serving")
        clock.advance(10_000)
        assert listening.recv(100).startswith(b"READY=1")
        with pytest.raises(BlockingIOError):
            listening.recv(100)


def test_the_unit_starts_what_the_options_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--data", "/var/lib/headrace", "--metrics", "127.0.0.1:9644", "--log-file", "it.log"]
    assert run(["up", *options, "--set", "num.partitions=4", "--print-unit"]) == 0
    text = capsys.readouterr().out
    (start,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(
        f"/headrace up --data /var/lib/headrace --metrics 127.0.0.1:9644 --log-file {tmp_path}/it.log "
        "--set num.partitions=4"
    )
    assert start.startswith("ExecStart=/"), "systemd wants an absolute path"
    assert "Type=notify\n" in text
    assert "StateDirectory=headrace\n" in text
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in text
    assert not (tmp_path / "it.log").exists(), "nothing is started"


def test_a_unit_without_a_log_file_has_no_reload_which_would_stop_the_broker() -> None:
    text = unit(["/bin/headrace", "up"], user="me", data="/srv/data", reloads=False)
    assert "ExecReload" not in text
    assert "StateDirectory" not in text


def test_words_of_the_command_reach_the_process_as_they_are() -> None:
    words = ["/bin/headrace", "two words", "50%", "$HOME", 'a"b', "back\\slash", ""]
    (line,) = [each for each in unit(words, user="me", data="/d", reloads=False).splitlines() if "ExecStart" in each]
    assert line == r'ExecStart=/bin/headrace "two words" 50%% $$HOME "a\"b" "back\\slash" ""'
