"""The console on sockets: uvicorn with deadlines that it does not have.

uvicorn closes a connection that is idle between requests, but waits forever for the rest of a header that has begun. A
few hundred such connections would take the console from everybody else. So each connection has a deadline for a
header, and there is a limit on connections.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.client.kafka_config import client_settings as settings_of_client
from headrace.console.app import Console, application
from headrace.console.limits import CONNECTIONS_MAX, HEAD_BYTES_MAX, HEAD_S, IDLE_S
from headrace.console.pages import PAGES
from headrace.console.pool import CLIENT_OPTIONS

__all__ = ["serve_console"]

log = logging.getLogger("headrace.console")

STOP_S = 3


class BoundedProtocol(H11Protocol):
    """One connection. Its header has to be whole within ``HEAD_S``, the first as every other."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._cancel()
        elif self._overdue is None:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect_header(self) -> None:
        self._overdue = self.loop.call_later(HEAD_S, self._give_up)

    def _give_up(self) -> None:
        self._overdue = None
        if not self._is_answering():
            self.transport.abort()

    def _cancel(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


class Server(uvicorn.Server):
    """Says when it serves, and ends its streams before it waits for their connections."""

    def __init__(self, config: uvicorn.Config, console: Console, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._console = console
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._console.stop()
        await super().shutdown(sockets)


def serve_console(
    bootstrap: str,
    sockets: Sequence[socket.socket],
    *,
    token: str,
    read_only: bool = False,
    hosts: Iterable[str] = (),
    client_settings: Mapping[str, str] | None = None,
    on_ready: Callable[[], None] = lambda: None,
    stop_when: Callable[[], None] | None = None,
) -> None:
    """Serve on bound sockets until SIGTERM or SIGINT. ``client_settings`` have Kafka's names: encryption, a user."""
    options = replace(CLIENT_OPTIONS, **settings_of_client(client_settings or {}))
    asyncio.run(
        _serve(
            lambda: Console(bootstrap, read_only=read_only, options=options),
            list(sockets),
            token,
            hosts,
            on_ready,
            stop_when,
        )
    )


async def _serve(
    make: Callable[[], Console],
    sockets: list[socket.socket],
    token: str,
    hosts: Iterable[str],
    on_ready: Callable[[], None],
    stop_when: Callable[[], None] | None,
) -> None:
    console = make()
    config = uvicorn.Config(
        application(console, PAGES, token=token, hosts=hosts),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )
    server = Server(config, console, on_ready)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops at these, and raises them again when it has stopped: a stop in order is no failure.
        signal.signal(number, lambda *_: None)
    if stop_when is not None:
        threading.Thread(target=_stop_after, args=(stop_when, server), daemon=True).start()
    console.start()
    try:
        await server.serve(sockets=sockets)
    finally:
        console.close()


def _stop_after(wait: Callable[[], None], server: Server) -> None:
    wait()
    server.should_exit = True
