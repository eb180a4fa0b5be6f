"""Queues beside RabbitMQ: the same load from RabbitMQ's own PerfTest, on both brokers in turn.

Messages are persistent, publishers wait for confirms, consumers acknowledge one by one with a prefetch of 200. A
confirm of headrace follows a sync; RabbitMQ's classic queue syncs too, at intervals. Each broker's CPU and memory are
the kernel's figures for it and its children.

PerfTest is a Java process on the same two cores, so rates show broker and client together; CPU per message is the
broker alone. ``python -m benchmarks queues`` runs all cases in less than 15 minutes on two cores.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from benchmarks.brokers import unique
from benchmarks.figures import Figure
from benchmarks.perf_test import Outcome, run_perf_test
from benchmarks.queue_backlog import backlog_figures
from benchmarks.queue_confirms import RATE, ConfirmTimes, at_a_rate, with_a_full_window
from benchmarks.queue_delivery import DeliveryTimes, delivery_times
from benchmarks.queue_neighbours import neighbour_figures
from benchmarks.queue_pika import confirm_each, consume_backlog, fill
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.process import CannotRun, RunningServer
from tests.servers.rabbitmq import rabbitmq_server

__all__ = ["run"]

T = TypeVar("T")

PEER = "RabbitMQ 3.10"
PREFETCH = 200
UNCONFIRMED_MAX = 500
FAN_OUT = 50
WARM_UP_S = 5
PACE = 2_500
"""Messages a second of each publisher, where both brokers keep up: nothing piles up in the queues."""
PIKA_ROUNDS = 5
DELIVERY_RATE = 5_000
DELIVERY_ROUNDS = 3
WINDOW = 500
"""Unconfirmed messages of the prepared client."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where it listens, and the process that is measured; ours also speaks Kafka."""

    name: str
    port: int
    pid: int
    server: RunningServer | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything; PerfTest's JVM needs some seconds to get warm, in every run."""

    seconds: int
    rounds: int
    backlog: int
    pika: int
    """Messages that pika publishes one by one; it consumes ten times as many."""
    bodies: tuple[int, ...]
    queues: tuple[int, ...]


SIZES = Sizes(seconds=10, rounds=1, backlog=2_000_000, pika=2_000, bodies=(12, 1000, 16_000), queues=(1, 4))
SIZES_QUICK = Sizes(seconds=8, rounds=1, backlog=100_000, pika=300, bodies=(12, 16_000), queues=(1,))


def run(*, quick: bool) -> list[Figure]:
    sizes = SIZES_QUICK if quick else SIZES
    figures: list[Figure] = []
    with brokers_with_queues() as brokers:
        for broker in brokers:
            steady(broker, 12, 1, WARM_UP_S)
        for queues in sizes.queues:
            for size in sizes.bodies:
                turn = partial(steady, size=size, queues=queues, seconds=sizes.seconds)
                figures += figures_of(steady_name(size, queues), in_turn(brokers, sizes.rounds, turn))
        paced = partial(steady, size=12, queues=4, seconds=sizes.seconds, rate=PACE)
        name = f"{steady_name(12, 4)}, {4 * PACE:,} msg/s"
        figures += latency_figures(name, in_turn(brokers, sizes.rounds, paced))
        turn = partial(fan_out, seconds=sizes.seconds)
        figures += figures_of(f"fan-out to {FAN_OUT} queues, 12 B", in_turn(brokers, sizes.rounds, turn))
        drained = in_turn(brokers, 1, partial(fill_and_drain, count=sizes.backlog))
        figures += figures_of(f"drain {sizes.backlog:,} of 12 B", drained, has_latency=False)
        figures += confirm_figures(brokers, sizes)
        figures += delivery_figures(brokers, sizes)
        figures += pika_figures(brokers, sizes)
        assert brokers[0].server is not None
        figures += neighbour_figures(brokers[0].server, brokers[0].port, quick=quick)
    return [*figures, *backlog_figures(quick=quick)]


