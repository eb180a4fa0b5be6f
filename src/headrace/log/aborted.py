"""The aborted transactions of one segment: ``<base offset>.txn``.

A row of 40-byte entries, big-endian, in the order of their markers::

    producer id int64 · first offset int64 · marker's offset int64 · last stable offset int64 · CRC-32C of those uint32
    · 0 uint32

An entry lives beside the segment that holds its abort marker. Most segments have no such file. Entries are written
when the marker is appended and flushed before the recovery point passes the marker; those behind the recovery point are
derived again from the log.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Final

import google_crc32c

from headrace.log.disk import FileCache
from headrace.log.errors import CorruptLog
from headrace.log.producers import AbortedTransaction

__all__ = ["AbortedIndex"]

_FIELDS = struct.Struct(">qqqq")
_CHECK = struct.Struct(">II")
ENTRY_BYTES: Final = _FIELDS.size + _CHECK.size


def encode_entry(entry: AbortedTransaction) -> bytes:
    fields = _FIELDS.pack(entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
    return fields + _CHECK.pack(google_crc32c.value(fields), 0)


class AbortedIndex:
    """The entries of one segment; read when somebody asks, appended while the segment is active."""

    __slots__ = ("_cache", "_entries", "_written", "path")

    def __init__(self, cache: FileCache, path: str, *, exists: bool) -> None:
        self._cache = cache
        self.path = path
        self._entries: list[AbortedTransaction] | None = None if exists else []
        self._written = 0

    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = self._read()
            self._written = len(self._entries)
        return self._entries

    def since(self, offset: int) -> Iterator[AbortedTransaction]:
        """The entries whose marker is at ``offset`` or after it; they stand in the order of their markers."""
        entries = self.entries()
        return islice(entries, bisect_left(entries, offset, key=lambda each: each.last_offset), None)

    def _read(self) -> list[AbortedTransaction]:
        file = self._cache.open(self.path)
        data = file.pread(file.size(), 0)
        return self._decode(data, strict=True)

    def _decode(self, data: bytes, *, strict: bool) -> list[AbortedTransaction]:
        found = []
        for position in range(0, len(data), ENTRY_BYTES):
            raw = data[position : position + ENTRY_BYTES]
            whole = len(raw) == ENTRY_BYTES
            if not whole or _CHECK.unpack_from(raw, _FIELDS.size)[0] != google_crc32c.value(raw[: _FIELDS.size]):
                if strict:
                    raise CorruptLog(self.path, position, "the checksum of an aborted transaction is wrong")
                break
            found.append(AbortedTransaction(*_FIELDS.unpack_from(raw)))
        return found

    def keep_below(self, offset: int) -> bool:
        """Drop entries whose marker is not below ``offset``: recovery derives them again. True if the file shrank."""
        if self._entries is not None:
            return False
        file = self._cache.open(self.path)
        size = file.size()
        found = self._decode(file.pread(size, 0), strict=False)
        self._entries = [entry for entry in found if entry.last_offset < offset]
        self._written = len(self._entries)
        file.truncate(self._written * ENTRY_BYTES)
        return size != self._written * ENTRY_BYTES

    def add(self, entry: AbortedTransaction) -> None:
        self.entries().append(entry)

    @property
    def on_disk(self) -> bool:
        """Whether there is a file to read."""
        return self._entries is None or self._written > 0

    @property
    def unwritten(self) -> bool:
        return self._entries is not None and self._written < len(self._entries)

    def write(self) -> None:
        """Bring the file up to date. Raises OSError; until it succeeds the recovery point must not pass these."""
        entries = self.entries()
        data = b"".join(encode_entry(entry) for entry in entries[self._written :])
        self._cache.open(self.path, create=True).write([data], self._written * ENTRY_BYTES)
        self._written = len(entries)
