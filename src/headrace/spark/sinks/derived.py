"""The sinks of derived systems, by the names that pipelines use: ``hr.sinks.sql`` and its siblings."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace.address import Address
from headrace.errors import UsageError
from headrace.spark.arguments import given_names, topic_name
from headrace.spark.sinks.following import TargetSink
from headrace.spark.sinks.plain import Sink
from headrace.spark.source.reading import option_texts
from headrace.spark.topic_sink.options import check_options
from headrace.targets.sql.dialect import TableName
from headrace.targets.sql.table import SqlTarget, check_address
from headrace.targets.target import Target

__all__ = ["delta", "email", "find", "opensearch", "redis", "search", "sql", "webhook"]


def sql(
    url: str,
    *,
    table: str | Sequence[str],
    key: str | Sequence[str] = (),
    version: str | None = None,
    create: bool = False,
    widen: bool = False,
    **more: Any,
) -> Sink:
    """A table in PostgreSQL, MariaDB, MySQL or SQLite that follows: upserts and deletes by ``key``, exactly once.

    Without a key rows are added, exactly once too. ``version`` names a column that orders changes: an older change does
    not replace a newer one that was written before it. ``create`` makes the table when there is none, ``widen`` adds
    columns and makes numbers wider. ``${NAME}`` in the address is read from the environment.

    ``more``, as for all sinks below: ``op`` names a column of plain rows with insert, update or delete;
    ``dead_letters`` a topic for rows that the target refuses, which end the pipeline otherwise; ``refused_max`` how
    many of them a batch may have; ``bootstrap`` and ``options`` are for the broker with that topic.
    """
    names = given_names("key", key)
    made = _following(SqlTarget(Address(url), TableName.of(table), names, version, create, widen), more)
    check_address(Address(url))
    if version and not key:
        raise UsageError(f"version={version!r} tells the newer of two rows with one key, and there is no key", "key=…")
    return made


def search(
    url: str,
    *,
    index: str,
    key: str | Sequence[str],
    text: str | Sequence[str] = (),
    match: Literal["words", "parts"] = "words",
    **more: Any,
) -> Sink:
    """A search index in a file, ``sqlite:///FILE``: rows by ``key``, found by their columns of text, exactly once.

    ``text`` names the columns to search in; all columns of text otherwise. ``match="parts"`` finds parts of words too.
    """
    from headrace.targets.search import SearchTarget

    if Address(url).scheme != "sqlite":
        raise UsageError(f"{Address(url).shown} is no file", "sqlite:///FILE; a server: hr.sinks.opensearch(…)")
    check_address(Address(url))
    name = TableName.of((index,))
    target = SearchTarget(
        Address(url),
        name,
        given_names("key", key),
        None,
        create=True,
        widen=True,
        text=given_names("text", text),
        match=match,
    )
    return _following(target, more)


def opensearch(url: str, *, index: str, key: str | Sequence[str], version: str | None = None, **more: Any) -> Sink:
    """An index of OpenSearch or Elasticsearch: documents by ``key``, through its bulk API, under external versions."""
    from headrace.targets.opensearch import OpenSearchTarget

    return _following(OpenSearchTarget(Address(url), index, given_names("key", key), version), more)


def find(url: str, *, index: str, text: str, limit: int = 10) -> list[dict[str, Any]]:
    """What an index holds for these words, best first, with a ``score``: of a file or of a server, by its address."""
    address = Address(url)
    if address.scheme == "sqlite":
        from headrace.targets.search import find_in_file

        return find_in_file(address, index, text, limit)
    from headrace.targets.opensearch import find_on_server

    return find_on_server(address, index, text, limit)


def redis(
    url: str,
    *,
    name: str,
    key: str | Sequence[str],
    form: Literal["keys", "map"] = "keys",
    expire_s: int | None = None,
    **more: Any,
) -> Sink:
    """Rows as JSON in Redis: under ``name`` and their key (``form="keys"``), or as fields of one hash (``"map"``)."""
    target = _library("headrace.targets.redis").RedisTarget
    return _following(target(Address(url), name, given_names("key", key), form, expire_s), more)


def delta(
    path: str,
    *,
    key: str | Sequence[str] = (),
    widen: bool = False,
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    **more: Any,
) -> Sink:
    """A Delta table: rows are added exactly once, or merged by ``key``. ``storage_options`` are those of deltalake."""
    target = _library("headrace.targets.delta").DeltaTarget
    storage = tuple((storage_options or {}).items())
    return _following(target(str(path), given_names("key", key), widen, tuple(partition_by), storage), more)


def webhook(
    url: str,
    *,
    secret: str | Sequence[str],
    allow_private: bool = False,
    attempts: int = 5,
    timeout_s: float = 15.0,
    **more: Any,
) -> Sink:
    """Each row a POST, signed as Standard Webhooks says; at least once, with an id that a repetition has again.

    ``secret`` is ``whsec_…`` or ``${NAME}``; several sign side by side. Private addresses are refused.
    """
    from headrace.targets.webhook import WebhookTarget

    secrets = (secret,) if isinstance(secret, str) else tuple(secret)
    target = WebhookTarget(Address(url), secrets, allow_private=allow_private, attempts=attempts, timeout_s=timeout_s)
    return _following(target, more)


def email(
    url: str,
    *,
    sender: str,
    to: str | Sequence[str] = (),
    to_column: str | None = None,
    subject: str = "",
    body: str = "",
    tls: bool = True,
    **more: Any,
) -> Sink:
    """Each row a message; at least once, with a Message-ID that a repetition has again. ``$column`` in texts."""
    from headrace.targets.email import EmailTarget

    return _following(EmailTarget(Address(url), sender, given_names("to", to), to_column, subject, body, tls), more)


def _following(
    target: Target,
    more: Mapping[str, Any],
) -> Sink:
    unknown = sorted(set(more) - {"op", "dead_letters", "refused_max", "bootstrap", "options"})
    if unknown:
        raise UsageError(f"a sink knows no {unknown[0]!r}", "op, dead_letters, refused_max, bootstrap, options")
    if more.get("dead_letters") is not None:
        topic_name(more["dead_letters"], "dead_letters=")
    if not isinstance(more.get("refused_max", 0), int) or more.get("refused_max", 0) < 0:
        raise UsageError(f"refused_max={more['refused_max']!r} must be a number of rows, 0 or more")
    check_options(option_texts(more.get("options") or {}))
    return TargetSink(target, **more)


def _library(module: str) -> Any:
    """A module that needs a library which not everybody has."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"this sink needs {error.name}", "pip install 'headrace[sinks]'") from error
