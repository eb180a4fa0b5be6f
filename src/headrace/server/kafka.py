"""One Kafka connection: bytes in, requests executed in order, answers out in order.

Execution. Requests of a connection are executed in the order they came. What a reply may wait for is declared for each
API (``wire.kafka.apis.Waits``). Where it is only the flush, the request has taken effect and the next one runs at once;
up to ``requests_in_flight_max`` answers may be waiting. Any other reply that has to wait holds up the requests after
it, as in Kafka: a heartbeat must not overtake the JoinGroup before it. So does a request that is decoded or executed in
slices, until it has taken effect.

Authentication. Where it is required, requests go to the authentication until it knows the peer, and to the broker
from then on.

Pressure. What cannot be executed yet stays in ``_received``, and while anything is there the socket is not read. A peer
that does not take its answers is not read either. So a connection costs one read, decoded, plus its output.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.replies import PendingReply, Reply
from headrace.broker.request import Peer, Request
from headrace.broker.slices import Steps
from headrace.server.output import Output
from headrace.server.session import Session, peer_address, send_at_once
from headrace.wire.kafka.apis import APIS, Waits
from headrace.wire.kafka.codec import MalformedMessage, UnwritableMessage
from headrace.wire.kafka.connection import (
    Connection,
    Event,
    LongRequestReceived,
    PeerErred,
    ReplyTo,
    RequestReceived,
    UnsupportedVersion,
    joined,
)

if TYPE_CHECKING:
    from headrace.server.kafka_service import KafkaService
    from headrace.server.listener import Listener

__all__ = ["READ_BYTES", "REQUESTS_PER_TURN", "KafkaSession"]

log = logging.getLogger("headrace.server")

READ_BYTES = 256 << 10
"""One read from a socket while a large frame arrives."""

READ_BYTES_SMALL = 64 << 10
"""One read otherwise: what many small requests in one read can cost as decoded objects."""

LARGE_FRAME_BYTES = 64 << 10
"""Frames up to this size are read even when the request budget is spent."""

LINGER_S = 0.5
"""After a protocol error, answers to earlier requests have so long to leave."""

HANDSHAKE_GRACE_S = 0.05

REQUESTS_PER_TURN = 64
"""One read can carry thousands of small requests. After this many of one connection the others run."""


ELEMENTS_DECODED_PER_UNIT = 10
"""Of ``broker.slices``: an element takes 0.5 to 2.5 µs."""

HOLD_S_NOTED = 0.05
"""A request that holds the loop longer is remembered, so that a stall has a name."""


class KafkaSession(Session, asyncio.BufferedProtocol):
    """The socket of one ``Connection``."""

    def __init__(self, service: KafkaService, listener: Listener) -> None:
        self._service = service
        self._listener = listener
        self._limits = service.limits
        self._handle = self._before_authentication if service.authentication.required else service.handle
        self._connection = Connection(service.limits.frames)
        self._received: deque[Event] = deque()
        self._received_bytes = 0
        self._pending: deque[tuple[ReplyTo, Any, float]] = deque()  # answers to come, in order, and when they began
        self._parked: PendingReply[Any] | None = None  # the answer that holds up execution
        self._held_bytes = 0
        self._large = False  # in the middle of a large frame
        self._starved = False  # and the request budget is spent
        self._held = False  # a producer that outruns its consumers
        self._reading = True
        self._ending = False  # answer what was executed, then close
        self._executing = False
        self._gathering = False  # answers that are ready leave at the end of this turn
        self._handshake: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None

    @property
    def requests_in_flight(self) -> int:
        return len(self._pending)

    @property
    def is_held(self) -> bool:
        """Whether it is not read because its producer outruns a consumer."""
        return self._held

    @property
    def is_blocked(self) -> bool:
        """Whether it is not read because the peer does not take its answers."""
        return self._output.blocked

    # ---- the transport's calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self.active_at = self._loop.time()
        self.host, port = peer_address(transport)
        self.address = f"{self.host}:{port}"
        self.peer = Peer(id=self._service.next_peer_id(), host=self.host, listener=self._listener.name)
        self.peer.on_hold = self._hold
        self.peer.on_hang_up = self._hang_up
        self._output = Output(
            self._transport,
            self._service.readers,
            drained=self._output_drained,
            failed=self._output_failed,
            taken=self._is_active,
        )
        if not self._listener.admit(self, transport):
            return
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)
        send_at_once(transport)
        self._handshake = self._loop.call_later(self._listener.limits.handshake_s, self._handshake_is_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        """All connections share one buffer: the loop calls ``buffer_updated`` right after it has read into it.

        A read does not go beyond the end of a large frame: thousands of small requests could follow it, and all of
        them would be decoded at once.
        """
        return self._service.scratch[: max(self._connection.missing_bytes, READ_BYTES_SMALL)]

    def _is_active(self) -> None:
        self.active_at = self._loop.time()

    def buffer_updated(self, nbytes: int) -> None:
        self._is_active()
        events = self._connection.receive_data(self._service.scratch[:nbytes])
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
        if self._parked is not None:
            self._parked.abandon()  # a fetch may wait for hours, and its answer would have no reader
            self._parked = None
        self._pending.clear()
        self._output.abandon()
        self._service.budget.leave(self)
        self._service.budget.change(-self._held_bytes)
        self._held_bytes = 0
        self._listener.forget(self)
        # What refers back to this session, so that it is freed now and not by the cycle collector (``heap.py``).
        self.peer.on_hold = self.peer.on_hang_up = None
        self._handle = self._service.handle

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
            if not isinstance(event, PeerErred):
                self._received_bytes += event.size
        self._received.extend(events)
        if isinstance(events[-1], PeerErred) and self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def _execute(self) -> None:
        """Run what may run now, and decide whether the socket is read."""
        if self._executing or self.peer.closed:
            return  # called by a handler, or by an answer that was ready at once: the loop below goes on
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
        if isinstance(event, RequestReceived | LongRequestReceived):
            self._received_bytes -= event.size
            started = monotonic()
            self._request(event, started)
            held_s = monotonic() - started
            if held_s > HOLD_S_NOTED:
                self._service.note_hold(event.reply_to.api_key, self.address, held_s)
        elif isinstance(event, UnsupportedVersion):
            self._received_bytes -= event.size
            self._pending.append((ReplyTo(-1, 0, 0), self._connection.send_unsupported(event), 0.0))
            self._send_ready()
        elif isinstance(event, PeerErred):
            log.info("%s closed: %s", self.address, event.reason)
            self.end()

    def _request(self, event: RequestReceived | LongRequestReceived, started: float) -> None:
        reply_to = event.reply_to
        api_key, version, correlation_id = reply_to
        measures = self._service.measures[api_key]
        measures.request_bytes += event.size
        try:
            if isinstance(event, LongRequestReceived):
                reply = self._service.slices.run(self._decoded_first(event), self.peer)
            else:
                reply = self._handle(Request(api_key, version, event.body, self.peer, event.client_id, correlation_id))
        except Exception as error:
            self._handler_failed(reply_to, error)
            return
        if reply is None:
            measures.seconds.observe(monotonic() - started)
            return
        self._pending.append((reply_to, reply, started))
        if isinstance(reply, PendingReply) and reply.waits:
            self._follow(api_key, reply)
        elif len(self._pending) == 1:
            self._send_ready()

    def _decoded_first(self, event: LongRequestReceived) -> Steps[Reply]:
        """The reply to a request whose body is decoded in slices. If the peer goes before that is done, the request is
        not executed, like those that were not looked at yet."""
        api_key, version, correlation_id = event.reply_to
        try:
            elements = next(event.decoding)
            while True:
                yield max(1, elements // ELEMENTS_DECODED_PER_UNIT)
                elements = next(event.decoding)
        except StopIteration as done:
            return self._handle(Request(api_key, version, done.value, self.peer, event.client_id, correlation_id))
        except MalformedMessage as error:
            self._hang_up(f"{APIS[api_key].name} version {version}: {error}")
            return None

    def _before_authentication(self, request: Request[Any]) -> Reply:
        authentication = self._service.authentication
        if not authentication.knows(self.peer):
            return authentication.handle(request)
        self._handle = self._service.handle
        return self._handle(request)

    def _handler_failed(self, reply_to: ReplyTo, error: BaseException) -> None:
        """A bug of ours: it is logged, and only this connection is closed."""
        name = APIS[reply_to.api_key].name
        log.error("%s version %d from %s failed", name, reply_to.version, self.address, exc_info=error)
        self.abort()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _follow(self, api_key: int, reply: PendingReply[Any]) -> None:
        if reply.executing or APIS[api_key].waits is not Waits.FLUSH:
            self._parked = reply
        reply.taker = self._go_on if reply.prompt else self._go_on_soon

    def _go_on_soon(self) -> None:
        """One sync acknowledges several requests of a connection: their answers leave together."""
        if not self._gathering and not self.peer.closed:
            self._gathering = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._gathering = False
        if self.peer.closed:
            return
        if self._parked is not None and self._parked.ready:
            executed, self._parked = self._parked, None
            if executed.executing:
                self._take_executed(executed)
        self._send_ready()
        self._execute()

    def _take_executed(self, executed: PendingReply[Any]) -> None:
        """Work in slices is done. What it gives may be a reply that waits; nothing was executed after it."""
        reply = executed.response
        if isinstance(reply, PendingReply):
            reply_to, _, started = self._pending.pop()
            self._pending.append((reply_to, reply, started))
            if reply.waits:
                self._follow(reply_to.api_key, reply)

    def _send_ready(self) -> None:
        """Send the answers that are ready, in the order of their requests, with one call."""
        pending = self._pending
        chunks: list[Any] = []
        while pending:
            reply_to, reply, started = pending[0]
            if isinstance(reply, PendingReply):
                if reply.waits:
                    break
                if reply.error is not None:
                    self._handler_failed(reply_to, reply.error)
                    return
                reply = reply.response
            pending.popleft()
            if reply is not None:
                chunks += self._encoded(reply_to, reply, started)
        if chunks:
            self._output.add(chunks if len(chunks) == 1 else joined(chunks))
        if self._ending:
            self._close_if_answered()

    def _encoded(self, reply_to: ReplyTo, reply: Any, started: float) -> list[Any]:
        if reply_to.api_key < 0:
            return cast("list[Any]", reply)
        try:
            chunks = self._connection.send(reply, reply_to)
        except UnwritableMessage as error:
            log.warning("%s closed: answer to %s: %s", self.address, APIS[reply_to.api_key].name, error.message)
            self.abort()
            return []
        except Exception as error:
            self._handler_failed(reply_to, error)
            return []
        self._service.measures[reply_to.api_key].answered(reply, chunks, monotonic() - started)
        return chunks

    def _output_drained(self) -> None:
        if self._ending:
            self._close_if_answered()
        else:
            self._execute()

    def _output_failed(self, reason: str) -> None:
        log.error("answer to %s broken off: %s", self.address, reason)
        self.abort()

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
        log.info("%s closed: %s", self.address, reason)
        self.end()

    def _mind_the_budget(self) -> None:
        budget = self._service.budget
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
        log.warning("%s dropped: request memory is spent and its request did not arrive in time", self.address)
        self.abort()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Answer what was executed, then close. Requests that were not executed are dropped."""
        self._ending = True
        self._received.clear()
        self._received_bytes = 0
        self._mind_the_budget()
        self._mind_reading()
        self._close_if_answered()

    def abort(self) -> None:
        """Close at once. Requests that were not executed are dropped."""
        self._ending = True
        self._received.clear()
        self._received_bytes = 0
        self._transport.abort()

    def _close_if_answered(self) -> None:
        """``close`` sends what the transport has buffered first."""
        waited_for = any(not self._may_be_left(reply_to) for reply_to, _, _ in self._pending)
        if not waited_for and not self._output.blocked:
            self._transport.close()

    def _may_be_left(self, reply_to: ReplyTo) -> bool:
        """What other clients have to do first may never happen, so a connection that ends does not wait for it."""
        return reply_to.api_key >= 0 and APIS[reply_to.api_key].waits is Waits.CLIENTS

    def close_if_idle(self, idle_s: float) -> None:
        """Close when nothing is under way, or when the peer does not take its answer."""
        silent_s = self._loop.time() - self.active_at
        if silent_s < idle_s or (self._pending and not self._output.blocked):
            return
        log.debug("%s closed: silent for %.0f s", self.address, silent_s)
        self._transport.abort()

    def _handshake_is_late(self) -> None:
        """After a pause of the whole process the loop runs timers before it reads, so let it read once."""
        self._handshake = self._loop.call_later(HANDSHAKE_GRACE_S, self._handshake_is_too_late)

    def _handshake_is_too_late(self) -> None:
        log.debug("%s closed: no request within %.0f s", self.address, self._listener.limits.handshake_s)
        self._transport.abort()