@contextmanager
def brokers_with_queues() -> Iterator[list[Broker]]:
    """headrace, and RabbitMQ where it is installed; without it ratios are missing."""
    with ExitStack() as stack:
        ours = stack.enter_context(headrace_server(arguments=["--amqp", "127.0.0.1:0"], expect_exit=None))
        brokers = [Broker("headrace", int(listener_address(ours.log, "amqp").rpartition(":")[2]), ours.pid, ours)]
        try:
            server = stack.enter_context(rabbitmq_server())
            brokers.append(Broker("rabbitmq", server.port, server.pid))
        except CannotRun as why:
            print(f"RabbitMQ cannot run here, so there is nothing to compare with: {why}", file=sys.stderr)
        yield brokers


def in_turn(brokers: list[Broker], rounds: int, turn: Callable[[Broker], T]) -> dict[str, list[T]]:
    """Each broker in turn, the order reversed every round; what the turn before it has written is on disk."""
    outcomes: dict[str, list[T]] = {broker.name: [] for broker in brokers}
    for number in range(rounds):
        for broker in brokers[:: -1 if number % 2 else 1]:
            os.sync()
            time.sleep(0.5)
            outcomes[broker.name].append(turn(broker))
    return outcomes


# ---- cases ----------------------------------------------------------------------------------------------------------


def steady_name(size: int, queues: int) -> str:
    shown = f"{size // 1000} KB" if size >= 1000 else f"{size} B"
    return f"{shown}, {queues} queue{'s' if queues > 1 else ''}"


def load(size: int) -> list[str]:
    return ["-f", "persistent", "-s", str(size), "-q", str(PREFETCH), "-c", str(UNCONFIRMED_MAX)]


def queue_names(name: str, count: int) -> list[str]:
    return ["-qp", f"{name}-%d", "-qpf", "1", "-qpt", str(count)]


def steady(broker: Broker, size: int, queues: int, seconds: int, rate: int | None = None) -> Outcome:
    """A publisher and a consumer for each queue, as fast as they can; with ``rate``, so many messages a second each."""
    clients = ["-x", str(queues), "-y", str(queues), *queue_names(unique("steady"), queues)]
    if rate is not None:
        clients += ["-r", str(rate)]
    return run_perf_test(broker.port, broker.pid, *clients, *load(size), "-z", str(seconds))


def fan_out(broker: Broker, seconds: int) -> Outcome:
    """Every message goes to all queues, each of which has a consumer; the rate counts what consumers get."""
    name = unique("fan")
    clients = ["-x", "1", "-y", str(FAN_OUT), "-t", "fanout", "-e", name, *queue_names(name, FAN_OUT)]
    return run_perf_test(broker.port, broker.pid, *clients, *load(12), "-z", str(seconds))


def fill_and_drain(broker: Broker, count: int) -> Outcome:
    """Publish first, then let one consumer take it all; only the second is the figure."""
    queue = unique("drain")
    fill(broker.port, queue, count, 12)
    clients = ["-x", "0", "-y", "1", "-u", queue, "-ad", "false"]
    return run_perf_test(broker.port, broker.pid, *clients, *load(12), "-D", str(count))


# ---- figures --------------------------------------------------------------------------------------------------------


def figures_of(case: str, outcomes: dict[str, list[Outcome]], *, has_latency: bool = True) -> list[Figure]:
    figure = partial(beside, case, outcomes)
    found = [
        figure("msg/s received", lambda each: each.received_per_s, higher=True),
        figure("broker CPU µs per message", cpu_us_per_message),
        figure("resident MB, highest", lambda each: each.broker_mb_max, goal=1 / 3),
    ]
    if has_latency:
        found[1:1] = latency_figures(case, outcomes)
    return found


def latency_figures(case: str, outcomes: dict[str, list[Outcome]]) -> list[Figure]:
    return [
        beside(case, outcomes, "ms publish to consumer, p99", lambda each: each.consumer_p99_ms),
        beside(case, outcomes, "ms publish to confirm, p99", lambda each: each.confirm_p99_ms),
    ]


