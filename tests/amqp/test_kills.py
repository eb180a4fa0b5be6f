"""kill -9 under load: confirmed messages are there, acknowledged ones do not come back, others are marked."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.amqp.kills import History, Load, drain
from tests.servers.headrace import COMMAND, listener_address, wait_for_ready
from tests.servers.process import end, spare_port

pytestmark = pytest.mark.servers

KILLS = 4


class Broker:
    """``headrace up`` on one port, killed and started again."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = spare_port()
        self.start()

    def start(self) -> None:
        log = self._home / "output.log"
        log.unlink(missing_ok=True)
        command = [str(COMMAND), "up", "--data", str(self._home / "data"), "--kafka", "off"]
        with log.open("wb") as output:
            self.child = subprocess.Popen(
                [*command, "--amqp", f"127.0.0.1:{self.port}"], stdout=output, stderr=subprocess.STDOUT
            )
        wait_for_ready(self.child, log)
        assert listener_address(log, "amqp").endswith(f":{self.port}")

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()


def test_nothing_confirmed_is_lost_and_nothing_acknowledged_returns(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    try:
        load = Load(lambda: broker.port, seed=1)
        load.start()
        for _ in range(KILLS):
            time.sleep(1.0)
            broker.kill()
            broker.start()
        time.sleep(0.5)
        load.stop()
        drain(broker.port, load.history)
    finally:
        status = end(broker.child)
    assert load.history.judged() == []
    assert len(load.history.settled) > 100
    assert status == 0


@pytest.mark.parametrize("fault", ["lost", "returned", "unmarked", "unexpected"])
def test_the_judge_finds_every_planted_fault(fault: str) -> None:
    history = History(sent={"a", "b"}, confirmed={"a", "b"})
    history.received("a", is_redelivered=False)
    history.settled.add("a")
    if fault != "lost":
        history.received("b", is_redelivered=False)
    if fault == "returned":
        history.received("a", is_redelivered=True)
    if fault == "unmarked":
        history.received("b", is_redelivered=False)
    if fault == "unexpected":
        history.received("c", is_redelivered=False)
    assert [kind for kind, _ in history.judged()] == [fault]
