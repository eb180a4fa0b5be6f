"""``headrace log`` on a directory that a broker left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli.main import run
from headrace.client import Admin, Client, Producer, ProducerOptions
from headrace.record import Codec


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    with testing.broker(data=folder) as broker, Client(broker.bootstrap) as client:
        for name in ("orders", "payments"):
            Admin(client).create_topic(name, partitions=2)
        options = ProducerOptions(linger_ms=60_000, batch_bytes=200, codec=Codec.ZSTD)
        with Producer(client, options) as producer:
            for index in range(20):
                producer.send("orders", b"value %d" % index, key=b"k", partition=1, timestamp=1000 + index)
    return folder


def dumped(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[dict[str, object]]:
    assert run(["log", "dump", *arguments, "--output", "json"]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_batch_of_a_topic_is_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = dumped(capsys, str(data), "--topic", "orders")
    assert {each["partition"] for each in batches} == {"orders[1]"}
    assert len(batches) >= 2
    assert sum(int(str(each["records"])) for each in batches) == 20
    assert {each["codec"] for each in batches} == {"zstd"}
    assert all(each["checksum_holds"] for each in batches)


def test_a_line_tells_offsets_records_and_the_place_in_the_file(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(data), "-t", "orders", "-c", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("orders[1] 0–")
    assert "zstd" in line
    assert "producer 0 epoch 0 sequence 0" in line
    assert line.endswith("00000000000000000000.log byte 0")


def test_records_are_printed_when_asked_for(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(data), "-t", "orders", "-p", "1", "--records"]) == 0
    lines = capsys.readouterr().out.splitlines()
    records = [json.loads(line) for line in lines if line.startswith("  {")]
    assert [each["value"] for each in records] == [f"value {index}" for index in range(20)]


def test_a_dump_may_start_at_an_offset(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = dumped(capsys, str(data), "--topic", "orders", "--from", "15")
    assert all(int(str(each["last_offset"])) >= 15 for each in batches)
    assert int(str(batches[-1]["last_offset"])) == 19


def test_a_partition_folder_and_a_segment_file_can_be_dumped_alone(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = next(data.glob("topics/orders~*")).glob("1/*.log")
    assert dumped(capsys, str(segment)) == dumped(capsys, str(segment.parent))


def test_a_sound_directory_has_no_problems(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify", str(data)]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_a_changed_byte_is_an_error_with_file_and_position(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (segment,) = next(data.glob("topics/orders~*")).glob("1/*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[70] ^= 1
    copy = tmp_path / segment.name
    copy.write_bytes(damaged)
    assert run(["log", "verify", str(tmp_path), "--output", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["errors"] >= 1
    assert (found["problems"][0]["file"], found["problems"][0]["position"]) == (str(copy), 0)
    assert run(["log", "dump", str(tmp_path)]) == 1
    assert "WRONG CHECKSUM" in capsys.readouterr().out


def test_a_torn_end_is_printed_as_bad_bytes(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (segment,) = next(data.glob("topics/orders~*")).glob("1/*.log")
    (tmp_path / segment.name).write_bytes(segment.read_bytes()[:-3])
    last = dumped(capsys, str(tmp_path), status=1)[-1]
    assert "begins here" in str(last["error"])


def test_a_folder_without_a_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify", str(tmp_path)]) == 1
    assert "holds no log" in capsys.readouterr().err
