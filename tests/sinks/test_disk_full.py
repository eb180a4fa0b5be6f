"""A target whose disk is full takes nothing of a batch, is waited for, and takes the batch once there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.spark.run.failures import is_permanent
from headrace.targets.target import Unavailable
from tests.sinks.world import Base, deliver, fence

ROWS = [(number, "x" * 1000) for number in range(2000)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("key", [(), ("id",)])
def test_sqlite_on_a_full_disk_keeps_what_it_has_and_goes_on_when_there_is_room(
    small_disk: Path, key: tuple[str, ...]
) -> None:
    base = Base("sqlite", f"sqlite:///{small_disk}/sinks.db")
    target = base.target(key=key)
    deliver(target, ROWS[:10], at=fence(0))
    for _ in range(3):
        with pytest.raises(Unavailable, match=r"is away: database or disk is full") as told:
            deliver(target, ROWS[10:], at=fence(1))
        assert not is_permanent(told.value)
        assert base.rows(columns="count(*), count(distinct id)") == [(10, 10)]
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert not deliver(target, ROWS[10:], at=fence(1)).replayed
    assert base.rows(columns="count(*), count(distinct id)") == [(2000, 2000)]


FULL = {
    "postgresql": """
        CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$;
        CREATE TRIGGER full_disk BEFORE INSERT ON orders FOR EACH ROW WHEN (new.id = 7) EXECUTE FUNCTION full_disk()""",
    "mariadb": """
        CREATE TRIGGER full_disk BEFORE INSERT ON orders FOR EACH ROW
        IF new.id = 7 THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'Disk full'; END IF""",
}


@pytest.mark.servers
@pytest.mark.parametrize("kind", FULL)
def test_a_server_whose_disk_is_full_is_waited_for_and_no_row_is_taken_for_a_bad_one(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """The server's own error for a full disk, raised by a trigger in the middle of a batch."""
    base: Base = request.getfixturevalue({"postgresql": "postgres_base", "mariadb": "mariadb_base"}[kind])
    target = base.target(key=())
    deliver(target, ROWS[:5], at=fence(0))
    base.run(FULL[kind])
    with pytest.raises(Unavailable, match=r"(?i)is away: .*(no space left|disk full)") as told:
        deliver(target, ROWS[5:20], at=fence(1))
    assert not is_permanent(told.value)
    assert base.rows(columns="count(*)") == [(5,)]
    base.run("DROP TRIGGER full_disk" + (" ON orders" if kind == "postgresql" else ""))
    deliver(target, ROWS[5:20], at=fence(1))
    assert base.rows(columns="count(*), count(distinct id)") == [(20, 20)]
