"""The log and the server without the calls that only Linux has, by their own tests, in a process that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    "tests/unit/log/test_disk.py",
    "tests/unit/log/test_store.py",
    "tests/unit/log/test_flush.py",
    "tests/unit/server/test_kafka.py",
    "tests/unit/server/test_descriptors.py",
]
ONLY_LINUX = ["tests/unit/log/test_disk.py::test_a_sync_of_the_filesystem_reaches_the_kernel_and_its_error_is_raised"]


@pytest.mark.slow
def test_tests_of_the_log_and_the_server_pass_without_the_calls_of_linux() -> None:
    left_out = [f"--deselect={each}" for each in ONLY_LINUX]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *FILES, *left_out],
        cwd=ROOT,
        env={**os.environ, "HEADRACE_PORTABLE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]


def test_without_linux_calls_none_is_made() -> None:
    """What would call them is not even looked up: macOS does not have them."""
    code = """
import os
for name in ("fdatasync", "pwritev", "preadv", "posix_fadvise", "sendfile"):
    delattr(os, name)
from headrace import testing
from headrace.client import Admin, Client, Consumer, Producer, TopicPartition, start_offsets
with testing.broker() as broker, Client(broker.bootstrap) as client:
    Admin(client).create_topic("t", partitions=1)
    with Producer(client) as producer:
        for _ in range(50):
            producer.send("t", bytes(10_000), partition=0)
    consumer = Consumer(client)
    consumer.assign(start_offsets(client, [TopicPartition("t", 0)]))
    read = 0
    while read < 50:
        read += sum(len(each) for each in consumer.poll(timeout_ms=1000).values())
print(read)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HEADRACE_PORTABLE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "50\n"), run.stderr[-2000:]
