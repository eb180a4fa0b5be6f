"""kcat, the command many people reach for first.

Debian builds it against an older librdkafka than confluent-kafka carries.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.servers.process import RunningServer
from tests.skips import skip_or_fail
from tests.waiting import eventually

pytestmark = pytest.mark.servers


@pytest.fixture
def kcat(broker: RunningServer) -> Callable[..., str]:
    program = shutil.which("kcat") or shutil.which("kafkacat")
    if program is None:
        skip_or_fail("kcat is not installed (Debian package: kcat)")

    def run(*arguments: str, text: str = "") -> str:
        command = [program, "-b", broker.bootstrap, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_lines_go_in_and_come_out(kcat: Callable[..., str], unique: Callable[[str], str]) -> None:
    name = unique("topic")
    kcat("-P", "-t", name, text="one\ntwo\nthree\n")
    assert kcat("-C", "-t", name, "-e", "-q") == "one\ntwo\nthree\n"


def test_keys_headers_and_offsets_are_shown(kcat: Callable[..., str], unique: Callable[[str], str]) -> None:
    name = unique("topic")
    kcat("-P", "-t", name, "-K", ":", "-H", "trace=7", text="key:value\n")
    found = kcat("-C", "-t", name, "-e", "-q", "-f", "%p/%o %k=%s [%h]\n")
    assert found == "0/0 key=value [trace=7]\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_passes_through(kcat: Callable[..., str], unique: Callable[[str], str], codec: str) -> None:
    name = unique("topic")
    lines = "".join(f"{codec} {n}\n" for n in range(200))
    kcat("-P", "-t", name, "-z", codec, text=lines)
    assert kcat("-C", "-t", name, "-e", "-q") == lines


def test_offsets_are_chosen_from_either_end_and_by_time(kcat: Callable[..., str], unique: Callable[[str], str]) -> None:
    name = unique("topic")
    kcat("-P", "-t", name, text="a\nb\nc\nd\n")
    assert kcat("-C", "-t", name, "-e", "-q", "-o", "2") == "c\nd\n"
    assert kcat("-C", "-t", name, "-e", "-q", "-o", "-1") == "d\n"
    assert kcat("-C", "-t", name, "-e", "-q", "-o", "s@0") == "a\nb\nc\nd\n"
    assert kcat("-Q", "-t", f"{name}:0:0").strip().endswith("offset 0")


def test_metadata_is_listed_as_json(
    kcat: Callable[..., str], unique: Callable[[str], str], broker: RunningServer
) -> None:
    name = unique("topic")
    kcat("-P", "-t", name, text="a\n")
    listed = json.loads(kcat("-L", "-J", "-t", name))
    assert [topic["topic"] for topic in listed["topics"]] == [name]
    assert [each["name"] for each in listed["brokers"]] == [broker.bootstrap]


def test_a_group_reads_each_message_once(kcat: Callable[..., str], unique: Callable[[str], str]) -> None:
    name, group = unique("topic"), unique("group")
    kcat("-P", "-t", name, text="a\nb\n")
    settings = ("-X", "auto.offset.reset=earliest", "-q", "-e", "-G", group, name)
    assert kcat(*settings) == "a\nb\n"
    kcat("-P", "-t", name, text="c\n")
    assert kcat(*settings) == "c\n"


def test_a_transactional_producer_commits(kcat: Callable[..., str], unique: Callable[[str], str]) -> None:
    name = unique("topic")
    kcat("-P", "-t", name, "-X", f"transactional.id={unique('transaction')}", text="a\nb\n")
    # Apache Kafka answers a commit a moment before readers see what it committed.
    eventually(
        lambda: kcat("-C", "-t", name, "-e", "-q", "-X", "isolation.level=read_committed"),
        lambda found: found == "a\nb\n",
    )
