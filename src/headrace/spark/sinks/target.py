"""Derived systems: what follows the log takes changes in batches, each batch once in effect.

A *target* says where and how; a *session* is a connection to it. A session is given whole micro-batches, as Arrow
tables of bounded size, together with a *fence*: the query, the number of the batch, and where its input ended. It keeps
the fence in the target, in the same transaction as the data where the target has transactions, and compares:

    what the target has          what comes                   what follows
    nothing of this query        a run's first batch          it is written
    nothing of this query        another batch                it was rebuilt meanwhile: the run stops
    that it was rebuilt          a run's first batch          its rows are there already, see below
    batch n                      n + 1 or later               it is written
    batch n, the same end        n                            a replay: nothing is written
    batch n, another end         n                            the checkpoint lost its last entry, see below
    batch n                      an earlier one               the checkpoint is an older copy, see below

Spark plans a lost batch anew, from where the batch before it ended. Changes by key can then simply be written again:
each key ends at its last change, as it would have. Rows that are added without a key would double, so that is refused.
The same holds for a query that a rebuild was to replace, and that runs again because the rebuild died before its own
checkpoint had taken the place of the old one.

Two drivers must not write in turn, or the slower one would put old rows over new ones. So the first batch of a run
takes the fence over, and a driver that finds somebody else's name in it stops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.decisions import Refused

__all__ = [
    "JSON_FIELD",
    "REBUILT",
    "Changes",
    "Delivery",
    "Fence",
    "Letters",
    "Outcome",
    "RowRefused",
    "Session",
    "Target",
    "Unavailable",
    "Version",
    "is_json",
    "must_write",
    "split_refused",
    "usable",
    "utc",
]

JSON_FIELD = {b"headrace": b"json"}
"""The metadata of a column whose text is JSON."""
POSITION = "__headrace_position"
REBUILT = "rebuilt"
"""In place of an owner: the batches of this query are in a version of the target that another one replaced."""


class Unavailable(HeadraceError):
    """The target cannot be reached, or lost the connection. Nothing is lost: the batch comes again."""


class RowRefused(HeadraceError):
    """The target does not take some row among those it was given; which one is found by halving."""


# ---- fences --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """The name of a batch. ``owner`` is the run that writes it; ``takes_over`` is set in a run's first batch."""

    query: str
    batch_id: int
    ends: str | None = None
    owner: str = ""
    takes_over: bool = True


def must_write(fence: Fence, last: Fence | None, *, keyed: bool, where: str) -> bool:
    """Whether the batch is to be written: the table above. The fence bears the new owner's name in either case."""
    is_replaced = last is None or last.owner == REBUILT
    if is_replaced and not fence.takes_over:
        raise Refused(
            f"{where}: what this run of query {fence.query} wrote down about its last batch is gone, so the target was "
            "rebuilt or emptied meanwhile. Start the pipeline again"
        )
    if last is None or (is_replaced and keyed):
        return True
    if is_replaced:
        raise Refused(
            f"{where} was rebuilt, and has the rows that this older checkpoint of query {fence.query} would add again: "
            "the rebuild ended before its own checkpoint had taken the place of this one. Give headrace rebuild again"
        )
    if not fence.takes_over and last.owner != fence.owner:
        raise Refused(
            f"{where}: another run of query {fence.query} has taken over since this one wrote its last batch; this one "
            "stops, so that old rows do not replace new ones. Run the pipeline in one place"
        )
    if fence.batch_id > last.batch_id:
        return True
    same_end = last.ends == fence.ends or None in (last.ends, fence.ends)
    if fence.batch_id == last.batch_id and same_end:
        return False
    if keyed:
        return True
    raise Refused(
        f"{where} has batch {last.batch_id} of query {fence.query} up to {last.ends or 'unknown offsets'}, and Spark "
        f"comes with batch {fence.batch_id} up to {fence.ends or 'unknown offsets'}: the checkpoint has lost its last "
        "entries, or is an older copy. Adding its rows would double some. Start a new checkpoint at the offsets that "
        "were written (startingOffsets), or give the sink a key"
    )


# ---- changes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows as they are after a change. Of one that is gone (``deleted``) only the key counts."""

    rows: pa.Table
    deleted: pa.ChunkedArray | None = None  # booleans; None: nothing is gone

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def slice(self, start: int, length: int) -> Changes:
        return Changes(
            self.rows.slice(start, length), None if self.deleted is None else self.deleted.slice(start, length)
        )

    def where(self, wanted: pa.ChunkedArray | pa.Array) -> Changes:
        return Changes(self.rows.filter(wanted), None if self.deleted is None else self.deleted.filter(wanted))

    def upserts(self) -> pa.Table:
        return self.rows if self.deleted is None else self.rows.filter(pc.invert(self.deleted))

    def deletes(self) -> pa.Table:
        return self.rows.slice(0, 0) if self.deleted is None else self.rows.filter(self.deleted)

    def last_per_key(self, key: Sequence[str], version: str | None = None) -> Changes:
        """Of several changes to one key the last, or the one with the highest version; it replaces the others."""
        marked = self.rows.select([*key, version] if version else list(key))
        if version:
            order = pc.sort_indices(marked, [(version, "ascending", "at_start")])
        else:
            order = pa.array(np.arange(len(self)))
        ranked = marked.select(list(key)).take(order).append_column(POSITION, pa.array(np.arange(len(self))))
        last = ranked.group_by(list(key)).aggregate([(POSITION, "max")]).column(f"{POSITION}_max")
        if len(last) == len(self):
            return self
        kept = pc.take(order, last.take(pc.sort_indices(last)))
        return Changes(self.rows.take(kept), None if self.deleted is None else self.deleted.take(kept))


