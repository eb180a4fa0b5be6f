"""Servers that are killed and started again on the same port, whatever held it in between."""

from __future__ import annotations

import time
from typing import Protocol

from headrace.errors import HeadraceError
from tests.servers.process import CannotRun

RESTART_S_MAX = 120.0


class Server(Protocol):
    def kill(self) -> None: ...
    def start(self) -> None: ...


def start_again(server: Server) -> None:
    """A killed PostgreSQL's children hold what belonged to it for a moment, and clients in search of a server that is
    away may have got its port for themselves."""
    deadline_s = time.monotonic() + RESTART_S_MAX
    while True:
        try:
            return server.start()
        except (HeadraceError, CannotRun):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
