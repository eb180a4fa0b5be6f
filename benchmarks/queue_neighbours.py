"""What a Kafka client gets while AMQP clients use the same broker as fast as they can."""

from __future__ import annotations

import threading
import time
from statistics import quantiles

from confluent_kafka import Producer

from benchmarks.brokers import create_topic, delete_topic, unique
from benchmarks.figures import Figure
from benchmarks.perf_test import run_perf_test
from tests.servers.process import RunningServer

__all__ = ["neighbour_figures"]

RATE = 100
PERCENTILES = (50, 99)


def neighbour_figures(broker: RunningServer, port: int, *, quick: bool) -> list[Figure]:
    """Produce with ``acks=all`` at a low rate, alone and beside PerfTest on one queue with 1 KB messages."""
    seconds = 4 if quick else 10
    topic = unique("beside")
    create_topic(broker, topic, 1)
    try:
        produce_ms(broker, topic, 1)
        alone = produce_ms(broker, topic, seconds)
        load = ["-x", "1", "-y", "1", "-f", "persistent", "-s", "1000", "-q", "200", "-c", "500", "-u", topic]
        thread = threading.Thread(
            target=run_perf_test, args=(port, broker.pid, *load, "-z", str(seconds + 6)), daemon=True
        )
        thread.start()
        time.sleep(5)  # until PerfTest has started and warmed up
        beside = produce_ms(broker, topic, seconds)
        thread.join()
    finally:
        delete_topic(broker, topic)
    return [
        Figure(
            hop="queues",
            case="Kafka produce beside AMQP under full load",
            unit=f"ms, p{percent}",
            ours=[at(beside, percent)],
            peers=[at(alone, percent)],
            peer="the same without the load",
            higher_is_better=False,
        )
        for percent in PERCENTILES
    ]


def produce_ms(broker: RunningServer, topic: str, seconds: float) -> list[float]:
    """How long each message took to be acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "acks": "all"})
    taken: list[float] = []
    for _ in range(int(RATE * seconds)):
        began = time.monotonic()
        producer.produce(topic, b"x" * 100, on_delivery=lambda error, _: failed(error))
        producer.flush(30)
        taken.append((time.monotonic() - began) * 1000)
        time.sleep(max(0.0, 1 / RATE - (time.monotonic() - began)))
    return taken


def failed(error: object) -> None:
    if error is not None:
        raise RuntimeError(f"a message was not delivered: {error}")


def at(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1]
