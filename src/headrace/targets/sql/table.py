"""A table in PostgreSQL, MariaDB, MySQL or SQLite that follows: rows upserted and deleted by key, or added without one.

The order of a batch is the same in all of them::

    fit the table            made, or widened, where the user asked for it; before, since MariaDB commits by it
    BEGIN
      look at the fence      and lock it, so that two drivers take turns
      for every chunk        SAVEPOINT, load, RELEASE; a refusal goes back to the savepoint and halves the chunk
      dead letters           sent, at least once
      move the fence
    COMMIT                   an answer that is lost is no matter: the fence tells when the batch comes again

What differs between databases is a ``Dialect`` (``dialect``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from headrace.address import Address
from headrace.errors import HeadraceError, Refused, UsageError
from headrace.targets.changes import Changes
from headrace.targets.sql.dialect import MARK, Dialect, InsertBackoff, Place, TableName
from headrace.targets.target import (
    NO_BATCH,
    Delivery,
    Fence,
    Outcome,
    RefusedRows,
    RowRefused,
    Session,
    Target,
    Unavailable,
    Version,
    complete,
    login_refused,
    must_write,
    now_text,
    split_refused,
    usable,
    utc,
)

__all__ = ["FENCES", "SqlSession", "SqlTarget", "check_address", "connect"]

FENCES = "headrace_fences"
SCHEMES = ("postgresql", "postgres", "mysql", "mariadb", "sqlite")
KIND, EXAMPLES = "database that this sink knows", "postgresql://…, mysql://…, sqlite:///FILE"
FENCE_WAIT_S_MAX = 30
"""How long a run that takes over waits for the batch of the run before it."""
FENCE_COLUMNS = ("target", "pipeline", "query", "owner", "batch_id", "ends", "replaced", "written_at")


@dataclass(frozen=True, slots=True)
class SqlTarget(Target):
    address: Address
    name: TableName
    key: tuple[str, ...] = ()
    version_column: str | None = None
    create: bool = False
    widen: bool = False
    insert_backoff: InsertBackoff = field(default_factory=InsertBackoff, compare=False, repr=False)
    stands_for: SqlTarget | None = None
    """The table that this one is a new version of. It has its name in messages."""
    fitted: list[tuple[pa.Schema, tuple[str, ...]]] = field(default_factory=list, compare=False, repr=False)
    """The columns and the key that rows were written with, the last ones."""

    @property
    def shown(self) -> str:
        if self.stands_for is not None:
            return self.stands_for.shown
        return f"table {self.name} at {self.address.shown}"

    def open(self) -> SqlSession:
        return SqlSession(self, self.connect())

    def check(self) -> None:
        check_address(Address(self.address.resolved()))

    def connect(self) -> Dialect:
        return connect(self.address, self.shown)

    def version(self) -> Version:
        from headrace.targets.sql.rebuild import version_of

        return version_of(self)


def connect(address: Address, shown: str) -> Dialect:
    scheme = address.scheme
    if scheme in ("postgresql", "postgres"):
        from headrace.targets.sql.postgres import Postgres as Chosen
    elif scheme in ("mysql", "mariadb"):
        from headrace.targets.sql.mariadb import Mariadb as Chosen  # type: ignore[assignment]
    elif scheme == "sqlite":
        from headrace.targets.sql.sqlite import Sqlite as Chosen  # type: ignore[assignment]
    else:
        raise UsageError(f"{address.shown} is no {KIND}", EXAMPLES)
    try:
        return Chosen(address)
    except HeadraceError:
        raise
    except Exception as error:
        reason = address.hidden_in(_line(error))
        if Chosen.refuses_login(error):
            raise login_refused(shown, reason) from None
        raise Unavailable(f"{shown} cannot be reached: {reason}") from None


def check_address(address: Address) -> None:
    """Refuse what is no database here. An address that is all in the environment is looked at when it is used."""
    address.must_be(SCHEMES, KIND, EXAMPLES)
    if address.text.startswith("sqlite:") and "${" not in address.text:
        from headrace.targets.sql.sqlite import sqlite_file

        sqlite_file(address)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class SqlSession(Session):
    def __init__(self, target: SqlTarget, dialect: Dialect) -> None:
        self.target = target
        self.dialect = dialect
        self._fitted: pa.Schema | None = None
        self._has_fences = False
        self._place = Place(target.name, target.key, target.version_column, target.insert_backoff)

    def close(self) -> None:
        self.dialect.close()

    def write(self, delivery: Delivery) -> Outcome:
        with self._told():
            self.fit(delivery.schema)
            if delivery.fence is not None:
                self._make_fences()
                if delivery.fence.takes_over:
                    self._claim(delivery.fence)
            self.dialect.run(self.dialect.begin_statement)
            try:
                self._write(delivery)
                self.dialect.run("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        return delivery.done

    def _write(self, delivery: Delivery) -> None:
        fence, target = delivery.fence, self.target
        if fence is not None:
            last = self._last(fence)
            if not must_write(fence, last, keyed=bool(target.key), where=target.shown):
                delivery.done.replayed = True
                self._move(fence)
                return
        for chunk in delivery.counted(lambda: self._empty(fence)):
            self._apply(Changes(utc(chunk.rows), chunk.deleted), delivery.letters)
        delivery.done.refused = delivery.letters.deliver()
        if fence is not None:
            self._move(fence)

    def _apply(self, changes: Changes, letters: RefusedRows) -> None:
        self.dialect.prepare(self._place, changes.rows.column_names)
        if not self.target.key:
            split_refused(complete(changes, letters), partial(self._attempt, self.load), letters)
            return
        taken = usable(changes, self.target.key, letters, self.target.version_column, partial=True)
        whole, rest = taken.whole_and_partial()
        split_refused(whole, partial(self._attempt, self.load), letters)
        for rows in rest:
            split_refused(Changes(rows), partial(self._attempt, self._update), letters)

    def _update(self, changes: Changes) -> None:
        """Rows that lack values. One that is not there yet comes whole later, with the snapshot of its table."""
        self.dialect.update(self._place, changes.rows)

    def _empty(self, fence: Fence | None) -> None:
        """Remove all rows, unless other pipelines write into the table too: which rows are theirs is not known.

        A bounded write has no fence, so every pipeline that has one is another."""
        if fence is not None or self.dialect.columns(self._fences):
            others = self.dialect.run(
                f"SELECT pipeline FROM {self.dialect.table(self._fences)} WHERE target = {MARK} AND pipeline <> {MARK} "
                f"AND batch_id > {MARK}",
                (self.target.name.name, fence.name if fence is not None else "", NO_BATCH),
            )
            if others:
                raise Refused(
                    f"the source of {self.target.shown} was emptied (TRUNCATE, or a new snapshot), and other pipelines "
                    f"have written into the table too ({', '.join(str(each[0]) for each in others)}), so which rows "
                    "are gone is not known. hr.view(hr.changes(rows, key=…)) before the sink deletes them one by one; "
                    f"rows of {self._fences} that belong to pipelines of the past can be deleted"
                )
        self.dialect.empty(self._place)

    def _attempt(self, load: Callable[[Changes], None], changes: Changes) -> None:
        self.dialect.run(self.dialect.savepoint)
        try:
            load(changes)
        except Exception as error:
            if self.dialect.meaning(error) is not RowRefused:
                raise
            self.dialect.run(self.dialect.back_to_savepoint)
            self.dialect.run(self.dialect.release)
            raise RowRefused(_line(error)) from error
        self.dialect.run(self.dialect.release)

    def load(self, changes: Changes) -> None:
        self.dialect.load(self._place, changes)

    def purge(self) -> None:
        with self._told():
            if not self.dialect.purge(self.target.name):
                super().purge()

    def _roll_back(self) -> None:
        """Where the connection is gone, the database has done it."""
        try:
            self.dialect.run("ROLLBACK")
        except Exception as error:
            if self.dialect.meaning(error) is None:
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """The driver's errors in our words."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            meaning = self.dialect.meaning(error)
            if meaning is None:
                raise
            if meaning is Unavailable:
                raise Unavailable(f"{self.target.shown} is away: {_line(error)}") from error
            raise UsageError(f"{self.target.shown}: {_line(error)}") from error

    # ---- the table --------------------------------------------------------------------------------------------------

    def fit(self, schema: pa.Schema) -> None:
        """Make or widen the table where asked to, and say what is missing otherwise."""
        if self._fitted is not None and self._fitted.equals(schema, check_metadata=True):
            return
        target, dialect = self.target, self.dialect
        self._check_key(schema)
        found = dialect.columns(target.name)
        if not found and not target.create:
            raise UsageError(f"there is no {target.shown}", "make it, or let the sink: create=True")
        if not found or self._needs_change(schema, found):
            with dialect.changing_tables():  # and look again: another pipeline may have changed it meanwhile
                if not dialect.columns(target.name):
                    dialect.create_table(target.name, schema, target.key)
                found = dialect.columns(target.name)
                self._add_columns(schema, found)
                self._widen_columns(schema, found)
        self._fitted = schema
        target.fitted[:] = [(schema, target.key)]

    def _needs_change(self, schema: pa.Schema, found: Mapping[str, str]) -> bool:
        return any(
            each.name not in found or (self.target.widen and self.dialect.wider(found[each.name], each) is not None)
            for each in schema
        )

    def _check_key(self, schema: pa.Schema) -> None:
        version = [self.target.version_column] if self.target.version_column else []
        missing = [name for name in [*self.target.key, *version] if name not in schema.names]
        if missing:
            names = ", ".join(schema.names)
            raise UsageError(
                f"there is no column {missing[0]!r} in the rows for {self.target.shown}", f"there are: {names}"
            )

    def _add_columns(self, schema: pa.Schema, found: Mapping[str, str]) -> None:
        new = [column for column in schema if column.name not in found]
        if new and not self.target.widen:
            names = ", ".join(repr(column.name) for column in new)
            raise UsageError(f"{self.target.shown} has no column {names}", "add it, or let the sink: widen=True")
        for column in new:
            named = self.dialect.quote(self.dialect.check(column.name))
            kind = self.dialect.type_of(column, in_key=False)
            self.dialect.run(f"ALTER TABLE {self.dialect.table(self.target.name)} ADD COLUMN {named} {kind}")

    def _widen_columns(self, schema: pa.Schema, found: Mapping[str, str]) -> None:
        """Numbers only: a user who chose another type for a column knows why, and the database converts or refuses."""
        for column in schema if self.target.widen else ():
            kind = self.dialect.wider(found[column.name], column) if column.name in found else None
            if kind is not None:
                self.dialect.change_type(self.target.name, column.name, found[column.name], kind)

    # ---- the fence --------------------------------------------------------------------------------------------------

    @property
    def _fences(self) -> TableName:
        return self.target.name.beside(FENCES)

    def _make_fences(self) -> None:
        if self._has_fences:
            return
        dialect = self.dialect
        if not dialect.columns(self._fences):
            kind = dialect.text_key_type
            with dialect.changing_tables():
                dialect.run(
                    f"CREATE TABLE IF NOT EXISTS {dialect.table(self._fences)} (target {kind} NOT NULL, "
                    f"pipeline {kind} NOT NULL, query {kind} NOT NULL, owner {kind} NOT NULL, "
                    f"batch_id bigint NOT NULL, ends text, replaced {kind} NOT NULL, written_at {kind} NOT NULL, "
                    f"PRIMARY KEY (target, pipeline)){dialect.table_suffix()}"
                )
        self._has_fences = True

    def _claim(self, fence: Fence) -> None:
        """Make sure that there is a row to lock: a lock on no row would keep nobody away."""
        claim = (*self._name_of(fence), fence.query, fence.owner, NO_BATCH, None, "", "")
        with self._waiting_for_the_fence(fence):
            self.dialect.add_if_new(self._fences, FENCE_COLUMNS, claim)

    def _last(self, fence: Fence) -> Fence | None:
        """Locked until the transaction ends: another run of the pipeline waits here, and then sees our batch."""
        with self._waiting_for_the_fence(fence):
            rows = self.dialect.run(
                f"SELECT query, batch_id, ends, owner, replaced, written_at FROM {self.dialect.table(self._fences)} "
                f"WHERE target = {MARK} AND pipeline = {MARK}{self.dialect.lock_suffix}",
                self._name_of(fence),
            )
        if not rows:
            return None
        query, batch_id, ends, owner, replaced, written_at = rows[0]
        return replace(
            fence, query=query, batch_id=int(batch_id), ends=ends, owner=owner, replaced=replaced, written_at=written_at
        )

    @contextmanager
    def _waiting_for_the_fence(self, fence: Fence) -> Iterator[None]:
        """A run that takes over waits for a while only: a driver that is stopped in a batch keeps its lock."""
        if not fence.takes_over:
            yield
            return
        self.dialect.bound_lock_waits(FENCE_WAIT_S_MAX)
        try:
            yield
        except Exception as error:
            if not self.dialect.is_lock_timeout(error):
                raise
            raise self._fence_is_held(fence) from error
        self.dialect.bound_lock_waits(None)

    def _fence_is_held(self, fence: Fence) -> Unavailable:
        self._roll_back()
        select = f"SELECT owner FROM {self.dialect.table(self._fences)} WHERE target = {MARK} AND pipeline = {MARK}"
        owners = self.dialect.run(select, self._name_of(fence))
        return Unavailable(
            f"{self.target.shown}: another run of pipeline {fence.name} ({owners[0][0] if owners else 'unknown'}) has "
            f"been in the middle of a batch for more than {FENCE_WAIT_S_MAX} s. Wait for it if it works; if it is "
            "stopped or cut off, end its process, or its session in the database"
        )

    def _move(self, fence: Fence) -> None:
        """In place, so that a run that waits for the row wakes to what it says now."""
        self.dialect.run(
            f"UPDATE {self.dialect.table(self._fences)} SET query = {MARK}, owner = {MARK}, batch_id = {MARK}, "
            f"ends = {MARK}, replaced = {MARK}, written_at = {MARK} WHERE target = {MARK} AND pipeline = {MARK}",
            (fence.query, fence.owner, fence.batch_id, fence.ends, "", now_text(), *self._name_of(fence)),
        )

    def _name_of(self, fence: Fence) -> tuple[str, str]:
        return self.target.name.name, fence.name

    def _hand_over_fence(self, filled: TableName) -> None:
        """The fence of the batches that filled a new version becomes the target's, and names the query it replaces.

        In place too: a run that waits for a row that is deleted would wake to none, and take the target for new."""
        fences, here = self.dialect.table(self._fences), self.target.name.name
        one = f"WHERE target = {MARK} AND pipeline = {MARK}"
        handed = self.dialect.run(
            f"SELECT pipeline, query, owner, batch_id, ends, written_at FROM {fences} WHERE target = {MARK}",
            (filled.name,),
        )
        for pipeline, *new in handed:
            old = self.dialect.run(f"SELECT query FROM {fences} {one}{self.dialect.lock_suffix}", (here, pipeline))
            if not old:
                self.dialect.run(f"UPDATE {fences} SET target = {MARK} {one}", (here, filled.name, pipeline))
                continue
            self.dialect.run(
                f"UPDATE {fences} SET query = {MARK}, owner = {MARK}, batch_id = {MARK}, ends = {MARK}, "
                f"written_at = {MARK}, replaced = {MARK} {one}",
                (*new, old[0][0], here, pipeline),
            )
            self.dialect.run(f"DELETE FROM {fences} {one}", (filled.name, pipeline))