def usable(changes: Changes, key: Sequence[str], letters: Letters, version: str | None = None) -> Changes:
    """The changes that a keyed target can take: one per key, and none without its whole key."""
    missing = pc.is_null(changes.rows.column(key[0]))
    for name in key[1:]:
        missing = pc.or_(missing, pc.is_null(changes.rows.column(name)))
    if pc.any(missing).as_py():
        letters.refuse(changes.where(missing), f"its key ({', '.join(key)}) is null")
        changes = changes.where(pc.invert(missing))
    kept = changes.last_per_key(key, version)
    return kept if kept.deleted is not None and pc.any(kept.deleted).as_py() else Changes(kept.rows)


def is_json(column: pa.Field) -> bool:
    return bool(column.metadata) and column.metadata.get(b"headrace") == b"json"


def utc(table: pa.Table) -> pa.Table:
    """With all moments in UTC: Spark gives them in the time zone of its session."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz not in (None, "UTC"):
            wanted = pa.field(column.name, pa.timestamp("us", tz="UTC"), metadata=column.metadata)
            table = table.set_column(index, wanted, table.column(index).cast(wanted.type))
    return table


# ---- rows that are refused ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Letters:
    """Holds the rows that a target refuses until just before the batch is committed, and sends them then.

    So a batch that fails and comes again sends none twice; only a death between the two does. ``send`` is None where
    the user named no place for them.
    """

    where: str
    send: Callable[[Sequence[tuple[pa.Table, str]]], None] | None = None
    rows_max: int = 1000
    count: int = 0
    held: list[tuple[pa.Table, str]] = field(default_factory=list)

    def refuse(self, changes: Changes, reason: str) -> None:
        if self.send is None:
            shown = str(changes.rows.slice(0, 1).to_pylist()[0])
            raise Refused(
                f"{self.where} does not take a row: {reason}. The row: {shown[:200]}. dead_letters='TOPIC' sends such "
                "rows to a topic and goes on"
            )
        self.count += len(changes)
        if self.count > self.rows_max:
            raise Refused(
                f"{self.where} refused {self.count:,} rows of one batch, the last because: {reason}. That is no bad "
                "row but a target that does not fit; refused_max=N allows more"
            )
        self.held.append((changes.rows, reason))

    def deliver(self) -> int:
        """Send what is held; gives the number of rows."""
        if self.held and self.send is not None:
            self.send(self.held)
        self.held = []
        return self.count


def split_refused(changes: Changes, attempt: Callable[[Changes], None], letters: Letters) -> None:
    """Write all at once; when the target refuses, each half, until the rows that it refuses stand alone."""
    waiting = [changes]
    while waiting:
        part = waiting.pop()
        if not len(part):
            continue
        try:
            attempt(part)
        except RowRefused as error:
            if len(part) == 1:
                letters.refuse(part, str(error))
                continue
            half = len(part) // 2
            waiting += [part.slice(half, len(part) - half), part.slice(0, half)]


# ---- targets -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """What became of a batch."""

    rows: int = 0
    refused: int = 0
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A micro-batch on its way: its columns are known before its rows come. Without a fence it is a bounded write."""

    schema: pa.Schema
    chunks: Iterable[Changes]
    letters: Letters
    fence: Fence | None = None
    done: Outcome = field(default_factory=Outcome)

    def counted(self) -> Iterator[Changes]:
        """The chunks, counted as they go by."""
        for chunk in self.chunks:
            self.done.rows += len(chunk)
            yield chunk


class Session(ABC):
    """A connection to a target; used by one thread. After an error it is closed and another one opened."""

    @abstractmethod
    def write(self, delivery: Delivery) -> Outcome:
        """Write a batch, once in effect. Raises ``Unavailable``, ``Refused`` or ``UsageError``."""

    @abstractmethod
    def close(self) -> None: ...


class Target(ABC):
    """A derived system, or a part of one: a table, an index, a key space."""

    @property
    @abstractmethod
    def shown(self) -> str:
        """Its name for people, without secrets."""

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns that a row is known by; empty where rows are only added."""

    @abstractmethod
    def open(self) -> Session: ...

    def version(self) -> Version | None:
        """A place beside this one that can be filled and then put in its place; None where there cannot be one."""
        return None


@dataclass(frozen=True, slots=True)
class Version:
    """A target to fill anew: ``begin`` removes what an earlier attempt left, ``switch`` puts it in place at once."""

    target: Target
    begin: Callable[[], None]
    switch: Callable[[], None]
