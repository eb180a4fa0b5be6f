"""One broker for all tests of capture, and a separate database or file for each test."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.capture import CaptureOptions
from headrace.testing import broker as start_broker
from tests.capture.shop import shop
from tests.servers.postgres import PostgresServer

__all__ = ["shop"]

numbers = itertools.count(1)


@pytest.fixture(scope="session")
def log() -> Iterator[str]:
    """A broker in this process: its address."""
    with start_broker() as running:
        yield running.bootstrap


class Database:
    """A database and a session in it."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.session = psycopg.connect(url, autocommit=True)

    def run(self, *statements: str) -> None:
        for each in statements:
            self.session.execute(each)

    def all(self, query: str) -> list[tuple[object, ...]]:
        return self.session.execute(query).fetchall()

    def another(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    name = f"test{next(numbers)}"
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
        made = Database(postgres.url(name), name)
        try:
            yield made
        finally:
            made.session.close()
            drop(admin, name)


class File:
    """A SQLite database and a session in it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.session = sqlite3.connect(path, isolation_level=None)
        self.session.row_factory = sqlite3.Row

    def options(self, **more: Any) -> CaptureOptions:
        return CaptureOptions(name=self.name, url=f"sqlite:///{self.path}", **more)

    def run(self, *statements: str) -> None:
        for each in statements:
            self.session.execute(each)

    def all(self, query: str) -> list[dict[str, Any]]:
        return [dict(row) for row in self.session.execute(query)]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    made = File(tmp_path / "shop.db", f"file{next(numbers)}")
    try:
        yield made
    finally:
        made.session.close()


def drop_slot(database: Database, name: str) -> None:
    """A slot goes only when the server has noticed that nobody streams from it any more."""
    while database.all(f"select 1 from pg_replication_slots where slot_name = '{name}' and active_pid is not null"):
        time.sleep(0.02)
    database.run(f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{name}'")


def drop(admin: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    """A database goes only after its slots, and a slot only after the process that streams from it."""
    of_slots = "from pg_replication_slots where database = %s and active_pid is"
    while admin.execute(f"select pg_terminate_backend(active_pid) {of_slots} not null", (name,)).fetchall():
        time.sleep(0.02)
    admin.execute(f"select pg_drop_replication_slot(slot_name) {of_slots} null", (name,))
    admin.execute(f"drop database {name} with (force)")
