"""Where the archive of Spark's classes is looked for, and that a session takes it. Spark is not started."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.spark.run.class_archive import JAVA_OPTIONS, archive_options, archive_path
from headrace.spark.run.session import _profile


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it would be, in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    path = archive_path()
    path.parent.mkdir(parents=True)
    return path


def test_without_an_archive_a_session_is_as_it_was(archive: Path) -> None:
    assert archive_options() is None
    assert JAVA_OPTIONS not in _profile({"spark.master": "local[2]"})


def test_a_session_takes_the_archive_that_is_there_also_from_a_path_with_a_space(archive: Path) -> None:
    archive.write_bytes(b"classes")
    options = _profile({"spark.master": "local[2]"})[JAVA_OPTIONS]
    assert f'"-XX:SharedArchiveFile={archive}"' in options
    assert "-Xshare:auto" in options, "a file that does not fit must not keep the JVM from starting"


def test_another_spark_has_another_archive(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert archive_path() != archive
    assert archive_path().parent == archive.parent


def test_a_user_without_a_home_has_no_archive_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 2)
    assert archive_options() is None
