"""The small HTTP server: what it answers, what it refuses, and what a peer may cost."""

from __future__ import annotations

import asyncio
import http.client
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http import HTTPStatus

import pytest

from headrace.node import new_event_loop
from headrace.server import Listener, ListenerLimits, bind
from headrace.server.http import HEADER_BYTES_MAX, HttpResponse, HttpService
from tests.unit.server.harness import Client
from tests.waiting import PATIENCE_S

LARGE = b"x" * (8 << 20)


class Served:
    """A running HTTP listener, seen from the test's thread."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self.listener = listener
        self.loop = loop
        self.gate = asyncio.Event()
        self.stopped = asyncio.Event()
        self.asked = 0

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.host, self.listener.port

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)


@contextmanager
def serving(*, header_s: float = 10.0, limits: ListenerLimits | None = None) -> Iterator[Served]:
    started: Future[Served] = Future()

    async def main() -> None:
        async def small() -> HttpResponse:
            served.asked += 1
            return HttpResponse(body=b"small\n")

        async def large() -> HttpResponse:
            served.asked += 1
            return HttpResponse(body=LARGE)

        async def broken() -> HttpResponse:
            raise ZeroDivisionError

        async def waits() -> HttpResponse:
            served.asked += 1
            await served.gate.wait()
            return HttpResponse(status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"at last\n")

        routes = {"/small": small, "/large": large, "/broken": broken, "/waits": waits}
        service = HttpService(routes, header_s=header_s)
        listener = Listener(service.session, limits or ListenerLimits(drain_s=1), "http")
        served = Served(listener, asyncio.get_running_loop())
        await listener.start(bind("127.0.0.1", 0))
        started.set_result(served)
        await served.stopped.wait()
        await listener.drain()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    served = started.result(PATIENCE_S)
    try:
        yield served
    finally:
        with suppress(RuntimeError):
            served.loop.call_soon_threadsafe(served.gate.set)
            served.loop.call_soon_threadsafe(served.stopped.set)
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def raw(client: Client, text: str) -> bytes:
    """Send text as it stands; everything that comes until the server closes."""
    client.socket.sendall(text.encode())
    received = b""
    while piece := client.socket.recv(1 << 16):
        received += piece
    return received


def test_get_and_head_are_answered_over_one_connection() -> None:
    with serving() as server:
        connection = server.connect()
        for _ in range(3):
            connection.request("GET", "/small?ignored=1")
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"small\n")
            assert response.headers["Content-Type"].startswith("text/plain")
            connection.request("HEAD", "/small")
            response = connection.getresponse()
            assert (response.status, response.headers["Content-Length"], response.read()) == (200, "6", b"")
        assert server.listener.accepted == 1
        connection.close()


def test_pipelined_requests_are_answered_in_order() -> None:
    request = "GET {} HTTP/1.1\r\nHost: h\r\n\r\n"
    last = "GET /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    with serving() as server, Client(server.address) as client:
        received = raw(client, request.format("/small") + request.format("/nowhere") + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"404", b"200"]


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404),
        ("POST /small HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 405),
        ("DELETE /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 405),
        ("GET /small HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", 413),
        ("HEAD /small HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", 413),
        ("GET //[ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        ("GET /broken HTTP/1.1\r\nHost: h\r\n\r\n", 500),
        ("GET /small HTTP/1.1\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("GET /small HTTP/1.1\r\nHost: h\r\nX: " + "x" * (HEADER_BYTES_MAX + 1000), 431),
        ("GET http://h/small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200),
        ("GET /small HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_each_request_gets_the_status_it_deserves_and_the_connection_ends(
    request_text: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server, Client(server.address) as client:
        received = raw(client, request_text)
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Traceback" not in received
    assert "Fatal error" not in caplog.text


def test_a_method_that_is_not_served_is_told_which_are() -> None:
    with serving() as server:
        connection = server.connect()
        connection.request("PUT", "/small")
        response = connection.getresponse()
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
        connection.close()


def test_a_kafka_client_on_the_wrong_port_is_refused_quickly() -> None:
    with serving() as server, Client(server.address) as client:
        client.heartbeat(1)
        client.socket.sendall(b"\r\n\r\n")
        assert client.socket.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize("begun", ["", "GET /small HT"])
def test_a_request_that_does_not_arrive_in_time_ends_the_connection(begun: str) -> None:
    with serving(header_s=0.1) as server, Client(server.address) as client:
        client.socket.sendall(begun.encode())
        assert client.is_closed()


def test_a_second_request_that_does_not_arrive_in_time_ends_the_connection() -> None:
    with serving(header_s=0.1) as server, Client(server.address) as client:
        client.socket.sendall(b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.exactly(15) == b"HTTP/1.1 200 OK"
        client.socket.sendall(b"GET /sm")
        with pytest.raises((EOFError, ConnectionResetError)):
            client.exactly(1 << 20)


def test_a_connection_is_idle_between_requests_for_as_long_as_its_listener_allows() -> None:
    with serving(limits=ListenerLimits(idle_s=0.1, drain_s=1)) as server, Client(server.address) as client:
        client.socket.sendall(b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n")
        with pytest.raises((EOFError, ConnectionResetError)):
            client.exactly(1 << 20)


def test_a_peer_that_does_not_read_gets_one_answer_made_and_no_more() -> None:
    with serving() as server, Client(server.address) as greedy:
        greedy.socket.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" * 100)
        connection = server.connect()
        connection.request("GET", "/small")
        assert connection.getresponse().read() == b"small\n"
        assert server.asked <= 4, "what fits into the kernel's buffers, one answer, and the other connection's"
        connection.close()


def test_draining_finishes_the_answer_that_is_being_made() -> None:
    with serving() as server:
        connection = server.connect()
        connection.request("GET", "/waits")
        while not server.asked:
            pass
        drained = asyncio.run_coroutine_threadsafe(server.listener.drain(), server.loop)
        server.loop.call_soon_threadsafe(server.gate.set)
        response = connection.getresponse()
        assert (response.status, response.read()) == (503, b"at last\n")
        assert response.headers["Connection"] == "close"
        drained.result(PATIENCE_S)
        connection.close()


def test_a_connection_whose_answer_never_comes_is_closed_as_idle() -> None:
    with serving(limits=ListenerLimits(idle_s=0.1, drain_s=1)) as server, Client(server.address) as client:
        assert raw(client, "GET /waits HTTP/1.1\r\nHost: h\r\n\r\n") == b""
