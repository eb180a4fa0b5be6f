"""Tables in PostgreSQL, MariaDB, MySQL and SQLite: ``table`` is the target, ``dialect`` what differs between them.

Each server has one module, which is loaded when an address names it. Nothing outside of this folder writes SQL for a
target.
"""
