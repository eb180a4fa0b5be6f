"""Where records start: the one thing about a batch that is sequential, found for all of them at once where that works.

A record begins with its length, so it says where the next one begins, and only a walk is sure to find them. But a guess
can be checked. Nearly all records end with a zero byte, since they have no headers, and have another one after their
length, since nobody uses the attributes. So wherever two zero bytes lie one, two or three bytes apart, these bytes may
be the length of a record, which says where the next one would begin. Candidates to which no other one points are
dropped. What is left is the truth if each points exactly at the next, from the first byte to the last, and every
batch begins where it should: a walk would have gone the same way. If not, the walk is made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.record import RECORD_BYTES_MIN, CorruptRecords
from headrace.spark.source.pieces import words_of

__all__ = ["record_starts"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GUESS_BYTES_PER_RECORD_MAX = 600
"""A guess looks at every byte and a walk at every record: beyond this length the walk is shorter."""
CANDIDATES_PER_RECORD_MAX = 4
FILTER_ROUNDS_MAX = 3

_LENGTH_BYTES_MAX = 3
_LENGTH_MASK = np.array([(1 << 8 * size) - 1 for size in range(_LENGTH_BYTES_MAX + 1)], np.int64)
_LENGTH_MARKS = np.array([0, 0, 0x80, 0x8080], np.int64)

# A record's length is zig-zag encoded; what is added to the position is the length and the bytes it takes itself.
_STEP_ONE_BYTE = [(byte >> 1) + 1 if byte < 0x80 else ((byte & 0x7F) >> 1) + 2 for byte in range(256)]
_STEP_SECOND_BYTE = [byte << 6 for byte in range(0x80)] + [-1] * 0x80


def record_starts(data: bytes, bounds: Ints, counts: Ints, base_offsets: Ints) -> tuple[Ints, Ints]:
    """(where each record starts, where its fields begin after length and attributes).

    ``data`` holds the records of batches, batch i from ``bounds[i]`` to ``bounds[i + 1]``, and some zero bytes more.
    """
    raw = np.frombuffer(data, np.uint8)
    found = _guess(raw, bounds, counts)
    if found is not None:
        return found
    starts = _walk_all(data, bounds, counts, base_offsets)
    if (raw[starts] & 1).any():
        raise CorruptRecords("a record of negative length")
    return starts, _behind_varint(raw, starts) + 1


# ---- the guess -----------------------------------------------------------------------------------------------------


def _guess(raw: Bytes, bounds: Ints, counts: Ints) -> tuple[Ints, Ints] | None:
    total, end = int(counts.sum()), int(bounds[-1])
    if end > GUESS_BYTES_PER_RECORD_MAX * total:
        return None
    starts, ends, fields = _candidates(raw, end, CANDIDATES_PER_RECORD_MAX * total)
    for _ in range(FILTER_ROUNDS_MAX):
        if len(starts) <= total:
            break
        pointed_at = np.zeros(end + 1, np.bool_)
        pointed_at[0] = True
        pointed_at[ends] = True
        kept = np.flatnonzero(pointed_at[starts])
        starts, ends, fields = starts[kept], ends[kept], fields[kept]
    if not _is_chain(starts, ends, bounds, counts):
        return None
    return starts, fields


def _candidates(raw: Bytes, end: int, count_max: int) -> tuple[Ints, Ints, Ints]:
    """What may be records: where each starts, ends, and has its fields. None of them when there are too many."""
    zeros = np.flatnonzero(raw[:end] == 0)
    gaps = np.diff(zeros, prepend=-1)  # as if a record ended in front of the first one
    chosen = np.flatnonzero((gaps >= 2) & (gaps <= _LENGTH_BYTES_MAX + 1))
    if len(chosen) > count_max:
        chosen = chosen[:0]
    attributes, length_bytes = zeros[chosen], gaps[chosen] - 1
    sizes = _sizes(raw, attributes, length_bytes)
    ends = attributes + sizes
    fits = (sizes >= RECORD_BYTES_MIN - 1) & (ends <= end)
    if not fits.all():
        attributes, length_bytes, ends = attributes[fits], length_bytes[fits], ends[fits]
    return attributes - length_bytes, ends, attributes + 1


def _sizes(raw: Bytes, attributes: Ints, length_bytes: Ints) -> Ints:
    """The lengths that stand in front of these positions, in so many bytes; zero for what is no positive length.

    All bytes of a length but the last have their highest bit, and its first byte the lowest where it is negative.
    """
    words = words_of(raw)[np.maximum(attributes - _LENGTH_BYTES_MAX, 0)]
    for row in range(min(2, len(words))):  # in front of the first record there is nothing
        words[row] <<= 8 * max(0, _LENGTH_BYTES_MAX - int(attributes[row]))
    words = words >> 8 * (_LENGTH_BYTES_MAX - length_bytes) & _LENGTH_MASK[length_bytes]
    encoded = words & 0x7F | words >> 1 & 0x7F << 7 | words >> 2 & 0x7F << 14
    return np.where(words & 0x808081 == _LENGTH_MARKS[length_bytes], encoded >> 1, 0)


def _is_chain(starts: Ints, ends: Ints, bounds: Ints, counts: Ints) -> bool:
    if len(starts) != int(counts.sum()) or starts[0] != 0 or ends[-1] != bounds[-1]:
        return False
    if (starts[1:] != ends[:-1]).any():
        return False
    firsts = np.cumsum(counts)[:-1]
    return bool((starts[firsts] == bounds[1:-1]).all())


# ---- the walk ------------------------------------------------------------------------------------------------------


def _walk_all(data: bytes, bounds: Ints, counts: Ints, base_offsets: Ints) -> Ints:
    starts: list[int] = []
    edges = bounds.tolist()
    for index, count in enumerate(counts.tolist()):
        begin, end = edges[index], edges[index + 1]
        try:
            found = _walk(data, begin, count, starts)
        except IndexError:
            raise CorruptRecords(
                f"a record of the batch at offset {base_offsets[index]} ends after its batch"
            ) from None
        if found != end:
            raise CorruptRecords(
                f"the records of the batch at offset {base_offsets[index]} end at byte {found - begin} of {end - begin}"
            )
    return np.array(starts, np.int64)


def _walk(data: bytes, position: int, count: int, starts: list[int]) -> int:
    """Note where ``count`` records start; the one loop over records that there is, so it does as little as it can.

    A wrong length leads into the next batch or past all of them: the caller sees where the walk ended, or an
    IndexError.
    """
    append = starts.append
    step_one = _STEP_ONE_BYTE
    step_second = _STEP_SECOND_BYTE
    for _ in range(count):
        append(position)
        byte = data[position]
        if byte < 0x80:
            position += step_one[byte]
        else:
            second = data[position + 1]
            if second < 0x80:
                position += step_one[byte] + step_second[second]
            else:
                position += _long_step(data, position)
    return position


def _long_step(data: bytes, position: int) -> int:
    """The step over a record of 8 KiB and more, whose length takes three bytes or more."""
    result = shift = 0
    for index in range(5):
        byte = data[position + index]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) + index + 1
        shift += 7
    raise CorruptRecords(f"a record's length at byte {position} of the records is longer than 5 bytes")


def _behind_varint(raw: Bytes, position: Ints) -> Ints:
    """The positions after varints whose values are known already."""
    following = position + 1
    more = np.flatnonzero(raw[position] >= 0x80)
    while more.size:
        at = following[more]
        following[more] = at + 1
        more = more[raw[at] >= 0x80]
    return following
