"""Change capture: what is committed in a database becomes records in the log, each once, in Debezium's envelope.

Four parts, and what each of them promises:

**A source** (``source.py``; ``postgres/``, ``mariadb/``, ``sqlite/``) follows one database. It gives changes in
the order in which their transactions committed, and between them *positions*: a position says how far the database has
been followed, and a source opened there gives exactly what comes after it. Inside a transaction a change is known by
its commit position and its index, so a transaction too large for one write may be cut anywhere.

**The envelope** (``envelope.py``, ``*/values.py``) turns a change into the key and value that Debezium writes. These
are pure functions, compiled once per shape of a table: what does not change from row to row is bytes made beforehand.

**The writer** (``writer.py``, on ``headrace.client.positioned``) gathers records and commits them together with the
position after them in one transaction of the log. So the log never shows an event without its position or a position
without its events, and a kill at any instant leaves neither a gap nor a duplicate. The transactional id belongs to the
capture's name: a second process of the same name takes it over, and the first can write no more.

**Resuming** (``state.py``) reads the last committed position from the capture's own topic. The database may
forget (a slot's confirmed position) only what a committed position covers: *what was confirmed ≤ what the log has*, at
every instant. A database that has forgotten more than that was moved by somebody else, and capture says so
and stops instead of leaving a gap.

A snapshot of what was there before is taken in chunks while changes go on (``postgres/snapshot.py`` tells how it stays
consistent without locks); its progress is part of the position.

Capture writes through ``headrace.client``, so the log may be headrace or Apache Kafka.
"""

from __future__ import annotations

from headrace.capture.options import CaptureOptions
from headrace.capture.run import Capture

__all__ = ["Capture", "CaptureOptions"]
