"""Values as they lie in a buffer, and the ways to read many of them at once.

Records come in one buffer, with their keys and values among other bytes. ``Pieces`` says where each value is; the
column is made when it is asked for. What needs no column, such as ``json_uniform``, copies only what it gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["EMPTY", "PADDING", "Pieces", "binary_column", "windows", "words_of"]

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

EMPTY = pa.nulls(0, pa.binary())  # pa.array would import pandas, two seconds in every process that Spark starts
PADDING = bytes(64)
"""What stands after the last value: values are read in words, which may reach past their end."""
WORD_BYTES = 8
_VIEW_INLINE_BYTES = 12


@dataclass(slots=True)
class Pieces:
    """Where values lie in ``data``, which ends with ``PADDING``. A size of -1 is a null."""

    data: bytes
    starts: Ints
    sizes: Ints
    _column: pa.BinaryArray | None = field(default=None, repr=False)

    @classmethod
    def of(cls, column: pa.BinaryArray) -> Pieces:
        """The values of a column, in a copy of its bytes."""
        offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
        held = memoryview(column.buffers()[2] or b"")[offsets[0] : offsets[-1]]
        sizes = np.diff(offsets)
        if column.null_count:
            sizes[np.asarray(column.is_null())] = -1
        return cls(b"".join([held, PADDING]), offsets[:-1] - offsets[0], sizes, column)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> Pieces:
        return Pieces(self.data, self.starts[rows], self.sizes[rows])

    def is_null(self) -> npt.NDArray[np.bool_]:
        return self.sizes < 0

    def column(self) -> pa.BinaryArray:
        if self._column is None:
            self._column = binary_column(self.data, self.starts, self.sizes)
        return self._column

    def halves(self) -> Iterator[Pieces]:
        middle = len(self) // 2
        yield self[:middle]
        yield self[middle:]


def binary_column(data: bytes, starts: Ints, sizes: Ints) -> pa.BinaryArray:
    """Pieces of ``data`` as a separate Arrow column; a size of -1 is a null.

    Arrow's view of a value is 16 bytes: its length, and then either the value itself (up to 12 bytes) or its first four
    bytes, the number of a buffer and the position there. The cast, which is all that these views are for, looks at the
    first bytes of short values only and at nothing after them, so the others have none and after short values stands
    whatever followed in the buffer.
    """
    count = len(starts)
    if count == 0:
        return EMPTY
    null = sizes < 0
    nulls = int(np.count_nonzero(null))
    lengths = np.maximum(sizes, 0) if nulls else sizes
    views = np.empty((count, 2), np.int64)
    long = lengths > _VIEW_INLINE_BYTES
    if long.all():
        views[:, 0] = lengths
        np.left_shift(starts, 32, out=views[:, 1])
    else:
        words = windows(data, starts, 1 if lengths.max() <= WORD_BYTES else 2).view(np.int64)
        np.bitwise_or(words[:, 0] << 32, lengths, out=views[:, 0])
        np.bitwise_and(words[:, 0] >> 32, 0xFFFFFFFF, out=views[:, 1])
        if words.shape[1] == 2:
            views[:, 1] |= words[:, 1] << 32
        np.copyto(views[:, 1], starts << 32, where=long)
    validity = pa.array(~null).buffers()[1] if nulls else None
    viewed = pa.Array.from_buffers(pa.binary_view(), count, [validity, pa.py_buffer(views), pa.py_buffer(data)], nulls)
    return viewed.cast(pa.binary())


def words_of(data: bytes | npt.NDArray[np.uint8]) -> Ints:
    """Element i is the eight bytes that begin at position i, without a copy."""
    return np.ndarray((len(data) - WORD_BYTES + 1,), np.int64, data, 0, (1,))


def windows(data: bytes, starts: Ints, words: int) -> npt.NDArray[np.uint64]:
    """A row per position: that many words, from there on. As many as eight take little longer to fetch than one."""
    size = words * WORD_BYTES
    found = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))[starts]
    return found.view(np.uint64).reshape(len(starts), words)
