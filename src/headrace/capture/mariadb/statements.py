"""What a statement of the binlog does to tables.

With ``binlog_format=ROW`` the binlog holds changes of rows as rows, and as statements what changes tables as a whole:
TRUNCATE, CREATE, DROP, RENAME, ALTER. A session may choose another format, and then INSERT, UPDATE and DELETE are
statements too, whose rows nobody can know from the text: these come out as ``Written``.

The text is read as the server reads it: by tokens, with comments left out, the content of ``/*! … */`` taken in, and
double quotes meant as ``sql_mode`` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "Altered",
    "Created",
    "DatabaseDropped",
    "Dropped",
    "Effect",
    "Name",
    "Renamed",
    "TransactionEnd",
    "Truncated",
    "Written",
    "effects",
]

ANSI_QUOTES = 0x4
NO_BACKSLASH_ESCAPES = 0x100000


class Name(NamedTuple):
    schema: str
    table: str

    @property
    def full(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Truncated:
    table: Name


@dataclass(frozen=True, slots=True)
class Created:
    """``filled``: with rows that the binlog does not show. ``if_absent``: nothing happened if the table was there."""

    table: Name
    filled: bool = False
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    table: Name


@dataclass(frozen=True, slots=True)
class DatabaseDropped:
    schema: str


@dataclass(frozen=True, slots=True)
class Renamed:
    old: Name
    new: Name


@dataclass(frozen=True, slots=True)
class Altered:
    """``rows``: some came or went, or have another key. ``values``: columns of old rows may have other values now.

    ``dropped`` and ``added`` are columns, as far as the statement names them.
    """

    table: Name
    change: Literal["rows", "values", "nothing"]
    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A statement that changes rows. ``names`` are all names in it, of tables or not."""

    kind: str
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """COMMIT or ROLLBACK."""


Effect: TypeAlias = Truncated | Created | Dropped | DatabaseDropped | Renamed | Altered | Written | TransactionEnd

WITHOUT_ROWS = frozenset(
    (
        "BACKUP",
        "BEGIN",
        "CHANGE",
        "CHECK",
        "CHECKSUM",
        "FLUSH",
        "GRANT",
        "INSTALL",
        "KILL",
        "LOCK",
        "RELEASE",
        "RESET",
        "REVOKE",
        "SAVEPOINT",
        "SET",
        "SHOW",
        "SHUTDOWN",
        "SIGNAL",
        "START",
        "STOP",
        "UNINSTALL",
        "UNLOCK",
        "USE",
        "XA",
    )
)

NO_COLUMN = (
    "CHECK",
    "CONSTRAINT",
    "FOREIGN",
    "FULLTEXT",
    "INDEX",
    "KEY",
    "PARTITION",
    "PERIOD",
    "PRIMARY",
    "SPATIAL",
    "SYSTEM",
    "UNIQUE",
    "VECTOR",
)
"""What ALTER TABLE adds and drops besides columns; a column of such a name stands in quotes, or after COLUMN."""


class Token(NamedTuple):
    """``kind``: a word, which may be a keyword; a name in quotes; a string; or a sign."""

    kind: Literal["word", "name", "string", "sign"]
    text: str

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words


END = Token("sign", "")


def effects(text: str, schema: str, sql_mode: int = 0) -> list[Effect]:
    """What the statement does; names without a schema are of ``schema``."""
    statement = _Statement(list(_tokens(text, sql_mode)), schema)
    return statement.effects()


# ---- tokens ---------------------------------------------------------------------------------------------------------


def _tokens(text: str, sql_mode: int = 0) -> Iterator[Token]:
    at, end = 0, len(text)
    while at < end:
        here = text[at]
        if here.isspace():
            at += 1
        elif here == "#" or (text.startswith("--", at) and (at + 2 == end or text[at + 2].isspace())):
            at = _after(text, "\n", at)
        elif text.startswith(("/*!", "/*M!"), at):
            at = text.index("!", at) + 1
            while at < end and text[at].isdigit():  # the version from which on it counts; the server has run it
                at += 1
        elif text.startswith("/*", at):
            at = _after(text, "*/", at + 2)
        elif text.startswith("*/", at):
            at += 2  # the end of /*! … */
        elif here in "`'\"":
            content, at = _quoted(text, at, escapes=here != "`" and not sql_mode & NO_BACKSLASH_ESCAPES)
            is_name = here == "`" or (here == '"' and sql_mode & ANSI_QUOTES)
            yield Token("name" if is_name else "string", content)
        elif _is_of_word(here):
            start = at
            while at < end and _is_of_word(text[at]):
                at += 1
            yield Token("word", text[start:at])
        else:
            at += 1
            yield Token("sign", here)


def _is_of_word(sign: str) -> bool:
    return sign.isalnum() or sign in "_$" or sign >= "\x80"


