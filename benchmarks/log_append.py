"""The log's own cost: appends and reads as a share of what the operating system takes for the same bytes.

    python benchmarks/log_append.py [--directory DIR] [--megabytes N]

For each batch size the same bytes are written once by plain ``os.writev`` and once through ``PartitionLog.append``
(with the checks that Produce makes: split, checksum, stamp), then read once by plain ``os.pread`` and once through
``PartitionLog.read``. Raw and log take turns within one run, so the ratios hold where absolute numbers depend on the
machine. Nothing is synced: that is another hop with its own benchmark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.batch import build_batch, read_batches
from headrace.log.config import LogConfig
from headrace.log.disk import OsDisk
from headrace.log.log import PartitionLog
from headrace.record import Record

BATCH_RECORDS = (1, 10, 100, 1000)
RECORD_BYTES = 100
READ_BYTES = 1 << 20
TURNS = 4


@dataclass(frozen=True)
class Row:
    what: str
    batch_bytes: int
    raw_s: float
    log_s: float
    operations: int
    total_bytes: int

    def __str__(self) -> str:
        rate = self.total_bytes / self.log_s / 1e6
        each_us = self.log_s / self.operations * 1e6
        share = self.raw_s / self.log_s
        return (
            f"{self.what:10} {self.batch_bytes:>9,} {rate:>10,.0f} {self.operations / self.log_s:>12,.0f} "
            f"{each_us:>9.1f} {self.raw_s / self.operations * 1e6:>9.1f} {share:>9.2f}"
        )


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def append_raw(path: str, payload: bytes, count: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for _ in range(count):
            os.writev(fd, [payload])
    finally:
        os.close(fd)


def append_log(log: PartitionLog, payload: bytes, count: int) -> None:
    for _ in range(count):
        batches = read_batches(payload, batch_bytes_max=1 << 20)
        log.producers.check(batches[0])
        log.append(batches[0], leader_epoch=0, now_ms=1000)


def read_raw(path: str) -> int:
    fd = os.open(path, os.O_RDONLY)
    position = 0
    calls = 0
    try:
        while data := os.pread(fd, READ_BYTES, position):
            position += len(data)
            calls += 1
    finally:
        os.close(fd)
    return calls


def read_log(log: PartitionLog, records: int) -> int:
    """As a sequential reader: the next read begins where the last batch of this one ended."""
    offset = 0
    calls = 0
    batch_bytes = log.segments[0].size // (log.end_offset // records)
    while offset < log.end_offset:
        for piece in log.read(offset, bytes_max=READ_BYTES, offset_max=log.end_offset):
            piece.read()
            offset += piece.size // batch_bytes * records
        calls += 1
    return calls


def measure(directory: str, records: int, total_bytes: int) -> list[Row]:
    """Raw and log take turns, and the best of each counts: what else the machine does must not decide the ratio."""
    payload = build_batch([Record(None, bytes(RECORD_BYTES), timestamp=1000) for _ in range(records)]).data
    count = max(200, total_bytes // len(payload) // TURNS)
    best = dict.fromkeys(("append raw", "append log", "read raw", "read log"), float("inf"))
    calls = 0
    for turn in range(TURNS):
        raw_path = f"{directory}/raw-{records}-{turn}"
        log = PartitionLog.open(OsDisk(), f"{directory}/log-{records}-{turn}", LogConfig())
        best["append raw"] = min(best["append raw"], timed(lambda: append_raw(raw_path, payload, count)))  # noqa: B023
        best["append log"] = min(best["append log"], timed(lambda: append_log(log, payload, count)))  # noqa: B023
        calls = read_raw(raw_path)
        best["read raw"] = min(best["read raw"], timed(lambda: read_raw(raw_path)))  # noqa: B023
        best["read log"] = min(best["read log"], timed(lambda: read_log(log, records)))  # noqa: B023
    size = count * len(payload)
    return [
        Row("append", len(payload), best["append raw"], best["append log"], count, size),
        Row("read 1 MiB", len(payload), best["read raw"], best["read log"], calls, size),
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--directory", default=None, help="where to write; a temporary directory by default")
    arguments.add_argument("--megabytes", type=int, default=64, help="how much to write per batch size")
    options = arguments.parse_args()
    directory = tempfile.mkdtemp(dir=options.directory)
    try:
        print(f"{'':10} {'batch B':>9} {'log MB/s':>10} {'log ops/s':>12} {'log µs':>9} {'raw µs':>9} {'raw/log':>9}")
        for records in BATCH_RECORDS:
            for row in measure(directory, records, options.megabytes << 20):
                print(row)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
