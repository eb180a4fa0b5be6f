"""One address that is listened on: accepting connections, limiting them, closing idle ones, draining all.

It knows no protocol: ``protocol_factory`` makes the session of each connection (see ``session.py``).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import cast

from headrace.errors import BadArgument, UsageError
from headrace.server.descriptors import is_scarce
from headrace.server.limits import ListenerLimits
from headrace.server.port_owner import port_owner
from headrace.server.session import ProtocolFactory, Session

__all__ = ["Listener", "Refusal", "bind", "parse_address", "refuse_public"]

log = logging.getLogger("headrace.server")

BACKLOG = 1024


class Refusal(StrEnum):
    """Why a connection is not served."""

    CONNECTIONS = "connections"
    CONNECTIONS_PER_IP = "connections_per_ip"
    DESCRIPTORS = "descriptors"


class Listener:
    """Accepts connections from ``start`` until ``drain``."""

    def __init__(
        self, protocol_factory: ProtocolFactory, limits: ListenerLimits | None = None, name: str = "kafka"
    ) -> None:
        self.limits = limits or ListenerLimits()
        self.name = name
        self.host = ""
        self.port = 0
        self.accepted = 0
        self.refused: Counter[Refusal] = Counter()
        self._protocol_factory = protocol_factory
        self._sessions: set[Session] = set()
        self._per_ip: Counter[str] = Counter()
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    async def start(self, sockets: Sequence[socket.socket], *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on what ``bind`` gave; ``host`` and ``port`` say where that is."""
        loop = asyncio.get_running_loop()
        self.host, self.port = sockets[0].getsockname()[:2]
        for each in sockets:
            try:
                # Two processes may bind one port while neither listens. uvloop does not report that listening fails.
                each.listen(BACKLOG)
                server = await loop.create_server(
                    self._new_session,
                    sock=each,
                    backlog=BACKLOG,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else self.limits.handshake_s,
                )
            except OSError as error:
                raise _cannot_listen(self.host, self.port, error) from None
            self._servers.append(server)
        self._schedule_sweep()

    def _new_session(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self._protocol_factory(self))

    async def drain(self, drain_s: float | None = None) -> None:
        """Accept no more, finish what is in flight within ``drain_s`` (by default the limits'), close everything."""
        if drain_s is None:
            drain_s = self.limits.drain_s
        for server in self._servers:
            server.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for session in list(self._sessions):
            session.end()
        try:
            await asyncio.wait_for(self._all_gone(), drain_s)
        except TimeoutError:
            log.warning("%d connections did not finish within %.1f s", len(self._sessions), drain_s)
            for session in list(self._sessions):
                session.abort()
            await asyncio.sleep(0)

    async def _all_gone(self) -> None:
        while self._sessions:
            self._empty.clear()
            await self._empty.wait()

    # ---- what sessions ask ------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        return len(self._sessions)

    def sessions(self) -> Iterator[Session]:
        return iter(self._sessions)

    def admit(self, session: Session, transport: asyncio.BaseTransport) -> bool:
        """Count a new connection. Above a limit it is aborted, and the answer is False; ``forget`` follows either
        way."""
        self._sessions.add(session)
        self._per_ip[session.host] += 1
        self.accepted += 1
        refusal = self._refusal(session, transport)
        if refusal is not None:
            self.refused[refusal] += 1
            log.warning("%s refused: %s", session.address, self._reason(refusal))
            session.abort()
        return refusal is None

    def _refusal(self, session: Session, transport: asyncio.BaseTransport) -> Refusal | None:
        if len(self._sessions) > self.limits.connections_max:
            return Refusal.CONNECTIONS
        if self._per_ip[session.host] > self.limits.connections_per_ip_max:
            return Refusal.CONNECTIONS_PER_IP
        if is_scarce(transport.get_extra_info("socket").fileno()):
            return Refusal.DESCRIPTORS
        return None

    def _reason(self, refusal: Refusal) -> str:
        if refusal is Refusal.CONNECTIONS:
            return f"there are max.connections={self.limits.connections_max} already"
        if refusal is Refusal.CONNECTIONS_PER_IP:
            return f"its address has max.connections.per.ip={self.limits.connections_per_ip_max} already"
        return "the process has hardly any file descriptors left; see ulimit -n"

    def forget(self, session: Session) -> None:
        self._sessions.discard(session)
        self._per_ip[session.host] -= 1
        if not self._per_ip[session.host]:
            del self._per_ip[session.host]
        self._empty.set()

    def _schedule_sweep(self) -> None:
        interval_s = min(max(self.limits.idle_s / 10, 0.05), 30.0)
        self._sweep = asyncio.get_running_loop().call_later(interval_s, self._sweep_idle)

    def _sweep_idle(self) -> None:
        for session in list(self._sessions):
            session.close_if_idle(self.limits.idle_s)
        self._schedule_sweep()


EXAMPLE_PORTS = {"kafka": 9092, "amqp": 5672, "metrics": 9644, "http": 8080}
"""What the error of an address shows, by its setting."""


def parse_address(text: str, setting: str) -> tuple[str, int]:
    """``host:port``, with IPv6 hosts in brackets."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        example = f"{setting} = 127.0.0.1:{EXAMPLE_PORTS[setting.removeprefix('advertised.')]}"
        raise BadArgument(f"{setting}: '{text}' is no address", f"write HOST:PORT, such as {example}")
    return host, int(port)


def bind(host: str, port: int) -> list[socket.socket]:
    """Take an address without accepting anybody yet: one socket per address of the host, all with the same port. Port
    0 lets the system choose one."""
    sockets: list[socket.socket] = []
    try:
        for family, address in _socket_addresses(host):
            made = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(made)
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((address, port))
            port = made.getsockname()[1]
    except OSError as error:
        for made in sockets:
            made.close()
        raise _cannot_listen(host, port, error) from None
    return sockets


def refuse_public(host: str, *, insecure: bool) -> None:
    """Refuse an address that other machines can reach, unless the user asked for it (``--insecure``)."""
    if insecure:
        return
    for _, address in _socket_addresses(host):
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            raise BadArgument(
                f"{host} can be reached from other machines and there is no authentication",
                "listen on 127.0.0.1, or write --insecure if everybody who reaches this machine may read and write",
            )


def _socket_addresses(host: str) -> list[tuple[int, str]]:
    """(family, address) of each address of a host, without repetition."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(f"cannot resolve {host}: {error.strerror}", "give an address of this machine") from None
    return list(dict.fromkeys((int(entry[0]), str(entry[4][0])) for entry in found))


def _cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(port) or "another program"
        return UsageError(f"{host}:{port} is taken by {owner}", "stop it, or choose another port; 0 for any")
    return UsageError(f"cannot listen on {host}:{port}: {error.strerror}", "give an address of this machine")
