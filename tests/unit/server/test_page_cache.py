"""The page cache is asked about real files; their pages are dropped with POSIX_FADV_DONTNEED."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.log.disk import OsDisk, OsFile
from headrace.server import page_cache
from headrace.server.page_cache import _cached_pages as _count_cached
from headrace.server.page_cache import is_cached, read_at_once
from tests.waiting import eventually

SIZE = 1 << 20


@pytest.fixture
def file(on_disk: Path) -> OsFile:
    written = OsDisk().open(str(on_disk / "file"), create=True)
    written.write([os.urandom(SIZE)], 0)
    written.datasync()
    return written


def drop_pages(file: OsFile) -> None:
    """The kernel keeps pages that are in use for a moment: it is asked again until they are gone."""
    eventually(lambda: _dropped(file), bool)


def _dropped(file: OsFile) -> bool:
    file.datasync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return _count_cached(file, SIZE, 0) == 0


@pytest.fixture(params=["by cachestat", "by samples"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by samples":
        monkeypatch.setattr(page_cache, "_cached_pages", lambda *_: None)
    return str(request.param)


def test_a_range_that_was_just_written_is_cached(file: OsFile, way: str) -> None:
    assert is_cached(file, SIZE, 0)
    assert is_cached(file, 1, SIZE - 1)
    assert is_cached(file, 5000, 4095)


def test_a_range_without_its_last_pages_is_not_cached(file: OsFile, way: str) -> None:
    drop_pages(file)
    file.pread(SIZE // 2, 0)
    assert is_cached(file, SIZE // 2, 0)
    assert not is_cached(file, SIZE // 2, SIZE // 2)
    assert not is_cached(file, SIZE, 0)


def test_what_is_not_cached_is_not_read_at_once(file: OsFile) -> None:
    drop_pages(file)
    assert read_at_once(file, 4096, 0) is None
    file.pread(4096, 0)
    assert read_at_once(file, 4096, 0) is not None
