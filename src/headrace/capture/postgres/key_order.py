"""The order in which rows of a table are read by their key, and the condition that a row comes after another one.

Two rows that compare as equal would have no order, and at the end of a chunk the second would be left out. Only an
index says which values are different. It may have its own operator class or collation, in which values differ that are
equal in the column's: texts without case (of citext) indexed as texts with case, for instance. Rows are then
read in the order of the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from psycopg import sql

from headrace.capture.postgres.catalogue import Connection, TableInfo

__all__ = ["KeyOrder", "key_order", "key_text"]

_KEY = """
with recursive step(place, name, type, modifier, collated) as (
  select k.place, k.name, a.atttypid, a.atttypmod, a.attcollation
  from unnest(%(key)s::text[]) with ordinality k(name, place)
       join pg_attribute a on a.attrelid = %(table)s and a.attname = k.name and a.attnum > 0
  union all
  select place, name, t.typbasetype, t.typtypmod, collated
  from step join pg_type t on t.oid = step.type where t.typtype = 'd'
), part as (
  select step.*, (
    select c.oid from pg_opclass c join pg_am m on m.oid = c.opcmethod
    where m.amname = 'btree' and c.opcdefault and c.opcintype = step.type) as class
  from step join pg_type t on t.oid = step.type and t.typtype <> 'd'
), indexed as (
  select i.indexrelid, part.place, c.oid as class, i.indcollation[part.place - 1] as collated,
         coalesce(part.class = c.oid, c.opcdefault) as is_usual_class,
         i.indcollation[part.place - 1] = part.collated as is_usual_collation
  from part cross join pg_index i join pg_class r on r.oid = i.indexrelid
       join pg_am m on m.oid = r.relam and m.amname = 'btree' join pg_opclass c on c.oid = i.indclass[part.place - 1]
  where i.indrelid = %(table)s and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
        and %(key)s::text[] = (
          select array_agg(a.attname::text order by k.place)
          from unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) with ordinality k(number, place)
               join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number)
), chosen as (
  select indexrelid from indexed group by indexrelid
  order by bool_and(is_usual_class and is_usual_collation) desc, indexrelid limit 1
)
select part.name, format_type(part.type, part.modifier), not coalesce(i.is_usual_class, true),
  case when not i.is_usual_class and t.typtype <> 'p' then format_type(t.oid, null) end,
  case when not i.is_usual_collation then (
    select format('%%I.%%I', n.nspname, l.collname)
    from pg_collation l join pg_namespace n on n.oid = l.collnamespace where l.oid = i.collated) end,
  (select array_agg(format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) order by m.amopstrategy)
   from pg_amop m join pg_operator o on o.oid = m.amopopr join pg_namespace n on n.oid = o.oprnamespace
   where m.amopfamily = c.opcfamily and m.amopstrategy in (1, 4, 5) and m.amoplefttype = c.opcintype
         and m.amoprighttype = c.opcintype and (n.nspname <> 'pg_catalog' or not i.is_usual_class))
from part left join (indexed i join chosen using (indexrelid)) using (place)
     left join pg_opclass c on c.oid = coalesce(i.class, part.class) left join pg_type t on t.oid = c.opcintype
order by part.place
"""


def key_text(value: bytes | None) -> str:
    """A value of a key as a place to go on from, also one that is no text."""
    return (value or b"").decode(errors="surrogateescape")


def _literal(text: str) -> sql.Composable:
    """What ``key_text`` gave, for a statement."""
    try:
        text.encode()
    except UnicodeEncodeError:
        stored = text.encode(errors="surrogateescape")
        return sql.SQL("E'" + "".join(f"\\x{each:02x}" for each in stored) + "'")
    return sql.Literal(text)


def _sql(text: str) -> sql.SQL:
    """What the server itself has quoted."""
    return sql.SQL(cast(Any, text))


@dataclass(frozen=True, slots=True)
class _Part:
    """A column of a key. ``kind``: its type, of a domain its base type. ``cast_to`` and ``collation`` are those of the
    index where they are others than the column's; ``operators``: less than, at least and more than, where they are not
    the server's own of these names."""

    name: str
    kind: str
    sorts_by_operator: bool
    cast_to: str | None
    collation: str | None
    operators: Sequence[str] | None

    @property
    def compared(self) -> sql.Composable:
        found: sql.Composable = sql.Identifier(self.name)
        if self.cast_to is not None:
            found += _sql(f"::{self.cast_to}")
        return found if self.collation is None else found + _sql(f" COLLATE {self.collation}")

    @property
    def sorted(self) -> sql.Composable:
        if not self.sorts_by_operator or self.operators is None:
            return self.compared
        return self.compared + _sql(f" USING {self.operators[0]}")

    def value(self, text: str) -> sql.Composable:
        """A value is no value of its domain here, whose conditions may call whatever they like."""
        cast_to = "" if self.cast_to is None else f"::{self.cast_to}"
        return _literal(text) + _sql(f"::{self.kind}{cast_to}")


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order of a table's rows by its key; see the module."""

    parts: Sequence[_Part]

    @property
    def order_by(self) -> sql.Composable:
        return sql.SQL(", ").join([each.sorted for each in self.parts])

    def after(self, texts: Sequence[str]) -> sql.Composable:
        """The condition that a row comes after the one with this key.

        Types of extensions have their own operators: with those that happen to be found by their names, texts
        without case (of citext) would be compared with their case, and rows passed over.
        """
        values = [part.value(text) for part, text in zip(self.parts, texts, strict=True)]
        if not any(each.operators for each in self.parts):
            compared = sql.SQL(", ").join([each.compared for each in self.parts])
            return sql.SQL("({}) > ({})").format(compared, sql.SQL(", ").join(values))
        condition: sql.Composable = sql.SQL("false")
        for part, value in reversed(list(zip(self.parts, values, strict=True))):
            _, at_least, more = map(_sql, part.operators or ("<", ">=", ">"))
            known = {"column": part.compared, "value": value, "at_least": at_least, "more": more, "rest": condition}
            condition = sql.SQL("{column} {at_least} {value} AND ({column} {more} {value} OR {rest})").format(**known)
        return condition


def key_order(connection: Connection, table: TableInfo) -> KeyOrder:
    rows = connection.execute(_KEY, {"table": table.oid, "key": list(table.key)}).fetchall()
    return KeyOrder([_Part(*row) for row in rows])
