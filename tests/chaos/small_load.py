"""A small load under the same judge as the large one of ``run``: for faults that are tried in a few seconds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.checker import check
from tests.chaos.consumers import Member, Observer, Reader, Rereader, Watcher, drain
from tests.chaos.history import Recorder, Worker
from tests.chaos.operations import read_lines
from tests.chaos.producers import IdempotentProducer, TransactionalProducer
from tests.chaos.topics import KEEP_ALL
from tests.waiting import PATIENCE_S, eventually

__all__ = ["SmallLoad"]

TOPICS = {"plain": 2, "mixed": 1}
SESSION_MS = 45_000
CLIENT = {"socket.timeout.ms": 10_000, "socket.keepalive.enable": False}


class SmallLoad:
    """Producers with and without transactions, readers, a group and observers of both, until ``finish``."""

    def __init__(self, bootstrap: str, folder: Path, *, per_second: int = 400, **client: Any) -> None:
        self.recorder = Recorder(folder / "history.jsonl")
        self.bootstrap = bootstrap
        self._client = {**CLIENT, **client}
        self.writers: list[Worker] = [
            self._make(IdempotentProducer, "plain0", topic="plain", partitions=2, per_second=per_second, seed=1),
            self._make(TransactionalProducer, "txn0", topic="mixed", partitions=1, seed=2),
        ]
        classic = {"session.timeout.ms": SESSION_MS, "partition.assignment.strategy": "range"}
        self.readers: list[Worker] = [
            self._make(Reader, "reader", topics=TOPICS, isolation="committed"),
            self._make(Rereader, "rereader", topics=TOPICS, seed=3),
            self._make(Watcher, "watcher", topics=TOPICS, isolation="uncommitted"),
            self._make(Member, "member", group="g", topic="plain", protocol=classic, seed=4),
            self._make(Observer, "observer", group="g", topic="plain", partitions=2),
        ]

    def _make(self, kind: Any, name: str, **options: Any) -> Worker:
        worker: Worker = kind(name, self.bootstrap, self.recorder, **options)
        worker.settings = self._client
        return worker

    def __enter__(self) -> SmallLoad:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topics = [NewTopic(name, count, config=KEEP_ALL) for name, count in TOPICS.items()]
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_S)
        for worker in [*self.writers, *self.readers]:
            worker.start()
        self.until_acknowledged()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self.writers, *self.readers]:
            worker.stop()
        deadline = time.monotonic() + PATIENCE_S
        for worker in [*self.writers, *self.readers]:
            worker.join(max(0.0, deadline - time.monotonic()))
        self.recorder.close()

    def acknowledged(self) -> int:
        return self.recorder.counts["produce ok"]

    def waiting(self) -> int:
        """Values that were sent and have no answer."""
        return sum(len(each.sending.under_way) for each in self.writers if isinstance(each, IdempotentProducer))

    def until_acknowledged(self, more: int = 200) -> None:
        """Until so many more values are acknowledged, transactions among them."""
        values, ended = self.acknowledged() + more, self.recorder.counts["end ok"] + 1
        eventually(self.acknowledged, lambda seen: seen >= values)
        eventually(lambda: self.recorder.counts["end ok"], lambda seen: seen >= ended)

    def until_waiting(self, count: int = 400) -> None:
        """Until the producer has sent so many values that nobody answers."""
        eventually(self.waiting, lambda seen: seen >= count)

    def finish(self) -> list[str]:
        """Stop, read everything, and judge: all that is wrong."""
        for workers in (self.writers, self.readers):
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join(PATIENCE_S * 3)
                if worker.is_alive():
                    self.recorder.fail(worker.name, "did not stop")
        common = self.readers[0].common()
        for isolation in ("uncommitted", "committed"):
            drain(self.recorder, common, TOPICS, isolation, PATIENCE_S)
        self.recorder.close()
        with self.recorder.path.open() as lines:
            problems = check(read_lines(lines))
        return [*self.recorder.failures, *map(str, problems)]
