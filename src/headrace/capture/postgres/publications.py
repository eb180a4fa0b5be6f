"""What the server publishes for a capture: two publications that hold exactly the chosen tables.

A table whose old rows cannot be identified goes into the second publication, of insertions only: published with
updates, the server would refuse *the application's own* updates and deletions of it. A table moves from one to the
other when its key or replica identity changes.

**Membership.** The server gives a table a new number each time it enters a publication. Capture keeps that number with
its position: when it is another one, the table was out meanwhile, and changes of it are missing in the server's log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from psycopg import errors, sql

from headrace.capture.postgres.catalogue import Catalogue, TableInfo
from headrace.errors import UsageError

__all__ = ["Publications"]

MEMBERS = """
select p.pubname, r.prrelid::bigint, r.oid::bigint, c.relname, n.nspname,
       to_jsonb(r) ->> 'prqual' is not null or to_jsonb(r) ->> 'prattrs' is not null
from pg_publication_rel r join pg_publication p on p.oid = r.prpubid join pg_class c on c.oid = r.prrelid
     join pg_namespace n on n.oid = c.relnamespace
where p.pubname = any(%s)
"""
MAY_PUBLISH = """
select quote_ident(current_user), quote_ident(current_database()),
       has_database_privilege(current_database(), 'create')
       or (select count(*) from pg_publication where pubname = any(%s)) = %s
"""
NOT_OWNED = """
select c.oid::bigint, quote_ident(pg_get_userbyid(c.relowner))
from pg_class c where c.oid = any(%s) and not pg_has_role(c.relowner, 'usage')
"""
SETTINGS = """
select pubname, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, coalesce(to_jsonb(p) ->> 'pubgencols', '-')
from pg_publication p where pubname = any(%s)
"""


class Publications:
    """The publications of one capture; ``names``: of tables with all their changes, and of insertions only."""

    def __init__(self, catalogue: Catalogue, name: str) -> None:
        self._catalogue = catalogue
        self._connection = catalogue.connection
        self.names = (f"headrace_{name}", f"headrace_{name}_inserts")

    def check(self, tables: Iterable[TableInfo]) -> None:
        """Refuse a user who may not do what ``hold`` will: a role that may create publishes the tables that it owns.
        What somebody else has published already needs no right."""
        execute = self._connection.execute
        asked = execute(MAY_PUBLISH, (list(self.names), len(self.names))).fetchone()
        assert asked is not None, "a select without FROM has a row"
        user, database, may_create = asked
        if not may_create:
            raise UsageError(f"{user} may not create publications", f"GRANT CREATE ON DATABASE {database} TO {user}")
        published = {row[1] for row in execute(MEMBERS, (list(self.names),)).fetchall()}
        wanted = {each.oid: each for each in tables if each.oid not in published}
        owners: dict[int, str] = dict(execute(NOT_OWNED, (list(wanted),)).fetchall())
        if owners:
            names = ", ".join(wanted[oid].quoted for oid in owners)
            roles = ", ".join(sorted(set(owners.values())))
            raise UsageError(
                f"{user} does not own {names}, and only a table's owner may publish it",
                f"make it a member of the role that owns them ({roles}); or leave them out with --exclude-tables",
            )

    def hold(self, tables: Iterable[TableInfo]) -> dict[int, int]:
        """Make the publications hold exactly these tables; gives the number of each membership by the table's OID.

        Both exist from before the slot on, even empty: a stream that names a publication fails where it passes through
        a time at which that did not exist.
        """
        chosen = list(tables)
        wanted = [
            {each.oid: each.identifier for each in chosen if each.changes_identifiable},
            {each.oid: each.identifier for each in chosen if not each.changes_identifiable},
        ]
        self._make(self.names[0], "insert, update, delete, truncate")
        self._make(self.names[1], "insert, truncate")
        held, identifiers = self._held()
        # A table leaves one before it enters the other: in both, its updates would be refused.
        for name, own in zip(self.names, wanted, strict=True):
            gone = [oid for oid in held[name] if oid not in own]
            self._alter(name, "DROP", [identifiers[oid] for oid in gone])
        for name, own in zip(self.names, wanted, strict=True):
            self._alter(name, "ADD", [each for oid, each in own.items() if oid not in held[name]])
        held, _ = self._held()
        return {oid: number for members in held.values() for oid, number in members.items()}

    def _held(self) -> tuple[dict[str, dict[int, int]], dict[int, sql.Identifier]]:
        """The members of each publication. One that is published in part does not count: it must enter again."""
        held: dict[str, dict[int, int]] = {name: {} for name in self.names}
        identifiers: dict[int, sql.Identifier] = {}
        rows = self._connection.execute(MEMBERS, (list(self.names),)).fetchall()
        for publication, oid, number, table, schema, in_part in rows:
            identifiers[oid] = sql.Identifier(schema, table)
            if in_part:
                self._alter(publication, "DROP", [identifiers[oid]])
            else:
                held[publication][oid] = number
        return held, identifiers

    def _make(self, name: str, operations: str) -> None:
        """With these settings; somebody may have changed them."""
        options = sql.SQL("publish = {}, publish_via_partition_root = true").format(sql.Literal(operations))
        stored = self._catalogue.with_stored
        if stored:
            options += sql.SQL(", publish_generated_columns = stored")
        rows = self._connection.execute(SETTINGS, ([name],)).fetchall()
        every = "update" in operations
        right = (name, True, every, every, True, True, "s" if stored else "-")
        if not rows:
            self._execute(sql.SQL("CREATE PUBLICATION {} WITH ({})").format(sql.Identifier(name), options))
        elif rows[0] != right:
            self._execute(sql.SQL("ALTER PUBLICATION {} SET ({})").format(sql.Identifier(name), options))
            if rows[0][1:6] != right[1:6]:
                held, identifiers = self._held()  # changes may be missing: as if the tables had been out
                self._alter(name, "DROP", [identifiers[oid] for oid in held[name]])

    def _alter(self, name: str, verb: Literal["ADD", "DROP"], tables: list[sql.Identifier]) -> None:
        """With ONLY: tables that inherit from these are captured when they are chosen themselves."""
        if tables:
            names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(each) for each in tables)
            self._execute(
                sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(sql.Identifier(name), sql.SQL(verb), names)
            )

    def _execute(self, statement: sql.Composed) -> None:
        """An ALTER of somebody else is not waited for: changes of other tables go on meanwhile."""
        try:
            with self._connection.transaction():
                self._connection.execute("SET LOCAL lock_timeout = '1s'")
                self._connection.execute(statement)
        except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as error:
            text, info = statement.as_string(self._connection), self._connection.info
            raise UsageError(
                f"{info.user} may not change what is published: {error}",
                f"GRANT CREATE ON DATABASE {info.dbname} TO {info.user}, and make it a member of the role that owns "
                f"the tables; or let a superuser run: {text}",
            ) from error

    def drop(self) -> list[str]:
        query = "select pubname from pg_publication where pubname = any(%s) order by 1"
        dropped = [row[0] for row in self._connection.execute(query, (list(self.names),)).fetchall()]
        for name in dropped:
            self._execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
        return dropped
