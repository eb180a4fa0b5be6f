"""The clients of the benchmarks, each in its own process: librdkafka through confluent-kafka.

``python -m benchmarks.client '{"work": "produce", …}'`` prints one line "go" when its connections stand, waits for a
line on stdin, works, and prints its result as one JSON line. So start-up is never measured, and clients begin together.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

STAMP = struct.Struct(">q")
QUIET_S = 30.0


def cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def wait_for_go() -> tuple[float, float]:
    print("go", flush=True)
    sys.stdin.readline()
    return time.monotonic(), cpu_seconds()


def result(began: float, cpu_before: float, **more: Any) -> dict[str, Any]:
    wall = time.monotonic() - began
    return {"wall_s": wall, "cpu_s": cpu_seconds() - cpu_before, **more}


def producer_of(task: dict[str, Any]) -> Producer:
    settings = {
        "bootstrap.servers": task["bootstrap"],
        "acks": "all",
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 256 << 10,
        **task.get("settings", {}),
    }
    producer = Producer(settings)
    producer.list_topics(task["topic"], timeout=30)
    return producer


class Failures:
    """Counts messages that were given up; a benchmark with any is void."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, error: Any, _: Any) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or str(error)


def produce(task: dict[str, Any]) -> dict[str, Any]:
    """As fast as the client can, ``count`` messages; ends when the last is acknowledged."""
    failures = Failures()
    producer = producer_of({**task, "settings": {"delivery.report.only.error": True, **task.get("settings", {})}})
    topic, value, keys = task["topic"], bytes(task["size"]), task.get("keys", 0)
    key_of: list[bytes | None] = [b"%d" % number for number in range(keys)]
    key_of = key_of or [None]
    send, poll = producer.produce, producer.poll
    began, cpu_before = wait_for_go()
    for number in range(task["count"]):
        while True:
            try:
                send(topic, value, key_of[number % len(key_of)], on_delivery=failures)
                break
            except BufferError:
                poll(0.01)
        if not number % 10_000:
            poll(0)
    producer.flush()
    return result(began, cpu_before, failed=failures.count, error=failures.first)


def consumer_of(task: dict[str, Any]) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": task["bootstrap"],
            "group.id": f"bench-{task['topic']}",
            "enable.auto.commit": False,
            "queued.min.messages": 100_000,
            "fetch.queue.backoff.ms": 2,  # the default of a second makes a client that a broker outruns sit idle
            **task.get("settings", {}),
        }
    )
    consumer.list_topics(task["topic"], timeout=30)
    return consumer


def consume(task: dict[str, Any]) -> dict[str, Any]:
    """``count`` messages from the beginning of every partition."""
    consumer = consumer_of(task)
    missing = task["count"]
    began, cpu_before = wait_for_go()
    consumer.assign([TopicPartition(task["topic"], index, 0) for index in range(task["partitions"])])
    deadline = time.monotonic() + QUIET_S
    while missing > 0 and time.monotonic() < deadline:
        got = len(consumer.consume(min(10_000, missing), timeout=0.2))
        missing -= got
        if got:
            deadline = time.monotonic() + QUIET_S
    outcome = result(began, cpu_before, failed=missing, error="messages did not arrive" if missing else "")
    consumer.close()
    return outcome


def pace(task: dict[str, Any]) -> dict[str, Any]:
    """A steady ``rate`` for ``seconds``, each message stamped with the machine's monotonic clock."""
    failures = Failures()
    producer = producer_of(task)
    topic, rate, filler = task["topic"], task["rate"], bytes(task["size"] - STAMP.size)
    total = int(rate * task["seconds"])
    began, cpu_before = wait_for_go()
    sent = 0
    while sent < total:
        due = min(total, int((time.monotonic() - began) * rate))
        for _ in range(due - sent):
            producer.produce(topic, STAMP.pack(time.monotonic_ns()) + filler, on_delivery=failures)
        sent = due
        producer.poll(0)
        time.sleep(0.001)
    producer.flush()
    return result(began, cpu_before, failed=failures.count, error=failures.first)


def listen(task: dict[str, Any]) -> dict[str, Any]:
    """Receive ``count`` stamped messages and tell the delays in milliseconds; the first second is warm-up."""
    consumer = consumer_of(task)
    consumer.assign([TopicPartition(task["topic"], index, 0) for index in range(task["partitions"])])
    consumer.poll(1.0)
    delays: list[int] = []
    began, cpu_before = wait_for_go()
    deadline = time.monotonic() + QUIET_S
    while len(delays) < task["count"] and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            delays.append(time.monotonic_ns() - STAMP.unpack_from(message.value() or b"")[0])
    outcome = result(began, cpu_before, failed=task["count"] - len(delays), error="messages did not arrive")
    consumer.close()
    measured = sorted(delays[task["warm_up"] :]) or [0]
    quantiles = {
        f"p{share}": measured[min(len(measured) - 1, len(measured) * share // 100)] / 1e6 for share in (50, 90, 99)
    }
    return {**outcome, **quantiles, "max": measured[-1] / 1e6}


WORK = {"produce": produce, "consume": consume, "pace": pace, "listen": listen}


def main() -> None:
    task = json.loads(sys.argv[1])
    print(json.dumps(WORK[task["work"]](task)), flush=True)


if __name__ == "__main__":
    main()
