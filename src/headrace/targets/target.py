"""Targets: systems outside of Spark that take micro-batches of changes, each batch once in effect.

A *target* says where and how; a *session* is a connection to it. A session is given whole micro-batches, as Arrow
tables of bounded size, together with a *fence*: the pipeline, its query, the number of the batch, where the input of
the batch ended, and the run that writes it. The target keeps the fence of the last batch, in the same transaction as
the data where it has transactions. It has one fence per pipeline, which is locked while a batch is written, and
compares:

    fence in the target          batch that comes             what follows
    none                         a run's first batch          it is written
    none                         a later batch                the target was emptied meanwhile: the run stops
    another query                a run's first batch          it is refused, unless the user starts over
    another query                a later batch                another run has taken over: the run stops
    another run of this query    a run's first batch          it takes over, and goes on below
    another run of this query    a later batch                another run has taken over: the run stops
    batch n                      n + 1 or later               it is written
    batch n, the same end        n                            a replay: nothing is written
    batch n, another end         n                            the checkpoint lost its last entry, see below
    batch n                      an earlier one               the checkpoint is an older copy, see below

Spark plans a lost batch again, from where the batch before it ended. Changes by key can then be written again: each key
ends at its last change, as it would have. Rows that are added without a key would double, so that is refused. The same
holds for the query that a rebuild replaced, which runs again when the rebuild died before it had handed its checkpoint
over.

So one run of a pipeline writes at a time. The newest one wins, as with Kafka's transactional producers: a driver that
was killed never blocks the next one, and a driver that was only slow finds the name of its successor and stops.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, Refused, UsageError
from headrace.targets.changes import Changes
from headrace.targets.documents import dumps, objects

__all__ = [
    "NO_BATCH",
    "Delivery",
    "Fence",
    "Outcome",
    "RefusedRows",
    "RowRefused",
    "Session",
    "Target",
    "Unavailable",
    "Version",
    "complete",
    "login_refused",
    "must_write",
    "now_text",
    "refuse_other_pipelines",
    "split_refused",
    "superseded",
    "usable",
    "utc",
]

NO_BATCH = -1
"""In a fence that a run has claimed, before its first batch is there."""


class Unavailable(HeadraceError):
    """The target cannot be reached, or lost the connection. Nothing is lost: the batch comes again."""

    retriable = True


def login_refused(shown: str, reason: str) -> UsageError:
    """A restart would come with the same name and password, and may lock the account."""
    return UsageError(f"{shown} refuses the login: {reason}", "check user, password and database, and start again")


class RowRefused(HeadraceError):
    """The target does not take some row among those it was given; which one is found by halving."""


# ---- fences --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """The name of a batch. ``owner`` is the run that writes it, in words; ``takes_over`` is set in a run's first batch.

    ``replaced`` is the query whose batches a rebuild has replaced; ``starts_over`` says that the user wants the rows of
    another checkpoint written over.
    """

    query: str
    batch_id: int
    ends: str | None = None
    owner: str = ""
    takes_over: bool = True
    pipeline: str = ""
    starts_over: bool = False
    replaced: str = ""
    written_at: str = ""

    @property
    def name(self) -> str:
        """What the target keeps it under. A query that is no pipeline stands for itself."""
        return self.pipeline or self.query

    @property
    def has_batch(self) -> bool:
        return self.batch_id > NO_BATCH


def must_write(fence: Fence, last: Fence | None, *, keyed: bool, where: str) -> bool:
    """Whether the batch is written: the table above. The fence has the new owner's name in either case."""
    if last is None or not last.has_batch:
        if not fence.takes_over:
            raise Refused(
                f"{where}: the fence that this run of pipeline {fence.name} wrote with its last batch is gone, so the "
                "target was emptied or rebuilt meanwhile. Start the pipeline again"
            )
        return True
    if last.query != fence.query:
        return _follows_another_query(fence, last, keyed=keyed, where=where)
    if not fence.takes_over and last.owner != fence.owner:
        raise superseded(fence, last.owner, where)
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


def _follows_another_query(fence: Fence, last: Fence, *, keyed: bool, where: str) -> bool:
    was_rebuilt = fence.query == last.replaced
    if not fence.takes_over and was_rebuilt:
        raise Refused(f"{where} was rebuilt while this run of pipeline {fence.name} went on. Start the pipeline again")
    if not fence.takes_over:
        raise superseded(fence, last.owner, where)
    if fence.starts_over or (was_rebuilt and keyed):
        return True
    if was_rebuilt:
        raise Refused(
            f"{where} was rebuilt, and has the rows that this older checkpoint of pipeline {fence.name} would add "
            "again: the rebuild ended before its own checkpoint had taken the place of this one. Give headrace rebuild "
            "again"
        )
    raise Refused(
        f"{where} has rows of pipeline {fence.name} from another checkpoint (query {last.query}, batch {last.batch_id}"
        f"{_at(last)}, by {last.owner or 'an unknown run'}), and this checkpoint would write them all again. Run the "
        "pipeline with that checkpoint; or headrace rebuild replaces the rows, and headrace run --start-over writes "
        f"{'over them' if keyed else 'all rows a second time'}"
    )


