"""A volume of PostgreSQL that is put back to an older state, and a server that crashed: which of the two it is."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.capture import CaptureOptions
from headrace.capture.postgres.replication import ReplicationStream, ServerIdentity
from headrace.capture.source import PositionLost
from tests.capture.conftest import Database
from tests.capture.kills_subjects import restarted
from tests.capture.test_postgres import options
from tests.capture.world import catch_up, events, fold
from tests.servers.postgres import PostgresServer, postgres_server

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def restored(server: PostgresServer, copy: Path) -> None:
    """Put a copy of the server's folder in the place of the folder."""
    server.stop()
    subprocess.run(["rm", "-rf", str(server.home / "data")], check=True)
    subprocess.run(["cp", "-a", str(copy), str(server.home / "data")], check=True)
    server.start()


def test_a_restored_volume_is_refused_also_when_it_has_been_written_to_since(
    log: str, own_server: PostgresServer, tmp_path: Path
) -> None:
    name = f"restored{time.monotonic_ns()}"
    capture = CaptureOptions(name=name, url=own_server.url())
    copy = tmp_path / "data"

    def run(*statements: str) -> None:
        with psycopg.connect(own_server.url(), autocommit=True) as session:
            for each in statements:
                session.execute(each)

    run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, capture)
    own_server.stop()
    subprocess.run(["cp", "-a", str(own_server.home / "data"), str(copy)], check=True)
    own_server.start()
    run("insert into t select generate_series(2, 50)")
    catch_up(log, capture)
    restored(own_server, copy)
    with pytest.raises(PositionLost, match="older copy"):
        catch_up(log, capture)
    run("insert into t select generate_series(1000, 9000)")
    with pytest.raises(PositionLost, match="older copy, written to since"):
        catch_up(log, capture)
    catch_up(log, capture, resnapshot=True)
    assert len(fold(events(log, f"{name}.public.t"))) == 8002


def test_a_server_with_another_identity_is_refused(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.capture.postgres.replication import ReplicationStream

    database.run("create table t (id int primary key)")
    catch_up(log, options(database))
    identify: Callable[[ReplicationStream], ServerIdentity] = ReplicationStream.identify
    monkeypatch.setattr(ReplicationStream, "identify", lambda self: identify(self)._replace(system="1"))
    with pytest.raises(PositionLost, match="another server"):
        catch_up(log, options(database))


def test_what_a_restored_volume_writes_up_to_the_position_is_not_taken_for_told(
    log: str, own_server: PostgresServer, tmp_path: Path
) -> None:
    """The position has moved on without transactions of captured tables, so the last one is in both histories. What
    the copy writes then has places before the position, and would be passed over as told already."""
    name = f"restored{time.monotonic_ns()}"
    capture = CaptureOptions(name=name, url=own_server.url(), tables=("t",))
    copy = tmp_path / "data"

    def run(*statements: str) -> None:
        with psycopg.connect(own_server.url(), autocommit=True) as session:
            for each in statements:
                session.execute(each)

    run("create table t (id int primary key)", "create table other (v text)", "insert into t values (1)")
    catch_up(log, capture)
    catch_up(log, capture)
    own_server.stop()
    subprocess.run(["cp", "-a", str(own_server.home / "data"), str(copy)], check=True)
    own_server.start()
    more = "insert into other select repeat('x', 100) from generate_series(1, 2000)"
    run(more)
    catch_up(log, capture)
    restored(own_server, copy)
    run("insert into t values (2)", more, more)
    with pytest.raises(PositionLost, match="an older copy"):
        catch_up(log, capture)
    catch_up(log, capture, resnapshot=True)
    assert len(fold(events(log, f"{name}.public.t"))) == 2


def test_a_slot_that_the_server_has_kept_at_an_older_place_is_followed(log: str, own_server: PostgresServer) -> None:
    """After a crash the server may not know how far it was told that capture is; nothing is missing then."""
    name = f"restored{time.monotonic_ns()}"
    capture = CaptureOptions(name=name, url=own_server.url(), tables=("t",))

    def run(*statements: str) -> None:
        with psycopg.connect(own_server.url(), autocommit=True) as session:
            for each in statements:
                session.execute(each)

    run("create table t (id int primary key)", "create table other (v text)", "insert into t values (1)")
    catch_up(log, capture)
    run("checkpoint", "insert into t values (2)", "insert into other values ('x')", "insert into t values (3)")
    catch_up(log, capture)
    run("insert into other select repeat('x', 100) from generate_series(1, 2000)")
    catch_up(log, capture)
    own_server.kill()
    restarted(own_server)
    run("insert into t values (4)")
    catch_up(log, capture)
    found = events(log, f"{name}.public.t")
    assert [each.key["id"] for each in found] == [1, 2, 3, 4]
