"""MariaDB as a source of changes: its binlog, with snapshots read at known places of it.

Owns everything that knows MariaDB's catalogue, types and binlog events. Never takes a lock, and never writes to the
server.
"""
