"""What connections may cost. Every bound is a named setting; those not worth a setting stand here as constants."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.config import Settings
from headrace.wire.kafka.connection import Limits

__all__ = [
    "FAVOUR_S",
    "GATHERED_BYTES_MAX",
    "LARGE_FRAME_BYTES",
    "LINGER_S",
    "PIECE_BYTES",
    "READ_BYTES",
    "READ_BYTES_SMALL",
    "SAMPLE_BYTES",
    "TURN_BYTES",
    "ServerLimits",
]

READ_BYTES = 256 << 10
"""One read from a socket while a large frame arrives."""

READ_BYTES_SMALL = 64 << 10
"""One read otherwise: what many small requests in one read can cost as decoded objects."""

PIECE_BYTES = 128 << 10
"""One read from a file on its way through a transport. Measured with uvloop on loopback, CPU seconds per GB: 64 KiB
pieces 0.62, 128 KiB 0.48, 256 KiB 0.46; ``sendfile`` 0.30. A consumer that does not read costs one piece and the write
buffer."""

GATHERED_BYTES_MAX = 64 << 10
"""An answer up to this size is read into memory and sent in one call; above, ``sendfile`` is cheaper."""

TURN_BYTES = 1 << 20
"""What one connection may send around its transport before the others have their turn."""

SAMPLE_BYTES = 64 << 10
"""How far apart the page cache is asked whether it has a range."""

LARGE_FRAME_BYTES = 64 << 10
"""Frames up to this size are read even when the request budget is spent."""

FAVOUR_S = 0.5
"""When the budget is spent, one connection at a time may finish its large frame, and has so long if others wait."""

LINGER_S = 0.5
"""After a protocol error, answers to earlier requests have so long to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The bounds of one listener; times in seconds because the loop counts in them."""

    frames: Limits = field(default_factory=Limits)
    connections_max: int = 4_000
    connections_per_ip_max: int = 2**31 - 1
    requests_in_flight_max: int = 64
    request_bytes_held_max: int = 64 << 20
    write_buffer_bytes_max: int = 128 << 10
    handshake_s: float = 10.0
    idle_s: float = 600.0
    drain_s: float = 5.0

    @classmethod
    def of(cls, settings: Settings) -> ServerLimits:
        held = settings.integer("queued.max.request.bytes")
        return cls(
            frames=Limits(
                produce_bytes_max=settings.integer("socket.request.max.bytes"),
                other_bytes_max=settings.integer("request.other.bytes.max"),
                elements_max=settings.integer("request.elements.max"),
            ),
            connections_max=settings.integer("max.connections"),
            connections_per_ip_max=settings.integer("max.connections.per.ip"),
            requests_in_flight_max=settings.integer("connection.requests.max"),
            request_bytes_held_max=held if held >= 0 else 2**63 - 1,
            write_buffer_bytes_max=settings.integer("connection.write.buffer.bytes"),
            handshake_s=settings.integer("connection.handshake.ms") / 1000,
            idle_s=settings.integer("connections.max.idle.ms") / 1000,
            drain_s=settings.integer("shutdown.drain.ms") / 1000,
        )
