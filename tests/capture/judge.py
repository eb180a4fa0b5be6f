"""What a captured table's topic must be, judged from its events alone and without headrace's own code.

Three judgements, each of a list of events as a consumer reads them:

* ``folded`` gives the rows that the topic amounts to, and ``compare`` holds them against the table.
* ``check_counter`` looks at a table in which every change of a row adds one to a number: each number is there once, in
  order, so that a lost event is noticed even if a later one has overwritten its row.
* ``check_transactions`` looks at writers that begin and end each transaction in a ledger table: a lost transaction is a
  gap in the ledger, a lost first or last event is a transaction that does not begin or end there, and a lost event in
  the middle is a gap in ``total_order``.

``test_judge.py`` plants faults and expects each to be reported.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from headrace.vocabulary import UNAVAILABLE
from tests.capture.world import Event

__all__ = ["Fault", "Tolerance", "check_counter", "check_transactions", "compare", "folded", "rendered"]

Row = dict[str, Any]
UNSEEN, ABSENT = -1, -2


class Fault(AssertionError):
    """A topic that is not what its table is."""


# ---- The topic equals the table --------------------------------------------------------------------------------------


def folded(events: Iterable[Event]) -> list[Row]:
    """The rows that are left after all events: by key, and by their whole contents where there is no key."""
    keyed: dict[str, Row] = {}
    bag: list[Row] = []
    for each in events:
        if each.op == "t":
            keyed.clear()
            bag.clear()
        elif each.op == "tombstone":
            _tombstone(keyed, each)
        elif each.key is None:
            _change_bag(bag, each)
        else:
            _change_keyed(keyed, each)
    return [*keyed.values(), *bag]


def _tombstone(keyed: dict[str, Row], event: Event) -> None:
    if json.dumps(event.key, sort_keys=True) in keyed:
        raise Fault(f"a tombstone for {event.key} without its deletion")


def _change_keyed(keyed: dict[str, Row], event: Event) -> None:
    key = json.dumps(event.key, sort_keys=True)
    if event.op == "d":
        keyed.pop(key, None)
        return
    before = keyed.get(key, {})
    after = event.value["after"]
    keyed[key] = {name: before.get(name) if value == UNAVAILABLE else value for name, value in after.items()}


def _change_bag(bag: list[Row], event: Event) -> None:
    if event.op in ("u", "d"):
        before = event.value["before"]
        found = next((row for row in bag if row == before), None) or next(
            (row for row in bag if _alike(row, before)), None
        )
        if found is None:
            raise Fault(f"{event.op} of a row without a key that the topic does not have: {before}")
        bag.remove(found)
    if event.op in ("c", "r", "u"):
        bag.append(event.value["after"])


def _alike(one: Row, other: Row) -> bool:
    """Equal but for columns that only one of them has, since the table was altered between the two."""
    return all(one[name] == other[name] for name in one.keys() & other.keys())


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What an ALTER TABLE does to rows without an event: documented, so that it is no fault.

    ``added`` columns may be missing in rows that were not changed since, ``gone`` ones may still be there, and
    ``retyped`` ones may have the old type's form of the same value.
    """

    added: Collection[str] = ()
    gone: Collection[str] = ()
    retyped: Collection[str] = ()


NONE = Tolerance()


def compare(table: str, found: Sequence[Row], rows: Sequence[Row], tolerance: Tolerance = NONE) -> None:
    """Raise Fault with the first differences, unless the folded rows are those of the table."""
    ours = Counter(_comparable(row, tolerance) for row in found)
    theirs = Counter(_comparable(row, tolerance) for row in rows)
    if ours == theirs:
        return
    stale, missing = list((ours - theirs).elements()), list((theirs - ours).elements())
    raise Fault(
        f"{table}: the topic has {len(found)} rows and the table {len(rows)}; "
        f"only in the topic: {stale[:3]}, only in the table: {missing[:3]}"
    )


def _comparable(row: Row, tolerance: Tolerance) -> str:
    ignored = {*tolerance.added, *tolerance.gone}
    kept = {name: value for name, value in row.items() if value is not None and name not in ignored}
    return json.dumps(
        {name: str(value) if name in tolerance.retyped else value for name, value in sorted(kept.items())}
    )


def rendered(row: Mapping[str, Any]) -> Row:
    """A row as the driver gives it, in the form that docs/debezium.md promises by default."""
    return {name: _rendered(value) for name, value in row.items()}


