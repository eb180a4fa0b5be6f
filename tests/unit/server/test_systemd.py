"""systemd: what a broker says to its socket, and the unit that starts it."""

from __future__ import annotations

import json
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
    monkeypatch.delenv("HEADRACE_AMQP")
    options = ["--data", "/var/lib/headrace", "--metrics", "127.0.0.1:9644", "--log-file", "it.log"]
    assert run(["up", *options, "--set", "num.partitions=4", "--print-unit"]) == 0
    text = capsys.readouterr().out
    (start,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(
        "/headrace up --data /var/lib/headrace --metrics 127.0.0.1:9644 "
        f"--set num.partitions=4 --set log.file={tmp_path}/it.log"
    )
    assert start.startswith("ExecStart=/"), "systemd wants an absolute path"
    assert "Type=notify\n" in text
    assert "StateDirectory=headrace\n" in text
    assert "ExecReload=/bin/kill -HUP $MAINPID\n" in text
    assert not (tmp_path / "it.log").exists(), "nothing is started"


def test_the_unit_starts_what_the_file_and_the_environment_say_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd starts it in another folder, without this environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_AMQP")
    monkeypatch.setenv("HEADRACE_NUM_PARTITIONS", "7")
    (tmp_path / "headrace.toml").write_text('kafka = "127.0.0.1:19092"\nhttp.token.file = "token"\n')
    assert run(["up", "--print-unit"]) == 0
    (start,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(
        f"/headrace up --data {tmp_path}/headrace-data --config {tmp_path}/headrace.toml "
        f"--set num.partitions=7 --set http.token.file={tmp_path}/token"
    )
    monkeypatch.chdir("/")
    monkeypatch.delenv("HEADRACE_NUM_PARTITIONS")
    words = start.removeprefix("ExecStart=").split()[2:]
    assert run(["config", *words, "--output", "json", "num.partitions", "kafka", "data", "http.token.file"]) == 0
    values = {row["setting"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert (values["num.partitions"], values["kafka"]) == ("7", "127.0.0.1:19092")
    assert (values["data"], values["http.token.file"]) == (f"{tmp_path}/headrace-data", f"{tmp_path}/token")


def test_the_service_can_write_where_its_data_and_its_log_are() -> None:
    text = unit(["/bin/headrace"], user="me", data="/var/lib/it/data", log_file="/var/log/it/it.log")
    assert "StateDirectory=it/data\nLogsDirectory=it\n" in text
    assert "PrivateTmp=yes" in text
    assert "LogsDirectory" not in unit(["/bin/headrace"], user="me", data="/srv/d", log_file="/var/log/it.log")
    for data, log_file in (("/tmp/data", ""), ("/srv/data", "/var/tmp/it.log")):
        text = unit(["/bin/headrace"], user="me", data=data, log_file=log_file)
        assert "PrivateTmp" not in text, "a private /tmp has none of this, and is removed with the service"


def test_a_unit_without_a_log_file_has_no_reload_which_would_stop_the_broker() -> None:
    text = unit(["/bin/headrace", "up"], user="me", data="/srv/data")
    assert "ExecReload" not in text
    assert "StateDirectory" not in text


def test_words_of_the_command_reach_the_process_as_they_are() -> None:
    words = ["/bin/headrace", "two words", "50%", "$HOME", 'a"b', "back\\slash", ""]
    (line,) = [each for each in unit(words, user="me", data="/d").splitlines() if "ExecStart" in each]
    assert line == r'ExecStart=/bin/headrace "two words" 50%% $$HOME "a\"b" "back\\slash" ""'
