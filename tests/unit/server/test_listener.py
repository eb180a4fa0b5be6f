"""Listeners: addresses, refusals, and connections of any protocol."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
from pathlib import Path
from typing import cast

import pytest

from headrace.errors import UsageError
from headrace.node import new_event_loop
from headrace.server import Listener, ListenerLimits, bind, parse_address, refuse_public
from headrace.server.listener import Refusal
from headrace.server.session import Session, peer_address
from tests.unit.server.harness import Client, at_once, serving
from tests.waiting import PATIENCE_S


class Echo(Session, asyncio.Protocol):
    """The smallest protocol: everything is sent back."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.host, port = peer_address(transport)
        self.address = f"{self.host}:{port}"
        self._listener.admit(self, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.forget(self)

    def end(self) -> None:
        self._transport.write(b"bye")
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def close_if_idle(self, idle_s: float) -> None:
        self._transport.close()


def test_a_listener_serves_any_protocol_and_drains_it() -> None:
    async def run() -> None:
        listener = Listener(Echo, ListenerLimits(connections_max=1), "echo")
        await listener.start(bind("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(listener.host, listener.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        second, second_writer = await asyncio.open_connection(listener.host, listener.port)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await second.readexactly(1)
        assert listener.connections == 1
        assert (listener.accepted, listener.refused) == (2, {Refusal.CONNECTIONS: 1})
        await listener.drain()
        assert await reader.read() == b"bye"
        writer.close()
        second_writer.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def test_a_listener_closes_silent_connections_of_any_protocol() -> None:
    async def run() -> None:
        listener = Listener(Echo, ListenerLimits(idle_s=0.1))
        await listener.start(bind("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(listener.host, listener.port)
        assert await reader.read() == b""
        writer.close()
        await listener.drain()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_a_listener_with_a_tls_context_serves_kafka_encrypted(certificate: tuple[Path, Path]) -> None:
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(*certificate)
    client_side = ssl.create_default_context(cafile=str(certificate[0]))
    with serving(at_once, tls=server_side) as server, Client(server.address) as client:
        client.socket = client_side.wrap_socket(client.socket, server_hostname="localhost")
        client.heartbeat(7)
        assert client.answered() == 7


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9092", ("127.0.0.1", 9092)), ("localhost:0", ("localhost", 0)), ("[::1]:9092", ("::1", 9092))],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "kafka") == address


@pytest.mark.parametrize("text", ["", "9092", ":9092", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"kafka = 127\.0\.0\.1:9092"):
        parse_address(text, "kafka")


def test_the_example_is_an_address_of_the_setting() -> None:
    for setting, example in (
        ("amqp", "amqp = 127.0.0.1:5672"),
        ("advertised.kafka", "advertised.kafka = 127.0.0.1:9092"),
    ):
        with pytest.raises(UsageError, match=re.escape(example)):
            parse_address("here", setting)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_loopback_needs_no_permission(host: str) -> None:
    refuse_public(host, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.10", "8.8.8.8"])
def test_a_public_address_is_refused_unless_the_user_says_insecure(host: str) -> None:
    with pytest.raises(UsageError, match="--insecure"):
        refuse_public(host, insecure=False)
    refuse_public(host, insecure=True)


def test_a_name_that_cannot_be_resolved_is_told_in_one_line() -> None:
    with pytest.raises(UsageError, match="cannot resolve"):
        refuse_public("no-such-host.invalid", insecure=False)


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=rf"is taken by process {os.getpid()} \("):
            bind("127.0.0.1", taken.getsockname()[1])


def test_of_two_that_have_bound_one_port_the_second_to_listen_is_refused() -> None:
    async def scenario() -> None:
        first = bind("127.0.0.1", 0)
        second = bind("127.0.0.1", first[0].getsockname()[1])  # as a broker that still recovers has bound it
        listeners = [Listener(asyncio.Protocol) for _ in range(2)]  # type: ignore[arg-type]
        try:
            await listeners[0].start(first)
            with pytest.raises(UsageError, match="is taken by"):
                await listeners[1].start(second)
        finally:
            second[0].close()
            for listener in listeners:
                await listener.drain(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(scenario())


def test_a_name_with_several_addresses_has_one_port_for_all_of_them() -> None:
    sockets = bind("localhost", 0)
    assert len({each.getsockname()[1] for each in sockets}) == 1
    for each in sockets:
        each.close()
