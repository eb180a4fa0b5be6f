"""Random sequences on two brokers at the same time; what their clients get is compared after every step.

    python -m tests.amqp.side_by_side --seeds 0:300
    python -m tests.amqp.side_by_side --seeds 0:100 --type quorum

starts RabbitMQ and headrace and prints each sequence after which they differ. A difference is played again with longer
pauses before it counts: RabbitMQ's queues and channels are processes, and what one has sent the other is not seen at
once.
"""

from __future__ import annotations

import argparse
import re
import select
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pamqp.commands
import pamqp.frame
import pamqp.header

from tests.amqp.random_steps import CHANNELS, EXCHANGES, MISSING, QUEUES, TYPED, Generator, Step
from tests.amqp.scenario import plain
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.rabbitmq import rabbitmq_server

Connection, Channel = pamqp.commands.Connection, pamqp.commands.Channel
Basic, Queue, Exchange = pamqp.commands.Basic, pamqp.commands.Queue, pamqp.commands.Exchange
Tx, Confirm = pamqp.commands.Tx, pamqp.commands.Confirm

QUIET_S = 0.02
ANSWER_S = 10.0
INTEGER_TYPE = re.compile(r"of type '(signedint|unsignedint|byte|unsignedbyte|short|unsignedshort|long|timestamp)'")
ERLANG = re.compile(r"\{.*|<<.*|\[.*", re.DOTALL)


