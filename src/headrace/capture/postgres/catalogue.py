"""The tables of a PostgreSQL database as its catalogue shows them, and the key of each: one function for all.

**The key.** As in Debezium it is the primary key, without the columns that an index only includes; without one, the
first unique index by name whose columns are never null. It must also be what the server shows of a *deleted* row, or a
deletion would have no key. With ``REPLICA IDENTITY USING INDEX`` that is the index's columns and nothing else. So the
key is then the primary key where the index has all of its columns, and otherwise the index's columns.

**The identity** of a table is its OID, never its name.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors, sql

from headrace.capture.options import CaptureOptions
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.values import PgType
from headrace.errors import UsageError

__all__ = ["GONE", "Catalogue", "Connection", "TableInfo", "UniqueIndex"]

Connection = psycopg.Connection[tuple[Any, ...]]
GONE = (errors.UndefinedTable, errors.InvalidSchemaName)
"""What the server says of a table that is not there, or whose schema is not."""
COUNTED_BYTES_MAX = 64 * 1024 * 1024
COUNTED_TABLES_MAX = 50
ROW_BYTES_GUESSED = 100
STORED_ARE_PUBLISHED_FROM = 180_000
"""The server's version from which stored generated columns can be published."""

OURS = """
c.relpersistence = 'p' and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_toast%'
and n.nspname not like '\\_headrace\\_%'
"""
TABLES = f"""
select c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relreplident::text, c.reltuples::bigint,
       c.relfilenode::bigint, format('%I.%I', n.nspname, c.relname)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition and has_table_privilege(c.oid, 'select') and {OURS}
order by 2, 3
"""
INDEXES = """
select i.indrelid::bigint, i.indisprimary, i.indisreplident, i.indimmediate,
       i.indpred is null and i.indexprs is null, bool_and(a.attnotnull),
       bool_or(a.attgenerated <> ''), array_agg(a.attname::text order by k.place),
       bool_and(o.opcdefault and t.typtype <> 'd' and i.indcollation[k.place - 1] = a.attcollation and not exists (
         select from pg_opclass other where other.opcmethod = o.opcmethod and other.opcdefault
         and other.opcintype = a.atttypid and other.oid <> o.oid))
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class r on r.oid = i.indrelid
     cross join lateral unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) with ordinality k(number, place)
     join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
     join pg_type t on t.oid = a.atttypid join pg_opclass o on o.oid = i.indclass[k.place - 1]
where i.indisunique and i.indisvalid and r.relkind in ('r', 'p') and i.indrelid >= 16384
group by i.indexrelid, c.relname order by i.indrelid, not i.indisprimary, c.relname
"""
LEAVES = """
select pg_partition_root(c.oid)::oid::bigint, c.oid::bigint, c.relfilenode::bigint, c.relreplident::text,
       c.xmin::text::bigint, c.oid::regclass::text,
       case when c.relkind = 'f' then 'foreign' when c.relpersistence <> 'p' then 'unlogged' else '' end
from pg_class c where c.relispartition and c.relkind in ('r', 'f') order by 1, 2
"""
COLUMNS = """
select a.attname, a.atttypid::bigint, a.atttypmod, false
from pg_attribute a
where a.attrelid = format('%%I.%%I', %s::text, %s::text)::regclass and a.attnum > 0 and not a.attisdropped
  and (a.attgenerated = '' or a.attgenerated = %s)
order by a.attnum
"""
SHAPES = """
select a.attrelid::bigint, a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
       a.atthasmissing or a.attgenerated = 's', a.xmin::text::bigint
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relkind in ('r', 'p') and not c.relispartition and a.attrelid >= 16384 and a.attnum > 0 and not a.attisdropped
order by 1, 2
"""
LABELS = """
with recursive used(relation, type) as (
  select a.attrelid, a.atttypid from pg_attribute a join pg_class c on c.oid = a.attrelid
  where c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0 and a.atttypid >= 16384
  union
  select used.relation, part.type from used join pg_type t on t.oid = used.type cross join lateral (
    select t.typelem union all select t.typbasetype
    union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0
    union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)) as part(type)
  where part.type >= 16384
)
select used.relation::bigint, e.oid::bigint, e.enumlabel
from used join pg_enum e on e.enumtypid = used.type
union all
select used.relation::bigint, -t.oid::bigint, coalesce(string_agg(a.attnum::text, ' ' order by a.attnum), '')
from used join pg_type t on t.oid = used.type and t.typtype = 'c'
     left join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
group by 1, 2 order by 1, 2
"""
TYPES = """
select t.oid::bigint, t.typname, t.typtype::text, t.typcategory::text, t.typbasetype::bigint, t.typelem::bigint,
       t.typtypmod, t.typnamespace = 'pg_catalog'::regnamespace or d.deptype is not null, t.typdelim::text
from pg_type t left join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid and d.deptype = 'e'
"""
FINGERPRINT = """
select string_agg(format('%s %s', n, total), ' ') from (
  select count(*) n, sum(xmin::text::bigint) total from pg_class
  union all select count(*), sum(xmin::text::bigint) from pg_attribute where attrelid >= 16384
  union all select count(*), sum(xmin::text::bigint) from pg_index
  union all select count(*), sum(xmin::text::bigint) from pg_inherits
  union all select count(*), sum(xmin::text::bigint) from pg_enum
  union all select count(*), sum(xmin::text::bigint) from pg_publication
  union all select count(*), sum(xmin::text::bigint) from pg_publication_rel) as catalogues
"""
ATTACHED = """
select leaf::regclass::text, bool_or(i.xmin <> t.xmin), max(i.xmin::text)
from (select %s::oid as leaf) as given cross join lateral pg_partition_ancestors(leaf) a(relid)
     join pg_inherits i on i.inhrelid = a.relid join pg_type t on t.typrelid = a.relid
group by leaf
"""
WRITERS = """
select virtualtransaction from pg_locks
where locktype = 'relation' and granted and relation = any(%s::oid[])
  and database = (select oid from pg_database where datname = current_database())
  and mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index of a table; ``columns`` without those that it only includes."""

    is_primary: bool
    is_identity: bool
    is_immediate: bool
    is_plain: bool
    is_never_null: bool
    has_generated: bool
    columns: list[str]
    has_usual_order: bool = True
    """Whether it surely distinguishes the same values as its columns do; see ``key_order``."""


