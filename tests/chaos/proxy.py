"""A network that fails: a TCP proxy whose connections are held, lose one direction, or end on one side only.

The broker must advertise the proxy's address (``advertised.kafka``). Faults are done to the connections of the moment;
later ones work, as when a machine between two others has lost its table of connections.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["TO_BROKER", "TO_CLIENT", "Link", "Proxy"]

TO_BROKER, TO_CLIENT = "to broker", "to client"
PIECE_BYTES = 1 << 16
CONNECTED_S = 0.2
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Link:
    """One connection through the proxy: two sockets, and a thread for each direction."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker
        self.open = {TO_BROKER: threading.Event(), TO_CLIENT: threading.Event()}
        self.lossy: set[str] = set()
        self.ended: set[str] = set()
        """The directions in which nothing more will come."""
        for each in self.open.values():
            each.set()

    def start(self) -> None:
        for source, target, direction in (
            (self.client, self.broker, TO_BROKER),
            (self.broker, self.client, TO_CLIENT),
        ):
            threading.Thread(target=self._pump, args=(source, target, direction), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                self.open[direction].wait()
                if direction not in self.lossy:
                    target.sendall(data)
        self.open[direction].wait()
        self.ended.add(direction)
        if direction not in self.lossy:
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    @property
    def is_over(self) -> bool:
        """Both sides have ended it and know it. What was lost on the way may keep one side waiting."""
        return len(self.ended) == 2 and not self.lossy

    def vanish(self) -> None:
        """The client is gone, and the broker is not told: nothing passes any more, in either direction."""
        self.lossy |= {TO_BROKER, TO_CLIENT}
        with suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self.open.values():
            each.set()
        for sock in (self.client, self.broker):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class Proxy:
    """Listens on a port and connects to a broker's port for each client."""

    def __init__(self, broker_port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._broker_port = broker_port
        self.links: list[Link] = []
        self.port: int = self._listener.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for link in self.links:
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_closed:
                client.close()
                continue
            try:
                broker = socket.create_connection(("127.0.0.1", self._broker_port))
            except OSError:
                client.close()
                continue
            self._close_ended()
            link = Link(client, broker)
            self.links.append(link)  # Before its first byte passes: faults of the moment must not miss it.
            link.start()

    def _close_ended(self) -> None:
        """In a long run clients connect thousands of times."""
        over = [link for link in self.links if link.is_over]
        for link in over:
            self.links.remove(link)
            link.close()

    @contextmanager
    def held(self, *directions: str) -> Iterator[list[Link]]:
        """What is under way on the connections of the moment waits, and arrives at the end, late."""
        links = list(self.links)
        for link in links:
            for direction in directions:
                link.open[direction].clear()
        try:
            yield links
        finally:
            for link in links:
                for direction in directions:
                    link.open[direction].set()

    @contextmanager
    def closed(self, *directions: str) -> Iterator[None]:
        """As ``held``, and connections that are made meanwhile are refused at once."""
        self._is_closed = True
        time.sleep(CONNECTED_S)  # one that is just being made must not be missed by held
        try:
            with self.held(*directions):
                yield
        finally:
            self._is_closed = False

    def cut(self) -> None:
        """All connections of the moment end on both sides, and what waits on them is gone."""
        for link in list(self.links):
            link.lossy |= {TO_BROKER, TO_CLIENT}
            for sock in (link.client, link.broker):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def lose(self, *directions: str) -> list[Link]:
        """From here on, what is sent on the connections of the moment in these directions is gone."""
        links = list(self.links)
        for link in links:
            link.lossy |= set(directions)
        return links

    def vanish(self) -> list[Link]:
        """All clients of the moment are gone without a word to the broker."""
        links = list(self.links)
        for link in links:
            link.vanish()
        return links
