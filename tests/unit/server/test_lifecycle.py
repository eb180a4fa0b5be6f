"""What a broker tells its operator when it starts, recovers and stops, and what signals do."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace import testing
from headrace.client import Admin, Client, Producer
from headrace.config import Settings
from headrace.log.findings import StoreReport
from headrace.node_messages import RecoveryWatch, log_start, size_text
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow  # a process for most tests

NODE = ["-m", "headrace.node"]

SLOW_START = """
import time
from headrace.log.store import LogStore
from headrace import node
from headrace.config import Settings
LogStore.sync_recovered = lambda self: [print("recovering", flush=True), time.sleep(600)]
node.serve(Settings.load(), node._say)
"""

SLOW_STOP = """
import time
from headrace.log.store import LogStore
from headrace import node
from headrace.config import Settings
LogStore.close = lambda self: [print("closing", flush=True), time.sleep(600)]
node.serve(Settings.load(), node._say)
"""


def _heed_hangups() -> None:
    """Tests that are run by nohup ignore SIGHUP, and so would their children."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def child(data: Path, program: list[str], **settings: str) -> Iterator[subprocess.Popen[str]]:
    """A broker in its own process; its stderr goes to ``data / "stderr"``."""
    data.mkdir(exist_ok=True)
    variables = {
        "HEADRACE_DATA": str(data / "log"),
        "HEADRACE_KAFKA": "127.0.0.1:0",
        "HEADRACE_AMQP": "off",
        **settings,
    }
    with (data / "stderr").open("a") as errors:
        running = subprocess.Popen(
            [sys.executable, *program],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=_heed_hangups,
        )
    with running:
        try:
            yield running
        finally:
            running.kill()


def lines_until(running: subprocess.Popen[str], last: str) -> list[str]:
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line.rstrip("\n"))
        if lines[-1] == last:
            return lines
    raise AssertionError(f"it ended without '{last}': {lines}")


def test_messages_go_to_stderr_and_the_file_and_stdout_has_listeners_and_ready(tmp_path: Path) -> None:
    file = tmp_path / "headrace.log"
    with child(tmp_path, NODE, HEADRACE_LOG_FILE=str(file), HEADRACE_NUM_PARTITIONS="3") as running:
        assert [line.split()[0] for line in lines_until(running, "ready")] == ["kafka", "ready"]
        running.terminate()
        assert running.wait(PATIENCE_S) == 0
    text = (tmp_path / "stderr").read_text()
    assert file.read_text() == text
    assert "headrace 0.1.0 starts with its data in" in text
    assert "num.partitions=3 (environment HEADRACE_NUM_PARTITIONS)" in text
    assert "ready: kafka on 127.0.0.1:" in text
    assert "stopping: SIGTERM" in text
    assert "stopped in order after" in text
    assert "did not stop in order" not in text


def test_a_start_after_a_kill_says_so_before_it_is_ready(tmp_path: Path) -> None:
    with child(tmp_path, NODE) as running:
        address = lines_until(running, "ready")[0].split()[1]
        with Client(address) as client, Producer(client) as producer:
            Admin(client).create_topic("t", partitions=1)
            producer.send("t", b"v" * 1000)
        running.kill()
        running.wait(PATIENCE_S)
    (tmp_path / "stderr").unlink()
    segment = next((tmp_path / "log" / "topics").glob("t~*/0/*.log"))
    with segment.open("ab") as torn:
        torn.write(b"\0" * 100)
    with child(tmp_path, NODE) as running:
        lines_until(running, "ready")
        text = (tmp_path / "stderr").read_text()
    assert "WARNING node: the last run did not stop in order" in text
    assert str(segment) in text
    assert "1 torn end cut (100 bytes)" in text


def test_a_start_that_is_refused_for_its_settings_has_not_opened_the_data(tmp_path: Path) -> None:
    """The next one said that the last run had not stopped in order, and checked the ends of all logs."""
    users = tmp_path / "users"
    users.write_text("a line without a password\n")
    users.chmod(0o600)
    for wrong in ({"HEADRACE_AMQP_USERS_FILE": str(users)}, {"HEADRACE_HEADRACE_QUEUE_FEEDS": "no arrow"}):
        with child(tmp_path, NODE, HEADRACE_AMQP="127.0.0.1:0", **wrong) as refused:
            assert refused.wait(PATIENCE_S) == 2
    assert not (tmp_path / "log").exists()


