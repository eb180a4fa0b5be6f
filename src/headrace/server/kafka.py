"""One connection: bytes in, requests executed in order, answers out in order.

Execution. Requests of a connection are executed in the order they came. A Produce takes effect when its handler
returns, and only its answer waits (for the shared flush), so the next request runs at once; up to
``requests_in_flight_max`` answers may be waiting. Any other request that has to wait holds up those behind it, as Kafka
does: a heartbeat must not overtake the JoinGroup in front of it.

Pressure. What cannot be executed yet stays in ``_received``, and while anything is there the socket is not read. A peer
that does not take its answers is not read either. So a connection costs one read, decoded, plus its output.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.request import Peer, PromptReply, Reply, Request
from headrace.server.limits import LARGE_FRAME_BYTES, LINGER_S, READ_BYTES_SMALL
from headrace.server.output import Output
from headrace.wire.kafka.apis import APIS, PRODUCE
from headrace.wire.kafka.codec import UnwritableMessage
from headrace.wire.kafka.connection import Connection, Event, PeerErred, ReplyTo, RequestReceived, UnsupportedVersion

if TYPE_CHECKING:
    from headrace.server.listener import Listener

__all__ = ["Handler", "Session"]

Handler = Callable[[Request[Any]], Reply]

log = logging.getLogger("headrace.server")

HANDSHAKE_GRACE_S = 0.05

REQUESTS_PER_TURN = 64
"""One read can carry thousands of small requests: after so many of one connection the others have their turn."""

WAITS_FOR_OTHERS = frozenset({1, 11, 14})
"""Fetch, JoinGroup, SyncGroup: what they wait for may never come, so nobody waits for them when a connection ends."""


class Session(asyncio.BufferedProtocol):
    """The skin around one ``Connection``."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._connection = Connection(listener.limits.frames)
        self._received: deque[Event] = deque()
        self._received_bytes = 0
        self._pending: deque[tuple[ReplyTo, Any]] = deque()  # answers to come, in order
        self._parked: asyncio.Future[Any] | None = None  # the answer that holds up execution
        self._held_bytes = 0
        self._large = False  # in the middle of a large frame
        self._starved = False  # and the request budget is spent
        self._held = False  # a producer that outruns its consumers
        self._reading = True
        self._ending = False  # answer what was executed, then close
        self._executing = False
        self._handshake: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None

    # ---- the transport's calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self.active_at = self._loop.time()
        address = transport.get_extra_info("peername") or ("unknown", 0)
        self.peer = Peer(id=self._listener.next_peer_id(), host=address[0], listener=self._listener.name)
        self.peer.on_hold = self._hold
        self.peer.on_hang_up = self._hang_up
        self._address = f"{address[0]}:{address[1]}"
        self._output = Output(
            self._transport,
            self._listener.readers,
            drained=self._output_drained,
            failed=self._output_failed,
            taken=self._is_active,
        )
        refusal = self._listener.admit(self)
        if refusal:
            log.warning("%s refused: %s", self._address, refusal)
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)
        with suppress(OSError):  # the peer may be gone already; the loop will tell
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._handshake = self._loop.call_later(self._limits.handshake_s, self._handshake_is_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        """All connections share one buffer: the loop reads into it and calls ``buffer_updated`` before anybody else."""
        scratch = self._listener.scratch
        return scratch if self._connection.missing_bytes > READ_BYTES_SMALL else scratch[:READ_BYTES_SMALL]

    def _is_active(self) -> None:
        self.active_at = self._loop.time()

    def buffer_updated(self, nbytes: int) -> None:
        self._is_active()
        events = self._connection.receive_data(self._listener.scratch[:nbytes])
        if events:
            self._note(events)
        self._execute()

    def eof_received(self) -> bool:
        self.end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.peer.closed = True
        for timer in (self._handshake, self._linger):
            if timer is not None:
                timer.cancel()
        self._connection.close()
        self._received.clear()
        self._received_bytes = 0
        if isinstance(self._parked, PromptReply):
            self._parked.cancel()  # a fetch may be waiting for hours, and nobody would take its answer
        self._pending.clear()
        self._output.abandon()
        self._listener.budget.leave(self)
        self._listener.budget.change(-self._held_bytes)
        self._held_bytes = 0
        self._listener.forget(self)

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.resume()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _note(self, events: list[Event]) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        for event in events:
            if isinstance(event, RequestReceived | UnsupportedVersion):
                self._received_bytes += event.size
        self._received.extend(events)
        if isinstance(events[-1], PeerErred) and self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def _execute(self) -> None:
        """Run what may run now, and settle whether the socket is to be read."""
        if self._executing or self.peer.closed:
            return  # a handler, or an answer that was ready at once, led back here; the loop below goes on
        self._executing = True
        try:
            executed = 0
            while self._received and self._may_execute():
                if executed == REQUESTS_PER_TURN:
                    self._loop.call_soon(self._execute)
                    break
                self._execute_one(self._received.popleft())
                executed += 1
        finally:
            self._executing = False
        self._mind_the_budget()
        self._mind_reading()

    def _may_execute(self) -> bool:
        return (
            not self._ending
            and not self._held
            and self._parked is None
            and not self._output.blocked
            and len(self._pending) < self._limits.requests_in_flight_max
        )

    def _execute_one(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._received_bytes -= event.size
            self._request(event)
        elif isinstance(event, UnsupportedVersion):
            self._received_bytes -= event.size
            self._pending.append((ReplyTo(-1, 0, 0), self._connection.send_unsupported(event)))
            self._send_ready()
        elif isinstance(event, PeerErred):
            log.info("%s closed: %s", self._address, event.reason)
            self.end()

    def _request(self, event: RequestReceived) -> None:
        request = Request(
            api_key=event.api_key,
            version=event.version,
            body=event.body,
            peer=self.peer,
            client_id=event.client_id,
            correlation_id=event.correlation_id,
        )
        reply_to = event.reply_to
        try:
            reply = self._listener.handle(request)
        except Exception as error:
            self._handler_failed(reply_to, error)
            return
        if reply is None:
            return
        self._pending.append((reply_to, reply))
        if isinstance(reply, asyncio.Future) and not reply.done():
            if event.api_key != PRODUCE:
                self._parked = reply
            if isinstance(reply, PromptReply):
                reply.taker = self._answered
            else:
                reply.add_done_callback(self._answered)
        elif len(self._pending) == 1:
            self._send_ready()

    def _handler_failed(self, reply_to: ReplyTo, error: BaseException) -> None:
        """A mistake of ours: told in the log, paid by this connection alone."""
        name = APIS[reply_to.api_key].name
        log.error("%s version %d from %s failed", name, reply_to.version, self._address, exc_info=error)
        self._transport.abort()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _answered(self, reply: asyncio.Future[Any]) -> None:
        if self.peer.closed:
            if not reply.cancelled():
                reply.exception()  # looked at, so that nobody complains that it was not
            return
        if reply is self._parked:
            self._parked = None
        self._send_ready()
        self._execute()

    def _send_ready(self) -> None:
        pending = self._pending
        while pending:
            reply_to, reply = pending[0]
            if isinstance(reply, asyncio.Future):
                if not reply.done():
                    break
                try:
                    reply = reply.result()
                except (Exception, asyncio.CancelledError) as error:
                    pending.clear()
                    self._handler_failed(reply_to, error)
                    return
            pending.popleft()
            if reply is not None:
                self._send(reply_to, reply)
        if self._ending:
            self._close_if_answered()

    def _send(self, reply_to: ReplyTo, reply: Any) -> None:
        if reply_to.api_key < 0:
            self._output.add(reply)
            return
        try:
            chunks = self._connection.send(reply, reply_to)
        except UnwritableMessage as error:
            log.warning("%s closed: answer to %s: %s", self._address, APIS[reply_to.api_key].name, error.message)
            self._transport.abort()
            return
        except Exception as error:
            self._handler_failed(reply_to, error)
            return
        self._output.add(chunks)

    def _output_drained(self) -> None:
        if self._ending:
            self._close_if_answered()
        else:
            self._execute()

    def _output_failed(self, reason: str) -> None:
        log.error("answer to %s broken off: %s", self._address, reason)
        self._transport.abort()

    # ---- pressure ---------------------------------------------------------------------------------------------------

    def _mind_reading(self) -> None:
        wanted = not (self._received or self._starved or self._held or self._ending or self._output.blocked)
        if wanted == self._reading or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _hold(self, held: bool) -> None:
        self._held = held
        self._execute()

    def _hang_up(self, reason: str) -> None:
        log.info("%s closed: %s", self._address, reason)
        self.end()

    def _mind_the_budget(self) -> None:
        budget = self._listener.budget
        partial = self._connection.held_bytes
        held = partial + self._received_bytes
        if held != self._held_bytes:
            delta, self._held_bytes = held - self._held_bytes, held
            budget.change(delta)
        if partial > LARGE_FRAME_BYTES:
            self._large = True
            self._starved = not budget.may_read(self)
        elif self._large:
            self._large = self._starved = False
            budget.leave(self)

    @property
    def missing_bytes(self) -> int:
        return self._connection.missing_bytes

    def budget_granted(self) -> None:
        self._starved = False
        self._mind_reading()

    def budget_refused(self) -> None:
        log.warning("%s dropped: request memory is spent and its request did not arrive in time", self._address)
        self._transport.abort()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Answer what was executed, then close; what was not executed is forgotten."""
        self._ending = True
        self._received.clear()
        self._received_bytes = 0
        self._mind_the_budget()
        self._mind_reading()
        self._close_if_answered()

    def abort(self) -> None:
        self._transport.abort()

    def _close_if_answered(self) -> None:
        """``close`` lets the transport's own buffer out first."""
        waited_for = any(reply_to.api_key not in WAITS_FOR_OTHERS for reply_to, _ in self._pending)
        if not waited_for and not self._output.blocked:
            self._transport.close()

    def close_if_idle(self, idle_s: float) -> None:
        """Silent with nothing under way, or an answer that the peer does not take."""
        silent_s = self._loop.time() - self.active_at
        if silent_s < idle_s or (self._pending and not self._output.blocked):
            return
        log.info("%s closed: silent for %.0f s", self._address, silent_s)
        self._transport.abort()

    def _handshake_is_late(self) -> None:
        """After a pause of the whole process the loop fires timers before it reads: let it read once first."""
        self._handshake = self._loop.call_later(HANDSHAKE_GRACE_S, self._handshake_is_too_late)

    def _handshake_is_too_late(self) -> None:
        log.info("%s closed: no request within %.0f s", self._address, self._limits.handshake_s)
        self._transport.abort()
