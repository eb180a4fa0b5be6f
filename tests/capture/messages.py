"""The other direction of ``headrace.capture.postgres.pgoutput``: messages to the bytes that PostgreSQL would send."""

from __future__ import annotations

import struct
from typing import Any

from headrace.capture.envelope import UNCHANGED
from headrace.capture.postgres import pgoutput

SINCE = pgoutput.POSTGRES_EPOCH_US


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(values: list[Any]) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack(">I", len(value)) + value)
    return b"".join(parts)


def encode(message: pgoutput.Message, *, streaming: bool = False) -> bytes:
    xid = struct.pack(">I", message.xid) if streaming and hasattr(message, "xid") else b""
    return ENCODERS[type(message)](message, xid)


def begin(m: pgoutput.Begin, xid: bytes) -> bytes:
    return b"B" + struct.pack(">QqI", m.commit_lsn, m.commit_us - SINCE, m.xid)


def commit(m: pgoutput.Commit, xid: bytes) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, m.commit_lsn, m.end_lsn, m.commit_us - SINCE)


def origin(m: pgoutput.Origin, xid: bytes) -> bytes:
    return b"O" + struct.pack(">Q", m.commit_lsn) + text(m.name)


def relation(m: pgoutput.Relation, xid: bytes) -> bytes:
    schema = "" if m.schema == "pg_catalog" else m.schema
    head = b"R" + xid + struct.pack(">I", m.relation) + text(schema) + text(m.name) + m.identity.encode()
    columns = [
        struct.pack(">B", each.is_identity) + text(each.name) + struct.pack(">Ii", each.type_oid, each.type_modifier)
        for each in m.columns
    ]
    return head + struct.pack(">H", len(columns)) + b"".join(columns)


def type_name(m: pgoutput.TypeName, xid: bytes) -> bytes:
    schema = "" if m.schema == "pg_catalog" else m.schema
    return b"Y" + xid + struct.pack(">I", m.type_oid) + text(schema) + text(m.name)


def insert(m: pgoutput.Insert, xid: bytes) -> bytes:
    return b"I" + xid + struct.pack(">I", m.relation) + b"N" + row(m.new)


def update(m: pgoutput.Update, xid: bytes) -> bytes:
    old = b"" if m.old is None else (b"K" if m.old_is_key else b"O") + row(m.old)
    return b"U" + xid + struct.pack(">I", m.relation) + old + b"N" + row(m.new)


def delete(m: pgoutput.Delete, xid: bytes) -> bytes:
    return b"D" + xid + struct.pack(">I", m.relation) + (b"K" if m.old_is_key else b"O") + row(m.old)


def truncate(m: pgoutput.Truncate, xid: bytes) -> bytes:
    head = struct.pack(">IB", len(m.relations), m.cascade | m.restart_identity << 1)
    return b"T" + xid + head + struct.pack(f">{len(m.relations)}I", *m.relations)


def message(m: pgoutput.LogicalMessage, xid: bytes) -> bytes:
    head = struct.pack(">BQ", m.transactional, m.lsn) + text(m.prefix)
    return b"M" + xid + head + struct.pack(">I", len(m.content)) + m.content


def stream_start(m: pgoutput.StreamStart, xid: bytes) -> bytes:
    return b"S" + struct.pack(">IB", m.xid, m.is_first)


def stream_stop(m: pgoutput.StreamStop, xid: bytes) -> bytes:
    return b"E"


def stream_commit(m: pgoutput.StreamCommit, xid: bytes) -> bytes:
    return b"c" + struct.pack(">IBQQq", m.xid, 0, m.commit_lsn, m.end_lsn, m.commit_us - SINCE)


def stream_abort(m: pgoutput.StreamAbort, xid: bytes) -> bytes:
    return b"A" + struct.pack(">II", m.xid, m.subxid)


ENCODERS: dict[type, Any] = {
    pgoutput.Begin: begin,
    pgoutput.Commit: commit,
    pgoutput.Origin: origin,
    pgoutput.Relation: relation,
    pgoutput.TypeName: type_name,
    pgoutput.Insert: insert,
    pgoutput.Update: update,
    pgoutput.Delete: delete,
    pgoutput.Truncate: truncate,
    pgoutput.LogicalMessage: message,
    pgoutput.StreamStart: stream_start,
    pgoutput.StreamStop: stream_stop,
    pgoutput.StreamCommit: stream_commit,
    pgoutput.StreamAbort: stream_abort,
}
