"""Fetch sessions (KIP-227): what a reader asked for and was sent, so that only differences travel.

A session costs memory, so there are at most ``max.incremental.fetch.session.cache.slots`` of them. When all are taken,
a new reader gets one by Kafka's rule: in the place of a session that nobody has used for
``min.incremental.fetch.session.eviction.ms``, or else of one that is older than that and has fewer partitions than the
new one. Otherwise the reader gets no session (id 0) and names its partitions each time. So more readers than slots cost
some bytes per request; they do not take sessions from each other in turn.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.config import Settings
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, PartitionData

__all__ = ["INITIAL_EPOCH", "FetchSession", "FetchSessions", "Key", "WantedPartition"]

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

Key = tuple[str, bytes, int]
"""Topic name, topic id (one of the two as the version has it), partition."""


@dataclass(slots=True)
class WantedPartition:
    """One partition of a fetch and, in a session, what its reader was sent last."""

    ask: FetchPartition
    sent: tuple[int, int] = (-1, -1)  # high watermark, log start offset

    def is_news(self, answer: PartitionData) -> bool:
        """Whether an incremental answer has to mention this partition."""
        return bool(
            answer.error_code or answer.records or self.sent != (answer.high_watermark, answer.log_start_offset)
        )


@dataclass(slots=True)
class FetchSession:
    id: int
    wanted: OrderedDict[Key, WantedPartition]
    created_s: float
    used_s: float
    epoch: int = 1
    evictable_size: int = -1
    """The size under which it stands in the heap of those that may give way to a larger one; -1 if it does not."""


class FetchSessions:
    """The sessions of all readers."""

    def __init__(self, *, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._settings = settings
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used first
        self._evictable: list[tuple[int, int]] = []
        """A heap of (partitions, session id) of sessions old enough to give way. Entries that are out of date are
        recognised by ``FetchSession.evictable_size`` and dropped when they come to the top."""

    def __len__(self) -> int:
        return len(self._sessions)

    def wanted(self, body: FetchRequest) -> tuple[FetchSession | None, OrderedDict[Key, WantedPartition]]:
        """The session of a request, if it has one, and all partitions that it asks for."""
        if body.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._sessions.pop(body.session_id, None)
            wanted = OrderedDict((key, WantedPartition(ask)) for key, ask in _asked(body))
            if body.session_epoch == FINAL_EPOCH or not wanted:
                return None, wanted
            return self._new(wanted), wanted
        session = self._sessions.get(body.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != body.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        self._change(session, body)
        self._touch(session)
        return session, session.wanted

    def _change(self, session: FetchSession, body: FetchRequest) -> None:
        for key, ask in _asked(body):
            known = session.wanted.get(key)
            if known is None:
                session.wanted[key] = WantedPartition(ask)
            else:
                known.ask = ask
        for topic in body.forgotten_topics_data:
            for index in topic.partitions:
                session.wanted.pop((topic.topic, topic.topic_id, index), None)
        if len(session.wanted) > self._settings.integer("request.elements.max"):
            # In pieces it named more than one request may name. Without its session the reader must name all in one.
            del self._sessions[session.id]
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _new(self, wanted: OrderedDict[Key, WantedPartition]) -> FetchSession | None:
        slots = self._settings.integer("max.incremental.fetch.session.cache.slots")
        if len(self._sessions) >= slots and (slots == 0 or not self._evict_for(len(wanted))):
            return None
        while (number := random.randint(1, 2**31 - 1)) in self._sessions:
            pass
        now_s = self._clock.monotonic()
        session = self._sessions[number] = FetchSession(number, wanted, now_s, now_s)
        return session

    def _touch(self, session: FetchSession) -> None:
        now_s = session.used_s = self._clock.monotonic()
        self._sessions.move_to_end(session.id)
        size = len(session.wanted)
        if size != session.evictable_size and now_s - session.created_s > self._eviction_s:
            session.evictable_size = size
            heapq.heappush(self._evictable, (size, session.id))
            if len(self._evictable) > 2 * len(self._sessions) + 16:
                self._drop_outdated()

    def _drop_outdated(self) -> None:
        self._evictable = [
            (each.evictable_size, each.id) for each in self._sessions.values() if each.evictable_size >= 0
        ]
        heapq.heapify(self._evictable)

    def _evict_for(self, size: int) -> bool:
        """Make room for a session of ``size`` partitions; False if no session may be evicted for it."""
        oldest = next(iter(self._sessions.values()))
        if self._clock.monotonic() - oldest.used_s > self._eviction_s:
            del self._sessions[oldest.id]
            return True
        while self._evictable:
            smallest, number = self._evictable[0]
            session = self._sessions.get(number)
            if session is not None and session.evictable_size == smallest:
                if smallest >= size:
                    return False
                del self._sessions[number]
                heapq.heappop(self._evictable)
                return True
            heapq.heappop(self._evictable)
        return False

    @property
    def _eviction_s(self) -> float:
        return self._settings.integer("min.incremental.fetch.session.eviction.ms") / 1000


def _asked(body: FetchRequest) -> Iterable[tuple[Key, FetchPartition]]:
    for topic in body.topics:
        for each in topic.partitions:
            yield (topic.topic, topic.topic_id, each.partition), each