def test_sighup_opens_the_log_file_again(tmp_path: Path) -> None:
    file = tmp_path / "headrace.log"
    with child(tmp_path, NODE, HEADRACE_LOG_FILE=str(file)) as running:
        lines_until(running, "ready")
        file.rename(tmp_path / "headrace.log.1")
        running.send_signal(signal.SIGHUP)
        eventually(lambda: file.exists() and "was opened again" in file.read_text())
        running.terminate()
        assert running.wait(PATIENCE_S) == 0
    assert "stopped in order" in file.read_text()


def test_sighup_without_a_log_file_stops_in_order_also_when_it_comes_twice(tmp_path: Path) -> None:
    with child(tmp_path, NODE) as running:
        lines_until(running, "ready")
        running.send_signal(signal.SIGHUP)
        eventually(lambda: "stopping: SIGHUP" in (tmp_path / "stderr").read_text())
        running.send_signal(signal.SIGHUP)
        assert running.wait(PATIENCE_S) == 0
    assert "stopped in order" in (tmp_path / "stderr").read_text()


def test_sighup_is_ignored_where_nohup_started_the_broker(tmp_path: Path) -> None:
    nohup = "import signal, runpy; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    with child(tmp_path, ["-c", f"{nohup}runpy.run_module('headrace.node', run_name='__main__')"]) as running:
        lines_until(running, "ready")
        running.send_signal(signal.SIGHUP)
        running.terminate()
        assert running.wait(PATIENCE_S) == 0
    text = (tmp_path / "stderr").read_text()
    assert "stopping: SIGTERM" in text
    assert "SIGHUP" not in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_start_ends_it_soon_and_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with child(tmp_path, ["-c", SLOW_START]) as running:
        lines_until(running, "recovering")
        running.send_signal(number)
        assert running.wait(PATIENCE_S) == 0
    assert f"stopped while starting: {number.name}" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with child(tmp_path, ["-c", SLOW_STOP]) as running:
        lines_until(running, "ready")
        running.send_signal(number)
        lines_until(running, "closing")
        running.send_signal(number)
        assert running.wait(PATIENCE_S) == -number


def test_a_recovery_that_takes_long_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    report = StoreReport(logs=7, scanned_bytes=3_200_000)
    with caplog.at_level(logging.INFO, "headrace.node"), RecoveryWatch(report, interval_s=0.001):
        eventually(lambda: "7 logs open, 3.2 MB read and checked" in caplog.text)


def test_a_secret_among_the_settings_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.config import BROKER_SETTINGS, Kind, Setting

    monkeypatch.setitem(BROKER_SETTINGS, "a.password", Setting("a.password", Kind.PASSWORD, "", "for this test"))
    with caplog.at_level(logging.INFO, "headrace.node"):
        log_start(Settings({"a.password": "hunter2"}), "/data")
    assert "a.password=(secret)" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (3_200_000, "3.2 MB"), (7e12, "7.0 TB")]
)
def test_sizes_are_written_for_people(count: float, text: str) -> None:
    assert size_text(count) == text


def test_a_start_that_fails_leaves_the_directory_as_a_crash_does(tmp_path: Path) -> None:
    """What was not looked at must not be called clean."""
    with testing.broker(data=tmp_path):
        pass
    before = (tmp_path / "checkpoint").read_bytes()
    assert b'"clean": true' in before or b'"clean":true' in before
    journal = next((tmp_path / "state").glob("journal/0/*.log"))
    journal.write_bytes(b"")
    with pytest.raises(Exception, match="state/journal"):
        with testing.broker(data=tmp_path):
            pass
    after = (tmp_path / "checkpoint").read_bytes()
    assert b'"clean": true' not in after
    assert b'"clean":true' not in after
