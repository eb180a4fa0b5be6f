"""A Delta table, through ``deltalake``: no JVM and no jar. A batch is one commit of the table.

The fence is Delta's own: each commit carries the pipeline as its application id and the batch as its version, which
readers and other writers understand; the query, its owner and where the input ended are in the commit's metadata. Two
drivers that commit at once conflict, since they have the same application id, and one of them fails. With a key a
batch is a merge, for which it is held in memory; without, rows are appended as they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from headrace.errors import UsageError
from headrace.targets.changes import Changes
from headrace.targets.target import (
    Delivery,
    Fence,
    Outcome,
    Session,
    Target,
    Unavailable,
    complete,
    must_write,
    now_text,
    usable,
    utc,
)

__all__ = ["DeltaTarget"]

DELETED = "__headrace_deleted"
COMMITS_LOOKED_AT = 200
STORE = re.compile(r"object ?store|generic (?!deltatable)[\w ]+ error", re.IGNORECASE)
"""In the general errors of the library, what is about the store of the files and not about the table."""


@dataclass(frozen=True, slots=True)
class DeltaTarget(Target):
    path: str
    key: tuple[str, ...] = ()
    widen: bool = False
    partition_by: tuple[str, ...] = ()
    storage_options: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> str:
        return f"Delta table {self.path}"

    def open(self) -> DeltaSession:
        return DeltaSession(self)


class DeltaSession(Session):
    def __init__(self, target: DeltaTarget) -> None:
        self._target = target
        self._storage = dict(target.storage_options)

    def close(self) -> None:
        """Nothing stays open between commits."""

    def write(self, delivery: Delivery) -> Outcome:
        fence, target = delivery.fence, self._target
        try:
            table = self._table(delivery.schema)
            self._check_columns(table, delivery.schema)
            if fence is not None:
                last = _last(table, fence)
                if not must_write(fence, last, keyed=bool(target.key), where=target.shown):
                    delivery.done.replayed = True
                    if last is not None and last.owner != fence.owner:
                        self._take_over(table, replace(last, owner=fence.owner))
                    return delivery.done
            if target.key:
                self._merge(table, delivery)
            else:
                self._append(table, delivery)
        except CommitFailedError as error:
            raise Unavailable(f"{target.shown} was changed by somebody else meanwhile: {error}") from error
        except DeltaError as error:
            wrong = Unavailable if STORE.search(str(error)) else UsageError
            raise wrong(f"{target.shown}: {error}") from error
        except OSError as error:
            raise Unavailable(f"{target.shown} cannot be reached: {error}") from error
        return delivery.done

    def _table(self, schema: pa.Schema) -> DeltaTable:
        try:
            return DeltaTable(self._target.path, storage_options=self._storage)
        except TableNotFoundError:
            plain = pa.schema([each.remove_metadata() for each in schema])
            return DeltaTable.create(
                self._target.path,
                schema=plain,
                partition_by=list(self._target.partition_by),
                storage_options=self._storage,
            )

    def _check_columns(self, table: DeltaTable, schema: pa.Schema) -> None:
        """A merge would leave out what the table has no column for."""
        known = {each.name for each in table.schema().fields}
        new = [name for name in schema.names if name not in known]
        if new and not self._target.widen:
            raise UsageError(f"{self._target.shown} has no column {new[0]!r}", "add it, or let the sink: widen=True")

    def _append(self, table: DeltaTable, delivery: Delivery) -> None:
        """Refused rows are sent before the commit: a batch that is there already sends nothing when it comes again."""
        schema = pa.schema([each.remove_metadata() for each in delivery.schema])
        failed: list[Exception] = []

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for chunk in delivery.counted():
                    yield from utc(complete(chunk, delivery.letters).rows).cast(schema).to_batches()
                delivery.done.refused = delivery.letters.deliver()
            except Exception as error:  # the library would raise its own error, which does not say whether to retry
                failed.append(error)
                raise

        try:
            write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(schema, batches()),
                mode="append",
                schema_mode="merge" if self._target.widen else None,
                commit_properties=_properties(delivery.fence),
            )
        except DeltaError:
            if failed:
                raise failed[0] from None
            raise

    def _take_over(self, table: DeltaTable, fence: Fence) -> None:
        """A commit without rows that has our name: the run before us stops at it."""
        nothing = table.schema().to_arrow().empty_table()
        write_deltalake(table, nothing, mode="append", commit_properties=_properties(fence))

    def _merge(self, table: DeltaTable, delivery: Delivery) -> None:
        chunks = list(delivery.counted())
        whole = _joined(chunks, delivery.schema)
        latest = usable(whole, self._target.key, delivery.letters)
        delivery.done.refused = delivery.letters.deliver()
        deleted = (
            latest.deleted if latest.deleted is not None else pa.chunked_array([[False] * len(latest)], pa.bool_())
        )
        source = utc(latest.rows).replace_schema_metadata(None).append_column(DELETED, deleted)
        names = {_quoted(name): f"s.{_quoted(name)}" for name in latest.rows.column_names}
        same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in self._target.key)
        merger = table.merge(
            source=source,
            predicate=same,
            source_alias="s",
            target_alias="t",
            merge_schema=self._target.widen,
            commit_properties=_properties(delivery.fence),
        )
        gone = f"s.{DELETED}"
        merger.when_matched_delete(predicate=gone).when_matched_update(updates=names).when_not_matched_insert(
            updates=names, predicate=f"NOT {gone}"
        ).execute()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _joined(chunks: list[Changes], schema: pa.Schema) -> Changes:
    if not chunks:
        return Changes(schema.empty_table())
    rows = pa.concat_tables([each.rows for each in chunks])
    if all(each.deleted is None for each in chunks):
        return Changes(rows)
    marks = [
        each.deleted.combine_chunks() if each.deleted is not None else pa.array([False] * len(each), pa.bool_())
        for each in chunks
    ]
    return Changes(rows, pa.chunked_array([pa.concat_arrays([_plain(each) for each in marks])]))


def _plain(array: Any) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _properties(fence: Fence | None) -> CommitProperties | None:
    if fence is None:
        return None
    about = {"headrace.query": fence.query, "headrace.batch": str(fence.batch_id), "headrace.ends": fence.ends or ""}
    about |= {"headrace.owner": fence.owner, "headrace.pipeline": fence.name, "headrace.written_at": now_text()}
    return CommitProperties(custom_metadata=about, app_transactions=[Transaction(fence.name, fence.batch_id)])


def _last(table: DeltaTable, fence: Fence) -> Fence | None:
    """From the table's transaction; its query, end and owner from the commit, as long as the log keeps it."""
    batch_id = table.transaction_version(fence.name)
    if batch_id is None:
        return None
    for commit in table.history(COMMITS_LOOKED_AT):
        if commit.get("headrace.pipeline") == fence.name and commit.get("headrace.batch") == str(batch_id):
            return replace(
                fence,
                query=commit["headrace.query"],
                batch_id=batch_id,
                ends=commit["headrace.ends"] or None,
                owner=commit["headrace.owner"],
                written_at=commit["headrace.written_at"],
            )
    return replace(fence, batch_id=batch_id, ends=None)
