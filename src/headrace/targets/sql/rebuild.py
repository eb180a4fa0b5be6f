"""A rebuilt table: its rows are filled into a table beside it, and then replace those of the table in one transaction.

The table itself stays. So do its triggers, policies, grants, keys, indexes, partitions, comments, views and captures,
whatever they are. What would have to be copied if tables were exchanged need not be known here.

    begin      refuse what cannot be rebuilt; make an empty table beside the one in use, like it
    (fill)     the pipeline writes into that
    switch     in one transaction: rows that are gone are deleted, rows that differ are updated or inserted (by key), or
               all are deleted and inserted (without a key); the fence of the filling becomes the table's
    abandon    remove the table beside

Rows that are the same are not touched: triggers and captures of the table see what really changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from headrace.errors import UsageError
from headrace.targets.sql.dialect import MARK, InsertBackoff, TableName
from headrace.targets.sql.table import SqlSession, SqlTarget
from headrace.targets.target import NO_BATCH, RowRefused, Version, refuse_other_pipelines

__all__ = ["version_of"]

NEW = "__headrace_new"
NAME_BYTES_MAX = 63
"""What every database here takes."""


def version_of(target: SqlTarget) -> Version:
    """A new version of a table, a plain one: what the table has besides its rows it keeps."""
    beside = SqlTarget(
        target.address,
        staging_name(target.name),
        target.key,
        target.version_column,
        create=True,
        widen=target.widen,
        insert_backoff=InsertBackoff(),
        stands_for=target,
    )

    def with_session(action: Callable[[SqlRebuild], None]) -> None:
        session = SqlRebuild(target, beside)
        try:
            action(session)
        finally:
            session.close()

    return Version(
        beside,
        begin=lambda pipeline: with_session(lambda session: session.begin(pipeline)),
        switch=lambda: with_session(SqlRebuild.switch),
        abandon=lambda: with_session(SqlRebuild.abandon),
    )


def staging_name(table: TableName) -> TableName:
    name = table.name + NEW
    if len(name.encode()) > NAME_BYTES_MAX:
        name = f"headrace_new_{hashlib.sha256(table.name.encode()).hexdigest()[:24]}"
    return table.beside(name)


class SqlRebuild(SqlSession):
    def __init__(self, target: SqlTarget, beside: SqlTarget) -> None:
        super().__init__(target, target.connect())
        self._beside = beside

    def begin(self, pipeline: str) -> None:
        """Everything that can be known before the first row is read."""
        dialect, table = self.dialect, self.target.name
        with self._told():
            self._make_fences()
            self._refuse_other_pipelines(pipeline)
            exists = bool(dialect.columns(table))
            if exists:
                self._refuse_what_cannot_be()
            elif not self.target.create:
                raise UsageError(f"there is no {self.target.shown}", "make it, or let the sink: create=True")
            self._remove_beside()
            if exists:
                dialect.create_like(self._beside.name, table)

    def _refuse_other_pipelines(self, pipeline: str) -> None:
        writers = self.dialect.run(
            f"SELECT pipeline FROM {self.dialect.table(self._fences)} WHERE target = {MARK} AND batch_id > {NO_BATCH}",
            (self.target.name.name,),
        )
        refuse_other_pipelines(self.target.shown, pipeline, [str(name) for (name,) in writers])

    def _refuse_what_cannot_be(self) -> None:
        reason = self.dialect.why_not_rebuilt(self._place)
        if reason:
            raise UsageError(f"{self.target.shown} cannot be rebuilt: {reason}", "nothing was read or changed")

    def _remove_beside(self) -> None:
        dialect, new = self.dialect, self._beside.name
        dialect.run(f"DROP TABLE IF EXISTS {dialect.table(new)}")
        dialect.run(f"DELETE FROM {dialect.table(self._fences)} WHERE target = {MARK}", (new.name,))

    def switch(self) -> None:
        dialect, new = self.dialect, self._beside.name
        with self._told():
            if not dialect.columns(new):
                return  # an earlier attempt got this far
            schema: pa.Schema | None = None
            for schema, key in self._beside.fitted:  # none, or the last
                self.target = replace(self.target, key=key)
                self.fit(schema)
            dialect.run(dialect.begin_statement)
            try:
                self._replace_rows(new, schema)
                self._hand_over_fence(new)
                dialect.run("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self._remove_beside()

    def _replace_rows(self, new: TableName, schema: pa.Schema | None) -> None:
        try:
            self.dialect.replace_rows(replace(self._place, key=self.target.key), new, schema)
        except Exception as error:
            if self.dialect.meaning(error) is not RowRefused:
                raise
            reason = " ".join(str(error).split())
            raise UsageError(
                f"{self.target.shown} does not take the new rows: {reason}", "nothing was changed"
            ) from error

    def abandon(self) -> None:
        with self._told():
            self._make_fences()
            self._remove_beside()
