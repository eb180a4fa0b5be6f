"""A separate database for each test of derived systems, on the servers that all tests share."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.sinks.world import Base

numbers = itertools.count(1)


@pytest.fixture
def postgres_base(postgres: PostgresServer) -> Base:
    name = f"sinks{next(numbers)}"
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
    return Base("postgresql", postgres.url(name))


@pytest.fixture
def mariadb_base(mariadb: MariadbServer) -> Base:
    name = f"sinks{next(numbers)}"
    with closing(mariadb.connect()) as admin, admin.cursor() as cursor:
        cursor.execute(f"create database {name}")
    return Base("mariadb", mariadb.url(name))


@pytest.fixture
def sqlite_base(tmp_path: Path) -> Base:
    return Base("sqlite", f"sqlite:///{tmp_path}/sinks.db")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.servers),
        pytest.param("mariadb", marks=pytest.mark.servers),
    ]
)
def base(request: pytest.FixtureRequest) -> Base:
    """The same test on each database."""
    names = {"sqlite": "sqlite_base", "postgresql": "postgres_base", "mariadb": "mariadb_base"}
    made: Base = request.getfixturevalue(names[request.param])
    return made
