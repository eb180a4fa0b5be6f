"""Random columns that depend on a seed and on the number of an event, and on nothing else.

A generator that draws one number after the other cannot begin in the middle. Here a draw is a hash of (seed, what it is
for, number of the event): a range of events is the same whether it is made alone, as a part of a larger one, or by
another process. The hash is the finaliser of splitmix64, which numpy computes for whole columns.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Chance", "Ints", "text_of"]

Ints = npt.NDArray[np.int64]
Draws = npt.NDArray[np.uint64]

LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzaeinst", np.uint8)
"""Thirty-two, so that five bits choose one; some come twice as often, as in any language."""
WORD_BYTES = 8
_MASK = (1 << 64) - 1


def mixed(values: Draws) -> Draws:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@cache
def _start(seed: int, purpose: str) -> np.uint64:
    """Where the draws for one purpose begin; the purpose's letters are mixed in one by one."""
    state = np.array([seed & _MASK], np.uint64)
    for each in purpose.encode():
        state = mixed(state + np.uint64(0x9E3779B97F4A7C15) + np.uint64(each))
    found: np.uint64 = state[0]
    return found


class Chance:
    """The draws that belong to some events."""

    def __init__(self, seed: int, numbers: Ints) -> None:
        self.seed = seed
        self.numbers = numbers
        self._spread = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def bits(self, purpose: str) -> Draws:
        return mixed(self._spread + _start(self.seed, purpose))

    def below(self, purpose: str, bound: Ints | int) -> Ints:
        """Whole numbers in [0, bound), each as likely as the next; ``bound`` is below 2³²."""
        high = self.bits(purpose) >> np.uint64(32)
        return ((high * np.asarray(bound, np.uint64)) >> np.uint64(32)).astype(np.int64)

    def share(self, purpose: str) -> npt.NDArray[np.float64]:
        """Numbers in [0, 1)."""
        return (self.bits(purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def text(self, purpose: str, lengths: Ints) -> pa.StringArray:
        """Letters, as many as each row is to have."""
        longest = int(lengths.max(initial=0))
        words = -(-longest // WORD_BYTES)
        steps = np.arange(words, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
        draws = mixed(self.bits(purpose)[:, None] + steps)
        letters = LETTERS[draws.astype("<u8", copy=False).view(np.uint8).reshape(len(lengths), words * WORD_BYTES) & 31]
        used = np.arange(words * WORD_BYTES) < lengths[:, None]
        return text_of(letters[used], lengths)


def text_of(letters: npt.NDArray[np.uint8], lengths: Ints) -> pa.StringArray:
    """The letters of all rows, one row after the other, as a column."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters)))
