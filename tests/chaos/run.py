"""Faults under load: ``python -m tests.chaos.run --kills 200 --seed 7``, and ``--faults all`` for more than kill -9.

A broker runs as a child on a real disk. Producers, transactions, a transformation, groups in both protocols and readers
work without pause while it is killed every few seconds and started again on the same data, or while something else is
done to it (see ``faults``). In the end everything is drained, and the judge of ``checker`` looks at all that anybody
saw. The seed decides what is done when, and what clients do; the threads of this process and of librdkafka add what no
seed decides, so a run is repeated by its seed in kind and not to the letter. History and data are kept when something
is wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import inspect
import logging
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.broker import ChaosBroker
from tests.chaos.checker import check
from tests.chaos.consumers import READ_TIMEOUT_S, AioMember, Member, Observer, Reader, Rereader, Watcher, drain
from tests.chaos.faults import FAULTS, JUMP_MS_MAX, THROUGH_PROXY, Faults
from tests.chaos.history import Recorder, Worker
from tests.chaos.operations import read_lines
from tests.chaos.producers import IdempotentProducer, TransactionalProducer, Transformer
from tests.chaos.proxy import Proxy
from tests.chaos.topics import KEEP_ALL, KeyedProducer, Recreator, TableReader, Trimmer
from tests.servers.process import log_tail

STOP_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 60.0
TOPICS = {"plain": 4, "mixed": 3, "results": 2}
SHORTENED = {"shortened": 2}
COMPACTED = {"compacted": 2}
FLEETING = "fleeting"
SETTINGS = {
    "compacted": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "500",
    },
    "shortened": {"segment.ms": "1000"},
}
"""Segments are short, so that there is always something to compact and to remove."""
BROKER = {
    "auto.create.topics.enable": False,
    "log.cleaner.backoff.ms": 200,
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.heartbeat.interval.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}
SOCKET_TIMEOUT_MS = 5_000
"""After which a client gives up a connection that is dead and does not say so."""
AIO_REBALANCE_MS = 20_000
"""For so long a rebalance of aiokafka's group waits for ghosts."""
GHOSTS_GONE_S = 2.0
"""Now and then a broker lives so much longer than a session, so that ghosts go and classic groups rebalance."""


def protocols(session_ms: int) -> dict[str, dict[str, Any]]:
    """What the members of each group are configured with.

    A member whose farewell met a dead broker is missed after its session timeout, counted again from each restart:
    short, so that groups do not spend the run waiting for ghosts; long enough that no living client is taken for one.
    """
    classic = {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 1000}
    return {
        "eager": {**classic, "partition.assignment.strategy": "range"},
        "cooperative": {**classic, "partition.assignment.strategy": "cooperative-sticky"},
        "kip848": {"group.protocol": "consumer"},
    }


