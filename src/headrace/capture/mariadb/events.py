"""Events of MariaDB's binlog, from their bytes; no I/O.

    header      timestamp u32, type u8, server id u32, size u32, end position u32, flags u16   (19 bytes, little-endian)
    body        by type
    checksum    CRC-32 of everything before it, when the file's format description says so

``BinlogParser`` turns each packet into one event and verifies its checksum. The rows of a table are not read here: a
``Rows`` event carries their bytes, which only mean something together with the ``TableMap`` before it (``rows`` reads
them, for tables that are captured; the rows of other tables are never looked at).

An event whose type is not known may hold changes, so it is an error, unless its flags say that it may be skipped.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from headrace.errors import HeadraceError

__all__ = [
    "BinlogParser",
    "Event",
    "FormatDescription",
    "Gtid",
    "Header",
    "Heartbeat",
    "IgnoredEvent",
    "MalformedBinlog",
    "Query",
    "Rotate",
    "Rows",
    "TableMap",
    "XaPrepare",
    "Xid",
    "length_coded",
]

HEADER = Struct("<IBIIIH")
CHECKSUM_BYTES = 4

QUERY, ROTATE, FORMAT_DESCRIPTION, XID, EXECUTE_LOAD_QUERY, TABLE_MAP, HEARTBEAT, XA_PREPARE = (
    2,
    4,
    15,
    16,
    18,
    19,
    27,
    38,
)
GTID, QUERY_COMPRESSED = 162, 165
OPERATIONS = {
    **dict.fromkeys((23, 30, 166, 169), "insert"),
    **dict.fromkeys((24, 31, 167, 170), "update"),
    **dict.fromkeys((25, 32, 168, 171), "delete"),
}
ROWS_V2 = (30, 31, 32, 169, 170, 171)
ROWS_COMPRESSED = range(166, 172)
WITHOUT_CHANGES = frozenset((3, 5, 9, 11, 13, 14, 17, 29, 160, 161, 163, 164))
"""Stop, variables of statements, pieces of files that statements load, annotations, checkpoints, lists of GTIDs,
encryption: what they announce comes in an event of another type."""
IGNORABLE = 0x80
"""A flag of any event: a reader that does not know its type may skip it."""
STANDALONE = 1
"""A flag of a GTID: the transaction is one statement and has no separate end."""
PREPARED_XA = 64
"""A flag of a GTID: the transaction ends with XA PREPARE, and a later one decides it."""
TEMPORARY_TABLE = 0x04
"""A flag of a statement: it uses a temporary table."""
CRC32 = 1


class MalformedBinlog(HeadraceError):
    """The binlog is damaged, or holds what is not known here."""


@dataclass(frozen=True, slots=True)
class Header:
    timestamp: int
    kind: int
    server_id: int
    size: int
    end: int
    flags: int

    @property
    def is_artificial(self) -> bool:
        """Made for this connection; it is not in the file."""
        return self.end == 0


@dataclass(frozen=True, slots=True)
class Event:
    header: Header
    fingerprint: int
    """Of the event's content: another event has another one."""


@dataclass(frozen=True, slots=True)
class FormatDescription(Event):
    """Begins every file."""


@dataclass(frozen=True, slots=True)
class Rotate(Event):
    file: str


@dataclass(frozen=True, slots=True)
class Gtid(Event):
    domain: int
    number: int
    flags: int

    @property
    def text(self) -> str:
        return f"{self.domain}-{self.header.server_id}-{self.number}"


@dataclass(frozen=True, slots=True)
class Query(Event):
    """A statement. ``charset`` is the collation in which its client wrote it, 0 when that is not recorded."""

    schema: str
    text: bytes
    sql_mode: int
    charset: int

    @property
    def uses_temporary_table(self) -> bool:
        return bool(self.header.flags & TEMPORARY_TABLE)


@dataclass(frozen=True, slots=True)
class TableMap(Event):
    """Describes a table before its rows; ``details`` is read by ``rows.columns_of``."""

    table_id: int
    schema: str
    name: str
    details: bytes


