"""Random schemas and changes, as plain SQL that a seed decides: the steps of ``python -m tests.capture.ddl``.

A step is a transaction (its statements, the last one being ``commit`` or ``rollback``), statements outside of one, or
something done to capture or to the database as a whole. What a database refuses, because a table is not there or a key
would be there twice, has not happened, so steps need not know what the steps before them did.

Every table has the columns ``id``, ``k`` and ``n``; others come and go. Every row that is written gets another ``n``,
so that no row is like an older one by chance.

LIMITS lists what the documentation does not promise, and the generator therefore does not do or the judge tolerates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["LIMITS", "Step", "steps"]

LIMITS = {
    "ADD COLUMN": "a row that has not changed since lacks the column, as with Debezium",
    "DROP COLUMN, RENAME COLUMN": "a row that has not changed since has the old column, as with Debezium",
    "ALTER COLUMN TYPE": "a row that has not changed since has the old type's form of the value, as with Debezium",
    "no identity (PostgreSQL's log)": "only insertions and truncations of such a table are captured",
    "unlogged and temporary tables": "PostgreSQL's log has no changes of them",
    "session_replication_role=replica": "triggers do not see such writes",
    "sql_log_bin=0": "MariaDB does not write such changes anywhere",
    "REPLACE in SQLite without recursive_triggers": "SQLite does not report what it displaces",
    "triggers dropped and put back by a migration": "SQLite shows no trace of it",
    "DEFERRABLE primary keys": "two rows that exchange keys in one transaction are no sequence of events by key",
}


@dataclass(frozen=True, slots=True)
class Step:
    """``kind``: transaction, alone, start, stop, kill, wait, settle, backup, restore, crash."""

    kind: str
    statements: tuple[str, ...] = ()


class Author:
    """Writes SQL of one database. Subclasses add what only their database has."""

    names: Sequence[str] = ("alpha", "beta", "gamma", "old")
    primary_keys: Sequence[str] = ("primary key (id)", "primary key (id)", "primary key (k, id)", "unique (id)")

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number

    def name(self) -> str:
        return self.quoted(self.choose.choice(self.names))

    def quoted(self, name: str) -> str:
        return name if name.isalnum() else f'"{name}"'

    def key(self) -> int:
        return self.choose.randrange(1, 12)

    # -- rows

    def insert(self, table: str) -> str:
        return f"{self.plain_insert(table)} on conflict do nothing"

    def plain_insert(self, table: str) -> str:
        return f"insert into {table} (id, k, n) values ({self.key()}, {self.key()}, {self.number()})"

    def upsert(self, table: str) -> str:
        return f"{self.plain_insert(table)} on conflict (id) do update set n = {self.number()}"

    def row_change(self, table: str) -> str:
        n, key = self.number(), self.key()
        return self.choose.choice(
            [
                self.insert(table),
                self.insert(table),
                self.insert(table),
                self.upsert(table),
                f"update {table} set n = {n} where id = {key}",
                f"update {table} set n = n + {1000 + n}",
                f"update {table} set body = 'text {n}' where k < {key}",
                f"update {table} set c1 = {n}, n = n + {1000 + n} where k < {key}",
                f"update {table} set id = id + 20, n = {n} where id = {key}",
                f"delete from {table} where id = {key}",
                f"delete from {table} where k > {key}",
                f"delete from {table}" if n % 5 == 0 else self.insert(table),
            ]
        )

    def rows(self) -> Step:
        table = self.name()
        work = []
        for _ in range(self.choose.choice([1, 1, 2, 4, 8])):
            work.append(self.row_change(table if self.choose.random() < 0.7 else self.name()))
            if self.choose.random() < 0.1:
                work += ["savepoint s", self.row_change(table), self.choose.choice(["rollback to s", "release s"])]
        return Step("transaction", (*work, self.choose.choice(["commit"] * 7 + ["rollback"])))

    # -- tables

    def columns(self) -> str:
        return (
            f"id int not null, k int not null, n int, body varchar(50), c1 int, {self.choose.choice(self.primary_keys)}"
        )

    def create(self, table: str | None = None) -> list[str]:
        return [f"create table {table or self.name()} ({self.columns()})"]

    def filled(self, table: str) -> list[str]:
        return [self.insert(table) for _ in range(self.choose.randrange(1, 6))]

    def drop(self, table: str) -> str:
        return f"drop table {table}"

    def renamed(self, table: str, to: str) -> str:
        return f"alter table {table} rename to {to}"

    def make(self, name: str | None = None) -> Step:
        table = self.quoted(name) if name else self.name()
        return Step("transaction", (*self.create(table), *self.filled(table), "commit"))

    def make_again(self) -> Step:
        """Dropped and created in one transaction."""
        table = self.name()
        return Step("transaction", (self.drop(table), *self.create(table), *self.filled(table), "commit"))

    def drop_one(self) -> Step:
        return Step("transaction", (self.drop(self.name()), "commit"))

    def drop_and_make(self) -> list[Step]:
        """In two transactions, with or without something between."""
        table = self.name()
        made = Step("transaction", (*self.create(table), *self.filled(table), "commit"))
        between = [self.rows()] if self.choose.random() < 0.5 else []
        return [Step("transaction", (self.drop(table), "commit")), *between, made]

    def swap(self) -> Step:
        table, fresh = self.name(), "fresh"
        filled = self.filled(fresh)
        copied = f"insert into {fresh} (id, k, n) select id + 30, k, n from {table}"
        names = [self.renamed(table, "kept"), self.renamed(fresh, table)]
        then = [self.drop("kept")] if self.choose.random() < 0.5 else [self.row_change(table)]
        return Step(
            "transaction", ("drop table if exists kept", *self.create(fresh), *filled, copied, *names, *then, "commit")
        )

    def rename(self) -> Step:
        """Away and perhaps back, or onto a name that was just dropped."""
        one, other = self.name(), self.name()
        options = [
            (self.drop(other), self.renamed(one, other)),
            (self.renamed(one, "away"),),
            (self.renamed("away", one),),
        ]
        return Step("transaction", (*self.choose.choice(options), "commit"))

    def truncate(self) -> Step:
        return Step(
            "transaction", (self.insert(table := self.name()), f"delete from {table}", self.insert(table), "commit")
        )

    def alter(self) -> Step:
        table, column = self.name(), f"c{self.choose.randrange(1, 3)}"
        change = self.choose.choice(self.changes_of_columns(table, column))
        return Step("transaction", (change, self.row_change(table), "commit"))

    def changes_of_columns(self, table: str, column: str) -> list[str]:
        return [
            f"alter table {table} add column {column} int",
            f"alter table {table} add column {column} int default {self.number()}",
            f"alter table {table} drop column {column}",
            f"alter table {table} rename column c1 to c2",
        ]

    def more(self) -> list[tuple[int, Callable[[], Step | list[Step]]]]:
        """What only this database has, with weights."""
        return []

    def work(self) -> list[Step]:
        choices: list[tuple[int, Callable[[], Step | list[Step]]]] = [
            (24, self.rows),
            (3, self.make),
            (2, self.make_again),
            (1, self.drop_one),
            (2, self.drop_and_make),
            (3, self.swap),
            (2, self.rename),
            (2, self.truncate),
            (2, self.alter),
            *self.more(),
        ]
        made = self.choose.choices([each for _, each in choices], [weight for weight, _ in choices])[0]()
        return made if isinstance(made, list) else [made]


class PostgresAuthor(Author):
    names = ("alpha", "beta", "gamma", "Odd name")
    primary_keys = (
        "primary key (id)",
        "primary key (id)",
        "primary key (k, id)",
        "primary key (id) include (n)",
        "unique (id)",
    )

    def create(self, table: str | None = None) -> list[str]:
        table = table or self.name()
        made = super().create(table)
        if self.choose.random() < 0.2:
            made.append(f"alter table {table} replica identity full")
        return made

    def truncate(self) -> Step:
        one, other = self.name(), self.name()
        how = self.choose.choice(
            [
                f"truncate {one}",
                f"truncate table only {one} restart identity",
                f"truncate {one}, {other}",
                f"truncate {one} cascade",
                "truncate parts",
            ]
        )
        return Step("transaction", (self.insert(one), how, self.insert(one), "commit"))

    def changes_of_columns(self, table: str, column: str) -> list[str]:
        return [
            *super().changes_of_columns(table, column),
            f"alter table {table} alter column {column} type bigint",
            f"alter table {table} alter column body type text",
            f"alter table {table} alter column {column} type text",
            f"alter table {table} alter column n type int using n + {1000 + self.number()}",
        ]

    def rekey(self) -> Step:
        table = self.name()
        change = self.choose.choice(
            [
                [f"alter table {table} replica identity full"],
                [f"alter table {table} replica identity default"],
                [f"alter table {table} drop constraint if exists {{pk}}", f"alter table {table} add primary key (n)"],
                [f"alter table {table} drop constraint if exists {{pk}}", f"alter table {table} add primary key (id)"],
                [
                    f"alter table {table} drop constraint if exists {{pk}}",
                    f"alter table {table} add primary key (id) include (k)",
                ],
                [
                    f"create unique index other_{self.number()} on {table} (n)",
                    f"alter table {table} alter n set not null",
                    f"alter table {table} replica identity using index other_{self._number}",
                ],
            ]
        )
        pk = f"{table.strip(chr(34))}_pkey"
        made = [each.format(pk=self.quoted(pk)) for each in change]
        return Step("transaction", (*made, self.row_change(table), self.row_change(table), "commit"))

    def partitions(self) -> Step | list[Step]:
        keys = [self.choose.randrange(0, 30) for _ in range(6)]
        rows = [f"insert into parts (id, k, n) values ({key}, {key}, {self.number()})" for key in keys]
        leaf = "create table {} (id int primary key, k int not null, n int, body varchar(50))"
        bounds = {"parts_a": (0, 10), "parts_b": (10, 20), "parts_c": (20, 30)}
        one = self.choose.choice([*bounds])
        start, end = bounds[one]
        attach = f"alter table parts attach partition {one} for values from ({start}) to ({end})"
        fill = f"insert into {one} (id, k, n) values ({start + 3}, 1, {self.number()})"
        columns = "id int primary key, k int, n int, body varchar(50)"
        options: list[list[Step]] = [
            [
                Step(
                    "transaction",
                    (
                        f"create table parts ({columns}) partition by range (id)",
                        *(
                            f"create table {name} partition of parts for values from ({a}) to ({b})"
                            for name, (a, b) in bounds.items()
                        ),
                        *rows,
                        "commit",
                    ),
                )
            ],
            [Step("transaction", (each, "commit")) for each in rows],
            [Step("transaction", (f"truncate {one}", "commit"))],
            [Step("transaction", (f"alter table parts detach partition {one}", "commit"))],
            [Step("transaction", (f"alter table parts detach partition {one}", fill, attach, "commit"))],
            [Step("transaction", (attach, "commit"))],
            [Step("transaction", (f"drop table {one}", "commit"))],
            [Step("transaction", (leaf.format(one), fill, attach, "commit"))],
            [Step("transaction", (leaf.format(one), fill, "commit")), Step("transaction", (attach, "commit"))],
            [Step("transaction", (f"update parts set id = (id + 10) % 30, n = {self.number()}", "commit"))],
            [Step("transaction", (f"delete from parts where id % 3 = {keys[0] % 3}", "commit"))],
            [Step("alone", (f"alter table parts detach partition {one} concurrently",))],
        ]
        weights = [3, 6, 2, 2, 2, 2, 1, 2, 2, 2, 2, 1]
        return self.choose.choices(options, weights)[0]

    def inherit(self) -> Step:
        parent, n = self.name(), self.number()
        return Step(
            "transaction",
            self.choose.choice(
                [
                    (
                        f"create table heir () inherits ({parent})",
                        f"insert into heir (id, k, n) values (1, 1, {n})",
                        "commit",
                    ),
                    (f"insert into heir (id, k, n) values ({self.key()}, 2, {n})", "commit"),
                    (f"alter table heir no inherit {parent}", "commit"),
                    (f"update {parent} set n = n + {1000 + n}", "commit"),
                ]
            ),
        )

    def selected(self) -> Step:
        table, other = self.name(), self.name()
        return Step("transaction", (f"create table {table} as select * from {other}", "commit"))

    def unlogged(self) -> Step:
        table = self.name()
        how = self.choose.choice(["unlogged", "logged", "logged"])
        return Step("transaction", (f"alter table {table} set {how}", self.insert(table), "commit"))

    def more(self) -> list[tuple[int, Callable[[], Step | list[Step]]]]:
        return [(3, self.rekey), (6, self.partitions), (2, self.inherit), (1, self.selected), (1, self.unlogged)]


class MariadbAuthor(Author):
    names = ("alpha", "beta", "gamma", "odd-name")

    def quoted(self, name: str) -> str:
        return name if name.isalnum() else f"`{name}`"

    def insert(self, table: str) -> str:
        return self.plain_insert(table).replace("insert", "insert ignore", 1)

    def upsert(self, table: str) -> str:
        return self.choose.choice(
            [
                f"{self.plain_insert(table)} on duplicate key update n = {self.number()}",
                self.plain_insert(table).replace("insert", "replace", 1),
            ]
        )

    def create(self, table: str | None = None) -> list[str]:
        table = table or self.name()
        more = self.choose.choice(["", "", "", " engine=aria", " with system versioning"])
        how = self.choose.choice(["create table", "create table", "create or replace table"])
        return [f"{how} {table} ({self.columns()}){more}"]

    def truncate(self) -> Step:
        table = self.name()
        how = self.choose.choice(
            [
                f"truncate table {table}",
                f"truncate {table}",
                f"set statement max_statement_time = 9 for truncate table {table}",
                f"/* of the application */ truncate\n table  {table} -- all of it",
                f"delete from {table}",
                "alter table parts truncate partition parts_a",
                "alter table parts truncate partition all",
            ]
        )
        return Step("transaction", (self.insert(table), how, self.insert(table), "commit"))

    def swap(self) -> Step | list[Step]:  # type: ignore[override]
        if self.choose.random() < 0.5:
            return super().swap()
        table = self.name()
        made = ["drop table if exists kept", *self.create("fresh"), *self.filled("fresh")]
        swapped = f"rename table {table} to kept, fresh to {table}"
        return Step("transaction", (*made, swapped, self.row_change(table), "commit"))

    def changes_of_columns(self, table: str, column: str) -> list[str]:
        return [
            *super().changes_of_columns(table, column),
            f"set statement lock_wait_timeout = 9 for alter table {table} add column {column} int default 7",
            f"alter table {table} modify column {column} bigint",
            f"alter table {table} modify column body text",
            f"alter table {table} modify column {column} text",
            f"alter table {table} add column {column} int first",
            f"alter table {table} engine=innodb",
        ]

    def rekey(self) -> Step:
        table = self.name()
        change = self.choose.choice(
            [
                f"alter table {table} drop primary key",
                f"alter table {table} drop primary key, add primary key (n)",
                f"alter table {table} drop primary key, add primary key (id)",
                f"alter table {table} add primary key (id)",
            ]
        )
        return Step("transaction", (change, self.row_change(table), self.row_change(table), "commit"))

    def partitions(self) -> Step | list[Step]:
        keys = [self.choose.randrange(0, 30) for _ in range(6)]
        rows = [f"insert into parts (id, k, n) values ({key}, {key}, {self.number()})" for key in keys]
        one = self.choose.choice(["parts_a", "parts_b"])
        made = (
            "create table parts (id int primary key, k int not null, n int, body varchar(50)) partition by range (id) "
            "(partition parts_a values less than (10), partition parts_b values less than (20), "
            "partition parts_c values less than maxvalue)"
        )
        leaf = "create table leaf (id int primary key, k int not null, n int, body varchar(50))"
        options: list[tuple[str, ...]] = [
            (made, *rows, "commit"),
            (*rows, "commit"),
            (f"alter table parts truncate partition {one}", "commit"),
            (f"alter table parts drop partition {one}", "commit"),
            (
                "drop table if exists leaf",
                leaf,
                rows[0].replace("parts", "leaf"),
                f"alter table parts exchange partition {one} with table leaf without validation",
                "commit",
            ),
            ("alter table parts remove partitioning", "commit"),
            (f"update parts set id = (id + 10) % 30, n = {self.number()} order by id desc", "commit"),
            (f"delete from parts where id % 3 = {keys[0] % 3}", "commit"),
        ]
        return Step("transaction", self.choose.choices(options, [3, 6, 2, 1, 2, 1, 2, 2])[0])

    def selected(self) -> Step:
        table, other = self.name(), self.name()
        how = self.choose.choice(
            [
                "create table {} as select * from {}",
                "create table {} like {}",
                "create or replace table {} as select * from {}",
            ]
        )
        return Step("transaction", (how.format(table, other), self.insert(table), "commit"))

    def cascade(self) -> Step:
        """What a foreign key deletes is not in the binlog: MariaDB's replicas do it themselves."""
        n = self.number()
        parent = "create table parent (id int primary key, n int)"
        reference = "foreign key (of) references parent (id) on delete cascade"
        child = f"create table child (id int primary key, n int, of int, {reference})"
        rows = (f"insert into parent values ({n}, {n})", f"insert into child values ({n}, {n}, {n})")
        return Step(
            "transaction",
            self.choose.choice(
                [
                    (parent, child, *rows, "commit"),
                    (*rows, "commit"),
                    ("delete from parent order by id limit 1", "commit"),
                ]
            ),
        )

    def more(self) -> list[tuple[int, Callable[[], Step | list[Step]]]]:
        return [(3, self.rekey), (5, self.partitions), (1, self.selected), (2, self.cascade)]


