"""``python -m benchmarks [name …] [--quick] [--output table|json] [--record DIR]``."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import psutil

from benchmarks import broker, capture, codec, cold, footprint, latency, queues, raw, scaling, stalls
from benchmarks.brokers import Brokers, both_brokers
from benchmarks.figures import Figure, as_json, record, table
from tests.servers.kafka import KAFKA_VERSION

ON_BROKERS: dict[str, Callable[..., list[Figure]]] = {
    "broker": broker.run,
    "raw": raw.run,
    "latency": latency.run,
    "cold": cold.run,
    "footprint": footprint.run,
    "scaling": scaling.run,
}
"""These take both brokers, running."""


def of_spark(name: str) -> Callable[..., list[Figure]]:
    """Imported when it runs: pyspark takes a second, and who measures the broker need not have it."""
    return lambda **options: cast("list[Figure]", importlib.import_module(f"benchmarks.{name}").run(**options))


ALONE: dict[str, Callable[..., list[Figure]]] = {
    "capture": capture.run,
    "codec": codec.run,
    "patterns": of_spark("patterns"),
    "queues": queues.run,
    "stalls": stalls.run,
    "searches": of_spark("searches"),
    "sourcing": of_spark("sourcing"),
    "sinks": of_spark("sinks"),
    "spark-decode": of_spark("spark_decode"),
    "spark-sink": of_spark("spark_sink"),
    "spark-source": of_spark("spark_source"),
    "spark-state": of_spark("spark_state"),
    "spark-views": of_spark("spark_views"),
}

NAMES = [*ALONE, *ON_BROKERS]


def main() -> None:
    arguments = parse()
    names = arguments.names or NAMES
    run = Run(arguments)
    for name in [each for each in NAMES if each in names and each in ALONE]:
        run.report(name, ALONE[name](quick=arguments.quick))
    if any(name in ON_BROKERS for name in names):
        with both_brokers() as brokers:
            warm_up(brokers, 10 if arguments.quick else 1)
            for name in [each for each in ON_BROKERS if each in names]:
                run.report(name, ON_BROKERS[name](brokers, quick=arguments.quick))
    run.end()


class Run:
    """The figures so far. Tables appear as they are ready; with JSON they go to stderr, so that somebody waiting sees
    progress."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.figures: list[Figure] = []
        self.machine = {**machine(), "quick": arguments.quick}
        self._began = time.monotonic()
        self._prints_json = arguments.output == "json"
        self._folder: Path | None = arguments.record
        if not self._prints_json:
            print(" · ".join(f"{what} {value}" for what, value in self.machine.items()))

    def report(self, name: str, figures: list[Figure]) -> None:
        self.figures += figures
        print(f"\n## {name}\n\n{table(figures)}", file=sys.stderr if self._prints_json else sys.stdout, flush=True)
        self.machine["load_after"] = round(psutil.getloadavg()[0], 1)
        if self._folder is not None:
            path = record(self._folder, "benchmarks", self.machine, self.figures)
            print(f"recorded in {path}", file=sys.stderr)

    def end(self) -> None:
        if self._prints_json:
            print(json.dumps({"machine": self.machine, "figures": as_json(self.figures)}, indent=2))
        missed = [figure for figure in self.figures if figure.met is False]
        print(
            f"\n{len(self.figures)} figures in {time.monotonic() - self._began:.0f} s; "
            f"{len(missed)} of {sum(figure.goal is not None for figure in self.figures)} goals missed",
            file=sys.stderr,
        )


def warm_up(brokers: Brokers, part: int) -> None:
    """Kafka's compiler works by how often code ran, and a case measured too early shows the interpreter; so tens of
    thousands of requests of each kind come first, whichever benchmarks were asked for. Both brokers get the same."""
    for each in brokers.all:
        raw.turn(each, 100, 20_000 // part)
        broker.round_trip(each, broker.Case(100, 16, 1_000_000 // part))
        broker.round_trip(each, broker.Case(1000, 1, 300_000 // part))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ratios measured in one run.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which ones: {', '.join(NAMES)}; all when none")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, proves little")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="also write every round of every figure there, as JSON"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    return arguments


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    return {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": psutil.cpu_count(),
        "load_before": round(psutil.getloadavg()[0], 1),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "apache_kafka": KAFKA_VERSION,
        **{package: metadata.version(package) for package in ("headrace", "confluent-kafka", "kafka-python", "uvloop")},
    }


if __name__ == "__main__":
    main()
