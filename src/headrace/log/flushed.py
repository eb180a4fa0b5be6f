"""How far each log was flushed, known apart from the logs themselves: ``<data>/flushed``.

A log that ends too early looks like a log whose last write was torn: after a crash, both are cut at the last whole
batch. This file tells them apart. It says up to which offset a log was flushed, and so acknowledged; a log that ends
before that has lost something, and is refused instead of cut.

The file is a table of 32-byte slots, little-endian, one per log, in no order::

    byte  field
       0  checksum     uint32    CRC-32C of bytes 8 to 31
       4  (zero)       uint32
       8  log          16 bytes  BLAKE2b of the log's name, such as ``topics/orders~6f1c…/0``
      24  end offset   int64     everything below was flushed

A slot of zeros is free. A slot whose checksum is wrong says nothing.

The rule that makes it safe: *an entry is written after the sync that it speaks of has returned*. So it never claims
more than was flushed, whatever happens. It is written before what the sync covers is acknowledged, and is not synced
itself. A killed process leaves it in the page cache, up to date for all that was acknowledged. After a power loss it
claims less: it is as old as the last checkpoint or the last ``syncfs`` of the flusher. A log that lost what was
acknowledged later than that is cut as before. See docs/adr/0011.

The flusher's thread and a checkpoint's thread write here, and the owner's thread when it opens logs. A lock keeps them
apart.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import google_crc32c

from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = ["SLOT_BYTES", "FlushedEnd", "FlushedEnds", "decode_slots", "encode_slots", "name_digest"]

LOG = logging.getLogger("headrace.recovery")

_SLOT = struct.Struct("<II16sq")
_CHECKSUM = struct.Struct("<II")
_END = struct.Struct("<q")
_CHECKED_FROM: Final = 8
SLOT_BYTES: Final = _SLOT.size
assert SLOT_BYTES == 32


def name_digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


def decode_slots(data: bytes) -> tuple[dict[int, tuple[bytes, Offset]], int]:
    """({slot: (digest, end offset)}, number of slots that are neither free nor valid)."""
    found: dict[int, tuple[bytes, Offset]] = {}
    damaged = 0
    for number in range(-(-len(data) // SLOT_BYTES)):
        raw = data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]
        if not any(raw):
            continue
        if len(raw) == SLOT_BYTES:
            checksum, _, digest, end_offset = _SLOT.unpack(raw)
            if checksum == google_crc32c.value(raw[_CHECKED_FROM:]):
                found[number] = (digest, Offset(end_offset))
                continue
        damaged += 1
    return found, damaged


def encode_slots(ends: Mapping[str, Offset]) -> bytes:
    """A table that says of these logs, by name, how far they were flushed."""
    slots = []
    for name, end_offset in ends.items():
        checked = name_digest(name) + _END.pack(end_offset)
        slots.append(_CHECKSUM.pack(google_crc32c.value(checked), 0) + checked)
    return b"".join(slots)


@dataclass(slots=True, eq=False)
class FlushedEnd:
    """What the table says of one log that is in use."""

    number: int
    digest: bytes
    end_offset: Offset
    in_use: bool = True
    checksum: int = 0
    """Of the digest; that of the slot goes on from here."""

    def __post_init__(self) -> None:
        self.checksum = google_crc32c.value(self.digest)


class FlushedEnds:
    """The table of one data directory."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.is_new = not disk.exists(path)
        self._file = disk.open(path, create=True)
        data = self._file.pread(self._file.size(), 0)
        found, self.damaged = decode_slots(data)
        """``damaged`` slots could not be read; each may be of any log."""
        self._table = bytearray(data[: len(data) // SLOT_BYTES * SLOT_BYTES])
        self._found = {digest: FlushedEnd(number, digest, end) for number, (digest, end) in found.items()}
        """What the file said and no log has claimed."""
        self._claimed: dict[str, FlushedEnd] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()
        self._failed = False

    @property
    def is_lost(self) -> bool:
        """Whether something is known to be missing in it."""
        return self.is_new or self.damaged > 0

    def claim(self, name: str) -> FlushedEnd:
        """The entry of a log that is being opened; its end offset is 0 when nothing is known."""
        end = self._claimed.get(name)
        if end is None:
            digest = name_digest(name)
            end = self._found.pop(digest, None) or FlushedEnd(self._unused_number(), digest, Offset(0))
            self._claimed[name] = end
        return end

    def has_claimed(self, name: str) -> bool:
        return name in self._claimed

    def _unused_number(self) -> int:
        if not self._free:
            self._free.append(len(self._table) // SLOT_BYTES)
            self._table += bytes(SLOT_BYTES)
        return self._free.pop()

    def settle(self) -> None:
        """Every log there is has been opened: slots that none has claimed may be used again. Damaged ones are freed in
        the file, so that they are reported once."""
        self._found.clear()
        used = {end.number for end in self._claimed.values()}
        self._free = [number for number in range(len(self._table) // SLOT_BYTES) if number not in used]
        if self.damaged:
            with self._lock:
                for number in self._free:
                    self._table[number * SLOT_BYTES : (number + 1) * SLOT_BYTES] = bytes(SLOT_BYTES)
                with suppress(OSError):  # then the next start reports it once more
                    self._file.truncate(len(self._table))
                    self._file.write([bytes(self._table)], 0)

    def forget(self, name: str) -> None:
        """The log was deleted."""
        end = self._claimed.pop(name, None)
        if end is not None:
            end.in_use = False
            self._free.append(end.number)

    def note(self, ends: Iterable[tuple[FlushedEnd, Offset]]) -> None:
        """A sync has returned: these logs are flushed so far. One write, whatever their number.

        A failure here costs knowledge, not data, so it is reported once and fails nothing.
        """
        with self._lock:
            first, last = len(self._table), -1
            for end, end_offset in ends:
                if end_offset > end.end_offset and end.in_use:
                    number = end.number
                    end.end_offset = end_offset
                    checksum = google_crc32c.extend(end.checksum, _END.pack(end_offset))
                    _SLOT.pack_into(self._table, number * SLOT_BYTES, checksum, 0, end.digest, end_offset)
                    first, last = min(first, number), max(last, number)
            if last < 0:
                return
            start, stop = first * SLOT_BYTES, (last + 1) * SLOT_BYTES
            try:
                self._file.write([bytes(self._table[start:stop])], start)
            except OSError as error:
                if not self._failed:
                    LOG.warning("%s: not written: %s; damage at the end of a log may go unnoticed", self.path, error)
                self._failed = True

    def sync(self) -> None:
        """Make what was noted durable."""
        self._file.datasync()
