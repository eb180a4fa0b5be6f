"""A database in a real MariaDB for each test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from headrace.capture import CaptureOptions
from headrace.capture.shapes import table_topic
from tests.capture.world import events, fold
from tests.servers.mariadb import MariadbServer

numbers = itertools.count(1)


class Shop:
    """A database and a session in it."""

    def __init__(self, server: MariadbServer, name: str) -> None:
        self.server = server
        self.name = name
        self.session = server.connect(name)

    def options(self, **more: Any) -> CaptureOptions:
        return CaptureOptions(name=self.name, url=self.server.url(self.name), **more)

    def run(self, *statements: str) -> None:
        with self.session.cursor() as cursor:
            for each in statements:
                cursor.execute(each)

    def topic(self, table: str) -> str:
        return table_topic(self.name, self.name, table)

    def check(self, log: str, table: str, *key: str) -> None:
        """The folded topic is the table, whose values must be the same in JSON as in Python."""
        rows = self.all(f"select * from `{table.replace('`', '``')}`")
        expected = {json.dumps({name: each[name] for name in key or ("id",)}): each for each in rows}
        assert fold(events(log, self.topic(table))) == expected

    def all(self, query: str) -> list[dict[str, Any]]:
        with self.session.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())


@pytest.fixture
def shop(mariadb: MariadbServer) -> Iterator[Shop]:
    name = f"shop{next(numbers)}"
    administer(mariadb, f"create database {name}")
    made = Shop(mariadb, name)
    try:
        yield made
    finally:
        made.session.close()
        administer(mariadb, f"drop database if exists {name}")


def administer(server: MariadbServer, statement: str) -> None:
    session = server.connect()
    try:
        with session.cursor() as cursor:
            cursor.execute(statement)
    finally:
        session.close()
