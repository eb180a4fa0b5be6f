"""The failing network of the long runs."""

from __future__ import annotations

import socket
import threading

from tests.chaos.proxy import Proxy
from tests.waiting import eventually


def test_connections_that_both_sides_have_ended_hold_no_descriptors() -> None:
    """A long run has tens of thousands of them."""
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy(server.getsockname()[1]) as proxy:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", proxy.port)) as client:
                accepted, _ = server.accept()
                threading.Thread(target=answer_and_close, args=(accepted,)).start()
                client.sendall(b"hello")
                client.shutdown(socket.SHUT_WR)
                assert client.recv(10) == b"hello"
                assert client.recv(10) == b""
            eventually(lambda: proxy.links[-1].is_over)
        assert len(proxy.links) == 1


def answer_and_close(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(10):
            connection.sendall(data)
