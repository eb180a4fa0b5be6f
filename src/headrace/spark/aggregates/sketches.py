"""Two sketches, in columns: how many different values there are, and where percentiles lie, with a stated error.

Both are maps from a small number to a small number. That makes them mergeable by grouping, so that a window, a session
or an interval that slides treats them as it treats a sum.

    different values    HyperLogLog with 4096 registers: register → rank, merged by the maximum. The standard error is
                        1.6 %. The estimate is Ertl's, which needs no tables and is right from one value on.
    percentiles         DDSketch: bin → count, merged by the sum. The bins grow geometrically, so that what is
                        answered is within 1 % of a value that is at the percentile, however values are spread.

They are bounded: at most 4096 entries for the first; for the second as many as there are powers of 1.02 between the
smallest and the largest absolute value, about 230 for each factor of a hundred.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.spark.state.bucket import Ints

__all__ = ["PERCENTILE_ERROR", "bins_of", "estimates", "percentile", "registers_of", "values_of"]

Floats = npt.NDArray[np.float64]

# ---- different values ----------------------------------------------------------------------------------------------

REGISTER_BITS = 12
REGISTERS = 1 << REGISTER_BITS
HASH_BITS = 64 - REGISTER_BITS
RANK_MAX = HASH_BITS + 1
SKETCHES_AT_ONCE = 1 << 14
"""Each takes half a kilobyte while it is estimated."""


def registers_of(hashes: Ints) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int8]]:
    """Of each 64-bit hash its register and its rank: one more than the zeros that its other bits begin with."""
    unsigned = hashes.view(np.uint64)
    registers = (unsigned >> np.uint64(HASH_BITS)).astype(np.int16)
    rest = unsigned & np.uint64((1 << HASH_BITS) - 1)
    _, bit_length = np.frexp(rest.astype(np.float64))  # 52 bits are exact in a double
    return registers, (RANK_MAX - bit_length).astype(np.int8)


def estimates(codes: Ints, ranks: Ints, count: int) -> Floats:
    """How many different values each of ``count`` sketches has seen; codes, sorted, say whose a rank is."""
    found = np.zeros(count)
    for first in range(0, count, SKETCHES_AT_ONCE):
        last = min(first + SKETCHES_AT_ONCE, count)
        low, high = np.searchsorted(codes, [first, last])
        found[first:last] = _estimates(codes[low:high] - first, ranks[low:high], last - first)
    return found


def _estimates(codes: Ints, ranks: Ints, count: int) -> Floats:
    histogram = np.zeros((count, RANK_MAX + 1))
    np.add.at(histogram, (codes, ranks), 1)
    histogram[:, 0] = REGISTERS - histogram[:, 1:].sum(axis=1)
    z = REGISTERS * _tau(1 - histogram[:, RANK_MAX] / REGISTERS)
    for rank in range(HASH_BITS, 0, -1):
        z = 0.5 * (z + histogram[:, rank])
    z = z + REGISTERS * _sigma(histogram[:, 0] / REGISTERS)
    with np.errstate(divide="ignore"):
        found: Floats = REGISTERS * REGISTERS / (2 * np.log(2)) / z
    return found


def _sigma(x: Floats) -> Floats:
    """x + x² + 2x⁴ + 4x⁸ + …, which takes the place of a correction for small numbers; infinite at one."""
    full = x >= 1
    power = np.where(full, 0.0, x)
    total, factor = power.copy(), 1.0
    for _ in range(64):
        power = power * power
        total += power * factor
        factor *= 2
        if not power.any():
            break
    return np.where(full, np.inf, total)


def _tau(x: Floats) -> Floats:
    """The same for large numbers, where registers are full."""
    power = x.copy()
    total, factor = 1 - x, 1.0
    for _ in range(64):
        power = np.sqrt(power)
        factor *= 0.5
        total -= (1 - power) ** 2 * factor
    return np.where((x <= 0) | (x >= 1), 0.0, total / 3)


# ---- percentiles ---------------------------------------------------------------------------------------------------

PERCENTILE_ERROR = 0.01
"""Relative: what is answered is at most this part away from a value that is at the percentile."""
GROWTH = (1 + PERCENTILE_ERROR) / (1 - PERCENTILE_ERROR)
LOG_GROWTH = float(np.log(GROWTH))
MIDDLE = 40_000
"""More than any exponent a double can have, so that bins of positive numbers are positive, and the order is kept."""


def bins_of(values: Floats) -> npt.NDArray[np.int32]:
    """The bin of each number: geometric in its size, mirrored for negative ones, zero for zero."""
    sizes = np.abs(values)
    tiny = sizes < np.finfo(np.float64).tiny
    exponents = np.ceil(np.log(np.where(tiny, 1.0, np.minimum(sizes, np.finfo(np.float64).max))) / LOG_GROWTH)
    return np.where(tiny, 0, np.sign(values) * (MIDDLE + exponents)).astype(np.int32)


def values_of(bins: Ints) -> Floats:
    """The number that stands for a bin: no number of the bin is further from it than the error allows."""
    with np.errstate(over="ignore"):
        sizes = np.exp((np.abs(bins) - MIDDLE) * LOG_GROWTH) * 2 / (GROWTH + 1)
    return np.where(bins == 0, 0.0, np.sign(bins) * np.minimum(sizes, np.finfo(np.float64).max))


def percentile(codes: Ints, bins: Ints, counts: Ints, wanted: float, count: int) -> Floats:
    """Of each of ``count`` sketches the value below which the wanted part lies; entries are sorted by code and bin."""
    found = np.full(count, np.nan)
    totals = np.bincount(codes, weights=counts, minlength=count).astype(np.int64)
    before = np.cumsum(totals) - totals
    reached = np.cumsum(counts) - before[codes]
    enough = np.flatnonzero(reached > wanted * (totals[codes] - 1))
    owners, first = np.unique(codes[enough], return_index=True)
    found[owners] = values_of(bins[enough[first]])
    return found
