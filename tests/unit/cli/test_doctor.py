"""What the doctor finds, and that each finding that is not fine names how to fix it."""

from __future__ import annotations

import json
import os
import resource
import socket
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli import doctor
from headrace.cli.doctor import (
    Finding,
    check_console,
    check_files,
    check_folder,
    check_metrics,
    check_port,
    check_space,
    check_sync,
    examine,
)
from headrace.cli.main import run
from headrace.config import Settings


def test_a_sound_machine_gets_a_finding_per_check_and_exit_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for limit in ("DISK_FREE_BYTES_MIN", "MEMORY_BYTES_MIN"):
        monkeypatch.setattr(doctor, limit, 0)  # what others leave of this machine is not what is claimed
    assert run(["doctor", "--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0", "--output", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in findings] == [
        "python",
        "packages",
        "java",
        "spark",
        "kafka",
        "amqp",
        "metrics",
        "console",
        "data",
        "space",
        "sync",
        "memory",
        "files",
    ]
    assert not (tmp_path / "data").exists(), "looking changes nothing"
    assert list(tmp_path.iterdir()) == []


def test_whatever_is_not_fine_names_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("DISK_FREE_BYTES_MIN", "MEMORY_BYTES_MIN"):
        monkeypatch.setattr(doctor, limit, 1 << 60)
    monkeypatch.setattr(doctor, "SYNC_MS_MAX", 0.0)
    monkeypatch.setattr(doctor, "JAVA_GOOD", ())
    findings = examine(Settings({"data": str(tmp_path), "kafka": "off", "amqp": "off"}))
    wrong = [each for each in findings if each.status != "ok"]
    assert {"java", "space", "sync", "memory"} <= {each.check for each in wrong}
    assert all(each.fix for each in wrong)


def test_something_wrong_is_shown_with_its_mend_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "DISK_FREE_BYTES_MIN", 1 << 60)
    assert run(["doctor", "--data", str(tmp_path), "--kafka", "off"]) == 1
    assert "→ free some space" in capsys.readouterr().out


def test_a_port_that_somebody_else_uses_is_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = check_port(f"127.0.0.1:{taken.getsockname()[1]}")
    assert finding.status == "wrong"
    assert "already in use" in finding.found


def test_a_port_where_a_broker_serves_is_noted_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PORT_TIMEOUT_MS", 60_000)
    with testing.broker() as broker:
        finding = check_port(broker.bootstrap)
    assert finding.status == "note"
    assert "served by cluster" in finding.found
    assert f"process {os.getpid()}" in finding.found


def test_an_address_for_metrics_is_free_served_or_somebody_elses() -> None:
    assert check_metrics("off").status == "ok"
    assert check_metrics("127.0.0.1:0").found == "127.0.0.1:0 is free"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = check_metrics(f"127.0.0.1:{taken.getsockname()[1]}")
    assert (finding.status, "already in use" in finding.found) == ("wrong", True)


def test_an_address_for_the_console_is_free_or_taken() -> None:
    assert check_console("off").status == "ok"
    assert check_console("127.0.0.1:0").found == "127.0.0.1:0 is free"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = check_console(f"127.0.0.1:{taken.getsockname()[1]}")
    assert (finding.status, "--http" in finding.fix) == ("note", True)


def test_metrics_that_a_broker_serves_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PORT_TIMEOUT_MS", 60_000)
    with testing.broker(settings={"metrics": "127.0.0.1:0"}) as broker:
        finding = check_metrics(broker.addresses["metrics"])
    assert (finding.status, "that is ready" in finding.found) == ("ok", True)


@pytest.mark.parametrize(
    ("limit", "status"), [(64, "wrong"), (1024, "note"), (8192, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_open_files_are_compared_with_what_the_broker_needs(
    monkeypatch: pytest.MonkeyPatch, limit: int, status: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    finding = check_files(4000)
    assert finding.status == status
    assert ("8192" in finding.fix) == (status != "ok")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert check_folder(tmp_path / "data").status == "wrong"
    assert check_sync(tmp_path / "data").status == "wrong"


def test_a_folder_in_memory_is_worth_a_note() -> None:
    assert check_folder(Path("/dev/shm/headrace")).status == "note"


def test_a_file_where_the_folder_should_be_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert check_folder(tmp_path / "data").status == "wrong"


def test_space_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert check_space(tmp_path / "a" / "b" / "c").status in ("ok", "wrong")


def test_a_java_that_corrupts_data_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\necho 'openjdk version \"25.0.1\"' >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = doctor.check_java()
    assert (found.status, found.fix[:12]) == ("wrong", "install Java")
    assert "25.0.1: 25.0.0 to 25.0.2 compile" in found.found


def test_the_java_that_pipelines_would_use_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = doctor.check_java()
    assert (found.status, found.fix[:12]) == ("wrong", "install Java")
    assert f"JAVA_HOME={tmp_path} has no bin/java" in found.found
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_java().status == "note"


def test_what_pipelines_need_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_spark().status == "ok"  # where the tests on Spark run
    monkeypatch.setattr(doctor, "SPARK_PACKAGES", ("click", "no-such-package-of-spark"))
    assert doctor.check_spark() == Finding(
        "spark",
        "note",
        "no-such-package-of-spark is missing; the broker needs none, pipelines do",
        "pip install 'headrace[spark]'",
    )


def test_a_port_for_queues_that_somebody_else_uses_is_named_with_the_ways_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = doctor.check_amqp(f"127.0.0.1:{taken.getsockname()[1]}")
    assert finding.status == "note"
    assert f"process {os.getpid()}" in finding.found
    assert "--amqp off" in finding.fix
    assert doctor.check_amqp("off").status == doctor.check_amqp("127.0.0.1:0").status == "ok"
