"""Record batches to Arrow columns: records a second of one core, beside decoding them one by one.

As the tasks of the source do it: in groups of a few MB, by processor time of the thread, so that other processes on the
machine do not count.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import Figure, table
from headrace.batch import build_batch, parse_header
from headrace.client import RawBatch
from headrace.record import Codec, Record, decode_records
from headrace.spark.source.decode import DECOMPRESSED_BYTES_MAX, decode, grouped

__all__ = ["make", "run"]

RECORDS = 60_000
GROUP_BYTES = 4 * 1024 * 1024
RECORDS_PER_S_GOAL = 2.0
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    value_bytes: int = 100
    codec: Codec = Codec.NONE
    records_per_batch: int = 1_000
    headers: bool = False


CASES = (
    Case("100 B values"),
    Case("100 B values, ten records a batch", records_per_batch=10),
    Case("1,000 B values", value_bytes=1_000),
    Case("100 B values with a header each, as a column", headers=True),
    Case("100 B values, lz4", codec=Codec.LZ4),
    Case("100 B values, zstd", codec=Codec.ZSTD),
)


def make(case: Case) -> list[RawBatch]:
    """Values of about a size with some repetition in them, as text has."""
    source = random.Random(7)
    words = [source.randbytes(8).hex().encode() for _ in range(200)]

    def value() -> bytes:
        return b" ".join(source.choices(words, k=max(1, case.value_bytes // 17)))

    content = [
        Record(
            key=b"customer-%d" % source.randrange(1000),
            value=value(),
            timestamp=1_700_000_000_000 + index,
            headers=[("trace", source.randbytes(16))] if case.headers else [],
        )
        for index in range(case.records_per_batch)
    ]
    made = []
    for first in range(0, RECORDS, case.records_per_batch):
        data = memoryview(build_batch(content, base_offset=first, codec=case.codec).data)
        header = parse_header(data)
        assert header is not None
        made.append(RawBatch(header, data))
    return made


def decode_all(batches: list[RawBatch], headers: bool) -> int:
    """With the columns of keys and values, which are made when they are asked for."""
    return sum(len(decode(group, headers=headers).values) for group in grouped(batches, bytes_max=GROUP_BYTES))


def one_by_one(batches: list[RawBatch]) -> int:
    return sum(len(decode_records(batch.parsed(), DECOMPRESSED_BYTES_MAX)) for batch in batches)


def records_per_s(work: Callable[[], int], repeats: int) -> float:
    """Millions, in the best of some repeats: a cache that another process emptied is no property of the decoder."""
    best = 0.0
    for _ in range(repeats):
        start = time.thread_time()
        count = work()
        best = max(best, count / (time.thread_time() - start))
    return best / 1e6


def run(*, quick: bool) -> list[Figure]:
    figures = []
    for case in CASES:
        batches = make(case)
        some = list(itertools.islice(batches, max(1, len(batches) // 10)))
        work, slow_work = lambda b=batches, c=case: decode_all(b, c.headers), lambda s=some: one_by_one(s)  # type: ignore[misc]
        rounds = 1 if quick else 3
        figures.append(
            Figure(
                hop="spark decode",
                case=case.name,
                unit="M records/s",
                ours=[records_per_s(work, REPEATS) for _ in range(rounds)],
                peers=[records_per_s(slow_work, 2) for _ in range(rounds)],
                peer="one by one",
                goal=RECORDS_PER_S_GOAL if case.codec is Codec.NONE and not case.headers else None,
                absolute=True,
            )
        )
    return figures


if __name__ == "__main__":
    print(table(run(quick=False)))
