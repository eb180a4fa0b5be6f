"""Record batches to Arrow columns: how many records a second one core decodes, and against decoding one by one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from headrace.batch import build_batch, parse_header
from headrace.client import RawBatch
from headrace.record import Codec, Record, decode_records
from headrace.spark.decode import DECOMPRESSED_BYTES_MAX, decode

RECORDS_PER_BATCH = 1_000
BATCHES_PER_CALL = 60
ROUNDS = 5


def make(value_bytes: int, codec: Codec, records_per_batch: int) -> list[RawBatch]:
    """Values of about a size with some repetition in them, as text has."""
    source = random.Random(7)
    words = [source.randbytes(8).hex().encode() for _ in range(200)]

    def value() -> bytes:
        return b" ".join(source.choices(words, k=max(1, value_bytes // 17)))

    count = BATCHES_PER_CALL * RECORDS_PER_BATCH // records_per_batch
    content = [
        Record(key=b"customer-%d" % source.randrange(1000), value=value(), timestamp=1_700_000_000_000 + index)
        for index in range(records_per_batch)
    ]
    made = []
    for index in range(count):
        data = memoryview(build_batch(content, base_offset=index * records_per_batch, codec=codec).data)
        header = parse_header(data)
        assert header is not None
        made.append(RawBatch(header, data))
    return made


def records_per_cpu_second(work: Callable[[], int], rounds: int) -> float:
    """The best of some rounds, by processor time: other processes on the machine do not count."""
    best = 0.0
    for _ in range(rounds):
        start = time.thread_time()
        count = work()
        best = max(best, count / (time.thread_time() - start))
    return best


def one_by_one(batches: list[RawBatch]) -> int:
    return sum(len(decode_records(batch.parsed(), DECOMPRESSED_BYTES_MAX)) for batch in batches)


def main() -> None:
    print(f"{'case':<44}{'M records/s':>12}{'one by one':>12}{'ratio':>8}")
    cases = [
        ("100 B values", 100, Codec.NONE, 1_000, False),
        ("100 B values with the headers column", 100, Codec.NONE, 1_000, True),
        ("100 B values, ten records a batch", 100, Codec.NONE, 10, False),
        ("100 B values, lz4", 100, Codec.LZ4, 1_000, False),
        ("100 B values, zstd", 100, Codec.ZSTD, 1_000, False),
        ("1000 B values", 1_000, Codec.NONE, 1_000, False),
    ]
    for name, value_bytes, codec, per_batch, headers in cases:
        batches = make(value_bytes, codec, per_batch)
        fast = records_per_cpu_second(lambda b=batches, h=headers: decode(b, headers=h).row_count, ROUNDS)  # type: ignore[misc]
        slow = records_per_cpu_second(lambda b=batches: one_by_one(b[: max(1, len(b) // 10)]), 2)  # type: ignore[misc]
        print(f"{name:<44}{fast / 1e6:>12.2f}{slow / 1e6:>12.2f}{fast / slow:>7.1f}x")


if __name__ == "__main__":
    main()
