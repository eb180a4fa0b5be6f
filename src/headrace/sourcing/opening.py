"""A store by its address. Drivers are loaded only for the kind of store that is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.address import Address
from headrace.errors import UsageError
from headrace.sourcing.privacy import PersonalData
from headrace.sourcing.store import Choices, EventStore
from headrace.sourcing.upcasting import Upcasters

if TYPE_CHECKING:
    from headrace.sourcing.keys import KeyStore

__all__ = ["open_store", "sqlite_path"]


def open_store(
    url: str | Path,
    *,
    keys: KeyStore | None = None,
    personal: Mapping[str, PersonalData] | None = None,
    upcasters: Upcasters | None = None,
    create: bool = True,
) -> EventStore:
    """Open a store, and make it if it is not there; without ``create`` that is a UsageError.

    sqlite:///FILE, or only the path of a file; postgresql://USER@HOST:PORT/DATABASE; kafka://HOST:PORT/TOPIC.
    """
    choices = Choices(keys=keys, personal=personal, upcasters=upcasters, create=create)
    if isinstance(url, Path) or "://" not in url:
        url = f"sqlite:///{url}"
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from headrace.sourcing.sqlite import SqliteStore

        return SqliteStore(sqlite_path(url), choices)
    if scheme in ("postgresql", "postgres"):
        from headrace.sourcing.postgres import PostgresStore

        return PostgresStore(url, choices)
    if scheme == "kafka":
        from headrace.sourcing.topics import TopicStore

        return TopicStore(url, choices)
    raise UsageError(
        f"{Address(url).shown} is no address of an event store",
        "use sqlite:///FILE, postgresql://USER@HOST/DATABASE or kafka://HOST:PORT/TOPIC",
    )


def sqlite_path(url: str) -> Path:
    """sqlite:///FILE is a file of this folder, sqlite:////FILE one by its whole path, as elsewhere."""
    return Path(Address(url).resolved().removeprefix("sqlite://").removeprefix("/"))