@dataclass(slots=True)
class Leaf:
    """A partition that holds rows."""

    oid: int
    file: int
    identity: str
    changed_by: int
    """The transaction that changed it in the catalogue last, in 32 bits."""
    name: str
    elsewhere: str
    """Why the server's log does not have its changes: it is foreign, or unlogged. Mostly empty."""
    indexes: list[UniqueIndex] = field(default_factory=list)


@dataclass(slots=True)
class TableInfo:
    """A table as the catalogue shows it. ``identity`` is its setting REPLICA IDENTITY: d, i, f or n."""

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    rows_estimated: int
    file: int
    quoted: str
    """Its full name as the server itself writes it."""
    indexes: list[UniqueIndex] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    shape: list[list[Any]] = field(default_factory=list)
    """Number, name, type, modifier, whether rows from before have a value, and the transaction that changed it in the
    catalogue last, of each column."""
    labels: dict[int, str] = field(default_factory=dict)
    """The values of the enums that its columns have, also inside other types, which ALTER TYPE may rename; and by their
    negative numbers, which columns composite types have."""
    stored_are_published: bool = False
    key: list[str] = field(default_factory=list)
    changes_identifiable: bool = False
    """Whether updates and deletions identify their row. Published without that, the server would refuse them."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def rows_of(self) -> sql.Composable:
        """What to read its rows from: tables that inherit from it have their own topics."""
        return self.identifier if self.kind == "p" else sql.SQL("ONLY {}").format(self.identifier)

    @property
    def key_has_usual_order(self) -> bool:
        """Whether no two rows have keys that are equal in the order of their columns."""
        found = [each.has_usual_order for each in self.indexes if each.columns == self.key]
        return any(found) or not found

    def find_key(self) -> None:
        """Decide key and identifiability; see the module."""
        shown = self._shown_of_deleted()
        usable = [each for each in self.indexes if self.stored_are_published or not each.has_generated]
        candidates = [each.columns for each in usable if each.is_primary]
        candidates += [each.columns for each in usable if each.is_identity]
        candidates += [each.columns for each in usable if each.is_plain and each.is_immediate and each.is_never_null]
        self.changes_identifiable = True
        for columns in candidates:
            if shown is None or shown.issuperset(columns):
                self.key = columns
                return
        # No key that deletions show: rows have their first key, and only insertions are captured.
        self.key = candidates[0] if candidates else []
        self.changes_identifiable = shown is None

    def shows(self, columns: Iterable[str]) -> bool:
        """Whether these are known of a deleted row; of a table without updates and deletions they need not be."""
        shown = self._shown_of_deleted()
        return shown is None or not self.changes_identifiable or shown.issuperset(columns)

    def _shown_of_deleted(self) -> set[str] | None:
        """The columns that the server's log shows of a deleted row; None: all of them.

        Of a partitioned table that is a matter of its partitions, each of which has its own setting.
        """
        parts: Iterable[tuple[str, list[UniqueIndex]]]
        parts = [(each.identity, each.indexes) for each in self.leaves] or [(self.identity, self.indexes)]
        shown = [each for each in (self._shown(*part) for part in parts) if each is not None]
        return set.intersection(*shown) if shown else None

    def _shown(self, identity: str, indexes: list[UniqueIndex]) -> set[str] | None:
        if identity == "f":
            return None
        for index in indexes:
            # A primary key that is DEFERRABLE identifies nothing for the server.
            if (index.is_identity if identity == "i" else index.is_primary and index.is_immediate) and identity != "n":
                return set(index.columns) if self.stored_are_published or not index.has_generated else set()
        return set()

    def was_emptied_by(self, xid: int | None, leaves: Container[int]) -> bool:
        """Whether a transaction that truncated the whole table is the last that did anything to these partitions."""
        return xid is not None and all(each.changed_by == xid for each in self.leaves if each.oid in leaves)

    @property
    def oids(self) -> list[int]:
        return [self.oid, *(each.oid for each in self.leaves)]


class Catalogue:
    """Asks one server through one ordinary connection."""

    def __init__(self, connection: Connection, options: CaptureOptions) -> None:
        self.connection = connection
        self._options = options
        self.by_log = False
        """Whether the tables are followed by the server's log, and not by triggers, which see whole rows."""

    def one(self, query: str, *arguments: object) -> Any:
        row = self.connection.execute(query, arguments or None).fetchone()
        return None if row is None else row[0]

    def row(self, query: str, *arguments: object) -> Any:
        """The one row that a query gives."""
        return self.connection.execute(query, arguments or None).fetchone()

    @property
    def with_stored(self) -> bool:
        """Whether stored generated columns are captured: the server's log can have them."""
        return self.by_log and self.connection.info.server_version >= STORED_ARE_PUBLISHED_FROM

    def fingerprint(self) -> str:
        """Another text after every change of tables, indexes, partitions or publications.

        What is added has a newer transaction than everything that was removed, so number and sum cannot both stay.
        """
        return str(self.one(FINGERPRINT))

    def all_tables(self) -> dict[str, TableInfo]:
        """Every table that the user may read, by full name."""
        try:
            return self._all_tables()
        except errors.CharacterNotInRepertoire as error:
            raise UsageError(
                f"a table or column of this {self.connection.info.parameter_status('server_encoding')} database has a "
                f"name that is not UTF-8: {error.diag.message_primary}",
                "rename it with ALTER TABLE … RENAME; values may have any bytes, names may not",
            ) from error

    def _all_tables(self) -> dict[str, TableInfo]:
        tables = {row[0]: TableInfo(*row) for row in self.connection.execute(TABLES).fetchall()}
        leaves: dict[int, Leaf] = {}
        for root, *leaf in self.connection.execute(LEAVES).fetchall():
            if root in tables:
                oid = leaf[0]
                leaves[oid] = Leaf(*leaf)
                tables[root].leaves.append(leaves[oid])
        holders: Mapping[int, TableInfo | Leaf] = {**tables, **leaves}
        for oid, *values in self.connection.execute(INDEXES).fetchall():
            if oid in holders:
                holders[oid].indexes.append(UniqueIndex(*values))
        for oid, *column in self.connection.execute(SHAPES).fetchall():
            if oid in tables:
                tables[oid].shape.append(column)
        for oid, number, label in self.connection.execute(LABELS).fetchall():
            if oid in tables:
                tables[oid].labels[number] = label
        for table in tables.values():
            table.stored_are_published = self.with_stored
            table.find_key()
        return {each.full_name: each for each in tables.values()}

    def tables(self) -> dict[str, TableInfo]:
        """The tables to capture; those that were asked for and are not there are an error."""
        found = self.all_tables()
        self.check_tables(found)
        return self.selected(found)

    def check_tables(self, found: Mapping[str, TableInfo]) -> list[str]:
        """Tables that were asked for must be there; notes for the user come back."""
        user = self.one("select quote_ident(current_user)")
        return self._options.check_tables(found, f"GRANT SELECT ON {{table}} TO {user}; or choose others with --tables")

    def selected(self, found: Mapping[str, TableInfo]) -> dict[str, TableInfo]:
        """Those to capture; a key that was chosen for one of them must be known of its deleted rows."""
        tables = {name: table for name, table in found.items() if self._options.selects(name)}
        self._check_partitions(tables)
        for name, columns in self._options.key_columns.items():
            if self.by_log and name in tables and not tables[name].shows(columns):
                raise UsageError(
                    f"{', '.join(columns)} cannot be the key of {name}: the server does not show them of deleted rows",
                    f"ALTER TABLE {tables[name].quoted} REPLICA IDENTITY FULL; or choose others with --key-columns",
                )
        return tables

    def _check_partitions(self, tables: Mapping[str, TableInfo]) -> None:
        """Of a table that is unlogged itself nothing is captured. One with such a partition would be, in part; and
        triggers do not see that the server empties it after a crash."""
        for name, table in tables.items():
            for leaf in table.leaves:
                if leaf.elsewhere:
                    cure = f"ALTER TABLE {leaf.name} SET LOGGED; or " if leaf.elsewhere == "unlogged" else ""
                    raise UsageError(
                        f"{name} has the {leaf.elsewhere} partition {leaf.name}, whose changes the server does not log",
                        f"{cure}leave the table out with --exclude-tables {name}",
                    )

    def column_names(self) -> dict[str, list[str]]:
        """Of the tables to capture."""
        return {name: [each[1] for each in table.shape] for name, table in self.selected(self.all_tables()).items()}

    def columns(self, table: TableInfo) -> list[RelationColumn]:
        generated = "s" if self.with_stored else ""
        rows = self.connection.execute(COLUMNS, (table.schema, table.name, generated)).fetchall()
        return [RelationColumn(*row) for row in rows]

    def rows_expected(self, tables: Sequence[TableInfo]) -> dict[int, int]:
        """By OID: the server's own estimates. Tables that it has never looked at are counted where that is quick."""
        expected = {table.oid: table.rows_estimated for table in tables}
        unknown = [table for table in tables if table.rows_estimated < 0]
        if not unknown:
            return expected
        sizes = self.connection.execute(
            "select oid::bigint, pg_relation_size(oid) from unnest(%s::oid[]) oid", ([each.oid for each in unknown],)
        )
        pages_bytes = {oid: size or 0 for oid, size in sizes.fetchall()}
        for table in unknown:
            size_bytes = pages_bytes[table.oid]
            expected[table.oid] = size_bytes // ROW_BYTES_GUESSED
            if size_bytes <= COUNTED_BYTES_MAX and len(unknown) <= COUNTED_TABLES_MAX:
                query = sql.SQL("select count(*) from {}").format(table.rows_of)
                (expected[table.oid],) = self.connection.execute(query).fetchone() or (0,)
        return expected

    def types(self) -> dict[int, PgType]:
        return {row[0]: PgType(*row) for row in self.connection.execute(TYPES).fetchall()}

    def types_of(self, columns: Iterable[RelationColumn], known: dict[int, PgType]) -> dict[int, PgType]:
        """What is known of types, if the types of these columns are among it; otherwise what there is now."""
        return known if all(each.type_oid in known for each in columns) else self.types()

    def came_with_rows(self, leaves: Iterable[int]) -> bool:
        """Whether one of these new partitions has rows that did not come through the table.

        A partition that was made as one has its row type from the same transaction as its place. Rows of that very
        transaction may have come before or after, and count too.
        """
        for oid in leaves:
            row = self.connection.execute(ATTACHED, (oid,)).fetchone()
            if row is None:
                continue
            name, attached, xid = row
            query = sql.SQL("select true from {} {} limit 1").format(
                sql.SQL(name), sql.SQL("") if attached else sql.SQL("where xmin::text = {}").format(sql.Literal(xid))
            )
            if self.connection.execute(query).fetchone():
                return True
        return False

    def writers(self, oids: list[int]) -> set[str]:
        """The transactions under way that have written to these tables, or may have."""
        return {row[0] for row in self.connection.execute(WRITERS, (oids,)).fetchall()}
