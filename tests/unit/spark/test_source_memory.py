"""What a Python worker holds: a few fetches, however long the range is and however often it reads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.client import Admin, Client, Producer, TopicPartition, end_offsets
from headrace.testing import TestBroker, broker

pytestmark = pytest.mark.slow

RANGE_BYTES = 400_000_000
GROWTH_BYTES_MAX = 150_000_000
VALUE = b"v" * 20_000

# A separate worker, since the memory of this process has other tests in it.
WORKER = """
import resource, sys
import psutil
from headrace.spark.source import tasks
from headrace.spark.source.columns import plain_schema
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import OffsetRange

bootstrap, end, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = SourceOptions.parse({"kafka.bootstrap.servers": bootstrap, "subscribe": "t"}, streaming=False)
plan = tasks.Plan.of(options, plain_schema(False))

def read(last):
    return sum(batch.num_rows for batch in tasks.read_range(plan, OffsetRange("t", 0, 0, last)))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

read(1)
before, rows, resident = peak(), 0, []
for _ in range(rounds):
    rows += read(end)
    resident.append(psutil.Process().memory_info().rss)
print(rows, peak() - before, resident[len(resident) // 4], resident[-1])
for client in tasks._clients.values():
    client.close()
"""


@pytest.fixture(scope="module")
def running() -> Iterator[TestBroker]:
    with broker(in_process=False) as started:
        yield started


@pytest.fixture(scope="module")
def records(running: TestBroker) -> int:
    with Client(running.bootstrap) as client:
        Admin(client).create_topic("t", partitions=1, config={"headrace.flush": "os"})
        with Producer(client) as producer:
            for _ in range(RANGE_BYTES // len(VALUE)):
                producer.send("t", VALUE)
        place = TopicPartition("t", 0)
        return end_offsets(client, [place])[place]


def work(running: TestBroker, end: int, rounds: int) -> list[int]:
    command = [sys.executable, "-c", WORKER, running.bootstrap, str(end), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


def test_a_range_larger_than_memory_streams_through_a_bounded_part_of_it(running: TestBroker, records: int) -> None:
    rows, growth_bytes, _, _ = work(running, records, rounds=1)
    assert rows == records == RANGE_BYTES // len(VALUE)
    assert growth_bytes < GROWTH_BYTES_MAX


def test_a_worker_holds_no_more_after_many_ranges_than_after_some(running: TestBroker, records: int) -> None:
    rows, _, after_some, after_all = work(running, 1_000, rounds=60)
    assert rows == 60 * 1_000
    assert after_all < after_some * 1.2
