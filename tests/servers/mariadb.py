"""MariaDB from the Debian package, on loopback, with a binlog as capture needs it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql

from tests.servers.process import CannotRun, end, ended_with_us, log_tail, spare_port, wait_until

ARGUMENTS = (
    "--bind-address=127.0.0.1",
    "--log-bin=binlog",
    "--server-id=1",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--gtid-strict-mode=ON",
    "--innodb-flush-log-at-trx-commit=2",  # what was committed survives kill -9, if not the loss of power
    "--innodb-buffer-pool-size=64M",
    "--skip-name-resolve",
)


class MariadbServer:
    """One server with its own data folder; it can be killed and started again on the same port."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._data = home / "data"
        self._log = home / "mariadb.log"
        self.port = spare_port()
        self._child: subprocess.Popen[bytes] | None = None
        self._user = ("--user=mysql",) if os.getuid() == 0 else ()

    def url(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True)

    def create(self) -> None:
        command = [
            "mariadb-install-db",
            "--no-defaults",
            *self._user,
            "--basedir=/usr",
            f"--datadir={self._data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        with self._log.open("ab") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=120, check=False)
        if done.returncode != 0:
            raise CannotRun(f"mariadb-install-db ended with {done.returncode}:\n{log_tail(self._log)}")

    def start(self) -> None:
        command = ["mariadbd", "--no-defaults", *self._user, f"--datadir={self._data}", f"--port={self.port}"]
        command += [f"--socket={self.home}/socket", f"--pid-file={self.home}/pid", *ARGUMENTS]
        with self._log.open("ab") as output:
            self._child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        wait_until(self._answers, self._child, what="MariaDB", log=self._log)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        assert self._child is not None
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        if self._child is not None:
            end(self._child)


@contextmanager
def mariadb_server() -> Iterator[MariadbServer]:
    for program in ("mariadbd", "mariadb-install-db"):
        if shutil.which(program) is None:
            raise CannotRun(f"{program} is not installed: apt-get install mariadb-server")
    home = Path(tempfile.mkdtemp(prefix="headrace-mariadb-"))
    if os.getuid() == 0:
        shutil.chown(home, "mysql", "mysql")
    try:
        server = MariadbServer(home)
        server.create()
        with ended_with_us(home / "pid", home):
            try:
                server.start()
                yield server
            finally:
                server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
