"""The servers themselves: that they start, answer and end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.kafka import answers
from tests.servers.process import RunningServer
from tests.skips import skip_or_fail
from tests.waiting import eventually

pytestmark = pytest.mark.servers


def test_a_started_broker_answers_at_its_address(broker: RunningServer) -> None:
    assert answers(broker.address[1])


def is_running(pid: int) -> bool:
    """Also false for one that has ended and has nobody who asks for its status."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


HOLDER = """
import sys, time
from tests.servers.{module} import {server}
with {server}() as running:
    print(running.home, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("module", "pid_file"), [("postgres", "data/postmaster.pid"), ("mariadb", "pid")])
def test_a_database_does_not_outlive_a_test_run_that_is_killed(module: str, pid_file: str) -> None:
    script = HOLDER.format(module=module, server=f"{module}_server")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            said = holder.stdout.readline().strip()
            if not said:
                skip_or_fail(f"{module} cannot run here")
            file = Path(said, pid_file)  # MariaDB answers before it writes this
            pid = int(eventually(lambda: file.read_text() if file.exists() else "").split()[0])
        finally:
            holder.kill()
    deadline = time.monotonic() + 120
    while is_running(pid) or Path(said).exists():
        assert time.monotonic() < deadline, f"process {pid} or its folder {said} is still there"
        time.sleep(0.05)