def beside(
    case: str,
    outcomes: dict[str, list[T]],
    unit: str,
    value: Callable[[T], float],
    *,
    goal: float = 1.0,
    has_goal: bool = True,
    higher: bool = False,
) -> Figure:
    """One figure of each broker; the goal, if there is one, is to be no worse."""
    return Figure(
        hop="queues",
        case=case,
        unit=unit,
        ours=[value(each) for each in outcomes["headrace"]],
        peers=[value(each) for each in outcomes.get("rabbitmq", [])],
        peer=PEER,
        higher_is_better=higher,
        goal=goal if has_goal else None,
    )


def confirm_figures(brokers: list[Broker], sizes: Sizes) -> list[Figure]:
    """A confirm at a fixed rate, and with a full window, from a client of prepared bytes."""
    found = []
    for size in sizes.bodies:
        group = max(1, min(10, 80_000 // size))
        window = partial(with_a_full_window, group=group, groups=WINDOW // group)
        for case, measure in ((f"{RATE} msg/s", at_a_rate), ("full window", window)):
            times = in_turn(
                brokers, sizes.rounds, partial(confirm_times, measure=measure, size=size, seconds=sizes.seconds / 3)
            )
            figure = partial(beside, f"prepared client, {steady_name(size, 1)}, {case}", times)
            if measure is not at_a_rate:
                found.append(figure("msg/s confirmed", lambda each: each.per_s, higher=True))
            found.append(figure("ms publish to confirm, p50", lambda each: each.p50_ms))
            found.append(figure("ms publish to confirm, p99", lambda each: each.p99_ms))
            found.append(figure("broker CPU µs per message", lambda each: each.cpu_us))
    return found


def confirm_times(
    broker: Broker, measure: Callable[[int, int, int, float], ConfirmTimes], size: int, seconds: float
) -> ConfirmTimes:
    return measure(broker.port, broker.pid, size, seconds)


def delivery_figures(brokers: list[Broker], sizes: Sizes) -> list[Figure]:
    """From publisher to consumer between clients of prepared bytes, at a fixed rate and as fast as they can."""
    found = []
    for rate in (DELIVERY_RATE, None):
        turn = partial(_delivered, seconds=sizes.seconds / 2, rate=rate)
        times = in_turn(brokers, DELIVERY_ROUNDS, turn)
        case = "full window" if rate is None else f"{rate:,} msg/s"
        figure = partial(beside, f"prepared clients, {steady_name(12, 1)}, {case}", times)
        if rate is None:
            found.append(figure("msg/s received", lambda each: each.received_per_s, higher=True))
        found.append(figure("ms publish to consumer, p50", lambda each: each.p50_ms))
        found.append(figure("ms publish to consumer, p99", lambda each: each.p99_ms))
        found.append(figure("messages waiting in the queue, p99", lambda each: each.waiting_p99, has_goal=False))
    return found


def _delivered(broker: Broker, seconds: float, rate: int | None) -> DeliveryTimes:
    return delivery_times(broker.port, seconds, rate)


def pika_figures(brokers: list[Broker], sizes: Sizes) -> list[Figure]:
    """One by one, several times: a turn takes a second, and a single slow sync decides its p99."""
    each_confirmed = in_turn(brokers, PIKA_ROUNDS, lambda each: confirm_each(each.port, each.pid, sizes.pika))
    figure = partial(beside, "pika, a confirm for each message, 1 KB", each_confirmed)
    found = [
        figure("msg/s", lambda each: each.per_s, higher=True),
        figure("ms, p99", lambda each: each.p99_ms),
        figure("broker CPU µs per message", lambda each: each.cpu_us),
    ]
    consumed = in_turn(brokers, sizes.rounds, lambda each: consume_backlog(each.port, each.pid, 10 * sizes.pika))
    figure = partial(beside, f"pika, prefetch {PREFETCH}, 1 KB", consumed)
    found.append(figure("msg/s", lambda each: each.per_s, higher=True))
    found.append(figure("broker CPU µs per message", lambda each: each.cpu_us))
    return found


def cpu_us_per_message(outcome: Outcome) -> float:
    return outcome.broker_cpu_s / outcome.received * 1e6
