"""The aborted transactions of one segment: ``<base offset>.txn``.

A row of 40-byte entries, big-endian, in the order of their markers::

    producer id int64 · first offset int64 · marker's offset int64 · last stable offset int64 · CRC-32C of those uint32
    · 0 uint32

An entry lives beside the segment that holds its abort marker. Most segments have no such file. Entries are written
when the marker is appended and flushed before the recovery point passes the marker.

Fewer entries than there were would show aborted records to readers of committed data. So the number of entries is kept
elsewhere too: in the index of a sealed segment, in the checkpoint for the segment of the recovery point. A file that
does not have as many valid entries is damaged, whatever it looks like. Everything in it can be derived from the log's
markers; ``producer_snapshots.derive_aborted`` does that.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Final

import google_crc32c

from headrace.log.disk import FileCache
from headrace.log.producers import AbortedTransaction

__all__ = ["AbortedDamaged", "AbortedIndex", "decode_entries"]

_FIELDS = struct.Struct(">qqqq")
_CHECK = struct.Struct(">II")
ENTRY_BYTES: Final = _FIELDS.size + _CHECK.size


class AbortedDamaged(Exception):
    """The file does not hold what it must. Never leaves the log: entries are derived again."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


def encode_entry(entry: AbortedTransaction) -> bytes:
    fields = _FIELDS.pack(entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
    return fields + _CHECK.pack(google_crc32c.value(fields), 0)


def decode_entries(path: str, data: bytes) -> list[AbortedTransaction]:
    """Every entry in these bytes. Raises AbortedDamaged."""
    found = []
    for position in range(0, len(data), ENTRY_BYTES):
        raw = data[position : position + ENTRY_BYTES]
        whole = len(raw) == ENTRY_BYTES
        if not whole or _CHECK.unpack_from(raw, _FIELDS.size)[0] != google_crc32c.value(raw[: _FIELDS.size]):
            raise AbortedDamaged(path, position, "the checksum of an aborted transaction is wrong")
        found.append(AbortedTransaction(*_FIELDS.unpack_from(raw)))
    return found


class AbortedIndex:
    """The entries of one segment; read when somebody asks, appended while the segment is active."""

    __slots__ = ("_cache", "_entries", "_file_bytes", "_written", "path")

    def __init__(self, cache: FileCache, path: str) -> None:
        self._cache = cache
        self.path = path
        self._entries: list[AbortedTransaction] | None = None
        self._written = 0
        self._file_bytes = 0
        """How long the file may be; more than ``_written`` entries when it holds something that is no longer true."""

    @property
    def is_loaded(self) -> bool:
        return self._entries is not None

    @property
    def entries(self) -> list[AbortedTransaction]:
        assert self._entries is not None, "aborted transactions are loaded before they are asked for"
        return self._entries

    def since(self, offset: int) -> Iterator[AbortedTransaction]:
        """The entries whose marker is at ``offset`` or after it; they stand in the order of their markers."""
        entries = self.entries
        return islice(entries, bisect_left(entries, offset, key=lambda each: each.last_offset), None)

    def begin(self) -> None:
        """The segment is new, and has none."""
        self._entries = []

    def load(self, count: int, *, first: int, end: int) -> list[AbortedTransaction]:
        """Read the file, which must hold exactly so many with markers from ``first`` to ``end``. Raises
        AbortedDamaged."""
        entries = decode_entries(self.path, self._read())
        if len(entries) != count:
            raise AbortedDamaged(self.path, len(entries) * ENTRY_BYTES, f"{len(entries)} entries where {count} were")
        if not all(first <= entry.last_offset < end for entry in entries):
            raise AbortedDamaged(self.path, 0, "the aborted transactions are those of another segment")
        self._entries = entries
        self._written = len(entries)
        self._file_bytes = len(entries) * ENTRY_BYTES
        return entries

    def load_below(self, offset: int, count: int) -> None:
        """Read the entries whose marker is below ``offset``, which must be exactly so many. What follows them was not
        durable; it is dropped, and overwritten by the next ``write``. Raises AbortedDamaged."""
        data = self._read()
        entries = decode_entries(self.path, data[: count * ENTRY_BYTES])
        if len(entries) != count or any(entry.last_offset >= offset for entry in entries):
            raise AbortedDamaged(self.path, len(entries) * ENTRY_BYTES, f"{len(entries)} entries where {count} were")
        self._entries = entries
        self._written = count
        self._file_bytes = len(data)

    def replace(self, entries: list[AbortedTransaction]) -> None:
        """These are the entries; ``write`` puts them in the place of whatever the file holds."""
        self._entries = entries
        self._written = 0
        self._file_bytes = len(self._read())

    def _read(self) -> bytes:
        try:
            file = self._cache.open(self.path)
        except FileNotFoundError:
            return b""
        return file.pread(file.size(), 0)

    def add(self, entry: AbortedTransaction) -> None:
        self.entries.append(entry)

    @property
    def on_disk(self) -> bool:
        """Whether there may be a file to read."""
        return self._entries is None or self._written > 0

    @property
    def unwritten(self) -> bool:
        """Whether the file differs from what memory holds."""
        if self._entries is None:
            return False
        return self._written < len(self._entries) or self._file_bytes > len(self._entries) * ENTRY_BYTES

    def write(self) -> None:
        """Bring the file up to date. Raises OSError; until it succeeds the recovery point must not pass these."""
        entries = self.entries
        file = self._cache.open(self.path, create=True)
        data = b"".join(encode_entry(entry) for entry in entries[self._written :])
        if data:
            file.write([data], self._written * ENTRY_BYTES)
        if self._file_bytes > len(entries) * ENTRY_BYTES:
            file.truncate(len(entries) * ENTRY_BYTES)
        self._written = len(entries)
        self._file_bytes = len(entries) * ENTRY_BYTES
