"""One thread that looks at the cluster every second, through Kafka's own requests, and keeps what it saw.

Ends of partitions (ListOffsets) give messages per second. Offsets of groups (OffsetFetch) give lag, and what is read
per second. Sizes (DescribeLogDirs) give bytes and the disk. Topics, starts, sizes and the list of groups change slowly
and are asked for less often. A sample that takes more than its share of a core is taken less often too, so a cluster
with thousands of partitions stays cheap to watch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from headrace.client import (
    Admin,
    Client,
    GroupListing,
    Groups,
    TopicInfo,
    TopicPartition,
    end_offsets,
    start_offsets,
)
from headrace.console.history import History
from headrace.console.limits import (
    GROUPS_MAX,
    GROUPS_PER_SAMPLE,
    GROUPS_S,
    METADATA_S,
    PARTITIONS_PER_REQUEST,
    SAMPLE_S,
    SAMPLE_SHARE_MAX,
    SIZES_S,
)
from headrace.console.pool import ClientPool
from headrace.console.snapshot import ClusterSnapshot, DiskFigures, GroupFigures, TopicFigures
from headrace.errors import ErrorCode, HeadraceError, KafkaError

__all__ = ["Sampler"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Offsets = dict[TopicPartition, int]

PAUSE_S_MAX = 30.0
READ_RATE_S = 10.0
READ_RATE_S_MIN = 3.0
RATE_S = 5.0
"""A rate that is shown as a number is the mean of the samples of so many seconds, and of one at least."""


class Sampler:
    """Fills a ``History`` and renews ``snapshot``; the thread is the only writer of both."""

    def __init__(self, pool: ClientPool, history: History) -> None:
        self.snapshot = ClusterSnapshot(problem="waiting for the first answer of the broker")
        self._pool = pool
        self._history = history
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-sampler", daemon=True)
        self._rounds = Rounds()
        self._topics: list[TopicInfo] = []
        self._internal: set[str] = set()
        self._served: list[TopicPartition] = []
        self._there: set[TopicPartition] = set()
        self._made: set[TopicPartition] = set()
        """Partitions that the last look at topics saw for the first time."""
        self._starts: Offsets = {}
        self._ends: Offsets = {}
        self._ends_s = 0.0
        self._sizes: dict[str, int] = {}
        self._partition_sizes: dict[TopicPartition, int] = {}
        self._disk: DiskFigures | None = None
        self._sizes_before: tuple[float, dict[TopicPartition, int]] | None = None
        self._groups: dict[str, GroupListing] = {}
        self._committed: dict[str, Offsets] = {}
        self._looks: dict[str, deque[tuple[float, int]]] = {}
        """When the offsets of a group were looked at, and how far they had moved by then."""
        self._read_rates: dict[str, float] = {}
        self._turn = 0
        self._bytes_rate = 0.0
        self._written: deque[tuple[float, dict[str, int]]] = deque()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._hurry.set()
        self._thread.join(5.0)

    def look_again(self) -> None:
        """Something was changed: do not wait until it is due to be looked at."""
        self._hurry.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began_s, began_cpu_s = time.monotonic(), time.thread_time()
            try:
                with self._pool.lent() as client:
                    self.sample(client, time.time())
            except Exception as error:  # whatever it is, the thread goes on: pages would show old figures forever
                if not isinstance(error, HeadraceError | OSError):
                    logger.exception("the cluster could not be looked at; it is tried again")
                self._rounds.forget()
                self.snapshot = replace(self.snapshot, problem=str(error))
            cpu_s = time.thread_time() - began_cpu_s
            pause_s = max(SAMPLE_S, cpu_s / SAMPLE_SHARE_MAX) - (time.monotonic() - began_s)
            if self._hurry.wait(min(max(pause_s, SAMPLE_S / 5), PAUSE_S_MAX)):
                self._hurry.clear()
                self._rounds.forget()

    def sample(self, client: Client, now_s: float) -> None:
        """One look. What is asked for less often is asked for when it is due."""
        if self._rounds.due("metadata", METADATA_S, now_s):
            self._look_at_topics(client)
        if self._rounds.due("sizes", SIZES_S, now_s):
            self._look_at_sizes(client)
            self._note_written(now_s)
        if self._rounds.due("groups", GROUPS_S, now_s):
            self._groups = {each.name: each for each in islice(Groups(client).list_all(), GROUPS_MAX)}
        before, before_s = self._ends, self._ends_s
        self._ends, self._ends_s = in_parts(self._served, lambda part: end_offsets(client, part)), now_s
        self._look_at_groups(client, now_s)
        values = self._values(before, now_s - before_s if before_s else 0.0, now_s)
        self._history.add(now_s, values)
        self._publish(client, now_s)

    def _look_at_topics(self, client: Client) -> None:
        self._topics = client.topics()
        self._internal = {each.name for each in self._topics if each.internal or each.name.startswith("__")}
        there = {TopicPartition(topic.name, each.index) for topic in self._topics for each in topic.partitions}
        self._made = there - self._there if self._ends_s else set()
        self._there = there
        self._served = [
            TopicPartition(topic.name, each.index)
            for topic in self._topics
            for each in topic.partitions
            if each.leader >= 0
        ]
        if self._ends_s:  # the first sample looks at the starts of all
            unknown = [each for each in self._served if each not in self._starts]
            self._starts |= in_parts(unknown, lambda part: start_offsets(client, part))
        kept = {f"in/{topic.name}" for topic in self._topics}
        kept |= {f"{kind}/{name}" for name in self._groups for kind in ("lag", "out")}
        self._history.keep_only(kept | {"in", "out", "bytes", "lag", "used", "free"})

    def _look_at_sizes(self, client: Client) -> None:
        self._starts = in_parts(self._served, lambda part: start_offsets(client, part))
        try:
            directories = Admin(client).log_dirs()
        except KafkaError as error:
            if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            return
        sizes: dict[TopicPartition, int] = {}
        for each in directories:
            for partition, size in each.partition_bytes.items():
                sizes[partition] = max(size, sizes.get(partition, 0))
        self._partition_sizes = sizes
        self._sizes = {}
        for partition, size in sizes.items():
            self._sizes[partition.topic] = self._sizes.get(partition.topic, 0) + size
        totals = [(each.total_bytes, each.usable_bytes) for each in directories]
        known = [(total, usable) for total, usable in totals if total is not None and usable is not None]
        if known:
            self._disk = DiskFigures(total=sum(each[0] for each in known), usable=sum(each[1] for each in known))

    def _look_at_groups(self, client: Client, now_s: float) -> None:
        """Some groups at a time, in turn."""
        names = list(self._groups)
        for gone in self._committed.keys() - self._groups.keys():
            del self._committed[gone], self._looks[gone], self._read_rates[gone]
        if not names:
            return
        self._turn %= len(names)
        chosen = (names[self._turn :] + names[: self._turn])[:GROUPS_PER_SAMPLE]
        self._turn += len(chosen)
        groups = Groups(client)
        for name in chosen:
            try:
                committed = groups.committed(name)
            except KafkaError as error:
                if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_AUTHORIZATION_FAILED):
                    raise
                continue
            self._note_read(name, now_s, committed)

    def _note_read(self, name: str, now_s: float, committed: Offsets) -> None:
        """Members commit every few seconds, so the rate is that of the last ``READ_RATE_S``."""
        looks = self._looks.setdefault(name, deque())
        before = self._committed.get(name)
        total = (looks[-1][1] if looks else 0) + (moved(before, committed) if before is not None else 0)
        looks.append((now_s, total))
        while len(looks) > 2 and looks[1][0] <= now_s - READ_RATE_S:
            looks.popleft()
        seconds = now_s - looks[0][0]
        self._read_rates[name] = (total - looks[0][1]) / seconds if seconds >= READ_RATE_S_MIN else 0.0
        self._committed[name] = committed

    def lag_of(self, name: str) -> int | None:
        """Messages that a group has still to read, in all its partitions that are served."""
        if name not in self._committed:
            return None
        committed = self._committed[name]
        return sum(
            max(0, self._ends[each] - max(at, self._starts.get(each, 0)))
            for each, at in committed.items()
            if each in self._ends
        )

    def _values(self, before: Offsets, seconds: float, now_s: float) -> dict[str, float]:
        """The sample of each series."""
        values: dict[str, float] = {}
        lags = {name: lag for name in self._committed if (lag := self.lag_of(name)) is not None}
        values["lag"] = float(sum(lags.values()))
        values["out"] = sum(self._read_rates.get(name, 0.0) for name in lags)
        values |= {f"lag/{name}": float(lag) for name, lag in lags.items()}
        values |= {f"out/{name}": self._read_rates.get(name, 0.0) for name in lags}
        if seconds > 0:
            written: dict[str, int] = {}
            for partition, end in self._ends.items():
                known = before.get(partition)
                # A partition that was made since the last look was empty then; one that had no leader was not.
                grown = end - known if known is not None else end if partition in self._made else 0
                written[partition.topic] = written.get(partition.topic, 0) + max(0, grown)
            values |= {f"in/{topic}": count / seconds for topic, count in written.items()}
            values["in"] = sum(count for topic, count in written.items() if topic not in self._internal) / seconds
            self._written.append((seconds, written))
            while sum(covered_s for covered_s, _ in islice(self._written, 1, None)) >= RATE_S:
                self._written.popleft()
        values |= self._bytes()
        return values

    def _bytes(self) -> dict[str, float]:
        values = {"used": float(sum(self._sizes.values())), "bytes": self._bytes_rate}
        if self._disk is not None:
            values["free"] = float(self._disk.usable)
        return values

    def _note_written(self, now_s: float) -> None:
        """The rate is that between two looks at sizes. Between them nothing is known of it, and least of all 0.

        It adds up the partitions that grew: what compaction and retention remove from others was not written less.
        """
        if self._sizes_before is not None:
            before_s, before = self._sizes_before
            seconds = now_s - before_s
            if 0 <= seconds < SIZES_S / 2:  # somebody has changed something, and sizes are looked at again
                return
            grown = sum(max(0, size - before.get(each, 0)) for each, size in self._partition_sizes.items())
            self._bytes_rate = grown / seconds if seconds > 0 else 0.0
        self._sizes_before = now_s, self._partition_sizes

    def _publish(self, client: Client, now_s: float) -> None:
        counts: dict[str, int] = {}
        for partition, end in self._ends.items():
            counts[partition.topic] = counts.get(partition.topic, 0) + end - self._starts.get(partition, end)
        rates = mean_rates(self._written)
        topics = {
            each.name: TopicFigures(
                name=each.name,
                internal=each.name in self._internal,
                partitions=len(each.partitions),
                replicas=max((len(part.replicas) for part in each.partitions), default=0),
                leaderless=sum(part.leader < 0 for part in each.partitions),
                behind=sum(len(part.in_sync) < len(part.replicas) for part in each.partitions),
                messages=counts.get(each.name),
                size=self._sizes.get(each.name),
                rate=rates.get(each.name, 0.0),
            )
            for each in self._topics
        }
        groups = {
            name: GroupFigures(
                name=name,
                state=each.state,
                kind=each.kind,
                lag=self.lag_of(name),
                topics=tuple(sorted({part.topic for part in self._committed.get(name, ())})),
                rate=self._read_rates.get(name, 0.0),
            )
            for name, each in self._groups.items()
        }
        self.snapshot = ClusterSnapshot(
            taken_s=now_s,
            cluster_id=client.cluster_id,
            controller=client.controller(),
            brokers={node: str(address) for node, address in client.known_brokers().items()},
            topics=topics,
            groups=groups,
            sizes=self._partition_sizes,
            disk=self._disk,
        )


class Rounds:
    """When something was last asked for."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}

    def due(self, what: str, every_s: float, now_s: float) -> bool:
        last_s = self._last_s.get(what)
        if last_s is not None and last_s <= now_s < last_s + every_s:
            return False
        self._last_s[what] = now_s
        return True

    def forget(self) -> None:
        self._last_s.clear()


def in_parts(
    partitions: Iterable[TopicPartition], ask: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]]
) -> Offsets:
    """One request per ``PARTITIONS_PER_REQUEST``: brokers refuse larger ones."""
    found: Offsets = {}
    for part in parted(partitions, PARTITIONS_PER_REQUEST):
        found.update(ask(part))
    return found


def parted(items: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part


def mean_rates(written: Iterable[tuple[float, dict[str, int]]]) -> dict[str, float]:
    """Messages per second by topic, from what each of the last samples found new and the seconds it covers."""
    totals: dict[str, int] = {}
    seconds = 0.0
    for covered_s, counts in written:
        seconds += covered_s
        for topic, count in counts.items():
            totals[topic] = totals.get(topic, 0) + count
    return {topic: round(total / seconds, 3) for topic, total in totals.items()} if seconds > 0 else {}


def moved(before: Offsets, after: Offsets) -> int:
    """By how much committed offsets moved on; a reset back counts as nothing."""
    return sum(max(0, at - before[each]) for each, at in after.items() if each in before)