class Load:
    """All clients of a run."""

    def __init__(self, bootstrap: str, recorder: Recorder, options: argparse.Namespace) -> None:
        chance = random.Random(options.seed)
        per_second, session_ms = options.per_second, options.session_ms
        client = {"socket.timeout.ms": SOCKET_TIMEOUT_MS} if THROUGH_PROXY & set(options.faults) else {}
        self.bootstrap = bootstrap
        self.recorder = recorder

        def make(kind: Any, name: str, **options: Any) -> Any:
            if "seed" in inspect.signature(kind).parameters:
                options["seed"] = chance.randrange(1 << 32)
            worker = kind(name, bootstrap, recorder, **options)
            worker.settings = client
            return worker

        self.writers: list[Worker] = [
            make(IdempotentProducer, f"plain{n}", topic="plain", partitions=TOPICS["plain"], per_second=per_second)
            for n in range(3)
        ]
        self.writers.append(
            make(IdempotentProducer, "aside", topic="mixed", partitions=TOPICS["mixed"], per_second=per_second // 4)
        )
        self.writers += [
            make(TransactionalProducer, f"txn{n}", topic="mixed", partitions=TOPICS["mixed"]) for n in range(2)
        ]
        self.writers.append(
            make(IdempotentProducer, "front", topic="shortened", partitions=2, per_second=per_second // 2)
        )
        self.writers += [
            make(KeyedProducer, f"keys{n}", topic="compacted", partitions=2, keys=50, per_second=per_second // 2)
            for n in range(2)
        ]
        self.writers.append(make(Trimmer, "trimmer", topic="shortened", partitions=2))
        self.recreator: Recreator = make(Recreator, "recreator", topic=FLEETING)
        self.writers.append(self.recreator)
        self.transformer: Transformer = make(
            Transformer, "etl", source="mixed", target="results", partitions=TOPICS["results"]
        )
        self.readers: list[Worker] = [
            make(Reader, f"reader-{isolation}", topics=TOPICS, isolation=isolation)
            for isolation in ("committed", "uncommitted")
        ]
        self.readers.append(make(Rereader, "rereader", topics={**TOPICS, **SHORTENED}))
        self.readers += [
            make(Watcher, f"watcher-{isolation}", topics={**TOPICS, **SHORTENED}, isolation=isolation)
            for isolation in ("committed", "uncommitted")
        ]
        self.table_reader: TableReader = make(TableReader, "table", topic="compacted", partitions=2)
        self.readers.append(self.table_reader)
        for group, protocol in protocols(session_ms).items():
            self.readers += [
                make(Member, f"{group}{n}", group=group, topic="plain", protocol=protocol) for n in range(3)
            ]
        aio = {"session_timeout_ms": session_ms, "rebalance_timeout_ms": AIO_REBALANCE_MS}
        self.readers += [make(AioMember, f"aio{n}", group="aio", topic="plain", protocol=aio) for n in range(2)]
        self.readers += [
            make(Observer, f"observer-{group}", group=group, topic="plain", partitions=TOPICS["plain"])
            for group in ("eager", "cooperative", "kip848", "aio")
        ]
        self.readers.append(make(Observer, "observer-etl", group="etl", topic="mixed", partitions=TOPICS["mixed"]))

    def start(self) -> None:
        for worker in [*self.writers, self.transformer, *self.readers]:
            worker.start()

    def stop(self) -> None:
        """Writers first, then the transformation when it has caught up, then those who only look."""
        self.end(self.writers)
        self.catch_up()
        self.end([self.transformer])
        self.end(self.readers)

    def end(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                self.recorder.fail(worker.name, f"did not stop within {STOP_TIMEOUT_S:g} s")

    def catch_up(self) -> None:
        """Wait until the transformation has committed everything there is to read."""
        consumer = Consumer({**self.transformer.common(), "group.id": "etl", "isolation.level": "read_committed"})
        places = [TopicPartition("mixed", index) for index in range(TOPICS["mixed"])]
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while True:
            ends = {each.partition: consumer.get_watermark_offsets(each, ANSWER_TIMEOUT_S, False)[1] for each in places}
            committed = consumer.committed(places, ANSWER_TIMEOUT_S)
            behind = {each.partition: ends[each.partition] - max(each.offset, 0) for each in committed}
            # A partition may end in markers, which are never read and so never committed past.
            if all(lag <= 0 for lag in behind.values()) or self.only_markers(behind, ends):
                break
            if time.monotonic() > deadline:
                self.recorder.fail("etl", f"did not catch up within {STOP_TIMEOUT_S:g} s; behind by {behind}")
                break
            time.sleep(0.3)
        consumer.close()

    def only_markers(self, behind: dict[int, int], ends: dict[int, int]) -> bool:
        """Whether nothing but markers lies between what is committed and the end."""
        common = self.transformer.common()
        consumer = Consumer(
            {**common, "group.id": "peek", "isolation.level": "read_committed", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition("mixed", index, ends[index] - lag) for index, lag in behind.items()])
        finished = 0
        while finished < len(behind):
            for each in consumer.consume(100, 1.0):
                if each.error() is None:
                    consumer.close()
                    return False
                finished += each.error().code() == KafkaError._PARTITION_EOF
        consumer.close()
        return True


def create_topics(bootstrap: str, faults: Sequence[str]) -> None:
    """A tombstone may go when a reader who saw the value before it has had time to see it: by the broker's clock."""
    tombstones_ms = JUMP_MS_MAX if "clock" in faults else 2 * int(READ_TIMEOUT_S * 1000)
    settings = {**SETTINGS, "compacted": {**SETTINGS["compacted"], "delete.retention.ms": str(tombstones_ms)}}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {**TOPICS, **SHORTENED, **COMPACTED}
    futures = admin.create_topics(
        [NewTopic(topic, count, config={**KEEP_ALL, **settings.get(topic, {})}) for topic, count in topics.items()]
    )
    for future in futures.values():
        future.result(ANSWER_TIMEOUT_S)


def drain_all(load: Load) -> None:
    """Read everything at both levels; with all transactions ended both must come to the same end."""
    common = load.transformer.common()
    topics = {**TOPICS, **SHORTENED}
    ends = {
        level: drain(load.recorder, common, topics, level, STOP_TIMEOUT_S) for level in ("uncommitted", "committed")
    }
    if not load.table_reader.read_all():
        load.recorder.fail("table", "the compacted topic could not be read to its end")
    if not load.recreator.read(final=True):
        load.recorder.fail("recreator", "the last of the deleted topics could not be read to its end")
    for place, end in ends["uncommitted"].items():
        if ends["committed"].get(place) != end:
            where = f"{place[0]}-{place[1]}"
            load.recorder.fail(where, f"readers of committed data stop at {ends['committed'].get(place)}, not {end}")


def fault_loop(faults: Faults, options: argparse.Namespace) -> Counter[str]:
    """One fault after the other, with some time between them in which clients work; how many of each."""
    chance = random.Random(options.seed)
    done: Counter[str] = Counter()
    deadline = time.monotonic() + 60 * options.minutes
    for number in range(1, options.kills + 1):
        if time.monotonic() > deadline:
            break
        life_s = chance.uniform(options.least_s, options.most_s)
        if chance.random() < 0.08:
            life_s += options.session_ms / 1000 + GHOSTS_GONE_S
        time.sleep(life_s)
        faults.broker.check_alive()
        name = chance.choice(options.faults)
        FAULTS[name](faults)
        done[name] += 1
        if options.verbose:
            print(f"{number}: {name}; the last start took {faults.broker.starts_s[-1]:.2f} s", flush=True)
    return done


def run(options: argparse.Namespace, home: Path) -> int:
    recorder = Recorder(home / "history.jsonl")
    broker = ChaosBroker(home, settings={**BROKER, "group.consumer.session.timeout.ms": options.session_ms})
    with Proxy(broker.port) as proxy:
        through_proxy = bool(THROUGH_PROXY & set(options.faults))
        if through_proxy:
            broker.settings["advertised.kafka"] = proxy.bootstrap
        broker.start()
        bootstrap = proxy.bootstrap if through_proxy else broker.bootstrap
        create_topics(bootstrap, options.faults)
        load = Load(bootstrap, recorder, options)
        return run_load(options, Faults(broker, proxy, recorder, options.seed), load)


def run_load(options: argparse.Namespace, faults: Faults, load: Load) -> int:
    broker, recorder = faults.broker, load.recorder
    began = time.monotonic()
    complete = False
    load.start()
    try:
        done = fault_loop(faults, options)
        options.kills = done.total()
        print(f"faults: {dict(done)}", flush=True)
        time.sleep(1.0)
        load.stop()
        drain_all(load)
        complete = True
    except RuntimeError as error:
        recorder.fail("broker", str(error))
    status = broker.stop()
    if status != 0:
        recorder.fail("broker", f"ended with {status} after SIGTERM:\n{log_tail(broker.log)}")
    for log in sorted(broker.home.glob("broker-*.log")):
        if "Traceback" in log.read_text(errors="replace"):
            recorder.fail("broker", f"a traceback in its log:\n{log_tail(log)}")
    recorder.close()
    return judge(options, broker, load, time.monotonic() - began, complete=complete)


def judge(options: argparse.Namespace, broker: ChaosBroker, load: Load, took_s: float, *, complete: bool) -> int:
    recorder = load.recorder
    with recorder.path.open() as lines:
        problems = check(read_lines(lines), complete=complete)
    lives = sum(worker.lives for worker in load.readers if isinstance(worker, Member))
    for why, count in recorder.restarts.items():
        print(f"  {count} × {why}")
    for line in recorder.failures + [str(problem) for problem in problems]:
        print(f"  {line}")
    counts, restarts = recorder.counts, sum(recorder.restarts.values())
    print(
        f"seed {options.seed}, {options.kills} faults in {took_s:.0f} s, slowest restart {max(broker.starts_s):.2f} s; "
        f"{counts['produce ok']} values acknowledged, {counts['produce info']} unknown, "
        f"{counts['end ok']} transactions ended, {counts['end info']} unknown, {restarts} transactional restarts; "
        f"{counts['commit ok']} commits, {counts['observe']} observations, {lives} members, "
        f"{counts['own']} assignments; "
        f"{counts['put ok']} values of keys in {counts['fold']} readings, {counts['trim ok']} times records deleted, "
        f"{load.recreator.life + 1} lives of a topic, {counts['ends']} looks at ends"
    )
    sound = not problems and not recorder.failures
    print("result: sound" if sound else f"result: {len(problems)} problems, {len(recorder.failures)} failures")
    return 0 if sound else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--kills", type=int, default=200, help="how many faults; all are kills unless --faults is given"
    )
    parser.add_argument("--faults", default="kill", help=f"which, with commas between: {', '.join(FAULTS)}; or all")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=math.inf, help="judge after so long, however many there were")
    parser.add_argument("--least-s", type=float, default=1.0, help="shortest life of a broker")
    parser.add_argument("--most-s", type=float, default=6.0, help="longest life of a broker")
    parser.add_argument("--per-second", type=int, default=150, help="values per second of each plain producer")
    parser.add_argument("--session-ms", type=int, default=10_000, help="after which a silent group member is missed")
    parser.add_argument("--keep", action="store_true", help="keep data and history in any case")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.faults = list(FAULTS) if options.faults == "all" else options.faults.split(",")
    if unknown := set(options.faults) - FAULTS.keys():
        parser.error(f"no fault is called {', '.join(unknown)}; there are: {', '.join(FAULTS)}")
    logging.disable(logging.CRITICAL)  # clients complain of a broker that is away, and it often is
    faulthandler.register(signal.SIGUSR1)  # where does a client hang? kill -USR1 tells
    print(f"seed {options.seed}", flush=True)
    home = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    status = run(options, home)
    if status == 0 and not options.keep:
        shutil.rmtree(home, ignore_errors=True)
    else:
        print(f"kept: {home}")
    return status


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a client that hangs on a broker that is gone must not keep the verdict waiting
