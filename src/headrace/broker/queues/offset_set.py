"""A set of offsets in little memory: what is acknowledged out of order, and what has come back.

Offsets are bits of integers, ``CHUNK`` to an integer. So a queue of ten million messages of which every second is
acknowledged takes two megabytes, and finding the next offset that is in the set, or not in it, is one operation on an
integer for thousands of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["CHUNK", "OffsetSet"]

CHUNK = 4096
_FULL = (1 << CHUNK) - 1


class OffsetSet:
    """Offsets at or above zero."""

    __slots__ = ("_chunks", "_count", "_lowest")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._chunks: dict[int, int] = {}
        self._count = 0
        self._lowest = 0
        """No chunk has a lower number: finding the first must not look at all of them every time."""
        for offset in offsets:
            self.add(offset)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return bool(self._chunks.get(offset // CHUNK, 0) >> offset % CHUNK & 1)

    def __iter__(self) -> Iterator[int]:
        """In ascending order."""
        for number in sorted(self._chunks):
            bits = self._chunks[number]
            while bits:
                lowest = bits & -bits
                yield number * CHUNK + lowest.bit_length() - 1
                bits ^= lowest

    def add(self, offset: int) -> bool:
        """False if it was there already."""
        number, bit = divmod(offset, CHUNK)
        before = self._chunks.get(number, 0)
        after = before | 1 << bit
        if after == before:
            return False
        self._chunks[number] = after
        self._count += 1
        self._lowest = min(self._lowest, number)
        return True

    def add_range(self, first: int, end: int) -> None:
        self._lowest = min(self._lowest, first // CHUNK)
        while first < end:
            number, bit = divmod(first, CHUNK)
            here = min(end - first, CHUNK - bit)
            before = self._chunks.get(number, 0)
            after = self._chunks[number] = before | ((1 << here) - 1) << bit
            self._count += after.bit_count() - before.bit_count()
            first += here

    def discard(self, offset: int) -> None:
        number, bit = divmod(offset, CHUNK)
        before = self._chunks.get(number, 0)
        after = before & ~(1 << bit)
        if after != before:
            self._count -= 1
            self._keep(number, after)

    def discard_range(self, first: int, end: int) -> None:
        for number in [each for each in self._chunks if first // CHUNK <= each <= end // CHUNK]:
            base = number * CHUNK
            low, high = max(first - base, 0), min(end - base, CHUNK)
            before = self._chunks[number]
            after = before & ~((1 << high) - (1 << low)) if low < high else before
            self._count -= before.bit_count() - after.bit_count()
            self._keep(number, after)

    def discard_below(self, offset: int) -> None:
        if not self._chunks:
            return
        number, bit = divmod(offset, CHUNK)
        while self._chunks and self._first_chunk() < number:
            self._count -= self._chunks.pop(self._lowest).bit_count()
        if number in self._chunks:
            before = self._chunks[number]
            after = before >> bit << bit
            self._count -= before.bit_count() - after.bit_count()
            self._keep(number, after)

    def discard_from(self, offset: int) -> bool:
        """Whether there was anything at or above this."""
        number, bit = divmod(offset, CHUNK)
        before = self._count
        for each in [chunk for chunk in self._chunks if chunk > number]:
            self._count -= self._chunks.pop(each).bit_count()
        if number in self._chunks:
            bits = self._chunks[number]
            kept = bits & ((1 << bit) - 1)
            self._count -= bits.bit_count() - kept.bit_count()
            self._keep(number, kept)
        return self._count < before

    def _keep(self, number: int, bits: int) -> None:
        if bits:
            self._chunks[number] = bits
        else:
            del self._chunks[number]

    def clear(self) -> None:
        self._chunks.clear()
        self._count = 0

    def _first_chunk(self) -> int:
        if self._lowest not in self._chunks:
            self._lowest += 1  # chunks go one after the other, mostly
            if self._lowest not in self._chunks:
                self._lowest = min(self._chunks)
        return self._lowest

    def first(self) -> int | None:
        if not self._chunks:
            return None
        number = self._first_chunk()
        bits = self._chunks[number]
        return number * CHUNK + (bits & -bits).bit_length() - 1

    def next_missing(self, offset: int) -> int:
        """The first offset at or after this one that is not in the set."""
        number, bit = divmod(offset, CHUNK)
        while True:
            missing = ~self._chunks.get(number, 0) & _FULL
            missing = missing >> bit << bit
            if missing:
                return number * CHUNK + (missing & -missing).bit_length() - 1
            number += 1
            bit = 0

    def ranges(self) -> Iterator[tuple[int, int]]:
        """[first, end) of each run, in ascending order."""
        first = end = -1
        for offset in self:
            if offset != end:
                if end > first:
                    yield first, end
                first = offset
            end = offset + 1
        if end > first:
            yield first, end

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """The set as bytes, chunk by chunk: ``add_chunk`` takes them back."""
        for number in sorted(self._chunks):
            yield number, self._chunks[number].to_bytes(CHUNK // 8, "little")

    def add_chunk(self, number: int, data: bytes) -> None:
        self._lowest = min(self._lowest, number)
        before = self._chunks.get(number, 0)
        after = self._chunks[number] = before | int.from_bytes(data, "little")
        self._count += after.bit_count() - before.bit_count()
