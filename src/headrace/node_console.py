"""The console of a node: a child process that is started again when it ends.

The node takes the address and listens on it; the child accepts. So a port that is taken is said before a long recovery,
and browsers that come while the child starts wait instead of being refused. The child is a client of the node's Kafka
listener and of nothing else (``headrace.console``), with less priority than the node.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.config import Settings
from headrace.errors import UsageError

__all__ = ["ConsoleChild"]

log = logging.getLogger("headrace.node")

BACKLOG = 128
STOP_S = 5.0
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
STEADY_S = 60.0
"""A child that ran so long did not fail at its start."""
TOKEN_CHARACTERS_MIN = 16
LINE_BYTES_MAX = 16 * 1024
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ConsoleChild:
    """Keeps the console running from ``start`` to ``stop``."""

    def __init__(self, sockets: Sequence[socket.socket], bootstrap: tuple[str, int], settings: Settings) -> None:
        self._sockets = sockets
        self._bootstrap = _text(WILDCARDS.get(bootstrap[0], bootstrap[0]), bootstrap[1])
        self._settings = settings
        self._token = token_of(settings)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.pid: int | None = None

    @property
    def url(self) -> str:
        """What a browser opens. A token that the user gave in a file is not printed."""
        host, port = self._sockets[0].getsockname()[:2]
        address = f"http://{_text(WILDCARDS.get(host, host), port)}/"
        return address if self._settings.text("http.token.file") else f"{address}?token={self._token}"

    def start(self) -> None:
        for each in self._sockets:
            each.listen(BACKLOG)
            each.set_inheritable(True)
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task
        for each in self._sockets:
            each.close()

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            began_s = loop.time()
            try:
                status = await self._run_once()
            except OSError as error:
                status = -1
                log.error("the console cannot be started: %s", error)
            if self._stopping.is_set():
                return
            pause_s = PAUSE_S_MIN if loop.time() - began_s > STEADY_S else min(pause_s * 2, PAUSE_S_MAX)
            log.error("the console ended with %d and is started again in %.0f s", status, pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _run_once(self) -> int:
        """One life of the child: until it ends, or until it is to stop."""
        descriptors = [each.fileno() for each in self._sockets]
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.console.child", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C reaches the node only, which then stops the child
        )
        self.pid = child.pid
        assert child.stdin is not None
        child.stdin.write(self._job(descriptors))
        reading = asyncio.ensure_future(_log_lines(child.stderr))
        ended = asyncio.ensure_future(child.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                child.stdin.close()
                await asyncio.wait({ended}, timeout=STOP_S)
            if not ended.done():
                child.kill()
            return await ended
        finally:
            self.pid = None
            stopping.cancel()
            reading.cancel()

    def _job(self, descriptors: list[int]) -> bytes:
        job = {
            "bootstrap": self._bootstrap,
            "descriptors": descriptors,
            "token": self._token,
            "read_only": self._settings.boolean("http.read.only"),
            "hosts": self._settings.get("http.hosts"),
        }
        return json.dumps(job).encode() + b"\n"


async def _log_lines(lines: asyncio.StreamReader | None) -> None:
    assert lines is not None
    while True:
        try:
            line = await lines.readline()
        except ValueError:  # a line beyond the limit, which is passed over
            continue
        if not line:
            return
        log.warning("console: %s", line.decode(errors="replace").rstrip())


def token_of(settings: Settings) -> str:
    """The one in the file that the user named, or a random one."""
    name = settings.text("http.token.file")
    if not name:
        return secrets.token_urlsafe(24)
    try:
        token = Path(name).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read http.token.file {name}: {error}") from None
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii():
        raise UsageError(
            f"{name} holds no token", f"write at least {TOKEN_CHARACTERS_MIN} ASCII characters into it, in one line"
        )
    return token


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
