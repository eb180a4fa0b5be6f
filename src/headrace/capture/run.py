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
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from headrace.capture.hidden import HiddenColumns, check_columns
from headrace.capture.options import CaptureOptions
from headrace.capture.report import CaptureReport
from headrace.capture.shapes import topic_name
from headrace.capture.signals import Signals
from headrace.capture.source import (
    DatabaseGone,
    DatabaseMissing,
    Progress,
    Source,
    SourceStatus,
    hiding_passwords,
    open_source,
)
from headrace.capture.state import read_state
from headrace.capture.writer import Writer
from headrace.client import Client, ClientOptions, StatePublisher, TopicPartition, TransactionLost, end_offsets
from headrace.errors import HeadraceError, KafkaError

__all__ = ["Capture", "CaptureOptions", "CaptureTakenOver", "end_running"]

COMMIT_BYTES_MAX = 64 * 1024 * 1024
"""A transaction of the database that is larger becomes visible in parts. A snapshot reads about as much in the time of
COMMIT_AGE_S; commits wait for the broker's disk."""
COMMIT_AGE_S = 0.2
READ_WAIT_S = 0.5
DAMAGE_TIMEOUT_MS = 5_000
"""A broker whose disk is full, or that has no leader, is reported after this time; then capture tries again."""
REFRESH_S = 1.0
"""How often the catalogue of the database is looked at."""
RETRY_PAUSE_S = 0.2
RETRY_PAUSE_S_MAX = 10.0


REMOVED = "removed"
"""The owner of a capture that is being removed: the process that runs it must not take it back."""


