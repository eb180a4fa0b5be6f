"""Checks of transactions: whole or not at all, and exactly once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.operations import History, place_of, where


def uncommitted_reads(history: History) -> Iterator[str]:
    """A reader of committed data sees nothing of a transaction that is aborted or not yet asked to commit."""
    for read, offset, text in history.records():
        value = history.parsed(text)
        if read["isolation"] != "committed" or value is None or not value.txn:
            continue
        if history.outcome(value.txn) == "aborted":
            yield f"{where(place_of(read), offset)}: {text!r} is of an aborted transaction ({read['reader']})"
        elif read["time"] < history.ends[value.txn]["began"]:
            yield f"{where(place_of(read), offset)}: {text!r} was read before anybody asked to commit it"


def half_transactions(history: History) -> Iterator[str]:
    """What was acknowledged in a transaction is there whole or not at all."""
    written: dict[str, list[str]] = defaultdict(list)
    for value, attempt in history.attempts.items():
        if attempt.txn and attempt.type == "ok":
            written[attempt.txn].append(value)
    there: set[str] = {value for records in history.final["committed"].values() for value in records.values()}
    for txn, values in written.items():
        found = [value for value in values if value in there]
        if found and len(found) < len(values):
            missing = next(value for value in values if value not in there)
            yield f"transaction {txn}: {len(found)} of {len(values)} values are there; {missing!r} is not"
        if not found and history.outcome(txn) == "committed":
            yield f"transaction {txn} was committed and nothing of it is there"


def transformations(history: History) -> Iterator[str]:
    """Consume, transform, produce, commit the offset, in one transaction: every input has exactly one result."""
    results: dict[str, list[str]] = defaultdict(list)
    for records in history.final["committed"].values():
        for text in records.values():
            value = history.parsed(text)
            if value is not None and value.source:
                results[value.source].append(text)
    for source, found in results.items():
        if len(found) > 1:
            yield f"{source} was transformed {len(found)} times"
    inputs = {source.rsplit(":", 2)[0] for source in results}
    for (topic, partition), records in history.final["committed"].items():
        if topic in inputs:
            for offset in records:
                if f"{topic}:{partition}:{offset}" not in results:
                    yield f"{topic}-{partition} at {offset} has no result"
