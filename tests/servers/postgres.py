"""PostgreSQL for the tests: that of the test kit, and a reason where it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from headrace.errors import HeadraceError
from headrace.testing.postgres import PostgresServer, postgres
from tests.servers.process import CannotRun, ended_with_us

__all__ = ["PostgresServer", "postgres_server"]


@contextmanager
def postgres_server(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A server that answers; at the end it is stopped and its folder removed."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres({"max_prepared_transactions": "5", **(settings or {})}))
        except HeadraceError as error:
            raise CannotRun(str(error)) from error
        stack.enter_context(ended_with_us(server.home / "data" / "postmaster.pid", server.home))
        yield server
