"""What this node is called, and where clients reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.request import Peer

__all__ = ["Identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One node is the whole cluster, so its id is the leader, the coordinator and the controller everywhere."""

    node_id: int
    cluster_id: str
    addresses: Mapping[str, tuple[str, int]]
    """The advertised host and port of each listener. A listener appears here once it is open."""

    def address_for(self, peer: Peer) -> tuple[str, int]:
        """The address a client should use: the advertised one of the listener it came through."""
        return self.addresses.get(peer.listener, ("127.0.0.1", 0))