def now_text() -> str:
    """When a fence is written."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _at(fence: Fence) -> str:
    return f" at {fence.written_at}" if fence.written_at else ""


def superseded(fence: Fence, owner: str, where: str) -> Refused:
    """A run stops for good when another one writes, so that old rows do not replace new ones."""
    return Refused(
        f"{where}: another run of pipeline {fence.name} has taken over: {owner or 'unknown'}. This one stops "
        f"({fence.owner}). Run a pipeline in one place"
    )


# ---- changes -------------------------------------------------------------------------------------------------------


INCOMPLETE = (
    "the database did not send a large value that had not changed, and this target cannot keep the one it has. "
    "hr.view(hr.changes(rows, key=…)) before the sink fills it in"
)


def complete(changes: Changes, letters: RefusedRows) -> Changes:
    """The changes that lack no value; the others are refused."""
    whole, partial = changes.whole_and_partial()
    for rows in partial:
        letters.refuse(Changes(rows), INCOMPLETE)
    return whole


def usable(
    changes: Changes, key: Sequence[str], letters: RefusedRows, version: str | None = None, *, partial: bool = False
) -> Changes:
    """The changes that a keyed target can take: one per key, and none without its whole key.

    ``partial``: the target takes rows that lack values.
    """
    missing = pc.is_null(changes.rows.column(key[0]))
    for name in key[1:]:
        missing = pc.or_(missing, pc.is_null(changes.rows.column(name)))
    if pc.any(missing).as_py():
        letters.refuse(changes.where(missing), f"its key ({', '.join(key)}) is null")
        changes = changes.where(pc.invert(missing))
    kept = changes.last_per_key(key, version, partial=partial)
    kept = kept if partial else complete(kept, letters)
    return kept if kept.deleted is not None and pc.any(kept.deleted).as_py() else Changes(kept.rows)


def utc(table: pa.Table) -> pa.Table:
    """With all moments in UTC: Spark gives them in the time zone of its session."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz not in (None, "UTC"):
            wanted = pa.field(column.name, pa.timestamp("us", tz="UTC"), metadata=column.metadata)
            table = table.set_column(index, wanted, table.column(index).cast(wanted.type))
    return table


# ---- rows that are refused ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RefusedRows:
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
            shown = dumps(objects(changes.rows.slice(0, 1))[0])
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


def split_refused(changes: Changes, attempt: Callable[[Changes], None], letters: RefusedRows) -> None:
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
    letters: RefusedRows
    fence: Fence | None = None
    done: Outcome = field(default_factory=Outcome)

    def counted(self, empty: Callable[[], None] | None = None) -> Iterator[Changes]:
        """The chunks, counted as they go by. ``empty`` removes all rows, for targets that can follow a truncation."""
        for chunk in self.chunks:
            if chunk.truncates:
                if empty is None:
                    raise Refused(
                        f"the source of {self.letters.where} was emptied (TRUNCATE, or a new snapshot), and which rows "
                        "of the target that concerns is not known here. hr.view(hr.changes(rows, key=…)) before the "
                        "sink deletes them one by one"
                    )
                empty()
            self.done.rows += len(chunk)
            yield chunk


class Session(ABC):
    """A connection to a target; used by one thread. After an error it is closed and another one opened."""

    @abstractmethod
    def write(self, delivery: Delivery) -> Outcome:
        """Write a batch, once in effect. Raises ``Unavailable``, ``Refused`` or ``UsageError``."""

    def purge(self) -> None:
        """Remove from the files what was deleted from the rows."""
        raise UsageError(
            "deleted rows leave the files of this target by a command of its system",
            'docs/sourcing.md, "Purging", names it',
        )

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

    def check(self) -> None:  # noqa: B027 a path needs nothing
        """Refuse an address that cannot be used on this machine; nobody is asked."""

    def version(self) -> Version | None:
        """A place beside this one that can be filled and then put in its place; None where there cannot be one."""
        return None


@dataclass(frozen=True, slots=True)
class Version:
    """A place to fill, whose rows then replace those of a target.

    ``begin`` takes the pipeline's name, refuses what cannot be rebuilt, and removes what an earlier attempt left.
    ``switch`` puts the rows in place at one moment. ``abandon`` removes what was filled.
    """

    target: Target
    begin: Callable[[str], None]
    switch: Callable[[], None]
    abandon: Callable[[], None]


def refuse_other_pipelines(shown: str, pipeline: str, writers: Iterable[str]) -> None:
    """A rebuild replaces all rows, also those of others; which are whose is not known."""
    others = sorted({each for each in writers if each != pipeline})
    if others:
        raise UsageError(
            f"{shown} has rows of other pipelines too ({', '.join(others)}), which a rebuild would delete",
            "give each pipeline its target; the fence of a pipeline that is no more can be deleted",
        )