@dataclass(frozen=True, slots=True)
class Rows(Event):
    """``present``: the bitmaps of the columns that the rows have, one, or two for an update."""

    operation: str
    table_id: int
    column_count: int
    present: tuple[bytes, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Xid(Event):
    """A transaction is committed."""


@dataclass(frozen=True, slots=True)
class XaPrepare(Event):
    """A transaction of two phases is prepared, or committed in one phase."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Event):
    """Nothing new for a while."""


@dataclass(frozen=True, slots=True)
class IgnoredEvent(Event):
    """Known, and without changes of rows."""


class BinlogParser:
    """Reads packets in order: the format description of a file says how the events after it end."""

    def __init__(self, *, has_checksums: bool) -> None:
        self._has_checksums = has_checksums

    def parse(self, packet: bytes) -> Event:
        """One packet of a binlog dump, without the OK byte."""
        try:
            return self._parse(packet)
        except (IndexError, ValueError, UnicodeDecodeError, zlib.error) as error:
            raise MalformedBinlog(f"an event of the binlog cannot be read: {error}") from error

    def _parse(self, packet: bytes) -> Event:
        if len(packet) < HEADER.size:
            raise MalformedBinlog(f"an event of the binlog has {len(packet)} bytes")
        header = Header(*HEADER.unpack_from(packet))
        if header.kind == FORMAT_DESCRIPTION:
            self._has_checksums = packet[-CHECKSUM_BYTES - 1] == CRC32
            body = packet[HEADER.size : -CHECKSUM_BYTES]
        else:
            body = packet[HEADER.size : -CHECKSUM_BYTES] if self._has_checksums else packet[HEADER.size :]
        if self._has_checksums and not header.is_artificial:
            self._verify(packet, header)
        common = header, _fingerprint(header, packet, body)
        if header.kind in OPERATIONS:
            return _rows(common, body)
        read = _READERS.get(header.kind)
        if read is not None:
            return read(common, body)
        if header.kind in WITHOUT_CHANGES or header.flags & IGNORABLE:
            return IgnoredEvent(*common)
        raise MalformedBinlog(f"the binlog holds an event of type {header.kind}, which capture does not know")

    def _verify(self, packet: bytes, header: Header) -> None:
        stored = int.from_bytes(packet[-CHECKSUM_BYTES:], "little")
        content = packet[:-CHECKSUM_BYTES]
        if header.kind == FORMAT_DESCRIPTION:  # its checksum is made before the flag that says that the file is open
            content = content[:17] + bytes((content[17] & 0xFE, content[18])) + content[19:]
        if zlib.crc32(content) != stored:
            raise MalformedBinlog(f"the event that ends at {header.end} of the binlog has a wrong checksum")


_Common = tuple[Header, int]


def _fingerprint(header: Header, packet: bytes, body: bytes) -> int:
    """Without what a server changes as it sends: flags, end position, and a file's time of creation, which is the
    timestamp of its header too."""
    if header.kind == FORMAT_DESCRIPTION:
        body = body[:52] + body[56:]
    return zlib.crc32(body, zlib.crc32(packet[:9]))


def length_coded(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    if at + 1 + size > len(data):
        raise IndexError("it ends inside a number")
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _cut(data: bytes, at: int, size: int) -> bytes:
    piece = data[at : at + size]
    if len(piece) != size:
        raise IndexError(f"{size} bytes are announced where {len(piece)} remain")
    return piece


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_cut(data, at, size), "little")


def _gtid(common: _Common, body: bytes) -> Gtid:
    return Gtid(*common, domain=_number(body, 8, 4), number=_number(body, 0, 8), flags=body[12])


def _rotate(common: _Common, body: bytes) -> Rotate:
    return Rotate(*common, file=body[8:].decode())


def _query(common: _Common, body: bytes, more: int = 0) -> Query:
    """``more``: bytes that an EXECUTE_LOAD_QUERY has besides."""
    schema_size, variables_size = body[8], _number(body, 11, 2)
    at = 13 + more
    sql_mode, charset = _variables(_cut(body, at, variables_size))
    at += variables_size
    schema = _cut(body, at, schema_size).decode()
    text = body[at + schema_size + 1 :]
    if common[0].kind == QUERY_COMPRESSED:
        text = _uncompressed(text)
    return Query(*common, schema=schema, text=text, sql_mode=sql_mode, charset=charset)


def _variables(data: bytes) -> tuple[int, int]:
    """The SQL mode and the client's character set, which stand before anything whose length is not known here."""
    at, sql_mode, charset = 0, 0, 0
    while at < len(data):
        code = data[at]
        at += 1
        if code == 0:
            at += 4
        elif code == 1:
            sql_mode = _number(data, at, 8)
            at += 8
        elif code == 6:
            at += 1 + data[at]
        elif code == 3:
            at += 4
        elif code == 4:
            charset = _number(data, at, 2)
            break
        else:
            break
    return sql_mode, charset


def _load_query(common: _Common, body: bytes) -> Query:
    return _query(common, body, more=13)


def _table_map(common: _Common, body: bytes) -> TableMap:
    schema_size = body[8]
    schema = _cut(body, 9, schema_size).decode()
    at = 9 + schema_size + 1
    name = _cut(body, at + 1, body[at]).decode()
    details = body[at + 1 + body[at] + 1 :]
    return TableMap(*common, table_id=_number(body, 0, 6), schema=schema, name=name, details=details)


def _rows(common: _Common, body: bytes) -> Rows:
    kind = common[0].kind
    at = 8 + (_number(body, 8, 2) if kind in ROWS_V2 else 0)
    column_count, at = length_coded(body, at)
    size = (column_count + 7) // 8
    operation = OPERATIONS[kind]
    present = []
    for _ in range(2 if operation == "update" else 1):
        present.append(_cut(body, at, size))
        at += size
    data = body[at:]
    if kind in ROWS_COMPRESSED:
        data = _uncompressed(data)
    table_id = _number(body, 0, 6)
    return Rows(
        *common, operation=operation, table_id=table_id, column_count=column_count, present=tuple(present), data=data
    )


def _uncompressed(data: bytes) -> bytes:
    """One byte with the method and how many bytes the length has, the length, then zlib's."""
    if data[0] & 0x70:
        raise MalformedBinlog(f"the binlog is compressed by method {data[0] >> 4 & 7}, which capture does not know")
    width = data[0] & 7
    plain = zlib.decompress(data[1 + width :])
    if len(plain) != int.from_bytes(_cut(data, 1, width), "big"):
        raise MalformedBinlog("a compressed event of the binlog does not have its announced length")
    return plain


def _format_description(common: _Common, body: bytes) -> FormatDescription:
    return FormatDescription(*common)


def _xid(common: _Common, body: bytes) -> Xid:
    return Xid(*common)


def _xa_prepare(common: _Common, body: bytes) -> XaPrepare:
    return XaPrepare(*common)


def _heartbeat(common: _Common, body: bytes) -> Heartbeat:
    return Heartbeat(*common)


_READERS: dict[int, Callable[[_Common, bytes], Event]] = {
    GTID: _gtid,
    QUERY: _query,
    QUERY_COMPRESSED: _query,
    EXECUTE_LOAD_QUERY: _load_query,
    TABLE_MAP: _table_map,
    ROTATE: _rotate,
    FORMAT_DESCRIPTION: _format_description,
    XID: _xid,
    XA_PREPARE: _xa_prepare,
    HEARTBEAT: _heartbeat,
}
