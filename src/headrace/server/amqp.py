"""A connection of an AMQP client: the handshake, channels, heartbeats, and as much as the peer takes.

The handshake is a table of what may come when. After it every channel has its ``Channel``. Publishing and acknowledging
are handled as they come; the other methods may have to wait for the disk, and then everything after them on the
connection waits too, since a client expects its methods to take effect in order.

**Half messages.** What was received of messages that are not whole is limited for all connections together
(``amqp.unfinished.bytes.max``). Above it the connection that holds the most of it is closed.

**Back-pressure.** While the disk takes no messages, or is almost full, connections that publish are not read, and get
``connection.blocked`` if they understand it; consumers go on. A consumer that does not read gets nothing more once
``WRITE_BYTES_MAX`` wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from enum import Enum, auto
from typing import Any, Final, cast

import headrace
from headrace.broker.queues.channel import Channel
from headrace.broker.queues.queue_broker import QueueBroker
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.server.amqp_users import AmqpUsers, credentials_of
from headrace.server.listener import Listener
from headrace.server.session import Session, peer_address, send_at_once
from headrace.wire.amqp.connection import (
    FRAME_MIN_SIZE,
    AckReceived,
    AmqpConnection,
    Event,
    HeartbeatReceived,
    MethodReceived,
    PeerErred,
    ProtocolHeaderReceived,
    PublishReceived,
)
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.methods import IDS

__all__ = ["AmqpService", "AmqpSession"]

LOG = logging.getLogger("headrace.server")

FRAME_MAX: Final = 131_072
CHANNEL_MAX: Final = 2047
MESSAGE_BYTES_MAX: Final = 16 << 20
HEARTBEAT_S: Final = 60
WRITE_BYTES_MAX: Final = 1 << 20
EVENTS_WAITING_MAX: Final = 1_000
UNREAD_BYTES_MAX: Final = 64 << 20
"""A peer that has not read so much is not read either."""
CLOSE_S: Final = 2.0
"""How long a peer has to answer ``connection.close``, and to finish the handshake twice that."""

CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
SPOKEN: Final = {"product": "RabbitMQ", "version": "3.13.0"}
"""The broker whose behaviour ours follows. Clients depend on it: under another name Celery reads ``basic.qos`` as the
standard has it, and tasks with a delay stop the ones after them."""


class State(Enum):
    """How far the connection is."""

    NEW = auto()
    STARTED = auto()
    TUNING = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()


class AmqpService:
    """What all AMQP connections share; ``session`` is the protocol factory of its listeners."""

    def __init__(self, queues: QueueBroker, users: AmqpUsers, *, unfinished_bytes_max: int = 256 << 20) -> None:
        self.queues = queues
        self.users = users
        self.sessions: set[AmqpSession] = set()
        self._unfinished_bytes = 0
        self._unfinished_bytes_max = unfinished_bytes_max
        queues.blocking.on_change = self._trouble

    def session(self, listener: Listener) -> AmqpSession:
        return AmqpSession(self, listener)

    def unfinished(self, change: int) -> None:
        """The bytes held of unfinished messages have changed by ``change``."""
        self._unfinished_bytes += change
        if change > 0 and self._unfinished_bytes > self._unfinished_bytes_max:
            largest = max(self.sessions, key=lambda each: each.wire.unfinished_bytes)
            largest.fail(
                AmqpError(
                    ReplyCode.RESOURCE_ERROR,
                    f"all connections together hold more than {self._unfinished_bytes_max} bytes of messages that have "
                    "begun and not ended (amqp.unfinished.bytes.max), and this one the most",
                )
            )

    def _trouble(self, reason: str | None) -> None:
        for session in list(self.sessions):
            session.blocked(reason)


class AmqpSession(Session, asyncio.Protocol):
    """See the module."""

    def __init__(self, service: AmqpService, listener: Listener) -> None:
        self.host = ""
        self.address = ""
        self.user = ""
        self.wire = AmqpConnection(
            frame_max=FRAME_MAX,
            channel_max=CHANNEL_MAX,
            message_bytes_max=MESSAGE_BYTES_MAX,
            accepts_messages=False,
        )
        self.virtual_host: VirtualHost
        self._service = service
        self._queues = service.queues
        self._listener = listener
        self._transport: asyncio.Transport
        self._state = State.NEW
        self._channels: dict[int, Channel] = {}
        self._closing: set[int] = set()
        """Channels that were closed with an error, until the peer has answered that."""
        self._unfinished_bytes = 0
        """The part of the service's total that this connection has reported."""
        self._events: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self._client_capabilities: dict[str, Any] = {}
        self._is_paused = False
        self._has_read = asyncio.Event()
        self._has_published = False
        self._is_held = False
        self._is_reading = True
        self._heartbeat_s = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread_before = 0
        """Bytes that waited for the peer when its heartbeats were looked at: one that reads is alive."""
        self._received_at = 0.0
        self._sent_at = 0.0
        self._handlers = {
            (State.STARTED, "connection.start-ok"): self._start_ok,
            (State.TUNING, "connection.tune-ok"): self._tune_ok,
            (State.OPENING, "connection.open"): self._open,
        }

    # ---- what the transport says ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.host, port = peer_address(transport)
        self.address = f"{self.host}:{port}"
        send_at_once(transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        self._received_at = self._sent_at = self._now()
        self._service.sessions.add(self)
        if self._listener.admit(self, transport):
            self._set_timer(2 * CLOSE_S, self._handshake_overdue)

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel_timer()
        self._service.sessions.discard(self)
        if self._task is not None:
            self._task.cancel()
        self._close_channels()
        if hasattr(self, "virtual_host"):
            self._queues.connection_closed(self.virtual_host, self)
        self._state = State.CLOSING
        self._service.unfinished(-self._unfinished_bytes)
        self._listener.forget(self)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._now()
        self._events.extend(self.wire.receive_data(data))
        if self.wire.unfinished_bytes != self._unfinished_bytes:
            self._count_unfinished()
        self._work()

    def _count_unfinished(self) -> None:
        change = self.wire.unfinished_bytes - self._unfinished_bytes
        self._unfinished_bytes = self.wire.unfinished_bytes
        self._service.unfinished(change)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._set_reading()
        self._wake()
        self._has_read.set()

    # ---- what the listener asks -------------------------------------------------------------------------------------

    def end(self) -> None:
        self.fail(AmqpError(ReplyCode.CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'"))

    def abort(self) -> None:
        self._transport.abort()

    def close_if_idle(self, idle_s: float) -> None:
        """Heartbeats decide."""

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    # ---- what channels ask ------------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return not self._is_paused and self.wire.bytes_to_send < WRITE_BYTES_MAX

    def understands(self, capability: str) -> bool:
        return self._client_capabilities.get(capability) is True

    @property
    def _is_unread(self) -> bool:
        """Whether the peer asks for more and more and reads nothing of it: what is returned or fetched with
        ``basic.get`` has no prefetch. Deliveries stop far below this."""
        return self.wire.bytes_to_send + self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX

    def flush(self) -> None:
        was_full = not self.is_writable
        data = self.wire.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)
            self._sent_at = self._now()
        if not self._is_reading:
            self._set_reading()
        if was_full and self.is_writable:
            self._wake()

    def _wake(self) -> None:
        for channel in self._channels.values():
            channel.wake()

    def blocked(self, reason: str | None) -> None:
        """Publishers are held, or (None) go on. A connection that only consumes is neither held nor notified, since its
        client may give up a blocked connection after a time."""
        if self._state is not State.OPEN or not self._has_published or (reason is not None) is self._is_held:
            return
        self._is_held = reason is not None
        if self.understands("connection.blocked"):
            if reason is None:
                self.wire.send(0, "connection.unblocked")
            else:
                self.wire.send(0, "connection.blocked", {"reason": reason[:200]})
            self.flush()
        self._set_reading()

    def _set_reading(self) -> None:
        wanted = not self._is_held and not self._is_unread and len(self._events) < EVENTS_WAITING_MAX
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # ---- events -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Handle what may be handled at once. The first event that may have to wait begins a task, which handles it
        and everything after it."""
        events = self._events
        while events and self._task is None:
            if isinstance(events[0], MethodReceived):
                self._task = asyncio.get_running_loop().create_task(self._work_slowly())
                self._task.add_done_callback(self._worked)
            else:
                self._handle(events.popleft())
        self._end_turn()

    async def _work_slowly(self) -> None:
        events = self._events
        while events:
            await self._read_enough()
            event = events.popleft()
            if isinstance(event, MethodReceived):
                await self._method(event)
            else:
                self._handle(event)

    async def _read_enough(self) -> None:
        """Wait until the peer has read most of what it was sent. The turn sends it, when the journals are written."""
        while self._is_unread:
            self._has_read.clear()
            await (self._has_read.wait() if self._is_paused else asyncio.sleep(0))

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            LOG.error("%s: an internal error; please file a bug", self.address, exc_info=task.exception())
            self.fail(AmqpError(ReplyCode.INTERNAL_ERROR, "an internal error of the broker"))
        self._work()

    def _end_turn(self) -> None:
        for channel in self._channels.values():
            channel.end_turn()
        self._set_reading()
        self._queues.turn.send(self)

    def _handle(self, event: Event) -> None:
        if self._state is State.CLOSING or getattr(event, "channel", 0) in self._closing:
            return
        try:
            if isinstance(event, PublishReceived):
                if not self._has_published:
                    self._has_published = True
                    self.blocked(self._queues.blocking.reason)
                self._channel(event.channel).publish(event)
            elif isinstance(event, AckReceived):
                self._channel(event.channel).ack(event)
            elif isinstance(event, ProtocolHeaderReceived):
                self._start()
            elif isinstance(event, PeerErred):
                self._peer_erred(event)
            else:
                assert isinstance(event, HeartbeatReceived)
        except AmqpError as error:
            self._refuse(getattr(event, "channel", 0), error)

    async def _method(self, event: MethodReceived) -> None:
        try:
            if event.channel == 0:
                self._connection_method(event)
            elif self._state is State.CLOSING:
                return
            elif event.channel in self._closing:
                self._closing_method(event)
            elif event.name.startswith("channel.") and event.name != "channel.flow":
                self._channel_method(event)
            else:
                await self._channel(event.channel, IDS[event.name]).handle(event.name, event.arguments)
        except AmqpError as error:
            self._refuse(event.channel, error)

    def _closing_method(self, event: MethodReceived) -> None:
        """What the peer has sent before it saw that the channel was closed is dropped."""
        if event.name == "channel.close-ok":
            self._closing.discard(event.channel)
        elif event.name == "channel.close":
            self.wire.send(event.channel, "channel.close-ok")
            self._queues.turn.send(self)

    def _channel(self, number: int, method: tuple[int, int] = (0, 0)) -> Channel:
        channel = self._channels.get(number)
        if channel is None or self._state is not State.OPEN:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'", method)
        return channel

    def _channel_method(self, event: MethodReceived) -> None:
        number, name = event.channel, event.name
        if name == "channel.open":
            if self._state is not State.OPEN or number in self._channels:
                raise AmqpError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen", IDS[name])
            self._channels[number] = Channel(number, self, self._queues.registry, self._queues.turn)
            self.wire.send(number, "channel.open-ok")
        elif name == "channel.close":
            self._channel(number, IDS[name]).close()
            del self._channels[number]
            self.wire.send(number, "channel.close-ok")
        elif name != "channel.close-ok":
            raise AmqpError(ReplyCode.COMMAND_INVALID, f"{name} is not a request of a client", IDS[name])
        self._queues.turn.send(self)

    # ---- the connection ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._state = State.STARTED
        self.wire.send(
            0,
            "connection.start",
            {
                "version_major": 0,
                "version_minor": 9,
                "server_properties": {
                    **SPOKEN,
                    "platform": f"headrace {headrace.__version__}",
                    "capabilities": CAPABILITIES,
                },
                "mechanisms": b"PLAIN AMQPLAIN",
                "locales": b"en_US",
            },
        )

    def _connection_method(self, event: MethodReceived) -> None:
        name = event.name
        if name == "connection.close":
            self._close_channels()
            self.wire.send(0, "connection.close-ok")
            self._close_transport()
        elif name == "connection.close-ok":
            self._close_transport()
        elif self._state is State.CLOSING:
            return
        elif name == "connection.update-secret" and self._state is State.OPEN:
            self.wire.send(0, "connection.update-secret-ok")
        else:
            self._handshake_method(name, event.arguments)
        self._queues.turn.send(self)

    def _handshake_method(self, name: str, arguments: dict[str, Any]) -> None:
        handler = self._handlers.get((self._state, name))
        if handler is None:
            state = "running" if self._state is State.OPEN else self._state.name.lower()
            raise AmqpError(ReplyCode.CHANNEL_ERROR, f"unexpected method in connection state {state}", IDS[name])
        try:
            handler(arguments)
        except AmqpError as error:
            error.method = IDS[name] if self._state is State.OPENING else (0, 0)
            raise

    def _start_ok(self, asked: dict[str, Any]) -> None:
        capabilities = asked["client_properties"].get("capabilities")
        self._client_capabilities = capabilities if isinstance(capabilities, dict) else {}
        user, password = credentials_of(asked["mechanism"], asked["response"])
        if not self._service.users.accept(user, password):
            LOG.warning("%s: user %r was refused", self.address, user.decode(errors="replace")[:100])
            raise AmqpError(
                ReplyCode.ACCESS_REFUSED,
                f"Login was refused using authentication mechanism {asked['mechanism']}. "
                "For details see the broker logfile.",
            )
        self.user = user.decode()
        self._state = State.TUNING
        tune = {"channel_max": CHANNEL_MAX, "frame_max": FRAME_MAX, "heartbeat": HEARTBEAT_S}
        self.wire.send(0, "connection.tune", tune)

    def _tune_ok(self, asked: dict[str, Any]) -> None:
        frame_max = asked["frame_max"] or FRAME_MAX
        if not FRAME_MIN_SIZE <= frame_max <= FRAME_MAX:
            raise AmqpError(
                ReplyCode.NOT_ALLOWED, f"negotiated frame_max = {frame_max} is outside {FRAME_MIN_SIZE} to {FRAME_MAX}"
            )
        channel_max = asked["channel_max"] or CHANNEL_MAX
        if channel_max > CHANNEL_MAX:
            raise AmqpError(
                ReplyCode.NOT_ALLOWED, f"negotiated channel_max = {channel_max} is higher than {CHANNEL_MAX}"
            )
        self.wire.frame_max = frame_max
        self.wire.channel_max = channel_max
        self._heartbeat_s = asked["heartbeat"]
        self._state = State.OPENING

    def _open(self, asked: dict[str, Any]) -> None:
        host = self._queues.virtual_host(asked["virtual_host"])
        if not self._service.users.may_use(self.user, host.name):
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"access to vhost '{host.name}' refused for user '{self.user}'")
        self.virtual_host = host
        self._state = State.OPEN
        self._cancel_timer()
        if self._heartbeat_s:
            self._set_timer(self._heartbeat_s / 2, self._beat)
        self.wire.send(0, "connection.open-ok")

    # ---- errors and ends --------------------------------------------------------------------------------------------

    def _peer_erred(self, event: PeerErred) -> None:
        if event.channel:
            self._drop_channel(event.channel)
            self._closing.add(event.channel)
        elif self._state is State.NEW:
            self.wire.send_protocol_header()
            self._close_transport()
        else:
            raise event.error

    def _refuse(self, number: int, error: AmqpError) -> None:
        """Close the channel with an error, or the connection, as the error asks."""
        LOG.info("%s: channel %d: %s", self.address, number, error)
        if error.code.is_hard or number == 0 or self._state is not State.OPEN:
            self.fail(error)
        else:
            self._drop_channel(number)
            self._closing.add(number)
            self.wire.close_channel(number, error)
            self._queues.turn.send(self)

    def refuse(self, number: int, error: AmqpError) -> None:
        self._refuse(number, error)

    def _drop_channel(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.close()

    def fail(self, error: AmqpError) -> None:
        """Close the connection with an error; a peer that does not answer in time is cut off."""
        if self._state is State.CLOSING:
            return
        is_known = self._state is not State.NEW
        may_be_told = self._state is not State.STARTED or self.understands("authentication_failure_close")
        self._state = State.CLOSING
        self._close_channels()
        if is_known and may_be_told:
            self.wire.close(error)
            self._count_unfinished()
            self.flush()
            self._set_timer(CLOSE_S, self.abort)
        else:
            self._close_transport()

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def _close_transport(self) -> None:
        self._state = State.CLOSING
        self.flush()
        self._transport.close()

    # ---- time -------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _set_timer(self, delay_s: float, function: Any) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, function)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handshake_overdue(self) -> None:
        LOG.info("%s: the handshake was not finished in time", self.address)
        self.abort()

    def _beat(self) -> None:
        now = self._now()
        unread = self._transport.get_write_buffer_size()
        if not self._is_reading and (not self._is_unread or unread < self._unread_before):
            self._received_at = now  # its heartbeats wait with everything else that it has sent
        self._unread_before = unread
        if now - self._received_at > 2 * self._heartbeat_s:
            LOG.info("%s: missed heartbeats, timeout: %ds", self.address, self._heartbeat_s)
            self.abort()
            return
        if now - self._sent_at >= self._heartbeat_s / 2:
            self.wire.send_heartbeat()
            self.flush()
        self._set_timer(self._heartbeat_s / 2, self._beat)
