"""The offsets that groups committed, and those that transactions will commit.

Rows. ``offsets[key]`` holds ``[offset, leader epoch, metadata, committed at (ms), expires at (ms) or null, sequence]``;
the key is ``<length of group>:<group><topic>:<partition>``, so that no choice of names makes two keys alike.
``txn_offsets["<producer id>:" + key]`` holds the same for an offset that waits for its transaction.

The sequence orders commits of all groups. When a transaction commits, an offset that was committed directly after the
transaction wrote its own is the newer one and stays.

Nothing here waits or answers. A change is first a list for ``StateStore.put_many``, and is applied to the index in
memory after the store took it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.broker.limits import OFFSETS_PER_TRANSACTION_MAX
from headrace.broker.state import Change, Encoded, StateStore
from headrace.errors import ErrorCode, KafkaError

__all__ = ["NO_OFFSET", "Offsets", "Row", "TopicPartition"]

NO_OFFSET = -1

Row = list[Any]
TopicPartition = tuple[str, int]


def key_of(group_id: str, topic: str, partition: int) -> str:
    return f"{len(group_id)}:{group_id}{topic}:{partition}"


def parse_key(key: str) -> tuple[str, str, int]:
    length, _, rest = key.partition(":")
    size = int(length)
    topic, _, partition = rest[size:].rpartition(":")
    return rest[:size], topic, int(partition)


def _existing(places: Iterable[tuple[str, str, int]], topic_exists: Callable[[str], bool]) -> set[str]:
    """The topics of ``places`` that are there."""
    return {topic for topic in {topic for _, topic, _ in places} if topic_exists(topic)}


class Offsets:
    """Committed and pending offsets, found by group, topic and partition."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._committed: dict[str, dict[str, dict[int, Row]]] = {}
        self._groups_of_topic: dict[str, set[str]] = {}
        self._pending: dict[int, dict[tuple[str, str, int], Encoded]] = {}
        """Encoded, because the end of a transaction writes thousands of them at once."""
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        """Per group: partitions with pending offsets, and the producers whose transactions they wait for."""
        self._pending_of_topic: dict[str, set[tuple[int, str, int]]] = {}
        """(producer id, group, partition) of the pending offsets in each topic."""
        self._sequence = 0

    def load(self) -> None:
        for key, row in self._state.table("offsets").items():
            self._set(*parse_key(key), row)
            self._sequence = max(self._sequence, row[5])
        for key, row in self._state.table("txn_offsets").items():
            producer_id, _, rest = key.partition(":")
            self._set_pending(int(producer_id), *parse_key(rest), Encoded.of(row))
            self._sequence = max(self._sequence, row[5])

    # ---- looking ----

    def get(self, group_id: str, topic: str, partition: int) -> Row | None:
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> dict[str, dict[int, Row]]:
        return self._committed.get(group_id, {})

    def group_ids(self) -> Iterator[str]:
        yield from self._committed
        yield from (group_id for group_id in self._open if group_id not in self._committed)

    def topics(self) -> list[str]:
        """Every topic that some group has an offset in, committed or pending."""
        return sorted(self._pending_of_topic.keys() | self._groups_of_topic.keys())

    def has_any(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._open

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that is not finished would change this offset."""
        return (topic, partition) in self._open.get(group_id, {})

    # ---- committing ----

    def row(self, offset: int, leader_epoch: int, metadata: str, now_ms: int, expires_ms: int | None) -> Row:
        self._sequence += 1
        return [offset, leader_epoch, metadata, now_ms, expires_ms, self._sequence]

    def commit(self, group_id: str, rows: dict[TopicPartition, Row]) -> int:
        """Write the offsets in one batch; the journal offset to wait for."""
        changes = [("offsets", key_of(group_id, *place), row) for place, row in rows.items()]
        journal_offset = self._state.put_many(changes)
        for (topic, partition), row in rows.items():
            self._set(group_id, topic, partition, row)
        return journal_offset

    def commit_pending(self, producer_id: int, group_id: str, rows: dict[TopicPartition, Row]) -> int:
        """Keep offsets until the producer's transaction ends, which writes them all at once: so there is a limit."""
        pending = self._pending.get(producer_id, {})
        new = sum((group_id, *place) not in pending for place in rows)
        if len(pending) + new > OFFSETS_PER_TRANSACTION_MAX:
            raise KafkaError(
                ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
                f"a transaction commits at most {OFFSETS_PER_TRANSACTION_MAX} offsets",
            )
        encoded = {place: Encoded.of(row) for place, row in rows.items()}
        changes = [("txn_offsets", f"{producer_id}:{key_of(group_id, *place)}", row) for place, row in encoded.items()]
        journal_offset = self._state.put_many(changes)
        for (topic, partition), row in encoded.items():
            self._set_pending(producer_id, group_id, topic, partition, row)
        return journal_offset

    def completion(self, producer_id: int, commit: bool, topic_exists: Callable[[str], bool]) -> list[Change]:
        """The changes that commit or drop the producer's pending offsets."""
        pending = self._pending.get(producer_id, {})
        wanted = _existing(pending, topic_exists) if commit else set()
        changes: list[Change] = []
        for (group_id, topic, partition), row in pending.items():
            key = key_of(group_id, topic, partition)
            if topic in wanted and self._is_newer(group_id, topic, partition, row.row):
                changes.append(("offsets", key, row))
            changes.append(("txn_offsets", f"{producer_id}:{key}", None))
        return changes

    def apply_completion(self, producer_id: int, commit: bool, topic_exists: Callable[[str], bool]) -> set[str]:
        """Apply what ``completion`` wrote to the index; the ids of the groups that it changed."""
        ended = self._pending.pop(producer_id, {})
        wanted = _existing(ended, topic_exists) if commit else set()
        for (group_id, topic, partition), row in ended.items():
            self._close(producer_id, group_id, topic, partition)
            if topic in wanted and self._is_newer(group_id, topic, partition, row.row):
                self._set(group_id, topic, partition, row.row)
        return {group_id for group_id, _, _ in ended}

    def _is_newer(self, group_id: str, topic: str, partition: int, row: Row) -> bool:
        existing = self.get(group_id, topic, partition)
        return existing is None or bool(existing[5] < row[5])

    # ---- removing ----

    def removal(self, group_id: str, places: Iterable[TopicPartition]) -> list[Change]:
        return [("offsets", key_of(group_id, *place), None) for place in places]

    def apply_removal(self, group_id: str, places: Iterable[TopicPartition]) -> None:
        for topic, partition in places:
            self._unset(group_id, topic, partition)

    def group_removal(self, group_id: str) -> Iterator[Change]:
        """The changes that remove all offsets of a group, pending ones included.

        They are made one at a time, and may be asked for after ``apply_group_removal``. An offset that is committed
        meanwhile, by a new group with the same id, is not removed.
        """
        committed, table = self.of_group(group_id), self._state.table("offsets")
        waiting = [(place, set(producers)) for place, producers in self._open.get(group_id, {}).items()]
        for topic, rows in committed.items():
            for partition, row in rows.items():
                key = key_of(group_id, topic, partition)
                if table.get(key) is row:
                    yield "offsets", key, None
        for (topic, partition), producers in waiting:
            for producer_id in producers:
                yield "txn_offsets", f"{producer_id}:{key_of(group_id, topic, partition)}", None

    def apply_group_removal(self, group_id: str) -> None:
        for topic in self._committed.pop(group_id, {}):
            self._groups_of_topic[topic].discard(group_id)
            if not self._groups_of_topic[topic]:
                del self._groups_of_topic[topic]
        for place, producers in list(self._open.get(group_id, {}).items()):
            for producer_id in list(producers):
                self._drop_pending(producer_id, group_id, *place)

    def topic_removal(self, topic: str) -> Iterator[Change]:
        """Forget a topic's offsets, pending ones included; the changes that remove their rows. They are made one at a
        time. An offset that is committed meanwhile, in a new topic of that name, is not removed."""
        gone = {group_id: self._committed[group_id].pop(topic) for group_id in self._groups_of_topic.pop(topic, ())}
        for group_id in gone:
            if not self._committed[group_id]:
                del self._committed[group_id]
        rows: list[tuple[str, str, Row]] = [
            ("offsets", key_of(group_id, topic, partition), row)
            for group_id, partitions in gone.items()
            for partition, row in partitions.items()
        ]
        for producer_id, group_id, partition in list(self._pending_of_topic.get(topic, ())):
            pending = self._pending[producer_id][group_id, topic, partition]
            rows.append(("txn_offsets", f"{producer_id}:{key_of(group_id, topic, partition)}", pending.row))
            self._drop_pending(producer_id, group_id, topic, partition)
        return ((table, key, None) for table, key, row in rows if self._state.table(table).get(key) is row)

    def expired(
        self, group_id: str, now_ms: int, retention_ms: int, since_ms: int | None, is_subscribed: Callable[[str], bool]
    ) -> Iterator[TopicPartition]:
        """Expired offsets, one by one: ``retention_ms`` after ``since_ms`` (when the group became empty) or after the
        commit.

        Offsets of subscribed topics, and those that an open transaction would replace, do not expire.
        """
        for topic, rows in self.of_group(group_id).items():
            if is_subscribed(topic):
                continue
            for partition, row in rows.items():
                _, _, _, committed_ms, expires_ms, _ = row
                due_ms = expires_ms
                if due_ms is None:
                    due_ms = (since_ms if since_ms is not None else committed_ms) + retention_ms
                if now_ms >= due_ms and not self.is_unstable(group_id, topic, partition):
                    yield topic, partition

    # ---- the index ----

    def _set(self, group_id: str, topic: str, partition: int, row: Row) -> None:
        self._committed.setdefault(group_id, {}).setdefault(topic, {})[partition] = row
        self._groups_of_topic.setdefault(topic, set()).add(group_id)

    def _unset(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._committed.get(group_id, {})
        rows = topics.get(topic, {})
        rows.pop(partition, None)
        if topic in topics and not rows:
            del topics[topic]
            self._groups_of_topic[topic].discard(group_id)
            if not self._groups_of_topic[topic]:
                del self._groups_of_topic[topic]
        if group_id in self._committed and not topics:
            del self._committed[group_id]

    def _set_pending(self, producer_id: int, group_id: str, topic: str, partition: int, row: Encoded) -> None:
        self._pending.setdefault(producer_id, {})[group_id, topic, partition] = row
        self._open.setdefault(group_id, {}).setdefault((topic, partition), set()).add(producer_id)
        self._pending_of_topic.setdefault(topic, set()).add((producer_id, group_id, partition))

    def _drop_pending(self, producer_id: int, group_id: str, topic: str, partition: int) -> None:
        pending = self._pending[producer_id]
        del pending[group_id, topic, partition]
        if not pending:
            del self._pending[producer_id]
        self._close(producer_id, group_id, topic, partition)

    def _close(self, producer_id: int, group_id: str, topic: str, partition: int) -> None:
        of_topic = self._pending_of_topic[topic]
        of_topic.discard((producer_id, group_id, partition))
        if not of_topic:
            del self._pending_of_topic[topic]
        places = self._open[group_id]
        producers = places[topic, partition]
        producers.discard(producer_id)
        if not producers:
            del places[topic, partition]
        if not places:
            del self._open[group_id]