def _rendered(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return value


# ---- Every change is there once --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Counted:
    """The number of each row, as far as it is known."""

    others: int = UNSEEN
    of: dict[str, int] = field(default_factory=dict)

    def get(self, key: str) -> int:
        return self.of.get(key, self.others)


def check_counter(events: Sequence[Event], column: str = "n", *, first: int | None = None) -> None:
    """Every change of a row adds one to ``column``; a new row begins at ``first``, or anywhere where that is None.

    A row that the snapshot has not read yet may change before it is read, so its first event may have any number. A row
    that the snapshot reads has the number of the changes before it. A change of the key is a deletion and a creation
    with the next number.
    """
    known = _Counted()
    moved: int | None = None
    for at, each in enumerate(events):
        if each.op == "t":
            known = _Counted(UNSEEN if _snapshot_follows(events, at) else ABSENT)
            continue
        if each.op == "tombstone":
            continue
        key = json.dumps(each.key, sort_keys=True)
        now = known.get(key)
        if each.op == "d":
            if now == ABSENT:
                raise Fault(f"event {at}: {key} is deleted, and is not there{_history(events, at)}")
            known.of[key] = ABSENT
            moved = now if any("newkey" in name for name in each.headers) else None
            continue
        number = each.value["after"][column]
        expected = _expected(each, now, first, moved)
        if expected is not None and number not in expected:
            wrong = f"event {at}: {each.op} of {key} has {column}={number} after {now}, expected {expected}"
            raise Fault(wrong + _history(events, at))
        known.of[key] = number


def _history(events: Sequence[Event], at: int) -> str:
    """What the topic says of the row of an event, and of the whole table, around it."""
    key = events[at].key
    told = [(number, each) for number, each in enumerate(events) if each.value and (each.key == key or each.op == "t")]
    lines = [f"{number} {each.op} {each.value.get('after')} {each.value.get('transaction')}" for number, each in told]
    return "".join(f"\n  {line[:300]}" for line in lines)


def _snapshot_follows(events: Sequence[Event], at: int) -> bool:
    """Whether a truncation begins a new snapshot: it says so, or rows are read after it."""
    if events[at].value.get("source", {}).get("snapshot", "false") != "false":
        return True
    for each in events[at + 1 :]:
        if each.op in ("t", "r"):
            return each.op == "r"
    return False


def _expected(event: Event, now: int, first: int | None, moved: int | None) -> tuple[int, ...] | None:
    """The numbers that an event may have; None: any."""
    if event.op == "r":
        return None if now == UNSEEN else () if now == ABSENT else (now,)
    if event.op == "u":
        return None if now == UNSEEN else () if now == ABSENT else (now + 1,)
    if now >= 0:
        return ()
    if any("oldkey" in name for name in event.headers):
        return None if moved is None or moved < 0 else (moved + 1,)
    return None if first is None else (first,)


def check_transactions(tables: Mapping[str, Sequence[Event]], ledger: str, column: str = "n") -> None:
    """Writers add one to their row of ``ledger`` as the first and as the last change of each transaction."""
    seen: dict[str, dict[int, tuple[str, Event]]] = {}
    for table, events in tables.items():
        last: dict[str, int] = {}
        for each in events:
            if each.value is None or each.op == "r":
                continue
            transaction = each.value["transaction"]
            of_one = seen.setdefault(transaction["id"], {})
            number = transaction["total_order"]
            if number in of_one and not _copy_of_truncation(each, of_one[number][1]):
                raise Fault(f"transaction {transaction['id']}: event {number} is there twice, again in {table}")
            if last.get(transaction["id"], 0) > number:
                raise Fault(f"transaction {transaction['id']}: event {number} comes after a later one in {table}")
            of_one[number] = (table, each)
            last[transaction["id"]] = number
    for name, of_one in seen.items():
        _check_transaction(name, of_one, ledger, column)
    check_counter(tables[ledger], column)


def _copy_of_truncation(one: Event, other: Event) -> bool:
    """A truncation is written into every partition of its topic, and says so where there are several."""
    return one.op == other.op == "t" and one.topic == other.topic and one.value.get("partitions", 1) > 1


def _check_transaction(name: str, events: Mapping[int, tuple[str, Event]], ledger: str, column: str) -> None:
    if sorted(events) != [*range(1, len(events) + 1)]:
        raise Fault(f"transaction {name} lacks events: it has {sorted(events)[:20]}")
    ends = [events[1], events[len(events)]]
    if all(table != ledger for table, _ in events.values()):
        return  # of nobody who keeps the ledger: an ALTER TABLE that commits by itself, or capture's own
    if any(table != ledger or each.op != "u" for table, each in ends):
        raise Fault(f"transaction {name} does not begin and end in {ledger}: {[table for table, _ in ends]}")
    first, last = (each.value["after"][column] for _, each in ends)
    if first % 2 != 1 or last % 2 != 0:
        raise Fault(f"transaction {name} begins with {first} and ends with {last}: something is missing at its ends")
