"""A store in a topic of the log, headrace's or Apache Kafka's: for those who have no database.

The topic has one partition and one record per event (``records.py``). A Kafka offset cannot be the position, since
transactions leave gaps in offsets; so each record has its position in it.

**One writer at a time.** Whether an append fits is decided from what the topic has, so only one process may append.
It holds a *lease*: a record in a second, compacted topic that says who writes and until when. A second process that
wants to append is refused with the owner's name (``WriterBusy``) until the lease ends: the owner closes the store, or
is dead and has not renewed it. The lease is a courtesy; what keeps two writers apart is the *fence*: appends are
transactions under one transactional id, and a process that takes the lease takes the id over. A writer that was only
slow can then commit nothing more, and its next append is refused with the name of its successor.

**Reading needs an index**: versions of streams, tags, ids. It is a SQLite store that is filled from the topic, in a
temporary file (``temporary.py``) or in one that is kept (``?index=FILE``); losing it costs reading the topic again.
Any number of processes read, each with its index; only the first append takes the lease.

An append is checked and written in a transaction of the index, then committed in the log, and then in the index. What
dies between the two leaves an index that is behind, and catches up when it is next opened.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace.address import Address
from headrace.client import (
    Client,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    PositionedProducer,
    TopicPartition,
    TransactionLost,
    end_offsets,
)
from headrace.client.positioned import ensure_topic, read_state, topic_exists
from headrace.errors import HeadraceError, KafkaError, UsageError
from headrace.sourcing.appends import Appended, Request
from headrace.sourcing.errors import SourcingError, StoreUnavailable, WriterBusy
from headrace.sourcing.events import Query, Row
from headrace.sourcing.privacy import FORGOTTEN_STREAM
from headrace.sourcing.publishing import EVENTS_CONFIG, state_topic
from headrace.sourcing.records import record_of, row_of
from headrace.sourcing.sqlite import INSERT, SqliteStore, explained
from headrace.sourcing.store import Choices, StreamInfo, no_store
from headrace.sourcing.temporary import TemporaryFolder

__all__ = ["TopicStore"]

LEASE_S = 10.0
LEASE_S_MAX = 3600.0
POLL_TIMEOUT_MS = 1_000
PROGRESS = "progress:"


class TopicStore(SqliteStore):
    """See the module: kafka://HOST:PORT/TOPIC, with ?index=FILE and ?lease=SECONDS."""

    def __init__(self, url: str, choices: Choices | None = None) -> None:
        parts = urlsplit(url)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self._topic = parts.path.strip("/")
        if not parts.netloc or "@" in url or not self._topic or set(given) - {"index", "lease"}:
            raise UsageError(
                f"{Address(url).shown} is no topic", "use kafka://HOST:PORT/TOPIC, with ?index=FILE or ?lease=SECONDS"
            )
        self._lease_s = _seconds(given.get("lease", str(LEASE_S)))
        self._owner = f"{socket.gethostname()} process {os.getpid()} {os.urandom(3).hex()}"
        self._temporary = None if "index" in given else TemporaryFolder()
        index = Path(given["index"]) if self._temporary is None else self._temporary.path / "index.db"
        self._log = threading.RLock()
        self._place = TopicPartition(self._topic, 0)
        self._producer: PositionedProducer | None = None
        self._fresh: list[Row] = []
        self._fresh_progress: dict[str, Any] = {}
        self._renewal: threading.Thread | None = None
        self._ended = threading.Event()
        self._client = Client(parts.netloc, ClientOptions(client_id="headrace-events"))
        try:
            if choices is not None and not choices.create and not topic_exists(self._client, self._topic):
                raise no_store(f"kafka://{parts.netloc}/{self._topic}")
            ensure_topic(self._client, self._topic, partitions=1, config=EVENTS_CONFIG)
            self._check_topic()
            self._consumer = Consumer(
                self._client, ConsumerOptions(reset="error", fetch=FetchOptions(read_committed=True))
            )
            super().__init__(index, replace(choices or Choices(), create=True), synced=False)
        except BaseException as error:
            self._client.close()
            if self._temporary is not None:
                self._temporary.remove()
            if isinstance(error, KafkaError):
                raise _unavailable(f"kafka://{parts.netloc}/{self._topic}", error) from error
            raise
        self.shown = f"kafka://{parts.netloc}/{self._topic}"

    def _check_topic(self) -> None:
        count = len(self._client.topic(self._topic).partitions)
        if count != 1:
            raise UsageError(f"topic {self._topic} has {count} partitions", "the topic of an event store has one")

    def _make_tables(self) -> None:
        super()._make_tables()
        self._writer.execute(
            "create table if not exists headrace_index "
            "(only_row integer primary key, topic_id text, next_offset integer)"
        )
        topic_id = self._client.topic_id(self._topic).hex()
        found = self._writer.execute("select topic_id, next_offset from headrace_index").fetchone()
        if found is not None and found[0] != topic_id:
            for table in ("events", "tags", "progress", "snapshots", "index"):
                self._writer.execute(f"delete from headrace_{table}")
            found = None
        if found is None:
            self._writer.execute("insert into headrace_index values (1, ?, 0)", (topic_id,))
        self._consumer.assign({self._place: 0 if found is None else found[1]})
        self._catch_up()

    # ---- the index --------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Bring the index to the end that the topic has now. A writer is there already."""
        self._opener.check(self.shown)
        if self._producer is not None:
            return
        with self._log:
            try:
                end = end_offsets(self._client, [self._place])[self._place]
                while (before := self._consumer.positions[self._place]) < end:
                    try:
                        records = self._consumer.poll(POLL_TIMEOUT_MS).get(self._place, [])
                        self._index([record.value for record in records if record.value is not None])
                    except BaseException:
                        self._writer.rollback()
                        self._consumer.assign({self._place: before})  # what is not in the index is read again
                        raise
                    if self._consumer.positions[self._place] == before and self._consumer.at_end():
                        return  # what follows belongs to a transaction that is open
            except KafkaError as error:
                raise _unavailable(self.shown, error) from error
            except sqlite3.Error as error:
                raise explained(str(self.path), error) from error

    def _index(self, values: Sequence[bytes]) -> None:
        try:
            rows = [row_of(value) for value in values]
        except (ValueError, KeyError, TypeError) as error:
            raise SourcingError(f"topic {self._topic} is not the topic of an event store: {error!r}") from error
        self._begin()
        (head,) = self._writer.execute("select coalesce(max(position), 0) from headrace_events").fetchone()
        for row in rows:
            if row[0] <= head:
                continue  # written by this process before it had read that far
            if row[0] != head + 1:
                raise SourcingError(
                    f"topic {self._topic} has position {row[0]} after {head}: records are missing (retention?), or "
                    "it is not the topic of an event store"
                )
            self._insert(row)
            if row[1] == FORGOTTEN_STREAM:  # forgotten by another process, which cannot see the snapshots here
                self._writer.execute("delete from headrace_snapshots")
            head = row[0]
        self._writer.execute("update headrace_index set next_offset = ?", (self._consumer.positions[self._place],))
        self._writer.execute("commit")

    def _insert(self, row: Row) -> None:
        self._writer.execute(INSERT, row)
        for tag in set(json.loads(row[7])):
            self._writer.execute("insert into headrace_tags values (?, ?)", (tag, row[0]))

    # ---- the lease --------------------------------------------------------------------------------------------------

    def _write(self, batch: Sequence[Request]) -> None:
        with self._log:
            super()._write(batch)

    def _write_together(self, batch: Sequence[Request]) -> bool:
        if self._producer is None:
            self._become_writer()
        self._fresh, self._fresh_progress = [], {}
        return super()._write_together(batch)

    def _become_writer(self) -> None:
        try:
            self._check_lease(read_state(self._client, state_topic(self._topic)))
            producer = PositionedProducer(
                self._client, f"headrace-events-{self._topic}", state_topic(self._topic), topic_config=EVENTS_CONFIG
            )
            state = producer.start()  # from here on, nobody else can commit
            producer.ensure(self._topic)
            producer.commit({"lease": self._lease()})
            self._catch_up()
        except TransactionLost as error:
            raise self._lost() from error
        except KafkaError as error:
            raise _unavailable(self.shown, error) from error
        self._take_progress(state)
        self._producer = producer
        self._renewal = threading.Thread(target=self._renew, name="headrace-lease", daemon=True)
        self._renewal.start()

    def _lease(self, seconds: float | None = None) -> dict[str, Any]:
        seconds = self._lease_s if seconds is None else seconds
        return {"owner": self._owner, "until_ms": int((time.time() + seconds) * 1000)}

    def _check_lease(self, state: dict[str, Any]) -> None:
        if "position" in state:
            raise SourcingError(f"{self.shown} follows another store, which is published to it: append there")
        lease = state.get("lease", {})
        left_s = lease.get("until_ms", 0) / 1000 - time.time()
        if left_s > 0 and lease["owner"] != self._owner:
            raise WriterBusy(
                f"{self.shown} is written by {lease['owner']}, whose lease ends in {left_s:.1f} s unless it is "
                "renewed: a log has one writer at a time",
                lease["owner"],
            )

    def _lost(self) -> SourcingError:
        """Somebody has taken the id over; the state says who. Nobody has: the transaction took too long."""
        self._producer = None
        with suppress(HeadraceError):
            owner = read_state(self._client, state_topic(self._topic)).get("lease", {}).get("owner", "unknown")
            if owner == self._owner:
                return StoreUnavailable(
                    f"{self.shown}: the broker has ended a transaction that took too long; try again"
                )
            return WriterBusy(f"{self.shown} was taken over by {owner}: this process cannot append any more", owner)
        return WriterBusy(f"{self.shown} was taken over by another writer", "unknown")

    def _take_progress(self, state: dict[str, Any]) -> None:
        for name, position in state.items():
            if name.startswith(PROGRESS):
                self._writer.execute(
                    "insert or replace into headrace_progress values (?, ?)", (name.removeprefix(PROGRESS), position)
                )

    def _renew(self) -> None:
        while not self._ended.wait(self._lease_s / 3):
            with self._log:
                if self._producer is None:
                    return
                try:
                    self._producer.commit({"lease": self._lease()})
                except KafkaError:
                    self._producer = None  # the next append asks again who writes
                    return

    # ---- append -----------------------------------------------------------------------------------------------------

    def _written(self, request: Request) -> Appended:
        done = super()._written(request)
        if request.progress is not None:
            self._fresh_progress[PROGRESS + request.progress.name] = request.progress.position
        self._fresh += self._writer.execute(
            "select * from headrace_events where position >= ? order by position", (done.first_position,)
        ).fetchall()
        return done

    def _commit(self, batch: Sequence[Request]) -> None:
        try:
            self._commit_log()
            super()._commit(batch)
        except BaseException:
            # The log may have what the index has not: a writer with such an index would give positions out twice. The
            # next append becomes the writer again, and reads to the end first.
            self._producer = None
            raise

    def _commit_log(self) -> None:
        producer = self._producer
        assert producer is not None, "only the writer commits"
        try:
            for row in self._fresh:
                producer.add(self._topic, *record_of(row))
            if self._fresh or self._fresh_progress:
                producer.commit({**self._fresh_progress, "lease": self._lease()})
        except TransactionLost as error:
            raise self._lost() from error
        except KafkaError as error:
            raise _unavailable(self.shown, error) from error

    # ---- read -------------------------------------------------------------------------------------------------------

    def _select(self, query: Query, after: int, until: int | None, limit: int, *, backwards: bool = False) -> list[Row]:
        self._catch_up()
        return super()._select(query, after, until, limit, backwards=backwards)

    def _select_stream(
        self, stream: str, after: int, until: int | None, limit: int, *, backwards: bool = False
    ) -> list[Row]:
        self._catch_up()
        return super()._select_stream(stream, after, until, limit, backwards=backwards)

    def head(self) -> int:
        self._catch_up()
        return super().head()

    def version(self, stream: str) -> int:
        self._catch_up()
        return super().version(stream)

    def streams(self, category: str | None = None, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        self._catch_up()
        return super().streams(category, after=after, limit=limit)

    def progress(self, name: str) -> int:
        self._opener.check(self.shown)
        with self._log:
            if self._producer is None:
                return int(read_state(self._client, state_topic(self._topic)).get(PROGRESS + name, 0))
        return super().progress(name)

    def _rows_with_ids(self, ids: Sequence[str]) -> list[Row]:
        self._catch_up()
        return super()._rows_with_ids(ids)

    def command_result(self, command_id: str) -> Appended | None:
        self._catch_up()
        return super().command_result(command_id)

    def _finish_forgetting(self) -> None:
        with suppress(WriterBusy):  # then the writer does it, when it opens the store next
            super()._finish_forgetting()

    def _close(self) -> None:
        self._ended.set()
        with self._log:
            if self._producer is not None:
                with suppress(KafkaError):
                    self._producer.commit({"lease": self._lease(seconds=0)})
            self._producer = None
            self._client.close()
        if self._renewal is not None:
            self._renewal.join()
        super()._close()
        if self._temporary is not None:
            self._temporary.remove()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LEASE_S_MAX:
        raise UsageError(f"?lease={text} is no number of seconds", f"use more than 0, and at most {LEASE_S_MAX:g}")
    return seconds


def _unavailable(shown: str, error: KafkaError) -> SourcingError:
    text = f"{shown}: {error}"
    return StoreUnavailable(text) if error.retriable else SourcingError(text)
