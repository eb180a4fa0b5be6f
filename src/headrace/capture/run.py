"""A capture at work: sessions of reading and committing, begun again whenever database or broker were away.

A session takes the capture's name over, reads the state that was committed last, and follows the database from there.
Whatever fails ends the session, and the next one begins from what the log then says: no outcome has to be guessed.

**Two captures of one name.** The later one takes the transactional id over, and says so in the state *before* it
touches the database. So the earlier one, whichever way it notices (its transaction is lost, the database has closed its
connection), finds another owner in the state, and ends.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.capture.options import CaptureOptions
from headrace.capture.source import DatabaseGone, Progress, Source, open_source
from headrace.capture.state import read_state
from headrace.capture.writer import Writer
from headrace.client import Client, ClientOptions, TransactionLost
from headrace.errors import HeadraceError, KafkaError

__all__ = ["Capture", "CaptureOptions", "Taken"]

COMMIT_BYTES = 4 * 1024 * 1024
COMMIT_BYTES_MAX = 64 * 1024 * 1024
"""A transaction of the database that is larger becomes visible in parts."""
COMMIT_AGE_S = 0.2
READ_WAIT_S = 0.5
RETRY_PAUSE_S = 0.2
RETRY_PAUSE_S_MAX = 10.0


class Taken(HeadraceError):
    """Another process runs the capture of this name."""


@dataclass(slots=True)
class Figures:
    """What a run has done so far."""

    events: int = 0
    commits: int = 0
    sessions: int = 0


class Capture:
    """One capture, run by one thread."""

    def __init__(
        self,
        bootstrap: str,
        options: CaptureOptions,
        *,
        client_options: ClientOptions | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.options = options
        self.figures = Figures()
        self._bootstrap = bootstrap
        self._client_options = client_options or ClientOptions(client_id=f"headrace-capture-{options.name}")
        self._say = say
        self._owner = os.urandom(8).hex()
        self._source: Source | None = None
        self._health = "ok"

    def run(self, stop: threading.Event, *, until_current: bool = False, resnapshot: bool = False) -> None:
        """Follow the database until ``stop``, or until what it has now is in the log."""
        pause_s = RETRY_PAUSE_S
        while not stop.is_set():
            before = self.figures.commits
            try:
                self._session(stop, until_current, resnapshot)
                return
            except (DatabaseGone, KafkaError) as error:
                if isinstance(error, KafkaError) and not self._may_pass(error):
                    raise
                self._say(f"{error}; trying again in {pause_s:g} s")
            resnapshot = resnapshot and self.figures.commits == 0
            pause_s = RETRY_PAUSE_S if self.figures.commits > before + 1 else min(pause_s * 2, RETRY_PAUSE_S_MAX)
            stop.wait(pause_s)

    def snapshots(self) -> dict[str, Progress]:
        """How far the snapshots of tables are; may be asked by another thread, of the session under way."""
        source = self._source
        return {} if source is None else source.snapshots()

    def _may_pass(self, error: KafkaError) -> bool:
        return error.retriable or isinstance(error, TransactionLost)

    # ---- a session --------------------------------------------------------------------------------------------------

    def _session(self, stop: threading.Event, until_current: bool, resnapshot: bool) -> None:
        with Client(self._bootstrap, self._client_options) as client:
            if self.figures.sessions:
                self._check_owner(client)
            writer = Writer(client, self.options, self._say)
            state = writer.start()
            try:
                writer.commit({"owner": self._owner})
                self.figures.sessions += 1
                self._with_source(writer, state, stop, until_current, resnapshot)
            except BaseException:
                # Left open, the transaction would hold back every reader of its topics until it times out.
                with suppress(HeadraceError):
                    writer.abandon()
                raise

    def _with_source(
        self, writer: Writer, state: dict[str, Any], stop: threading.Event, until_current: bool, resnapshot: bool
    ) -> None:
        source = open_source(self.options, writer)
        try:
            source.start(state, resnapshot=resnapshot)
            self._source = source
            self._follow(source, writer, stop, until_current)
        finally:
            self._source = None
            source.close()

    def _check_owner(self, client: Client) -> None:
        owner = read_state(client, self.options.name).get("owner")
        if owner not in (None, self._owner):
            raise Taken(f"capture {self.options.name!r} was taken over by another process; this one ends")

    def _follow(self, source: Source, writer: Writer, stop: threading.Event, until_current: bool) -> None:
        self._commit(source, writer)
        heartbeat_s = time.monotonic()
        read_whole = _tables_read(source)
        while not stop.is_set():
            more = source.read(READ_WAIT_S)
            now_s = time.monotonic()
            if self._is_due(source, writer, more, now_s) or (source.at_boundary and _tables_read(source) != read_whole):
                read_whole = _tables_read(source)  # also of an empty table: it need not be read again
                self._commit(source, writer)
            if source.at_boundary and now_s - heartbeat_s >= self.options.heartbeat_ms / 1000:
                heartbeat_s = now_s
                self._commit(source, writer, heartbeat=True)
                self._watch(source)
            if until_current and source.caught_up():
                self._commit(source, writer)
                return
        if source.at_boundary:
            self._commit(source, writer)
        else:
            writer.abandon()

    def _watch(self, source: Source) -> None:
        """Say once when the database keeps too much for us, or is about to give it up; and once when that is over."""
        status = source.status()
        if status.health != self._health:
            self._say(
                f"{self.options.name}: {status.health} (lag {status.lag_bytes}, retained {status.retained_bytes} bytes)"
            )
        self._health = status.health

    def _is_due(self, source: Source, writer: Writer, more: bool, now_s: float) -> bool:
        """Whole transactions are committed when nothing more is there, or when they are many or old."""
        if not writer.events_pending:
            return False
        if writer.bytes_pending >= COMMIT_BYTES_MAX:
            return True
        old = now_s - writer.pending_since >= COMMIT_AGE_S
        return source.at_boundary and (not more or old or writer.bytes_pending >= COMMIT_BYTES)

    def _commit(self, source: Source, writer: Writer, *, heartbeat: bool = False) -> None:
        state: dict[str, Any] = source.position()
        if heartbeat and writer.is_new(state):
            prefix = self.options.topic_prefix
            value = b'{"ts_ms":%d}' % (time.time_ns() // 1_000_000)
            writer.add(f"__debezium-heartbeat.{prefix}", b'{"serverName":"%b"}' % prefix.encode(), value)
        writer.commit(state)
        source.committed(state)
        self.figures.commits += 1
        self.figures.events = writer.events


def _tables_read(source: Source) -> int:
    return sum(each.done for each in source.snapshots().values())
