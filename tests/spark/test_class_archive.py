"""``headrace doctor --prepare-spark`` with a real JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.run.class_archive import archive_path

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SESSION = """
import headrace.spark as hr
spark = hr.session(master="local[1]")
java = spark.sparkContext._gateway.proc.pid
mapped = [line.split()[-1] for line in open(f"/proc/{java}/maps") if line.rstrip().endswith(".jsa")]
print(spark.range(3).count(), any("spark-classes" in each for each in mapped))
"""


def run(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=500, check=True
    )


def test_spark_is_prepared_once_and_every_later_jvm_maps_its_classes(tmp_path: Path) -> None:
    cache = tmp_path / "a cache"
    assert run("-c", SESSION, cache=cache).stdout.split() == ["3", "False"]
    prepared = run("-m", "headrace", "doctor", "--prepare-spark", cache=cache)
    (archive,) = (cache / "headrace").iterdir()
    assert f"Spark is prepared: {archive}" in prepared.stdout
    assert prepared.stderr == ""
    assert run("-c", SESSION, cache=cache).stdout.split() == ["3", "True"]
    made = archive.stat().st_mtime_ns
    run("-m", "headrace", "doctor", "--prepare-spark", cache=cache)
    assert archive.stat().st_mtime_ns == made


def test_an_archive_that_java_cannot_use_is_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive_path().parent.mkdir(parents=True)
    archive_path().write_bytes(b"of another Java" * 1000)
    done = run("-c", SESSION, cache=tmp_path)
    assert done.stdout.split()[0] == "3"
    assert "cds" not in done.stderr.lower()
    assert "archive" not in done.stderr.lower()
