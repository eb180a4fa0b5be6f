"""What breaks AMQP's rules, by hand, on RabbitMQ and on headrace: the same end, with the same code and words."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pamqp.commands
import pytest

from tests.amqp.raw import (
    BODY,
    FRAME_MAX,
    HEADER,
    HEARTBEAT,
    METHOD,
    Basic,
    Channel,
    Connection,
    RawPeer,
    frame,
    table,
)
from tests.amqp.scenario import AmqpScenario

PlayOn = Callable[[Callable[[AmqpScenario], None]], None]
Break = Callable[[RawPeer], object]

pytestmark = pytest.mark.servers

PUBLISH = pamqp.commands.Basic.Publish(exchange="", routing_key="nowhere").marshal()
PUBLISH_METHOD = struct.pack(">HH", 60, 40) + PUBLISH
DECLARE = struct.pack(">HH", 50, 10) + b"\x00\x00\x01q\x00"


def header(size: int, class_id: int = 60, weight: int = 0) -> bytes:
    return struct.pack(">HHQH", class_id, weight, size, 0)


def note_end(
    s: AmqpScenario, what: str, break_it: Break, *, with_text: bool = True, channels: tuple[int, ...] = (1,)
) -> None:
    """Note how the broker ends a connection on which channels are open; without the text where RabbitMQ prints terms of
    Erlang."""
    peer = RawPeer(s.port).opened(*channels)
    break_it(peer)
    ended: Any = peer.closed_with()
    peer.close()
    if not with_text and isinstance(ended, list):
        ended = [*ended[:2], *ended[3:]]
    s.note(what, ended)


def test_frames_that_are_no_frames(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        def send(data: bytes) -> Break:
            return lambda peer: peer.send(data)

        note_end(s, "a type that is none", send(frame(5, 1, b"")), with_text=False)
        note_end(s, "no end mark", send(struct.pack(">BHI", METHOD, 1, 4) + b"\x00\x3c\x00\x0a\x00"), with_text=False)
        too_large = struct.pack(">BHI", BODY, 1, FRAME_MAX + 1)
        note_end(s, "larger than agreed", send(too_large + bytes(100)), with_text=False)
        note_end(s, "a method on channel 0", send(frame(METHOD, 0, b"\x00\x3c\x00\x0a" + bytes(7))), with_text=False)

    play_on(play)


def test_contents_that_are_no_contents(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        def send(*frames: bytes) -> Break:
            return lambda peer: peer.send(b"".join(frames))

        publish = frame(METHOD, 1, PUBLISH_METHOD)
        note_end(s, "a header without a method", send(frame(HEADER, 1, header(3))))
        note_end(s, "a body without a header", send(publish, frame(BODY, 1, b"abc")))
        note_end(s, "a body without anything", send(frame(BODY, 1, b"abc")))
        note_end(s, "a method in between", send(publish, publish))
        note_end(s, "a method before the body", send(publish, frame(HEADER, 1, header(3)), publish))
        note_end(s, "a header twice", send(publish, frame(HEADER, 1, header(3)), frame(HEADER, 1, header(3))))
        note_end(s, "another class", send(publish, frame(HEADER, 1, header(3, class_id=50))), with_text=False)

    play_on(play)


def test_methods_that_are_no_methods(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        def send(channel: int, payload: bytes) -> Break:
            return lambda peer: peer.send(frame(METHOD, channel, payload))

        note_end(s, "arguments cut short", send(1, DECLARE), with_text=False)
        note_end(s, "a table that lies", send(1, DECLARE + struct.pack(">I", 100)), with_text=False)
        note_end(s, "channel 0", send(0, struct.pack(">HH", 20, 10) + b"\x00"), with_text=False)

    play_on(play)


def test_channels_open_and_close_in_order(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        note_end(s, "opened twice", lambda peer: peer.method(1, Channel.Open()))
        note_end(s, "used before it is open", lambda peer: peer.method(2, Basic.Qos()))
        note_end(s, "closed before it is open", lambda peer: peer.method(2, Channel.Close(200, "", 0, 0)))
        note_end(s, "flow off", lambda peer: peer.method(1, Channel.Flow(False)))
        peer = RawPeer(s.port).opened(1)
        peer.method(1, Channel.Flow(True))
        s.note("flow on", peer.expect(Channel.FlowOk).active)
        peer.method(1, Channel.Close(200, "bye", 0, 0))
        s.note("closed", type(peer.expect(Channel.CloseOk)).__name__)
        peer.method(1, Channel.Open())
        s.note("open again", type(peer.expect(Channel.OpenOk)).__name__)
        peer.method(1, Basic.Publish(exchange="missing", routing_key="k"))
        peer.send(frame(HEADER, 1, header(0)))
        s.note("an error of a channel", peer.closed_with())
        peer.method(1, Basic.Qos())
        peer.method(1, Channel.CloseOk())
        peer.method(1, Channel.Open())
        s.note("open after an error", type(peer.expect(Channel.OpenOk)).__name__)
        peer.method(0, Connection.Close(200, "bye", 0, 0))
        s.note("closed by us", type(peer.expect(Connection.CloseOk)).__name__)
        peer.close()

    play_on(play)


def test_a_login_that_fails(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        for what, user, password, mechanism in (("a wrong password", "guest", "wrong", "PLAIN"),):
            peer = RawPeer(s.port)
            peer.login(user, password, mechanism)
            s.note(what, peer.closed_with())
            peer.close()
        peer = RawPeer(s.port)
        peer.expect(Connection.Start)
        login = table(b"\x05LOGINS\x00\x00\x00\x05guest", b"\x08PASSWORDS\x00\x00\x00\x05guest")[4:]
        arguments = table() + b"\x08AMQPLAIN" + struct.pack(">I", len(login)) + login + b"\x05en_US"
        peer.send(frame(METHOD, 0, b"\x00\x0a\x00\x0b" + arguments))
        s.note("AMQPLAIN", type(peer.expect(Connection.Tune)).__name__)
        peer.close()

    play_on(play)


def test_a_handshake_out_of_order(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        def ended(what: str, peer: RawPeer, *, with_text: bool = True) -> None:
            end = peer.closed_with()
            s.note(what, end if with_text or not isinstance(end, list) else [*end[:2], *end[3:]])
            peer.close()

        peer = RawPeer(s.port)
        peer.login()
        peer.tune()
        peer.open("missing")
        ended("no such virtual host", peer)

        peer = RawPeer(s.port).opened()
        peer.open()
        ended("opened twice", peer, with_text=False)

        peer = RawPeer(s.port).opened(1)
        peer.send(frame(HEARTBEAT, 0, b""))
        peer.method(1, Channel.Flow(True))
        s.note("a heartbeat is taken", type(peer.expect(Channel.FlowOk)).__name__)
        peer.close()

    play_on(play)


def test_a_secret_is_updated(play_on: PlayOn) -> None:
    def play(s: AmqpScenario) -> None:
        peer = RawPeer(s.port).opened()
        peer.method(0, Connection.UpdateSecret("guest", "it is time"))
        s.note("updated", type(peer.expect(Connection.UpdateSecretOk)).__name__)
        peer.close()

    play_on(play)
