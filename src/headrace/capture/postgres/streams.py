"""Large transactions that the server streams before they commit: kept until it is known what becomes of them.

Pieces of several transactions come interleaved. Each transaction's messages go, as they are, into a separate file
that stays in memory while it is small. *Stream commit* gives them back in order; *stream abort* forgets a transaction,
or that part of it which a savepoint took back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile

from headrace.capture.postgres import pgoutput

__all__ = ["StreamedTransactions"]

MEMORY_BYTES_MAX = 8 * 1024 * 1024
_ENTRY = struct.Struct(">QI")
_START, _STOP, _COMMIT, _ABORT = b"SEcA"


class _Kept:
    def __init__(self) -> None:
        self.file = SpooledTemporaryFile(MEMORY_BYTES_MAX)  # noqa: SIM115 closed by its owner
        self.aborted: set[int] = set()


class StreamedTransactions:
    """Sorts the pieces of streamed transactions; see the module."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._current: int | None = None
        self.ended: pgoutput.StreamCommit | None = None

    def take(self, data: bytes, lsn: int) -> bool:
        """True: the message is part of a streamed transaction. ``ended`` then says whether one has committed."""
        kind = data[0]
        if self._current is not None and kind != _STOP:
            kept = self._kept[self._current]
            kept.file.write(_ENTRY.pack(lsn, len(data)) + data)
            return True
        if kind not in (_START, _STOP, _COMMIT, _ABORT):
            return False
        message = pgoutput.decode(data)
        if isinstance(message, pgoutput.StreamStart):
            self._current = message.xid
            if message.xid not in self._kept:
                self._kept[message.xid] = _Kept()
        elif isinstance(message, pgoutput.StreamStop):
            self._current = None
        elif isinstance(message, pgoutput.StreamCommit):
            self.ended = message
        elif isinstance(message, pgoutput.StreamAbort):
            self._abort(message)
        return True

    def _abort(self, message: pgoutput.StreamAbort) -> None:
        kept = self._kept.get(message.xid)
        if kept is None:
            return
        if message.xid == message.subxid:
            kept.file.close()
            del self._kept[message.xid]
        else:
            kept.aborted.add(message.subxid)

    def take_ended(self) -> tuple[pgoutput.StreamCommit, Iterator[tuple[pgoutput.Message, int, int]]]:
        """The transaction that has committed, and its messages with their positions and sizes."""
        commit, self.ended = self.ended, None
        assert commit is not None, "asked when a stream commit has come"
        return commit, self._messages(commit.xid)

    def _messages(self, xid: int) -> Iterator[tuple[pgoutput.Message, int, int]]:
        kept = self._kept.pop(xid, None)
        if kept is None:
            return
        with kept.file as file:
            file.seek(0)
            while entry := file.read(_ENTRY.size):
                lsn, size = _ENTRY.unpack(entry)
                message = pgoutput.decode(file.read(size), streaming=True)
                # The server describes a table once per streamed transaction, even inside what is taken back later.
                described = isinstance(message, pgoutput.Relation | pgoutput.TypeName)
                if described or getattr(message, "xid", 0) not in kept.aborted:
                    yield message, lsn, size

    def close(self) -> None:
        for kept in self._kept.values():
            kept.file.close()
        self._kept.clear()
