"""What a listener and a protocol know of each other.

A listener accepts connections and gives each to a session, which its *protocol factory* makes. The session speaks the
protocol; the listener counts connections, limits them, sweeps idle ones and drains all at the end. The
protocols are Kafka (``kafka.py``), AMQP (``amqp.py``) and HTTP for metrics (``http.py``).
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.server.listener import Listener

__all__ = ["ProtocolFactory", "Session", "peer_address", "send_at_once"]


class Session(ABC):
    """One connection as its listener sees it. It is an asyncio protocol as well.

    In ``connection_made`` it calls ``Listener.admit``, and in ``connection_lost`` ``Listener.forget``, each once.
    """

    host: str
    """The peer's address without its port: what the limit per address counts."""

    address: str
    """The peer as the operator's log names it."""

    @abstractmethod
    def end(self) -> None:
        """Take no more requests, answer those that were executed, then close."""

    @abstractmethod
    def abort(self) -> None:
        """Close now; what was not sent is lost."""

    @abstractmethod
    def close_if_idle(self, idle_s: float) -> None:
        """Close if the peer was silent for so long and nothing is under way."""


ProtocolFactory = Callable[["Listener"], Session]
"""Makes the session of a connection that was accepted. It returns an asyncio protocol."""


def peer_address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Host and port of the peer; a peer that is already gone has none."""
    found = transport.get_extra_info("peername") or ("unknown", 0)
    return str(found[0]), int(found[1])


def send_at_once(transport: asyncio.BaseTransport) -> None:
    """Small answers leave without waiting for more."""
    with suppress(OSError):  # the peer may be gone already; the loop will call connection_lost
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
