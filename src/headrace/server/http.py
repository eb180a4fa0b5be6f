"""A small HTTP/1.1 server for a few fixed paths: metrics and health. h11 speaks the protocol; this file has the socket.

GET and HEAD only, no bodies, one request of a connection at a time. While an answer is being made or the peer does not
take it, the connection is not read, so a peer costs at most one answer and one read. A peer has ``header_s`` to send a
request, counted from the connection or from the request's first byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

import h11

from headrace.server.listener import Listener
from headrace.server.session import Session, peer_address, send_at_once

__all__ = ["HttpResponse", "HttpService", "HttpSession", "Route"]

log = logging.getLogger("headrace.http")

HEADER_BYTES_MAX = 16 << 10
HEADER_S = 10.0

ENDING = (HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR)
"""A connection ends with these answers."""

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """What a path answers with."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT

    @classmethod
    def error(cls, status: HTTPStatus, text: str = "") -> HttpResponse:
        return cls(status=status, body=f"{text or status.phrase}\n".encode())


Route = Callable[[], Awaitable[HttpResponse]]
"""Makes the answer of one path."""


class HttpService:
    """What all connections share; ``session`` is the protocol factory of a listener."""

    def __init__(self, routes: Mapping[str, Route], *, header_s: float = HEADER_S) -> None:
        self._routes = routes
        self.header_s = header_s

    def session(self, listener: Listener) -> HttpSession:
        return HttpSession(self, listener)

    async def answer(self, request: h11.Request) -> HttpResponse:
        if request.method not in (b"GET", b"HEAD"):
            return HttpResponse.error(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served here")
        try:
            path = urlsplit(request.target.decode("ascii", "replace")).path
        except ValueError:
            return HttpResponse.error(HTTPStatus.BAD_REQUEST, "the path of the request is not valid")
        route = self._routes.get(path)
        if route is None:
            return HttpResponse.error(HTTPStatus.NOT_FOUND, f"served here: {' '.join(self._routes)}")
        try:
            return await route()
        except Exception:
            log.exception("an answer could not be made")
            return HttpResponse.error(HTTPStatus.INTERNAL_SERVER_ERROR)


class HttpSession(Session, asyncio.Protocol):
    """One connection."""

    def __init__(self, service: HttpService, listener: Listener) -> None:
        self._service = service
        self._listener = listener
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        self._request: h11.Request | None = None  # received, not answered
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._paused = False  # the peer does not take what was written
        self._ending = False

    # ---- the transport's calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()
        self.host, port = peer_address(transport)
        self.address = f"{self.host}:{port}"
        if self._listener.admit(self, transport):
            send_at_once(transport)
            self._expect_header()

    def data_received(self, data: bytes) -> None:
        self._active_at = self._loop.time()
        self._h11.receive_data(data)
        self._go_on()

    def eof_received(self) -> bool:
        self.end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_is_here()
        if self._task is not None:
            self._task.cancel()
        self._listener.forget(self)

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._active_at = self._loop.time()
        self._paused = False
        self._go_on()

    # ---- requests and answers ---------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Take the next request that has arrived, unless the one before is not answered or its answer not taken."""
        if self._task is not None or self._paused or self._transport.is_closing():
            return
        self._transport.resume_reading()
        try:
            self._read_events()
        except h11.RemoteProtocolError as error:
            self._peer_erred(error)

    def _read_events(self) -> None:
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.trailing_data[0] and self._deadline is None:
                    self._expect_header()
                return
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Request):
                self._request = event
            elif isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("requests have no body here", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            elif isinstance(event, h11.EndOfMessage):
                self._header_is_here()
                self._begin_answer()
                return

    def _begin_answer(self) -> None:
        assert self._request is not None
        self._transport.pause_reading()
        self._task = self._loop.create_task(self._answer(self._request))

    async def _answer(self, request: h11.Request) -> None:
        try:
            response = await self._service.answer(request)
            self._task = self._request = None
            self._finish(request, response)
        except Exception:
            log.exception("%s closed: a request could not be answered", self.address)
            self._task = self._request = None
            self._transport.abort()

    def _finish(self, request: h11.Request, response: HttpResponse) -> None:
        self._ending = self._ending or response.status in ENDING
        self._send(response, head=request.method == b"HEAD")
        if self._ending or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            self._transport.close()
            return
        self._h11.start_next_cycle()
        self._go_on()

    def _send(self, response: HttpResponse, *, head: bool = False) -> None:
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Date", formatdate(usegmt=True)),
            ("Cache-Control", "no-store"),
        ]
        if response.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        if self._ending or self._h11.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        begin = h11.Response(status_code=response.status, reason=response.status.phrase, headers=headers)
        self._write(begin)
        if not head:
            self._write(h11.Data(data=response.body))
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            self._transport.write(data)

    def _peer_erred(self, error: h11.RemoteProtocolError) -> None:
        log.info("%s closed: %s", self.address, error)
        self._header_is_here()
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = self._request is not None and self._request.method == b"HEAD"
            self._send(HttpResponse.error(HTTPStatus(error.error_status_hint), str(error)), head=head)
        self._transport.close()

    # ---- time and the end -------------------------------------------------------------------------------------------

    def _expect_header(self) -> None:
        self._deadline = self._loop.call_later(self._service.header_s, self._header_is_late)

    def _header_is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _header_is_late(self) -> None:
        log.debug("%s closed: no request within %.0f s", self.address, self._service.header_s)
        self._transport.abort()

    def end(self) -> None:
        self._ending = True
        if self._task is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def close_if_idle(self, idle_s: float) -> None:
        """Also while an answer is being made: one that takes so long is stuck."""
        if self._loop.time() - self._active_at >= idle_s:
            self._transport.abort()
