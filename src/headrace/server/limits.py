"""What connections may cost, whatever they speak. A protocol's own limits stand beside its session."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import Settings

__all__ = ["ListenerLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """The bounds of one listener; times in seconds because the loop counts in them."""

    connections_max: int = 4_000
    connections_per_ip_max: int = 2**31 - 1
    handshake_s: float = 10.0
    idle_s: float = 600.0
    drain_s: float = 5.0

    @classmethod
    def of(cls, settings: Settings) -> ListenerLimits:
        return cls(
            connections_max=settings.integer("max.connections"),
            connections_per_ip_max=settings.integer("max.connections.per.ip"),
            handshake_s=settings.integer("connection.handshake.ms") / 1000,
            idle_s=settings.integer("connections.max.idle.ms") / 1000,
            drain_s=settings.integer("shutdown.drain.ms") / 1000,
        )