class CaptureTakenOver(HeadraceError):
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
        publisher: StatePublisher | None = None,
    ) -> None:
        """``publisher``: where the state is shown to people; nothing is published without one."""
        self.options = options
        self.figures = Figures()
        self._bootstrap = bootstrap
        self._client_options = client_options or ClientOptions(
            client_id=f"headrace-capture-{options.name}", damage_timeout_ms=DAMAGE_TIMEOUT_MS
        )
        self._say: Callable[[str], None] = lambda line: say(options.database.hidden_in(line))
        self._owner = os.urandom(8).hex()
        self._source: Source | None = None
        self._heartbeat_s = 0.0
        self._signals: Signals
        self._health = "ok"
        self._met_older_rows = False
        self._report = CaptureReport(options, publisher)

    def run(self, stop: threading.Event, *, until_current: bool = False, resnapshot: bool = False) -> None:
        """Follow the database until ``stop``, or until what it has now is in the log."""
        with hiding_passwords(self.options):
            self._run(stop, until_current, resnapshot)

    def _run(self, stop: threading.Event, until_current: bool, resnapshot: bool) -> None:
        pause_s = RETRY_PAUSE_S
        said: object = None
        while not stop.is_set():
            before = self.figures.commits
            try:
                self._session(stop, until_current, resnapshot)
                self._report.stopped()
                return
            except CaptureTakenOver:
                raise  # the process that runs it now reports on it
            except BaseException as error:
                self._report.failed(self._reason(error), ended=not self._passes(error))
                if not self._passes(error):
                    raise
                if said != (what := (str(error), self.figures.sessions)):  # a broker that stays away is named once
                    self._say(f"{error}; trying again in {pause_s:g} s")
                said = what
            resnapshot = resnapshot and self.figures.commits == 0
            pause_s = RETRY_PAUSE_S if self.figures.commits > before + 1 else min(pause_s * 2, RETRY_PAUSE_S_MAX)
            stop.wait(pause_s)
        self._report.stopped()

    def snapshots(self) -> dict[str, Progress]:
        """How far the snapshots of tables are; may be asked by another thread, of the session under way."""
        source = self._source
        return {} if source is None else source.snapshots()

    def _passes(self, error: BaseException) -> bool:
        """Whether a new session may do better."""
        if isinstance(error, DatabaseMissing):
            return self.figures.commits > 0
        return isinstance(error, DatabaseGone | TransactionLost) or (isinstance(error, KafkaError) and error.retriable)

    def _reason(self, error: BaseException) -> str:
        text = str(error) if isinstance(error, HeadraceError) else repr(error)
        return self.options.database.hidden_in(text)

    # ---- a session --------------------------------------------------------------------------------------------------

    def _session(self, stop: threading.Event, until_current: bool, resnapshot: bool) -> None:
        with Client(self._bootstrap, self._client_options) as client:
            if self.figures.sessions:
                self._check_owner(client)
            writer = Writer(client, self.options, self._say)
            state = writer.start()
            self._signals = Signals(client, self.options.topic_prefix, state, self._say)
            resnapshot = resnapshot or self._meets_older_rows(client, state)
            try:
                writer.commit({"owner": self._owner})
                self.figures.sessions += 1
                self._report.running()
                self._with_source(client, writer, state, stop, until_current, resnapshot)
            except BaseException:
                # Left open, the transaction would hold back every reader of its topics until it times out.
                with suppress(HeadraceError):
                    writer.abandon()
                raise

    def _with_source(
        self,
        client: Client,
        writer: Writer,
        state: dict[str, Any],
        stop: threading.Event,
        until_current: bool,
        resnapshot: bool,
    ) -> None:
        source = open_source(self._with_columns(writer, state, resnapshot), writer, self._say)
        try:
            source.start(state, resnapshot=resnapshot)
            self._source = source
            self._follow(client, source, writer, stop, until_current)
        finally:
            self._source = None
            source.close()

    def _with_columns(self, writer: Writer, state: Mapping[str, Any], resnapshot: bool) -> CaptureOptions:
        """The options, for columns as they are now; see ``hidden``."""
        if not self.options.chooses_columns and "hidden" not in state:
            return self.options
        with closing(open_source(self.options, None)) as source:
            columns = source.columns()
            for note in check_columns(source.options, columns):
                self._say(f"{self.options.name}: {note}")
            writer.hidden = HiddenColumns(source.options, state.get("hidden", {}), self._say)
        if resnapshot:
            writer.hidden.accept_order()
        writer.hidden.begin(columns)
        return writer.hidden.kept(self.options, columns)

    def _check_owner(self, client: Client) -> None:
        owner = read_state(client, self.options.name).get("owner")
        if owner in (None, REMOVED):
            raise CaptureTakenOver(f"capture {self.options.name!r} was removed; this process ends")
        if owner != self._owner:
            raise CaptureTakenOver(f"capture {self.options.name!r} was taken over by another process; this one ends")

    def _meets_older_rows(self, client: Client, state: Mapping[str, Any]) -> bool:
        """Whether a capture that has never run finds topics with records: of a capture that was removed, for instance.
        What was deleted since is not known, so each table begins with a truncation."""
        if "position" in state or not self.options.snapshot:
            return False
        prefix = f"{topic_name(self.options.topic_prefix)}."
        others = {f"{prefix}{each}" for each in ("transaction", "message", "dead-letters")}
        places = [
            TopicPartition(topic.name, partition.index)
            for topic in client.topics()
            if topic.name.startswith(prefix) and topic.name not in others
            for partition in topic.partitions
        ]
        if not any(end_offsets(client, places).values()):
            return False
        if not self._met_older_rows:
            self._say(f"topics {prefix}* have records already: every table begins with a truncation")
        self._met_older_rows = True
        return True

    def _follow(
        self, client: Client, source: Source, writer: Writer, stop: threading.Event, until_current: bool
    ) -> None:
        self._heartbeat_s = refreshed_s = time.monotonic()
        self._signals.take(source)
        self._commit(source, writer)
        read_whole, committed_s = _tables_read(source), refreshed_s
        while not stop.is_set():
            more = source.read(READ_WAIT_S)
            now_s = time.monotonic()
            # Also an empty table that was read need not be read again; of many tables not each is worth a commit.
            is_progress = source.at_boundary and _tables_read(source) != read_whole
            is_worth = is_progress and (not more or now_s - committed_s >= COMMIT_AGE_S)
            if is_worth or self._is_due(source, writer, more, now_s):
                read_whole, committed_s = _tables_read(source), now_s
                self._commit(source, writer)
            if source.at_boundary and self._heartbeat_is_due(now_s):
                self._commit(source, writer)
            if self._report.is_due(now_s):
                self._tell(source, writer)
            if source.at_boundary and now_s - refreshed_s >= REFRESH_S:
                if not writer.is_current():
                    self._check_owner(client)  # before anything is made again in the database
                source.refresh()
                if self._signals.take(source):
                    self._commit(source, writer)
                refreshed_s = now_s
            if until_current and source.caught_up():
                self._commit(source, writer)
                return
        if source.at_boundary:
            self._commit(source, writer)
        else:
            writer.abandon()

    def _heartbeat_is_due(self, now_s: float) -> bool:
        return now_s - self._heartbeat_s >= self.options.heartbeat_ms / 1000

    def _watch(self, source: Source) -> SourceStatus:
        """Say once when the database keeps too much for us, or is about to give it up; and once when that is over."""
        status = source.status()
        if status.health != self._health:
            lag = f"lag {status.lag_bytes}, retained {status.retained_bytes} bytes"
            advice = f"; {status.advice}" if status.advice else ""
            self._say(f"{self.options.name}: {status.health} ({lag}){advice}")
        self._health = status.health
        return status

    def _is_due(self, source: Source, writer: Writer, more: bool, now_s: float) -> bool:
        """Whole transactions are committed when nothing more is there, or when they are many or old."""
        if not writer.events_pending:
            return False
        if writer.bytes_pending >= COMMIT_BYTES_MAX:
            return True
        return source.at_boundary and (not more or now_s - writer.pending_since >= COMMIT_AGE_S)

    def _commit(self, source: Source, writer: Writer) -> None:
        """Events and position; once per heartbeat also a look at the database, and a heartbeat where the position has
        moved."""
        state: dict[str, Any] = source.position() | {"dead_letters": writer.dead_letters} | self._signals.state()
        if writer.hidden is not None:
            state["hidden"] = writer.hidden.state()
        if self._heartbeat_is_due(now_s := time.monotonic()):
            self._heartbeat_s = now_s
            if source.at_boundary and writer.is_new(state):
                prefix = self.options.topic_prefix
                value = b'{"ts_ms":%d}' % (time.time_ns() // 1_000_000)
                writer.add(f"__debezium-heartbeat.{prefix}", b'{"serverName":"%b"}' % prefix.encode(), value)
            self._tell(source, writer, self._watch(source))
        writer.commit(state)
        source.committed(state)
        self.figures.commits += 1
        self.figures.events = writer.events

    def _tell(self, source: Source, writer: Writer, status: SourceStatus | None = None) -> None:
        figures = self.figures
        self._report.running(
            source.snapshots(),
            status,
            dead_letters=dict(writer.dead_letters),
            events=figures.events,
            transactions=figures.commits,
            sessions=figures.sessions,
        )


def _tables_read(source: Source) -> int:
    return sum(each.done for each in source.snapshots().values())


def end_running(client: Client, options: CaptureOptions) -> bool:
    """Let a process that runs this capture write no more, and end: the capture is about to be removed. False if none
    has run it."""
    writer = Writer(client, options)
    has_run = "owner" in writer.start()
    writer.commit({"owner": REMOVED})
    return has_run