class SqliteAuthor(Author):
    names = ("alpha", "beta", "gamma", "odd name")

    def columns(self) -> str:
        tail = self.choose.choice(
            ["primary key (id)", "primary key (id)", "primary key (k, id)", "unique (id)", "unique (k)"]
        )
        first = "id int not null"
        if self.choose.random() < 0.3:
            first, tail = (
                self.choose.choice(["id integer primary key", "id integer primary key autoincrement"]),
                "check (1)",
            )
        return f"{first}, k int not null, n int, body varchar(50), c1 int, {tail}"

    def create(self, table: str | None = None) -> list[str]:
        made = super().create(table)[0]
        if "primary key (" in made and self.choose.random() < 0.3:
            made += " without rowid"
        return [made]

    def row_change(self, table: str) -> str:
        if self.choose.random() < 0.1:
            return self.plain_insert(table).replace(
                "insert", self.choose.choice(["replace", "insert or replace", "insert or ignore"]), 1
            )
        return super().row_change(table)

    def trigger(self) -> Step:
        table, other, n = self.name(), self.name(), self.number()
        copied = f"insert or ignore into {other} (id, k, n) values (new.id, new.k, new.n)"
        when, does = self.choose.choice(
            [
                ("after update of n on", f"update {table} set body = 'touched ' || new.n where id = new.id"),
                ("after insert on", f"update {table} set k = k + 1 where id = new.id"),
                ("after insert on", copied),
                ("after delete on", f"delete from {other} where id = old.id"),
                ("before update on", f"delete from {table} where id = new.id + 1"),
                ("after insert on", f"delete from {table} where id = new.id and k = 3"),
            ]
        )
        what = f"create trigger app_{n} {when} {table} begin {does}; end"
        return Step("transaction", (what, self.row_change(table), "commit"))

    def rebuild(self) -> Step:
        """SQLite's documented way to change a table: a new one, filled, under the old name."""
        table = self.name()
        copied = f"insert into fresh (id, k, n, body) select id, k, n, body from {table}"
        return Step(
            "transaction",
            (*self.create("fresh"), copied, f"drop table {table}", f"alter table fresh rename to {table}", "commit"),
        )

    def cascade(self) -> Step:
        n = self.number()
        child = "create table child (id int primary key, n int, of int references parent (id) on delete cascade)"
        rows = (f"insert into parent values ({n}, {n})", f"insert into child values ({n}, {n}, {n})")
        make = ("create table parent (id int primary key, n int)", child, *rows, "commit")
        delete = ("delete from parent where id = (select min(id) from parent)", "commit")
        return Step("transaction", self.choose.choice([make, (*rows, "commit"), delete]))

    def vacuum(self) -> Step:
        return Step("alone", ("vacuum",))

    def more(self) -> list[tuple[int, Callable[[], Step | list[Step]]]]:
        return [(3, self.trigger), (3, self.rebuild), (2, self.cascade), (1, self.vacuum)]


AUTHORS: dict[str, type[Author]] = {
    "postgresql": PostgresAuthor,
    "triggers": PostgresAuthor,
    "mariadb": MariadbAuthor,
    "sqlite": SqliteAuthor,
}


def steps(database: str, seed: int, count: int, *, restores: bool) -> list[Step]:
    """The same for the same arguments, whatever the database does with them."""
    author = AUTHORS[database](seed)
    choose = random.Random(seed + 1)
    made: list[Step] = [*(author.make(each) for each in author.names), Step("start")]
    backup = choose.randrange(count // 3) if restores else -1
    restore = choose.randrange(count // 2, count) if restores else -1
    for number in range(count):
        if number == backup:
            made += [Step("backup")]
        if number == restore:
            made += [Step("restore"), *(author.rows() for _ in range(choose.choice([0, 3, 20])))]
        made += author.work()
        made += choose.choices(
            [[], [Step("wait")], [Step("settle")], [Step("kill")], [Step("stop")], [Step("start")], [Step("crash")]],
            [40, 10, 5, 6, 3, 14, 1 if choose.random() < 0.3 else 0],
        )[0]
    return [*made, Step("start"), Step("settle")]
