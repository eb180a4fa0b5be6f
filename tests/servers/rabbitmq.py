"""RabbitMQ from the Debian package, on loopback, with its own folder, node name and port mapper."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.process import CannotRun, spare_ports, wait_until

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMqServer:
    """One broker; ``port`` speaks AMQP 0-9-1 to the user guest, ``management_port`` its management API."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._log = home / "server.log"
        self.port, distribution, self._mapper, self.management_port = spare_ports(4)
        self._environment = {
            **os.environ,
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"headrace{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
            "ERL_EPMD_PORT": str(self._mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_MAX_PORTS": "4096",
        }
        (home / "plugins").write_text("[rabbitmq_management].\n")
        (home / "rabbitmq.conf").write_text(
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n"
            "management.disable_stats = false\ncollect_statistics_interval = 500\n"
        )
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._child = subprocess.Popen(
                [str(PROGRAM)],
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._answers, self._child, what="RabbitMQ", log=self._log)

    @property
    def pid(self) -> int:
        """The script that started the virtual machine, which is its child."""
        assert self._child is not None, "not started"
        return self._child.pid

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                probe.settimeout(5)
                return bool(probe.recv(1))
        except OSError:
            return False

    def stop(self) -> None:
        """End the whole session: the shell, the virtual machine and the port mapper, which outlives them."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        for _ in range(50):  # the mapper refuses to end until it has seen that the node is gone
            asked = subprocess.run(["epmd", "-kill"], env=self._environment, capture_output=True, check=False)
            if b"not allowed" not in asked.stdout + asked.stderr:
                return
            time.sleep(0.1)


@contextmanager
def rabbitmq_server() -> Iterator[RabbitMqServer]:
    if not PROGRAM.exists():
        raise CannotRun("RabbitMQ is not installed: apt-get install rabbitmq-server")
    home = Path(tempfile.mkdtemp(prefix="headrace-rabbitmq-"))
    try:
        server = RabbitMqServer(home)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
