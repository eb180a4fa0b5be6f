"""Sockets: the only ones on the data path. Bytes go to ``wire``, requests to a handler, answers back in order.

    limits.py    what a peer may cost, from the settings
    budget.py    request bytes held at once, all connections together
    output.py    answers on their way out, file slices read as the peer takes them
    kafka.py     one Kafka connection
    listener.py  one address: accepting, idle connections, draining

TLS belongs into ``Listener.start`` (nothing else touches the socket: answers go through the transport), authentication
into ``Session`` before a request is handed on, where ``Peer.principal`` is set.
"""

from __future__ import annotations

from headrace.server.limits import ServerLimits
from headrace.server.listener import Listener, parse_address, refuse_public

__all__ = ["Listener", "ServerLimits", "parse_address", "refuse_public"]
