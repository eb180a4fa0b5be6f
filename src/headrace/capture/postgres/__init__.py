"""PostgreSQL as a source of changes: by its log (``source.py``) or by triggers (``triggers.py``).

By its log: ``replication.py`` receives, ``pgoutput.py`` decodes, ``events.py`` makes events, ``snapshot.py`` reads what
was there before. ``catalogue.py`` shows the tables, ``publications.py`` publishes them, ``watch.py`` and
``identity.py`` notice when a table is no longer what its topic stands for.

Owns everything that knows PostgreSQL's catalogue, types and protocol. Never writes to the log itself: changes become
events in ``headrace.capture.envelope`` and go to the writer that the loop hands in.
"""
