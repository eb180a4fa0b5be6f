"""Numbers of up to eight characters, as they stand in JSON, read eight bytes at a time.

Most numbers are that short: counters, prices, degrees. Their characters are one word, and arithmetic on words does for
all rows at once what a conversion does row after row. A decimal is its digits as an integer, divided by a power of ten.
Both are exact in a double, so the quotient is the nearest double, as any correct conversion gives it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["short_numbers"]

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

BYTES_MAX = 8


def _each(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * BYTES_MAX, "little"))


_MASK = np.array([(1 << 8 * size) - 1 for size in range(BYTES_MAX + 1)], np.uint64)
_ZEROS_BEFORE = np.array([int(_each(ord("0"))) >> 8 * size for size in range(BYTES_MAX + 1)], np.uint64)
_POWERS = 10.0 ** np.arange(BYTES_MAX + 1)
_ONE, _SEVEN, _EIGHT = (np.uint64(each) for each in (1, 7, 8))
_PAIRS, _FOURS = np.uint64(0x000000FF000000FF), np.uint64(16)


def short_numbers(texts: Words, sizes: Ints, kind: pa.DataType) -> pa.Array | None:
    """The numbers in the first bytes of words, as many as ``sizes`` says; None unless all are plain and short.

    Plain: digits, perhaps with a point between them, no sign, no zero in front of another digit.
    """
    if sizes.max() > BYTES_MAX or kind == pa.float32():
        return None
    if kind != pa.float64():
        found = _integers(texts, sizes)
        zero_first = (texts & np.uint64(0xFF) == ord("0")) & (sizes > 1)
        return None if found is None or zero_first.any() else pa.array(found).cast(kind)
    texts = texts & _MASK[sizes]
    points = _first_points(texts)
    before = (points >> _SEVEN) - _ONE  # the bytes in front of the point; all of them where there is none
    with_point = points != 0
    digits = sizes - with_point
    whole = np.minimum(np.bitwise_count(before).astype(np.int64) >> 3, digits)
    zero_first = (texts & np.uint64(0xFF) == ord("0")) & (whole > 1)
    if (whole < 1).any() or (with_point & (whole == digits)).any() or zero_first.any():
        return None
    found = _integers(np.bitwise_or(texts & before, texts >> _EIGHT & ~before), digits)
    return None if found is None else pa.array(found / _POWERS[digits - whole])


def _first_points(texts: Words) -> Words:
    """The highest bit of the first byte that is a point; zero where there is none."""
    others = texts ^ _each(ord("."))
    found = (others - _each(1)) & ~others & _each(0x80)
    return found & (~found + _ONE)


def _integers(texts: Words, sizes: Ints) -> Any:
    """The numbers that so many digits mean, whatever follows them; None when one of them is no digit.

    Neighbours are joined, three times.
    """
    shifts = ((BYTES_MAX - sizes) * 8).astype(np.uint64)
    filled = texts << shifts | _ZEROS_BEFORE[sizes]
    high = _each(0xF0)
    if ((filled & high | (filled + _each(6) & high) >> np.uint64(4)) != _each(0x33)).any():
        return None
    pairs = filled - _each(ord("0"))
    pairs = pairs * np.uint64(10) + (pairs >> _EIGHT)
    joined = (pairs & _PAIRS) * np.uint64(100 + (1_000_000 << 32))
    joined += (pairs >> _FOURS & _PAIRS) * np.uint64(1 + (10_000 << 32))
    return (joined >> np.uint64(32)).astype(np.int64)
