"""Addresses: which are understood, which are refused, and what the user is told."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headrace.errors import UsageError
from headrace.server import Listener, parse_address, refuse_public
from tests.unit.server.harness import at_once


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
    async def listen(port: int) -> None:
        listener = Listener(at_once)
        try:
            await listener.start("127.0.0.1", port)
        finally:
            await listener.drain()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="is taken by another program"):
            asyncio.run(listen(taken.getsockname()[1]))
