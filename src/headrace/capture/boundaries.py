"""Begin and end of the database's transactions, for ``<prefix>.transaction``, as Debezium writes them."""

from __future__ import annotations

from headrace.capture.envelope import EventOutput, Transaction, json_text

__all__ = ["begun", "ended"]


def begun(out: EventOutput, prefix: str, transaction: Transaction, at_ms: int) -> None:
    _boundary(out, prefix, transaction, b"BEGIN", b"null", b"null", at_ms)


def ended(out: EventOutput, prefix: str, transaction: Transaction, at_ms: int) -> None:
    """With the number of its events, in all and of each table."""
    each = b'{"data_collection":%b,"event_count":%d}'
    counts = b",".join(each % (json_text(name), count) for name, count in transaction.per_table.items())
    _boundary(out, prefix, transaction, b"END", b"%d" % transaction.index, b"[" + counts + b"]", at_ms)


def _boundary(
    out: EventOutput, prefix: str, transaction: Transaction, status: bytes, count: bytes, collections: bytes, at_ms: int
) -> None:
    name = transaction.id_json
    value = b'{"status":"%b","id":%b,"event_count":%b,"data_collections":%b,"ts_ms":%d}'
    out.add(f"{prefix}.transaction", b'{"id":%b}' % name, value % (status, name, count, collections, at_ms))
