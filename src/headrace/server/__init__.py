"""Sockets: the only ones on the data path. Bytes go to ``wire``, requests to a handler, answers back in order.

    listener.py       one address: accepting, limits, idle connections, draining; knows no protocol
    session.py        what a listener and a protocol know of each other
    limits.py         what a connection may cost, whatever it speaks
    port_owner.py     which process has a port that is taken
    descriptors.py    how connections and segment files share the process's descriptors
    kafka.py          one Kafka connection
    kafka_service.py  what all Kafka connections share: handler, limits, buffers, authentication
    kafka_measures.py what is counted per API
    amqp.py           one AMQP connection, and what all of them share; amqp_users.py who may open one
    http.py           a small HTTP server, for metrics and health
    heap.py           Python's cycle collector, kept from holding up the loop
    loop_watch.py     stalls of the event loop, and who caused them
    output.py         answers on their way out, file slices read as the peer takes them
    page_cache.py     what of a file can be sent without waiting for the disk
    budget.py         request bytes held at once, all connections together

TLS is an ``ssl`` context for ``Listener.start``: nothing else touches the socket, except ``output.py``, which sees that
a connection is encrypted and goes through the transport. Authentication is an ``Authentication`` for ``KafkaService``.
"""

from __future__ import annotations

from headrace.server.kafka_service import KafkaLimits, KafkaService
from headrace.server.limits import ListenerLimits
from headrace.server.listener import Listener, bind, parse_address, refuse_public

__all__ = ["KafkaLimits", "KafkaService", "Listener", "ListenerLimits", "bind", "parse_address", "refuse_public"]
