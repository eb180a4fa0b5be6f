"""Redis from the Debian package, on loopback, with every write on disk so that it can be killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.servers.process import CannotRun, end, spare_port, wait_until


class RedisServer:
    """One server with its own folder; it can be killed and started again on the same port."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._log = home / "redis.log"
        self.port = spare_port()
        self._child: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._home)]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        with self._log.open("ab") as output:
            self._child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        wait_until(self._answers, self._child, what="Redis", log=self._log)

    def _answers(self) -> bool:
        with redis.Redis(host="127.0.0.1", port=self.port) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def kill(self) -> None:
        assert self._child is not None
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        if self._child is not None:
            end(self._child)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        raise CannotRun("redis-server is not installed: apt-get install redis-server")
    home = Path(tempfile.mkdtemp(prefix="headrace-redis-"))
    try:
        server = RedisServer(home)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