class Peer:
    """One connection: sends methods, and keeps what arrives as (channel, frame)."""

    def __init__(self, port: int, channels: Iterable[int]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.frames: list[tuple[int, Any]] = []
        self.ended = False
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.answer(Connection.Start)
        capabilities = {"basic.nack": True, "consumer_cancel_notify": True, "publisher_confirms": True}
        self.send(0, Connection.StartOk({"capabilities": capabilities}, "PLAIN", "\x00guest\x00guest", "en_US"))
        self.answer(Connection.Tune)
        self.send(0, Connection.TuneOk(2047, 131_072, 0), Connection.Open("/"))
        self.answer(Connection.OpenOk)
        for channel in channels:
            self.open(channel)
        self.frames = []

    def open(self, channel: int) -> None:
        self.send(channel, Channel.Open())
        self.answer(Channel.OpenOk)

    def send(self, channel: int, *frames: Any) -> None:
        try:
            self.socket.sendall(b"".join(pamqp.frame.marshal(frame, channel) for frame in frames))
        except ConnectionError:
            self.ended = True

    def read(self, wait_s: float) -> bool:
        """Take what is there, waiting for it; whether there was something."""
        if self.ended or not select.select([self.socket], [], [], wait_s)[0]:
            return False
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
        self._received += data
        while len(self._received) >= 8:
            count, channel, frame = pamqp.frame.unmarshal(self._received)
            if frame is None:
                break
            self._received = self._received[count:]
            self.frames.append((channel, frame))
            if isinstance(frame, Channel.Close):  # RabbitMQ gives back what the channel has when this is answered
                self.send(channel, Channel.CloseOk())
        return bool(data)

    def answer(self, kind: type, *more: type) -> Any:
        """Wait for an answer of a kind, or for the end of the channel or connection; None at the end."""
        seen = 0
        deadline = time.monotonic() + ANSWER_S
        while not self.ended:
            for _, frame in self.frames[seen:]:
                if isinstance(frame, (kind, *more, Channel.Close, Connection.Close)):
                    return frame
            seen = len(self.frames)
            assert time.monotonic() < deadline, f"no {kind.__name__} within {ANSWER_S} s"
            self.read(0.5)
        return None


class Player:
    """One broker: plays steps and gives, for each, what all its clients got and what its queues hold."""

    def __init__(self, port: int, quiet_s: float, queue_type: str = "classic") -> None:
        self._port, self._quiet_s = port, quiet_s
        self._queue_type = queue_type
        self._peers = [self._connect(), self._connect()]
        self._observer = Peer(port, [1])
        self._held: dict[int, list[int]] = {channel: [] for channel in range(CHANNELS)}
        self._automatic: set[tuple[int, str]] = set()
        self._asked: dict[int, bool] = {}
        self._names: set[str] = {*QUEUES, MISSING}
        self._unconfirmed: dict[int, int] = {}
        self._confirmed: dict[int, int] = {}

    def _connect(self) -> Peer:
        return Peer(self._port, [1, 2])

    def play(self, step: Step) -> list[Any]:
        peer, channel = self._peers[step.channel // 2], 1 + step.channel % 2
        getattr(self, f"_{step.operation}", self._call)(step, peer, channel)
        self._settle()
        notes = self._notes(step)
        self._reopen()
        return [notes, self._counts()]

    # One method for each operation that is more than a request and its answer.

    def _call(self, step: Step, peer: Peer, channel: int) -> None:
        request, answers = REQUESTS[step.operation]
        peer.send(channel, request(**step.arguments))
        peer.answer(*answers)

    def _consume(self, step: Step, peer: Peer, channel: int) -> None:
        self._asked[step.channel] = step.arguments["no_ack"]
        self._call(step, peer, channel)

    def _get(self, step: Step, peer: Peer, channel: int) -> None:
        self._call(step, peer, channel)
        for _, frame in peer.frames:
            if isinstance(frame, Basic.GetOk) and not step.arguments["no_ack"]:
                self._held[step.channel].append(frame.delivery_tag or 0)

    def _publish(self, step: Step, peer: Peer, channel: int) -> None:
        arguments = step.arguments
        properties = Basic.Properties(**arguments["properties"])
        for body in arguments["bodies"]:
            encoded = body.encode()
            peer.send(
                channel,
                Basic.Publish(
                    exchange=arguments["exchange"],
                    routing_key=arguments["routing_key"],
                    mandatory=arguments["mandatory"],
                ),
                pamqp.header.ContentHeader(0, len(encoded), properties),
                pamqp.body.ContentBody(encoded),
            )
            if step.channel in self._unconfirmed:
                self._unconfirmed[step.channel] += 1

    def _confirm_select(self, step: Step, peer: Peer, channel: int) -> None:
        self._call(step, peer, channel)
        if any(isinstance(frame, Confirm.SelectOk) for _, frame in peer.frames):
            self._unconfirmed.setdefault(step.channel, 0)

    def _tag(self, step: Step) -> int:
        held, which = self._held[step.channel], step.arguments["which"]
        if which == "zero":
            return 0
        if which == "unknown" or not held:
            return 900
        return held[which if which < len(held) else 0]

    def _ack(self, step: Step, peer: Peer, channel: int) -> None:
        tag, multiple = self._tag(step), step.arguments.get("multiple", False)
        if not self._held[step.channel] and step.arguments["which"] not in ("unknown", "zero"):
            return
        if step.operation == "ack":
            peer.send(channel, Basic.Ack(tag, multiple))
        elif step.operation == "nack":
            peer.send(channel, Basic.Nack(tag, multiple, step.arguments["requeue"]))
        else:
            peer.send(channel, Basic.Reject(tag, step.arguments["requeue"]))
        held = self._held[step.channel]
        gone = [each for each in held if each == tag or (multiple and (tag == 0 or each < tag))]
        self._held[step.channel] = [each for each in held if each not in gone]

    _nack = _reject = _ack

    def _recover(self, step: Step, peer: Peer, channel: int) -> None:
        self._held[step.channel] = []
        self._call(step, peer, channel)

    def _channel_close(self, step: Step, peer: Peer, channel: int) -> None:
        peer.send(channel, Channel.Close(200, "done", 0, 0))
        peer.answer(Channel.CloseOk)
        self._forget(step.channel)
        if not peer.ended:
            peer.open(channel)

    def _connection_close(self, step: Step, peer: Peer, channel: int) -> None:
        peer.send(0, Connection.Close(200, "done", 0, 0))
        peer.answer(Connection.CloseOk)
        peer.ended = True

    def _drop_connection(self, step: Step, peer: Peer, channel: int) -> None:
        peer.socket.close()
        peer.ended = True

    # What was got.

    def _settle(self) -> None:
        """Until every confirm is there and nothing arrives for a while."""
        deadline = time.monotonic() + 3
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < self._quiet_s or (self._waits() and time.monotonic() < deadline):
            for peer in [*self._peers, self._observer]:
                if peer.read(self._quiet_s / 4):
                    quiet_since = time.monotonic()

    def _waits(self) -> bool:
        for number, count in self._unconfirmed.items():
            peer, channel = self._peers[number // 2], 1 + number % 2
            confirmed = 0
            for at, frame in peer.frames:
                if at == channel and isinstance(frame, Basic.Ack | Basic.Nack):
                    confirmed = max(confirmed, frame.delivery_tag)
                if at == channel and isinstance(frame, Channel.Close):
                    confirmed = count
            if confirmed < count and count > self._confirmed.get(number, 0) and not peer.ended:
                return True
        return False

    def _notes(self, step: Step) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        for number in range(CHANNELS):
            peer, channel = self._peers[number // 2], 1 + number % 2
            found = [frame for at, frame in peer.frames if at == channel]
            if found and (number == step.channel or not self._ends(peer)):
                notes[f"channel {number}"] = self._noted(number, found)
        for number, peer in enumerate(self._peers):
            if found := [frame for at, frame in peer.frames if at == 0]:
                notes[f"connection {number}"] = [described(frame) for frame in found]
            peer.frames, closed = [], peer.frames
            for at, frame in closed:
                if isinstance(frame, Channel.Close):
                    peer.open(at)
                    peer.frames = []
                    self._forget(2 * number + at - 1)
                elif isinstance(frame, Connection.Close):
                    peer.send(0, Connection.CloseOk())
                    peer.ended = True
        return notes

    def _ends(self, peer: Peer) -> bool:
        """Its channels end one after the other in RabbitMQ: one may still get what another one gives back."""
        return peer.ended or any(isinstance(frame, Connection.Close) for _, frame in peer.frames)

    def _noted(self, number: int, frames: list[Any]) -> list[Any]:
        noted: list[Any] = []
        confirms: dict[int, str] = {}
        for frame in frames:
            if isinstance(frame, Basic.Ack | Basic.Nack):
                first = self._confirmed.get(number, 0) + 1 if frame.multiple else frame.delivery_tag
                answer = "ack" if isinstance(frame, Basic.Ack) else "nack"
                confirms |= {tag: answer for tag in range(first, frame.delivery_tag + 1) if tag not in confirms}
                continue
            if isinstance(frame, Basic.ConsumeOk) and self._asked.get(number):
                self._automatic.add((number, frame.consumer_tag))
            elif isinstance(frame, Basic.ConsumeOk):
                self._automatic.discard((number, frame.consumer_tag))
            if isinstance(frame, Basic.Deliver) and (number, frame.consumer_tag) not in self._automatic:
                self._held[number].append(frame.delivery_tag)
            if isinstance(frame, Queue.DeclareOk):
                self._names.add(frame.queue)
            noted.append(self._without_counts(frame, described(frame)))
        noted.sort(key=_cancels_last)
        if confirms:
            self._confirmed[number] = max(confirms)
            noted.append(["confirms", sorted(confirms.items())])
        return noted

    def _forget(self, number: int) -> None:
        self._held[number] = []
        self._unconfirmed.pop(number, None)
        self._confirmed.pop(number, None)
        self._automatic = {each for each in self._automatic if each[0] != number}

    def _reopen(self) -> None:
        for number, peer in enumerate(self._peers):
            if peer.ended:
                peer.socket.close()
                self._forget(2 * number)
                self._forget(2 * number + 1)
                time.sleep(self._quiet_s)
                self._peers[number] = self._connect()
            self._peers[number].frames = []

    def _counts(self) -> dict[str, Any]:
        """What the queues hold, asked for on another connection."""
        counts: dict[str, Any] = {}
        for name in QUEUES:
            self._observer.frames = []
            self._observer.send(1, Queue.Declare(queue=name, passive=True))
            answer = self._observer.answer(Queue.DeclareOk)
            if isinstance(answer, Channel.Close):
                self._observer.frames = []
                self._observer.open(1)
                counts[name] = answer.reply_code
            else:
                counts[name] = self._counted(name, answer)
        return counts

    def _without_counts(self, frame: Any, note: Any) -> Any:
        """See ``_counted``."""
        if self._queue_type != "classic" and isinstance(frame, Queue.DeclareOk | Queue.DeleteOk):
            note[1].pop("consumer_count", None)
            if self._queue_type == "stream":
                del note[1]["message_count"]
        return note

    def _counted(self, name: str, answer: Any) -> Any:
        """RabbitMQ counts a stream some time later, and in a quorum queue everyone who has fetched as a consumer."""
        if name in TYPED and self._queue_type == "stream":
            return "there"
        if name in TYPED and self._queue_type == "quorum":
            return [answer.message_count]
        return [answer.message_count, answer.consumer_count]

    def close(self) -> None:
        """Leave the broker as it was found."""
        for peer in self._peers:
            peer.socket.close()
        time.sleep(self._quiet_s)
        for number, name in enumerate(sorted(self._names)):
            self._observer.open(100 + number)
            self._observer.frames = []
            self._observer.send(100 + number, Queue.Delete(queue=name))
            self._observer.answer(Queue.DeleteOk)
        for number, name in enumerate((*EXCHANGES, MISSING)):
            self._observer.frames = []
            self._observer.open(1000 + number)
            self._observer.frames = []
            self._observer.send(1000 + number, Exchange.Delete(exchange=name))
            self._observer.answer(Exchange.DeleteOk)
        self._observer.socket.close()


def _cancels_last(note: Any) -> tuple[bool, str]:
    """RabbitMQ sends them some time after the queue is gone, and in no order."""
    is_cancel = note[0] == "Basic.Cancel"
    return is_cancel, note[1]["consumer_tag"] if is_cancel else ""


REQUESTS: dict[str, tuple[Any, tuple[type, ...]]] = {
    "queue_declare": (Queue.Declare, (Queue.DeclareOk,)),
    "queue_bind": (Queue.Bind, (Queue.BindOk,)),
    "queue_unbind": (Queue.Unbind, (Queue.UnbindOk,)),
    "queue_purge": (Queue.Purge, (Queue.PurgeOk,)),
    "queue_delete": (Queue.Delete, (Queue.DeleteOk,)),
    "exchange_declare": (Exchange.Declare, (Exchange.DeclareOk,)),
    "exchange_bind": (Exchange.Bind, (Exchange.BindOk,)),
    "exchange_unbind": (Exchange.Unbind, (Exchange.UnbindOk,)),
    "exchange_delete": (Exchange.Delete, (Exchange.DeleteOk,)),
    "get": (Basic.Get, (Basic.GetOk, Basic.GetEmpty)),
    "consume": (Basic.Consume, (Basic.ConsumeOk,)),
    "cancel": (Basic.Cancel, (Basic.CancelOk,)),
    "qos": (Basic.Qos, (Basic.QosOk,)),
    "recover": (Basic.Recover, (Basic.RecoverOk,)),
    "confirm_select": (Confirm.Select, (Confirm.SelectOk,)),
    "tx_select": (Tx.Select, (Tx.SelectOk,)),
    "tx_commit": (Tx.Commit, (Tx.CommitOk,)),
    "tx_rollback": (Tx.Rollback, (Tx.RollbackOk,)),
}


def described(frame: Any) -> Any:
    """A frame as plain values, without what differs from run to run or on purpose."""
    if isinstance(frame, pamqp.header.ContentHeader):
        properties = {name: value for name, value in frame.properties if value is not None}
        return ["properties", plain(properties)]
    if isinstance(frame, pamqp.body.ContentBody):
        return ["body", plain(frame.value)]
    fields = {name: plain(value) for name, value in frame}
    if "reply_text" in fields:
        fields["reply_text"] = INTEGER_TYPE.sub("of type 'an integer'", ERLANG.sub("…", fields["reply_text"]))
    return [frame.name, fields]


def first_difference(
    seed: int, steps: int, ports: tuple[int, int], quiet_s: float, queue_type: str = "classic"
) -> str | None:
    """Play a sequence on both; where they first differ, the sequence up to there and what each said."""
    sequence = Generator(seed, queue_type).sequence(steps)
    players: list[Player] = []
    try:
        players += [Player(port, quiet_s, queue_type) for port in ports]
        for number, step in enumerate(sequence):
            answers = [player.play(step) for player in players]
            if answers[0] != answers[1]:
                done = "\n".join(f"  {index:3} {each}" for index, each in enumerate(sequence[: number + 1]))
                return f"seed {seed}, step {number}\n{done}\n" + told(answers)
    finally:
        for player in players:
            player.close()
    return None


def told(answers: list[list[Any]]) -> str:
    """What one said and the other did not."""
    lines = []
    for first, second in zip(*answers, strict=True):
        for name in sorted({*first, *second}):
            if first.get(name) != second.get(name):
                lines += [f"  {name}", f"    first:  {first.get(name)}", f"    second: {second.get(name)}"]
    return "\n".join(lines)


def difference(seed: int, steps: int, ports: tuple[int, int], queue_type: str = "classic") -> str | None:
    """A difference that is still there when the brokers get more time."""
    for quiet_s in (QUIET_S, 4 * QUIET_S, 10 * QUIET_S):
        if (found := first_difference(seed, steps, ports, quiet_s, queue_type)) is None:
            return None
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FIRST:END")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ports", help="RABBITMQ,HEADRACE of brokers that run already")
    parser.add_argument("--type", choices=("classic", "quorum", "stream"), default="classic", help="of two queues")
    options = parser.parse_args()
    first, end = map(int, options.seeds.split(":"))
    different = 0
    with servers(options.ports) as ports:
        for seed in range(first, end):
            if (found := difference(seed, options.steps, ports, options.type)) is not None:
                different += 1
                print(found, flush=True)
    print(f"{end - first} sequences of {options.steps} steps ({options.type}), {different} different")
    return 1 if different else 0


@contextmanager
def servers(ports: str | None) -> Iterator[tuple[int, int]]:
    if ports:
        first, second = map(int, ports.split(","))
        yield first, second
        return
    with rabbitmq_server() as rabbitmq, headrace_server(arguments=["--amqp", "127.0.0.1:0"]) as headrace:
        yield rabbitmq.port, int(listener_address(headrace.log, "amqp").rpartition(":")[2])


if __name__ == "__main__":
    sys.exit(main())
