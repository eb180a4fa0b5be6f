"""PostgreSQL's logical replication messages (plugin pgoutput, protocol versions 1 and 2): bytes to tuples.

Every message is one ``CopyData`` payload of the replication stream, already unwrapped: a kind byte, then fields, big
endian. A row is::

    columns  int16
    per column  'n' null | 'u' unchanged and too large to be sent again | 't' int32 length, text | 'b' …, binary

Version 2 streams a large transaction before it commits: between *stream start* and *stream stop* every message carries
the id of its (sub)transaction after its kind byte. The reader must keep them until *stream commit*, or forget them
with *stream abort*.

No I/O here, and every length is checked against the bytes that remain: the stream comes from outside.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 an exception by its usual form
from typing import NamedTuple, TypeAlias

from headrace.capture.envelope import UNCHANGED, Unchanged
from headrace.errors import HeadraceError

__all__ = [
    "UNCHANGED",
    "Begin",
    "Commit",
    "Delete",
    "Insert",
    "LogicalMessage",
    "MalformedReplication",
    "Message",
    "Origin",
    "Relation",
    "RelationColumn",
    "Row",
    "StreamAbort",
    "StreamCommit",
    "StreamStart",
    "StreamStop",
    "Truncate",
    "TypeName",
    "Update",
    "decode",
]


class MalformedReplication(HeadraceError):
    """The server sent what the protocol does not allow, or a version of it that we did not ask for."""


Value: TypeAlias = bytes | Unchanged | None
Row: TypeAlias = list[Value]


class Begin(NamedTuple):
    commit_lsn: int
    commit_us: int
    xid: int


class Commit(NamedTuple):
    commit_lsn: int
    end_lsn: int
    commit_us: int


class Origin(NamedTuple):
    commit_lsn: int
    name: str


class RelationColumn(NamedTuple):
    name: str
    type_oid: int
    type_modifier: int
    is_identity: bool


class Relation(NamedTuple):
    xid: int
    relation: int
    schema: str
    name: str
    identity: str
    """How old rows are identified: d(efault), n(othing), f(ull), i(ndex)."""
    columns: tuple[RelationColumn, ...]


class TypeName(NamedTuple):
    xid: int
    type_oid: int
    schema: str
    name: str


class Insert(NamedTuple):
    xid: int
    relation: int
    new: Row


class Update(NamedTuple):
    xid: int
    relation: int
    old_is_key: bool
    old: Row | None
    new: Row


class Delete(NamedTuple):
    xid: int
    relation: int
    old_is_key: bool
    old: Row


class Truncate(NamedTuple):
    xid: int
    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class LogicalMessage(NamedTuple):
    xid: int
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class StreamStart(NamedTuple):
    xid: int
    is_first: bool


class StreamStop(NamedTuple):
    pass


class StreamCommit(NamedTuple):
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_us: int


class StreamAbort(NamedTuple):
    xid: int
    subxid: int


Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | TypeName
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
)

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, from which the server counts, in µs since 1970."""

_U16 = Struct(">H")
_U32 = Struct(">I")
_XID_AND_RELATION = Struct(">II")
_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_COLUMN_TYPE = Struct(">Ii")
_MESSAGE = Struct(">BQ")
_TRUNCATE = Struct(">IB")

_NULL, _SAME, _TEXT, _BINARY = b"nutb"
_KEY, _OLD, _NEW = b"KON"
NOT_STREAMED = 0


def decode(data: bytes, *, streaming: bool = False) -> Message:
    """One message. ``streaming``: it came between stream start and stream stop, so it carries a transaction's id."""
    if not data:
        raise MalformedReplication("an empty replication message")
    reader = _READERS.get(data[0])
    if reader is None:
        raise MalformedReplication(f"a replication message of unknown kind {data[:1]!r}: protocol 1 and 2 are known")
    try:
        message, end = reader(data, 1, streaming)
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise MalformedReplication(f"a replication message of kind {data[:1]!r} cannot be read: {error}") from error
    if end != len(data):
        raise MalformedReplication(f"{len(data) - end} bytes follow a replication message of kind {data[:1]!r}")
    return message


def _row(data: bytes, at: int) -> tuple[Row, int]:
    """A row's values as they were sent; null is None."""
    (count,) = _U16.unpack_from(data, at)
    at += 2
    values: Row = []
    append = values.append
    length_at = _U32.unpack_from
    for _ in range(count):
        kind = data[at]
        if kind in (_TEXT, _BINARY):
            (size,) = length_at(data, at + 1)
            at += 5 + size
            value = data[at - size : at]
            if len(value) != size:
                raise MalformedReplication(f"a value of {size} bytes where {len(value)} remain")
            append(value)
        elif kind == _NULL:
            append(None)
            at += 1
        elif kind == _SAME:
            append(UNCHANGED)
            at += 1
        else:
            raise MalformedReplication(f"a value of unknown kind {bytes([kind])!r}")
    return values, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise MalformedReplication("a string without its end")
    try:
        return data[at:end].decode(), end + 1
    except UnicodeDecodeError as error:
        raise MalformedReplication(f"a name is not UTF-8: {data[at:end]!r}") from error