def _after(text: str, mark: str, at: int) -> int:
    found = text.find(mark, at)
    return len(text) if found < 0 else found + len(mark)


def _quoted(text: str, at: int, *, escapes: bool) -> tuple[str, int]:
    """The content between quotes, where a doubled quote is one, and where it ends."""
    quote, at, found = text[at], at + 1, []
    while at < len(text):
        if text[at] == "\\" and escapes:
            found.append(text[at + 1 : at + 2])
            at += 2
        elif text[at] != quote:
            found.append(text[at])
            at += 1
        elif text.startswith(quote * 2, at):
            found.append(quote)
            at += 2
        else:
            return "".join(found), at + 1
    return "".join(found), at


# ---- statements -----------------------------------------------------------------------------------------------------


class _Statement:
    def __init__(self, tokens: Sequence[Token], schema: str) -> None:
        self._tokens = tokens
        self._schema = schema
        self._at = 0

    def effects(self) -> list[Effect]:
        first = self._next()
        verb = first.text.upper() if first.kind == "word" else ""
        read = {
            "TRUNCATE": self._truncate,
            "CREATE": self._create,
            "DROP": self._drop,
            "RENAME": self._rename,
            "ALTER": self._alter,
            "OPTIMIZE": self._rebuilt,
            "REPAIR": self._rebuilt,
        }.get(verb)
        if read is not None:
            return read()
        if verb in ("COMMIT", "ROLLBACK"):
            return [] if any(each.is_word("TO") for each in self._tokens) else [TransactionEnd()]
        if verb == "SET" and self._peek().is_word("STATEMENT"):
            self._past("FOR")
            return self.effects()
        if verb in WITHOUT_ROWS or first is END:
            return []
        if verb == "ANALYZE" and self._peek().is_word("TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG"):
            return []  # of anything else it is a statement that is carried out and measured
        if verb == "DELETE" and self._peek().is_word("HISTORY"):
            return []
        names = frozenset(each.text for each in self._tokens if each.kind in ("word", "name"))
        return [Written(verb or "statement", names)]

    # reading

    def _peek(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else END

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _skip(self, *words: str) -> bool:
        """Pass over these words, as many of them as there are; whether there was one."""
        start = self._at
        while self._peek().is_word(*words):
            self._at += 1
        return self._at > start

    def _past(self, *words: str) -> None:
        """Pass over everything up to one of these words, and over it."""
        while self._peek() is not END and not self._skip(*words):
            self._next()

    def _name(self) -> Name:
        first = self._next().text
        if self._peek() == Token("sign", "."):
            self._next()
            return Name(first, self._next().text)
        return Name(self._schema, first)

    def _names(self) -> Iterator[Name]:
        """Separated by commas."""
        yield self._name()
        while self._peek() == Token("sign", ","):
            self._next()
            yield self._name()

    # by verb

    def _truncate(self) -> list[Effect]:
        self._skip("TABLE")
        return [Truncated(self._name())]

    def _create(self) -> list[Effect]:
        replaces = self._skip("OR", "REPLACE")
        if self._peek().is_word("DATABASE", "SCHEMA"):
            self._next()
            return [DatabaseDropped(self._next().text)] if replaces else []
        if self._peek().is_word("TEMPORARY"):
            return []
        if self._peek().is_word("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "INDEX", "ONLINE", "OFFLINE"):
            return self._index()
        if not self._skip("TABLE"):
            return []
        if_absent = self._skip("IF", "NOT", "EXISTS")
        table = self._name()
        created = Created(table, self._is_filled(), if_absent and not replaces)
        return [Dropped(table), created] if replaces else [created]

    def _is_filled(self) -> bool:
        """CREATE TABLE … SELECT, or VALUES; a partition's VALUES are followed by another word."""
        rest = self._tokens[self._at :]
        follows = zip(rest, [*rest[1:], END], strict=True)
        return any(
            each.is_word("SELECT") or (each.is_word("VALUES") and after == Token("sign", "("))
            for each, after in follows
        )

    def _index(self) -> list[Effect]:
        """CREATE or DROP INDEX … ON a table: its rows stay."""
        self._past("ON")
        return [Altered(self._name(), "nothing")] if self._peek() is not END else []

    def _drop(self) -> list[Effect]:
        if self._peek().is_word("DATABASE", "SCHEMA"):
            self._next()
            self._skip("IF", "EXISTS")
            return [DatabaseDropped(self._next().text)]
        if self._peek().is_word("INDEX"):
            return self._index()
        if not self._skip("TABLE", "TABLES"):
            return []
        self._skip("IF", "EXISTS")
        return [Dropped(each) for each in self._names()]

    def _rename(self) -> list[Effect]:
        if not self._skip("TABLE", "TABLES"):
            return []
        self._skip("IF", "EXISTS")
        found: list[Effect] = []
        while self._peek() is not END:
            old = self._name()
            self._past("TO")  # before it stands WAIT n
            found.append(Renamed(old, self._name()))
            self._next()
        return found

    def _rebuilt(self) -> list[Effect]:
        self._skip("NO_WRITE_TO_BINLOG", "LOCAL")
        if not self._skip("TABLE", "TABLES"):
            return []
        return [Altered(each, "nothing") for each in self._names()]

    def _alter(self) -> list[Effect]:
        self._skip("ONLINE", "OFFLINE")
        removes_duplicates = self._skip("IGNORE")
        if not self._skip("TABLE"):
            return []
        self._skip("IF", "EXISTS")
        table = self._name()
        found: list[Effect] = []
        change: Literal["rows", "values", "nothing"] = "rows" if removes_duplicates else "nothing"
        dropped: list[str] = []
        added: list[str] = []
        while self._peek() is not END:
            start = self._at
            self._past_comma()
            specification = self._tokens[start : self._at]
            dropped += _Statement(specification, self._schema)._columns_dropped()
            added += _Statement(specification, self._schema)._columns_added()
            each = _Statement(specification, self._schema)._alteration()
            if isinstance(each, Name):
                found.append(Renamed(table, each))
            elif isinstance(each, Altered):
                found.append(each)
                change = "rows"
            elif each == "rows" or change == "nothing":
                change = each
        return [Altered(table, change, tuple(dropped), tuple(added)), *found]

    def _columns_dropped(self) -> list[str]:
        """By one specification of ALTER TABLE."""
        self._skip_waiting()
        if not self._skip("DROP"):
            return []
        is_column = self._skip("COLUMN")
        self._skip("IF", "EXISTS")
        return [self._next().text] if is_column or not self._peek().is_word(*NO_COLUMN) else []

    def _columns_added(self) -> list[str]:
        """By one specification of ALTER TABLE: ``ADD c …``, or ``ADD (c …, d …)``."""
        self._skip_waiting()
        if not self._skip("ADD"):
            return []
        is_column = self._skip("COLUMN")
        self._skip("IF", "NOT", "EXISTS")
        if self._peek() != Token("sign", "("):
            return [self._next().text] if is_column or not self._peek().is_word(*NO_COLUMN) else []
        self._next()
        found = []
        while self._peek() is not END:
            first = self._next()
            found += [] if first.is_word(*NO_COLUMN) else [first.text]
            self._past_comma()
        return found

    def _past_comma(self) -> None:
        depth = 0
        while self._peek() is not END:
            token = self._next()
            if token.kind == "sign":
                depth += (token.text == "(") - (token.text == ")")
                if token.text == "," and depth == 0:
                    return

    def _alteration(self) -> Name | Altered | Literal["rows", "values", "nothing"]:
        """One specification of ALTER TABLE: a new name, another table whose rows change too, or what changes."""
        self._skip_waiting()
        first, second = self._next(), self._peek()
        if first.is_word("RENAME"):
            if second.is_word("COLUMN", "INDEX", "KEY"):
                return "values" if second.is_word("COLUMN") else "nothing"
            self._skip("TO", "AS")
            if self._peek() == Token("sign", "="):
                self._next()
            return self._name()
        words = {each.text.upper() for each in self._tokens if each.kind == "word"}
        if first.is_word("EXCHANGE", "CONVERT") and not second.is_word("TO"):
            return self._other_table()
        if first.is_word("TRUNCATE", "DISCARD", "IMPORT") or (first.is_word("DROP") and second.is_word("PARTITION")):
            return "rows"
        if {"PRIMARY", "KEY"} <= words:
            return "rows"
        if first.is_word("MODIFY", "CHANGE", "CONVERT"):
            return "values"
        filled = words & {"DEFAULT", "NOT", "AS", "AUTO_INCREMENT", "SERIAL"}
        # Without explicit_defaults_for_timestamp, which is off before MariaDB 10.10, a TIMESTAMP has a default unsaid.
        if first.is_word("ADD") and (filled or ("TIMESTAMP" in words and "NULL" not in words)):
            return "nothing" if second.is_word("CONSTRAINT", "CHECK", "PARTITION", "PERIOD", "SYSTEM") else "values"
        return "nothing"

    def _skip_waiting(self) -> None:
        if self._peek().is_word("WAIT"):
            self._at += 2
        self._skip("NOWAIT")

    def _other_table(self) -> Altered:
        """EXCHANGE PARTITION p WITH TABLE t, CONVERT PARTITION p TO TABLE t, CONVERT TABLE t TO PARTITION p."""
        self._past("TABLE")
        return Altered(self._name(), "rows")
