"""Logins of sinks: passwords of any kind work, wrong ones end the pipeline, and none is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest

from headrace.address import Address
from headrace.errors import UsageError
from headrace.spark.run.failures import is_permanent
from headrace.targets.redis import RedisTarget
from headrace.targets.sql.dialect import TableName
from headrace.targets.sql.table import SqlTarget
from headrace.targets.target import Target
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import postgres_server
from tests.servers.redis import RedisServer
from tests.sinks.world import deliver, fence
from tests.skips import or_skip

pytestmark = pytest.mark.servers

PASSWORD = "p@ss/w:rd?#%41'"


@pytest.fixture(scope="module")
def postgres_that_asks() -> Iterator[str]:
    """The address of a server that wants a password from ``app``, without the user."""
    with or_skip(), postgres_server() as server:
        rules = server.home / "data" / "pg_hba.conf"
        rules.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("SELECT pg_reload_conf()")
            quoted = PASSWORD.replace("'", "''")
            admin.execute(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{quoted}'".encode())
        yield urlsplit(server.url()).netloc.rpartition("@")[2]


def table_at(url: str) -> SqlTarget:
    return SqlTarget(Address(url), TableName("orders"), ("id",), create=True)


def check_refused(target: Target, secret: str) -> None:
    with pytest.raises(UsageError, match="refuses the login") as told:
        deliver(target, [(1, "a")], at=fence(0))
    assert is_permanent(told.value)
    assert secret not in str(told.value)
    assert "check user, password and database" in str(told.value.hint)


def test_postgresql_takes_a_password_of_any_kind_and_a_wrong_one_ends_the_pipeline(
    postgres_that_asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANT_PASSWORD", PASSWORD)
    deliver(table_at(f"postgresql://app:${{PLANT_PASSWORD}}@{postgres_that_asks}/postgres"), [(1, "a")], at=fence(0))
    check_refused(table_at(f"postgresql://app:not+this@{postgres_that_asks}/postgres"), "not+this")
    check_refused(table_at(f"postgresql://app@{postgres_that_asks}/postgres"), PASSWORD)
    check_refused(table_at(f"postgresql://nobody:not+this@{postgres_that_asks}/postgres"), "not+this")
    check_refused(table_at(f"postgresql://postgres:not+this@{postgres_that_asks}/nowhere"), "not+this")


def test_mariadb_takes_a_password_of_any_kind_and_a_wrong_one_ends_the_pipeline(
    mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(mariadb.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE DATABASE logins")
        cursor.execute("CREATE USER app@'127.0.0.1' IDENTIFIED BY %s", (PASSWORD,))
        cursor.execute("GRANT ALL ON logins.* TO app@'127.0.0.1'")
    where = urlsplit(mariadb.url("logins")).netloc.rpartition("@")[2]
    monkeypatch.setenv("PLANT_PASSWORD", PASSWORD)
    deliver(table_at(f"mysql://app:${{PLANT_PASSWORD}}@{where}/logins"), [(1, "a")], at=fence(0))
    check_refused(table_at(f"mysql://app:not+this@{where}/logins"), "not+this")
    check_refused(table_at(f"mysql://app:${{PLANT_PASSWORD}}@{where}/nowhere"), PASSWORD)


def test_redis_takes_a_password_of_any_kind_and_a_wrong_one_ends_the_pipeline(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import redis as library

    with library.Redis.from_url(redis.url()) as admin:
        admin.acl_setuser("app", enabled=True, passwords=[f"+{PASSWORD}"], keys=["*"], commands=["+@all"])
    where = urlsplit(redis.url()).netloc.rpartition("@")[2]
    monkeypatch.setenv("PLANT_PASSWORD", PASSWORD)
    good = RedisTarget(Address(f"redis://app:${{PLANT_PASSWORD}}@{where}/0"), "logins", ("id",), "map")
    deliver(good, [(1, "a")], at=fence(0))
    check_refused(RedisTarget(Address(f"redis://app:not+this@{where}/0"), "logins", ("id",), "map"), "not+this")