def _free_text(data: bytes, at: int) -> tuple[str, int]:
    """A text that an application chose and that names no table: what is not UTF-8 in it is escaped."""
    end = data.find(b"\0", at)
    if end < 0:
        raise MalformedReplication("a string without its end")
    return data[at:end].decode(errors="backslashreplace"), end + 1


def _xid(data: bytes, at: int, streaming: bool) -> tuple[int, int]:
    return (_U32.unpack_from(data, at)[0], at + 4) if streaming else (NOT_STREAMED, at)


def _xid_and_relation(data: bytes, at: int, streaming: bool) -> tuple[int, int, int]:
    if streaming:
        return *_XID_AND_RELATION.unpack_from(data, at), at + 8
    return NOT_STREAMED, _U32.unpack_from(data, at)[0], at + 4


def _insert(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, relation, at = _xid_and_relation(data, at, streaming)
    _expect_new(data, at)
    new, at = _row(data, at + 1)
    return Insert(xid, relation, new), at


def _update(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, relation, at = _xid_and_relation(data, at, streaming)
    old, old_is_key = None, False
    if data[at] in (_KEY, _OLD):
        old_is_key = data[at] == _KEY
        old, at = _row(data, at + 1)
    _expect_new(data, at)
    new, at = _row(data, at + 1)
    return Update(xid, relation, old_is_key, old, new), at


def _delete(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, relation, at = _xid_and_relation(data, at, streaming)
    if data[at] not in (_KEY, _OLD):
        raise MalformedReplication(f"a deleted row begins with {data[at : at + 1]!r}, not K or O")
    old_is_key = data[at] == _KEY
    old, at = _row(data, at + 1)
    return Delete(xid, relation, old_is_key, old), at


def _expect_new(data: bytes, at: int) -> None:
    if data[at] != _NEW:
        raise MalformedReplication(f"a new row begins with {data[at : at + 1]!r}, not N")


def _begin(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    commit_lsn, commit_us, xid = _BEGIN.unpack_from(data, at)
    return Begin(commit_lsn, commit_us + POSTGRES_EPOCH_US, xid), at + _BEGIN.size


def _commit(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    _, commit_lsn, end_lsn, commit_us = _COMMIT.unpack_from(data, at)
    return Commit(commit_lsn, end_lsn, commit_us + POSTGRES_EPOCH_US), at + _COMMIT.size


def _origin(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    high, low = _XID_AND_RELATION.unpack_from(data, at)
    name, at = _free_text(data, at + 8)
    return Origin(high << 32 | low, name), at


def _relation(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, relation, at = _xid_and_relation(data, at, streaming)
    schema, at = _text(data, at)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        oid, modifier = _COLUMN_TYPE.unpack_from(data, at)
        columns.append(RelationColumn(column, oid, modifier, bool(flags & 1)))
        at += _COLUMN_TYPE.size
    # The system catalogue's schema is sent as an empty name.
    return Relation(xid, relation, schema or "pg_catalog", name, identity, tuple(columns)), at


def _type(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, oid, at = _xid_and_relation(data, at, streaming)
    schema, at = _text(data, at)
    name, at = _text(data, at)
    return TypeName(xid, oid, schema or "pg_catalog", name), at


def _truncate(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, at = _xid(data, at, streaming)
    count, options = _TRUNCATE.unpack_from(data, at)
    at += _TRUNCATE.size
    if count * 4 > len(data) - at:
        raise MalformedReplication(f"{count} truncated tables where {len(data) - at} bytes remain")
    relations = tuple(_U32.unpack_from(data, at + 4 * index)[0] for index in range(count))
    return Truncate(xid, relations, bool(options & 1), bool(options & 2)), at + 4 * count


def _message(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, at = _xid(data, at, streaming)
    flags, lsn = _MESSAGE.unpack_from(data, at)
    prefix, at = _free_text(data, at + _MESSAGE.size)
    (size,) = _U32.unpack_from(data, at)
    content = data[at + 4 : at + 4 + size]
    return LogicalMessage(xid, bool(flags & 1), lsn, prefix, content), at + 4 + size


def _stream_start(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    (xid,) = _U32.unpack_from(data, at)
    return StreamStart(xid, bool(data[at + 4])), at + 5


def _stream_stop(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    return StreamStop(), at


def _stream_commit(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    (xid,) = _U32.unpack_from(data, at)
    _, commit_lsn, end_lsn, commit_us = _COMMIT.unpack_from(data, at + 4)
    return StreamCommit(xid, commit_lsn, end_lsn, commit_us + POSTGRES_EPOCH_US), at + 4 + _COMMIT.size


def _stream_abort(data: bytes, at: int, streaming: bool) -> tuple[Message, int]:
    xid, subxid = _XID_AND_RELATION.unpack_from(data, at)
    return StreamAbort(xid, subxid), at + 8


_READERS = {
    ord(kind): reader
    for kind, reader in {
        "B": _begin,
        "C": _commit,
        "O": _origin,
        "R": _relation,
        "Y": _type,
        "I": _insert,
        "U": _update,
        "D": _delete,
        "T": _truncate,
        "M": _message,
        "S": _stream_start,
        "E": _stream_stop,
        "c": _stream_commit,
        "A": _stream_abort,
    }.items()
}
