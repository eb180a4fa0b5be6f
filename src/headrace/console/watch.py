"""A second thread beside the sampler: what pipelines and captures publish of themselves, and the queues of a broker.

State records are read as they come (one small fetch a second). Queues are listed every other second, where the broker
has any. Numbers of both go into a history for charts.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from headrace.client import Client, ClientOptions, NoQueues, QueueInfo, Queues, StateReader, StateRecord
from headrace.console.history import History
from headrace.console.pool import CLIENT_OPTIONS
from headrace.errors import HeadraceError

__all__ = ["QueueFigures", "Watch", "Watched", "figure"]

logger = logging.getLogger(__name__)

WATCH_S = 1.0
QUEUES_S = 2.0
NO_QUEUES_S = 30.0
"""A broker without queues is asked again after this time."""
PAUSE_S_MAX = 15.0
QUEUES_MAX = 2_000
FIGURE_MAX = 1e18
"""What a state record says beyond this is no figure."""
LEVELS = ("rows_per_s", "lag", "lag_ms", "lag_bytes", "retained_bytes")
EVENTS = "events_per_s"
OF_QUEUES = ("ready", "unacknowledged", "published", "delivered")
GROUP_PREFIX = "headrace-spark-"
FIRST_S = 5.0
"""How long a page waits for the first look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """A queue with what went in and out of it per second since the last look."""

    info: QueueInfo
    published_per_s: float = 0.0
    delivered_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was seen last. ``no_queues`` says why there are none.

    While the broker does not answer, nobody can report to it, and silence says nothing. ``seen_ms`` is the last answer,
    and ``left_ms`` and ``back_ms`` are the ends of the last time without one.
    """

    states: Mapping[str, StateRecord] = field(default_factory=dict)
    queues: Mapping[str, QueueFigures] = field(default_factory=dict)
    no_queues: str = ""
    problem: str = ""
    seen_ms: int = 0
    left_ms: int = 0
    back_ms: int = 0

    def is_lost(self, record: StateRecord) -> bool:
        """Whether a subject stopped without saying so, as far as it could be heard."""
        if not self.seen_ms:
            return record.is_lost()
        if self.left_ms and record.is_lost(self.left_ms):
            return True
        return replace(record, at_ms=max(record.at_ms, self.back_ms)).is_lost(self.seen_ms)

    def is_alive(self, record: StateRecord) -> bool:
        return not record.ended and not self.is_lost(record)

    def pipeline_of(self, group: str) -> StateRecord | None:
        """The pipeline whose positions a group shows to tools. Spark never reads them; it has a checkpoint."""
        return next((each for each in self.of("pipeline") if group == GROUP_PREFIX + _slug(each.name)), None)

    def of(self, kind: str) -> list[StateRecord]:
        return sorted((each for each in self.states.values() if each.kind == kind), key=lambda each: each.name)


class Watch:
    """Renews ``newest`` and fills ``history``; its thread is the only writer of both."""

    def __init__(self, bootstrap: str, options: ClientOptions = CLIENT_OPTIONS) -> None:
        self.newest = Watched()
        self.history = History()
        self._bootstrap = bootstrap
        self._options = options
        self._client: Client | None = None
        self._reader: StateReader | None = None
        self._queues_s = float("-inf")
        self._queues_due_s = float("-inf")
        self._counts: dict[str, tuple[int, int]] = {}
        self._events: dict[str, tuple[int, int | float, dict[str, float]]] = {}
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def look(self) -> Watched:
        """What was seen last; waits for the first look."""
        self._looked.wait(FIRST_S)
        return self.newest

    def again(self) -> None:
        """Look at the queues at once: something was changed."""
        self._queues_due_s = float("-inf")
        self._wanted.set()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = WATCH_S
        while not self._stopped.is_set():
            try:
                self._sample(time.monotonic(), time.time())
                pause_s = WATCH_S
            except Exception as error:  # whatever it is, the thread goes on: its pages would show old figures forever
                if not isinstance(error, HeadraceError | OSError):
                    logger.exception("pipelines, captures and queues could not be looked at; it is tried again")
                self._disconnect()
                self.newest = replace(self.newest, problem=str(error))
                pause_s = min(PAUSE_S_MAX, pause_s * 2)
            self._looked.set()
            self._wanted.wait(pause_s)
            self._wanted.clear()
        self._disconnect()

    def _sample(self, now_s: float, clock_s: float) -> None:
        if self._client is None or self._reader is None:
            self._client = Client(self._bootstrap, self._options)
            self._reader = StateReader(self._client)
        states = dict(self._reader.refresh())
        seen = self.heard(states, round(clock_s * 1000))
        values = self._values_of_states(states, round(clock_s * 1000))
        if now_s >= self._queues_due_s:
            seen = self._with_queues(seen, self._client, now_s)
        values |= _values_of_queues(seen)
        self.newest = seen
        self.history.add(clock_s, values)
        self.history.keep_only(_series(states, seen))

    def heard(self, states: Mapping[str, StateRecord], now_ms: int) -> Watched:
        """The state records of an answer, which may be the first one after a time without any."""
        last = self.newest
        seen = replace(last, states=states, problem="", seen_ms=now_ms)
        return replace(seen, left_ms=last.seen_ms, back_ms=now_ms) if last.problem and last.seen_ms else seen

    def _with_queues(self, seen: Watched, client: Client, now_s: float) -> Watched:
        self._queues_due_s = now_s + QUEUES_S
        try:
            listed = list(islice(Queues(client).list_all(), QUEUES_MAX))
        except NoQueues as error:
            self._queues_due_s = now_s + NO_QUEUES_S
            return replace(seen, queues={}, no_queues=error.message)
        passed_s = now_s - self._queues_s
        counts = {each.name: _counts(each) for each in listed}
        figures = {}
        for each in listed:
            before = self._counts.get(each.name)
            rates = [0.0, 0.0]
            if before is not None and passed_s > 0:
                rates = [max(0, count - last) / passed_s for count, last in zip(counts[each.name], before, strict=True)]
            figures[each.name] = QueueFigures(info=each, published_per_s=rates[0], delivered_per_s=rates[1])
        self._counts, self._queues_s = counts, now_s
        return replace(seen, queues=figures, no_queues="")

    def _values_of_states(self, states: Mapping[str, StateRecord], now_ms: int) -> dict[str, float]:
        values: dict[str, float] = {}
        self._events = {key: seen for key, seen in self._events.items() if key in states}
        for key, record in states.items():
            if record.heartbeat_ms and record.is_alive(now_ms):
                for name in LEVELS:
                    value = figure(record.details.get(name))
                    if value is not None:
                        values[f"{name}/{key}"] = float(value)
                values |= self._rate(key, record)
        return values

    def _rate(self, key: str, record: StateRecord) -> dict[str, float]:
        """Events per second of a capture, from their number in two records; the same until the next record comes."""
        events = figure(record.details.get("events"))
        if events is None:
            return {}
        at_ms, last, rate = self._events.get(key, (record.at_ms, events, {}))
        if record.at_ms > at_ms:
            rate = {f"{EVENTS}/{key}": max(0, events - last) * 1000 / (record.at_ms - at_ms)}
        self._events[key] = record.at_ms, events, rate
        return rate

    def _disconnect(self) -> None:
        client, self._client, self._reader = self._client, None, None
        if client is not None:
            client.close()


def _slug(text: str) -> str:
    """As the Spark source makes the name of a group from that of a query."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")[:180]


def figure(value: Any) -> int | float | None:
    """A number of a state record; None for what is none: anybody may have written it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < FIGURE_MAX else None


def _counts(queue: QueueInfo) -> tuple[int, int]:
    """Messages that were ever published to a queue, and that were ever handed out."""
    return queue.published, sum(lane.cursor for lane in queue.lanes)


def _values_of_queues(seen: Watched) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, each in seen.queues.items():
        figures = (each.info.ready, each.info.unacknowledged, each.published_per_s, each.delivered_per_s)
        values |= {f"{kind}/{name}": float(value) for kind, value in zip(OF_QUEUES, figures, strict=True)}
    return values


def _series(states: Mapping[str, StateRecord], seen: Watched) -> set[str]:
    """The series of everything that is known, also of what has no value now: a chart shows when it stopped."""
    kept = {f"{name}/{key}" for key in states for name in (*LEVELS, EVENTS)}
    return kept | {f"{kind}/{name}" for name in seen.queues for kind in OF_QUEUES}
