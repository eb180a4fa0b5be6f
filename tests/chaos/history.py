"""Where workers write down what they saw, as JSON lines; and the frame of a worker."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["Recorder", "Worker"]


class Recorder:
    """The history file. Any thread may write; the time is one clock's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.calm = threading.Lock()
        """Held while the broker is killed and started; while a client holds it the broker stays."""
        self._lock = threading.Lock()
        self._file = path.open("w")

    @staticmethod
    def now() -> float:
        return time.monotonic()

    def write(self, op: str, **fields: Any) -> None:
        fields.setdefault("time", self.now())
        line = json.dumps({"op": op, **fields}, separators=(",", ":"))
        with self._lock:
            self.counts[f"{op} {fields.get('type', '')}".strip()] += 1
            self._file.write(line + "\n")

    def fail(self, who: str, why: str) -> None:
        """A worker met something that no kill explains."""
        with self._lock:
            self.failures.append(f"{who}: {why}")

    def restarted(self, who: str, why: str) -> None:
        """A transactional client had to start again; kills explain some of that."""
        with self._lock:
            self.restarts[f"{who.rstrip('0123456789')}: {why}"] += 1

    def close(self) -> None:
        self._file.close()


class Worker(threading.Thread):
    """A client that works until it is stopped. What it raises is a failure of the run."""

    def __init__(self, name: str, bootstrap: str, recorder: Recorder) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.recorder = recorder
        self.settings: dict[str, Any] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except BaseException:
            self.recorder.fail(self.name, traceback.format_exc())

    def work(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopping.set()

    def common(self) -> dict[str, Any]:
        """What every librdkafka client here is given: patience with a broker that comes and goes, and silence."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.name,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 300,
            "log_level": 0,
            # With "rebootstrap" librdkafka 2.16 forgets its brokers while they are down, and a call that waits for one
            # of them (send_offsets_to_transaction, close) may then wait for ever.
            "metadata.recovery.strategy": "none",
            **self.settings,
        }
