"""Which bucket the state of a key is in, and which task of Spark's a bucket."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.spark.arguments import plain_columns
from headrace.spark.state.operator import Operator
from headrace.spark.state.spill import PARTS

__all__ = ["BUCKET", "bucket_numbers", "bucket_of", "part_of", "with_buckets"]

BUCKET = "_bucket"
ANY = "_any_bucket"
SEED = 7
PLACES = 5040
"""Has all numbers up to ten as divisors, and many more: tasks of such numbers get equally many buckets."""


def with_buckets(rows: DataFrame, operator: Operator, keys: Sequence[str], buckets: int) -> DataFrame:
    """With the bucket of each row; a row for every key, or of a key that every bucket holds, is repeated for each."""
    numbers = F.array(*[F.lit(each).cast("int") for each in bucket_numbers(buckets)])
    if operator.keyless is not None:
        # Which bucket a row without a key meets makes no difference, and a hash of its columns would cost more.
        any_of = F.get(numbers, F.floor(F.rand(SEED) * buckets).cast("int"))
        rows = rows.withColumn(ANY, any_of)  # before the generator, as Spark wants what is not deterministic
        chosen = F.when(F.col(f"`{operator.keyless}`"), F.array(ANY)).otherwise(numbers)
        return rows.withColumn(BUCKET, F.explode(chosen))
    own = bucket_of(keys, buckets)
    repeated = operator.everywhere or operator.copied
    if repeated is None:
        return rows.withColumn(BUCKET, own)
    return rows.withColumn(BUCKET, F.explode(F.when(F.col(f"`{repeated}`"), numbers).otherwise(F.array(own))))


def bucket_of(keys: Sequence[str], buckets: int) -> Column:
    """Where a key's state is; it may never be computed otherwise, as checkpoints depend on it."""
    numbers = F.array(*[F.lit(each) for each in bucket_numbers(buckets)])
    return F.get(numbers, F.pmod(F.xxhash64(*plain_columns(keys)), F.lit(buckets)).cast("int")).cast("int")


def part_of(operator: Operator, keys: Sequence[str]) -> Column:
    """In which part of a bucket that is too large for memory a row is; null for a row that every part needs.

    Where every bucket holds the same keys a bucket is not cut: each part would hold them all again.
    """
    if operator.keyless is not None:
        return F.lit(0)
    own = F.pmod(F.shiftright(F.xxhash64(*plain_columns(keys)), 32), F.lit(PARTS)).cast("int")
    repeated = operator.everywhere or operator.copied
    if repeated is None:
        return own
    return F.when(~F.coalesce(F.col(f"`{repeated}`"), F.lit(False)), own)


@functools.cache
def bucket_numbers(buckets: int) -> tuple[int, ...]:
    """The numbers of buckets. Spark gives a number to the task that its hash says, and of eight consecutive numbers two
    tasks would get three and five; so each number is the smallest whose hash goes to the next task in turn."""
    smallest: dict[int, int] = {}
    for first in itertools.count(0, 1 << 16):
        places, at = np.unique(_spark_hash(np.arange(first, first + (1 << 16))) % PLACES, return_index=True)
        smallest = dict(zip(places.tolist(), (at + first).tolist(), strict=True)) | smallest
        if all(place in smallest for place in range(buckets)):
            break
    return tuple(smallest[place] for place in range(buckets))


def _spark_hash(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Murmur3 of 32-bit integers with Spark's seed, as signed numbers: what its partitioning takes modulo the tasks."""

    def rotated(bits: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
        return (bits << np.uint32(by)) | (bits >> np.uint32(32 - by))

    mixed = rotated(values.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    bits = rotated(np.uint32(42) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    bits ^= np.uint32(4)  # bytes of an integer
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    return (bits ^ (bits >> np.uint32(16))).view(np.int32).astype(np.int64)
